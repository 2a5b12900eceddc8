//! Image garbage collection under disk pressure. `agent_node::image_gc` decides what to remove and
//! in which order; the disk is checked after each removal, so that no more than necessary is
//! removed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_clock as clock;
use agent_host::machine::{self, MachineError};
use agent_node::image_gc::{
    ImageDiskRoom, ImageGcLimits, PresentImage, RequiredImages, bytes_to_free,
};
use agent_node::image_name::ImageName;
use agent_runtime::RuntimeError;
use agent_telemetry::node_events::NodeEvents;
use proto_api::event_report::EventKind;
use proto_daemon::exit::chain;
use proto_daemon::panics::spawn_blocking;
use proto_daemon::statusz::TaskStatus;
use tokio::task::JoinError;

use super::pulls::lock;
use super::{Images, PodImages};

/// How long a list of the runtime's images is reused.
const LOOK_PERIOD: Duration = Duration::from_secs(300);

/// How much to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimGoal {
    /// This many more bytes than are free now.
    Bytes(u64),
    /// As much as possible.
    Everything,
}

/// Result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimedSpace {
    /// Bytes that were freed.
    pub bytes: u64,
    /// Images removed.
    pub images: usize,
}

/// Why images are not collected. The next check tries again; until then pods may be evicted instead.
#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    /// The runtime does not list its images, pods or file systems.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The runtime reports no file system of images.
    #[error("the runtime reports no image filesystem")]
    NoFilesystem,
    /// The size of the file system cannot be read.
    #[error(transparent)]
    Disk(#[from] MachineError),
    /// The read of its size panicked or was cancelled.
    #[error("reading the size of the image filesystem was interrupted")]
    Interrupted(#[source] JoinError),
}

/// Checks the disk every few minutes for as long as the agent runs.
pub async fn run(
    images: Arc<Images>,
    pods: Arc<dyn PodImages>,
    limits: ImageGcLimits,
    events: NodeEvents,
    page: TaskStatus,
) {
    let mut failed_before = false;
    loop {
        page.started("period");
        match keep_free(&images, &*pods, limits, &events).await {
            Ok(freed) => {
                failed_before = false;
                page.done(format!("{} images removed", freed.images));
            }
            Err(error) => {
                let line = chain(&error);
                tracing::warn!(
                    error = line,
                    "image garbage collection failed; retried at the next check"
                );
                // A single failure may be a restart of the runtime.
                if std::mem::replace(&mut failed_before, true) {
                    events.record_event(EventKind::Warning, "ImageGCFailed", line.clone());
                }
                page.failed(line);
            }
        }
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

async fn keep_free(
    images: &Images,
    pods: &dyn PodImages,
    limits: ImageGcLimits,
    events: &NodeEvents,
) -> Result<ReclaimedSpace, ImageGcError> {
    images.refresh_images(pods).await?;
    let room = images.room().await?;
    if room.capacity == 0 {
        events.record_event(
            EventKind::Warning,
            "InvalidDiskCapacity",
            "invalid capacity 0 on image filesystem",
        );
        return Ok(ReclaimedSpace::default());
    }
    let Some(wanted) = bytes_to_free(room, limits) else { return Ok(ReclaimedSpace::default()) };
    let freed = images.collect(pods, ReclaimGoal::Bytes(wanted), limits).await?;
    if freed.bytes < wanted {
        let message = format!(
            "failed to garbage collect required amount of images. Wanted to free {wanted} bytes, but freed {} bytes",
            freed.bytes
        );
        events.record_event(EventKind::Warning, "FreeDiskSpaceFailed", message);
    }
    Ok(freed)
}

impl Images {
    /// Space on the image filesystem.
    ///
    /// # Errors
    /// The runtime or the kernel fails.
    pub async fn room(&self) -> Result<ImageDiskRoom, ImageGcError> {
        let path = self.filesystem().await?;
        let disk = spawn_blocking(move || machine::disk_room(&path)).await;
        let disk = disk.map_err(ImageGcError::Interrupted)??;
        Ok(ImageDiskRoom { capacity: disk.total_bytes, available: disk.available_bytes })
    }

    /// A directory on the image filesystem.
    ///
    /// # Errors
    /// The runtime fails or reports none.
    pub async fn filesystem(&self) -> Result<PathBuf, ImageGcError> {
        if let Some(known) = lock(&self.filesystem).clone() {
            return Ok(known);
        }
        let found = self.runtime.image_filesystems().await?;
        let first = found.into_iter().next().filter(|fs| !fs.mountpoint.is_empty());
        let path: PathBuf = first.ok_or(ImageGcError::NoFilesystem)?.mountpoint.into();
        *lock(&self.filesystem) = Some(path.clone());
        Ok(path)
    }

    /// Updates the list of images and their use.
    ///
    /// # Errors
    /// The runtime fails.
    pub async fn refresh_images(
        &self,
        pods: &dyn PodImages,
    ) -> Result<(Vec<PresentImage>, RequiredImages), ImageGcError> {
        let found = self.runtime.images().await?;
        let found: Vec<PresentImage> = found
            .into_iter()
            .map(|image| PresentImage {
                id: image.id,
                names: image.tags.into_iter().chain(image.digests).map(completed).collect(),
                size: image.size,
                pinned: image.pinned,
            })
            .collect();
        let listed = self.pods.list().await?;
        let containers = listed.iter().flat_map(|pod| &pod.containers);
        let ids = containers.flat_map(|c| [c.image_id.clone(), c.image.clone()]).collect();
        let needed = RequiredImages { ids, names: self.needed_names(pods) };
        lock(&self.uses).observe(&found, &needed, clock::boot());
        Ok((found, needed))
    }

    /// Removes images until the goal is met or none may be removed.
    ///
    /// # Errors
    /// The runtime fails. An image that cannot be removed is skipped.
    pub async fn collect(
        &self,
        pods: &dyn PodImages,
        goal: ReclaimGoal,
        limits: ImageGcLimits,
    ) -> Result<ReclaimedSpace, ImageGcError> {
        let (found, needed) = self.refresh_images(pods).await?;
        let before = self.room().await?.available;
        let candidates: Vec<PresentImage> = {
            let uses = lock(&self.uses);
            let candidates = uses.candidates(&found, &needed, limits.min_age, clock::boot());
            candidates.into_iter().cloned().collect()
        };
        let mut freed = ReclaimedSpace::default();
        for image in candidates {
            if matches!(goal, ReclaimGoal::Bytes(wanted) if freed.bytes >= wanted) {
                break;
            }
            // A pod admitted meanwhile may need it.
            let names = self.needed_names(pods);
            if image.names.iter().any(|name| names.contains(name)) {
                continue;
            }
            match self.runtime.remove_image(&image.id).await {
                Ok(()) => {
                    freed.images = freed.images.saturating_add(1);
                    tracing::info!(id = image.id, names = ?image.names, "removed an unused image to free disk space");
                }
                Err(error) => {
                    tracing::warn!(
                        id = image.id,
                        error = chain(&error),
                        "cannot remove an unused image; the next one is tried"
                    );
                }
            }
            freed.bytes = self.room().await?.available.saturating_sub(before);
        }
        Ok(freed)
    }

    /// Full names of images needed by pods, pulls and imports, and the sandbox image.
    fn needed_names(&self, pods: &dyn PodImages) -> BTreeSet<String> {
        let mut names = self.list_protected();
        names.extend(pods.image_names().into_iter().map(completed));
        names
    }
}

/// The full name of a reference; an invalid one is kept as it is.
fn completed(name: String) -> String {
    ImageName::parse(&name).map_or(name, |parsed| parsed.full())
}
