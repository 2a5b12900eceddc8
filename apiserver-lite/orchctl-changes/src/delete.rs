//! `delete`: objects of files, of names and of selectors.

use std::process::ExitCode;

use clap::ValueEnum;
use orchctl_client::{CommandError, Output, Session};
use proto_client::{ListParams, request};
use serde_json::Value;

use crate::poll::{self, PollIntervals};
use crate::raw::{self, Body};
use crate::requests::{self, Deletion, Place};
use crate::results::DryRun;
use crate::targets::{self, FoundObject, TargetFlags};

/// What happens to objects that belong to a deleted one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Cascade {
    /// They go after it.
    #[default]
    #[value(alias = "true")]
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    #[value(alias = "false")]
    Orphan,
}

impl Cascade {
    /// The API's word.
    pub fn policy(self) -> &'static str {
        match self {
            Cascade::Background => "Background",
            Cascade::Foreground => "Foreground",
            Cascade::Orphan => "Orphan",
        }
    }
}

/// How objects are deleted.
#[derive(clap::Args, Clone, Debug)]
pub struct DeletionFlags {
    /// What happens to the objects that belong to a deleted one
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_value = "background",
        default_missing_value = "background")]
    pub cascade: Cascade,
    /// Seconds for an object to end; -1 for the kind's own
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    pub grace_period: i64,
    /// Remove objects at once, without word from their nodes
    #[arg(long)]
    pub force: bool,
    /// Wait until the objects have gone
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait; 0 for a week
    #[arg(long, value_name = "TIME", default_value = "0s")]
    pub timeout: String,
}

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME..., TYPE/NAME..., or TYPE with --selector or --all
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Delete this path of the server, and print the answer as it is
    #[arg(long, value_name = "PATH", conflicts_with_all = ["objects", "output"])]
    raw: Option<String>,
    /// Objects with these values of fields
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,
    /// Objects of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    #[command(flatten)]
    deletion: DeletionFlags,
    /// As --grace-period=1
    #[arg(long)]
    now: bool,
    /// No error for an object that does not exist
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    ignore_not_found: Option<bool>,
    /// Change nothing: send nothing (client), or have the server check it (server)
    #[arg(long, value_name = "WAY", value_enum, num_args = 0..=1, require_equals = true,
        default_value = "none", default_missing_value = "client")]
    dry_run: DryRun,
    /// Print only names
    #[arg(long, short, value_name = "FORM", value_parser = ["name"])]
    output: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be deleted; the others are deleted all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if let Some(path) = &args.raw {
        let body = raw::read_body(path, &args.targets.files, Body::Optional, output)?;
        let request = request::delete(path.clone(), &ListParams::default(), body);
        return raw::send(session, request, output).await;
    }
    let (deletion, limit) = read_flags(session, &args)?;
    let (found, mut errors) = find(session, &args, output).await?;
    // Where objects are selected, those that went meanwhile are no error.
    let selected =
        args.targets.all || !args.targets.selector.is_empty() || !args.field_selector.is_empty();
    let ignore_missing = args.ignore_not_found.unwrap_or(selected);
    let mut gone = Vec::new();
    for one in found {
        let place = match one {
            FoundObject::Named(place) => place,
            FoundObject::Listed(target) => target.place,
        };
        match delete_one(session, &args, &deletion, &place, output).await {
            Ok(uid) => gone.push((place, uid)),
            Err(error) if error.is_not_found() && ignore_missing => {}
            Err(error) => errors.push(error),
        }
    }
    if gone.is_empty() && errors.is_empty() && selected {
        writeln!(output.out, "No resources found")?;
    }
    output.out.flush()?;
    if args.deletion.wait && args.dry_run == DryRun::None {
        let mut pauses = PollIntervals::up_to(limit);
        for (place, uid) in &gone {
            if let Err(error) = poll::until_gone(session, place, uid, &mut pauses).await {
                errors.push(error);
            }
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

fn read_flags(
    session: &Session,
    args: &Args,
) -> Result<(Deletion, std::time::Duration), CommandError> {
    let deletion = &args.deletion;
    if args.now && deletion.grace_period >= 0 {
        return Err(CommandError::with_text(
            "--now and --grace-period cannot be specified together",
        ));
    }
    if args.targets.all && !args.targets.selector.is_empty() {
        return Err(CommandError::with_text("cannot set --all and --selector at the same time"));
    }
    if deletion.force && deletion.grace_period > 0 {
        return Err(CommandError::with_text(
            "--force and --grace-period greater than 0 cannot be specified together",
        ));
    }
    let grace = match (deletion.grace_period, deletion.force, args.now) {
        (_, false, true) => Some(1),
        // Zero would remove an object whose containers may still run: that takes --force.
        (0, false, _) => Some(1),
        (_, true, _) => Some(0),
        (seconds, ..) => Some(seconds).filter(|seconds| *seconds >= 0),
    };
    if grace == Some(0) && args.dry_run == DryRun::None {
        session.warn("Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely.");
    }
    let deletion = Deletion {
        grace_secs: grace,
        propagation: Some(deletion.cascade.policy()),
        dry_run: args.dry_run == DryRun::Server,
        uid: None,
    };
    Ok((deletion, poll::limit("--timeout", &args.deletion.timeout)?))
}

async fn find(
    session: &Session,
    args: &Args,
    output: &mut Output,
) -> Result<(Vec<FoundObject>, Vec<CommandError>), CommandError> {
    if !args.all_namespaces && args.field_selector.is_empty() {
        return targets::places(session, &args.targets, &args.objects, output).await;
    }
    if args.targets.selector.is_empty() && args.field_selector.is_empty() && !args.targets.all {
        return Err(CommandError::with_text(
            "resource(s) were provided, but no name was specified",
        ));
    }
    let discovery = session.discovery().await?;
    let mut found = Vec::new();
    for selection in orchctl_client::names::parse(discovery, &args.objects)? {
        if selection.name.is_some() {
            return Err(CommandError::with_text(
                "name cannot be provided when a selector is specified",
            ));
        }
        let resource = selection.resource;
        let namespace = if args.all_namespaces { None } else { Some(session.namespace()?) };
        let selectors = (args.targets.selector.as_str(), args.field_selector.as_str());
        let listed = requests::list(session, &resource, namespace, selectors).await?;
        found.extend(
            listed.iter().map(|object| FoundObject::Named(Place::listed(&resource, object))),
        );
    }
    Ok((found, Vec::new()))
}

/// Deletes one object; returns its UID.
async fn delete_one(
    session: &Session,
    args: &Args,
    deletion: &Deletion,
    place: &Place,
    output: &mut Output,
) -> Result<String, CommandError> {
    let answer = match args.dry_run {
        DryRun::Client => requests::get(session, place).await?,
        _ => requests::delete(session, place, deletion).await?,
    };
    // An object that ends later is answered as it is, one that has gone as a status.
    let uid = ["/metadata/uid", "/details/uid"];
    let uid = uid.into_iter().find_map(|pointer| answer.pointer(pointer).and_then(Value::as_str));
    if args.output.is_some() {
        writeln!(output.out, "{}", place.title())?;
    } else {
        let verb = if deletion.grace_secs == Some(0) { "force deleted" } else { "deleted" };
        let note = match args.dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        };
        writeln!(output.out, "{} \"{}\" {verb}{note}", place.resource.word(), place.name)?;
    }
    Ok(uid.unwrap_or_default().to_owned())
}
