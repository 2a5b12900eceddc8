//! `cordon`, `uncordon` and `drain`: mark nodes as unschedulable, and evict their pods.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use orchctl_client::{CommandError, Output, Session, names};
use orchctl_commands::time;
use orchctl_plans::drain::{self, DrainFacts, Permissions};
use proto_client::Patch;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::poll::{self, PollIntervals};
use crate::requests::{self, Deletion, Place, WriteOptions};
use crate::results::DryRun;

/// Pause before an eviction that a budget refused is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Which nodes.
#[derive(clap::Args, Clone, Debug)]
pub struct NodeFlags {
    /// Names of nodes, or TYPE/NAME
    #[arg(value_name = "NODE", required_unless_present = "selector")]
    nodes: Vec<String>,
    /// Nodes with these labels
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "nodes", value_parser = NonEmptyStringValueParser::new())]
    selector: Option<String>,
    /// Change nothing: send nothing (client), or have the server check it (server)
    #[arg(long, value_name = "WAY", value_enum, num_args = 0..=1, require_equals = true,
        default_value = "none", default_missing_value = "client")]
    dry_run: DryRun,
}

/// Flags of `cordon` and `uncordon`.
#[derive(clap::Args, Debug)]
pub struct CordonArgs {
    #[command(flatten)]
    nodes: NodeFlags,
}

/// Flags of `drain`.
#[derive(clap::Args, Debug)]
pub struct DrainArgs {
    #[command(flatten)]
    nodes: NodeFlags,
    /// Also pods that nothing makes again
    #[arg(long)]
    force: bool,
    /// Leave pods of DaemonSets, which would be made again at once
    #[arg(long)]
    ignore_daemonsets: bool,
    /// Also pods with an emptyDir, whose data is lost
    #[arg(long, alias = "delete-local-data")]
    delete_emptydir_data: bool,
    /// Delete pods, past all budgets
    #[arg(long)]
    disable_eviction: bool,
    /// Seconds for a pod to end; -1 for its own
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    grace_period: i64,
    /// Only pods with these labels
    #[arg(long, value_name = "SELECTOR", default_value = "", hide_default_value = true)]
    pod_selector: String,
    /// How long to try; 0 for a week
    #[arg(long, value_name = "TIME", default_value = "0s")]
    timeout: String,
    /// Leave pods that had to be gone this many seconds ago; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    skip_wait_for_delete_timeout: u32,
}

impl NodeFlags {
    /// All nodes, before any of them is changed.
    async fn read(&self, session: &Session) -> Result<Vec<(Place, Value)>, CommandError> {
        let resource = session.discovery().await?.served_kind("v1", "Node")?.clone();
        if let Some(selector) = &self.selector {
            let nodes = requests::list(session, &resource, None, (selector, "")).await?;
            let places = nodes.into_iter().map(|node| (Place::listed(&resource, &node), node));
            return Ok(places.collect());
        }
        let mut nodes = Vec::new();
        for word in &self.nodes {
            let words = [word.clone()];
            let named = names::parse_one(session.discovery().await?, &words, "nodes")?;
            if (named.resource.group.as_str(), named.resource.kind.as_str()) != ("", "Node") {
                return Err(CommandError::with_text(format!(
                    "expected resource of type node, got {:?}",
                    named.resource.full_name()
                )));
            }
            let name = named.name.unwrap_or_default();
            let place = Place { resource: resource.clone(), namespace: None, name };
            let node = requests::get(session, &place).await?;
            nodes.push((place, node));
        }
        Ok(nodes)
    }

    fn note(&self) -> &'static str {
        match self.dry_run {
            DryRun::None => "",
            DryRun::Client => " (dry run)",
            DryRun::Server => " (server dry run)",
        }
    }
}

