//! NodeResourcesFit and NodeResourcesBalancedAllocation: how much of a node's resources would be allocated with the pod.

use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::profile::{FitStrategy, MAX_POINTS, ResourceFit};
use crate::resource_amounts::{CPU, MEMORY};

/// What is allocated of a resource with the pod, and what the node has.
#[derive(Clone, Copy)]
struct Use {
    requested: i64,
    allocatable: i64,
}

/// NodeResourcesFit: the points of the resources that the node has, weighed. Pods without requests count with defaults.
pub(super) fn score_fit(pod: &PodInfo, load: &NodeLoad, fit: &ResourceFit) -> i64 {
    let (mut points, mut weights) = (0_i64, 0_i64);
    for (resource, weight) in &fit.resources {
        let Some(of) = with_defaults(pod, load, resource) else { continue };
        let of_resource = match &fit.strategy {
            FitStrategy::LeastAllocated => least(of),
            FitStrategy::MostAllocated => most(of),
            FitStrategy::RequestedToCapacityRatio(shape) => match by_shape(shape, of) {
                0 => continue,
                points => points,
            },
        };
        points = points.saturating_add(of_resource.saturating_mul(*weight));
        weights = weights.saturating_add(*weight);
    }
    match fit.strategy {
        FitStrategy::RequestedToCapacityRatio(_) if weights > 0 => {
            (points as f64 / weights as f64).round() as i64
        }
        _ => points.checked_div(weights).unwrap_or(0),
    }
}

/// NodeResourcesBalancedAllocation: more points for shares that are alike. Only what is requested counts.
pub(super) fn score_balance(pod: &PodInfo, load: &NodeLoad, resources: &[String]) -> i64 {
    let shares: Vec<f64> = resources
        .iter()
        .filter_map(|resource| requested(pod, load, resource))
        .map(|of| (of.requested as f64 / of.allocatable as f64).min(1.0))
        .collect();
    let count = shares.len().max(1) as f64;
    let mean = shares.iter().sum::<f64>() / count;
    let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / count;
    ((1.0 - variance.sqrt()) * MAX_POINTS as f64) as i64
}

/// What is requested; none if the node lacks the resource, or it is an extended one that the pod does not want.
fn requested(pod: &PodInfo, load: &NodeLoad, resource: &str) -> Option<Use> {
    let allocatable = load.node.allocatable.get(resource).copied().filter(|whole| *whole > 0)?;
    let own = pod.requests.get(resource).copied().unwrap_or(0);
    if own == 0 && resource.contains('/') {
        return None;
    }
    let there = load.requested.get(resource).copied().unwrap_or(0);
    Some(Use { requested: there.saturating_add(own), allocatable })
}

/// The same with defaults for pods without requests of CPU or memory.
fn with_defaults(pod: &PodInfo, load: &NodeLoad, resource: &str) -> Option<Use> {
    let of = requested(pod, load, resource)?;
    let requested = match resource {
        CPU => load.weight.0.saturating_add(pod.weight.0),
        MEMORY => load.weight.1.saturating_add(pod.weight.1),
        _ => of.requested,
    };
    Some(Use { requested, ..of })
}

fn least(of: Use) -> i64 {
    let free = of.allocatable.saturating_sub(of.requested).max(0);
    percent(free, of.allocatable)
}

fn most(of: Use) -> i64 {
    percent(of.requested.min(of.allocatable), of.allocatable)
}

/// Of a part that is no larger than the whole, which is above 0.
fn percent(part: i64, whole: i64) -> i64 {
    let share = i128::from(part).saturating_mul(i128::from(MAX_POINTS));
    let share = share.checked_div(i128::from(whole)).unwrap_or(0);
    i64::try_from(share).unwrap_or(MAX_POINTS)
}

