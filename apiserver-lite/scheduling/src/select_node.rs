//! The filter and score extension points: selects the best node that a pod fits on.

use std::collections::{BTreeMap, BTreeSet};

use crate::filter::check;
use crate::nodes::NodeLoad;
use crate::nominations::NominatedLoads;
use crate::pod_affinity::{InterPodState, NamespaceLabels};
use crate::pod_info::PodInfo;
use crate::profile::{Filter, Profile};
use crate::refusal::{Refusal, summary};
use crate::score::{ScoreView, select_best};
use crate::selected_counts::SelectedCounts;
use crate::volumes::{BindingAnnotations, ClaimRequirements, StorageSnapshot, VolumeChoice};

/// A node selected for a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeChoice {
    /// Index into the loads.
    pub nth: usize,
    /// How claims with delayed binding get their volumes; empty if there are none.
    pub volumes: Vec<VolumeChoice>,
}

/// The storage objects of a cycle, and the annotations to read from them.
#[derive(Clone, Copy)]
pub struct StorageView<'a> {
    /// The objects.
    pub storage: &'a StorageSnapshot,
    /// Names of the annotations that bind claims.
    pub annotations: &'a BindingAnnotations,
}

/// Why no node was selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectError {
    /// No node is feasible. The pod waits until something changes.
    NoFeasibleNode(FitError),
    /// The selection panicked inside a boundary of the caller. Events do not mention it; the pod is retried after its back-off.
    Panicked,
}

/// Why each node was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FitError {
    /// In the order of the loads.
    pub refusals: Vec<Vec<Refusal>>,
}

impl FitError {
    /// The message to users.
    pub fn message(&self) -> String {
        summary(self.refusals.len(), self.refusals.clone())
    }
}

/// How a pod is scheduled, and what is known besides nodes and storage.
#[derive(Clone, Copy)]
pub struct SelectionRules<'a> {
    pub profile: &'a Profile,
    pub namespaces: &'a NamespaceLabels,
}

/// Checks nodes for one pod: resources, ports, taints, affinity, topology spread and volumes.
pub struct PodFilters<'a> {
    pod: &'a PodInfo,
    claims: ClaimRequirements,
    rules: SelectionRules<'a>,
    storage_view: StorageView<'a>,
}

/// Why no node is feasible for a pod whose claim another one has for itself.
const TAKEN: &str =
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

/// The volumes with which a pod fits on a node, or why it does not.
type Checked = Result<Vec<VolumeChoice>, Vec<Refusal>>;

impl<'a> PodFilters<'a> {
    /// Reads the pod's claims, and whether they and its constraints are within their bounds.
    ///
    /// # Errors
    /// Why no node is feasible.
    pub fn new(
        pod: &'a PodInfo,
        rules: SelectionRules<'a>,
        storage_view: StorageView<'a>,
    ) -> Result<Self, Refusal> {
        if let Some(excess) = &pod.constraints.excess {
            let (terms, requirements) = (excess.terms, excess.requirements);
            return Err(Refusal::TooManyTerms { terms, requirements });
        }
        if pod.has_excess_claims() {
            return Err(Refusal::TooManyClaims(pod.claim_count));
        }
        let claims =
            ClaimRequirements::from_pod(pod, storage_view.storage, storage_view.annotations)?;
        Ok(Self { pod, claims, rules, storage_view })
    }

    fn inter_pod(&self, loads: &[NodeLoad]) -> InterPodState {
        InterPodState::new(self.pod, loads, self.rules.namespaces, self.rules.profile)
    }

    /// At most how many requirements of selectors and entries of claims [`Self::fits_on`] looks at.
    pub fn cost(&self, loads: &[NodeLoad], depends_on_pods: bool) -> usize {
        let StorageView { storage, annotations } = self.storage_view;
        let claims = self.claims.cost(loads, storage, annotations);
        match depends_on_pods {
            true => claims.saturating_add(InterPodState::cost(self.pod, loads)),
            false => claims,
        }
    }

    /// Whether a claim that only one pod may use is used by another.
    fn is_taken(&self, loads: &[NodeLoad]) -> bool {
        self.rules.profile.asks(Filter::VolumeRestrictions)
            && self.claims.is_used_by_another(self.pod, loads)
    }

    /// Checks every node.
    fn check_all(&self, loads: &[NodeLoad]) -> Vec<Checked> {
        if self.is_taken(loads) {
            return loads.iter().map(|_| Err(vec![Refusal::Claims(TAKEN.to_owned())])).collect();
        }
        let inter_pod = self.inter_pod(loads);
        loads.iter().map(|load| self.check(load, &inter_pod)).collect()
    }

