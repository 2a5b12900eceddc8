//! The podgc controller: force-deletes pods that no kubelet will remove, which are pods of deleted nodes, terminating pods without a node and
//! terminating pods of a node with the out-of-service taint, and the oldest finished pods beyond a threshold.

use std::time::Duration;

use proto_api::ObjectKey;
use proto_api::core::v1::{Node, Pod, Taint};

use crate::Plan;
use crate::addresses::{has_ended, is_terminating};
use crate::api_writes::{ApiWrite, ObjectKind};
use crate::disruption_target::Disruption;

/// How long a node may be missing before its pods are deleted: it may be about to register again.
pub const QUARANTINE: Duration = Duration::from_secs(40);

/// Bound of the finished pods that one plan deletes: a plan is executed in one go, write by write.
const DELETIONS_MAX: usize = 500;
/// Until the next plan deletes those that are left.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known about the node of a pod.
#[derive(Clone, Copy, Debug)]
pub enum PodNode<'a> {
    /// The pod is not scheduled.
    Unscheduled,
    /// The node exists.
    Found(&'a Node),
    /// The cache has lacked the node for this long.
    Missing(Duration),
    /// A live read confirmed that the node does not exist.
    Absent,
}

/// What the taint out-of-service of a node means, by the feature gate `NodeOutOfServiceVolumeDetach`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfServiceTaint {
    /// The node is off: its terminating pods are deleted and its volumes detached without its word.
    NodeIsOff,
    /// Nothing.
    Ignored,
}

/// What the deletion of a pod of this node is.
pub fn disruption(node: PodNode<'_>) -> Disruption {
    match node {
        PodNode::Absent => Disruption::NodeGone,
        _ => Disruption::Cleanup,
    }
}

/// Plans the deletion of one pod that no kubelet will remove.
pub fn plan(pod: &Pod, node: PodNode<'_>, out_of_service: OutOfServiceTaint) -> Plan {
    match node {
        PodNode::Unscheduled if is_terminating(pod) => Plan::from_writes([force_delete(pod)]),
        PodNode::Unscheduled => Plan::default(),
        PodNode::Absent => Plan::from_writes([force_delete(pod)]),
        PodNode::Missing(missing) => {
            Plan { requeue_after: Some(QUARANTINE.saturating_sub(missing)), ..Plan::default() }
        }
        PodNode::Found(node)
            if out_of_service == OutOfServiceTaint::NodeIsOff
                && is_terminating(pod)
                && is_out_of_service(node) =>
        {
            Plan::from_writes([force_delete(pod)])
        }
        PodNode::Found(_) => Plan::default(),
    }
}

/// Plans the deletion of the oldest finished pods beyond `threshold`; 0 keeps all.
pub fn plan_ended<P: AsRef<Pod>>(pods: &[P], threshold: usize) -> Plan {
    let mut ended: Vec<&Pod> = pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod| has_ended(pod) && !is_terminating(pod))
        .collect();
    let excess = if threshold == 0 { 0 } else { ended.len().saturating_sub(threshold) };
    if excess == 0 {
        return Plan::default();
    }
    ended.sort_by_key(|pod| (pod.metadata.creation_timestamp.unix(), pod.metadata.name.clone()));
    let deleted = ended.into_iter().take(excess.min(DELETIONS_MAX));
    let mut plan = Plan::from_writes(deleted.map(force_delete));
    if excess > DELETIONS_MAX {
        plan.requeue_in(PAUSE);
    }
    plan
}

/// Whether a user has marked a node that is not ready as shut down: its kubelet will not end its pods.
fn is_out_of_service(node: &Node) -> bool {
    // The domain of the key depends on the naming profile.
    let marked =
        |taint: &Taint| taint.key.starts_with("node.") && taint.key.ends_with("/out-of-service");
    let ready = node.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    !ready && node.spec.taints.iter().any(marked)
}

