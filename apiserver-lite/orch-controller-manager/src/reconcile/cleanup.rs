//! Whether a pod may stay: where its node is has to be found out first.

use std::time::{Duration, Instant};

use proto_api::Time;
use proto_api::core::v1::{Node, Pod, Taint};
use proto_client::ObjectKey;

use super::{ReconcileError, Reconciler, lock, now};
use crate::controllers::Plan;
use crate::controllers::pod_cleanup::{self, Clocks, Place, QUARANTINE};
use crate::keys::ReconcileKey;

/// How long it is remembered at least that a node is not there. Pods name any nodes they like.
pub(super) const VANISHED: Duration = Duration::from_secs(3600);

/// Since when a pod's taints are looked at.
pub(super) struct Tainted {
    uid: String,
    taints: Vec<Taint>,
    at: Instant,
    wall: Time,
}

impl Tainted {
    fn of(pod: &Pod, node: &Node) -> Self {
        let drives = |taint: &&Taint| taint.effect == "NoExecute";
        let taints = node.spec.taints.iter().filter(drives).cloned().collect();
        Self { uid: pod.metadata.uid.clone(), taints, at: Instant::now(), wall: now() }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.uid == other.uid && self.taints == other.taints
    }
}

impl Reconciler {
    /// Removes a pod that nobody else will, or that may not stay.
    pub(super) async fn clean_up(
        &self,
        task: &ReconcileKey,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(pod) = self.informers.pods.get(key) else {
            lock(&self.memory.tainted).remove(key);
            return Ok(None);
        };
        let name = &pod.spec.node_name;
        let node = self.informers.nodes.get(&ObjectKey::new("", name));
        let place = match &node {
            _ if name.is_empty() => Place::Unscheduled,
            Some(node) => {
                lock(&self.memory.vanished).remove(name);
                let plan = self.plan_on_node(key, &pod, node);
                return self.apply(task, plan).await;
            }
            None => match self.missing_since(name) {
                missing if missing < QUARANTINE => Place::Missing(missing),
                // The map may be behind for as long as it likes: what is done now cannot be undone.
                _ if self.client.all::<Node>().find(name).await?.is_some() => {
                    lock(&self.memory.vanished).remove(name);
                    Place::Missing(Duration::ZERO)
                }
                _ => Place::Absent,
            },
        };
        self.apply(task, pod_cleanup::plan(&pod, place, Clocks::at(now()))).await
    }

    /// What is remembered is how long the pod has been looked at with these taints, as long as it has to be looked at again.
    fn plan_on_node(&self, key: &ObjectKey, pod: &Pod, node: &Node) -> Plan {
        let mut tainted = lock(&self.memory.tainted);
        let latest = Tainted::of(pod, node);
        let seen = match tainted.remove(key) {
            Some(before) if before.is_as(&latest) => before,
            _ => latest,
        };
        let clocks = Clocks { wall: now(), first: seen.wall, elapsed: seen.at.elapsed() };
        let plan = pod_cleanup::plan(pod, Place::On(node), clocks);
        if plan.again_in.is_some() {
            tainted.insert(key.clone(), seen);
        }
        plan
    }

    fn missing_since(&self, node: &str) -> Duration {
        let now = Instant::now();
        let mut vanished = lock(&self.memory.vanished);
        if let Some((since, ())) = vanished.get_mut(&node.to_owned()) {
            return now.saturating_duration_since(since);
        }
        vanished.insert(node.to_owned(), (), now);
        Duration::ZERO
    }
}
