//! Measures the usage of pods: memory and processes from cgroups, writable layers from the runtime,
//! volumes and logs from the disk.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_host::disk_usage::{self, DiskUsage};
use agent_node::eviction::Signal;
use agent_node::eviction::rank::{ContainerUse, PodUse};
use agent_pod::translate::log_directory;
use agent_runtime::runtime::ContainerUsage;
use agent_volume::open_volume;
use agent_volume::sources::VolumePlugin;
use agent_workers::pod_context::{PodContext, PodSnapshot};
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;

/// Timeout of the runtime's usage: a node under pressure does not wait for a hanging runtime.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What to measure; walking directories is expensive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasureScope {
    /// Memory and processes.
    Memory,
    /// Memory, processes and disk.
    Disk,
}

impl MeasureScope {
    /// What ranking for a signal needs.
    pub fn of(signal: Signal) -> Self {
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
    pods: &[PodSnapshot],
    extent: MeasureScope,
) -> BTreeMap<String, MeasuredPod> {
    let asked = tokio::time::timeout(ANSWER_WITHIN, shared.runtime.usage()).await;
    let usages = asked.unwrap_or_else(|_| Ok(Vec::new())).unwrap_or_else(|error| {
        tracing::warn!(
            error = chain(&error),
            "cannot get usage of writable layers from the runtime; pods are ranked without it"
        );
        Vec::new()
    });
    let (shared, pods) = (shared.clone(), pods.to_vec());
    let measured = spawn_blocking(move || {
        let one = |known: &PodSnapshot| {
            let uid = known.pod.metadata.uid.clone();
            Some((uid, of_pod(&shared, known, &usages, extent)?))
        };
        pods.iter().filter_map(one).collect()
    });
    measured.await.unwrap_or_default()
}

fn of_pod(
    shared: &PodContext,
    known: &PodSnapshot,
    usages: &[ContainerUsage],
    extent: MeasureScope,
) -> Option<MeasuredPod> {
    let pod = &known.pod;
    let own: Vec<&ContainerUsage> =
        usages.iter().filter(|usage| usage.pod_uid == pod.metadata.uid).collect();
    let cgroup = shared.cgroups.usage(pod);
    if extent == MeasureScope::Memory && cgroup.is_none() && own.is_empty() {
        return None;
    }
    let mut measured = MeasuredPod::default();
    let uses = &mut measured.uses;
    let sum = own.iter().map(|usage| usage.working_set_bytes).fold(0, u64::saturating_add);
    uses.memory = cgroup.map_or(sum, |usage| usage.working_set_bytes);
    uses.tasks = cgroup.map_or(0, |usage| usage.tasks);
    let logs = PathBuf::from(log_directory(&shared.settings.facts.pod_logs_dir, pod));
    let size = |path: PathBuf| match extent {
        MeasureScope::Memory => DiskUsage::default(),
        MeasureScope::Disk => disk_usage::measure(&path).unwrap_or_default(),
    };
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|c| &c.name);
    let ephemeral = pod.spec.ephemeral_containers.iter();
    let ephemeral = ephemeral.map(|c| &c.ephemeral_container_common.name);
    for name in containers.chain(ephemeral) {
        let logs = size(logs.join(name));
        let layers = own.iter().filter(|usage| usage.name == *name);
        let mut use_ =
            ContainerUse { name: name.clone(), logs: logs.bytes, ..ContainerUse::default() };
        uses.inodes = uses.inodes.saturating_add(logs.inodes);
        for usage in layers {
            use_.memory = use_.memory.max(usage.working_set_bytes);
            use_.layer = use_.layer.saturating_add(usage.writable_bytes);
            uses.inodes = uses.inodes.saturating_add(usage.writable_inodes);
        }
        uses.containers.push(use_);
    }
    for volume in &pod.spec.volumes {
        let Some(source) = &volume.volume_source.empty_dir else { continue };
        let used = match extent {
            MeasureScope::Memory => DiskUsage::default(),
            MeasureScope::Disk => in_empty_dir(shared, &pod.metadata.uid, &volume.name),
        };
        measured.volumes.insert(volume.name.clone(), used.bytes);
        if source.medium.is_empty() {
            uses.volumes = uses.volumes.saturating_add(used.bytes);
            uses.inodes = uses.inodes.saturating_add(used.inodes);
        }
    }
    Some(measured)
}

/// Usage of an `emptyDir`; zero if it does not exist yet.
fn in_empty_dir(shared: &PodContext, uid: &str, volume: &str) -> DiskUsage {
    let top = open_volume::open_volume(
        &shared.settings.root_dir,
        uid,
        volume,
        Some(VolumePlugin::EmptyDir),
    );
    let found = top.ok().flatten().map(|top| disk_usage::measure_open(top.directory));
    found.and_then(Result::ok).unwrap_or_default()
}
