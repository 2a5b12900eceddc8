//! PodTopologySpread: constraints with `whenUnsatisfiable: ScheduleAnyway`.

use std::collections::{BTreeMap, BTreeSet};

use crate::node_selector::matches_selector;
use crate::nodes::NodeLoad;
use crate::placement::Spread;
use crate::pod_info::{PodInfo, PodPhase};

/// The points of the feasible nodes, from 0 to 100. `loads` are all nodes.
pub(super) fn points(pod: &PodInfo, feasible: &[&NodeLoad], loads: &[NodeLoad]) -> Vec<i64> {
    let spreads = &pod.constraints.preferred_spread;
    let has_keys = |load: &NodeLoad| {
        spreads.iter().all(|spread| load.node.labels.contains_key(&spread.topology_key))
    };
    let mut costs: Vec<Option<f64>> =
        feasible.iter().map(|load| has_keys(load).then_some(0.0)).collect();
    for spread in spreads {
        let counts = counts(pod, spread, loads, has_keys);
        let domains: BTreeSet<&String> =
            feasible.iter().filter_map(|load| load.node.labels.get(&spread.topology_key)).collect();
        let weight = (domains.len() as f64 + 2.0).ln();
        for (load, cost) in feasible.iter().zip(&mut costs) {
            let domain = load.node.labels.get(&spread.topology_key);
            let count = domain.and_then(|domain| counts.get(domain)).copied().unwrap_or(0);
            let skew = spread.max_skew.saturating_sub(1) as f64;
            *cost = cost.map(|cost| cost + count as f64 * weight + skew);
        }
    }
    let known = || costs.iter().flatten().copied();
    let (least, most) = (known().fold(f64::MAX, f64::min), known().fold(0.0, f64::max));
    let all = super::MAX_POINTS as f64;
    let point = |cost: &Option<f64>| match cost {
        // Without the keys a node comes last.
        None => 0,
        Some(_) if most <= 0.0 => super::MAX_POINTS,
        Some(cost) => (all * (most + least - cost) / most) as i64,
    };
    costs.iter().map(point).collect()
}

/// The selected pods in each domain.
fn counts<'a>(
    pod: &PodInfo,
    spread: &Spread,
    loads: &'a [NodeLoad],
    counts_node: impl Fn(&NodeLoad) -> bool,
) -> BTreeMap<&'a String, usize> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for load in loads.iter().filter(|load| counts_node(load) && matches_selector(pod, &load.node)) {
        let Some(domain) = load.node.labels.get(&spread.topology_key) else { continue };
        let active = load.pods.iter().filter(|other| other.phase == PodPhase::Active);
        let count = counts.entry(domain).or_default();
        *count = count.saturating_add(active.filter(|other| spread.selects(pod, other)).count());
    }
    counts
}
