//! `taint`: taints of nodes.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_plans::edits::{self, TaintEdit};
use proto_client::Patch;
use serde_json::json;

use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

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
/// When a node cannot be changed; the others are changed all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let is_edit = |word: &String| word.contains(['=', ':']) || word.ends_with('-');
    let first = args.arguments.iter().position(is_edit).unwrap_or(args.arguments.len());
    let (nodes, texts) = args.arguments.split_at(first);
    if texts.is_empty() {
        return Err(CommandError::with_text("at least one taint update is required"));
    }
    let edits: Vec<TaintEdit> = texts
        .iter()
        .map(|text| edits::parse_taint(text).map_err(requests::argument))
        .collect::<Result<_, _>>()?;
    check_flags(&args, &edits)?;
    let selections = names::parse(session.discovery().await?, nodes)?;
    if let Some(other) = selections.iter().find(|one| one.resource.kind != "Node") {
        let plural = &other.resource.plural;
        return Err(CommandError::with_text(format!(
            "invalid resource type {plural}, only node types are supported"
        )));
    }
    let flags =
        TargetFlags { selector: args.selector.clone(), all: args.all, ..TargetFlags::default() };
    let (targets, mut errors) = targets::read_each(session, &flags, nodes, output).await?;
    for target in targets {
        if let Err(error) = taint(session, &args, &edits, target, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// Refuses what says two things at once.
fn check_flags(args: &Args, edits: &[TaintEdit]) -> Result<(), CommandError> {
    if args.all && !args.selector.is_empty() {
        let text = "setting 'all' parameter with a non empty selector is prohibited";
        return Err(CommandError::with_text(text));
    }
    let is_removed = |set: &&TaintEdit| {
        let is_same = |other: &TaintEdit| {
            other.key == set.key && (other.effect.is_empty() || other.effect == set.effect)
        };
        edits.iter().any(|other| other.remove && is_same(other))
    };
    let both = edits.iter().filter(|edit| !edit.remove).filter(is_removed);
    let both: Vec<String> = both.map(|edit| format!("{}={}", edit.key, edit.effect)).collect();
    if both.is_empty() {
        return Ok(());
    }
    let text = "can not both modify and remove the following taint(s) in the same command";
    Err(CommandError::with_text(format!("{text}: {}", both.join(", "))))
}

async fn taint(
    session: &Session,
    args: &Args,
    edits: &[TaintEdit],
    target: TargetObject,
    output: &mut Output,
) -> Result<(), CommandError> {
    let TargetObject { place, object: mut node } = target;
    let taints = edits::edit_taints(&node, edits, args.overwrite).map_err(requests::argument)?;
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
    let done = if edits.iter().all(|edit| edit.remove) {
        "untainted"
    } else if args.overwrite {
        "modified"
    } else {
        "tainted"
    };
    args.results.print_result(output, &place, &node, done)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proto_client::testing::json_response;

    use super::*;
    use crate::testing::{Recorder, TestServer};

    #[derive(clap::Parser, Debug)]
    struct Line {
        #[command(flatten)]
        taint: Args,
    }

    async fn taint_nodes(line: &str) -> (String, String) {
        let server = TestServer::start(|request, _| {
            let name = request.path.rsplit('/').next().unwrap_or_default();
            let status = |code: u16, message: &str| {
                json_response(code, &json!({"kind": "Status", "code": code, "message": message}))
            };
            match (name, request.method.as_str()) {
                ("missing", _) => status(404, "no such node"),
                ("kept", "PATCH") => status(403, "not this one"),
                _ => json_response(200, &json!({"kind": "Node", "metadata": {"name": name}})),
            }
        })
        .await;
        let (mut output, recorder) = Recorder::output();
        let words = ["taint"].into_iter().chain(line.split_whitespace());
        let args = Line::try_parse_from(words).expect("a line").taint;
        let ended = run(&server.session, args, &mut output).await;
        (ended.expect_err("a failure").to_string(), recorder.out())
    }

    #[tokio::test]
    async fn a_node_that_cannot_be_changed_does_not_stop_the_others() {
        let (error, out) = taint_nodes("node missing a kept b x=y:NoSchedule").await;
        assert_eq!(out, "node/a tainted\nnode/b tainted\n");
        assert_eq!(error, "Error from server: no such node\nError from server: not this one");
    }

    #[tokio::test]
    async fn what_is_no_node_is_refused_before_anything_changes() {
        let (error, out) = taint_nodes("node/a pod/p x=y:NoSchedule").await;
        assert_eq!(error, "error: invalid resource type pods, only node types are supported");
        assert_eq!(out, "");
    }

    #[tokio::test]
    async fn lines_that_say_two_things_are_refused() {
        let (error, _) = taint_nodes("node --all -l a=b x=y:NoSchedule").await;
        assert!(error.ends_with("setting 'all' parameter with a non empty selector is prohibited"));
        for (line, named) in [
            ("node a x=y:NoSchedule x-", "x=NoSchedule"),
            ("node a x:NoExecute- x=y:NoExecute z-", "x=NoExecute"),
        ] {
            let (error, out) = taint_nodes(line).await;
            assert!(error.ends_with(&format!("in the same command: {named}")), "{error}");
            assert_eq!(out, "");
        }
    }
}
