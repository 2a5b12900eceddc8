//! The replicaset controller.

use std::collections::BTreeMap;

use proto_api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, Time};

use crate::Plan;
use crate::api_writes::ApiWrite;
use crate::replica_failure::{FailureStatus, REPLICA_FAILURE};
use crate::replicas::{self, DesiredPods};

/// Labels that all pods have that the set selects.
pub fn labels(set: &ReplicaSet) -> BTreeMap<String, String> {
    set.spec.selector.as_ref().map(|selector| selector.match_labels.clone()).unwrap_or_default()
}

/// Plans pods and status. `pods` are those of the set, and all with its [`labels`].
pub fn plan<P: AsRef<Pod>>(names: &Names, set: &ReplicaSet, pods: &[P], now: Time) -> Plan {
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
