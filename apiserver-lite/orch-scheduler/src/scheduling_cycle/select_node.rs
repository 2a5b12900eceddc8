//! The filter and score extension points: selects the best node that a pod fits on.

use proto_daemon::panics::isolate_sync;

use crate::filter::check;
use crate::nodes::NodeLoad;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::PodInfo;
use crate::refusal::{Refusal, summary};
use crate::score::select_best;
use crate::volumes::{BindingAnnotations, ClaimRequirements, StorageSnapshot, VolumeChoice};

/// A node selected for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeChoice {
    /// Index into the loads.
    pub(super) nth: usize,
    /// How claims with delayed binding get their volumes; empty if there are none.
    pub(super) volumes: Vec<VolumeChoice>,
}

/// The storage objects of a cycle, and the annotations to read from them.
#[derive(Clone, Copy)]
pub(super) struct StorageView<'a> {
    pub(super) storage: &'a StorageSnapshot,
    pub(super) annotations: &'a BindingAnnotations,
}

/// Why no node was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SelectError {
    /// No node is feasible, for the reasons of this message to users. The pod waits until something changes.
    NoFeasibleNode(String),
    /// The selection panicked, which users are not told. The pod is tried again after its back-off.
    Panicked,
}

/// Selects the best node for the pod.
///
/// # Errors
/// No node is feasible.
pub(super) fn select_node(
    pod: &PodInfo,
    loads: &[NodeLoad],
    namespaces: &NamespaceLabels,
    storage_view: StorageView<'_>,
) -> Result<NodeChoice, SelectError> {
    let StorageView { storage, annotations } = storage_view;
    let refused_by_all = |refusal: Refusal| {
        let refusals = loads.iter().map(|_| vec![refusal.clone()]);
        SelectError::NoFeasibleNode(summary(loads.len(), refusals))
    };
    let claims = ClaimRequirements::of(pod, storage, annotations).map_err(refused_by_all)?;
    if claims.is_used_by_another(pod, loads) {
        let why = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";
        return Err(refused_by_all(Refusal::Claims(why.to_owned())));
    }
    let inter_pod = InterPodState::of(pod, loads, namespaces);
    let mut feasible: Vec<(NodeChoice, &NodeLoad)> = Vec::new();
    let mut refusals: Vec<Vec<Refusal>> = Vec::new();
    for (nth, load) in loads.iter().enumerate() {
        let checked = check(pod, load).and_then(|()| {
            let volumes = claims.check(pod, load, storage, annotations).map_err(|r| vec![r])?;
            inter_pod.refusal(&load.node).map_or(Ok(volumes), |r| Err(vec![r]))
        });
        match checked {
            Ok(volumes) => feasible.push((NodeChoice { nth, volumes }, load)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    let candidates: Vec<&NodeLoad> = feasible.iter().map(|(_, load)| *load).collect();
    match select_best(pod, &candidates) {
        Some(nth) if nth < feasible.len() => Ok(feasible.swap_remove(nth).0),
        _ => Err(SelectError::NoFeasibleNode(summary(loads.len(), refusals))),
    }
}

/// Selects a node within a panic boundary: a panic fails this pod only, and without a message for users.
pub(super) fn isolate_pod<T>(
    pod: &PodInfo,
    select: impl FnOnce() -> Result<T, SelectError>,
) -> Result<T, SelectError> {
    match isolate_sync(select) {
        Ok(found) => found,
        Err(panicked) => {
            tracing::error!(pod = %pod.key, uid = pod.uid, %panicked, "scheduling the pod panicked; retrying after its back-off");
            Err(SelectError::Panicked)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::amounts::{CPU, MEMORY, PODS};
    use crate::pod_info::examples::{names, node, pod};

    /// Selects a node for a pod without claims.
    fn select(pod: &PodInfo, loads: &[NodeLoad]) -> Result<usize, SelectError> {
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let storage_view = StorageView { storage: &storage, annotations: &annotations };
        let namespaces = NamespaceLabels::new();
        select_node(pod, loads, &namespaces, storage_view).map(|choice| choice.nth)
    }

    fn loads(count: usize) -> Vec<NodeLoad> {
        (0..count).map(|nth| NodeLoad::empty(Arc::new(node(&format!("n{nth}"))))).collect()
    }

    #[test]
    fn the_message_says_why_no_node_is_feasible() {
        let mut loads = loads(2);
        loads[0].add(pod("x", 4000, 0));
        assert_eq!(select(&pod("p", 100, 0), &loads), Ok(1));
        assert_eq!(
            select(&pod("p", 5000, 0), &loads).unwrap_err(),
            SelectError::NoFeasibleNode("0/2 nodes are available: 2 Insufficient cpu.".into())
        );
        assert_eq!(
            select(&pod("p", 1, 0), &[]).unwrap_err(),
            SelectError::NoFeasibleNode("no nodes available to schedule pods".into())
        );
    }

    #[test]
    fn a_pod_whose_handling_panics_fails_alone() {
        let pod = pod("p", 1, 1);
        let hostile = || -> Result<(), SelectError> { panic!("hostile") };
        assert_eq!(isolate_pod(&pod, hostile), Err(SelectError::Panicked));
        assert_eq!(isolate_pod(&pod, || Ok(1)), Ok(1));
        let no = SelectError::NoFeasibleNode("no".into());
        assert_eq!(isolate_pod(&pod, || Err::<(), _>(no.clone())), Err(no));
    }

    proptest! {
        /// Whatever pods request, no node is assigned more than it has.
        #[test]
        fn no_node_is_overcommitted(requests in proptest::collection::vec((0..3000i64, 0..6i64), 1..60)) {
            let mut loads = loads(4);
            for (nth, (cpu, gib)) in requests.into_iter().enumerate() {
                let pod = pod(&nth.to_string(), cpu, gib << 30);
                match select(&pod, &loads) {
                    Ok(nth) => loads[nth].add(pod),
                    Err(_) => prop_assert!(loads.iter().all(|load| check(&pod, load).is_err())),
                }
            }
            for load in loads {
                for resource in [CPU, MEMORY] {
                    let requested = load.requested.get(resource).copied().unwrap_or(0);
                    prop_assert!(requested <= load.node.allocatable[resource]);
                }
                prop_assert!(load.pod_count <= load.node.allocatable[PODS]);
            }
        }
    }
}
