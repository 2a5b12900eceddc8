//! Where the parts of a container's share should lie: on one NUMA node if it can be had.
//!
//! Each resource says with which sets of nodes it could be given ([`Hint`]). Taking one hint of each, a place is the nodes that all
//! have in common; the best place is one that every resource prefers, and among those the one with the fewest nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::set::IdSet;

/// Most NUMA nodes with which hints are made; the number of hints doubles with each node. The ecosystem's own bound.
pub const NODES_MAX: usize = 8;

/// A processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cpu {
    /// Its number.
    pub id: u32,
    /// Its core; unique over the machine.
    pub core: u32,
    /// Its socket.
    pub socket: u32,
    /// Its NUMA node.
    pub node: u32,
}

/// What of the machine lies where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Its processors that are online.
    pub cpus: Vec<Cpu>,
    /// By NUMA node: bytes of memory by resource (`memory`, `hugepages-2Mi`).
    pub memory: BTreeMap<u32, BTreeMap<String, u64>>,
}

impl Machine {
    /// Its NUMA nodes; one when it does not say.
    pub fn nodes(&self) -> IdSet {
        let nodes: IdSet =
            self.cpus.iter().map(|cpu| cpu.node).chain(self.memory.keys().copied()).collect();
        if nodes.is_empty() { IdSet::from_iter([0]) } else { nodes }
    }

    /// Numbers of the processors of some nodes.
    pub fn cpus_of(&self, nodes: &IdSet) -> IdSet {
        self.cpus.iter().filter(|cpu| nodes.contains(cpu.node)).map(|cpu| cpu.id).collect()
    }
}

/// How strict the place of a container is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Places are not looked at.
    #[default]
    None,
    /// The best place is used, whatever it is.
    BestEffort,
    /// A container without a preferred place is refused.
    Restricted,
    /// A container that does not fit one node is refused.
    SingleNode,
}

impl Policy {
    /// The policy of that name.
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

/// What is placed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each container by itself.
    #[default]
    Container,
    /// All containers of a pod.
    Pod,
}

/// A way in which a resource can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// On these nodes.
    pub nodes: IdSet,
    /// Whether there is none with fewer nodes.
    pub preferred: bool,
}

/// The hints of one resource; `None` where its place does not matter, empty where it cannot be had at all.
pub type Hints = Option<Vec<Hint>>;

/// Hints for `wanted` of something of which a set of nodes has `total`, and `free` at the moment. Preferred are those with as few
/// nodes as the resource could be had with on an idle machine.
pub fn hints(
    nodes: &IdSet,
    wanted: u64,
    total: impl Fn(&IdSet) -> u64,
    free: impl Fn(&IdSet) -> u64,
) -> Vec<Hint> {
    let subsets = nodes.subsets();
    let fewest = subsets.iter().filter(|set| total(set) >= wanted).map(IdSet::len).min();
    let usable = subsets.into_iter().filter(|set| free(set) >= wanted);
    usable.map(|set| Hint { preferred: Some(set.len()) == fewest, nodes: set }).collect()
}

/// The place for resources with these hints, by the policy; `None` for no place in particular.
///
/// # Errors
/// The policy refuses the best there is.
pub fn place(policy: Policy, nodes: &IdSet, all: &[Hints]) -> Result<Option<IdSet>, NoPlace> {
    if policy == Policy::None {
        return Ok(None);
    }
    let best = best(policy, nodes, all);
    // All nodes are no place in particular.
    let place = Some(best.nodes).filter(|set| set != nodes || nodes.len() == 1);
    match policy {
        Policy::None | Policy::BestEffort => Ok(place),
        Policy::Restricted | Policy::SingleNode if best.preferred => Ok(place),
        Policy::Restricted | Policy::SingleNode => Err(NoPlace),
    }
}

/// There is no place that the policy accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Resources cannot be allocated with Topology locality")]
pub struct NoPlace;