/// Runs `cordon`.
///
/// # Errors
/// When a node cannot be changed.
pub async fn run_cordon(
    session: &Session,
    args: CordonArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (_, errors) = cordon(session, &args.nodes, true, output).await?;
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// Runs `uncordon`.
///
/// # Errors
/// When a node cannot be changed.
pub async fn run_uncordon(
    session: &Session,
    args: CordonArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (_, errors) = cordon(session, &args.nodes, false, output).await?;
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

/// Marks the nodes; returns those that are marked, and why others are not.
async fn cordon(
    session: &Session,
    flags: &NodeFlags,
    unschedulable: bool,
    output: &mut Output,
) -> Result<(Vec<Place>, Vec<CommandError>), CommandError> {
    let done = if unschedulable { "cordoned" } else { "uncordoned" };
    let nodes = flags.read(session).await?;
    let (mut places, mut errors) = (Vec::new(), Vec::new());
    for (place, node) in nodes {
        let is = node.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
        if is == unschedulable {
            writeln!(output.out, "{} already {done}{}", place.title(), flags.note())?;
        } else {
            if flags.dry_run != DryRun::Client {
                let value = if unschedulable { json!(true) } else { Value::Null };
                let patch = Patch::Strategic(json!({"spec": {"unschedulable": value}}));
                let write = WriteOptions {
                    dry_run: flags.dry_run == DryRun::Server,
                    ..WriteOptions::default()
                };
                if let Err(error) = requests::patch(session, place.path(None), &patch, &write).await
                {
                    let verb = if unschedulable { "cordon" } else { "uncordon" };
                    let why = requests::message(&error);
                    errors.push(CommandError::with_text(format!(
                        "unable to {verb} node {:?}: {why}",
                        place.name
                    )));
                    continue;
                }
            }
            writeln!(output.out, "{} {done}{}", place.title(), flags.note())?;
        }
        places.push(place);
    }
    output.out.flush()?;
    Ok((places, errors))
}

/// Runs `drain`.
///
/// # Errors
/// When a node is missing, and then nothing is changed; when one cannot be cordoned, pods prevent it, or the time is up, and then the others are drained
/// all the same.
pub async fn run_drain(
    session: &Session,
    args: DrainArgs,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let limit = poll::limit("--timeout", &args.timeout)?;
    let (nodes, mut failed) = cordon(session, &args.nodes, true, output).await?;
    let mut pending = Vec::new();
    let mut errors = Vec::new();
    for node in &nodes {
        match drain_node(session, &args, node, limit, output).await {
            Ok(()) => writeln!(output.out, "{} drained{}", node.title(), args.nodes.note())?,
            Err(error) => {
                let why = requests::message(&error);
                writeln!(
                    output.err,
                    "error: unable to drain node \"{}\" due to error: {why}, continuing command...",
                    node.name
                )?;
                pending.push(&node.name);
                errors.push(why);
            }
        }
        output.out.flush()?;
    }
    if !errors.is_empty() {
        writeln!(output.err, "There are pending nodes to be drained:")?;
        for name in pending {
            writeln!(output.err, " {name}")?;
        }
        errors.dedup();
        failed.push(CommandError::with_text(errors.join("\n")));
    }
    CommandError::collect(failed).map(|()| ExitCode::SUCCESS)
}

async fn drain_node(
    session: &Session,
    args: &DrainArgs,
    node: &Place,
    limit: Duration,
    output: &mut Output,
) -> Result<(), CommandError> {
    let pods = session.discovery().await?.served_kind("v1", "Pod")?.clone();
    let fields = format!("spec.nodeName={}", node.name);
    let found = requests::list(session, &pods, None, (&args.pod_selector, &fields)).await?;
    let allowed = Permissions {
        force: args.force,
        ignore_daemon_sets: args.ignore_daemonsets,
        delete_empty_dir_data: args.delete_emptydir_data,
        skip_deleted_after: Duration::from_secs(args.skip_wait_for_delete_timeout.into()),
    };
    let facts = read_facts(session, &found).await?;
    let plan = drain::plan(session.names().await?, &found, allowed, &facts);
    match plan.blocked.as_slice() {
        [] => {}
        [one] => return Err(CommandError::with_text(one.clone())),
        several => return Err(CommandError::with_text(format!("[{}]", several.join(", ")))),
    }
    if let Some(warning) = plan.warning {
        session.warn(&warning);
    }
    let removal = Removal { session, args };
    let places = plan.leaving.iter().map(|pod| (Place::listed(&pods, pod), pod));
    let mut waiting: Vec<LeavingPod> =
        places.map(|(place, pod)| LeavingPod::new(place, pod)).collect();
    let note = args.nodes.note();
    for one in &waiting {
        let deletes = args.disable_eviction && args.nodes.dry_run != DryRun::Client;
        let verb = if deletes { "deleting" } else { "evicting" };
        writeln!(output.out, "{verb} pod {}{note}", one.path())?;
    }
    output.out.flush()?;
    if args.nodes.dry_run == DryRun::Client {
        return Ok(());
    }
    let mut pauses = PollIntervals::up_to(limit);
    let mut refused = Vec::new();
    loop {
        // A busy server holds up each eviction.
        let ended = match timeout_at(pauses.until(), removal.step(&mut waiting, output)).await {
            Ok(stepped) => {
                refused.extend(stepped?);
                false
            }
            Err(_) => true,
        };
        if !ended && waiting.is_empty() {
            break;
        }
        if ended || !pauses.pause().await {
            let names: Vec<String> = waiting.iter().map(LeavingPod::path).collect();
            refused.push(format!(
                "drain did not complete within {}: {} remain",
                args.timeout,
                names.join(", ")
            ));
            break;
        }
    }
    match refused.as_slice() {
        [] => Ok(()),
        [one] => Err(CommandError::with_text(one.clone())),
        several => Err(CommandError::with_text(format!("[{}]", several.join(", ")))),
    }
}

/// Which DaemonSets of the pods are gone, and the time.
async fn read_facts(session: &Session, pods: &[Value]) -> Result<DrainFacts, CommandError> {
    let mut facts = DrainFacts { now: time::now(), ..DrainFacts::default() };
    for path in drain::daemon_sets(pods) {
        let resource = session.discovery().await?.served_kind("apps/v1", "DaemonSet")?.clone();
        let (namespace, name) = path.split_once('/').unwrap_or_default();
        let place = Place { resource, namespace: Some(namespace.into()), name: name.into() };
        if requests::find(session, &place).await?.is_none() {
            facts.missing_daemon_sets.insert(path);
        }
    }
    Ok(facts)
}

/// A pod that is evicted or deleted by the drain.
struct LeavingPod {
    place: Place,
    uid: String,
    /// Whether the server has agreed.
    agreed: bool,
    /// Time of the next attempt.
    next: Instant,
}

impl LeavingPod {
    fn new(place: Place, pod: &Value) -> Self {
        let uid =
            pod.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { place, uid, agreed: false, next: Instant::now() }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.place.namespace.as_deref().unwrap_or_default(), self.place.name)
    }
}

/// Whether an eviction may succeed later: a budget refuses it, or its namespace is being deleted, whose pods go by themselves.
fn is_refused_for_now(error: &CommandError) -> bool {
    match requests::code(error) {
        Some(429) => true,
        Some(403) => requests::has_cause(error, "NamespaceTerminating"),
        _ => false,
    }
}

struct Removal<'a> {
    session: &'a Session,
    args: &'a DrainArgs,
}

