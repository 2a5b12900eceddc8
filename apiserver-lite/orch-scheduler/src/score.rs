//! Which of the nodes that fit is best: idle ones, evenly used ones, ones that the pod prefers, ones that do not
//! mind it, and ones with few of its siblings. Each view gives 0 to 100 points and has a weight.

use std::cmp::Reverse;

use crate::filter::{matches_term, tolerates};
use crate::nodes::NodeLoad;
use crate::pod_info::{CPU, MEMORY, PodInfo};

const MOST: i64 = 100;

/// The best node, by its place in `fitting`; none if that is empty.
pub fn best(pod: &PodInfo, fitting: &[&NodeLoad]) -> Option<usize> {
    let preferred = scaled(fitting.iter().map(|load| preference(pod, load)).collect());
    let minded = inverted(fitting.iter().map(|load| objections(pod, load)).collect());
    let siblings = inverted(fitting.iter().map(|load| siblings(pod, load)).collect());
    let score = |nth: usize, load: &NodeLoad| {
        let at = |points: &[i64]| points.get(nth).copied().unwrap_or(0);
        let weighed = [
            (1, idle(pod, load)),
            (1, even(pod, load)),
            (2, at(&preferred)),
            (3, at(&minded)),
            (2, at(&siblings)),
        ];
        let weighed = weighed.into_iter().map(|(weight, points)| points.saturating_mul(weight));
        weighed.fold(0, i64::saturating_add)
    };
    // Of equals, the one with the fewest pods; of those, the first by name.
    let ranked = fitting.iter().enumerate();
    ranked
        .min_by_key(|(nth, load)| (Reverse(score(*nth, load)), load.pods, *nth))
        .map(|(nth, _)| nth)
}

/// The parts of processor time and memory that would be used with the pod.
fn used(pod: &PodInfo, load: &NodeLoad) -> [f64; 2] {
    let part = |resource: &str, used: i64| {
        let whole = load.node.allocatable.get(resource).copied().unwrap_or(0);
        if whole <= 0 { 1.0 } else { (used as f64 / whole as f64).min(1.0) }
    };
    let (cpu, memory) = pod.weight;
    [
        part(CPU, load.weight.0.saturating_add(cpu)),
        part(MEMORY, load.weight.1.saturating_add(memory)),
    ]
}

fn points(part: f64) -> i64 {
    (part.clamp(0.0, 1.0) * MOST as f64) as i64
}

/// More for a node that has more left.
fn idle(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let [cpu, memory] = used(pod, load);
    i64::midpoint(points(1.0 - cpu), points(1.0 - memory))
}

/// More for a node of which processor time and memory would be used alike.
fn even(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let [cpu, memory] = used(pod, load);
    points(1.0 - (cpu - memory).abs() / 2.0)
}

/// The weights of the preferences that the node meets.
fn preference(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let met = pod.preferred.iter().filter(|term| matches_term(&term.preference, &load.node));
    met.map(|term| i64::from(term.weight)).fold(0, i64::saturating_add)
}

/// Taints that would rather not have the pod.
fn objections(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let mild = load.node.taints.iter().filter(|taint| taint.effect == "PreferNoSchedule");
    let minds = mild.filter(|taint| !pod.tolerations.iter().any(|t| tolerates(t, taint)));
    i64::try_from(minds.count()).unwrap_or(MOST)
}

/// Pods of the same controller on the node.
fn siblings(pod: &PodInfo, load: &NodeLoad) -> i64 {
    let controller = pod.controller.as_ref();
    controller.and_then(|uid| load.by_controller.get(uid)).copied().unwrap_or(0)
}

/// The most becomes 100, the others in proportion.
fn scaled(values: Vec<i64>) -> Vec<i64> {
    let most = values.iter().copied().max().unwrap_or(0);
    // Of stored preferences some may count less than nothing.
    let part = |value: i64| value.max(0).saturating_mul(MOST).checked_div(most).unwrap_or(0);
    values.into_iter().map(|value| if most <= 0 { 0 } else { part(value) }).collect()
}

/// The most becomes 0, none becomes 100.
fn inverted(values: Vec<i64>) -> Vec<i64> {
    scaled(values).into_iter().map(|value| MOST.saturating_sub(value)).collect()
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
        let fitting: Vec<&NodeLoad> = loads.iter().collect();
        best(pod, &fitting).map_or_else(String::new, |nth| loads[nth].node.name.clone())
    }

    #[test]
    fn idle_nodes_are_better() {
        let mut loads = loads(&["a", "b", "c"]);
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "a");
        loads[0].add(pod("x", 2000, 4 << 30));
        loads[1].add(pod("y", 1000, 2 << 30));
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads), "c");
        assert_eq!(chosen(&pod("p", 100, 1 << 20), &loads[..2]), "b");
        assert_eq!(chosen(&pod("p", 0, 0), &[]), "");
    }

    #[test]
    fn pods_that_ask_for_nothing_spread_too() {
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
    fn preferences_count() {
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
