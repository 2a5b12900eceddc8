//! `create role`, `create clusterrole`, `create rolebinding`, `create clusterrolebinding`.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::generate::access::{self, RoleFlags, RuleResource, SubjectFlags};

use super::CommonFlags;

/// What a role allows.
#[derive(clap::Args, Debug)]
pub struct RuleFlags {
    /// Verb; repeatable
    #[arg(long, value_delimiter = ',', value_name = "VERB")]
    verb: Vec<String>,
    /// Resource, with its subresource if any; repeatable
    #[arg(long, value_delimiter = ',', value_name = "RESOURCE")]
    resource: Vec<String>,
    /// Name of an object; repeatable
    #[arg(long, value_name = "NAME")]
    resource_name: Vec<String>,
}

/// Resolves the words by the server's discovery.
async fn resources(session: &Session, words: &[String]) -> Result<Vec<RuleResource>, CommandError> {
    let mut found = Vec::new();
    for word in words {
        let (resource, subresource) = word.split_once('/').unwrap_or((word, ""));
        let (group, plural) = match resource {
            "*" => (String::new(), "*".to_owned()),
            resource => {
                let known = session.discovery().await?.resource(resource)?;
                (known.group.clone(), known.plural.clone())
            }
        };
        let resource = match subresource {
            "" => plural,
            subresource => format!("{plural}/{subresource}"),
        };
        found.push(RuleResource { group, resource });
    }
    Ok(found)
}

/// Flags of `create role`.
#[derive(clap::Args, Debug)]
pub struct RoleArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    rules: RuleFlags,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_role(
    session: &Session,
    args: RoleArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let resources = resources(session, &args.rules.resource).await?;
    let flags = RoleFlags {
        verbs: &args.rules.verb,
        resources: &resources,
        resource_names: &args.rules.resource_name,
        paths: &[],
    };
    let made = access::role(args.common.names(session).await?, &args.name, flags);
    args.common.generate(session, made, "", output).await
}

/// Flags of `create clusterrole`.
#[derive(clap::Args, Debug)]
pub struct ClusterRoleArgs {
    /// Its name
    name: String,
    #[command(flatten)]
    rules: RuleFlags,
    /// Path that is no resource; repeatable
    #[arg(long, value_delimiter = ',', value_name = "PATH")]
    non_resource_url: Vec<String>,
    /// Labels of the roles whose rules it takes over; repeatable
    #[arg(long, value_name = "SELECTOR",
        conflicts_with_all = ["verb", "resource", "non_resource_url"])]
    aggregation_rule: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_cluster_role(
    session: &Session,
    args: ClusterRoleArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let resources = resources(session, &args.rules.resource).await?;
    let flags = RoleFlags {
        verbs: &args.rules.verb,
        resources: &resources,
        resource_names: &args.rules.resource_name,
        paths: &args.non_resource_url,
    };
    let names = args.common.names(session).await?;
    let made = access::cluster_role(names, &args.name, flags, &args.aggregation_rule.join(","));
    args.common.generate(session, made, "", output).await
}

/// Who gets a role.
#[derive(clap::Args, Debug)]
pub struct SubjectArgs {
    /// User; repeatable
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    /// Group; repeatable
    #[arg(long, value_name = "NAME")]
    group: Vec<String>,
    /// Service account as NAMESPACE:NAME; repeatable
    #[arg(long, value_name = "ACCOUNT")]
    serviceaccount: Vec<String>,
}

impl SubjectArgs {
    pub(crate) fn names_users(&self) -> bool {
        !self.user.is_empty()
    }

    /// Whether no subject is named.
    pub(crate) fn is_empty(&self) -> bool {
        self.user.is_empty() && self.group.is_empty() && self.serviceaccount.is_empty()
    }

    pub(crate) fn flags(&self) -> SubjectFlags<'_> {
        SubjectFlags {
            users: &self.user,
            groups: &self.group,
            service_accounts: &self.serviceaccount,
        }
    }
}

/// Flags of `create rolebinding`.
#[derive(clap::Args, Debug)]
pub struct BindingArgs {
    /// Its name
    name: String,
    /// The ClusterRole
    #[arg(long, value_name = "NAME", required_unless_present = "role", conflicts_with = "role")]
    clusterrole: Option<String>,
    /// The Role
    #[arg(long, value_name = "NAME")]
    role: Option<String>,
    #[command(flatten)]
    pub(super) subjects: SubjectArgs,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_binding(
    session: &Session,
    args: BindingArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = args.common.names(session).await?;
    let role = match (&args.clusterrole, &args.role) {
        (Some(role), _) => ("ClusterRole", role.as_str()),
        (None, role) => ("Role", role.as_deref().unwrap_or_default()),
    };
    let made = access::binding(names, ("RoleBinding", &args.name), role, args.subjects.flags());
    args.common.generate(session, made, "rolebinding", output).await
}

/// Flags of `create clusterrolebinding`.
#[derive(clap::Args, Debug)]
pub struct ClusterBindingArgs {
    /// Its name
    name: String,
    /// The ClusterRole
    #[arg(long, value_name = "NAME")]
    clusterrole: String,
    #[command(flatten)]
    pub(super) subjects: SubjectArgs,
    #[command(flatten)]
    common: CommonFlags,
}

pub(super) async fn run_cluster_binding(
    session: &Session,
    args: ClusterBindingArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = args.common.names(session).await?;
    let (binding, role) =
        (("ClusterRoleBinding", args.name.as_str()), ("ClusterRole", args.clusterrole.as_str()));
    let made = access::binding(names, binding, role, args.subjects.flags());
    args.common.generate(session, made, "clusterrolebinding", output).await
}
