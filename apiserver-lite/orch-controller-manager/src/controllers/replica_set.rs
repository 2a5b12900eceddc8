//! As many pods as a replica set asks for: made from its template, removed least valuable first.

use std::time::Duration;

use proto_api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use proto_api::core::v1::Pod;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, Time};
use proto_client::ObjectKey;
use serde_json::json;

use super::Plan;
use super::addresses::{has_ended, is_terminating};
use super::owners::controlled_by;
use crate::write::{ObjectKind, Part, Write};

/// Most pods made or removed by one plan; what is missing then is for the next.
const BURST_MAX: usize = 500;

/// Makes or removes pods, and reports. `pods` are those of the namespace.
pub fn plan<P: AsRef<Pod>>(names: &Names, set: &ReplicaSet, pods: &[P], now: Time) -> Plan {
    let selector = set.spec.selector.as_ref();
    let selector = selector.and_then(|s| Selector::from_label_selector(s, "spec.selector").ok());
    let Some(selector) = selector else { return Plan::default() };
    let mut plan = Plan::default();
    let mut active: Vec<&Pod> = Vec::new();
    for pod in pods.iter().map(AsRef::as_ref).filter(|pod| !has_ended(pod) && !is_terminating(pod))
    {
        let controller = pod.metadata.owner_references.iter().find(|o| o.controller == Some(true));
        match controller {
            Some(owner) if owner.uid == set.metadata.uid => active.push(pod),
            None if selector.matches(&pod.metadata.labels) && !is_deleting(set) => {
                plan.writes.push(adopt(names, set, pod));
                active.push(pod);
            }
            _ => {}
        }
    }
    if !is_deleting(set) {
        plan.writes.extend(scale(names, set, &active));
    }
    let (status, due) = status(set, &active, now);
    if status != set.status {
        plan.writes.push(Write::UpdateStatus(ReplicaSet { status, ..set.clone() }.into()));
    }
    if let Some(due) = due {
        plan.look_again_in(due);
    }
    plan
}

fn is_deleting(set: &ReplicaSet) -> bool {
    set.metadata.deletion_timestamp.is_some()
}

fn scale(names: &Names, set: &ReplicaSet, active: &[&Pod]) -> Vec<Write> {
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() <= wanted {
        let missing = (wanted - active.len()).min(BURST_MAX);
        return (0..missing).map(|_| Write::Create(new_pod(names, set).into())).collect();
    }
    let mut ranked = active.to_vec();
    ranked.sort_by_cached_key(|pod| value(names, pod));
    let excess = (active.len() - wanted).min(BURST_MAX);
    ranked.into_iter().take(excess).map(delete).collect()
}

fn new_pod(names: &Names, set: &ReplicaSet) -> Pod {
    let template = &set.spec.template;
    let api_version = names.api_version(ReplicaSet::GROUP, ReplicaSet::VERSION);
    Pod {
        metadata: ObjectMeta {
            generate_name: format!("{}-", set.metadata.name),
            namespace: set.metadata.namespace.clone(),
            labels: template.metadata.labels.clone(),
            annotations: template.metadata.annotations.clone(),
            finalizers: template.metadata.finalizers.clone(),
            owner_references: vec![controlled_by(api_version, ReplicaSet::KIND, &set.metadata)],
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        ..Pod::default()
    }
}

/// What a pod is worth; the lowest goes first. Without a node before with one, pending before running, not
/// ready before ready, cheap by the user's annotation before dear, young before old.
fn value(names: &Names, pod: &Pod) -> impl Ord + use<> {
    let phase = match pod.status.phase.as_str() {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let cost = pod.metadata.annotations.get(&names.sub_label("controller", "pod-deletion-cost"));
    let cost: i32 = cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let ready = ready_since(pod);
    let age = |time: Option<i64>| std::cmp::Reverse(time.unwrap_or(i64::MAX));
    (
        !pod.spec.node_name.is_empty(),
        phase,
        ready.is_some(),
        cost,
        age(ready.and_then(Time::unix)),
        age(pod.metadata.creation_timestamp.unix()),
        pod.metadata.name.clone(),
    )
}

/// Since when the pod is ready, if it is.
fn ready_since(pod: &Pod) -> Option<Time> {
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True");
    ready.map(|condition| condition.last_transition_time)
}

fn delete(pod: &Pod) -> Write {
    Write::Delete {
        kind: ObjectKind::Pod,
        key: ObjectKey::of(&pod.metadata),
        uid: pod.metadata.uid.clone(),
        grace_secs: None,
    }
}

/// Makes a pod that the selector selects, and that nobody controls, one of the set's.
fn adopt(names: &Names, set: &ReplicaSet, pod: &Pod) -> Write {
    let api_version = names.api_version(ReplicaSet::GROUP, ReplicaSet::VERSION);
    let mut owners = pod.metadata.owner_references.clone();
    owners.push(controlled_by(api_version, ReplicaSet::KIND, &set.metadata));
    let metadata = json!({
        "uid": pod.metadata.uid,
        "resourceVersion": pod.metadata.resource_version,
        "ownerReferences": owners,
    });
    Write::Patch {
        kind: ObjectKind::Pod,
        key: ObjectKey::of(&pod.metadata),
        part: Part::Main,
        patch: json!({ "metadata": metadata }),
    }
}

/// The status, and when a ready pod will count as available.
fn status(set: &ReplicaSet, active: &[&Pod], now: Time) -> (ReplicaSetStatus, Option<Duration>) {
    let count = |len: usize| i32::try_from(len).unwrap_or(i32::MAX);
    let template = Selector::from_map(&set.spec.template.metadata.labels);
    let now = now.unix().unwrap_or(0);
    let (mut ready, mut available, mut due) = (0, 0, None);
    for since in active.iter().filter_map(|pod| ready_since(pod)) {
        ready += 1;
        let rest = since.unix().unwrap_or(0) + i64::from(set.spec.min_ready_seconds) - now;
        match u64::try_from(rest) {
            Ok(rest) if rest > 0 && set.spec.min_ready_seconds > 0 => {
                due = Some(due.map_or(rest, |due: u64| due.min(rest)));
            }
            _ => available += 1,
        }
    }
    let labelled = active.iter().filter(|pod| template.matches(&pod.metadata.labels)).count();
    let status = ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: count(labelled),
        ready_replicas: ready,
        available_replicas: available,
        observed_generation: set.metadata.generation,
        conditions: set.status.conditions.clone(),
    };
    (status, due.map(Duration::from_secs))
}

#[cfg(test)]
mod tests;
