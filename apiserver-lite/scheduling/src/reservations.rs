//! Reservations: nodes kept for pods whose volumes are not bound yet. They count like pods on their nodes, until those are bound or go elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proto_api::ObjectKey;

use crate::nodes::NodeLoad;
use crate::pod_info::{PodInfo, PodPhase};

/// Time after which a pod whose volumes are still unbound gets an event; it stays reserved.
const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// The reservations of all pods, by uid.
#[derive(Debug, Default)]
pub struct Reservations {
    by_uid: BTreeMap<String, NodeReservation>,
    /// Whether one has ended, and its pod is not on the node, since it was asked last.
    has_freed: bool,
}

#[derive(Debug)]
struct NodeReservation {
    /// The pod, with the reserved node.
    pod: Arc<PodInfo>,
    /// Start of the current [`BIND_TIMEOUT`].
    since: Instant,
    /// The claims to which the node was written, with their versions before.
    claims: BTreeMap<ObjectKey, String>,
}

/// What to do about a claim that names no node, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelectedNodeWrite {
    /// The selected node is written.
    Due,
    /// It was written; the cache does not show it yet.
    Written,
    /// It was written and has been removed, as provisioners do that have no room there: a node has to be selected again.
    Refused,
}

impl Reservations {
    /// Whether the pod has one.
    pub fn contains(&self, pod: &PodInfo) -> bool {
        self.by_uid.contains_key(&pod.uid)
    }

    /// Ends those whose pods do not wait any more. `find` gives the pod that the cache shows.
    pub fn retain_pending(&mut self, find: impl Fn(&ObjectKey) -> Option<Arc<PodInfo>>) {
        let mut has_freed = false;
        self.by_uid.retain(|uid, NodeReservation { pod: reserved, .. }| {
            let found = find(&reserved.key).filter(|found| found.uid == *uid);
            let is_active = |found: &&Arc<PodInfo>| found.phase == PodPhase::Active;
            let found = found.as_ref().filter(is_active);
            let waits = found.is_some_and(|found| found.node.is_empty());
            has_freed |= !waits && found.is_none_or(|found| found.node != reserved.node);
            waits
        });
        self.has_freed |= has_freed;
    }

    /// Counts them all in the loads.
    pub fn add_to(&self, loads: &mut [NodeLoad]) {
        for NodeReservation { pod, .. } in self.by_uid.values() {
            if let Some(load) = loads.iter_mut().find(|load| load.node.name == pod.node) {
                load.add(pod.clone());
            }
        }
    }

    /// The pod as it is scheduled: without its own reservation in the loads, and with the reserved node preferred as one that is nominated for it.
    pub fn prepare(&self, pod: &Arc<PodInfo>, loads: &mut [NodeLoad]) -> Arc<PodInfo> {
        let Some(NodeReservation { pod: reserved, .. }) = self.by_uid.get(&pod.uid) else {
            return pod.clone();
        };
        let own = loads.iter_mut().find(|load| load.node.name == reserved.node);
        own.into_iter().for_each(|load| *load = load.without(|other| other.uid == pod.uid));
        Arc::new(PodInfo { nominated: reserved.node.clone(), ..(**pod).clone() })
    }

    /// Reserves the node of a pod, which was written to these claims, whose versions before are given. True if its volumes have been unbound for too
    /// long; then the time begins again.
    pub fn reserve(
        &mut self,
        pod: Arc<PodInfo>,
        written: BTreeMap<ObjectKey, String>,
        now: Instant,
    ) -> bool {
        let before = self.by_uid.get(&pod.uid);
        self.has_freed |= before.is_some_and(|before| before.pod.node != pod.node);
        let since = before.map_or(now, |before| before.since);
        let timed_out = now.saturating_duration_since(since) >= BIND_TIMEOUT;
        let since = if timed_out { now } else { since };
        let before = self.by_uid.remove(&pod.uid).filter(|before| before.pod.node == pod.node);
        let mut claims = before.map(|before| before.claims).unwrap_or_default();
        claims.extend(written);
        self.by_uid.insert(pod.uid.clone(), NodeReservation { pod, since, claims });
        timed_out
    }

    /// Whether the pod's node is to be written to a claim that the cache shows in this version without it.
    pub fn write_to(
        &self,
        pod: &PodInfo,
        node: &str,
        claim: &ObjectKey,
        version: &str,
    ) -> SelectedNodeWrite {
        let reservation = self.by_uid.get(&pod.uid).filter(|it| it.pod.node == node);
        match reservation.and_then(|it| it.claims.get(claim)) {
            None => SelectedNodeWrite::Due,
            Some(before) if before == version => SelectedNodeWrite::Written,
            Some(_) => SelectedNodeWrite::Refused,
        }
    }

    /// Ends the reservation of a pod, which is bound to this node now; empty for none.
    pub fn end(&mut self, pod: &PodInfo, bound: &str) {
        let ended = self.by_uid.remove(&pod.uid);
        self.has_freed |= ended.is_some_and(|ended| ended.pod.node != bound);
    }

    /// Whether one has ended without its pod on the node since the last call: others may fit there.
    pub fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.has_freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{names, node, pod, profile};
    use crate::nominations::NominatedLoads;
    use crate::pod_affinity::NamespaceLabels;
    use crate::select_node::{NodeView, SelectionRules, StorageView, select_node};
    use crate::selected_counts::SelectedCounts;
    use crate::volumes::{BindingAnnotations, StorageSnapshot};

    fn loads() -> Vec<NodeLoad> {
        ["n0", "n1"].map(|name| NodeLoad::empty(Arc::new(node(name)))).into()
    }

