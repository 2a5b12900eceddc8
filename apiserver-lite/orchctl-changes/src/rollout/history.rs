//! `rollout history` and `rollout undo`: revisions of workloads.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::rollout::{self, WorkloadRevision};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::describe::describe_template;
use proto_client::Patch;
use serde_json::{Value, json};

use super::revision_annotation;
use crate::requests;
use crate::results::{DryRun, ResultFlags};
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of `rollout history`.
#[derive(clap::Args, Debug)]
pub(super) struct HistoryArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Show the pods of this revision
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    revision: i64,
}

/// Flags of `rollout undo`.
#[derive(clap::Args, Debug)]
pub(super) struct UndoArgs {
    /// TYPE NAME... or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// The revision; 0 for the one before
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    to_revision: i64,
    #[command(flatten)]
    results: ResultFlags,
}

/// The revisions of a workload, oldest first.
async fn revisions(
    session: &Session,
    target: &TargetObject,
) -> Result<Vec<WorkloadRevision>, CommandError> {
    let kind = match target.place.resource.kind.as_str() {
        "Deployment" => "ReplicaSet",
        "DaemonSet" | "StatefulSet" => "ControllerRevision",
        other => {
            return Err(CommandError::with_text(format!(
                "no history viewer has been implemented for {other:?}"
            )));
        }
    };
    let resource = session.discovery().await?.served_kind("apps/v1", kind)?;
    let namespace = target.place.namespace.as_deref();
    let owned = requests::list(session, resource, namespace, ("", "")).await?;
    let names = session.names().await?;
    let (revision, cause) = (revision_annotation(names), names.label("change-cause"));
    Ok(rollout::revisions(&target.object, &owned, [&revision, &cause]))
}

pub(super) async fn run_history(
    session: &Session,
    args: HistoryArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    for target in targets {
        if let Err(error) = show(session, &args, &target, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn show(
    session: &Session,
    args: &HistoryArgs,
    target: &TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let revisions = revisions(session, target).await?;
    let title = target.place.title();
    if revisions.is_empty() {
        writeln!(output.out, "{title} \nNo rollout history found.")?;
        return Ok(());
    }
    if args.revision > 0 {
        let one = rollout::revision_to_undo(&revisions, args.revision).map_err(|_| {
            CommandError::with_text(format!(
                "unable to find the specified revision {} of {title}",
                args.revision
            ))
        })?;
        let names = session.names().await?;
        let shown = rollout::shown_template(one, &names.label("change-cause"));
        let text = describe_template(&shown, names);
        writeln!(output.out, "{title} with revision #{}\n{text}", one.number)?;
        return Ok(());
    }
    let mut rows = vec![vec!["REVISION".to_owned(), "CHANGE-CAUSE".to_owned()]];
    rows.extend(revisions.iter().map(|revision| {
        let cause = if revision.cause.is_empty() { "<none>" } else { &revision.cause };
        vec![revision.number.to_string(), cause.to_owned()]
    }));
    // The space behind the title is what scripts have seen since ever.
    writeln!(output.out, "{title} \n{}", ColumnWidths::default().render(&rows))?;
    Ok(())
}

pub(super) async fn run_undo(
    session: &Session,
    args: UndoArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    for target in targets {
        if let Err(error) = undo(session, &args, &target, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn undo(
    session: &Session,
    args: &UndoArgs,
    target: &TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let TargetObject { place, object } = target;
    let is_shown_only = args.results.dry_run == DryRun::Client;
    if !is_shown_only && object.pointer("/spec/paused") == Some(&Value::Bool(true)) {
        return Err(CommandError::with_text(format!(
            "you cannot rollback a paused deployment; resume it first with rollout resume {} and try again",
            place.title()
        )));
    }
    let revisions = revisions(session, target).await?;
    let revision =
        rollout::revision_to_undo(&revisions, args.to_revision).map_err(requests::argument)?;
    if is_shown_only {
        let names = session.names().await?;
        let text = describe_template(&rollout::kept_template(revision), names);
        let text = match place.resource.kind.as_str() {
            "Deployment" => text,
            _ => format!("will roll back to {text}"),
        };
        return args.results.print_result(output, place, object, &text);
    }
    let template = rollout::template_of(revision);
    if object.pointer("/spec/template") == Some(&template) {
        let number = revision.number;
        let done = format!("skipped rollback (current template already matches revision {number})");
        return args.results.print_result(output, place, object, &done);
    }
    let mut steps = vec![json!({"op": "replace", "path": "/spec/template", "value": template})];
    if place.resource.kind == "Deployment" {
        let own = rollout::own_annotations(session.names().await?);
        let annotations = rollout::annotations_of(object, revision, &own);
        steps.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
    }
    let patch = Patch::Json(Value::Array(steps));
    let write = args.results.write("kubectl-rollout")?;
    let changed = requests::patch(session, place.path(None), &patch, &write).await?;
    args.results.print_result(output, place, &changed, "rolled back")
}
