//! The node lifecycle controller: marks a node whose kubelet is silent as Unknown and its pods as not ready, and keeps the taints that
//! follow from the node's conditions.
//!
//! A kubelet is silent when neither its lease nor its heartbeat has changed for the grace period. The period is measured with this machine's
//! monotonic clock from the last observed change, because the clocks of nodes may differ.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{Node, NodeCondition, ObjectReference, Pod, Taint};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::names::Names;
use proto_api::{MicroTime, ObjectKey, Time};
use serde_json::{Value, json};

use crate::Plan;
use crate::addresses::{is_ready as is_pod_ready, pod_reference};
use crate::api_writes::{ApiWrite, ObjectKind, Part};

mod rates;

pub use rates::EvictionRates;
use rates::Pace;

/// The conditions that the kubelet reports.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The last observed state of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeHealth {
    renewed: Option<MicroTime>,
    heartbeat: Option<Time>,
    observed_at: Instant,
    ready: Readiness,
    /// The object that events about the node refer to.
    reference: ObjectReference,
}

/// The status of a node's condition `Ready`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Ready,
    NotReady,
    Unknown,
}

impl Readiness {
    fn from_node(node: &Node) -> Self {
        match condition(node, "Ready") {
            "True" => Self::Ready,
            "Unknown" => Self::Unknown,
            _ => Self::NotReady,
        }
    }
}

impl NodeHealth {
    /// The state at `now`; the time of the last change is kept when neither lease nor heartbeat has changed.
    pub fn update(before: Option<&Self>, node: &Node, lease: Option<&Lease>, now: Instant) -> Self {
        let renewed = lease.and_then(|lease| lease.spec.renew_time);
        let heartbeat = ready_condition(node).map(|ready| ready.last_heartbeat_time);
        let same =
            before.filter(|before| before.renewed == renewed && before.heartbeat == heartbeat);
        let observed_at = same.map_or(now, |before| before.observed_at);
        let reference = ObjectReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        Self { renewed, heartbeat, observed_at, ready: Readiness::from_node(node), reference }
    }

    /// Restarts the grace period, after a time in which no kubelet could be observed.
    pub fn restart_grace(&mut self, now: Instant) {
        self.observed_at = now;
    }
}

/// The event of a change between two observations. A node that its own kubelet reports as not ready has none here: the kubelet records it.
pub fn transition_event(
    before: Option<&NodeHealth>,
    after: Option<&NodeHealth>,
) -> Option<EventReport> {
    let (health, reason, message) = match (before, after) {
        (None, None) => return None,
        (None, Some(new)) => {
            let name = &new.reference.name;
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            (new, "RegisteredNode", message)
        }
        (Some(old), None) => {
            let name = &old.reference.name;
            let message = format!("Node {name} event: Removing Node {name} from Controller");
            (old, "RemovingNode", message)
        }
        (Some(old), Some(new))
            if (old.ready, new.ready) == (Readiness::Ready, Readiness::Unknown) =>
        {
            let message = format!("Node {} status is now: NodeNotReady", new.reference.name);
            (new, "NodeNotReady", message)
        }
        (Some(_), Some(_)) => return None,
    };
    let (about, kind) = (health.reference.clone(), EventKind::Normal);
    Some(EventReport { about, kind, reason: reason.into(), message })
}

/// How long a kubelet may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GracePeriods {
    /// Once it has reported.
    pub running: Duration,
    /// Before that, while it starts.
    pub starting: Duration,
}

impl GracePeriods {
    /// The period of a node.
    pub fn for_node(&self, node: &Node) -> Duration {
        if ready_condition(node).is_some() { self.running } else { self.starting }
    }
}

/// The current time on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct NodeClocks {
    /// Measures durations.
    pub steady: Instant,
    /// Written to objects.
    pub wall: Time,
}

/// The state of all nodes together, for one that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterHealth {
    /// At least one node is ready, and the pods of this one may be evicted.
    SomeReady,
    /// The same, but it is not this node's turn: in this time, or, if it is not known, once more nodes of its zone are ready.
    NotNow(Option<Duration>),
    /// No node is ready. More likely this program is cut off than every node failed at once, and evicted pods would have nowhere to run.
    NoneReady,
}