    fn on(node: &str, pod: &Arc<PodInfo>) -> Arc<PodInfo> {
        Arc::new(PodInfo { node: node.into(), ..(**pod).clone() })
    }

    /// The node that is selected for a pod; none is feasible if it is empty.
    fn select(pod: &PodInfo, loads: &mut [NodeLoad]) -> String {
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let view = StorageView { storage: &storage, annotations: &annotations };
        let (namespaces, profile) = (NamespaceLabels::new(), profile());
        let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
        let (mut nominated, mut selected) = (NominatedLoads::default(), SelectedCounts::default());
        let nodes = NodeView { loads, nominated: &mut nominated, selected: &mut selected };
        let choice = select_node(pod, nodes, rules, view);
        choice.map_or_else(|_| String::new(), |choice| loads[choice.nth].node.name.clone())
    }

    #[test]
    fn reservations_count_for_one_another_and_each_pod_keeps_its_node() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Arc::new(pod(name, 3000, 0)));
        let mut reservations = Reservations::default();
        reservations.reserve(on("n1", &a), BTreeMap::new(), Instant::now());
        reservations.reserve(on("n0", &b), BTreeMap::new(), Instant::now());
        for _ in 0..2 {
            let mut loads = loads();
            reservations.add_to(&mut loads);
            assert_eq!(select(&reservations.prepare(&c, &mut loads), &mut loads), "");
            // Without the other one both fit on n0.
            let prepared = reservations.prepare(&a, &mut loads);
            assert_eq!(select(&prepared, &mut loads), "n1");
            loads[1].add(on("n1", &a));
            let prepared = reservations.prepare(&b, &mut loads);
            assert_eq!(select(&prepared, &mut loads), "n0");
            assert!(loads[0].pods.is_empty(), "its own does not count against it");
        }
        // The better node is not preferred to the reserved one.
        let small = Arc::new(pod("small", 100, 0));
        reservations.reserve(on("n1", &small), BTreeMap::new(), Instant::now());
        let mut loads = loads();
        loads[1].add(pod("x", 3500, 0));
        assert_eq!(select(&small, &mut loads), "n0");
        assert_eq!(select(&reservations.prepare(&small, &mut loads), &mut loads), "n1");
    }

    #[test]
    fn a_reservation_that_ends_elsewhere_frees_its_node() {
        let waiting = Arc::new(pod("p", 1, 0));
        let terminating = PodInfo { phase: PodPhase::Terminating, ..(*waiting).clone() };
        let another = PodInfo { uid: "another".into(), ..(*waiting).clone() };
        for (shown, stays, frees) in [
            (Some(waiting.clone()), true, false),
            (Some(on("n0", &waiting)), false, false),
            (Some(on("n1", &waiting)), false, true),
            (Some(Arc::new(terminating)), false, true),
            (Some(Arc::new(another)), false, true),
            (None, false, true),
        ] {
            let mut reservations = Reservations::default();
            reservations.reserve(on("n0", &waiting), BTreeMap::new(), Instant::now());
            reservations.retain_pending(|_| shown.clone());
            let found = (reservations.contains(&waiting), reservations.take_freed());
            assert_eq!(found, (stays, frees), "{shown:?}");
            assert!(!reservations.take_freed(), "once");
        }
        let mut reservations = Reservations::default();
        for (bound, frees) in [("n0", false), ("n1", true), ("", true)] {
            reservations.end(&waiting, bound);
            assert!(!reservations.take_freed(), "there is none");
            reservations.reserve(on("n0", &waiting), BTreeMap::new(), Instant::now());
            reservations.end(&waiting, bound);
            assert_eq!(reservations.take_freed(), frees, "{bound}");
        }
        reservations.reserve(on("n0", &waiting), BTreeMap::new(), Instant::now());
        reservations.reserve(on("n0", &waiting), BTreeMap::new(), Instant::now());
        assert!(!reservations.take_freed());
        reservations.reserve(on("n1", &waiting), BTreeMap::new(), Instant::now());
        assert!(reservations.take_freed(), "it waits for another node");
    }

    #[test]
    fn volumes_that_are_not_bound_in_time_are_reported_at_intervals() {
        let (start, mut reservations) = (Instant::now(), Reservations::default());
        let pod = on("n0", &Arc::new(pod("p", 1, 0)));
        let mut at = |secs| {
            reservations.reserve(pod.clone(), BTreeMap::new(), start + Duration::from_secs(secs))
        };
        let found = [0, 599, 600, 601, 1199, 1200].map(&mut at);
        assert_eq!(found, [false, false, true, false, false, true]);
    }

    #[test]
    fn a_node_that_was_removed_from_a_claim_is_not_written_again() {
        let waiting = Arc::new(pod("a", 1000, 0));
        let claim = ObjectKey::new("ns", "c");
        let mut reservations = Reservations::default();
        let write = |of: &Reservations, node, version| of.write_to(&waiting, node, &claim, version);
        assert_eq!(write(&reservations, "n0", "1"), SelectedNodeWrite::Due);
        let written = BTreeMap::from([(claim.clone(), "1".to_owned())]);
        reservations.reserve(on("n0", &waiting), written, Instant::now());
        assert_eq!(write(&reservations, "n0", "1"), SelectedNodeWrite::Written);
        assert_eq!(write(&reservations, "n1", "1"), SelectedNodeWrite::Due, "another node");
        // Reserved again, when the claim needs no write.
        reservations.reserve(on("n0", &waiting), BTreeMap::new(), Instant::now());
        assert_eq!(write(&reservations, "n0", "3"), SelectedNodeWrite::Refused);
        reservations.end(&waiting, "");
        assert_eq!(write(&reservations, "n0", "3"), SelectedNodeWrite::Due);
    }
}
