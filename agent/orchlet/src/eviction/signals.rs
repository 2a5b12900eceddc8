//! Reads the node's eviction signals from the kernel. A signal that cannot be read is left out.

use std::path::{Path, PathBuf};

use agent_clock as clock;
use agent_host::machine;
use agent_node::eviction::{Reading, Readings, Signal};
use agent_workers::pod_context::PodContext;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;

/// The file systems that eviction observes.
#[derive(Clone, Debug)]
pub struct FileSystems {
    /// The agent's root directory.
    pub node: PathBuf,
    /// The runtime's directory of images and writable layers, if it reports one.
    pub images: Option<PathBuf>,
    /// Whether both are on one file system.
    pub is_one: bool,
}

/// Finds the file systems.
pub async fn disks(shared: &PodContext) -> FileSystems {
    let node = shared.settings.root_dir.clone();
    let images = shared.images.filesystem().await.ok();
    let (a, b) = (node.clone(), images.clone());
    let is_one = spawn_blocking(move || b.is_none_or(|b| device(&a) == device(&b))).await;
    FileSystems { node, images, is_one: is_one.unwrap_or(true) }
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|meta| meta.dev())
}

/// Reads all signals; `pods_memory` is the memory that all pods together may use.
pub async fn read(shared: &PodContext, disks: &FileSystems, pods_memory: u64) -> Readings {
    let (disks, place) = (disks.clone(), shared.cgroups.clone());
    let at = clock::boot();
    let read = spawn_blocking(move || {
        let mut readings = Readings::new();
        let mut put = |signal, available, capacity| {
            readings.insert(signal, Reading { available, capacity, at });
        };
        match machine::usage() {
            Ok(usage) => {
                put(
                    Signal::MemoryAvailable,
                    usage.memory_available_bytes,
                    usage.memory_total_bytes,
                );
                let left = usage.tasks_max.saturating_sub(usage.tasks);
                put(Signal::PidAvailable, left, usage.tasks_max);
            }
            Err(error) => tracing::warn!(
                error = chain(&error),
                "cannot read eviction signals; they are ignored in this pass"
            ),
        }
        if let Some(used) = place.pods_memory() {
            let left = pods_memory.saturating_sub(used);
            put(Signal::AllocatableMemoryAvailable, left, pods_memory);
        }
        let node = (Some(&disks.node), Signal::NodefsAvailable, Signal::NodefsInodesFree);
        let images = (disks.images.as_ref(), Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
        for (path, space, inodes) in [node, images] {
            let Some(path) = path else { continue };
            match machine::disk_room(path) {
                Ok(disk) => {
                    put(space, disk.available_bytes, disk.total_bytes);
                    // A file system without an inode table never runs out of inodes.
                    if disk.inodes > 0 {
                        put(inodes, disk.inodes_free, disk.inodes);
                    }
                }
                Err(error) => tracing::warn!(
                    error = chain(&error),
                    "cannot read eviction signals; they are ignored in this pass"
                ),
            }
        }
        readings
    });
    read.await.unwrap_or_default()
}
