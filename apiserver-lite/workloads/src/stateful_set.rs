//! The statefulset controller: pods with ordinals, names, hostnames and claims of their own, created and deleted in the order of their ordinals, or all
//! at once with the policy `Parallel`. They are updated from the highest ordinal down to the partition.

mod claim_owners;
mod identity;
mod steps;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_controllers::Plan;
use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use apiserver_controllers::replica_failure::FailureStatus;
use proto_api::Time;
use proto_api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use proto_api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use proto_api::names::Names;

use crate::claim::Claimant;
use crate::pods::{delete_object, revision};
use crate::revisions::{self, CurrentRevision, History, LiveCount};
use identity::{ordinal, parent_and_ordinal};
use steps::Steps;

const MAX_UNAVAILABLE: &str = "MaxUnavailableStatefulSet";
const CLAIM_RETENTION: &str = "StatefulSetAutoDeletePVC";

/// What a plan is made from.
pub struct ObservedStatefulSet<'a> {
    pub set: &'a StatefulSet,
    /// Pods of its namespace: at least those that it controls, and the orphans that it selects.
    pub pods: &'a [Arc<Pod>],
    /// The revisions of its namespace ([`canonical_revision`](crate::canonical_revision)).
    pub revisions: &'a [Arc<ControllerRevision>],
    /// A claim of its namespace, by name.
    pub claim: &'a dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
    pub features: StatefulSetFeatures,
}

/// The features of sets that are off by default in Kubernetes 1.25.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatefulSetFeatures {
    pub max_unavailable: MaxUnavailable,
    pub claim_retention: ClaimRetention,
}

impl StatefulSetFeatures {
    /// Their gates.
    pub const GATES: [&str; 2] = [MAX_UNAVAILABLE, CLAIM_RETENTION];

    /// The features whose gates are on.
    pub fn from_gates(is_on: impl Fn(&str) -> bool) -> Self {
        let max_unavailable = match is_on(MAX_UNAVAILABLE) {
            true => MaxUnavailable::Counts,
            false => MaxUnavailable::Ignored,
        };
        let claim_retention = match is_on(CLAIM_RETENTION) {
            true => ClaimRetention::Counts,
            false => ClaimRetention::Ignored,
        };
        Self { max_unavailable, claim_retention }
    }
}

/// What `maxUnavailable` of an update means, by the feature gate `MaxUnavailableStatefulSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// So many pods are updated at a time.
    Counts,
    /// Nothing: one pod is updated at a time.
    Ignored,
}

/// What `persistentVolumeClaimRetentionPolicy` means, by the feature gate `StatefulSetAutoDeletePVC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRetention {
    /// Claims get and lose owners by it.
    Counts,
    /// Nothing: owners of claims are left as they are.
    Ignored,
}

/// A revision and its template.
#[derive(Clone)]
pub(crate) struct Revision<'a> {
    /// The name, which is the label of its pods.
    pub(crate) name: &'a str,
    pub(crate) template: Cow<'a, PodTemplateSpec>,
}

/// Plans pods, claims, revisions and status from all pods of the namespace.
pub fn plan(names: &Names, seen: &ObservedStatefulSet<'_>, now: Time) -> Plan {
    plan_own(names, seen, &|name| seen.pods.iter().any(|pod| pod.metadata.name == name), now)
}

