//! Allocation of CPUs, memory and devices to one container.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use super::cpus;
use super::devices::{self, ContainerEdits, DeviceChoice, Ids, Inventory};
use super::memory::{self, MemoryGrant, MemoryView, Sizes};
use super::set::IdSet;
use super::topology::{self, Hints, MachineTopology, TopologyPolicy, TopologyScope, hints};
use crate::admission::AdmissionRefusal;
use crate::resources::is_sidecar;

/// Exclusive resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grant {
    /// Whether it is an init container, whose resources the pod's other containers reuse.
    pub init: bool,
    /// Exclusive CPUs; empty if it uses the shared ones.
    pub cpus: IdSet,
    /// Memory; `None` if it may use any NUMA node.
    pub memory: Option<MemoryGrant>,
    /// Devices by resource.
    pub devices: BTreeMap<String, Ids>,
    /// What device plugins add to the container, by resource.
    pub outfits: BTreeMap<String, ContainerEdits>,
}

/// All allocations, by pod uid and container name.
pub type Allocations = BTreeMap<String, BTreeMap<String, Grant>>;

/// Settings of the resource managers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerRules {
    /// CPU manager; `None` for the policy `none`.
    pub cpus: Option<cpus::CpuRules>,
    /// Memory manager; `None` for the policy `None`.
    pub memory: Option<memory::MemoryRules>,
    /// Topology manager policy.
    pub policy: TopologyPolicy,
    /// Topology manager scope.
    pub scope: TopologyScope,
}

/// An allocation that is complete except for its devices, which plugins may have preferences for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartialGrant {
    /// The allocation so far.
    pub grant: Grant,
    /// Devices to choose.
    pub asks: Vec<DeviceChoice>,
}

/// Policies, machine and current allocations, from which a container's share is decided.
pub struct GrantContext<'a> {
    /// Settings.
    pub rules: &'a ManagerRules,
    /// CPUs and memory of the machine.
    pub machine: &'a MachineTopology,
    /// Devices of all plugins.
    pub inventory: &'a Inventory,
    /// Existing allocations.
    pub holdings: &'a Allocations,
}

/// All containers of a pod in allocation order, each with whether it ends before the next one starts.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (bool, &Container)> {
    let init = pod.spec.init_containers.iter().map(|c| (!is_sidecar(c), c));
    init.chain(pod.spec.containers.iter().map(|c| (false, c)))
}

/// The CPUs shared by containers without exclusive ones.
pub fn shared_cpus(machine: &MachineTopology, holdings: &Allocations) -> IdSet {
    let all: IdSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let given = holdings.values().flat_map(BTreeMap::values);
    given.fold(all, |left, grant| left.without(&grant.cpus))
}

/// Decides the allocation of one container, given those of the pod's earlier containers.
///
/// # Errors
/// The resources are not available, or not where the topology policy requires: the pod is rejected.
pub fn grant(
    scene: &GrantContext<'_>,
    pod: &Pod,
    container: &Container,
) -> Result<PartialGrant, AdmissionRefusal> {
    let init = containers(pod).any(|(init, c)| init && c.name == container.name);
    let want = ResourceRequests::for_container(scene, pod, container);
    let place = match scene.rules.scope {
        TopologyScope::Container => scene.place(pod, &want)?,
        TopologyScope::Pod => {
            // As if nothing of the pod were allocated yet, so that every container gets the same result.
            let mut others = scene.holdings.clone();
            others.remove(&pod.metadata.uid);
            let scene = GrantContext { holdings: &others, ..*scene };
            scene.place(pod, &ResourceRequests::for_pod(&scene, pod))?
        }
    };
    let mut draft = PartialGrant::default();
    draft.grant.init = init;
    draft.grant.cpus = scene.take_cpus(pod, &want, place.as_ref())?;
    draft.grant.memory = scene.take_memory(pod, &want, place.as_ref())?;
    for (resource, number) in &want.devices {
        let Some(devices) = scene.inventory.get(resource) else { continue };
        let (used, reusable) = (scene.used_devices(resource), scene.reusable(pod, resource));
        let ask =
            devices::device_choice(resource, devices, &used, &reusable, *number, place.as_ref());
        draft.asks.push(ask.map_err(unexpected_admission)?);
    }
    Ok(draft)
}

