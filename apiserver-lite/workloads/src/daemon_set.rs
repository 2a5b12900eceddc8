//! The daemonset controller: one pod on each node that its template fits, replaced as the update strategy allows.

mod failed_pods;
mod placement;
mod rollout;
mod status;
mod template;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apiserver_controllers::Plan;
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind, Part};
use apiserver_controllers::burst::BurstSize;
use apiserver_controllers::replica_failure::FailureStatus;
use apiserver_controllers::write_events::{ReplicaOperation, WriteEvent};
use proto_api::apps::v1::{ControllerRevision, DaemonSet};
use proto_api::core::v1::{Node, Pod};
use proto_api::event_report::{EventKind, EventReport};
use proto_api::meta::v1::LabelSelector;
use proto_api::names::Names;
use proto_api::{Message, ObjectKey, Time};
use serde_json::json;

use crate::claim::Claimant;
use crate::pods::{REVISION_LABEL, delete, delete_object, revision};
use crate::revisions::{self, CurrentRevision, History, LiveCount};
use placement::Placement;

pub use failed_pods::FailedPods;
pub use placement::{Fit, runs_on};

/// Maximum number of pods created, of pods deleted, and of equal revisions deleted, by one plan.
const BURST_MAX: usize = 250;

/// What a plan is made from.
pub struct ObservedDaemonSet<'a> {
    pub set: &'a DaemonSet,
    /// Pods of its namespace: at least those that it controls, and the orphans that it selects.
    pub pods: &'a [Arc<Pod>],
    /// The revisions of its namespace ([`canonical_revision`](crate::canonical_revision)).
    pub revisions: &'a [Arc<ControllerRevision>],
    /// All nodes.
    pub nodes: &'a [Arc<Node>],
}

/// Plans pods, revisions and status.
pub fn plan(
    names: &Names,
    seen: &ObservedDaemonSet<'_>,
    failed: &mut FailedPods,
    now: Time,
) -> Plan {
    let set = seen.set;
    if set.spec.selector.as_ref() == Some(&LabelSelector::default()) {
        return Plan { reports: vec![selects_all(names, set)], ..Plan::default() };
    }
    let selector = set.spec.selector.as_ref();
    let claimant = Claimant::new(names, ObjectKind::DaemonSet, set, selector);
    let Some(claimant) = claimant.filter(|_| set.metadata.deletion_timestamp.is_none()) else {
        return Plan::default();
    };
    let mut plan = Plan::default();
    let revisions = seen.revisions.iter().map(AsRef::as_ref);
    let revisions = claimant.claim(ObjectKind::ControllerRevision, revisions, |_| true, &mut plan);
    let pods = seen.pods.iter().map(AsRef::as_ref);
    let pods = claimant.claim(ObjectKind::Pod, pods, |_| true, &mut plan);
    if !plan.writes.is_empty() {
        // Ownership is written before pods.
        return plan.without_order();
    }
    let data = revisions::data_of(&set.spec.template);
    let history = History::from_revisions(revisions, &data);
    let current = match current_revision(&claimant, seen, &history, &data) {
        Ok(current) => current,
        // The next plan sees it.
        Err(write) => return Plan::from_writes([*write]),
    };
    plan.writes.extend(deduplicate(&history, current, &pods));
    let hash = current.metadata.labels.get(REVISION_LABEL).unwrap_or(&current.metadata.name);

    let placement = Placement::new(names, set, seen.nodes, &pods);
    let changes = placement.changes(hash, failed, now, &mut plan);
    let mut changes = match changes.is_empty() {
        // A rollout continues once the set is as it should be.
        true if set.spec.update_strategy.type_ != "OnDelete" => {
            rollout::changes(&placement, hash, now)
        }
        _ => changes,
    };
    vary_first(&mut changes.create, now);
    push_changes(&mut plan, names, &claimant, (set, hash), &changes);
    // Before the revisions: it does not wait for one that the server does not delete.
    let status = status::compute_status(&placement, hash, now, &mut plan);
    if status != set.status {
        let next = DaemonSet { status, ..set.clone() };
        plan.on_failure = Some(FailureStatus::new(next.clone(), true));
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    let hashes: BTreeSet<&str> = pods.iter().map(|pod| revision(pod)).collect();
    let is_live = |revision: &ControllerRevision| {
        let hash = revision.metadata.labels.get(REVISION_LABEL);
        hash.is_some_and(|hash| hashes.contains(hash.as_str()))
    };
    let limit = set.spec.revision_history_limit;
    for old in revisions::excess(&history.old, limit, is_live, LiveCount::Counted) {
        plan.writes.push(delete_object(ObjectKind::ControllerRevision, &old.metadata));
    }
    plan
}

/// Begins with another node at another time: one whose pod the server refuses does not hold up the others for ever.
fn vary_first(nodes: &mut [&str], now: Time) {
    let second = usize::try_from(now.unix().unwrap_or(0)).unwrap_or(0);
    nodes.rotate_left(second.checked_rem(nodes.len()).unwrap_or(0));
}

fn selects_all(names: &Names, set: &DaemonSet) -> EventReport {
    EventReport {
        about: proto_api::event_report::reference(set, names),
        kind: EventKind::Warning,
        reason: "SelectingAll".into(),
        message: "This daemon set is selecting all pods. A non-empty selector is required."
            .to_owned(),
    }
}

/// Pods to create and delete.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PodChanges<'a> {
    /// Nodes that need a pod.
    pub(crate) create: Vec<&'a str>,
    /// Pods that have to go.
    pub(crate) delete: Vec<&'a Pod>,
}

