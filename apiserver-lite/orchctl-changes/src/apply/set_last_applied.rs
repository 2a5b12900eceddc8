//! `apply set-last-applied`: records what files describe as applied, without applying it; `apply edit-last-applied`: the record in the user's editor.

use std::process::ExitCode;

use orchctl_client::manifests::{self, FileFlags};
use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use proto_api::yaml;
use proto_client::Patch;
use serde_json::{Value, json};

use crate::edit;
use crate::requests::{self, Place};
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of `set-last-applied`.
#[derive(clap::Args, Debug)]
pub struct SetArgs {
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    /// Also for objects that have no record
    #[arg(long)]
    create_annotation: bool,
    #[command(flatten)]
    results: ResultFlags,
}

/// Flags of `edit-last-applied`.
#[derive(clap::Args, Debug)]
pub struct EditArgs {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    /// Objects of files
    #[command(flatten)]
    files: FileFlags,
    /// What is edited: yaml or json
    #[arg(long, short, value_name = "FORM", value_parser = ["yaml", "json"], default_value = "yaml")]
    output: String,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-last-applied")]
    field_manager: String,
}

/// Runs `set-last-applied`.
///
/// # Errors
/// When an object does not exist, or has no record and is to get none: nothing is changed then.
pub async fn run_set(
    session: &Session,
    args: SetArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    if args.files.filename.is_empty() {
        return Err(CommandError::with_text(
            "name the objects with -f: a file, a directory, a URL, or - for standard input",
        ));
    }
    let names = session.names().await?;
    let mut changes = Vec::new();
    for manifest in manifests::read(session, &args.files, output).await? {
        let place = Place::from_manifest(session, &manifest).await?;
        let current = requests::get(session, &place).await?;
        let before = apply::last_applied(names, &current);
        let after = apply::record_alone(names, &place.object_of(&manifest));
        if before.is_none() && !args.create_annotation {
            return Err(CommandError::with_text(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                place.name
            )));
        }
        if before == Some(&after) {
            writeln!(output.out, "set-last-applied {}: no changes required.", place.name)?;
            continue;
        }
        changes.push((TargetObject { place, object: current }, after));
    }
    for (target, text) in changes {
        let object = if args.results.sends() {
            record(session, &target.place, &text, "kubectl-last-applied", &args.results).await?
        } else {
            target.object
        };
        args.results.print_result(output, &target.place, &object, "configured")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a record.
async fn record(
    session: &Session,
    place: &Place,
    text: &str,
    manager: &str,
    results: &ResultFlags,
) -> Result<Value, CommandError> {
    let key = apply::last_applied_annotation(session.names().await?);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {key: text}}}));
    requests::patch(session, place.path(None), &patch, &results.write(manager)?).await
}

/// Runs `edit-last-applied`.
///
/// # Errors
/// When an object has no record, the editor fails, or the server refuses the edited one: it is kept in a file then.
pub async fn run_edit(
    session: &Session,
    args: EditArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = session.names().await?;
    let flags = TargetFlags { files: args.files.clone(), ..TargetFlags::default() };
    for TargetObject { place, object } in
        targets::read(session, &flags, &args.objects, output).await?
    {
        let Some(record_text) = apply::last_applied(names, &object) else {
            return Err(CommandError::with_text(format!(
                "no last-applied-configuration annotation found on resource: {}",
                place.name
            )));
        };
        let before: Value = serde_json::from_str(record_text).map_err(|error| {
            CommandError::with_text(format!(
                "the last-applied-configuration annotation of {} is not valid JSON: {error}",
                place.title()
            ))
        })?;
        let text = match args.output.as_str() {
            "json" => orchctl_printers::json::pretty(&before),
            _ => yaml::to_string(&before),
        };
        let path = edit::in_editor(session, &text, &args.output).await?;
        let keep = |why: String| edit::error_with_copy(&why, &path);
        let after: Value = match yaml::parse(&std::fs::read_to_string(&path)?) {
            Ok(after) => after,
            Err(error) => return Err(keep(format!("the edited text cannot be read: {error}"))),
        };
        if after == before || after.is_null() {
            std::fs::remove_file(&path)?;
            writeln!(output.err, "Edit cancelled, no changes made.")?;
            continue;
        }
        for pointer in ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"] {
            if after.pointer(pointer) != before.pointer(pointer) {
                let field = pointer.trim_start_matches('/').replace('/', ".");
                return Err(keep(format!("{field} of {} cannot be changed", place.title())));
            }
        }
        let text = apply::record_alone(names, &after);
        let results = ResultFlags::default();
        let written = record(session, &place, &text, &args.field_manager, &results).await;
        let object = written.map_err(|error| keep(requests::message(&error)))?;
        std::fs::remove_file(&path)?;
        results.print_result(output, &place, &object, "edited")?;
    }
    Ok(ExitCode::SUCCESS)
}