/// The kubelet's rejection when resources are missing although the scheduler placed the pod.
pub fn unexpected_admission(why: impl std::fmt::Display) -> AdmissionRefusal {
    AdmissionRefusal {
        reason: "UnexpectedAdmissionError".to_owned(),
        message: format!("Allocate failed due to {why}, which is unexpected"),
    }
}

/// Exclusive resources that a container or pod requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ResourceRequests {
    cpus: usize,
    memory: Sizes,
    devices: BTreeMap<String, usize>,
}

impl ResourceRequests {
    fn for_container(scene: &GrantContext<'_>, pod: &Pod, container: &Container) -> Self {
        let rules = scene.rules;
        let limits = container.resources.limits.iter();
        let devices = limits.filter(|(name, _)| scene.inventory.contains_key(*name));
        let number = |q: &proto_api::Quantity| usize::try_from(q.value()).unwrap_or(0);
        Self {
            cpus: rules.cpus.as_ref().map_or(0, |_| cpus::exclusive_cpus(pod, container)),
            memory: match rules.memory {
                Some(_) => memory::requested_sizes(pod, container),
                None => Sizes::new(),
            },
            devices: devices
                .map(|(name, amount)| (name.clone(), number(amount)))
                .filter(|(_, number)| *number > 0)
                .collect(),
        }
    }

    /// The larger of the sum of all containers and of each init container.
    fn for_pod(scene: &GrantContext<'_>, pod: &Pod) -> Self {
        let mut sum = Self::default();
        for (_, container) in containers(pod).filter(|(init, _)| !init) {
            let one = Self::for_container(scene, pod, container);
            sum.cpus = sum.cpus.saturating_add(one.cpus);
            for (name, size) in one.memory {
                let known = sum.memory.entry(name).or_default();
                *known = known.saturating_add(size);
            }
            for (name, number) in one.devices {
                let known = sum.devices.entry(name).or_default();
                *known = known.saturating_add(number);
            }
        }
        for (_, container) in containers(pod).filter(|(init, _)| *init) {
            let one = Self::for_container(scene, pod, container);
            sum.cpus = sum.cpus.max(one.cpus);
            for (name, size) in one.memory {
                let known = sum.memory.entry(name).or_default();
                *known = size.max(*known);
            }
            for (name, number) in one.devices {
                let known = sum.devices.entry(name).or_default();
                *known = number.max(*known);
            }
        }
        sum
    }
}