/// Until a node that may not be evicted is looked at again, when no other change calls for it: labels decide which nodes count, and to which zone.
const RECHECK: Duration = Duration::from_secs(30);
/// How long evictions are noted at least, in seconds. The caches show them sooner; a node that is deleted shows them no longer.
const NOTED_SECS: i64 = 100;
/// Bound of evictions that are noted in a zone. The latest decide whose turn it is.
const NOTED_MAX: usize = 10_000;

/// Region and zone of a node.
type Zone<T = String> = [Option<T>; 2];

fn zone_of<'a>(keys: &[[String; 2]; 2], node: &'a Node) -> Zone<&'a String> {
    let label = |key: &String| node.metadata.labels.get(key);
    keys.each_ref().map(|[older, newer]| label(older).or_else(|| label(newer)))
}

/// Of region and zone the older label, which counts where a node has both, and the newer one.
fn zone_keys(names: &Names) -> [[String; 2]; 2] {
    ["region", "zone"]
        .map(|name| ["failure-domain.beta", "topology"].map(|domain| names.sub_label(domain, name)))
}

/// When nodes of each zone got the taint by which their pods are evicted, by name. The cache of nodes shows it later, and other nodes are planned before
/// that.
#[derive(Debug, Default)]
pub struct ZoneEvictions(BTreeMap<Zone, BTreeMap<String, i64>>);

impl ZoneEvictions {
    /// Notes what is planned for a node, for as long as it delays other evictions.
    pub fn note(
        &mut self,
        names: &Names,
        rates: &EvictionRates,
        node: &Node,
        plan: &Plan,
        now: Time,
    ) {
        let now = now.unix().unwrap_or(0);
        let noted_for = rates.longest_pause().max(NOTED_SECS);
        let is_recent = |at: i64| now.saturating_sub(at).saturating_abs() <= noted_for;
        self.0.retain(|_, nodes| {
            nodes.retain(|_, at| is_recent(*at));
            !nodes.is_empty()
        });
        let keys = eviction_keys(names);
        let adds = |write: &ApiWrite| {
            let ApiWrite::Patch { patch, .. } = write else { return false };
            let taints = patch.pointer("/spec/taints").and_then(Value::as_array);
            taints.into_iter().flatten().any(|taint| {
                let key = taint["key"].as_str().unwrap_or_default();
                taint["effect"] == "NoExecute" && keys.iter().any(|own| own == key)
            })
        };
        if evictions(&keys, node).next().is_none() && plan.writes.iter().any(adds) {
            let zone = zone_of(&zone_keys(names), node).map(|name| name.cloned());
            let zone = self.0.entry(zone).or_default();
            zone.insert(node.metadata.name.clone(), now);
            if zone.len() > NOTED_MAX {
                let oldest = zone.iter().min_by_key(|(_, at)| **at).map(|(name, _)| name.clone());
                oldest.map(|oldest| zone.remove(&oldest));
            }
        }
    }

    /// Forgets what is noted for a node whose taint was not written: its zone has its turn again.
    pub fn withdraw_eviction(&mut self, node: &str) {
        self.0.retain(|_, nodes| {
            nodes.remove(node);
            !nodes.is_empty()
        });
    }
}

impl ClusterHealth {
    /// The state of all nodes but those with the label `node.kubernetes.io/exclude-disruption`, for `node` if it exists. Which nodes of its zone are being
    /// evicted is known from their taints, and from `evicted` for the latest.
    pub fn assess<'a>(
        names: &Names,
        rates: &EvictionRates,
        node: Option<&Node>,
        nodes: impl Iterator<Item = &'a Node> + Clone,
        evicted: &ZoneEvictions,
        now: Time,
    ) -> Self {
        let excluded = names.sub_label("node", "exclude-disruption");
        let counts = |node: &Node| !node.metadata.labels.contains_key(&excluded);
        let mut counted = nodes.clone().filter(|node| counts(node)).peekable();
        if counted.peek().is_some() && !counted.any(is_ready) {
            return Self::NoneReady;
        }
        // Made once: all nodes of the zone are visited for each that has failed.
        let evicting = eviction_keys(names);
        let Some(node) = node.filter(|node| evictions(&evicting, node).next().is_none()) else {
            return Self::SomeReady;
        };
        let keys = zone_keys(names);
        let own = zone_of(&keys, node);
        let noted = evicted.0.get(&own.map(|name| name.cloned()));
        let is_noted =
            |node: &Node| noted.is_some_and(|noted| noted.contains_key(&node.metadata.name));
        let mut evictions_at: Vec<i64> = noted.into_iter().flatten().map(|(_, at)| *at).collect();
        let (mut ready, mut failed) = (0_usize, 0_usize);
        for other in nodes.filter(|other| zone_of(&keys, other) == own) {
            if counts(other) {
                let count = if is_ready(other) { &mut ready } else { &mut failed };
                *count = count.saturating_add(1);
            }
            let tainted =
                evictions(&evicting, other).filter_map(|taint| taint.time_added?.unix()).max();
            evictions_at.extend(tainted.filter(|_| !is_noted(other)));
        }
        match rates.pace(ready, failed) {
            Some(pace) => Self::at_pace(pace, evictions_at, now.unix().unwrap_or(0)),
            None => Self::NotNow(None),
        }
    }

    /// Whether one more node may be evicted after those.
    fn at_pace(pace: Pace, mut evictions_at: Vec<i64>, now: i64) -> Self {
        let Some(before) = evictions_at.len().checked_sub(pace.nodes) else {
            return Self::SomeReady;
        };
        let (_, last, _) = evictions_at.select_nth_unstable(before);
        let left = last.saturating_add(pace.seconds).saturating_sub(now);
        match u64::try_from(left.min(pace.seconds)) {
            Ok(left) if left > 0 => Self::NotNow(Some(Duration::from_secs(left))),
            _ => Self::SomeReady,
        }
    }
}

