//! The Score extension point: NodeResourcesLeastAllocated, NodeResourcesBalancedAllocation, NodeAffinity, TaintToleration and the spreading of
//! a controller's pods. Each plugin gives 0 to 100 points, which are weighted.

use std::cmp::Reverse;

use crate::amounts::{CPU, MEMORY};
use crate::node_selector::matches_term;
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::taints::tolerates;

const MAX_POINTS: i64 = 100;

/// Selects the best node, by its index in `feasible`; none if that is empty.
pub fn select_best(pod: &PodInfo, feasible: &[&NodeLoad]) -> Option<usize> {
    let affinity = normalize(feasible.iter().map(|load| preferred_weight(pod, load)).collect());
    let taints =
        normalize_reversed(feasible.iter().map(|load| count_untolerated(pod, load)).collect());
    let siblings =
        normalize_reversed(feasible.iter().map(|load| count_siblings(pod, load)).collect());
    let score = |nth: usize, load: &NodeLoad| {
        let at = |points: &[i64]| points.get(nth).copied().unwrap_or(0);
        let weighed = [
            (1, least_allocated(pod, load)),
            (1, balanced_allocation(pod, load)),
            (2, at(&affinity)),
            (3, at(&taints)),
            (2, at(&siblings)),
        ];
        let weighed = weighed.into_iter().map(|(weight, points)| points.saturating_mul(weight));
        weighed.fold(0, i64::saturating_add)
    };
    // Ties are broken by the number of pods, then by name.
    let ranked = feasible.iter().enumerate();
    ranked
        .min_by_key(|(nth, load)| (Reverse(score(*nth, load)), load.pod_count, *nth))
        .map(|(nth, _)| nth)
}

/// The fractions of CPU and memory that would be allocated with the pod.
fn allocated_fractions(pod: &PodInfo, load: &NodeLoad) -> [f64; 2] {
    let fraction = |resource: &str, used: i64| {
        let whole = load.node.allocatable.get(resource).copied().unwrap_or(0);
        if whole <= 0 { 1.0 } else { (used as f64 / whole as f64).min(1.0) }
    };
    let (cpu, memory) = pod.weight;
    [
        fraction(CPU, load.weight.0.saturating_add(cpu)),
        fraction(MEMORY, load.weight.1.saturating_add(memory)),
    ]
}

fn points(part: f64) -> i64 {
    (part.clamp(0.0, 1.0) * MAX_POINTS as f64) as i64
}

/// NodeResourcesLeastAllocated: more points for more free resources.
fn least_allocated(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let [cpu, memory] = allocated_fractions(pod, load);
    i64::midpoint(points(1.0 - cpu), points(1.0 - memory))
}

/// NodeResourcesBalancedAllocation: more points for similar fractions of CPU and memory.
fn balanced_allocation(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let [cpu, memory] = allocated_fractions(pod, load);
    points(1.0 - (cpu - memory).abs() / 2.0)
}

/// NodeAffinity: the weights of the preferred terms that the node matches.
fn preferred_weight(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let met = pod.preferred.iter().filter(|term| matches_term(&term.preference, &load.node));
    met.map(|term| i64::from(term.weight)).fold(0, i64::saturating_add)
}

/// TaintToleration: the PreferNoSchedule taints that the pod does not tolerate.
fn count_untolerated(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let soft = load.node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let untolerated = soft.filter(|taint| !pod.tolerations.iter().any(|t| tolerates(t, taint)));
    i64::try_from(untolerated.count()).unwrap_or(MAX_POINTS)
}

/// The number of pods of the same controller on the node.
fn count_siblings(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let controller = pod.controller.as_ref();
    controller.and_then(|uid| load.by_controller.get(uid)).copied().unwrap_or(0)
}

/// Scales the values so that the largest becomes 100.
fn normalize(values: Vec<i64>) -> Vec<i64> {
    let most = values.iter().copied().max().unwrap_or(0);
    // Stored weights may be negative.
    let part = |value: i64| value.max(0).saturating_mul(MAX_POINTS).checked_div(most).unwrap_or(0);
    values.into_iter().map(|value| if most <= 0 { 0 } else { part(value) }).collect()
}

/// Scales the values so that the largest becomes 0, and zero becomes 100.
fn normalize_reversed(values: Vec<i64>) -> Vec<i64> {
    normalize(values).into_iter().map(|value| MAX_POINTS.saturating_sub(value)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proto_api::core::v1::{
        NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm, Taint,
    };

    use super::*;
    use crate::pod_info::examples::{node, pod};

    fn loads(names: &[&str]) -> Vec<NodeLoad> {
        names.iter().map(|name| NodeLoad::empty(Arc::new(node(name)))).collect()
    }

    fn chosen(pod: &PodInfo, loads: &[NodeLoad]) -> String {
        let feasible: Vec<&NodeLoad> = loads.iter().collect();
        select_best(pod, &feasible).map_or_else(String::new, |nth| loads[nth].node.name.clone())
    }

    #[test]
    fn nodes_with_free_resources_are_preferred() {
        let mut loads = loads(&["a", "b", "c"]);
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "a");
        loads[0].add(pod("x", 2000, 4 << 30));
        loads[1].add(pod("y", 1000, 2 << 30));
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "c");
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads[..2]), "b");
        assert_eq!(chosen(&pod("p", 0, 0), &[]), "");
    }

    #[test]
    fn pods_without_requests_are_spread() {
        let mut loads = loads(&["a", "b"]);
        let mut nothing = pod("p", 0, 0);
        nothing.weight = (100, 200 << 20);
        let mut counts = [0, 0];
        for _ in 0..10 {
            let name = chosen(&nothing, &loads);
            let nth = usize::from(name == "b");
            loads[nth].add(nothing.clone());
            counts[nth] += 1;
        }
        assert_eq!(counts, [5, 5]);
    }

    #[test]
    fn siblings_are_spread_even_against_load() {
        let mut loads = loads(&["a", "b"]);
        let mut sibling = pod("s", 100, 1 << 20);
        sibling.controller = Some("set".into());
        loads[0].add(sibling.clone());
        loads[1].add(pod("x", 1000, 2 << 30));
        assert_eq!(chosen(&sibling, &loads), "b");
        let mut stranger = sibling;
        stranger.controller = Some("other".into());
        assert_eq!(chosen(&stranger, &loads), "a");
    }

    #[test]
    fn preferred_affinity_and_soft_taints_count() {
        let mut picky = pod("p", 100, 1 << 20);
        let requirement = NodeSelectorRequirement {
            key: "zone".into(),
            operator: "In".into(),
            values: vec!["zone-c".into()],
        };
        let preference =
            NodeSelectorTerm { match_expressions: vec![requirement], ..Default::default() };
        picky.preferred = vec![PreferredSchedulingTerm { weight: 1, preference }];
        assert_eq!(chosen(&picky, &loads(&["a", "b", "c"])), "c");
        let mut loads = loads(&["a", "b"]);
        let mut mild = node("a");
        mild.taints =
            vec![Taint { key: "k".into(), effect: "PreferNoSchedule".into(), ..Taint::default() }];
        loads[0].node = Arc::new(mild);
        loads[1].add(pod("x", 2000, 4 << 30));
        assert_eq!(chosen(&picky, &loads), "b");
    }
}
