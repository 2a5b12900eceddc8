//! PodTopologySpread: constraints with `whenUnsatisfiable: ScheduleAnyway`, the pod's own or those of its profile.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::nodes::NodeLoad;
use crate::placement::Spread;
use crate::pod_affinity::{CountedNode, counted_nodes};
use crate::pod_info::PodInfo;
use crate::profile::{MAX_POINTS, Profile, ScoredNodes};
use crate::selected_counts::{ConstraintCounts, SelectedCounts};

/// The points of the feasible nodes, from 0 to 100. `loads` are all nodes.
pub(super) fn points(
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    loads: &[NodeLoad],
    profile: &Profile,
    selected: &mut SelectedCounts,
) -> Vec<i64> {
    let constraints = &pod.constraints.preferred_spread;
    if constraints.is_empty() {
        return into_points(&vec![Some(0.0); feasible.len()]);
    }
    // Nodes without a key of one constraint count for none, unless all do.
    let with_keys =
        if pod.constraints.scored == ScoredNodes::All { &[][..] } else { &constraints[..] };
    // Constraints over hosts do not need them.
    let counted = LazyCell::new(|| counted_nodes(pod, with_keys, loads));
    let keys: BTreeSet<&String> = with_keys.iter().map(|spread| &spread.topology_key).collect();
    let has_keys = |load: &NodeLoad| keys.iter().all(|key| load.node.labels.contains_key(*key));
    let with_all_keys = || feasible.iter().filter(|load| has_keys(load));
    let mut costs: Vec<Option<f64>> =
        feasible.iter().map(|load| has_keys(load).then_some(0.0)).collect();
    for constraint in constraints {
        let key = &constraint.topology_key;
        // Each node is a domain of its own.
        let by_node = *key == profile.hostname_label;
        let domains: BTreeSet<&String> = match by_node {
            true => BTreeSet::new(),
            false => with_all_keys().filter_map(|load| load.node.labels.get(key)).collect(),
        };
        let count = if by_node { costs.iter().flatten().count() } else { domains.len() };
        if count == 0 {
            continue;
        }
        let mut selected = selected.of_constraint(pod, constraint);
        let pods = match by_node {
            true => BTreeMap::new(),
            false => pods_by_domain(constraint, &counted, &mut selected),
        };
        let weight = (count as f64 + 2.0).ln();
        let skew = constraint.max_skew.saturating_sub(1) as f64;
        for (load, cost) in feasible.iter().zip(&mut costs) {
            let (Some(domain), Some(cost)) = (load.node.labels.get(key), cost.as_mut()) else {
                continue;
            };
            let there = match by_node {
                true => selected.count(load),
                false => pods.get(domain).copied().unwrap_or(0),
            };
            *cost += there as f64 * weight + skew;
        }
    }
    into_points(&costs)
}

/// The less a node costs, the more points it has.
fn into_points(costs: &[Option<f64>]) -> Vec<i64> {
    let costs: Vec<Option<f64>> = costs.iter().map(|cost| cost.map(f64::round)).collect();
    let known = || costs.iter().flatten().copied();
    let (least, most) = (known().fold(f64::MAX, f64::min), known().fold(0.0, f64::max));
    let all = MAX_POINTS as f64;
    let point = |cost: &Option<f64>| match cost {
        // Without the keys a node comes last.
        None => 0,
        Some(_) if most <= 0.0 => MAX_POINTS,
        Some(cost) => (all * (most + least - cost) / most) as i64,
    };
    costs.iter().map(point).collect()
}

/// The selected pods in each domain.
fn pods_by_domain<'a>(
    spread: &Spread,
    counted: &[CountedNode<'a>],
    selected: &mut ConstraintCounts<'_>,
) -> BTreeMap<&'a String, i64> {
    let mut pods: BTreeMap<&String, i64> = BTreeMap::new();
    for load in counted.iter().filter(|node| node.counts_for(spread)).map(|node| node.load) {
        let Some(domain) = load.node.labels.get(&spread.topology_key) else { continue };
        let sum = pods.entry(domain).or_default();
        *sum = sum.saturating_add(selected.count(load));
    }
    pods
}
