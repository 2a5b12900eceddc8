//! `rollout`: status, history, undo, pause, resume and restart of workloads.

mod history;

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_commands::print_flags::PrintFlags;
use orchctl_commands::time;
use orchctl_plans::{ArgumentError, rollout};
use proto_api::Time;
use proto_api::names::Names;
use serde_json::Value;

use crate::poll::{self, PollIntervals};
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Part,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Wait until an update has ended
    Status(StatusArgs),
    /// Show revisions
    History(history::HistoryArgs),
    /// Go back to an earlier revision
    Undo(history::UndoArgs),
    /// Hold up updates of a Deployment
    Pause(ChangeArgs),
    /// Go on with updates of a Deployment
    Resume(ChangeArgs),
    /// Replace all pods
    Restart(ChangeArgs),
}

#[derive(clap::Args, Debug)]
struct StatusArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Wait until it has ended
    #[arg(long, short, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = true,
        default_missing_value = "true", action = clap::ArgAction::Set)]
    watch: bool,
    /// The revision that must be running; 0 for any
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    revision: i64,
    /// How long to wait; 0 for a week
    #[arg(long, value_name = "TIME", default_value = "0s")]
    timeout: String,
}

#[derive(clap::Args, Debug)]
struct ChangeArgs {
    /// TYPE NAME... or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-rollout")]
    field_manager: String,
    #[command(flatten)]
    print: PrintFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be read or changed; the others are shown or changed all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Part::Status(args) => run_status(session, args, output).await,
        Part::History(args) => history::run_history(session, args, output).await,
        Part::Undo(args) => history::run_undo(session, args, output).await,
        Part::Pause(args) => {
            change(session, args, output, "paused", |_, object| rollout::paused(object, true)).await
        }
        Part::Resume(args) => {
            change(session, args, output, "resumed", |_, object| rollout::paused(object, false))
                .await
        }
        Part::Restart(args) => {
            let restart = |names: &Names, object: &Value| {
                let annotation = names.sub_label("kubectl", "restartedAt");
                rollout::restarted(object, &annotation, &Time::from_unix(time::now()).to_string())
            };
            change(session, args, output, "restarted", restart).await
        }
    }
}

/// The annotation with the revision of a Deployment.
fn revision_annotation(names: &Names) -> String {
    names.sub_label("deployment", "revision")
}

async fn run_status(
    session: &Session,
    args: StatusArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let limit = poll::limit("--timeout", &args.timeout)?;
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    for target in targets {
        let pauses = PollIntervals::up_to(limit);
        if let Err(error) = follow(session, &args, target, pauses, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// Says how the update of an object goes on, until it has ended.
async fn follow(
    session: &Session,
    args: &StatusArgs,
    target: TargetObject,
    mut pauses: PollIntervals,
    output: &mut Output,
) -> Result<(), CommandError> {
    let annotation = revision_annotation(session.names().await?);
    let TargetObject { place, mut object } = target;
    let mut said = String::new();
    loop {
        let progress =
            rollout::progress(&object, args.revision, &annotation).map_err(requests::argument)?;
        if progress.text != said {
            writeln!(output.out, "{}", progress.text)?;
            output.out.flush()?;
            said = progress.text;
        }
        if progress.done || !args.watch {
            return Ok(());
        }
        if !pauses.pause().await {
            return Err(CommandError::with_text("timed out waiting for the condition"));
        }
        let Some(next) = requests::find(session, &place).await? else {
            return Err(CommandError::with_text("object has been deleted"));
        };
        object = next;
    }
}

async fn change(
    session: &Session,
    args: ChangeArgs,
    output: &mut Output,
    done: &str,
    make: impl Fn(&Names, &Value) -> Result<Value, ArgumentError>,
) -> Result<ExitCode, CommandError> {
    let names = session.names().await?;
    let results = ResultFlags::printing(args.print.clone());
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    for TargetObject { place, object } in targets {
        let changed = match make(names, &object) {
            Ok(changed) => changed,
            Err(error) => {
                let (plural, name) = (place.resource.full_name(), &place.name);
                errors.push(CommandError::with_text(format!("{plural} \"{name}\" {error}")));
                continue;
            }
        };
        let patch = requests::as_patch(requests::changed(session, &object, &changed).await?);
        let write = results.write(&args.field_manager)?;
        match requests::patch(session, place.path(None), &patch, &write).await {
            Ok(object) => results.print_result(output, &place, &object, done)?,
            Err(error) => errors.push(error),
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}
