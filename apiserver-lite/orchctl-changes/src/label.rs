//! `label` and `annotate`: set and remove entries of the metadata.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::edits::{self, Edit};
use proto_client::Patch;
use serde_json::{Map, Value, json};

use crate::local::LocalFlag;
use crate::record::RecordFlags;
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{TargetFlags, TargetObject};

/// Flags of both commands.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME..., then KEY=VALUE to set and KEY- to remove
    #[arg(value_name = "OBJECT|EDIT", required_unless_present = "filename")]
    arguments: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    #[command(flatten)]
    local: LocalFlag,
    /// Objects with these fields
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    field_selector: String,
    /// In all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Replace values that are there
    #[arg(long)]
    overwrite: bool,
    /// Show what the objects have
    #[arg(long)]
    list: bool,
    /// Change only an object of this version
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    resource_version: String,
    /// Who writes
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// What is changed.
struct Words {
    field: &'static str,
    noun: &'static str,
    done: &'static str,
    undone: &'static str,
    manager: &'static str,
}

const LABEL: Words = Words {
    field: "labels",
    noun: "label",
    done: "labeled",
    undone: "unlabeled",
    manager: "kubectl-label",
};

const ANNOTATE: Words = Words {
    field: "annotations",
    noun: "annotation",
    done: "annotated",
    undone: "annotated",
    manager: "kubectl-annotate",
};

/// Runs `label`.
///
/// # Errors
/// When an object cannot be changed; the others are changed all the same.
pub async fn run_label(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    run(session, args, &LABEL, output).await
}

/// Runs `annotate`.
///
/// # Errors
/// When an object cannot be changed; the others are changed all the same.
pub async fn run_annotate(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    run(session, args, &ANNOTATE, output).await
}

async fn run(
    session: &Session,
    args: Args,
    words: &Words,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (names, edits) =
        edits::split_arguments(&args.arguments, words.noun).map_err(requests::argument)?;
    if edits.is_empty() && !args.list {
        return Err(CommandError::with_text(format!(
            "at least one {} update is required",
            words.noun
        )));
    }
    let targets = TargetFlags {
        field_selector: args.field_selector.clone(),
        all_namespaces: args.all_namespaces,
        ..args.targets.clone()
    };
    let (found, mut errors) = args.local.read_each(session, &targets, &names, output).await?;
    for target in found {
        if let Err(error) = change(session, &args, words, &edits, target, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

async fn change(
    session: &Session,
    args: &Args,
    words: &Words,
    edits: &[Edit],
    target: TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let TargetObject { place, object } = target;
    if args.list {
        for (key, value) in entries(&object, words.field).into_iter().flatten() {
            writeln!(output.out, "{key}={}", value.as_str().unwrap_or_default())?;
        }
        if edits.is_empty() {
            return Ok(());
        }
    }
    let edited = edits::edit_metadata(&object, words.field, edits, args.overwrite)
        .map_err(requests::argument)?;
    for key in &edited.missing {
        if words.noun == "label" {
            writeln!(output.out, "label \"{key}\" not found.")?;
        }
    }
    let mut patch = json!({"metadata": {}});
    let recorded = args.record.annotate(session, &mut patch, output).await?;
    if edited.patch.is_empty() && !recorded {
        let done = if words.noun == "label" { "not labeled" } else { words.done };
        return args.results.print_result(output, &place, &object, done);
    }
    // What the command sets itself counts before what is recorded of it.
    for (key, value) in &edited.patch {
        patch["metadata"][words.field][key.as_str()] = value.clone();
    }
    if !args.resource_version.is_empty() {
        patch["metadata"]["resourceVersion"] = json!(args.resource_version);
    }
    let changed = if args.results.sends() && !args.local.local {
        let manager = args.field_manager.as_deref().unwrap_or(words.manager);
        let write = args.results.write(manager)?;
        requests::patch(session, place.path(None), &Patch::Merge(patch), &write).await?
    } else {
        with_entries(object, &patch)
    };
    let removed_only = !edited.patch.is_empty() && edited.patch.values().all(Value::is_null);
    let done = if removed_only { words.undone } else { words.done };
    args.results.print_result(output, &place, &changed, done)
}

fn entries<'a>(object: &'a Value, field: &str) -> Option<&'a Map<String, Value>> {
    object.pointer(&format!("/metadata/{field}"))?.as_object()
}

/// The object with the labels and annotations of a patch.
fn with_entries(mut object: Value, patch: &Value) -> Value {
    for field in [LABEL.field, ANNOTATE.field] {
        let Some(patch) = entries(patch, field) else { continue };
        let mut map = entries(&object, field).cloned().unwrap_or_default();
        for (key, value) in patch {
            match value {
                Value::Null => drop(map.remove(key)),
                value => drop(map.insert(key.clone(), value.clone())),
            }
        }
        object["metadata"][field] = Value::Object(map);
    }
    object
}