/// [`plan`] from the set's own pods and those that it may adopt. `has_pod` returns whether the namespace has a pod of a name, of whatever owner.
pub fn plan_own(
    names: &Names,
    seen: &ObservedStatefulSet<'_>,
    has_pod: &dyn Fn(&str) -> bool,
    now: Time,
) -> Plan {
    let set = seen.set;
    let selector = set.spec.selector.as_ref();
    let Some(claimant) = Claimant::new(names, ObjectKind::StatefulSet, set, selector) else {
        return Plan::default();
    };
    let mut plan = Plan::default();
    let revisions = seen.revisions.iter().map(AsRef::as_ref);
    let revisions = claimant.claim(ObjectKind::ControllerRevision, revisions, |_| true, &mut plan);
    let pods = seen.pods.iter().map(AsRef::as_ref);
    let is_member = |pod: &Pod| {
        parent_and_ordinal(&pod.metadata.name).is_some_and(|(set, _)| set == seen.set.metadata.name)
    };
    let pods = claimant.claim(ObjectKind::Pod, pods, is_member, &mut plan);
    if !plan.writes.is_empty() {
        // Ownership is written before pods.
        return plan.without_order();
    }
    let data = revisions::data_of(&set.spec.template);
    let history = History::from_revisions(revisions, &data);
    let newest = match newest_revision(names, &claimant, seen, &history, &data) {
        Ok(newest) => newest,
        // The next plan sees it.
        Err(write) => return Plan::from_writes([*write]),
    };
    let old = history.old.iter().find(|old| old.metadata.name == set.status.current_revision);
    let template = Cow::Borrowed(&set.spec.template);
    let update = Revision { name: &newest.metadata.name, template };
    let current = old.and_then(|old| {
        let template = Cow::Owned(revisions::template_of(old)?);
        Some(Revision { name: &old.metadata.name, template })
    });
    let current = current.unwrap_or_else(|| update.clone());

    let (claimant, current, update) = (&claimant, &current, &update);
    let steps = Steps { names, seen, has_pod, claimant, current, update, now };
    let mut counted = steps.count(&pods, &mut plan);
    let mut status = counted.clone();
    steps.plan(&pods, &mut status, &mut plan);
    let with_status = |status| StatefulSet { status, ..set.clone() };
    if !plan.writes.is_empty() {
        // Otherwise a server that refuses a pod or a claim for good would keep the status as it is.
        complete_update(set, &pods, &mut counted);
        let is_changed = counted != set.status;
        plan.on_failure = Some(FailureStatus::new(with_status(counted), is_changed));
    }
    complete_update(set, &pods, &mut status);
    if status != set.status {
        plan.writes.push(ApiWrite::UpdateStatus(with_status(status).into()));
    }
    if set.metadata.deletion_timestamp.is_none() {
        plan.writes.extend(truncate(set, &history, current, &pods));
    }
    plan
}

/// The revision of the set's template, or the write that makes or renumbers it.
fn newest_revision<'a>(
    names: &Names,
    claimant: &Claimant<'_, StatefulSet>,
    seen: &ObservedStatefulSet<'a>,
    history: &History<'a>,
    data: &proto_api::RawJson,
) -> Result<&'a ControllerRevision, Box<ApiWrite>> {
    let set = seen.set;
    let found = revisions::current(history, seen.revisions, data, |number| {
        let counted = (number, Some(set.status.collision_count.unwrap_or(0)));
        let template = &set.spec.template;
        let (mut new, hash) =
            revisions::new_revision(&set.metadata, template, data, counted, claimant.reference());
        new.metadata.labels.insert(names.sub_label("controller", "hash"), hash);
        new
    });
    match found {
        CurrentRevision::Found(newest) => Ok(newest),
        CurrentRevision::After(write) => Err(write),
        CurrentRevision::NameTaken => {
            let mut next = set.clone();
            next.status.collision_count = revisions::one_more(set.status.collision_count);
            Err(Box::new(ApiWrite::UpdateStatus(next.into())))
        }
    }
}

/// Once all pods are updated and ready, the newest revision is the current one. Unlike in Kubernetes, not while a pod is missing that is to come back with
/// the current one, which it would not.
fn complete_update(set: &StatefulSet, pods: &[&Pod], status: &mut StatefulSetStatus) {
    let rolling = set.spec.update_strategy.rolling_update.as_ref();
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    let kept = 0..partition.min(set.spec.replicas.unwrap_or(1)).max(0);
    let is_there = pods.iter().filter(|pod| kept.contains(&ordinal(pod))).count() == kept.len();
    let is_done = is_there
        && status.updated_replicas == status.replicas
        && status.ready_replicas == status.replicas;
    if set.spec.update_strategy.type_ == "RollingUpdate" && is_done {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

/// Deletes the oldest unused revisions beyond the limit.
fn truncate(
    set: &StatefulSet,
    history: &History<'_>,
    current: &Revision<'_>,
    pods: &[&Pod],
) -> Vec<ApiWrite> {
    let used: BTreeSet<&str> = pods.iter().map(|pod| revision(pod)).chain([current.name]).collect();
    let is_live = |revision: &ControllerRevision| used.contains(revision.metadata.name.as_str());
    let limit = set.spec.revision_history_limit;
    let excess = revisions::excess(&history.old, limit, is_live, LiveCount::Exempt);
    let delete =
        |old: &ControllerRevision| delete_object(ObjectKind::ControllerRevision, &old.metadata);
    excess.into_iter().map(delete).collect()
}

#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;
