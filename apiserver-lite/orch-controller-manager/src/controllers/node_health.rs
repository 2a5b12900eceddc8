//! Whether a node is alive, as its lease says, and the taints that follow from its conditions.
//!
//! The node's agent says that it is well; when it has said nothing for the grace period its conditions
//! become Unknown. Time is measured here, from when something new was last heard: clocks of nodes may differ.

use std::time::{Duration, Instant};

use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{Node, NodeCondition, ObjectReference, Taint};
use proto_api::names::Names;
use proto_api::{MicroTime, Time};
use proto_client::ObjectKey;
use proto_client::events::EventKind;
use proto_client::events::correlate::EventReport;
use serde_json::{Value, json};

use super::Plan;
use crate::api_writes::{ObjectKind, Part, Write};

/// Conditions that nobody but the agent knows.
const AGENT_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The last that was heard of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    renewed: Option<MicroTime>,
    beat: Option<Time>,
    at: Instant,
    is_ready: bool,
    /// What events about the node refer to.
    about: ObjectReference,
}

impl Heard {
    /// What is known now: something new has the time of now, the same as before keeps its time.
    pub fn update(before: Option<&Self>, node: &Node, lease: Option<&Lease>, now: Instant) -> Self {
        let renewed = lease.and_then(|lease| lease.spec.renew_time);
        let beat = ready(node).map(|ready| ready.last_heartbeat_time);
        let same = before.filter(|before| before.renewed == renewed && before.beat == beat);
        let at = same.map_or(now, |before| before.at);
        let about = ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        Self { renewed, beat, at, is_ready: is_ready(node), about }
    }

    /// Grants the whole grace period again from `now`: nothing could be heard before.
    pub fn restart_grace(&mut self, now: Instant) {
        self.at = now;
    }
}

/// The event of a change from what was heard before to what is heard now.
pub fn news(before: Option<&Heard>, after: Option<&Heard>) -> Option<EventReport> {
    let (heard, reason, message) = match (before, after) {
        (None, None) => return None,
        (None, Some(new)) => {
            let name = &new.about.name;
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            (new, "RegisteredNode", message)
        }
        (Some(old), None) => {
            let name = &old.about.name;
            let message = format!("Node {name} event: Removing Node {name} from Controller");
            (old, "RemovingNode", message)
        }
        (Some(old), Some(new)) if old.is_ready && !new.is_ready => {
            let message = format!("Node {} status is now: NodeNotReady", new.about.name);
            (new, "NodeNotReady", message)
        }
        (Some(_), Some(_)) => return None,
    };
    let (about, kind) = (heard.about.clone(), EventKind::Normal);
    Some(EventReport { about, kind, reason: reason.into(), message })
}

/// When it is.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// For how long something takes.
    pub steady: Instant,
    /// For what people and other programs read.
    pub wall: Time,
}

/// What is known of all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterHealth {
    /// At least one is ready.
    SomeReady,
    /// None is: more likely they are not heard here than all gone at once, and their pods would have nowhere to go.
    NoneReady,
}

impl ClusterHealth {
    /// From all nodes.
    pub fn of<'a>(mut nodes: impl Iterator<Item = &'a Node>) -> Self {
        if nodes.any(is_ready) { Self::SomeReady } else { Self::NoneReady }
    }
}

/// Whether the node's condition `Ready` is true.
pub fn is_ready(node: &Node) -> bool {
    condition(node, "Ready") == "True"
}

/// Conditions first; taints when the server has them, so that each write is made from what it follows. Taints that drive pods away
/// are taken off while no node is ready, as in Kubernetes.
pub fn plan(
    names: &Names,
    node: &Node,
    heard: &Heard,
    grace: Duration,
    now: Clocks,
    cluster: ClusterHealth,
) -> Plan {
    let silent = now.steady.saturating_duration_since(heard.at);
    if silent >= grace {
        if let Some(write) = mark_unknown(names, node, now.wall) {
            return Plan::of([write]);
        }
        return Plan::of(retaint(names, node, now.wall, cluster));
    }
    let mut plan = Plan::of(retaint(names, node, now.wall, cluster));
    plan.look_again_in(grace.saturating_sub(silent));
    plan
}

