//! The usage of pods: memory and processes from cgroups, writable layers from the runtime, volumes and logs as they were last measured in
//! the background. Nothing here walks files.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_host::cgroups::CgroupUsage;
use agent_node::eviction::Signal;
use agent_node::eviction::rank::{ContainerUse, PodUse};
use agent_resources::pod_disk_usage::{PodDiskUsage, PodDiskUsages};
use agent_runtime::runtime::ContainerUsage;
use agent_workers::pod_context::{PodContext, PodSnapshot};
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;

/// Timeout of the runtime's usage: a node under pressure does not wait for a hanging runtime.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureScope {
    /// Memory and processes.
    Memory,
    /// Memory, processes and disk.
    Disk,
}

impl MeasureScope {
    /// What ranking for a signal needs.
    pub fn from_signal(signal: Signal) -> Self {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => {
                Self::Memory
            }
            Signal::NodefsAvailable
            | Signal::NodefsInodesFree
            | Signal::ImagefsAvailable
            | Signal::ImagefsInodesFree => Self::Disk,
        }
    }
}

/// Usage of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredPod {
    /// The pod's total.
    pub uses: PodUse,
    /// Bytes in each `emptyDir` volume, including those in memory.
    pub volumes: BTreeMap<String, u64>,
}

/// Measures pods, by uid. A pod that cannot be measured is left out.
pub async fn measure(
    shared: &Arc<PodContext>,
    disks: &PodDiskUsages,
    pods: &[PodSnapshot],
    extent: MeasureScope,
) -> BTreeMap<String, MeasuredPod> {
    let usage = tokio::time::timeout(ANSWER_WITHIN, shared.runtime.usage()).await;
    let layers = usage.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_else(|error| {
        tracing::warn!(
            error = chain(&error),
            "cannot get usage of writable layers from the runtime; pods are ranked without it"
        );
        Vec::new()
    });
    let (cgroups, of) = (shared.cgroups.clone(), pods.to_vec());
    let counted =
        spawn_blocking(move || of.iter().map(|known| cgroups.usage(&known.pod)).collect());
    let counted: Vec<Option<CgroupUsage>> = counted.await.unwrap_or_default();
    let one = |(known, cgroup): (&PodSnapshot, Option<CgroupUsage>)| {
        let uid = &known.pod.metadata.uid;
        let has_layers = layers.iter().any(|layer| layer.pod_uid == *uid);
        let disk = match extent {
            MeasureScope::Memory if cgroup.is_none() && !has_layers => return None,
            MeasureScope::Memory => None,
            MeasureScope::Disk => disks.latest(uid).map(|measured| measured.usage),
        };
        Some((uid.clone(), usage_of(&known.pod, cgroup, &layers, disk.as_deref())))
    };
    pods.iter().zip(counted).filter_map(one).collect()
}

/// The disk usage of a pod and its age, as last measured; `None` before the first measurement.
pub fn measured_disk(disks: &PodDiskUsages, pod: &Pod) -> Option<(MeasuredPod, Duration)> {
    let latest = disks.latest(&pod.metadata.uid)?;
    Some((usage_of(pod, None, &disks.layers(), Some(&latest.usage)), latest.age))
}

fn usage_of(
    pod: &Pod,
    cgroup: Option<CgroupUsage>,
    layers: &[ContainerUsage],
    disk: Option<&PodDiskUsage>,
) -> MeasuredPod {
    let own = layers.iter().filter(|layer| layer.pod_uid == pod.metadata.uid);
    let mut measured = MeasuredPod::default();
    let uses = &mut measured.uses;
    let sum = own.clone().map(|layer| layer.working_set_bytes).fold(0, u64::saturating_add);
    uses.memory = cgroup.map_or(sum, |usage| usage.working_set_bytes);
    uses.tasks = cgroup.map_or(0, |usage| usage.tasks);
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|c| &c.name);
    let ephemeral = pod.spec.ephemeral_containers.iter();
    let ephemeral = ephemeral.map(|c| &c.ephemeral_container_common.name);
    for name in containers.chain(ephemeral) {
        let logs = disk.and_then(|disk| disk.logs.get(name)).copied().unwrap_or_default();
        let mut use_ =
            ContainerUse { name: name.clone(), logs: logs.bytes, ..ContainerUse::default() };
        uses.inodes = uses.inodes.saturating_add(logs.inodes);
        for layer in own.clone().filter(|layer| layer.name == *name) {
            use_.memory = use_.memory.max(layer.working_set_bytes);
            use_.layer = use_.layer.saturating_add(layer.writable_bytes);
            uses.inodes = uses.inodes.saturating_add(layer.writable_inodes);
        }
        uses.containers.push(use_);
    }
    for volume in &pod.spec.volumes {
        let Some(source) = &volume.volume_source.empty_dir else { continue };
        let Some(used) = disk.and_then(|disk| disk.volumes.get(&volume.name)) else { continue };
        measured.volumes.insert(volume.name.clone(), used.bytes);
        if source.medium.is_empty() {
            uses.volumes = uses.volumes.saturating_add(used.bytes);
            uses.inodes = uses.inodes.saturating_add(used.inodes);
        }
    }
    measured
}
