//! Unmounts NFS volumes of pods that end. If the server is unavailable, the kernel may block the unmount for as long as that lasts.
//!
//! ```text
//! umount -i -c ──ended──────────────────────────► in the mount table? ──no───► unmounted
//!      │ not within 60 s                             ▲       └──────────yes──► error; the teardown is retried
//!      └──► in the mount table? ──yes──► umount -f ──┤
//!                   └────────────no──────────────────┘
//! ```
//!
//! * A program of its own unmounts, never a thread: a thread in an uninterruptible wait holds a place in the pool of blocking threads, and
//!   keeps a killed agent's sockets and locks from its successor. At most one program of each command runs for a mount; a retry does not
//!   start a second one ([`HelperError::StillRunning`]).
//! * The order is the kubelet's: unmount, and by force when that did not end within a minute. Force aborts the outstanding requests of the
//!   whole NFS superblock, which other pods may share, so it is used only while the mount is still in the table. `umount -c` does not
//!   resolve its path, so it does not wait for the server; what can block it is write-back, after the mount has left the table.
//! * A mount is never detached (`MNT_DETACH`): that would succeed while a process still has files open, and would report a volume as free
//!   that is still written to. Once a mount has left the table, no process of the node can reach it. Pending write-back can then be
//!   neither sped up nor cancelled; the end of the pod does not wait for it, as in the kubelet.

use std::path::Path;
use std::sync::Arc;

use agent_csi::mounts::MountTable;
use agent_host::offload;
use agent_volume::VolumesOnDisk;
use agent_volume::disk::{self, ProgramOutput, ProgramRun};
use agent_volume::mount::nfs::NfsMountPoint;
use futures_util::future::join_all;

use super::helpers::{HelperError, Helpers};

/// Exit status of `umount` for an option that it does not have.
const USAGE: Option<i32> = Some(1);

/// Why an NFS volume is still mounted. All are worth a retry. With their causes the texts are events of the pod.
#[derive(Debug, thiserror::Error)]
pub enum NfsUnmountError {
    /// Its mount points, or the mount table, cannot be read.
    #[error("UnmountVolume.TearDown failed: cannot list the pod's NFS mounts")]
    List(#[source] std::io::Error),
    /// `umount` failed or has not ended.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} ")]
    Program {
        /// Name of the volume.
        volume: String,
        /// What became of the last command.
        source: HelperError,
    },
    /// `umount` reports success, but something else is mounted at the same place.
    #[error("UnmountVolume.TearDown failed for volume {volume:?} : {path} is still mounted")]
    StillMounted {
        /// Name of the volume.
        volume: String,
        /// Where.
        path: String,
    },
}

/// Unmounts NFS volumes.
pub struct NfsUnmounter {
    volumes: VolumesOnDisk,
    helpers: Arc<dyn Helpers>,
}

impl NfsUnmounter {
    /// An unmounter of these pods' volumes.
    pub fn new(volumes: VolumesOnDisk, helpers: Arc<dyn Helpers>) -> Self {
        Self { volumes, helpers }
    }

    /// Unmounts all NFS volumes of a pod, each independently of the others; their directories stay.
    ///
    /// # Errors
    /// See [`NfsUnmountError`]: the first of those that are still mounted.
    pub async fn unmount_all(&self, uid: &str, namespace: &str) -> Result<(), NfsUnmountError> {
        let (volumes, of) = (self.volumes.clone(), uid.to_owned());
        let listed = offload(move || volumes.nfs_mount_points(&of)).await;
        let points = listed.and_then(|found| Ok(found?)).map_err(NfsUnmountError::List)?;
        let unmounted =
            join_all(points.iter().map(|point| self.unmount(uid, namespace, point))).await;
        unmounted.into_iter().collect()
    }

    async fn unmount(
        &self,
        uid: &str,
        namespace: &str,
        point: &NfsMountPoint,
    ) -> Result<(), NfsUnmountError> {
        if !is_mounted(&point.path).await? {
            return Ok(());
        }
        let target = point.path.to_string_lossy();
        let mut outcome = self.run(namespace, disk::unmount_nfs(&target)).await;
        if matches!(&outcome, Err(HelperError::Exit { code, .. }) if *code == USAGE) {
            outcome = self.run(namespace, disk::unmount(&target)).await;
        }
        let hangs =
            matches!(outcome, Err(HelperError::Timeout { .. } | HelperError::StillRunning(_)));
        if hangs && is_mounted(&point.path).await? {
            tracing::warn!(
                uid,
                volume = point.volume,
                "umount of an NFS volume did not end, its server may be unavailable; unmounting by force"
            );
            outcome = self.run(namespace, disk::force_unmount(&target)).await;
        }
        let volume = point.volume.clone();
        match (outcome, is_mounted(&point.path).await?) {
            (Ok(_), false) => Ok(()),
            (Err(error), false) => {
                tracing::warn!(
                    uid, volume, %error,
                    "NFS volume has left the mount table, but umount exited with an error; the kernel may still have to write data back"
                );
                Ok(())
            }
            (Ok(_), true) => Err(NfsUnmountError::StillMounted { volume, path: target.into() }),
            (Err(source), true) => Err(NfsUnmountError::Program { volume, source }),
        }
    }

    async fn run(&self, namespace: &str, run: ProgramRun) -> Result<ProgramOutput, HelperError> {
        self.helpers.run(&run.for_namespace(namespace)).await
    }
}

/// Whether something is mounted at a path, by the kernel's table.
///
/// # Errors
/// The table cannot be read.
pub async fn is_mounted(path: &Path) -> Result<bool, NfsUnmountError> {
    let path = path.to_owned();
    let read = offload(move || MountTable::read().map(|table| table.has(&path))).await;
    read.and_then(|found| found).map_err(NfsUnmountError::List)
}
