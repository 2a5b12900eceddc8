//! Exclusive CPUs: whole sockets first, then whole cores, then single threads, so that the remainder stays as contiguous as
//! possible. Containers without exclusive CPUs share the rest.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::core::v1::{Container, Pod};

use super::set::IdSet;
use super::topology::{Cpu, MachineTopology};
use crate::qos::{QosClass, qos_class};
use crate::resources::CPU;

/// Settings of the CPU manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuRules {
    /// CPUs that are never allocated exclusively.
    pub reserved: IdSet,
    /// Whether only whole cores are allocated.
    pub unit: CpuUnit,
}

/// Whether exclusive CPUs are allocated as threads or as whole cores (`full-pcpus-only`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuUnit {
    /// Single threads.
    #[default]
    Thread,
    /// Whole cores (`full-pcpus-only`); a request for a part of a core is rejected.
    Core,
}

/// Number of exclusive CPUs: the CPU request of a container in a guaranteed pod if it is a whole number, otherwise 0.
pub fn exclusive_cpus(pod: &Pod, container: &Container) -> usize {
    if qos_class(pod) != QosClass::Guaranteed {
        return 0;
    }
    let resources = &container.resources;
    let asked = resources.requests.get(CPU).or_else(|| resources.limits.get(CPU));
    let milli = asked.map_or(0, |q| q.as_milli());
    if milli % 1000 == 0 { usize::try_from(milli / 1000).unwrap_or(0) } else { 0 }
}

/// The CPUs to reserve if only their number is configured: those that [`take`] would allocate first.
pub fn choose_reserved(machine: &MachineTopology, number: usize) -> Option<IdSet> {
    let all = machine.cpus.iter().map(|cpu| cpu.id).collect();
    take_cpus(machine, &all, number, CpuUnit::Thread, None)
}

/// Allocates `number` of the `free` CPUs, those of `nodes` first; `None` if there are too few.
pub fn take_cpus(
    machine: &MachineTopology,
    free: &IdSet,
    number: usize,
    unit: CpuUnit,
    nodes: Option<&IdSet>,
) -> Option<IdSet> {
    if free.len() < number {
        return None;
    }
    let mut taken = IdSet::default();
    if let Some(nodes) = nodes {
        let near = free.and(&machine.cpus_of(nodes));
        taken = pack(machine, &near, number.min(near.len()), unit);
    }
    let rest = free.without(&taken);
    taken = taken.or(&pack(machine, &rest, number.saturating_sub(taken.len()), unit));
    (taken.len() == number).then_some(taken)
}

/// At most `number` CPUs of `free`, largest whole parts first. With [`CpuUnit::Core`] only whole cores.
fn pack(machine: &MachineTopology, free: &IdSet, number: usize, unit: CpuUnit) -> IdSet {
    let mut taken = IdSet::default();
    take_whole(machine, free, number, |cpu| cpu.socket, &mut taken);
    take_whole(machine, free, number, |cpu| cpu.core, &mut taken);
    if unit == CpuUnit::Thread {
        // Sockets and cores with the fewest free CPUs are used first.
        let left = free.without(&taken);
        let count = |of: fn(&Cpu) -> u32, cpu: &Cpu| {
            let same = |other: &&Cpu| of(other) == of(cpu) && left.contains(other.id);
            machine.cpus.iter().filter(same).count()
        };
        let mut singles: Vec<&Cpu> = machine.cpus.iter().filter(|c| left.contains(c.id)).collect();
        singles.sort_by_key(|cpu| {
            (count(|c| c.socket, cpu), cpu.socket, count(|c| c.core, cpu), cpu.core, cpu.id)
        });
        for cpu in singles.into_iter().take(number.saturating_sub(taken.len())) {
            taken.insert(cpu.id);
        }
    }
    taken
}

/// Takes parts (all CPUs with the same value of `part`) that are entirely free and not larger than the remaining number.
fn take_whole(
    machine: &MachineTopology,
    free: &IdSet,
    number: usize,
    part: fn(&Cpu) -> u32,
    taken: &mut IdSet,
) {
    let mut parts: BTreeMap<u32, IdSet> = BTreeMap::new();
    for cpu in &machine.cpus {
        parts.entry(part(cpu)).or_default().insert(cpu.id);
    }
    let still_free = free.without(taken);
    for members in parts.values().filter(|members| members.is_within(&still_free)) {
        if members.len() <= number.saturating_sub(taken.len()) {
            *taken = taken.or(members);
        }
    }
}

