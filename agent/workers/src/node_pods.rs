//! The Node and its pods as their tasks know them: snapshots, reservations of admitted pods, and
//! decisions of the node to end pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use agent_node::admission::NodeLoad;
use agent_pod::desired::{Disruption, PodSource};
use proto_api::Quantity;
use proto_api::core::v1::{Node, Pod, PodStatus};
use tokio::sync::Notify;

/// What is known of the node's pods.
#[derive(Debug, Default)]
pub struct NodePods {
    /// The latest known Node object.
    pub node: RwLock<Node>,
    /// Snapshots of the node's pods, published by their tasks, by uid.
    pub snapshots: Mutex<BTreeMap<String, PodSnapshot>>,
    decisions: PodDecisions,
}

/// Decisions of the node to end pods, by uid. A decision wakes the pod's task, and holds until
/// nothing of the pod is left.
#[derive(Debug, Default)]
struct PodDecisions(Mutex<BTreeMap<String, PodDecision>>);

#[derive(Debug, Default)]
struct PodDecision {
    verdict: Option<Disruption>,
    /// The pod from its admission until its task publishes a snapshot that counts it.
    reserved: Option<Arc<Pod>>,
    poke: Arc<Notify>,
}

impl NodePods {
    /// The pods of a node that is not registered yet.
    pub fn new(node: Node) -> Self {
        Self { node: RwLock::new(node), ..Self::default() }
    }

    /// The Node, and the resources that pods other than `uid` hold of it.
    pub fn node_and_load(&self, uid: &str) -> (Node, NodeLoad) {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        let mut load = NodeLoad::default();
        let pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let others = pods
            .iter()
            .filter(|(other, known)| *other != uid && known.holds_resources == HoldsResources::Yes);
        others.for_each(|(_, known)| load.add(&known.pod));
        let is_counted = |uid: &str| {
            pods.get(uid).is_some_and(|known| known.holds_resources == HoldsResources::Yes)
        };
        for (other, decision) in &*self.decisions.lock() {
            if let Some(pod) = decision.reserved.as_ref().filter(|_| other != uid)
                && !is_counted(other)
            {
                load.add(pod);
            }
        }
        (node, load)
    }

    /// Releases the reservation of a pod that was refused after all.
    pub fn release_reservation(&self, uid: &str) {
        if let Some(decision) = self.decisions.lock().get_mut(uid) {
            decision.reserved = None;
        }
    }

    /// Reserves resources for an admitted pod until its task publishes a snapshot.
    pub fn reserve(&self, pod: &Arc<Pod>) {
        let mut decisions = self.decisions.lock();
        decisions.entry(pod.metadata.uid.clone()).or_default().reserved = Some(pod.clone());
    }

    /// The handle that wakes the pod's task.
    pub fn waker(&self, uid: &str) -> Arc<Notify> {
        self.decisions.lock().entry(uid.to_owned()).or_default().poke.clone()
    }

    /// The node's decision to end a pod, if any.
    pub fn decision(&self, uid: &str) -> Option<Disruption> {
        self.decisions.lock().get(uid)?.verdict.clone()
    }

    /// Ends a pod. The first decision stays; a later one can only shorten its grace period.
    pub fn end_pod(&self, uid: &str, verdict: Disruption) {
        let mut decisions = self.decisions.lock();
        let decision = decisions.entry(uid.to_owned()).or_default();
        match &mut decision.verdict {
            None => decision.verdict = Some(verdict),
            Some(known) => {
                known.grace = match (known.grace, verdict.grace) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        decision.poke.notify_one();
    }

    /// Uids of pods that have a task.
    pub fn known_uids(&self) -> BTreeSet<String> {
        self.decisions.lock().keys().cloned().collect()
    }

    /// Snapshots of pods that hold resources of the node.
    pub fn current_pods(&self) -> Vec<PodSnapshot> {
        let pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        pods.values()
            .filter(|known| known.holds_resources == HoldsResources::Yes)
            .cloned()
            .collect()
    }

    /// Waits until none of these pods holds resources, or until `deadline`. Returns whether they
    /// all ended. Cancel safe.
    pub async fn wait_until_ended(&self, uids: &[String], deadline: tokio::time::Instant) -> bool {
        let over = || {
            let pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
            uids.iter().all(|uid| {
                pods.get(uid).is_none_or(|known| known.holds_resources == HoldsResources::No)
            })
        };
        while !over() {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(END_POLL).await;
        }
        true
    }

    /// The node's pods with the status that the agent computed.
    pub fn shown_pods(&self) -> Vec<Pod> {
        let pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let shown =
            |known: &PodSnapshot| Pod { status: (*known.status).clone(), ..(*known.pod).clone() };
        pods.values().map(shown).collect()
    }

    /// The node's allocatable resources.
    pub fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner);
        node.status.allocatable.clone()
    }

    /// Stores a pod's snapshot; one that holds resources takes the place of the pod's reservation.
    pub fn insert(&self, known: PodSnapshot) {
        let mut pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        if known.holds_resources == HoldsResources::Yes
            && let Some(decision) = self.decisions.lock().get_mut(&known.pod.metadata.uid)
        {
            decision.reserved = None;
        }
        pods.insert(known.pod.metadata.uid.clone(), known);
    }

    /// Drops what is known of a pod whose task has ended.
    pub fn remove(&self, uid: &str) {
        self.decisions.lock().remove(uid);
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    /// Images of pods that hold resources, as named in their specs.
    pub fn image_names(&self) -> Vec<String> {
        let pods = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let current = pods.values().filter(|known| known.holds_resources == HoldsResources::Yes);
        let images = current.flat_map(|known| {
            let spec = &known.pod.spec;
            let own = spec.init_containers.iter().chain(&spec.containers).map(|c| &c.image);
            let ephemeral = spec.ephemeral_containers.iter();
            own.chain(ephemeral.map(|c| &c.ephemeral_container_common.image))
        });
        images.cloned().collect()
    }

    /// Wakes the tasks of all pods.
    pub fn wake_all(&self) {
        self.decisions.lock().values().for_each(|decision| decision.poke.notify_one());
    }
}

/// Poll interval while waiting for pods to end.
const END_POLL: Duration = Duration::from_millis(50);

impl PodDecisions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PodDecision>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod as last published by its task.
#[derive(Clone, Debug)]
pub struct PodSnapshot {
    /// The pod as its source has it.
    pub pod: Arc<Pod>,
    /// Its status as the agent computed it.
    pub status: Arc<PodStatus>,
    /// Whether it holds resources of the node.
    pub holds_resources: HoldsResources,
    /// Where it comes from.
    pub source: PodSource,
}

/// Whether a pod holds resources of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldsResources {
    /// Admitted and not terminated.
    Yes,
    /// Refused or terminated.
    No,
}
