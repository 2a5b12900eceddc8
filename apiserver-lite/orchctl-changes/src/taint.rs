//! `taint`: taints of nodes.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::edits::{self, TaintEdit};
use proto_client::Patch;
use serde_json::json;

use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// node NAME..., then KEY=VALUE:EFFECT to set and KEY:EFFECT- or KEY- to remove
    #[arg(value_name = "NODE|TAINT", required = true)]
    arguments: Vec<String>,
    /// Nodes with these labels
    #[arg(
        long,
        short = 'l',
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,
    /// All nodes
    #[arg(long)]
    all: bool,
    /// Replace values that are there
    #[arg(long)]
    overwrite: bool,
    /// Who writes
    #[arg(long, value_name = "NAME", default_value = "kubectl-taint")]
    field_manager: String,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When a node cannot be changed.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let is_edit = |word: &String| word.contains(['=', ':']) || word.ends_with('-');
    let first = args.arguments.iter().position(is_edit).unwrap_or(args.arguments.len());
    let (names, texts) = args.arguments.split_at(first);
    if texts.is_empty() {
        return Err(CommandError::with_text("at least one taint update is required"));
    }
    let edits: Vec<TaintEdit> = texts
        .iter()
        .map(|text| edits::parse_taint(text).map_err(requests::argument))
        .collect::<Result<_, _>>()?;
    let flags =
        TargetFlags { selector: args.selector.clone(), all: args.all, ..TargetFlags::default() };
    let removes_only = edits.iter().all(|edit| edit.remove);
    for target in targets::read(session, &flags, names, output).await? {
        let (place, mut node) = (target.place, target.object);
        if place.resource.kind != "Node" {
            let plural = &place.resource.plural;
            return Err(CommandError::with_text(format!(
                "invalid resource type {plural}, only node types are supported"
            )));
        }
        let taints =
            edits::edit_taints(&node, &edits, args.overwrite).map_err(requests::argument)?;
        if args.results.sends() {
            // Of this version: the list is written as a whole.
            let version = node.pointer("/metadata/resourceVersion").cloned();
            let patch = Patch::Merge(
                json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}}),
            );
            let write = args.results.write(&args.field_manager)?;
            node = requests::patch(session, place.path(None), &patch, &write).await?;
        } else {
            node["spec"]["taints"] = json!(taints);
        }
        let done = if removes_only {
            "untainted"
        } else if args.overwrite {
            "modified"
        } else {
            "tainted"
        };
        args.results.print_result(output, &place, &node, done)?;
    }
    Ok(ExitCode::SUCCESS)
}
