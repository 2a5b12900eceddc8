//! Authorization: the attributes of a request, what a module says of them, and the modules that need nothing else.

use apiserver_rbac::Rule;

use crate::user::{MASTERS, User};

/// The attributes of a request to be authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    pub user: &'a User,
    /// API verb for resources, lower-case HTTP method for other paths.
    pub verb: &'a str,
    /// The resource or path.
    pub subject: AccessTarget<'a>,
}

/// The resource or path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTarget<'a> {
    Resource {
        /// Empty for the core group.
        group: &'a str,
        /// Version of the group.
        version: &'a str,
        /// Resource in the plural.
        resource: &'a str,
        /// Empty for none.
        subresource: &'a str,
        /// Empty for all namespaces and cluster-scoped resources.
        namespace: &'a str,
        /// Empty for collections.
        name: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}

/// The decision of one module, or of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// Denied; further modules are not consulted.
    Deny,
    /// The next module decides.
    NoOpinion,
}

/// A decision with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    pub decision: Decision,
    /// Reason for the message of a denial; may be empty.
    pub reason: String,
    /// Why a module could not decide; usually empty. If no module allows the request, it fails with this error instead of being denied.
    pub error: String,
}

/// What a user may do in a namespace, as far as modules can list it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    pub rules: Vec<Rule>,
    /// Whether more may be allowed than the rules say.
    pub incomplete: bool,
    /// Why they are incomplete; may be empty.
    pub error: String,
}

/// An authorization module that decides from memory.
pub trait Authorizer: Send + Sync {
    /// The decision for a request with these attributes.
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization;

    /// What the module allows a user in a namespace.
    fn rules(&self, user: &User, namespace: &str) -> UserRules;
}

/// The rules that allow everything.
fn all_rules() -> Vec<Rule> {
    vec![Rule::every_resource(), Rule::every_path()]
}

/// Allows every request.
pub struct AlwaysAllow;

/// Has no opinion on any request, with a reason as kube-apiserver's `AlwaysDeny` gives it.
pub struct AlwaysDeny;

/// Allows `system:masters` everything, before the configured modules.
pub struct Masters;

impl Authorization {
    /// A decision with a reason, which may be empty.
    #[must_use]
    pub fn new(decision: Decision, reason: impl Into<String>) -> Self {
        Self { decision, reason: reason.into(), error: String::new() }
    }

    /// No opinion, because of an error.
    #[must_use]
    pub fn failed(error: String) -> Self {
        Self { decision: Decision::NoOpinion, reason: String::new(), error }
    }
}

impl Authorizer for AlwaysAllow {
    fn authorize(&self, _: &Attributes<'_>) -> Authorization {
        Authorization::new(Decision::Allow, "")
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        UserRules { rules: all_rules(), ..UserRules::default() }
    }
}

impl Authorizer for AlwaysDeny {
    fn authorize(&self, _: &Attributes<'_>) -> Authorization {
        Authorization::new(Decision::NoOpinion, "Everything is forbidden.")
    }

    fn rules(&self, _: &User, _: &str) -> UserRules {
        UserRules::default()
    }
}

impl Authorizer for Masters {
    fn authorize(&self, attributes: &Attributes<'_>) -> Authorization {
        let member = attributes.user.is_in(MASTERS);
        Authorization::new(if member { Decision::Allow } else { Decision::NoOpinion }, "")
    }

    fn rules(&self, user: &User, _: &str) -> UserRules {
        let rules = if user.is_in(MASTERS) { all_rules() } else { Vec::new() };
        UserRules { rules, ..UserRules::default() }
    }
}

impl Attributes<'_> {
    /// The message of a denial, in Kubernetes' words.
    #[must_use]
    pub fn denial(&self, reason: &str) -> String {
        let user = &self.user.name;
        let verb = self.verb;
        let mut text = match self.subject {
            AccessTarget::Path(path) => format!("User {user:?} cannot {verb} path {path:?}"),
            AccessTarget::Resource { group, resource, subresource, namespace, .. } => {
                let slash = if subresource.is_empty() { "" } else { "/" };
                let place = if namespace.is_empty() {
                    "at the cluster scope".to_owned()
                } else {
                    format!("in the namespace {namespace:?}")
                };
                format!(
                    "User {user:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} {place}"
                )
            }
        };
        if !reason.is_empty() {
            text.push_str(": ");
            text.push_str(reason);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_name_everything() {
        let user = User { name: "alice".into(), ..User::default() };
        let subject = AccessTarget::Resource {
            group: "",
            version: "v1",
            resource: "pods",
            subresource: "exec",
            namespace: "a",
            name: "p",
        };
        let text = Attributes { user: &user, verb: "create", subject }.denial("");
        assert_eq!(
            text,
            "User \"alice\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"a\""
        );
    }
}