impl PodChanges<'_> {
    fn is_empty(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty()
    }
}

fn push_changes(
    plan: &mut Plan,
    names: &Names,
    claimant: &Claimant<'_, DaemonSet>,
    (set, hash): (&DaemonSet, &str),
    changes: &PodChanges<'_>,
) {
    let about = proto_api::event_report::reference(set, names);
    let mut burst = BurstSize::default();
    for node in changes.create.iter().take(BURST_MAX) {
        let pod = template::new_pod(names, set, hash, node, claimant.reference());
        if !burst.takes(pod.encoded_len()) {
            break;
        }
        let event = WriteEvent { about: about.clone(), operation: ReplicaOperation::Create };
        plan.push_with_event(ApiWrite::Create(pod.into()), event);
    }
    for pod in changes.delete.iter().take(BURST_MAX) {
        let event = WriteEvent { about: about.clone(), operation: ReplicaOperation::Delete };
        plan.push_with_event(delete(pod), event);
    }
}

/// The revision of the set's template, or the write that makes or renumbers it.
fn current_revision<'a>(
    claimant: &Claimant<'_, DaemonSet>,
    seen: &ObservedDaemonSet<'a>,
    history: &History<'a>,
    data: &proto_api::RawJson,
) -> Result<&'a ControllerRevision, Box<ApiWrite>> {
    let set = seen.set;
    let found = revisions::current(history, seen.revisions, data, |number| {
        let (counted, template) = ((number, set.status.collision_count), &set.spec.template);
        let (mut new, hash) =
            revisions::new_revision(&set.metadata, template, data, counted, claimant.reference());
        new.metadata.labels.insert(REVISION_LABEL.to_owned(), hash);
        new
    });
    match found {
        CurrentRevision::Found(current) => Ok(current),
        CurrentRevision::After(write) => Err(write),
        CurrentRevision::NameTaken => {
            let mut next = set.clone();
            next.status.collision_count = revisions::one_more(set.status.collision_count);
            Err(Box::new(ApiWrite::UpdateStatus(next.into())))
        }
    }
}

/// Deletes other revisions of the same template, after their pods have been given to the current one.
fn deduplicate(
    history: &History<'_>,
    current: &ControllerRevision,
    pods: &[&Pod],
) -> Vec<ApiWrite> {
    let hash = current.metadata.labels.get(REVISION_LABEL);
    let mut writes = Vec::new();
    let others = history.equal.iter().filter(|other| other.metadata.uid != current.metadata.uid);
    // The deletion of a revision leads to the next plan.
    for other in others.take(BURST_MAX) {
        let theirs = other.metadata.labels.get(REVISION_LABEL);
        for pod in pods.iter().filter(|pod| theirs.is_some_and(|theirs| revision(pod) == theirs)) {
            let metadata = &pod.metadata;
            let labels = BTreeMap::from([(REVISION_LABEL, hash)]);
            let patch = json!({ "metadata": {
                "uid": metadata.uid, "resourceVersion": metadata.resource_version, "labels": labels,
            } });
            let (kind, key) = (ObjectKind::Pod, ObjectKey::from_metadata(metadata));
            writes.push(ApiWrite::Patch { kind, key, part: Part::Main, patch });
        }
        writes.push(delete_object(ObjectKind::ControllerRevision, &other.metadata));
    }
    writes
}

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
