//! Gives containers processors, memory and devices of their own: brings the pure deciders, the plugins and the journal together.
//!
//! One pod is decided about at a time. What it is given is durable before its first container is made, and is given back when the pod
//! is over.

pub mod pool;
pub mod settings;
pub mod shares;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_devices::{DeviceError, Plugins};
use agent_node::admission::AdmissionRefusal;
use agent_node::managers::grant::{GrantContext, containers, shared_cpus, unexpected_admission};
use agent_node::managers::topology::MachineTopology;
use agent_node::managers::{Allocations, Grant, IdSet, ManagerRules, devices, grant};
use agent_pod::spec::{Device, Mount};
use agent_pod::translate::GrantedResources;
use proto_api::core::v1::Pod;
use tokio::sync::watch;

use crate::journal::Journal;
use crate::metrics::OperationMetrics;

/// What starts the keys of pods' shares in the journal.
const SHARE: &str = "share/";
/// The key of the resources that had a plugin.
const RESOURCES: &str = "device-resources";

/// Who has what. Shared by the pods' tasks.
pub struct Allocator {
    rules: ManagerRules,
    machine: MachineTopology,
    plugins: Plugins,
    journal: Journal,
    /// Held while a pod is decided about.
    deciding: tokio::sync::Mutex<()>,
    holdings: Mutex<Allocations>,
    /// Counts changes of the holdings.
    version: watch::Sender<u64>,
    operations: OperationMetrics,
}

impl Allocator {
    /// An allocator that remembers what the journal has.
    pub fn new(
        rules: ManagerRules,
        machine: MachineTopology,
        plugins: Plugins,
        journal: Journal,
        operations: OperationMetrics,
    ) -> Self {
        let holdings = remembered(&journal);
        let (version, _) = watch::channel(0);
        let deciding = tokio::sync::Mutex::default();
        let holdings = Mutex::new(holdings);
        Self { rules, machine, plugins, journal, deciding, holdings, version, operations }
    }

