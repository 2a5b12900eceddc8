//! InterPodAffinity: preferred terms of the pod and of the pods that run, and required affinity of those.

use std::collections::BTreeMap;

use crate::nodes::NodeLoad;
use crate::placement::{Term, WeightedTerm};
use crate::pod_affinity::NamespaceLabels;
use crate::pod_info::PodInfo;

/// The points of each topology key and value.
type DomainPoints<'a> = BTreeMap<(&'a str, &'a str), i64>;

/// The points of the feasible nodes, from 0 to 100. `loads` are all nodes; a required affinity term of a running pod that selects the new one counts
/// `required_weight`.
pub(super) fn points(
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    loads: &[NodeLoad],
    namespaces: &NamespaceLabels,
    required_weight: i64,
) -> Vec<i64> {
    let mut by_domain = DomainPoints::new();
    let has_preferences = pod.constraints.has_preferences();
    for load in loads {
        let others = if has_preferences { &load.pods } else { &load.constraining };
        for other in others {
            let constraints = &other.constraints;
            let mut count = |term: &'_ Term, weight: i64, selected: &PodInfo| {
                let Some((key, value)) = load.node.labels.get_key_value(&term.topology_key) else {
                    return;
                };
                if term.selects(selected, namespaces) {
                    let points = by_domain.entry((key.as_str(), value.as_str())).or_default();
                    *points = points.saturating_add(weight);
                }
            };
            let own = &pod.constraints.preferred;
            own.iter().for_each(|WeightedTerm { weight, term }| count(term, *weight, other));
            constraints.affinity.iter().for_each(|term| count(term, required_weight, pod));
            let theirs = &constraints.preferred;
            theirs.iter().for_each(|WeightedTerm { weight, term }| count(term, *weight, pod));
        }
    }
    if by_domain.is_empty() {
        return vec![0; feasible.len()];
    }
    let of_node = |load: &&NodeLoad| {
        let labels = load.node.labels.iter();
        let points = labels.filter_map(|(key, value)| {
            proto_api::count_steps!(1);
            by_domain.get(&(key.as_str(), value.as_str()))
        });
        points.fold(0_i64, |sum, points| sum.saturating_add(*points))
    };
    spread_over_range(&feasible.iter().map(of_node).collect::<Vec<_>>())
}

/// The smallest value becomes 0, the largest 100; all 0 if they are equal.
fn spread_over_range(values: &[i64]) -> Vec<i64> {
    let (least, most) = (values.iter().min(), values.iter().max());
    let (Some(least), Some(most)) = (least, most) else { return Vec::new() };
    let range = most.saturating_sub(*least) as f64;
    let point = |value: &i64| match range > 0.0 {
        true => (super::MAX_POINTS as f64 * (value.saturating_sub(*least) as f64 / range)) as i64,
        false => 0,
    };
    values.iter().map(point).collect()
}
