//! Nominated pods: they wait on a node for the end of others, and count for pods that are no more important.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;

/// Nodes for which pods end, by the uid of the pod that waits for it, until the watch shows the nomination.
#[derive(Debug, Default)]
pub struct Nominations(BTreeMap<String, String>);

impl Nominations {
    /// The node nominated for the pod; empty for none.
    pub fn node_of<'a>(&'a self, pod: &'a PodInfo) -> &'a str {
        self.0.get(&pod.uid).unwrap_or(&pod.nominated)
    }

    /// Notes a nomination that is written now; empty for none.
    pub fn set(&mut self, pod: &PodInfo, node: &str) {
        self.0.insert(pod.uid.clone(), node.to_owned());
    }

    /// Forgets what the cache shows, and the pods that do not wait any more. `pending` are those without a node.
    pub fn forget_shown(&mut self, pending: &[Arc<PodInfo>]) {
        if self.0.is_empty() {
            return;
        }
        let shown: BTreeMap<&str, &str> =
            pending.iter().map(|pod| (pod.uid.as_str(), pod.nominated.as_str())).collect();
        self.0.retain(|uid, node| shown.get(uid.as_str()).is_some_and(|shown| *shown != *node));
    }
}

/// The nodes for which pods are nominated, with those pods. They take the place of the nodes without them, and give it back.
#[derive(Debug, Default)]
pub struct NominatedLoads {
    /// By the index of the node: its load with the pods, or, while that is in place, without.
    others: Vec<(usize, NodeLoad)>,
    are_in_place: bool,
}

impl NominatedLoads {
    /// With the pods in `nominated` that are at least as important as `pod`.
    pub fn new(pod: &PodInfo, loads: &[NodeLoad], nominated: &[Arc<PodInfo>]) -> Self {
        let mut others = BTreeMap::new();
        let counts = |other: &&Arc<PodInfo>| other.priority >= pod.priority && other.uid != pod.uid;
        for other in nominated.iter().filter(counts) {
            let mut all = loads.iter().enumerate();
            if let Some((nth, load)) = all.find(|(_, load)| load.node.name == other.node) {
                others.entry(nth).or_insert_with(|| load.clone()).add(other.clone());
            }
        }
        Self { others: others.into_iter().collect(), are_in_place: false }
    }

    /// Whether no node has such pods.
    pub fn is_empty(&self) -> bool {
        self.others.is_empty()
    }

    /// Puts the loads with the nominated pods into their places in `loads`.
    pub fn put(&mut self, loads: &mut [NodeLoad]) {
        if !self.are_in_place {
            self.swap(loads);
        }
    }

    /// Puts the loads without those pods back.
    pub fn remove_loads(&mut self, loads: &mut [NodeLoad]) {
        if self.are_in_place {
            self.swap(loads);
        }
    }

    fn swap(&mut self, loads: &mut [NodeLoad]) {
        self.are_in_place = !self.are_in_place;
        for (nth, other) in &mut self.others {
            if let Some(load) = loads.get_mut(*nth) {
                std::mem::swap(load, other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{node, pod};

    #[test]
    fn nominated_pods_count_for_pods_that_are_no_more_important() {
        let mut load = NodeLoad::empty(Arc::new(node("n0")));
        load.add(pod("p0", 3000, 0));
        let before = vec![NodeLoad::empty(Arc::new(node("m"))), load];
        let mut loads = before.clone();
        let nominated =
            vec![Arc::new(PodInfo { node: "n0".into(), priority: 5, ..pod("n", 1000, 0) })];
        for (priority, cpu) in [(4, 4000), (5, 4000), (6, 3000)] {
            let pod = PodInfo { priority, ..pod("p", 1, 0) };
            let mut with = NominatedLoads::new(&pod, &loads, &nominated);
            assert_eq!(with.is_empty(), cpu == 3000);
            assert!(with.others.len() <= 1, "no other node is copied");
            with.put(&mut loads);
            with.put(&mut loads);
            assert_eq!(loads[1].requested["cpu"], cpu, "{priority}");
            with.remove_loads(&mut loads);
            with.remove_loads(&mut loads);
            assert_eq!(format!("{loads:?}"), format!("{before:?}"));
        }
        let itself = NominatedLoads::new(&nominated[0], &loads, &nominated);
        assert!(itself.is_empty(), "not beside itself");
    }
}