/// The points at a utilisation, on straight lines between those of the shape. Beyond its ends they stay.
fn by_shape(shape: &[(i64, i64)], of: Use) -> i64 {
    let utilization = if of.requested > of.allocatable {
        MAX_POINTS
    } else {
        percent(of.requested, of.allocatable)
    };
    let mut before: Option<(i64, i64)> = None;
    for (at, points) in shape {
        if utilization <= *at {
            let Some((from, first)) = before else { return *points };
            let rise =
                points.saturating_sub(first).saturating_mul(utilization.saturating_sub(from));
            let width = at.saturating_sub(from);
            return first.saturating_add(rise.checked_div(width).unwrap_or(0));
        }
        before = Some((*at, *points));
    }
    before.map_or(0, |(_, points)| points)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::examples::{node, pod};

    /// Points with this strategy when this many millicores of 4000 and this many GiB of 8 are allocated with the pod.
    fn points(strategy: FitStrategy, cpu: i64, gib: i64, weights: (i64, i64)) -> i64 {
        let mut load = NodeLoad::empty(Arc::new(node("a")));
        load.add(pod("there", cpu - 100, 0));
        let none = BTreeSet::new();
        let resources = vec![(CPU.to_owned(), weights.0), (MEMORY.to_owned(), weights.1)];
        let asked = ResourceFit {
            strategy,
            resources,
            ignored_resources: none.clone(),
            ignored_groups: none,
        };
        score_fit(&pod("p", 100, gib << 30), &load, &asked)
    }

    #[test]
    fn strategies_weigh_resources() {
        use FitStrategy::{LeastAllocated, MostAllocated, RequestedToCapacityRatio};
        for (strategy, cpu, gib, weights, expected) in [
            (LeastAllocated, 1000, 4, (1, 1), 62),
            (LeastAllocated, 1000, 4, (3, 1), 68),
            (LeastAllocated, 1000, 4, (1, 0), 75),
            (LeastAllocated, 9000, 4, (1, 1), 25),
            (MostAllocated, 1000, 4, (1, 1), 37),
            (MostAllocated, 9000, 8, (1, 1), 100),
            (RequestedToCapacityRatio(vec![(0, 0), (100, 100)]), 1000, 4, (1, 1), 38),
            (RequestedToCapacityRatio(vec![(0, 100), (100, 0)]), 1000, 4, (1, 1), 63),
            (RequestedToCapacityRatio(vec![(0, 0), (50, 100), (100, 0)]), 1000, 4, (1, 1), 75),
            (RequestedToCapacityRatio(vec![(30, 20), (60, 80)]), 1000, 4, (1, 1), 40),
            // What has no points does not count.
            (RequestedToCapacityRatio(vec![(0, 0), (50, 0), (100, 100)]), 1000, 6, (1, 1), 50),
        ] {
            let text = format!("{strategy:?} {cpu} {gib} {weights:?}");
            assert_eq!(points(strategy, cpu, gib, weights), expected, "{text}");
        }
    }

    #[test]
    fn extended_resources_count_for_pods_that_want_them() {
        let mut with = node("a");
        with.allocatable.insert("example.com/gpu".into(), 4);
        let load = NodeLoad::empty(Arc::new(with));
        let asked = ResourceFit {
            strategy: FitStrategy::MostAllocated,
            resources: vec![("example.com/gpu".into(), 1)],
            ignored_resources: BTreeSet::new(),
            ignored_groups: BTreeSet::new(),
        };
        let mut wanting = pod("p", 100, 0);
        assert_eq!(score_fit(&wanting, &load, &asked), 0);
        wanting.requests.insert("example.com/gpu".into(), 1);
        assert_eq!(score_fit(&wanting, &load, &asked), 25);
        assert_eq!(score_fit(&wanting, &NodeLoad::empty(Arc::new(node("b"))), &asked), 0);
    }

    #[test]
    fn a_node_is_balanced_by_what_is_requested() {
        let load = NodeLoad::empty(Arc::new(node("a")));
        let both = [CPU.to_owned(), MEMORY.to_owned()];
        assert_eq!(score_balance(&pod("p", 2000, 4 << 30), &load, &both), 100);
        assert_eq!(score_balance(&pod("p", 2000, 0), &load, &both), 75);
        let mut none = pod("p", 0, 0);
        none.weight = (100, 200 << 20);
        assert_eq!(score_balance(&none, &load, &both), 100, "no defaults count");
        assert_eq!(score_balance(&pod("p", 9000, 0), &load, &both), 50);
        assert_eq!(score_balance(&pod("p", 2000, 0), &load, &both[..1]), 100);
    }
}
