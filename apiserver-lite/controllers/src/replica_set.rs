//! The replicaset controller.

use proto_api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, Time};

use crate::Plan;
use crate::api_writes::ApiWrite;
use crate::replica_failure::{FailureStatus, REPLICA_FAILURE};
use crate::replicas::{self, CountsByNode, DesiredPods};

/// The other sets of the controller of a set that may have to delete pods; none of any other set, whose `sets` are not asked for. `pods` are
/// those of the set.
pub fn siblings<P: AsRef<Pod>, S: AsRef<ReplicaSet>>(
    set: &ReplicaSet,
    pods: &[P],
    sets: impl FnOnce() -> Vec<S>,
) -> Vec<S> {
    let controller = |set: &ReplicaSet| -> Option<String> {
        let mut owners = set.metadata.owner_references.iter();
        owners.find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
    };
    let own = controller(set);
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let is_own = |pod: &Pod| {
        replicas::is_active(pod)
            && pod.metadata.owner_references.iter().any(|owner| owner.uid == set.metadata.uid)
    };
    let own_count = pods.iter().filter(|pod| is_own(pod.as_ref())).count();
    let is_sibling = |other: &S| {
        let other = other.as_ref();
        other.metadata.uid != set.metadata.uid && controller(other) == own
    };
    match own.is_some() && own_count > wanted {
        true => sets().into_iter().filter(is_sibling).collect(),
        false => Vec::new(),
    }
}

/// Plans pods and status. `pods` are those of the set, and all with its [`labels`].
pub fn plan<P: AsRef<Pod>>(names: &Names, set: &ReplicaSet, pods: &[P], now: Time) -> Plan {
    plan_beside(names, set, pods, &CountsByNode::new(), now)
}

/// The same beside the pods of its [`siblings`]: pods that share their node with more of them are deleted first.
pub fn plan_beside<P: AsRef<Pod>>(
    names: &Names,
    set: &ReplicaSet,
    pods: &[P],
    beside: &CountsByNode,
    now: Time,
) -> Plan {
    let selector = set.spec.selector.as_ref();
    let selector = selector.and_then(|s| Selector::from_label_selector(s, "spec.selector").ok());
    // Validation rejects a selector that selects everything, but stored objects may have it.
    let selector = selector.filter(|selector| !selector.is_everything());
    let Some(selector) = selector else { return Plan::default() };
    let asked = DesiredPods {
        metadata: &set.metadata,
        about: proto_api::event_report::reference(set, names),
        api_version: names.api_version(ReplicaSet::GROUP, ReplicaSet::VERSION),
        kind: ReplicaSet::KIND,
        selector,
        replicas: set.spec.replicas,
        min_ready_seconds: set.spec.min_ready_seconds,
        template: &set.spec.template,
        beside,
    };
    let (mut plan, counts) = replicas::plan(names, &asked, pods, now);
    let status = ReplicaSetStatus {
        replicas: counts.replicas,
        fully_labeled_replicas: counts.labelled,
        ready_replicas: counts.ready,
        available_replicas: counts.available,
        observed_generation: set.metadata.generation,
        conditions: set.status.conditions.clone(),
    };
    let mut next = ReplicaSet { status, ..set.clone() };
    if !plan.events.is_empty() {
        plan.on_failure = Some(FailureStatus::new(next.clone(), next.status != set.status));
    }
    next.status.conditions.retain(|condition| condition.type_ != REPLICA_FAILURE);
    if next.status != set.status {
        plan.writes.push(ApiWrite::UpdateStatus(next.into()));
    }
    plan
}

#[cfg(test)]
mod tests;