/// Keys of the taints by which a node's pods are evicted because it has failed.
pub(crate) fn eviction_keys(names: &Names) -> [String; 2] {
    ["not-ready", "unreachable"].map(|name| names.sub_label("node", name))
}

/// The taints of these keys that evict pods.
pub(crate) fn evictions<'a>(
    keys: &'a [String; 2],
    node: &'a Node,
) -> impl Iterator<Item = &'a Taint> {
    let taints = node.spec.taints.iter();
    taints.filter(|taint| taint.effect == "NoExecute" && keys.contains(&taint.key))
}

/// Whether the node's condition `Ready` is true.
pub fn is_ready(node: &Node) -> bool {
    Readiness::from_node(node) == Readiness::Ready
}

/// Whether the node's condition `Ready` is Unknown, which only this controller sets.
pub fn is_unknown(node: &Node) -> bool {
    Readiness::from_node(node) == Readiness::Unknown
}

/// Plans conditions first, and taints once the conditions have been written, so that each write follows from what the server has. NoExecute
/// taints are removed while no node is ready, and nodes of a zone get theirs one after the other, as in Kubernetes.
pub fn plan(
    names: &Names,
    node: &Node,
    health: &NodeHealth,
    grace: Duration,
    now: NodeClocks,
    cluster: ClusterHealth,
) -> Plan {
    let silent = now.steady.saturating_duration_since(health.observed_at);
    if silent >= grace
        && let Some(write) = mark_unknown(names, node, now.wall)
    {
        return Plan::from_writes([write]);
    }
    let mut plan = Plan::from_writes(update_taints(names, node, now.wall, cluster));
    if silent < grace {
        plan.requeue_in(grace.saturating_sub(silent));
    }
    match cluster {
        ClusterHealth::SomeReady => {}
        ClusterHealth::NotNow(left) => plan.requeue_in(left.unwrap_or(RECHECK)),
        ClusterHealth::NoneReady => plan.requeue_in(RECHECK),
    }
    plan
}

/// Plans to mark a ready pod of a silent node as not ready: its kubelet does not report it.
pub fn plan_pod(pod: &Pod, node: &Node, now: Time) -> Plan {
    // Pods that terminate as well: their endpoints would count as serving. Not on a node that is not ready but not silent: its kubelet reports its pods.
    if !is_pod_ready(pod) || !is_unknown(node) {
        return Plan::default();
    }
    let mut plan = Plan::from_writes([mark_pod_not_ready(pod, now)]);
    plan.reports.push(EventReport {
        about: pod_reference(pod),
        kind: EventKind::Warning,
        reason: "NodeNotReady".into(),
        message: "Node is not ready".to_owned(),
    });
    plan
}

/// Whether a change of a pod calls for [`plan_pod`]: only its assignment to a node does. A kubelet that returns reports its pods as ready before its
/// node is, and they must not be marked again.
pub fn is_newly_assigned(old: Option<&Pod>, new: &Pod) -> bool {
    let node = &new.spec.node_name;
    !node.is_empty() && old.is_none_or(|old| old.spec.node_name != *node)
}

