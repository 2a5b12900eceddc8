//! `timeline`: the start of a pod as moments with the time between them: those of the API, and to the millisecond what the agent of its node says.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_printers::objects;
use orchctl_printers::timeline::{self, NodeStep, PodHistory};
use proto_api::Collection;
use proto_client::request;
use serde_json::Value;

use crate::{describe, time};

/// How long a node may take to answer.
const NODE_PATIENCE: Duration = Duration::from_secs(5);

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// pod/NAME or the name of a pod
    #[arg(value_name = "POD", required = true)]
    args: Vec<String>,
    /// perfetto: a trace as JSON, for Perfetto and Chrome
    #[arg(long, short, value_name = "FORM", value_parser = ["perfetto"])]
    output: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When there is no such pod.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let selection = names::parse_one(session.discovery().await?, &args.args, "pods")?;
    let resource = &selection.resource;
    if (resource.group.as_str(), resource.kind.as_str()) != ("", "Pod") {
        return Err(CommandError::with_text(format!(
            "timelines are those of pods, and {} are none: name one of its pods",
            resource.full_name()
        )));
    }
    let collection = resource.collection(Some(session.namespace()?));
    let path = collection.item(selection.name.as_deref().unwrap_or_default(), None);
    let pod = session.call_json(request::get(path)).await?;
    let (history, unknown) = history(session, pod).await;
    for note in unknown {
        writeln!(output.err, "{note}")?;
    }
    let text = match args.output {
        Some(_) => {
            let now = time::now().saturating_mul(1_000_000);
            format!("{}\n", timeline::trace(&history, now))
        }
        None => timeline::render(&timeline::moments(&history)),
    };
    output.out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// What is known of the start of a pod, and what is not.
pub async fn history(session: &Session, pod: Value) -> (PodHistory, Vec<String>) {
    let mut unknown = Vec::new();
    let (events, steps) =
        tokio::join!(describe::events_of(session, &pod), steps_of_node(session, &pod));
    if events.is_none() {
        unknown.push("events could not be read: the times of pulls are missing".to_owned());
    }
    let steps = steps.map_err(|why| unknown.push(whole_seconds(&why.to_string()))).ok();
    (PodHistory { pod, events: events.unwrap_or_default(), steps }, unknown)
}

fn whole_seconds(why: &str) -> String {
    let why = why.strip_prefix("error: ").unwrap_or(why);
    format!("only whole seconds are known: {why}")
}

/// What the agent of the pod's node did for it.
///
/// # Errors
/// The user may not ask, the node does not answer, or its agent has no such page.
async fn steps_of_node(session: &Session, pod: &Value) -> Result<Vec<NodeStep>, CommandError> {
    let node = objects::text_at(pod, "/spec/nodeName");
    if node.is_empty() {
        return Err(CommandError::with_text("the pod has no node yet"));
    }
    let nodes = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "nodes".to_owned(),
        namespace: None,
    };
    let (namespace, name) = (objects::namespace(pod), objects::name(pod));
    let proxy = nodes.item(node, Some("proxy"));
    let path = format!("{proxy}/debug/pods/{namespace}/{name}?format=json");
    let page = tokio::time::timeout(NODE_PATIENCE, session.get_json(&path)).await;
    let silent = |_| CommandError::with_text(format!("node {node} did not answer in 5 seconds"));
    let page = page.map_err(silent)??;
    let mirror = session.names().await?.label("config.mirror");
    timeline::read_node_steps(&page, objects::uid_on_node(pod, &mirror)).ok_or_else(|| {
        CommandError::with_text(format!("node {node} does not know what it did for the pod"))
    })
}
