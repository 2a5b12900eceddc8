//! One container's share, from all deciders together.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use proto_api::core::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use super::cpus;
use super::devices::{self, Ask, ContainerEdits, Ids, Inventory};
use super::memory::{self, MemoryGrant, Sizes, View};
use super::set::IdSet;
use super::topology::{self, Hints, Machine, Policy, Scope, hints};
use crate::admission::Refusal;
use crate::resources::is_sidecar;

/// What a container has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Grant {
    /// Whether it is an init container, whose share the pod's other containers use after it.
    pub init: bool,
    /// Processors; empty when it shares those that nobody has.
    pub cpus: IdSet,
    /// Memory; `None` when it may use any.
    pub memory: Option<MemoryGrant>,
    /// Devices by resource.
    pub devices: BTreeMap<String, Ids>,
    /// What the devices' plugins want it to have, by resource.
    pub outfits: BTreeMap<String, ContainerEdits>,
}

/// Everything that is given, by uid of the pod and name of the container.
pub type Allocations = BTreeMap<String, BTreeMap<String, Grant>>;

/// What is managed, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Processors; `None` when no container gets any for itself.
    pub cpus: Option<cpus::Rules>,
    /// Memory; `None` when it is not kept apart by node.
    pub memory: Option<memory::Rules>,
    /// How strict places are.
    pub policy: Policy,
    /// What is placed together.
    pub scope: Scope,
}

/// A share that is decided but for its devices, for which their plugins may have preferences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draft {
    /// The share.
    pub grant: Grant,
    /// Devices to choose.
    pub asks: Vec<Ask>,
}

/// What decisions look at.
pub struct Scene<'a> {
    /// The rules.
    pub rules: &'a Rules,
    /// The machine.
    pub machine: &'a Machine,
    /// The devices.
    pub inventory: &'a Inventory,
    /// What is given already.
    pub holdings: &'a Allocations,
}

/// All containers of a pod in the order in which they are given their share, with whether each is over when the next begins.
pub fn containers(pod: &Pod) -> impl Iterator<Item = (bool, &Container)> {
    let init = pod.spec.init_containers.iter().map(|c| (!is_sidecar(c), c));
    init.chain(pod.spec.containers.iter().map(|c| (false, c)))
}

/// The processors that containers without any of their own share.
pub fn shared_cpus(machine: &Machine, holdings: &Allocations) -> IdSet {
    let all: IdSet = machine.cpus.iter().map(|cpu| cpu.id).collect();
    let given = holdings.values().flat_map(BTreeMap::values);
    given.fold(all, |left, grant| left.without(&grant.cpus))
}

/// Decides the share of one container; what its pod's earlier containers have is in the holdings.
///
/// # Errors
/// It cannot be had, or not where the policy wants it: the pod is refused.
pub fn grant(scene: &Scene<'_>, pod: &Pod, container: &Container) -> Result<Draft, Refusal> {
    let init = containers(pod).any(|(init, c)| init && c.name == container.name);
    let want = Want::of(scene, pod, container);
    let place = match scene.rules.scope {
        Scope::Container => scene.place(pod, &want)?,
        Scope::Pod => {
            // As if nothing of the pod were placed yet, so that every container gets the same answer.
            let mut others = scene.holdings.clone();
            others.remove(&pod.metadata.uid);
            let scene = Scene { holdings: &others, ..*scene };
            scene.place(pod, &Want::of_pod(&scene, pod))?
        }
    };
    let mut draft = Draft::default();
    draft.grant.init = init;
    draft.grant.cpus = scene.take_cpus(pod, &want, place.as_ref())?;
    draft.grant.memory = scene.take_memory(pod, &want, place.as_ref())?;
    for (resource, number) in &want.devices {
        let Some(devices) = scene.inventory.get(resource) else { continue };
        let (used, reusable) = (scene.used(resource), scene.reusable(pod, resource));
        let ask = devices::ask(resource, devices, &used, &reusable, *number, place.as_ref());
        draft.asks.push(ask.map_err(unexpected)?);
    }
    Ok(draft)
}

/// What the ecosystem says when a share cannot be had though the scheduler thought so.
pub fn unexpected(why: impl std::fmt::Display) -> Refusal {
    Refusal {
        reason: "UnexpectedAdmissionError".to_owned(),
        message: format!("Allocate failed due to {why}, which is unexpected"),
    }
}

/// What a container, or a pod, wants for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Want {
    cpus: usize,
    memory: Sizes,
    devices: BTreeMap<String, usize>,
}