/// Whether a change of a node calls for [`plan_pod`] of its pods: only the step from Ready to Unknown does, which this controller makes. As in
/// kube-controller-manager, pods keep what their kubelet last reported if it reported the node as not ready (`Ready=False`), also when it falls silent
/// after that; the node's taints evict them. The first state after a start counts as a step, since what was before is not known.
pub fn loses_ready_pods(old: Option<&Node>, new: &Node) -> bool {
    is_unknown(new) && old.is_none_or(is_ready)
}

fn ready_condition(node: &Node) -> Option<&NodeCondition> {
    node.status.conditions.iter().find(|condition| condition.type_ == "Ready")
}

fn condition<'a>(node: &'a Node, kind: &str) -> &'a str {
    let mut all = node.status.conditions.iter();
    all.find(|condition| condition.type_ == kind).map_or("", |condition| &condition.status)
}

/// Sets the kubelet's conditions to Unknown; none if they are.
fn mark_unknown(names: &Names, node: &Node, now: Time) -> Option<ApiWrite> {
    let kubelet = capitalized(&names.component("let"));
    let mut conditions = node.status.conditions.clone();
    let mut changed = false;
    for kind in KUBELET_CONDITIONS {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status == "Unknown" => {}
            Some(condition) => {
                condition.status = "Unknown".to_owned();
                condition.reason = "NodeStatusUnknown".to_owned();
                condition.message = format!("{kubelet} stopped posting node status.");
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
                    message: format!("{kubelet} never posted node status."),
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

/// Sets the taints that follow from the conditions; none if they are set.
fn update_taints(
    names: &Names,
    node: &Node,
    now: Time,
    cluster: ClusterHealth,
) -> Option<ApiWrite> {
    let key = |name: &str| names.sub_label("node", name);
    let no_schedule = "NoSchedule";
    let (not_ready, unreachable) = match condition(node, "Ready") {
        // A node that has never reported is not known to be either before its grace period is over.
        "True" | "" => (false, false),
        "Unknown" => (false, true),
        _ => (true, false),
    };
    let evicts = cluster == ClusterHealth::SomeReady;
    let is_true = |kind: &str| condition(node, kind) == "True";
    let rules = [
        (key("not-ready"), no_schedule, not_ready),
        (key("not-ready"), "NoExecute", not_ready && evicts),
        (key("unreachable"), no_schedule, unreachable),
        (key("unreachable"), "NoExecute", unreachable && evicts),
        (key("memory-pressure"), no_schedule, is_true("MemoryPressure")),
        (key("disk-pressure"), no_schedule, is_true("DiskPressure")),
        (key("pid-pressure"), no_schedule, is_true("PIDPressure")),
        (key("network-unavailable"), no_schedule, is_true("NetworkUnavailable")),
        (key("unschedulable"), no_schedule, node.spec.unschedulable),
    ];
    let mut taints = node.spec.taints.clone();
    for (key, effect, wanted) in rules {
        let is_same = |taint: &Taint| taint.key == key && taint.effect == effect;
        if !wanted {
            taints.retain(|taint| !is_same(taint));
        } else if !taints.iter().any(is_same) {
            let (effect, value) = (effect.to_owned(), String::new());
            taints.push(Taint { key, value, effect, time_added: Some(now) });
        }
    }
    (taints != node.spec.taints).then(|| patch(node, Part::Main, json!({ "taints": taints })))
}

fn mark_pod_not_ready(pod: &Pod, now: Time) -> ApiWrite {
    let mut conditions = pod.status.conditions.clone();
    for condition in conditions.iter_mut().filter(|condition| condition.type_ == "Ready") {
        condition.status = "False".to_owned();
        condition.last_transition_time = now;
    }
    let version = &pod.metadata.resource_version;
    ApiWrite::Patch {
        kind: ObjectKind::Pod,
        key: ObjectKey::from_metadata(&pod.metadata),
        part: Part::Status,
        patch: json!({
            "metadata": { "resourceVersion": version },
            "status": { "conditions": conditions },
        }),
    }
}

fn patch(node: &Node, part: Part, fields: Value) -> ApiWrite {
    let field = if part == Part::Status { "status" } else { "spec" };
    let version = &node.metadata.resource_version;
    ApiWrite::Patch {
        kind: ObjectKind::Node,
        key: ObjectKey::from_metadata(&node.metadata),
        part,
        patch: json!({ "metadata": { "resourceVersion": version }, field: fields }),
    }
}

#[cfg(test)]
mod tests;