/// Largest number of threads per core.
pub fn threads_per_core(machine: &MachineTopology) -> usize {
    let mut cores: BTreeMap<u32, usize> = BTreeMap::new();
    machine.cpus.iter().for_each(|cpu| {
        let threads = cores.entry(cpu.core).or_default();
        *threads = threads.saturating_add(1);
    });
    cores.into_values().max().unwrap_or(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two sockets with one NUMA node each, two cores per socket, two threads per core: core n has threads n and n + 4.
    pub(crate) fn machine() -> MachineTopology {
        let cpu = |id: u32| {
            let core = id % 4;
            Cpu { id, core, socket: core / 2, node: core / 2 }
        };
        MachineTopology { cpus: (0..8).map(cpu).collect(), memory: BTreeMap::new() }
    }

    fn set(text: &str) -> IdSet {
        text.parse().expect("set")
    }

    #[test]
    fn whole_parts_first() {
        let cases = [
            ("0-7", 1, None, Some("0")),
            ("0-7", 2, None, Some("0,4")),
            ("0-7", 3, None, Some("0-1,4")),
            ("0-7", 4, None, Some("0-1,4-5")),
            ("1-7", 4, None, Some("2-3,6-7")),
            ("1-7", 1, None, Some("4")),
            ("0-7", 2, Some("1"), Some("2,6")),
            ("0-7", 6, Some("1"), Some("0,2-4,6-7")),
            ("0-3", 5, None, None),
        ];
        for (free, number, nodes, expect) in cases {
            let nodes = nodes.map(set);
            let got = take_cpus(&machine(), &set(free), number, CpuUnit::Thread, nodes.as_ref());
            assert_eq!(got, expect.map(set), "{number} of {free} near {nodes:?}");
        }
    }

    #[test]
    fn full_cores_are_allocated_only_with_the_core_unit() {
        let got = take_cpus(&machine(), &set("1-7"), 2, CpuUnit::Core, None);
        assert_eq!(got, Some(set("1,5")));
        assert_eq!(take_cpus(&machine(), &set("1-7"), 3, CpuUnit::Core, None), None);
        assert_eq!(threads_per_core(&machine()), 2);
        assert_eq!(choose_reserved(&machine(), 1), Some(set("0")));
    }

    #[test]
    fn only_guaranteed_containers_with_integer_cpus_get_exclusive_cpus() {
        let mut pod = Pod::default();
        let container = |cpu: &str| {
            let mut container = Container::default();
            for (name, amount) in [("cpu", cpu), ("memory", "1Gi")] {
                let amount = amount.parse().expect("quantity");
                container.resources.limits.insert(name.into(), amount);
            }
            container
        };
        pod.spec.containers = vec![container("2"), container("1500m")];
        let counts = |pod: &Pod| -> Vec<usize> {
            pod.spec.containers.iter().map(|c| exclusive_cpus(pod, c)).collect()
        };
        assert_eq!(counts(&pod), [2, 0]);
        pod.spec.containers[1].resources.limits.clear();
        assert_eq!(counts(&pod), [0, 0], "the pod is not guaranteed any more");
    }

    proptest! {
        /// Allocated CPUs were free, match the requested number, and are near while near ones are free.
        #[test]
        fn the_requested_number_of_free_cpus_is_allocated(free in 0_u32..256, number in 0_usize..9, near in 0_u32..2) {
            let free: IdSet = (0..8).filter(|bit| free & (1 << bit) != 0).collect();
            let nodes = IdSet::from_iter([near]);
            let taken = take_cpus(&machine(), &free, number, CpuUnit::Thread, Some(&nodes));
            prop_assert_eq!(taken.is_some(), free.len() >= number);
            if let Some(taken) = taken {
                prop_assert!(taken.is_within(&free));
                prop_assert_eq!(taken.len(), number);
                let near = free.and(&machine().cpus_of(&nodes));
                prop_assert_eq!(taken.and(&near).len(), number.min(near.len()));
            }
        }
    }
}