    /// Whether the pod fits on the nth node, the other nodes being as they are in `loads`. `depends_on_pods` says whether affinity, anti-affinity or
    /// spread constraints, of it or of others, can matter.
    ///
    /// # Errors
    /// Why it does not.
    pub fn fits_on(
        &self,
        nth: usize,
        loads: &[NodeLoad],
        depends_on_pods: bool,
    ) -> Result<(), Vec<Refusal>> {
        let Some(load) = loads.get(nth) else { return Err(Vec::new()) };
        // Most loads fail here, without a look at all pods.
        check(self.pod, load, self.rules.profile)?;
        if self.is_taken(loads) {
            return Err(vec![Refusal::Claims(TAKEN.to_owned())]);
        }
        let inter_pod = match depends_on_pods {
            true => self.inter_pod(loads),
            false => InterPodState::default(),
        };
        self.check(load, &inter_pod).map(drop)
    }

    fn check(&self, load: &NodeLoad, inter_pod: &InterPodState) -> Checked {
        let StorageView { storage, annotations } = self.storage_view;
        let profile = self.rules.profile;
        check(self.pod, load, profile)?;
        let volumes = self.claims.check(load, storage, annotations, profile);
        let volumes = volumes.map_err(|refusal| vec![refusal])?;
        inter_pod.refusal(&load.node).map_or(Ok(volumes), |refusal| Err(vec![refusal]))
    }
}

/// The nodes with their pods, and those nodes that differ once nominated pods are on them.
pub struct NodeView<'a> {
    /// Without nominated pods. After a panic they may be with them, until `nominated` takes those back.
    pub loads: &'a mut [NodeLoad],
    /// With the nominated pods of at least the pod's priority.
    pub nominated: &'a mut NominatedLoads,
    /// What earlier pods of the cycle counted.
    pub selected: &'a mut SelectedCounts,
}

/// What an extender made of the feasible nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilteredNodes {
    /// The nodes that stay.
    pub kept: BTreeSet<String>,
    /// Why others do not, by their names.
    pub refused: BTreeMap<String, Refusal>,
}

/// The nodes on which a pod fits, and why it does not on the others; in the order of the loads.
#[derive(Clone, Debug, PartialEq)]
pub struct FeasibleNodes(Vec<Checked>);

impl FeasibleNodes {
    /// The names of the feasible nodes.
    pub fn names<'a>(&self, loads: &'a [NodeLoad]) -> Vec<&'a str> {
        let fitting = self.0.iter().zip(loads).filter(|(checked, _)| checked.is_ok());
        fitting.map(|(_, load)| load.node.name.as_str()).collect()
    }

    /// Leaves those that an extender has kept.
    pub fn keep(&mut self, filtered: &FilteredNodes, loads: &[NodeLoad]) {
        for (checked, load) in self.0.iter_mut().zip(loads) {
            let name = &load.node.name;
            if checked.is_ok() && !filtered.kept.contains(name) {
                *checked = Err(filtered.refused.get(name).into_iter().cloned().collect());
            }
        }
    }
}

/// Selects the best node for the pod. It must fit together with the nominated pods, and without them: they may run elsewhere.
///
/// # Errors
/// No node is feasible.
pub fn select_node(
    pod: &PodInfo,
    mut nodes: NodeView<'_>,
    rules: SelectionRules<'_>,
    storage_view: StorageView<'_>,
) -> Result<NodeChoice, SelectError> {
    let feasible = find_feasible(pod, &mut nodes, rules, storage_view)?;
    select_feasible(pod, nodes, feasible, rules, &BTreeMap::new())
}

/// Checks every node, as [`select_node`] does.
///
/// # Errors
/// No node is feasible, whatever its state.
pub fn find_feasible(
    pod: &PodInfo,
    nodes: &mut NodeView<'_>,
    rules: SelectionRules<'_>,
    storage_view: StorageView<'_>,
) -> Result<FeasibleNodes, SelectError> {
    let NodeView { loads, nominated, .. } = nodes;
    let filters = PodFilters::new(pod, rules, storage_view).map_err(|refusal| {
        let refusals = loads.iter().map(|_| vec![refusal.clone()]).collect();
        SelectError::NoFeasibleNode(FitError { refusals })
    })?;
    let may_be_helped = !nominated.is_empty() && pod.constraints.can_be_helped_by_pods();
    let without = if may_be_helped { filters.check_all(loads) } else { Vec::new() };
    nominated.put(loads);
    let mut checked = filters.check_all(loads);
    nominated.remove_loads(loads);
    for (with, without) in checked.iter_mut().zip(without) {
        if with.is_ok() && without.is_err() {
            *with = without;
        }
    }
    Ok(FeasibleNodes(checked))
}

