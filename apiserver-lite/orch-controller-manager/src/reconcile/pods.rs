//! Pods of deleted, tainted and silent nodes: reads what the plans of podgc and nodelifecycle need.

use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_clock::now;
use apiserver_controllers::addresses::pod_reference;
use apiserver_controllers::disruption_target::{self, Disruption};
use apiserver_controllers::pod_gc::{self, PodNode, QUARANTINE};
use apiserver_controllers::taint_manager::{self, Eviction, TaintAge};
use apiserver_controllers::{Plan, node_lifecycle};
use proto_api::core::v1::{Node, ObjectReference, Pod, Taint};
use proto_api::{ObjectKey, Time};

use super::{ReconcileError, Reconciler, lock};
use crate::keys::ReconcileKey;

/// How long a missing node is remembered at least. Users can name any node in a pod, so that entries must expire.
pub(super) const VANISHED: Duration = Duration::from_secs(3600);

/// A pod whose eviction is scheduled, and when it was first seen with the evicting taints that its node has.
pub(super) struct TaintedPod {
    pod: ObjectReference,
    taints: Vec<Taint>,
    at: Instant,
    wall: Time,
}

impl TaintedPod {
    fn new(pod: &Pod, node: &Node) -> Self {
        let taints = taint_manager::evicting_taints(node).cloned().collect();
        Self { pod: pod_reference(pod), taints, at: Instant::now(), wall: now() }
    }
}

impl Reconciler {
    /// Deletes a pod that no kubelet will remove.
    pub(super) async fn collect_pod(
        &self,
        reconcile_key: &ReconcileKey,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ReconcileError> {
        let Some(pod) = self.informers.pods.get(key) else { return Ok(None) };
        let name = &pod.spec.node_name;
        let found = self.informers.nodes.get(&ObjectKey::new("", name));
        let node = match &found {
            _ if name.is_empty() => PodNode::Unscheduled,
            Some(node) => {
                lock(&self.state.vanished).remove(name);
                PodNode::Found(node)
            }
            None => match self.missing_since(name) {
                missing if missing < QUARANTINE => PodNode::Missing(missing),
                // The cache may be stale, and a deletion cannot be undone: read the node from the server.
                _ if self
                    .accounts
                    .of_controller(reconcile_key.controller())
                    .all::<Node>()
                    .find(name)
                    .await?
                    .is_some() =>
                {
                    lock(&self.state.vanished).remove(name);
                    PodNode::Missing(Duration::ZERO)
                }
                _ => PodNode::Absent,
            },
        };
        let plan = pod_gc::plan(&pod, node, self.settings.out_of_service);
        let plan =
            self.add_disruption_targets(plan, std::slice::from_ref(&pod), pod_gc::disruption(node));
        self.apply(reconcile_key, plan).await
    }

    /// With the feature gate the pods that a plan deletes say why before that.
    pub(super) fn add_disruption_targets(
        &self,
        plan: Plan,
        pods: &[Arc<Pod>],
        why: Disruption,
    ) -> Plan {
        match self.settings.adds_disruption_targets {
            true => disruption_target::add_to_deletions(plan, pods, why, now()),
            false => plan,
        }
    }

    pub(super) fn plan_pod_readiness(&self, key: &ObjectKey) -> Plan {
        let Some((pod, node)) = self.pod_on_node(key) else { return Plan::default() };
        node_lifecycle::plan_pod(&pod, &node, now())
    }

    /// Remembers when the pod was first seen with these taints until its toleration ends, or the timeout.
    pub(super) fn plan_taint_eviction(&self, key: &ObjectKey) -> Plan {
        let timeout = self.settings.eviction_timeout;
        let mut tainted = lock(&self.state.tainted);
        let before = tainted.remove(key);
        let Some((pod, node)) = self.pod_on_node(key) else {
            let is_cancelled = timeout.is_none() && self.informers.pods.get(key).is_none();
            let cancelled = before.filter(|_| is_cancelled).map(|before| before.pod);
            let reports = cancelled.map(taint_manager::cancellation).into_iter().collect();
            return Plan { reports, ..Plan::default() };
        };
        let latest = TaintedPod::new(&pod, &node);
        let before = before.filter(|before| before.pod.uid == latest.pod.uid);
        let last = if before.is_some() { Eviction::Scheduled } else { Eviction::None };
        let seen = before.filter(|before| before.taints == latest.taints).unwrap_or(latest);
        let clocks = TaintAge { first: seen.wall, elapsed: seen.at.elapsed() };
        let names = self.informers.names;
        let plan = taint_manager::plan_eviction(names, &pod, &node, clocks, last, timeout);
        if plan.requeue_after.is_some() {
            tainted.insert(key.clone(), seen);
        }
        self.add_disruption_targets(plan, &[pod], taint_manager::disruption(timeout))
    }

    fn pod_on_node(&self, key: &ObjectKey) -> Option<(Arc<Pod>, Arc<Node>)> {
        let pod = self.informers.pods.get(key)?;
        let node = self.informers.nodes.get(&ObjectKey::new("", &pod.spec.node_name))?;
        Some((pod, node))
    }

    fn missing_since(&self, node: &str) -> Duration {
        let now = Instant::now();
        let mut vanished = lock(&self.state.vanished);
        if let Some((since, ())) = vanished.get_mut(&node.to_owned()) {
            return now.saturating_duration_since(since);
        }
        vanished.insert(node.to_owned(), (), now);
        Duration::ZERO
    }
}
