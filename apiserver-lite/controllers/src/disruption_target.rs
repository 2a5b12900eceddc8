//! The condition DisruptionTarget: why a pod ends that does not end by itself. It is written before the pod is deleted, with the feature gate
//! `PodDisruptionConditions`, so that the failure policies of Jobs can tell such pods.

use std::collections::BTreeMap;

use proto_api::core::v1::{Pod, PodCondition};
use proto_api::{ObjectKey, Time};
use serde_json::json;

use crate::Plan;
use crate::addresses::has_ended;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// The feature gate of the condition.
pub const GATE: &str = "PodDisruptionConditions";

const TYPE: &str = "DisruptionTarget";

/// Who ends a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disruption {
    /// The taint manager: the pod does not tolerate a taint of its node.
    Taint,
    /// The node lifecycle controller without the taint manager: the node has failed. As in Kubernetes the pod does not say so.
    NodeFailure,
    /// The pod garbage collector: the node does not exist any more.
    NodeGone,
    /// The pod garbage collector, for another reason, which is no disruption.
    Cleanup,
}

impl Disruption {
    fn reason_and_message(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Taint => {
                Some(("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"))
            }
            Self::NodeGone => Some(("DeletionByPodGC", "PodGC: node no longer exists")),
            Self::NodeFailure | Self::Cleanup => None,
        }
    }

    /// Whether only the deleting controller can say that the pod has failed: no kubelet runs it.
    fn fails_pod(self) -> bool {
        matches!(self, Self::NodeGone | Self::Cleanup)
    }
}

/// The plan, of deletions without events of their own, with the status of each pod that it deletes written before that. `pods` are the deleted ones, or
/// more.
pub fn add_to_deletions<P: AsRef<Pod>>(plan: Plan, pods: &[P], why: Disruption, now: Time) -> Plan {
    let mut by_uid = BTreeMap::new();
    if !plan.writes.is_empty() {
        by_uid =
            pods.iter().map(|pod| (pod.as_ref().metadata.uid.as_str(), pod.as_ref())).collect();
    }
    let mut writes = Vec::new();
    for write in plan.writes {
        if let ApiWrite::Delete { kind: ObjectKind::Pod, uid, .. } = &write {
            let pod = by_uid.get(uid.as_str());
            writes.extend(pod.and_then(|pod| status_write(pod, why, now)));
        }
        writes.push(write);
    }
    Plan { writes, ..plan }
}

/// The write of the condition and, of a pod that nothing runs any more, of the phase; none if the pod has both.
fn status_write(pod: &Pod, why: Disruption, now: Time) -> Option<ApiWrite> {
    let mut status = serde_json::Map::new();
    if let Some((reason, message)) = why.reason_and_message() {
        let mut conditions = pod.status.conditions.clone();
        if set(&mut conditions, reason, message, now) {
            status.insert("conditions".to_owned(), json!(conditions));
        }
    }
    if why.fails_pod() && !has_ended(pod) {
        status.insert("phase".to_owned(), json!("Failed"));
    }
    (!status.is_empty()).then(|| ApiWrite::Patch {
        kind: ObjectKind::Pod,
        key: ObjectKey::from_metadata(&pod.metadata),
        part: Part::Status,
        patch: json!({
            "metadata": { "resourceVersion": pod.metadata.resource_version },
            "status": status,
        }),
    })
}

/// Sets the condition; false if it says so already.
fn set(conditions: &mut Vec<PodCondition>, reason: &str, message: &str, now: Time) -> bool {
    let before = conditions.iter().position(|condition| condition.type_ == TYPE);
    let mut next = PodCondition {
        type_: TYPE.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now,
        ..PodCondition::default()
    };
    let Some(condition) = before.and_then(|at| conditions.get_mut(at)) else {
        conditions.push(next);
        return true;
    };
    if condition.status == next.status {
        next.last_transition_time = condition.last_transition_time;
    }
    let changes = (&condition.status, &condition.reason, &condition.message)
        != (&next.status, &next.reason, &next.message);
    *condition = next;
    changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::addresses::examples::pod;

    fn deletion(pod: &Pod) -> ApiWrite {
        ApiWrite::Delete {
            kind: ObjectKind::Pod,
            key: ObjectKey::from_metadata(&pod.metadata),
            uid: pod.metadata.uid.clone(),
            grace_secs: None,
        }
    }

    /// The reason of the condition, and the phase that is written.
    fn written(pod: Pod, why: Disruption) -> Option<(Option<String>, Option<String>)> {
        let pods = [Arc::new(pod)];
        let plan = add_to_deletions(
            Plan::from_writes([deletion(&pods[0])]),
            &pods,
            why,
            Time::from_unix(5),
        );
        assert_eq!(plan.writes.last(), Some(&deletion(&pods[0])));
        let [ApiWrite::Patch { patch, part: Part::Status, .. }, _] = &plan.writes[..] else {
            assert_eq!(plan.writes.len(), 1);
            return None;
        };
        assert_eq!(patch["metadata"]["resourceVersion"], json!(pods[0].metadata.resource_version));
        let all = patch["status"]["conditions"].as_array();
        if let Some(all) = all {
            assert!(all.iter().any(|one| one["type"] == "Ready"), "the others stay");
        }
        let of = |one: &serde_json::Value| (one["type"] == TYPE).then(|| one["reason"].clone());
        let reason = all.and_then(|all| all.iter().find_map(of));
        let text = |value: serde_json::Value| value.as_str().map(str::to_owned);
        Some((reason.and_then(text), text(patch["status"]["phase"].clone())))
    }

    #[test]
    fn a_pod_says_why_it_ends_before_it_is_deleted() {
        let with_phase = |phase: &str| {
            let mut pod = pod(1);
            pod.status.phase = phase.into();
            pod
        };
        let some = |text: &str| Some(text.to_owned());
        for (phase, why, expected) in [
            ("Running", Disruption::Taint, Some((some("DeletionByTaintManager"), None))),
            ("Running", Disruption::NodeGone, Some((some("DeletionByPodGC"), some("Failed")))),
            ("Succeeded", Disruption::NodeGone, Some((some("DeletionByPodGC"), None))),
            ("Running", Disruption::Cleanup, Some((None, some("Failed")))),
            ("Failed", Disruption::Cleanup, None),
            ("Running", Disruption::NodeFailure, None),
        ] {
            assert_eq!(written(with_phase(phase), why), expected, "{phase} {why:?}");
        }
        let mut told = with_phase("Running");
        let (reason, message) = Disruption::Taint.reason_and_message().unwrap_or_default();
        assert!(set(&mut told.status.conditions, reason, message, Time::from_unix(1)));
        assert_eq!(written(told.clone(), Disruption::Taint), None, "it is written");
        assert!(written(told, Disruption::NodeGone).is_some());
    }

    #[test]
    fn other_writes_stay_as_they_are() {
        let pods = [Arc::new(pod(1)), Arc::new(pod(2))];
        let plan = Plan::from_writes([deletion(&pods[1]), deletion(&pod(3))]);
        let with_statuses =
            add_to_deletions(plan.clone(), &pods, Disruption::Taint, Time::from_unix(5));
        assert_eq!(with_statuses.writes.len(), 3);
        assert_eq!(with_statuses.writes[1..], plan.writes);
    }
}
