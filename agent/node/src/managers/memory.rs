//! NUMA memory of containers in guaranteed pods.
//!
//! The set of nodes from which a container allocates is a group. A node belongs to one group at a time, so the memory of a group
//! can be accounted for without knowing where the kernel placed each page.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use super::set::IdSet;
use super::topology::{MachineTopology, TopologyHint, hints};
use crate::qos::{QosClass, qos_class};
use crate::resources::{HUGE_PAGES, MEMORY};

/// Bytes by resource: `memory`, `hugepages-2Mi`.
pub type Sizes = BTreeMap<String, u64>;

/// Settings of the memory manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryRules {
    /// Reserved bytes by node and resource.
    pub reserved: BTreeMap<u32, Sizes>,
}

/// Memory allocated to a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryGrant {
    /// NUMA nodes of the memory.
    pub nodes: IdSet,
    /// Bytes by resource.
    pub sizes: Sizes,
}

/// Memory that a container requests; nothing unless its pod is guaranteed.
pub fn requested_sizes(pod: &Pod, container: &Container) -> Sizes {
    if qos_class(pod) != QosClass::Guaranteed {
        return Sizes::new();
    }
    let resources = &container.resources;
    let mut sizes = Sizes::new();
    for (name, amount) in resources.limits.iter().chain(&resources.requests) {
        if (name == MEMORY || name.starts_with(HUGE_PAGES)) && !amount.is_zero() {
            sizes.insert(name.clone(), amount.as_bytes());
        }
    }
    sizes
}

/// The machine's memory and its allocations.
pub struct MemoryView<'a> {
    /// CPUs and memory of the machine.
    pub machine: &'a MachineTopology,
    /// Settings.
    pub rules: &'a MemoryRules,
    /// Existing allocations.
    pub held: Vec<&'a MemoryGrant>,
}

impl MemoryView<'_> {
    fn total(&self, nodes: &IdSet, resource: &str) -> u64 {
        let of = |all: &BTreeMap<u32, Sizes>, node| {
            all.get(&node).and_then(|sizes| sizes.get(resource)).copied().unwrap_or(0)
        };
        let left =
            |node| of(&self.machine.memory, node).saturating_sub(of(&self.rules.reserved, node));
        nodes.iter().map(left).sum()
    }

    fn free(&self, nodes: &IdSet, resource: &str) -> u64 {
        let touching = self.held.iter().filter(|grant| !grant.nodes.and(nodes).is_empty());
        let mut used = 0_u64;
        for grant in touching {
            if grant.nodes != *nodes {
                return 0;
            }
            used = used.saturating_add(grant.sizes.get(resource).copied().unwrap_or(0));
        }
        self.total(nodes, resource).saturating_sub(used)
    }

    /// Topology hints for each requested resource.
    pub fn hints(&self, wanted: &Sizes) -> BTreeMap<String, Vec<TopologyHint>> {
        let nodes = self.machine.nodes();
        let of = |resource: &String, bytes: u64| {
            let total = |set: &IdSet| self.total(set, resource);
            hints(&nodes, bytes, total, |set| self.free(set, resource))
        };
        wanted.iter().map(|(name, bytes)| (name.clone(), of(name, *bytes))).collect()
    }

    /// NUMA nodes for `wanted`: `place` if it has enough, else the smallest set around `place` that has, else any set; `None` if
    /// no set has enough.
    pub fn choose(&self, wanted: &Sizes, place: Option<&IdSet>) -> Option<IdSet> {
        let has = |set: &IdSet| wanted.iter().all(|(name, bytes)| self.free(set, name) >= *bytes);
        if let Some(place) = place.filter(|place| has(place)) {
            return Some(place.clone());
        }
        let mut usable: Vec<IdSet> =
            self.machine.nodes().subsets().into_iter().filter(has).collect();
        let holds = |set: &IdSet| place.is_none_or(|place| place.is_within(set));
        usable.sort_by_key(|set| (!holds(set), set.len()));
        usable.into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn sizes(gib: u64) -> Sizes {
        Sizes::from([(MEMORY.to_owned(), gib * GIB)])
    }

    fn machine() -> MachineTopology {
        MachineTopology {
            memory: BTreeMap::from([(0, sizes(8)), (1, sizes(8))]),
            ..MachineTopology::default()
        }
    }

    fn grant(nodes: &str, gib: u64) -> MemoryGrant {
        MemoryGrant { nodes: nodes.parse().expect("set"), sizes: sizes(gib) }
    }

    #[test]
    fn one_node_before_two() {
        let rules = MemoryRules { reserved: BTreeMap::from([(0, sizes(1))]) };
        let cases = [
            (vec![], 4, None, Some("0")),
            (vec![], 8, None, Some("1")),
            (vec![], 9, None, Some("0-1")),
            (vec![], 16, None, None),
            (vec![grant("0", 4)], 4, None, Some("1")),
            (vec![grant("0", 4)], 3, None, Some("0")),
            (vec![grant("0", 4)], 9, None, None),
            (vec![grant("0-1", 4)], 4, None, Some("0-1")),
            (vec![], 4, Some("1"), Some("1")),
            (vec![grant("1", 6)], 4, Some("1"), Some("0")),
        ];
        for (held, gib, place, expect) in cases {
            let machine = machine();
            let view = MemoryView { machine: &machine, rules: &rules, held: held.iter().collect() };
            let place: Option<IdSet> = place.map(|text: &str| text.parse().expect("set"));
            let got = view.choose(&sizes(gib), place.as_ref());
            let expect = expect.map(|text: &str| text.parse::<IdSet>().expect("set"));
            assert_eq!(got, expect, "{gib} GiB beside {held:?}");
        }
    }

    #[test]
    fn hints_prefer_what_an_idle_machine_would_give() {
        let (machine, rules) = (machine(), MemoryRules::default());
        let held = grant("0", 6);
        let view = MemoryView { machine: &machine, rules: &rules, held: vec![&held] };
        let hints = &view.hints(&sizes(4))[MEMORY];
        let shown: Vec<(String, bool)> =
            hints.iter().map(|h| (h.nodes.to_string(), h.preferred)).collect();
        assert_eq!(shown, [("1".to_owned(), true)], "node 0 is in a group of its own");
    }
}
