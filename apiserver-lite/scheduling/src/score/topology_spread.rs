//! PodTopologySpread: constraints with `whenUnsatisfiable: ScheduleAnyway`, or those of the profile for pods that have none and a controller.

use std::collections::{BTreeMap, BTreeSet};

use crate::node_selector::matches_selector;
use crate::nodes::NodeLoad;
use crate::placement::Spread;
use crate::pod_info::{PodInfo, PodPhase};
use crate::profile::{DefaultSpread, MAX_POINTS, Profile};

/// A constraint, and how many of the pods that it selects a node has.
struct Constraint<'a> {
    topology_key: &'a str,
    max_skew: i64,
    pods: Box<dyn Fn(&NodeLoad) -> i64 + 'a>,
}

/// Which nodes have points.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Those with the keys of all constraints.
    All,
    /// All; of the keys that a node lacks it has none.
    Any,
}

/// The points of the feasible nodes, from 0 to 100. `loads` are all nodes.
pub(super) fn points(
    pod: &PodInfo,
    feasible: &[&NodeLoad],
    loads: &[NodeLoad],
    profile: &Profile,
) -> Vec<i64> {
    let own = &pod.constraints;
    match own.preferred_spread.is_empty() && own.topology_spread.is_empty() {
        false => {
            let own = own.preferred_spread.iter().map(|spread| of_pod(pod, spread)).collect();
            spread_points(pod, own, Keys::All, feasible, loads, profile)
        }
        true => {
            let all = profile.default_spread.iter();
            let defaults = all.filter_map(|spread| of_controller(pod, spread)).collect();
            spread_points(pod, defaults, Keys::Any, feasible, loads, profile)
        }
    }
}

fn of_pod<'a>(pod: &'a PodInfo, spread: &'a Spread) -> Constraint<'a> {
    let pods = move |load: &NodeLoad| {
        let active = load.pods.iter().filter(|other| other.phase == PodPhase::Active);
        count(active.filter(|other| spread.selects(pod, other)).count())
    };
    Constraint {
        topology_key: &spread.topology_key,
        max_skew: spread.max_skew,
        pods: Box::new(pods),
    }
}

/// None for a pod without a controller, which has no others to be spread with.
fn of_controller<'a>(pod: &'a PodInfo, spread: &'a DefaultSpread) -> Option<Constraint<'a>> {
    let controller = pod.controller.as_ref()?;
    let pods = move |load: &NodeLoad| load.by_controller.get(controller).copied().unwrap_or(0);
    let DefaultSpread { topology_key, max_skew } = spread;
    Some(Constraint { topology_key, max_skew: *max_skew, pods: Box::new(pods) })
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn spread_points(
    pod: &PodInfo,
    constraints: Vec<Constraint<'_>>,
    keys: Keys,
    feasible: &[&NodeLoad],
    loads: &[NodeLoad],
    profile: &Profile,
) -> Vec<i64> {
    let counts = |load: &NodeLoad| {
        let mut all = constraints.iter();
        keys == Keys::Any || all.all(|c| load.node.labels.contains_key(c.topology_key))
    };
    let mut costs: Vec<Option<f64>> =
        feasible.iter().map(|load| counts(load).then_some(0.0)).collect();
    for constraint in &constraints {
        let key = constraint.topology_key;
        // Each node is a domain of its own.
        let by_node = key == profile.hostname_label;
        let domains: BTreeSet<&String> = match by_node {
            true => BTreeSet::new(),
            false => feasible.iter().filter_map(|load| load.node.labels.get(key)).collect(),
        };
        let count = if by_node { costs.iter().flatten().count() } else { domains.len() };
        if count == 0 {
            continue;
        }
        let pods = match by_node {
            true => BTreeMap::new(),
            false => pods_by_domain(pod, constraint, loads, counts),
        };
        let weight = (count as f64 + 2.0).ln();
        let skew = constraint.max_skew.saturating_sub(1) as f64;
        for (load, cost) in feasible.iter().zip(&mut costs) {
            let Some(domain) = load.node.labels.get(key) else { continue };
            let there = match by_node {
                true => (constraint.pods)(load),
                false => pods.get(domain).copied().unwrap_or(0),
            };
            *cost = cost.map(|cost| cost + there as f64 * weight + skew);
        }
    }
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
    pod: &PodInfo,
    constraint: &Constraint<'_>,
    loads: &'a [NodeLoad],
    counts: impl Fn(&NodeLoad) -> bool,
) -> BTreeMap<&'a String, i64> {
    let mut pods: BTreeMap<&String, i64> = BTreeMap::new();
    for load in loads.iter().filter(|load| counts(load) && matches_selector(pod, &load.node)) {
        let Some(domain) = load.node.labels.get(constraint.topology_key) else { continue };
        let sum = pods.entry(domain).or_default();
        *sum = sum.saturating_add((constraint.pods)(load));
    }
    pods
}