impl Want {
    fn of(scene: &Scene<'_>, pod: &Pod, container: &Container) -> Self {
        let rules = scene.rules;
        let limits = container.resources.limits.iter();
        let devices = limits.filter(|(name, _)| scene.inventory.contains_key(*name));
        let number = |q: &proto_api::Quantity| usize::try_from(q.value()).unwrap_or(0);
        Self {
            cpus: rules.cpus.as_ref().map_or(0, |_| cpus::exclusive(pod, container)),
            memory: match rules.memory {
                Some(_) => memory::wanted(pod, container),
                None => Sizes::new(),
            },
            devices: devices
                .map(|(name, amount)| (name.clone(), number(amount)))
                .filter(|(_, number)| *number > 0)
                .collect(),
        }
    }

    /// The larger of all containers together and of each init container.
    fn of_pod(scene: &Scene<'_>, pod: &Pod) -> Self {
        let mut sum = Self::default();
        for (_, container) in containers(pod).filter(|(init, _)| !init) {
            let one = Self::of(scene, pod, container);
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
            let one = Self::of(scene, pod, container);
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

impl Scene<'_> {
    /// Shares of the pod's init containers, which its other containers may use.
    fn own_init<'a>(&'a self, pod: &Pod) -> impl Iterator<Item = &'a Grant> {
        let own = self.holdings.get(&pod.metadata.uid).into_iter().flat_map(BTreeMap::values);
        own.filter(|grant| grant.init)
    }

    /// Devices of a resource that somebody has.
    fn used(&self, resource: &str) -> Ids {
        let grants = self.holdings.values().flat_map(BTreeMap::values);
        grants.filter_map(|grant| grant.devices.get(resource)).flatten().cloned().collect()
    }

    /// Devices of the pod's init containers that no other container of it has taken over.
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

    /// Processors that may be given to the pod; those of its init containers come second.
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

    fn memory(&self, pod: &Pod) -> View<'_> {
        static NONE: memory::Rules = memory::Rules { reserved: BTreeMap::new() };
        let uid = &pod.metadata.uid;
        let others = self.holdings.iter().flat_map(|(of, grants)| {
            let counts = move |grant: &&Grant| of != uid || !grant.init;
            grants.values().filter(counts)
        });
        let held = others.filter_map(|grant| grant.memory.as_ref()).collect();
        let rules = self.rules.memory.as_ref().unwrap_or(&NONE);
        View { machine: self.machine, rules, held }
    }

    /// The place for everything that is wanted.
    fn place(&self, pod: &Pod, want: &Want) -> Result<Option<IdSet>, Refusal> {
        let nodes = self.machine.nodes();
        if self.rules.policy == Policy::None || nodes.len() > topology::NODES_MAX {
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
            let (used, reusable) = (self.used(resource), self.reusable(pod, resource));
            all.push(devices::device_hints(&nodes, devices, &used, &reusable, *number));
        }
        topology::place(self.rules.policy, &nodes, &all).map_err(|why| Refusal {
            reason: "TopologyAffinityError".to_owned(),
            message: why.to_string(),
        })
    }

    fn take_cpus(&self, pod: &Pod, want: &Want, place: Option<&IdSet>) -> Result<IdSet, Refusal> {
        let Some(rules) = self.rules.cpus.as_ref().filter(|_| want.cpus > 0) else {
            return Ok(IdSet::default());
        };
        let threads = cpus::threads_per_core(self.machine);
        if rules.unit == cpus::Unit::Core && !want.cpus.is_multiple_of(threads) {
            return Err(Refusal {
                reason: "SMTAlignmentError".to_owned(),
                message: format!(
                    "SMT Alignment Error: requested {} cpus not multiple cpus per core = {threads}",
                    want.cpus
                ),
            });
        }
        let (free, reusable) = self.free_cpus(pod);
        let again = want.cpus.min(reusable.len());
        let first = cpus::take(self.machine, &reusable, again, rules.unit, place);
        let first = first.unwrap_or_default();
        let missing = want.cpus.saturating_sub(first.len());
        let rest = cpus::take(self.machine, &free, missing, rules.unit, place);
        rest.map(|rest| rest.or(&first)).ok_or_else(|| {
            unexpected(format!(
                "not enough cpus available to satisfy request: requested={}, available={}",
                want.cpus,
                free.len().saturating_add(reusable.len())
            ))
        })
    }

    fn take_memory(
        &self,
        pod: &Pod,
        want: &Want,
        place: Option<&IdSet>,
    ) -> Result<Option<MemoryGrant>, Refusal> {
        if want.memory.is_empty() {
            return Ok(None);
        }
        let nodes = self.memory(pod).choose(&want.memory, place);
        let nodes = nodes.ok_or_else(|| {
            unexpected("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
        })?;
        Ok(Some(MemoryGrant { nodes, sizes: want.memory.clone() }))
    }
}

#[cfg(test)]
mod tests;