fn force_delete(pod: &Pod) -> ApiWrite {
    ApiWrite::Delete {
        kind: ObjectKind::Pod,
        key: ObjectKey::from_metadata(&pod.metadata),
        uid: pod.metadata.uid.clone(),
        grace_secs: Some(0),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::Time;
    use proto_api::core::v1::NodeCondition;

    use super::*;
    use crate::addresses::examples::pod;

    fn grace(plan: &Plan) -> Vec<Option<i64>> {
        let grace = |write: &ApiWrite| match write {
            ApiWrite::Delete { grace_secs, .. } => *grace_secs,
            other => unreachable!("{other:?}"),
        };
        plan.writes.iter().map(grace).collect()
    }

    fn plan(pod: &Pod, node: PodNode<'_>) -> Plan {
        super::plan(pod, node, OutOfServiceTaint::NodeIsOff)
    }

    #[test]
    fn pods_without_a_node_are_deleted() {
        let mut pod = pod(1);
        assert_eq!(plan(&pod, PodNode::Unscheduled), Plan::default());
        for (missing, rest) in [(0, 40), (10, 30), (40, 0), (1000, 0)] {
            let soon = plan(&pod, PodNode::Missing(Duration::from_secs(missing)));
            let rest = Some(Duration::from_secs(rest));
            assert_eq!(soon, Plan { requeue_after: rest, ..Plan::default() }, "needs a live read");
        }
        assert_eq!(grace(&plan(&pod, PodNode::Absent)), [Some(0)]);
        pod.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert_eq!(grace(&plan(&pod, PodNode::Unscheduled)), [Some(0)]);
        assert_eq!(grace(&plan(&pod, PodNode::Found(&Node::default()))), []);
    }

    #[test]
    fn terminating_pods_of_an_out_of_service_node_are_deleted() {
        let (mut node, mut terminating) = (Node::default(), pod(1));
        terminating.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert_eq!(plan(&terminating, PodNode::Found(&node)), Plan::default());
        let key = "node.orch.io/out-of-service".to_owned();
        node.spec.taints.push(Taint { key, effect: "NoExecute".into(), ..Taint::default() });
        assert_eq!(grace(&plan(&terminating, PodNode::Found(&node))), [Some(0)]);
        let ignored = super::plan(&terminating, PodNode::Found(&node), OutOfServiceTaint::Ignored);
        assert_eq!(ignored, Plan::default());
        let (type_, status) = ("Ready".to_owned(), "True".to_owned());
        node.status.conditions.push(NodeCondition { type_, status, ..NodeCondition::default() });
        assert_eq!(plan(&terminating, PodNode::Found(&node)), Plan::default(), "it is running");
    }

    #[test]
    fn the_oldest_finished_pods_are_deleted() {
        let pods: Vec<Arc<Pod>> = (1..=5)
            .map(|nth| {
                let mut pod = pod(nth);
                pod.metadata.creation_timestamp = Time::from_unix(i64::from(100 - nth));
                pod.status.phase = if nth == 5 { "Running" } else { "Succeeded" }.into();
                Arc::new(pod)
            })
            .collect();
        let deleted = |threshold| {
            let name = |write: &ApiWrite| match write {
                ApiWrite::Delete { key, .. } => key.name.clone(),
                other => unreachable!("{other:?}"),
            };
            plan_ended(&pods, threshold).writes.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(deleted(2), ["web-4", "web-3"]);
        assert!(deleted(4).is_empty() && deleted(0).is_empty());
    }

    #[test]
    fn one_plan_deletes_a_bounded_number_of_finished_pods_and_another_follows() {
        let mut ended = pod(1);
        ended.status.phase = "Failed".into();
        let ended = Arc::new(ended);
        let pods = vec![ended; 702];
        for (threshold, deleted, pause) in
            [(1, 500, Some(PAUSE)), (202, 500, None), (203, 499, None)]
        {
            let plan = plan_ended(&pods, threshold);
            assert_eq!((plan.writes.len(), plan.requeue_after), (deleted, pause), "{threshold}");
        }
    }
}
