//! The topology manager: resources of a container on one NUMA node if possible.
//!
//! Each resource lists the node sets on which it is available ([`TopologyHint`]). A placement is the intersection of one hint of each
//! resource; the best one is preferred by every resource, and among those has the fewest nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::set::IdSet;

/// Most NUMA nodes supported, as in Kubernetes; the number of hints doubles with each node.
pub const NODES_MAX: usize = 8;

/// A logical CPU and its place in the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cpu {
    /// CPU number.
    pub id: u32,
    /// Core id, unique on the machine.
    pub core: u32,
    /// Socket id.
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
}

/// CPUs and memory of the machine by location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineTopology {
    /// Online CPUs.
    pub cpus: Vec<Cpu>,
    /// Bytes by resource (`memory`, `hugepages-2Mi`) of each NUMA node.
    pub memory: BTreeMap<u32, BTreeMap<String, u64>>,
}

impl MachineTopology {
    /// NUMA nodes; one if the machine reports none.
    pub fn nodes(&self) -> IdSet {
        let nodes: IdSet =
            self.cpus.iter().map(|cpu| cpu.node).chain(self.memory.keys().copied()).collect();
        if nodes.is_empty() { IdSet::from_iter([0]) } else { nodes }
    }

    /// CPUs of some nodes.
    pub fn cpus_of(&self, nodes: &IdSet) -> IdSet {
        self.cpus.iter().filter(|cpu| nodes.contains(cpu.node)).map(|cpu| cpu.id).collect()
    }
}

/// Topology manager policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// `none`: no placement.
    #[default]
    None,
    /// `best-effort`: the best placement is used, preferred or not.
    BestEffort,
    /// `restricted`: a container without a preferred placement is rejected.
    Restricted,
    /// `single-numa-node`: a container that does not fit on one node is rejected.
    SingleNode,
}

impl TopologyPolicy {
    /// Parses the name of a policy.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "none" | "" => Some(Self::None),
            "best-effort" => Some(Self::BestEffort),
            "restricted" => Some(Self::Restricted),
            "single-numa-node" => Some(Self::SingleNode),
            _ => None,
        }
    }
}

/// Topology manager scope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyScope {
    /// `container`: each container is placed by itself.
    #[default]
    Container,
    /// `pod`: all containers of a pod are placed together.
    Pod,
}

/// A node set on which a resource is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyHint {
    pub nodes: IdSet,
    /// Whether no smaller set would do.
    pub preferred: bool,
}

/// Hints of one resource; `None` if its location does not matter, empty if it is unavailable.
pub type Hints = Option<Vec<TopologyHint>>;

/// Hints for `wanted` units of a resource, given the `total` and `free` units of a node set. Preferred are the smallest sets that
/// would do on an idle machine.
pub fn hints(
    nodes: &IdSet,
    wanted: u64,
    total: impl Fn(&IdSet) -> u64,
    free: impl Fn(&IdSet) -> u64,
) -> Vec<TopologyHint> {
    let subsets = nodes.subsets();
    let fewest = subsets.iter().filter(|set| total(set) >= wanted).map(IdSet::len).min();
    let usable = subsets.into_iter().filter(|set| free(set) >= wanted);
    usable.map(|set| TopologyHint { preferred: Some(set.len()) == fewest, nodes: set }).collect()
}

/// The placement for these hints under the policy; `None` for any nodes.
///
/// # Errors
/// The policy rejects the best placement.
pub fn place(
    policy: TopologyPolicy,
    nodes: &IdSet,
    all: &[Hints],
) -> Result<Option<IdSet>, NoPlacement> {
    if policy == TopologyPolicy::None {
        return Ok(None);
    }
    let best = best(policy, nodes, all);
    // All nodes together are no restriction.
    let place = Some(best.nodes).filter(|set| set != nodes || nodes.len() == 1);
    match policy {
        TopologyPolicy::None | TopologyPolicy::BestEffort => Ok(place),
        TopologyPolicy::Restricted | TopologyPolicy::SingleNode if best.preferred => Ok(place),
        TopologyPolicy::Restricted | TopologyPolicy::SingleNode => Err(NoPlacement),
    }
}

/// No placement satisfies the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Resources cannot be allocated with Topology locality")]
pub struct NoPlacement;

fn best(policy: TopologyPolicy, nodes: &IdSet, all: &[Hints]) -> TopologyHint {
    let mut resources: Vec<Vec<TopologyHint>> = Vec::new();
    for hints in all.iter().flatten() {
        let mut hints = hints.clone();
        if policy == TopologyPolicy::SingleNode {
            hints.retain(|hint| hint.nodes.len() == 1);
        }
        if hints.is_empty() {
            // Unavailable, or not on a single node: no preference.
            return TopologyHint { nodes: nodes.clone(), preferred: false };
        }
        resources.push(hints);
    }
    preferred_by_all(nodes, &resources).unwrap_or_else(|| common_to_all(nodes, &resources))
}