impl Removal<'_> {
    /// Sends the evictions that are due, and removes deleted pods from the list, and those whose eviction is refused for good: what was said of them is
    /// returned, and the others go on.
    async fn step(
        &self,
        waiting: &mut Vec<LeavingPod>,
        output: &mut Output,
    ) -> Result<Vec<String>, CommandError> {
        let mut refused = Vec::new();
        let mut at = 0;
        // Each stays in the list until it is known to be over: the time may be up at any wait.
        while let Some(one) = waiting.get_mut(at) {
            if !one.agreed {
                if one.next > Instant::now() {
                    at = at.saturating_add(1);
                    continue;
                }
                match self.remove(one).await {
                    Ok(()) => one.agreed = true,
                    Err(error) if error.is_not_found() => one.agreed = true,
                    Err(error) if is_refused_for_now(&error) => {
                        writeln!(
                            output.err,
                            "error when evicting pods/\"{}\" -n \"{}\" (will retry after {}s): {}",
                            one.place.name,
                            one.place.namespace.as_deref().unwrap_or_default(),
                            RETRY_PAUSE.as_secs(),
                            requests::message_with_causes(&error)
                        )?;
                        one.next = Instant::now() + RETRY_PAUSE;
                        at = at.saturating_add(1);
                        continue;
                    }
                    Err(error) => {
                        refused.push(format!(
                            "error when evicting pods/\"{}\" -n \"{}\": {}",
                            one.place.name,
                            one.place.namespace.as_deref().unwrap_or_default(),
                            requests::message(&error)
                        ));
                        waiting.remove(at);
                        continue;
                    }
                }
            }
            if self.has_gone(one).await? {
                let done = if self.args.disable_eviction { "deleted" } else { "evicted" };
                writeln!(output.out, "{} {done}{}", one.place.title(), self.args.nodes.note())?;
                output.out.flush()?;
                waiting.remove(at);
            } else {
                at = at.saturating_add(1);
            }
        }
        Ok(refused)
    }

    async fn has_gone(&self, one: &LeavingPod) -> Result<bool, CommandError> {
        if self.args.nodes.dry_run != DryRun::None {
            return Ok(true); // nothing goes
        }
        let found = requests::find(self.session, &one.place).await?;
        Ok(found.is_none_or(|pod| {
            pod.pointer("/metadata/uid").and_then(Value::as_str) != Some(&one.uid)
        }))
    }

    async fn remove(&self, one: &LeavingPod) -> Result<(), CommandError> {
        let deletion = Deletion {
            grace_secs: Some(self.args.grace_period).filter(|seconds| *seconds >= 0),
            dry_run: self.args.nodes.dry_run == DryRun::Server,
            uid: Some(one.uid.clone()),
            propagation: None,
        };
        if self.args.disable_eviction {
            return requests::delete(self.session, &one.place, &deletion).await.map(drop);
        }
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": one.place.name, "namespace": one.place.namespace},
            "deleteOptions": deletion.options()});
        let path = one.place.path(Some("eviction"));
        let write = WriteOptions { dry_run: deletion.dry_run, ..WriteOptions::default() };
        requests::create(self.session, path, &eviction, &write).await.map(drop)
    }
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
        drain: DrainArgs,
    }

    /// An unset variable of a script selects no node, not all.
    #[test]
    fn an_empty_selector_is_refused() {
        assert!(Line::try_parse_from(["drain", "-l", ""]).is_err());
        assert!(Line::try_parse_from(["drain"]).is_err());
        let line = Line::try_parse_from(["drain", "-l", "a=b"]).expect("a selector");
        assert_eq!(line.drain.nodes.selector.as_deref(), Some("a=b"));
    }

    /// Nodes `n1` and `n2` without pods; `n2` cannot be changed.
    async fn server() -> TestServer {
        TestServer::start(|request, _| match (request.method.as_str(), request.path.as_str()) {
            ("PATCH", "/api/v1/nodes/n2") => json_response(
                403,
                &json!({"kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403}),
            ),
            (_, "/api/v1/nodes/n1" | "/api/v1/nodes/n2") => json_response(200, &json!({})),
            (_, "/api/v1/pods") => json_response(200, &json!({"items": []})),
            (_, path) => json_response(
                404,
                &json!({"kind": "Status", "status": "Failure", "message": format!("{path} not found"), "reason": "NotFound", "code": 404,
                    "details": {"name": "gone", "kind": "nodes"}}),
            ),
        })
        .await
    }

    #[tokio::test]
    async fn nodes_are_drained_unless_one_is_missing() {
        let server = server().await;
        for (words, error) in [
            (&["n1"][..], ""),
            (&["nodes/n1"], ""),
            (&["no/n1"], ""),
            (&["node/gone", "n1"], "Error from server (NotFound): /api/v1/nodes/gone not found"),
            (&["n2", "n1"], "error: unable to cordon node \"n2\": no"),
            (&["pods/p"], "error: expected resource of type node, got \"pods\""),
        ] {
            let line = Line::try_parse_from([&["drain"], words].concat()).expect("a line");
            let (mut output, recorder) = Recorder::output();
            let drained = run_drain(&server.session, line.drain, &mut output).await;
            assert_eq!(drained.err().map(|error| error.to_string()).unwrap_or_default(), error);
            let is_refused = error.contains("expected") || error.contains("NotFound");
            let wanted = if is_refused { "" } else { "node/n1 cordoned\nnode/n1 drained\n" };
            assert_eq!(recorder.out(), wanted, "{words:?}");
        }
    }

    #[tokio::test]
    async fn nodes_are_cordoned_also_when_others_are_not() {
        let server = server().await;
        let (mut output, recorder) = Recorder::output();
        let line = Line::try_parse_from(["drain", "n2", "n1"]).expect("a line");
        let (places, errors) =
            cordon(&server.session, &line.drain.nodes, true, &mut output).await.expect("asked");
        assert_eq!(places.iter().map(|place| place.name.as_str()).collect::<Vec<_>>(), ["n1"]);
        assert_eq!((errors.len(), recorder.out().as_str()), (1, "node/n1 cordoned\n"));
    }
}
