//! `set`: images, environment, resources and account of workloads, selectors of Services, subjects of bindings.

mod list_env;
mod subject;

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::ArgumentError;
use orchctl_plans::generate::parse_selector;
use orchctl_plans::pod_template::{self, Variable};
use serde_json::Value;

use crate::local::LocalFlag;
use crate::record::RecordFlags;
use crate::requests::{self, Place};
use crate::results::ResultFlags;
use crate::targets::{TargetFlags, TargetObject};

/// What is said of a Service.
const SELECTOR_UPDATED: &str = "selector updated";

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Part,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Images of containers
    Image(ImageArgs),
    /// Variables of the environment
    Env(EnvArgs),
    /// Limits and requests
    Resources(ResourcesArgs),
    /// The account of the pods
    #[command(alias = "sa")]
    Serviceaccount(AccountArgs),
    /// The selector of a Service
    Selector(SelectorArgs),
    /// Who has the role of a RoleBinding or ClusterRoleBinding: adds to those who have it
    Subject(subject::Args),
}

impl Args {
    /// Whether a role is given to users: `--user` has another meaning then.
    pub fn names_users(&self) -> bool {
        matches!(&self.command, Part::Subject(args) if args.subjects.names_users())
    }
}

#[derive(clap::Args, Debug)]
struct CommonFlags {
    #[command(flatten)]
    targets: TargetFlags,
    #[command(flatten)]
    local: LocalFlag,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-set")]
    field_manager: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

#[derive(clap::Args, Debug)]
struct ImageArgs {
    /// TYPE NAME or TYPE/NAME..., then CONTAINER=IMAGE, or *=IMAGE for all
    #[arg(value_name = "OBJECT|IMAGE", required = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(clap::Args, Debug)]
struct EnvArgs {
    /// TYPE NAME or TYPE/NAME..., then NAME=VALUE to set and NAME- to remove
    #[arg(value_name = "OBJECT|VARIABLE", required = true)]
    arguments: Vec<String>,
    /// Variable as NAME=VALUE; repeatable
    #[arg(long, short, value_name = "VARIABLE")]
    env: Vec<String>,
    /// Object whose keys become variables: configmap/NAME or secret/NAME
    #[arg(long, value_name = "OBJECT")]
    from: Option<String>,
    /// With --from: only these keys
    #[arg(long, value_name = "KEY", value_delimiter = ',', requires = "from")]
    keys: Vec<String>,
    /// With --from: what names of variables begin with
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        requires = "from"
    )]
    prefix: String,
    /// Containers whose names match, with * for any text
    #[arg(long, short, value_name = "PATTERN", default_value = "*")]
    containers: String,
    /// Show the variables as they would be, and change nothing
    #[arg(long, conflicts_with = "output")]
    list: bool,
    /// Replace values that are there
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    overwrite: bool,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(clap::Args, Debug)]
struct ResourcesArgs {
    /// TYPE NAME or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    /// Limits, as cpu=1,memory=1Gi; 0 removes one
    #[arg(long, value_name = "AMOUNTS", default_value = "", hide_default_value = true)]
    limits: String,
    /// Requests, as cpu=100m,memory=1Gi; 0 removes one
    #[arg(long, value_name = "AMOUNTS", default_value = "", hide_default_value = true)]
    requests: String,
    /// Containers whose names match, with * for any text
    #[arg(long, short, value_name = "PATTERN", default_value = "*")]
    containers: String,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(clap::Args, Debug)]
struct AccountArgs {
    /// TYPE NAME or TYPE/NAME..., then the account
    #[arg(value_name = "OBJECT|ACCOUNT", required = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(clap::Args, Debug)]
struct SelectorArgs {
    /// service NAME, then the labels as KEY=VALUE,...
    #[arg(value_name = "OBJECT|LABELS", required = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    common: CommonFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be changed.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Part::Image(args) => run_image(session, args, output).await,
        Part::Env(args) => run_env(session, args, output).await,
        Part::Resources(args) => {
            let limits = pod_template::parse_resources(&args.limits).map_err(requests::argument)?;
            let wanted =
                pod_template::parse_resources(&args.requests).map_err(requests::argument)?;
            if limits.is_empty() && wanted.is_empty() {
                return Err(CommandError::with_text(
                    "you must specify an update to requests or limits (in the form of --requests/--limits)",
                ));
            }
            let done = "resource requirements updated";
            change(session, &args.common, (&args.objects, done), output, |object| {
                pod_template::set_resources(object, &args.containers, &limits, &wanted)
            })
            .await
        }
        Part::Serviceaccount(args) => {
            let Some((account, objects)) = args.arguments.split_last() else {
                return Err(CommandError::with_text("the service account is missing"));
            };
            let done = "serviceaccount updated";
            change(session, &args.common, (objects, done), output, |object| {
                pod_template::set_service_account(object, account)
            })
            .await
        }
        Part::Selector(args) => {
            let Some((labels, objects)) = args.arguments.split_last() else {
                return Err(CommandError::with_text("the selector is missing"));
            };
            let selector = parse_selector(labels).map_err(requests::argument)?;
            change(session, &args.common, (objects, SELECTOR_UPDATED), output, |object| {
                if object["kind"] != "Service" {
                    return Err(ArgumentError::new("selectors can be set of Services only"));
                }
                object["spec"]["selector"] = selector["matchLabels"].clone();
                Ok(())
            })
            .await
        }
        Part::Subject(args) => subject::run(session, args, output).await,
    }
}