impl GrantContext<'_> {
    /// Allocations of the pod's init containers, which its other containers may reuse.
    fn own_init<'a>(&'a self, pod: &Pod) -> impl Iterator<Item = &'a Grant> {
        let own = self.holdings.get(&pod.metadata.uid).into_iter().flat_map(BTreeMap::values);
        own.filter(|grant| grant.init)
    }

    /// Devices of a resource that are in use.
    fn used_devices(&self, resource: &str) -> Ids {
        let grants = self.holdings.values().flat_map(BTreeMap::values);
        grants.filter_map(|grant| grant.devices.get(resource)).flatten().cloned().collect()
    }

    /// Devices of the pod's init containers that no other container of the pod has reused yet.
    fn reusable(&self, pod: &Pod, resource: &str) -> Ids {
        let own = self.holdings.get(&pod.metadata.uid).into_iter().flat_map(BTreeMap::values);
        let taken: Ids = own
            .filter(|grant| !grant.init)
            .filter_map(|grant| grant.devices.get(resource))
            .flatten()
            .cloned()
            .collect();
        let init = self.own_init(pod).filter_map(|grant| grant.devices.get(resource)).flatten();
        init.filter(|id| !taken.contains(*id)).cloned().collect()
    }

    /// CPUs available to the pod: free ones, and those of its init containers.
    fn free_cpus(&self, pod: &Pod) -> (IdSet, IdSet) {
        let reserved = self.rules.cpus.as_ref().map(|rules| rules.reserved.clone());
        let free = shared_cpus(self.machine, self.holdings).without(&reserved.unwrap_or_default());
        let own = self.holdings.get(&pod.metadata.uid).into_iter().flat_map(BTreeMap::values);
        let taken = own
            .filter(|grant| !grant.init)
            .fold(IdSet::default(), |all, grant| all.or(&grant.cpus));
        let init = self.own_init(pod).fold(IdSet::default(), |all, grant| all.or(&grant.cpus));
        (free, init.without(&taken))
    }

    fn memory(&self, pod: &Pod) -> MemoryView<'_> {
        static NONE: memory::MemoryRules = memory::MemoryRules { reserved: BTreeMap::new() };
        let uid = &pod.metadata.uid;
        let others = self.holdings.iter().flat_map(|(of, grants)| {
            let counts = move |grant: &&Grant| of != uid || !grant.init;
            grants.values().filter(counts)
        });
        let held = others.filter_map(|grant| grant.memory.as_ref()).collect();
        let rules = self.rules.memory.as_ref().unwrap_or(&NONE);
        MemoryView { machine: self.machine, rules, held }
    }

    /// NUMA nodes for all requested resources.
    fn place(&self, pod: &Pod, want: &ResourceRequests) -> Result<Option<IdSet>, AdmissionRefusal> {
        let nodes = self.machine.nodes();
        if self.rules.policy == TopologyPolicy::None || nodes.len() > topology::NODES_MAX {
            return Ok(None);
        }
        let mut all: Vec<Hints> = Vec::new();
        if want.cpus > 0 {
            let (free, reusable) = self.free_cpus(pod);
            let free = free.or(&reusable);
            let of = |set: &IdSet| self.machine.cpus_of(set);
            let total = |set: &IdSet| of(set).len() as u64;
            let left = |set: &IdSet| of(set).and(&free).len() as u64;
            all.push(Some(hints(&nodes, want.cpus as u64, total, left)));
        }
        all.extend(self.memory(pod).hints(&want.memory).into_values().map(Some));
        for (resource, number) in &want.devices {
            let Some(devices) = self.inventory.get(resource) else { continue };
            let (used, reusable) = (self.used_devices(resource), self.reusable(pod, resource));
            all.push(devices::device_hints(&nodes, devices, &used, &reusable, *number));
        }
        topology::place(self.rules.policy, &nodes, &all).map_err(|why| AdmissionRefusal {
            reason: "TopologyAffinityError".to_owned(),
            message: why.to_string(),
        })
    }

    fn take_cpus(
        &self,
        pod: &Pod,
        want: &ResourceRequests,
        place: Option<&IdSet>,
    ) -> Result<IdSet, AdmissionRefusal> {
        let Some(rules) = self.rules.cpus.as_ref().filter(|_| want.cpus > 0) else {
            return Ok(IdSet::default());
        };
        let threads = cpus::threads_per_core(self.machine);
        if rules.unit == cpus::CpuUnit::Core && !want.cpus.is_multiple_of(threads) {
            return Err(AdmissionRefusal {
                reason: "SMTAlignmentError".to_owned(),
                message: format!(
                    "SMT Alignment Error: requested {} cpus not multiple cpus per core = {threads}",
                    want.cpus
                ),
            });
        }
        let (free, reusable) = self.free_cpus(pod);
        let again = want.cpus.min(reusable.len());
        let first = cpus::take_cpus(self.machine, &reusable, again, rules.unit, place);
        let first = first.unwrap_or_default();
        let missing = want.cpus.saturating_sub(first.len());
        let rest = cpus::take_cpus(self.machine, &free, missing, rules.unit, place);
        rest.map(|rest| rest.or(&first)).ok_or_else(|| {
            unexpected_admission(format!(
                "not enough cpus available to satisfy request: requested={}, available={}",
                want.cpus,
                free.len().saturating_add(reusable.len())
            ))
        })
    }

    fn take_memory(
        &self,
        pod: &Pod,
        want: &ResourceRequests,
        place: Option<&IdSet>,
    ) -> Result<Option<MemoryGrant>, AdmissionRefusal> {
        if want.memory.is_empty() {
            return Ok(None);
        }
        let nodes = self.memory(pod).choose(&want.memory, place);
        let nodes = nodes.ok_or_else(|| {
            unexpected_admission("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
        })?;
        Ok(Some(MemoryGrant { nodes, sizes: want.memory.clone() }))
    }
}

#[cfg(test)]
mod tests;
