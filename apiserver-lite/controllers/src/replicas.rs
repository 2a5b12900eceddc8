//! Scaling of pods, common to replica sets and replication controllers.

use std::collections::BTreeMap;
use std::time::Duration;

use proto_api::apps::v1::ReplicaSet;
use proto_api::core::v1::{ObjectReference, Pod, PodTemplateSpec};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::{Kind, Message, ObjectKey, Time};

use crate::addresses::{has_ended, is_terminating};
use crate::api_writes::{ApiWrite, ObjectKind};
use crate::burst::BurstSize;
use crate::owners::{adopt, controlled_by, release};
use crate::write_events::{ReplicaOperation, WriteEvent};
use crate::{Adopter, Plan};

/// Maximum number of pods created or deleted by one plan.
const BURST_MAX: usize = 500;

/// The desired pods of an object.
pub struct DesiredPods<'a> {
    /// The object's metadata; it becomes the controller of its pods.
    pub metadata: &'a ObjectMeta,
    /// The object that events refer to.
    pub about: ObjectReference,
    /// The object's API version.
    pub api_version: String,
    /// The object's kind.
    pub kind: &'static str,
    /// Selects the pods to adopt.
    pub selector: Selector,
    /// The number of pods; one if not set.
    pub replicas: Option<i32>,
    /// Time for which an available pod must have been ready.
    pub min_ready_seconds: i32,
    /// The pod template.
    pub template: &'a PodTemplateSpec,
    /// The pods of related objects, by node.
    pub beside: &'a CountsByNode,
}

/// How many active pods nodes have.
pub type CountsByNode = BTreeMap<String, usize>;

/// Counts the active pods of each node.
pub fn count_by_node<P: AsRef<Pod>>(pods: &[P]) -> CountsByNode {
    let mut on_node = CountsByNode::new();
    for pod in pods.iter().map(AsRef::as_ref).filter(|pod| is_active(pod)) {
        let count = on_node.entry(pod.spec.node_name.clone()).or_default();
        *count = count.saturating_add(1);
    }
    on_node
}

pub(crate) fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && !is_terminating(pod)
}

/// Numbers of a controller's pods by state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaCounts {
    /// Pods that are neither finished nor terminating.
    pub replicas: i32,
    /// Pods with the labels of the template.
    pub labelled: i32,
    /// Ready pods.
    pub ready: i32,
    /// Available pods.
    pub available: i32,
}

/// Plans creations and deletions, and counts. `pods` are those of the object, and all that it may adopt.
pub fn plan<P: AsRef<Pod>>(
    names: &Names,
    asked: &DesiredPods<'_>,
    pods: &[P],
    now: Time,
) -> (Plan, ReplicaCounts) {
    let mut plan = Plan::default();
    let mut active: Vec<&Pod> = Vec::new();
    for pod in pods.iter().map(AsRef::as_ref).filter(|pod| is_active(pod)) {
        let controller = pod.metadata.owner_references.iter().find(|o| o.controller == Some(true));
        match controller {
            Some(owner) if owner.uid == asked.metadata.uid => {
                match asked.selector.matches(&pod.metadata.labels) || asked.is_deleting() {
                    true => active.push(pod),
                    false => {
                        plan.writes.push(release(ObjectKind::Pod, &pod.metadata, &owner.uid));
                    }
                }
            }
            None if asked.selector.matches(&pod.metadata.labels) && !asked.is_deleting() => {
                plan.writes.push(adopt(ObjectKind::Pod, &pod.metadata, asked.reference()));
                plan.adopter = Some(asked.adopter());
                active.push(pod);
            }
            _ => {}
        }
    }
    if !asked.is_deleting() {
        for (write, operation) in asked.scale(names, &active, now) {
            plan.push_with_event(write, WriteEvent { about: asked.about.clone(), operation });
        }
    }
    let (counts, due) = asked.count(&active, now);
    if let Some(due) = due {
        plan.requeue_in(due);
    }
    (plan, counts)
}