/// The smallest set preferred by every resource. Different preferred sets give none: their intersection is too small for at least
/// one resource.
fn preferred_by_all(nodes: &IdSet, resources: &[Vec<TopologyHint>]) -> Option<TopologyHint> {
    let Some((first, rest)) = resources.split_first() else {
        return Some(TopologyHint { nodes: nodes.clone(), preferred: true });
    };
    let is_preferred = |hints: &Vec<TopologyHint>, set: &IdSet| {
        hints.iter().any(|hint| hint.preferred && hint.nodes == *set)
    };
    let shared = first
        .iter()
        .filter(|hint| hint.preferred && rest.iter().all(|hints| is_preferred(hints, &hint.nodes)));
    shared.min_by_key(|hint| (hint.nodes.len(), hint.nodes.clone())).cloned()
}

/// The smallest intersection of one hint of each resource. The work is bounded by the number of node sets, whatever the number of
/// resources.
fn common_to_all(nodes: &IdSet, resources: &[Vec<TopologyHint>]) -> TopologyHint {
    let mut reached = BTreeSet::from([nodes.clone()]);
    for hints in resources {
        let with = |set: &IdSet| hints.iter().map(|hint| hint.nodes.and(set)).collect::<Vec<_>>();
        reached = reached.iter().flat_map(with).filter(|set| !set.is_empty()).collect();
    }
    let narrowest = reached.into_iter().min_by_key(|set| (set.len(), set.clone()));
    TopologyHint { nodes: narrowest.unwrap_or_else(|| nodes.clone()), preferred: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(nodes: &str, preferred: bool) -> TopologyHint {
        TopologyHint { nodes: nodes.parse().expect("set"), preferred }
    }

    /// The policies on a machine with two nodes.
    #[test]
    fn places() {
        use TopologyPolicy::{BestEffort, None as Off, Restricted, SingleNode};
        let both: IdSet = "0-1".parse().expect("set");
        let any = || Some(vec![hint("0", true), hint("1", true), hint("0-1", false)]);
        let one = || Some(vec![hint("1", true), hint("0-1", false)]);
        let other = || Some(vec![hint("0", true)]);
        let wide = || Some(vec![hint("0-1", true)]);
        let spread = || Some(vec![hint("0-1", false)]);
        let cases: Vec<(TopologyPolicy, Vec<Hints>, Result<&str, NoPlacement>)> = vec![
            (Off, vec![any(), one()], Ok("")),
            (BestEffort, vec![any(), one()], Ok("1")),
            (Restricted, vec![any(), one()], Ok("1")),
            (SingleNode, vec![any(), one()], Ok("1")),
            (BestEffort, vec![one(), other()], Ok("0")),
            (Restricted, vec![one(), other()], Err(NoPlacement)),
            (SingleNode, vec![one(), other()], Err(NoPlacement)),
            (Restricted, vec![wide()], Ok("")),
            (SingleNode, vec![wide()], Err(NoPlacement)),
            (BestEffort, vec![spread()], Ok("")),
            (Restricted, vec![spread()], Err(NoPlacement)),
            (SingleNode, vec![None, None], Ok("")),
            (Restricted, vec![Some(vec![])], Err(NoPlacement)),
            (SingleNode, vec![None, any()], Ok("0")),
        ];
        for (policy, hints, expect) in cases {
            let got = place(policy, &both, &hints);
            let got = got.map(|nodes| nodes.map_or(String::new(), |n| n.to_string()));
            assert_eq!(got, expect.map(str::to_owned), "{policy:?} {hints:?}");
        }
    }

    #[test]
    fn the_fewest_nodes_that_an_idle_machine_needs_are_preferred() {
        let both: IdSet = "0-1".parse().expect("set");
        let total = |set: &IdSet| set.len() as u64 * 4;
        let free = |set: &IdSet| set.iter().map(|id| if id == 0 { 1 } else { 4 }).sum();
        assert_eq!(hints(&both, 2, total, free), [hint("1", true), hint("0-1", false)]);
        assert_eq!(hints(&both, 5, total, free), [hint("0-1", true)]);
        assert_eq!(hints(&both, 6, total, free), []);
    }

    #[test]
    fn many_resources_on_many_nodes_stay_bounded() {
        let nodes: IdSet = (0..8).collect();
        let all: Vec<Hints> = (0..6).map(|_| Some(hints(&nodes, 1, |_| 9, |_| 9))).collect();
        let got = place(TopologyPolicy::Restricted, &nodes, &all).expect("place").expect("nodes");
        assert_eq!(got.to_string(), "0");
    }
}