async fn run_image(
    session: &Session,
    args: ImageArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let first = args.arguments.iter().position(|word| word.contains('='));
    let (objects, texts) = args.arguments.split_at(first.unwrap_or(args.arguments.len()));
    if texts.is_empty() {
        return Err(CommandError::with_text("at least one image update is required"));
    }
    let mut images = Vec::new();
    for text in texts {
        match text.split_once('=') {
            Some((container, image)) if !container.is_empty() && !image.is_empty() => {
                images.push((container.to_owned(), image.to_owned()));
            }
            _ => return Err(CommandError::with_text(format!("{text:?} is not CONTAINER=IMAGE"))),
        }
    }
    change(session, &args.common, (objects, "image updated"), output, |object| {
        pod_template::set_images(object, &images)
    })
    .await
}

async fn run_env(
    session: &Session,
    args: EnvArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let is_edit = |word: &String| word.contains('=') || word.ends_with('-');
    let first = args.arguments.iter().position(is_edit).unwrap_or(args.arguments.len());
    let (objects, texts) = args.arguments.split_at(first);
    let mut variables: Vec<Variable> = Vec::new();
    if let Some(from) = &args.from {
        let selection = orchctl_client::names::parse_pair(session.discovery().await?, from)?;
        if !matches!(selection.resource.kind.as_str(), "ConfigMap" | "Secret") {
            return Err(CommandError::with_text(format!(
                "--from={from}: expected configmap/NAME or secret/NAME"
            )));
        }
        let place = Place {
            namespace: Some(session.namespace()?.to_owned()),
            name: selection.name.unwrap_or_default(),
            resource: selection.resource,
        };
        let source = requests::get(session, &place).await?;
        variables.extend(pod_template::variables_from(&source, &args.keys, &args.prefix));
    }
    for text in texts.iter().chain(&args.env) {
        variables.push(pod_template::parse_variable(text).map_err(requests::argument)?);
    }
    if variables.is_empty() && !args.list {
        return Err(CommandError::with_text("at least one environment variable must be provided"));
    }
    if args.list {
        return list_env::run(session, &args, objects, &variables, output).await;
    }
    change(session, &args.common, (objects, "env updated"), output, |object| {
        pod_template::set_environment(object, &args.containers, &variables, args.overwrite)
    })
    .await
}

async fn change(
    session: &Session,
    common: &CommonFlags,
    (objects, done): (&[String], &str),
    output: &mut Output,
    edit: impl Fn(&mut Value) -> Result<(), ArgumentError>,
) -> Result<ExitCode, CommandError> {
    let (targets, mut errors) =
        common.local.read_each(session, &common.targets, objects, output).await?;
    if done != SELECTOR_UPDATED {
        // Workloads are all read before one is changed, as by kubectl.
        CommandError::collect(std::mem::take(&mut errors))?;
    }
    for TargetObject { place, object } in targets {
        let mut changed = object.clone();
        if let Err(error) = edit(&mut changed) {
            errors.push(requests::argument(error));
            continue;
        }
        common.record.annotate(session, &mut changed, output).await?;
        if object == changed {
            continue; // no output, as kubectl
        }
        if common.results.sends() && !common.local.local {
            let patch = requests::changed(session, &object, &changed).await?;
            let write = common.results.write(&common.field_manager)?;
            let patch = requests::as_patch(patch);
            match requests::patch(session, place.path(None), &patch, &write).await {
                Ok(object) => changed = object,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            }
        }
        common.results.print_result(output, &place, &changed, done)?;
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}
