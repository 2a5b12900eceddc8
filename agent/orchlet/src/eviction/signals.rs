//! Reads the signals of the node from the kernel. One that cannot be read is left out.

use std::path::{Path, PathBuf};

use agent_host::machine;
use agent_node::eviction::{Reading, Readings, Signal};
use proto_daemon::exit::chain;
use tokio::task::spawn_blocking;

use crate::clock;
use crate::pods::pod_context::Parts;

/// The disks of the node.
#[derive(Clone, Debug)]
pub struct Disks {
    /// Where the agent keeps pods.
    pub node: PathBuf,
    /// Where the runtime keeps images and writable layers, if it says.
    pub images: Option<PathBuf>,
    /// Whether both are one file system.
    pub is_one: bool,
}

/// Which disks there are.
pub async fn disks(parts: &Parts) -> Disks {
    let node = parts.root_dir.clone();
    let images = parts.images.filesystem().await.ok();
    let (a, b) = (node.clone(), images.clone());
    let is_one = spawn_blocking(move || b.is_none_or(|b| device(&a) == device(&b))).await;
    Disks { node, images, is_one: is_one.unwrap_or(true) }
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|meta| meta.dev())
}

/// Reads all signals now; `pods_memory` is what pods together may use.
pub async fn read(parts: &Parts, disks: &Disks, pods_memory: u64) -> Readings {
    let (disks, place) = (disks.clone(), parts.place.clone());
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
            Err(error) => tracing::warn!(error = chain(&error), "signals are missing"),
        }
        if let Some(used) = place.pods_memory() {
            let left = pods_memory.saturating_sub(used);
            put(Signal::AllocatableMemoryAvailable, left, pods_memory);
        }
        let node = (Some(&disks.node), Signal::NodefsAvailable, Signal::NodefsInodesFree);
        let images = (disks.images.as_ref(), Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
        for (path, space, inodes) in [node, images] {
            let Some(path) = path else { continue };
            match machine::disk(path) {
                Ok(disk) => {
                    put(space, disk.available_bytes, disk.total_bytes);
                    // A file system without a table of inodes never runs out of them.
                    if disk.inodes > 0 {
                        put(inodes, disk.inodes_free, disk.inodes);
                    }
                }
                Err(error) => tracing::warn!(error = chain(&error), "signals are missing"),
            }
        }
        readings
    });
    read.await.unwrap_or_default()
}