/// Selects the best of the feasible nodes, but the one for which others ended for the pod if that is among them, as kube-scheduler does. `added` are
/// the points of extenders, by node.
///
/// # Errors
/// There is none.
pub fn select_feasible(
    pod: &PodInfo,
    nodes: NodeView<'_>,
    feasible: FeasibleNodes,
    rules: SelectionRules<'_>,
    added: &BTreeMap<String, i64>,
) -> Result<NodeChoice, SelectError> {
    let NodeView { loads, nominated, selected } = nodes;
    let FeasibleNodes(mut checked) = feasible;
    let fitting = |(nth, checked): (usize, &Checked)| checked.is_ok().then_some(nth);
    let feasible: Vec<usize> = checked.iter().enumerate().filter_map(fitting).collect();
    let is_own = |nth: &usize| loads.get(*nth).is_some_and(|load| load.node.name == pod.nominated);
    let own = feasible.iter().copied().find(is_own);
    let find_best = || {
        nominated.put(loads);
        let candidates: Vec<&NodeLoad> =
            feasible.iter().filter_map(|nth| loads.get(*nth)).collect();
        let SelectionRules { profile, namespaces } = rules;
        let view = ScoreView { loads, namespaces, profile, added };
        let best = select_best(pod, &candidates, view, selected);
        nominated.remove_loads(loads);
        best.and_then(|best| feasible.get(best).copied())
    };
    let best = own.or_else(find_best);
    match best.map(|nth| (nth, checked.swap_remove(nth))) {
        Some((nth, Ok(volumes))) => Ok(NodeChoice { nth, volumes }),
        _ => {
            let refusals = checked.into_iter().map(|checked| checked.err().unwrap_or_default());
            Err(SelectError::NoFeasibleNode(FitError { refusals: refusals.collect() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::examples::{names, node, pod, profile};
    use crate::placement::Term;
    use crate::resource_amounts::{CPU, MEMORY, PODS};

    /// Selects a node for a pod without claims.
    fn select(pod: &PodInfo, loads: &[NodeLoad]) -> Result<usize, SelectError> {
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let storage_view = StorageView { storage: &storage, annotations: &annotations };
        let (namespaces, profile) = (NamespaceLabels::new(), profile());
        let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
        let (mut loads, mut nominated) = (loads.to_vec(), NominatedLoads::default());
        let selected = &mut SelectedCounts::default();
        let nodes = NodeView { loads: &mut loads, nominated: &mut nominated, selected };
        select_node(pod, nodes, rules, storage_view).map(|choice| choice.nth)
    }

    fn loads(count: usize) -> Vec<NodeLoad> {
        (0..count).map(|nth| NodeLoad::empty(Arc::new(node(&format!("n{nth}"))))).collect()
    }

    #[test]
    fn the_message_says_why_no_node_is_feasible() {
        let mut loads = loads(2);
        loads[0].add(pod("x", 4000, 0));
        assert_eq!(select(&pod("p", 100, 0), &loads), Ok(1));
        let why = |pod: &PodInfo, loads: &[NodeLoad]| match select(pod, loads) {
            Err(SelectError::NoFeasibleNode(error)) => error.message(),
            other => panic!("{other:?}"),
        };
        assert_eq!(why(&pod("p", 5000, 0), &loads), "0/2 nodes are available: 2 Insufficient cpu.");
        assert_eq!(why(&pod("p", 1, 0), &[]), "no nodes available to schedule pods");
    }

    #[test]
    fn the_nominated_node_is_preferred_while_it_is_feasible() {
        let mut loads = loads(3);
        loads[1].add(pod("x", 3000, 6 << 30));
        let wanting =
            |cpu, nominated: &str| PodInfo { nominated: nominated.into(), ..pod("p", cpu, 0) };
        assert_eq!(select(&wanting(500, ""), &loads), Ok(0), "it has more room");
        assert_eq!(select(&wanting(500, "n1"), &loads), Ok(1));
        assert_eq!(select(&wanting(2000, "n1"), &loads), Ok(0), "it has no room");
        assert_eq!(select(&wanting(500, "gone"), &loads), Ok(0));
    }

    #[test]
    fn nominated_pods_reserve_their_node_and_satisfy_no_affinity() {
        let loads = loads(1);
        let mut waiting = PodInfo { node: "n0".into(), ..pod("n", 3500, 0) };
        waiting.labels.insert("app".into(), "db".into());
        let waiting = [Arc::new(waiting)];
        let annotations = BindingAnnotations::new(names());
        let storage = StorageSnapshot::default();
        let storage_view = StorageView { storage: &storage, annotations: &annotations };
        let select = |pod: &PodInfo| {
            let mut nominated = NominatedLoads::new(pod, &loads, &waiting);
            let mut seen = loads.clone();
            let selected = &mut SelectedCounts::default();
            let nodes = NodeView { loads: &mut seen, nominated: &mut nominated, selected };
            let (namespaces, profile) = (NamespaceLabels::new(), profile());
            let rules = SelectionRules { profile: &profile, namespaces: &namespaces };
            let found = select_node(pod, nodes, rules, storage_view);
            assert_eq!(format!("{seen:?}"), format!("{loads:?}"), "they are as before");
            found.is_ok()
        };
        assert!(select(&pod("p", 500, 0)) && !select(&pod("p", 501, 0)));
        let mut friend = pod("p", 100, 0);
        friend.constraints.affinity.push(Term {
            pods: "app=db".parse().ok(),
            namespaces: ["ns".to_owned()].into(),
            namespace_selector: None,
            topology_key: "zone".into(),
        });
        assert!(!select(&friend), "the nominated pod may start elsewhere");
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
                    Err(_) => prop_assert!(loads.iter().all(|load| check(&pod, load, &profile()).is_err())),
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