fn ready(node: &Node) -> Option<&NodeCondition> {
    node.status.conditions.iter().find(|condition| condition.type_ == "Ready")
}

fn condition<'a>(node: &'a Node, kind: &str) -> &'a str {
    let mut all = node.status.conditions.iter();
    all.find(|condition| condition.type_ == kind).map_or("", |condition| &condition.status)
}

/// Makes what only the agent knows Unknown; nothing if it is.
fn mark_unknown(names: &Names, node: &Node, now: Time) -> Option<Write> {
    let agent = capitalized(&names.component("let"));
    let mut conditions = node.status.conditions.clone();
    let mut changed = false;
    for kind in AGENT_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = "Unknown".to_owned();
                condition.reason = "NodeStatusUnknown".to_owned();
                condition.message = format!("{agent} stopped posting node status.");
                condition.last_transition_time = now;
                changed = true;
            }
            None => {
                conditions.push(NodeCondition {
                    type_: kind.to_owned(),
                    status: "Unknown".to_owned(),
                    last_heartbeat_time: node.metadata.creation_timestamp,
                    last_transition_time: now,
                    reason: "NodeStatusNeverUpdated".to_owned(),
                    message: format!("{agent} never posted node status."),
                });
                changed = true;
            }
        }
    }
    changed.then(|| patch(node, Part::Status, json!({ "conditions": conditions })))
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Taints as the conditions say; nothing if they are so.
fn retaint(names: &Names, node: &Node, now: Time, cluster: ClusterHealth) -> Option<Write> {
    let key = |name: &str| names.sub_label("node", name);
    let no_schedule = "NoSchedule";
    let (not_ready, unreachable) = match condition(node, "Ready") {
        "True" => (false, false),
        "Unknown" => (false, true),
        _ => (true, false),
    };
    let drives = cluster == ClusterHealth::SomeReady;
    let is_true = |kind: &str| condition(node, kind) == "True";
    let rules = [
        (key("not-ready"), no_schedule, not_ready),
        (key("not-ready"), "NoExecute", not_ready && drives),
        (key("unreachable"), no_schedule, unreachable),
        (key("unreachable"), "NoExecute", unreachable && drives),
        (key("memory-pressure"), no_schedule, is_true("MemoryPressure")),
        (key("disk-pressure"), no_schedule, is_true("DiskPressure")),
        (key("pid-pressure"), no_schedule, is_true("PIDPressure")),
        (key("network-unavailable"), no_schedule, is_true("NetworkUnavailable")),
        (key("unschedulable"), no_schedule, node.spec.unschedulable),
        // No cloud has to initialize our nodes.
        (names.sub_label("node.cloudprovider", "uninitialized"), no_schedule, false),
    ];
    let mut taints = node.spec.taints.clone();
    for (key, effect, wanted) in rules {
        let is_it = |taint: &Taint| taint.key == key && taint.effect == effect;
        if !wanted {
            taints.retain(|taint| !is_it(taint));
        } else if !taints.iter().any(is_it) {
            let (effect, value) = (effect.to_owned(), String::new());
            taints.push(Taint { key, value, effect, time_added: Some(now) });
        }
    }
    (taints != node.spec.taints).then(|| patch(node, Part::Main, json!({ "taints": taints })))
}

fn patch(node: &Node, part: Part, fields: Value) -> Write {
    let field = if part == Part::Status { "status" } else { "spec" };
    let version = &node.metadata.resource_version;
    Write::Patch {
        kind: ObjectKind::Node,
        key: ObjectKey::of(&node.metadata),
        part,
        patch: json!({ "metadata": { "resourceVersion": version }, field: fields }),
    }
}

#[cfg(test)]
mod tests;