    /// The resources that had a plugin before the agent was started.
    pub fn known_resources(journal: &Journal) -> Vec<String> {
        let bytes = journal.note(RESOURCES).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// The plugins.
    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Gives a pod its share; one that has it already keeps it.
    ///
    /// # Errors
    /// The share cannot be had: the pod does not run here, and nothing is given.
    pub async fn admit(&self, pod: &Pod) -> Result<(), AdmissionRefusal> {
        let inventory = self.plugins.inventory();
        if !self.wants_anything(pod, &inventory) {
            return Ok(());
        }
        let _turn = self.deciding.lock().await;
        let uid = &pod.metadata.uid;
        let mut tried = self.lock().clone();
        if tried.contains_key(uid) {
            return Ok(());
        }
        for (_, container) in containers(pod) {
            let context = GrantContext {
                rules: &self.rules,
                machine: &self.machine,
                inventory: &inventory,
                holdings: &tried,
            };
            let draft = grant::grant(&context, pod, container)?;
            let mut share = draft.grant;
            for ask in draft.asks {
                let chosen = devices::choose_devices(&ask, &self.plugins.prefer(&ask).await);
                let began = std::time::Instant::now();
                let outfit = self.plugins.allocate(&ask.resource, &chosen).await;
                self.operations.record_allocation(&ask.resource, began.elapsed());
                share.outfits.insert(ask.resource.clone(), outfit.map_err(unexpected_admission)?);
                share.devices.insert(ask.resource, chosen);
            }
            tried.entry(uid.clone()).or_default().insert(container.name.clone(), share);
        }
        let own = tried.remove(uid).unwrap_or_default();
        let bytes = serde_json::to_vec(&own).map_err(unexpected_admission)?;
        self.journal.put_note(&format!("{SHARE}{uid}"), Some(bytes)).durable().await;
        self.lock().insert(uid.clone(), own);
        self.version.send_modify(|version| *version += 1);
        Ok(())
    }

    fn wants_anything(&self, pod: &Pod, inventory: &devices::Inventory) -> bool {
        let asks_device = || {
            let mut limits = containers(pod).flat_map(|(_, c)| c.resources.limits.keys());
            limits.any(|name| inventory.contains_key(name))
        };
        self.rules.cpus.is_some() || self.rules.memory.is_some() || asks_device()
    }

    /// What a container has, as the runtime is told.
    pub fn granted(&self, pod: &Pod, container: &str) -> GrantedResources {
        let holdings = self.lock();
        let own = holdings.get(&pod.metadata.uid).and_then(|all| all.get(container));
        let cpus = self.cpus_of(own, &holdings);
        let own = own.cloned().unwrap_or_default();
        let mut granted = GrantedResources { cpus, ..GrantedResources::default() };
        granted.mems = own.memory.map_or(String::new(), |memory| memory.nodes.to_string());
        for outfit in own.outfits.into_values() {
            granted.env.extend(outfit.env);
            granted.annotations.extend(outfit.annotations);
            granted.mounts.extend(outfit.mounts.into_iter().map(mount));
            granted.devices.extend(outfit.devices.into_iter().map(device));
        }
        granted
    }

    /// Processors of a container: its own, else those that nobody has; empty when they are not managed.
    fn cpus_of(&self, own: Option<&Grant>, holdings: &Allocations) -> String {
        match own {
            _ if self.rules.cpus.is_none() => String::new(),
            Some(own) if !own.cpus.is_empty() => own.cpus.to_string(),
            _ => shared_cpus(&self.machine, holdings).to_string(),
        }
    }

    /// Has a container's devices prepared before it starts.
    ///
    /// # Errors
    /// A plugin refuses.
    pub async fn prepare(&self, pod: &Pod, container: &str) -> Result<(), DeviceError> {
        let devices = {
            let holdings = self.lock();
            let own = holdings.get(&pod.metadata.uid).and_then(|all| all.get(container));
            own.map(|own| own.devices.clone()).unwrap_or_default()
        };
        for (resource, ids) in devices {
            self.plugins.prepare(&resource, &ids).await?;
        }
        Ok(())
    }

    /// Takes back what a pod had.
    pub fn release(&self, uid: &str) {
        if self.lock().remove(uid).is_some() {
            self.journal.put_note(&format!("{SHARE}{uid}"), None);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Takes back what pods had that nobody knows any more.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.lock().keys().filter(|uid| !is_known(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// Remembers which resources have a plugin, as they come.
    pub async fn remember_resources(&self) {
        let mut changed = self.plugins.subscribe();
        let mut known = Self::known_resources(&self.journal);
        loop {
            let now: Vec<String> = self.plugins.inventory().into_keys().collect();
            if now != known
                && let Ok(bytes) = serde_json::to_vec(&now)
            {
                self.journal.put_note(RESOURCES, Some(bytes)).durable().await;
                known = now;
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Allocations> {
        self.holdings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a container has.
    fn of(&self, uid: &str, container: &str) -> Grant {
        let holdings = self.lock();
        holdings.get(uid).and_then(|all| all.get(container)).cloned().unwrap_or_default()
    }

    /// Processors that containers could have for themselves.
    fn givable_cpus(&self) -> IdSet {
        let all: IdSet = self.machine.cpus.iter().map(|cpu| cpu.id).collect();
        match &self.rules.cpus {
            Some(rules) => all.without(&rules.reserved),
            None => all,
        }
    }
}

/// The shares in the journal. One that cannot be read is dropped, which may give its devices away a second time: said loudly.
fn remembered(journal: &Journal) -> Allocations {
    let mut holdings = Allocations::new();
    for (key, bytes) in journal.notes(SHARE) {
        let uid = key.strip_prefix(SHARE).unwrap_or(&key).to_owned();
        match serde_json::from_slice::<BTreeMap<String, Grant>>(&bytes) {
            Ok(grants) => {
                holdings.insert(uid, grants);
            }
            Err(error) => tracing::error!(uid, %error, "the share of a pod cannot be read"),
        }
    }
    holdings
}

fn mount((container_path, host_path, read_only): (String, String, bool)) -> Mount {
    Mount { container_path, host_path, read_only, ..Mount::default() }
}

fn device((container_path, host_path, permissions): (String, String, String)) -> Device {
    Device { container_path, host_path, permissions }
}

#[cfg(test)]
mod tests;