impl DesiredPods<'_> {
    fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn scale(
        &self,
        names: &Names,
        active: &[&Pod],
        now: Time,
    ) -> Vec<(ApiWrite, ReplicaOperation)> {
        let wanted = usize::try_from(self.replicas.unwrap_or(1)).unwrap_or(0);
        if let Some(missing) = wanted.checked_sub(active.len()) {
            // Pods that the selector does not match would be created without end.
            let selects = self.selector.matches(&self.template.metadata.labels);
            let missing = if selects { missing.min(BURST_MAX) } else { 0 };
            let mut burst = BurstSize::default();
            let pods = std::iter::repeat_with(|| self.new_pod()).take(missing);
            let pods = pods.take_while(|pod| burst.takes(pod.encoded_len()));
            let create = |pod: Pod| (ApiWrite::Create(pod.into()), ReplicaOperation::Create);
            return pods.map(create).collect();
        }
        let mut ranked = active.to_vec();
        let beside = self.beside.iter().map(|(node, count)| (node.as_str(), *count));
        let mut on_node: BTreeMap<&str, usize> = beside.collect();
        for pod in active {
            let count = on_node.entry(&pod.spec.node_name).or_default();
            *count = count.saturating_add(1);
        }
        let beside = |pod: &Pod| on_node.get(pod.spec.node_name.as_str()).copied().unwrap_or(0);
        ranked.sort_by_cached_key(|pod| value(names, pod, beside(pod), now));
        let excess = active.len().saturating_sub(wanted).min(BURST_MAX);
        ranked.into_iter().take(excess).map(|pod| (delete(pod), ReplicaOperation::Delete)).collect()
    }

    fn adopter(&self) -> Adopter {
        let is_set = self.kind == ReplicaSet::KIND;
        let kind = if is_set { ObjectKind::ReplicaSet } else { ObjectKind::ReplicationController };
        Adopter::new(kind, self.metadata)
    }

    fn reference(&self) -> OwnerReference {
        controlled_by(self.api_version.clone(), self.kind, self.metadata)
    }

    fn new_pod(&self) -> Pod {
        let template = self.template;
        Pod {
            metadata: ObjectMeta {
                generate_name: format!("{}-", self.metadata.name),
                namespace: self.metadata.namespace.clone(),
                labels: template.metadata.labels.clone(),
                annotations: template.metadata.annotations.clone(),
                finalizers: template.metadata.finalizers.clone(),
                owner_references: vec![self.reference()],
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            ..Pod::default()
        }
    }

    /// The counts, and the time until the next ready pod is available.
    fn count(&self, active: &[&Pod], now: Time) -> (ReplicaCounts, Option<Duration>) {
        let count = |len: usize| i32::try_from(len).unwrap_or(i32::MAX);
        let template = Selector::from_map(&self.template.metadata.labels);
        let now = now.unix().unwrap_or(0);
        let (mut ready, mut available, mut due) = (0_i32, 0_i32, None);
        for since in active.iter().filter_map(|pod| ready_since(pod)) {
            ready = ready.saturating_add(1);
            let due_at =
                since.unix().unwrap_or(0).saturating_add(i64::from(self.min_ready_seconds));
            let rest = due_at.saturating_sub(now);
            match u64::try_from(rest) {
                Ok(rest) if rest > 0 && self.min_ready_seconds > 0 => {
                    due = Some(due.map_or(rest, |due: u64| due.min(rest)));
                }
                _ => available = available.saturating_add(1),
            }
        }
        let labelled = active.iter().filter(|pod| template.matches(&pod.metadata.labels)).count();
        let (replicas, labelled) = (count(active.len()), count(labelled));
        (ReplicaCounts { replicas, labelled, ready, available }, due.map(Duration::from_secs))
    }
}

/// The rank of a pod; the lowest is deleted first: unassigned before assigned, pending before running, not ready before ready, low before high
/// deletion cost, on a node with more of them and of related ones before one with fewer (`on_node`, the pod included), ready for a short time before a long
/// one, many restarts before few, young before old. Times that differ by less than a factor of two are about the same (`LogarithmicScaleDown`), and the uid
/// decides: those that an update made last are not all deleted first.
fn value(names: &Names, pod: &Pod, on_node: usize, now: Time) -> impl Ord + use<> {
    let phase = match pod.status.phase.as_str() {
        "Running" => 2,
        "Unknown" => 1,
        _ => 0,
    };
    let cost = pod.metadata.annotations.get(&names.sub_label("controller", "pod-deletion-cost"));
    let cost: i32 = cost.and_then(|cost| cost.parse().ok()).unwrap_or(0);
    let ready = ready_since(pod);
    let restarts = pod.status.container_statuses.iter().map(|status| status.restart_count).max();
    (
        !pod.spec.node_name.is_empty(),
        phase,
        ready.is_some(),
        cost,
        std::cmp::Reverse(on_node),
        ready.and_then(|since| logarithmic_age(since, now)),
        std::cmp::Reverse(restarts.unwrap_or(0)),
        logarithmic_age(pod.metadata.creation_timestamp, now),
        pod.metadata.uid.clone(),
    )
}

/// The binary logarithm of the time since `since`, in nanoseconds; none if it is not set or not in the past.
fn logarithmic_age(since: Time, now: Time) -> Option<u32> {
    let seconds = now.unix()?.saturating_sub(since.unix()?);
    u64::try_from(seconds).ok()?.saturating_mul(1_000_000_000).checked_ilog2()
}

/// The time at which the pod became ready, if it is.
fn ready_since(pod: &Pod) -> Option<Time> {
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True");
    ready.map(|condition| condition.last_transition_time)
}

fn delete(pod: &Pod) -> ApiWrite {
    ApiWrite::Delete {
        kind: ObjectKind::Pod,
        key: ObjectKey::from_metadata(&pod.metadata),
        uid: pod.metadata.uid.clone(),
        grace_secs: None,
    }
}