fn best(policy: Policy, nodes: &IdSet, all: &[Hints]) -> Hint {
    let mut resources: Vec<Vec<Hint>> = Vec::new();
    for hints in all.iter().flatten() {
        let mut hints = hints.clone();
        if policy == Policy::SingleNode {
            hints.retain(|hint| hint.nodes.len() == 1);
        }
        if hints.is_empty() {
            // It cannot be had at all, or not on one node: nobody prefers anywhere.
            return Hint { nodes: nodes.clone(), preferred: false };
        }
        resources.push(hints);
    }
    preferred_by_all(nodes, &resources).unwrap_or_else(|| common_to_all(nodes, &resources))
}

/// The narrowest set that every resource prefers. Preferred sets that differ are no place: what is common to them is narrower than
/// what one of them needs.
fn preferred_by_all(nodes: &IdSet, resources: &[Vec<Hint>]) -> Option<Hint> {
    let Some((first, rest)) = resources.split_first() else {
        return Some(Hint { nodes: nodes.clone(), preferred: true });
    };
    let is_preferred = |hints: &Vec<Hint>, set: &IdSet| {
        hints.iter().any(|hint| hint.preferred && hint.nodes == *set)
    };
    let shared = first
        .iter()
        .filter(|hint| hint.preferred && rest.iter().all(|hints| is_preferred(hints, &hint.nodes)));
    shared.min_by_key(|hint| (hint.nodes.len(), hint.nodes.clone())).cloned()
}

/// The narrowest set that is common to one hint of each resource. The sets that can be reached are as many as there are sets of
/// nodes, however many resources there are.
fn common_to_all(nodes: &IdSet, resources: &[Vec<Hint>]) -> Hint {
    let mut reached = BTreeSet::from([nodes.clone()]);
    for hints in resources {
        let with = |set: &IdSet| hints.iter().map(|hint| hint.nodes.and(set)).collect::<Vec<_>>();
        reached = reached.iter().flat_map(with).filter(|set| !set.is_empty()).collect();
    }
    let narrowest = reached.into_iter().min_by_key(|set| (set.len(), set.clone()));
    Hint { nodes: narrowest.unwrap_or_else(|| nodes.clone()), preferred: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(nodes: &str, preferred: bool) -> Hint {
        Hint { nodes: nodes.parse().expect("set"), preferred }
    }

    /// The policies on a machine with two nodes.
    #[test]
    fn places() {
        use Policy::{BestEffort, None as Off, Restricted, SingleNode};
        let both: IdSet = "0-1".parse().expect("set");
        let any = || Some(vec![hint("0", true), hint("1", true), hint("0-1", false)]);
        let one = || Some(vec![hint("1", true), hint("0-1", false)]);
        let other = || Some(vec![hint("0", true)]);
        let wide = || Some(vec![hint("0-1", true)]);
        let spread = || Some(vec![hint("0-1", false)]);
        let cases: Vec<(Policy, Vec<Hints>, Result<&str, NoPlace>)> = vec![
            (Off, vec![any(), one()], Ok("")),
            (BestEffort, vec![any(), one()], Ok("1")),
            (Restricted, vec![any(), one()], Ok("1")),
            (SingleNode, vec![any(), one()], Ok("1")),
            (BestEffort, vec![one(), other()], Ok("0")),
            (Restricted, vec![one(), other()], Err(NoPlace)),
            (SingleNode, vec![one(), other()], Err(NoPlace)),
            (Restricted, vec![wide()], Ok("")),
            (SingleNode, vec![wide()], Err(NoPlace)),
            (BestEffort, vec![spread()], Ok("")),
            (Restricted, vec![spread()], Err(NoPlace)),
            (SingleNode, vec![None, None], Ok("")),
            (Restricted, vec![Some(vec![])], Err(NoPlace)),
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
        let got = place(Policy::Restricted, &nodes, &all).expect("place").expect("nodes");
        assert_eq!(got.to_string(), "0");
    }
}
