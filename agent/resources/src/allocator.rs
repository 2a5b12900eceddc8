//! Allocates exclusive CPUs, memory and devices to containers: combines the pure deciders
//! (`agent_node::managers`), device plugins and the journal.
//!
//! Pods are admitted one at a time. An allocation is durable before the pod's first container is
//! created, and is released when the pod terminates.

pub mod pool;
pub mod settings;
pub mod shares;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent_devices::{DeviceError, Plugins};
use agent_journal::Journal;
use agent_node::admission::AdmissionRefusal;
use agent_node::managers::container_allocation::{
    GrantContext, containers, shared_cpus, unexpected_admission,
};
use agent_node::managers::topology::MachineTopology;
use agent_node::managers::{Allocations, Grant, IdSet, ManagerRules, devices, grant};
use agent_pod::spec::{DeviceNode, Mount};
use agent_pod::translate::GrantedResources;
use agent_telemetry::metrics::OperationMetrics;
use proto_api::core::v1::Pod;
use tokio::sync::watch;

/// Prefix of the journal keys of pods' allocations.
const SHARE: &str = "share/";
/// Journal key of the resources that had a device plugin.
const RESOURCES: &str = "device-resources";

/// The allocations of the node. Shared by pod tasks.
pub struct Allocator {
    rules: ManagerRules,
    machine: MachineTopology,
    plugins: Plugins,
    journal: Journal,
    /// Held while a pod is admitted.
    deciding: tokio::sync::Mutex<()>,
    holdings: Mutex<Allocations>,
    /// Counts changes of the allocations.
    version: watch::Sender<u64>,
    operations: OperationMetrics,
}

impl Allocator {
    /// An allocator with the allocations of the journal.
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

    /// Resources that had a device plugin before the start.
    pub fn known_resources(journal: &Journal) -> Vec<String> {
        let bytes = journal.note(RESOURCES).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// The device plugins.
    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Allocates a pod's resources; existing allocations are kept.
    ///
    /// # Errors
    /// The resources cannot be allocated: the pod is not admitted, and nothing is allocated.
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
            let draft = grant(&context, pod, container)?;
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

    /// A container's allocations for its CRI configuration.
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

    /// CPUs of a container: its exclusive ones, else the shared pool; empty without a CPU manager.
    fn cpus_of(&self, own: Option<&Grant>, holdings: &Allocations) -> String {
        match own {
            _ if self.rules.cpus.is_none() => String::new(),
            Some(own) if !own.cpus.is_empty() => own.cpus.to_string(),
            _ => shared_cpus(&self.machine, holdings).to_string(),
        }
    }

    /// Calls PreStartContainer of the device plugins of a container.
    ///
    /// # Errors
    /// A plugin fails.
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

    /// Releases a pod's allocations.
    pub fn release(&self, uid: &str) {
        if self.lock().remove(uid).is_some() {
            self.journal.put_note(&format!("{SHARE}{uid}"), None);
            self.version.send_modify(|version| *version += 1);
        }
    }

    /// Releases allocations of unknown pods.
    pub fn retain(&self, is_known: impl Fn(&str) -> bool) {
        let gone: Vec<String> = self.lock().keys().filter(|uid| !is_known(uid)).cloned().collect();
        gone.iter().for_each(|uid| self.release(uid));
    }

    /// Records in the journal which resources have a plugin.
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

    /// The allocations of a container.
    fn find_grant(&self, uid: &str, container: &str) -> Grant {
        let holdings = self.lock();
        holdings.get(uid).and_then(|all| all.get(container)).cloned().unwrap_or_default()
    }

    /// CPUs that may be allocated exclusively.
    fn givable_cpus(&self) -> IdSet {
        let all: IdSet = self.machine.cpus.iter().map(|cpu| cpu.id).collect();
        match &self.rules.cpus {
            Some(rules) => all.without(&rules.reserved),
            None => all,
        }
    }
}

/// The allocations in the journal. One that cannot be read is dropped with an error, since its
/// devices may be allocated twice.
fn remembered(journal: &Journal) -> Allocations {
    let mut holdings = Allocations::new();
    for (key, bytes) in journal.notes(SHARE) {
        let uid = key.strip_prefix(SHARE).unwrap_or(&key).to_owned();
        match serde_json::from_slice::<BTreeMap<String, Grant>>(&bytes) {
            Ok(grants) => {
                holdings.insert(uid, grants);
            }
            Err(error) => {
                tracing::error!(uid, %error, "cannot read a pod's allocations in the journal; they are dropped, and their devices may be allocated again")
            }
        }
    }
    holdings
}

fn mount((container_path, host_path, read_only): (String, String, bool)) -> Mount {
    Mount { container_path, host_path, read_only, ..Mount::default() }
}

fn device((container_path, host_path, permissions): (String, String, String)) -> DeviceNode {
    DeviceNode { container_path, host_path, permissions }
}

#[cfg(test)]
mod tests;
