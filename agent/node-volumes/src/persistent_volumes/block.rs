//! Persistent volumes on block devices (local, iSCSI, Fibre Channel): attached if necessary, formatted if empty, mounted once per node and
//! bound into each pod that uses the volume. After the last pod all of it is undone.
//!
//! ```text
//! <root>/plugins/<domain>/<kind>/mounts/<mount name>         the mount, named by its device
//! <root>/plugins/<domain>/<kind>/mounts/<mount name>.json    what has to be undone and which pods use it; written first
//! <root>/pods/<uid>/volumes/<domain>~<kind>/<spec name>      the pod's bind mount; while it exists, the pod uses the device
//! ```

mod detach;
mod record_use;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_host::offload;
use agent_volume::VolumesOnDisk;
use agent_volume::devices;
use agent_volume::disk::{self, DiskStep, PlanMountError, ProgramOutput, ProgramRun};
use agent_volume::host_path::{self, HostPathError};
use agent_volume::persistent::AttachedDisk;
use agent_volume::persistent::attached::{Iscsi, IscsiError};
use agent_volume::shared_mounts::{DeviceUse, SharedMounts};
use agent_volume::sources::{HostPathKind, VolumePlugin};
use futures_util::stream::{self, StreamExt as _};
use proto_api::core::v1::Secret;
use rustix::io::Errno;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};

use super::helpers::{HelperError, Helpers};

/// Portals of a disk at which the node logs in at the same time.
const PORTALS_AT_ONCE: usize = 8;
/// Most volumes of one pod that are the same disk, so that no pod fills the record of the disk.
const USES_OF_POD_MAX: usize = 8;
/// Time for a login by any portal; other disks of the target wait for it.
const LOG_IN_TIMEOUT: Duration = Duration::from_secs(240);
/// Time for the device to appear after its attachment.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for logins by the other portals after the first has succeeded.
const OTHER_PORTALS_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for the device.
const DEVICE_POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Directory of the links to block devices.
const DEVICE_LINKS_DIR: &str = "/dev/disk";
/// Plugins whose devices the node attaches.
const ATTACHED: [VolumePlugin; 2] = [VolumePlugin::Iscsi, VolumePlugin::Fc];

/// Why a volume on a block device is not attached, mounted or detached. Each is worth a retry: what makes it fail may change.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A program of the node is missing or failed.
    #[error(transparent)]
    Program(#[from] HelperError),
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] Errno),
    /// The path is not a block device of this node.
    #[error(transparent)]
    Device(#[from] HostPathError),
    /// The device has other content than the volume may have. It is not touched.
    #[error(transparent)]
    Content(#[from] PlanMountError),
    /// Its file system is damaged.
    #[error("errors on device {device} could not be corrected")]
    Damaged {
        /// Path of the device.
        device: String,
        /// What the check says.
        source: HelperError,
    },
    /// The log-in to the target is not possible.
    #[error(transparent)]
    LogIn(#[from] IscsiError),
    /// The volume names no portal.
    #[error("no portal")]
    NoPortal,
    /// All portals together took too long.
    #[error("no portal let the node log in within {} s", LOG_IN_TIMEOUT.as_secs())]
    LogInTimeout,
    /// Volumes of two disks have the same name.
    #[error("a volume of another target or unit has the same name on this node")]
    OtherDisk,
    /// The pod has many volumes of one disk.
    #[error("the pod has {USES_OF_POD_MAX} other volumes of the same disk")]
    TooManyUses,
    /// What has to be undone cannot be recorded.
    #[error("the record of the disk and its pods would be too long")]
    RecordTooLong,
    /// The device was attached and has not appeared.
    #[error("no block device appeared at {links}; partitions are refused")]
    NoDevice {
        /// The links that it would have.
        links: String,
    },
    /// Another pod has it mounted read-only, for as long as that pod lives.
    #[error("the device is mounted read-only for another pod of this node")]
    ReadOnly,
    /// The kernel may still write to it.
    #[error("the device is still in use")]
    InUse,
    /// Something that is no volume of this node uses it.
    #[error("device {device} is mounted or opened exclusively by something else on this node")]
    DeviceInUse {
        /// Path of the device.
        device: String,
    },
    /// The work panicked or was cancelled.
    #[error("work on a block device was interrupted")]
    Interrupted(#[source] std::io::Error),
}

/// The block device of a volume.
#[derive(Clone, Copy, Debug)]
pub enum DiskSource<'a> {
    /// A device of the node, by path.
    Device(&'a str),
    /// A device that has to be attached.
    Attached(&'a AttachedDisk),
}

impl DiskSource<'_> {
    /// The volume plugin.
    pub fn plugin(self) -> VolumePlugin {
        match self {
            Self::Device(_) => VolumePlugin::Local,
            Self::Attached(AttachedDisk::Iscsi(_)) => VolumePlugin::Iscsi,
            Self::Attached(AttachedDisk::FibreChannel(_)) => VolumePlugin::Fc,
        }
    }
}

/// A volume on a block device.
#[derive(Clone, Copy, Debug)]
pub struct OnDisk<'a> {
    /// Name of the persistent volume, or of the pod's volume if there is none.
    pub name: &'a str,
    /// Its device.
    pub source: DiskSource<'a>,
    /// Type of its file system; empty for the default.
    pub fs_type: &'a str,
    /// Whether it is mounted read-only.
    pub read_only: bool,
    /// Mount options.
    pub options: &'a [String],
    /// Credentials for the attachment.
    pub secret: Option<&'a Secret>,
    /// Namespace of the pod.
    pub namespace: &'a str,
}

impl OnDisk<'_> {
    /// Name of its mount, which all pods of the node share.
    fn mount_name(&self) -> String {
        match self.source {
            DiskSource::Device(_) => self.name.to_owned(),
            DiskSource::Attached(disk) => disk.mount_name(),
        }
    }
}

impl<'a> OnDisk<'a> {
    /// The volume with its disk as it is recorded.
    fn by_recorded(self, recorded: Option<&'a AttachedDisk>) -> Self {
        Self { source: recorded.map_or(self.source, DiskSource::Attached), ..self }
    }
}

/// Volumes on block devices of this node's pods.
pub struct Disks {
    mounts: SharedMounts,
    helpers: Arc<dyn Helpers>,
    /// Directory of the links to block devices.
    links_dir: PathBuf,
    /// By mount name, and by IQN for logins and logouts: one operation at a time.
    locks: Mutex<BTreeMap<String, Arc<AsyncMutex<()>>>>,
    /// Notified when the volumes of a pod are unmounted.
    ended: Notify,
    /// Names for `status.volumesInUse`, by mount name.
    listed: Mutex<BTreeMap<String, String>>,
    /// Notified of changes of `listed`.
    changes: watch::Sender<u64>,
}

impl Disks {
    /// Volumes whose devices are mounted at `mounts`, including those of an earlier process. `changes` is notified when a device comes into
    /// or out of use.
    pub fn new(
        mounts: SharedMounts,
        helpers: Arc<dyn Helpers>,
        changes: watch::Sender<u64>,
    ) -> Self {
        // An unreadable directory is reported when unused devices are detached.
        let before =
            ATTACHED.iter().filter_map(|plugin| mounts.pending_records(*plugin).ok()).flatten();
        let listed = before.filter(|of| !of.listed.is_empty()).map(|of| (of.name, of.listed));
        let listed = Mutex::new(listed.collect());
        let (links_dir, locks, ended) = (DEVICE_LINKS_DIR.into(), Mutex::default(), Notify::new());
        Self { mounts, helpers, links_dir, locks, ended, listed, changes }
    }

    /// What runs the programs of the node: one for all volumes, since it counts those that were killed and have not ended.
    pub fn helpers(&self) -> Arc<dyn Helpers> {
        self.helpers.clone()
    }

    /// Names of attached devices, and of those being attached, for `status.volumesInUse`.
    pub fn in_use(&self) -> Vec<String> {
        let each: BTreeSet<_> = self.lock_listed().values().cloned().collect();
        each.into_iter().collect()
    }

    fn lock_listed(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify_change(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// Binds a volume into a pod and mounts it first if no other pod uses it. Returns the path, and whether this call made the bind mount.
    ///
    /// # Errors
    /// What is wrong with the device, or which program is missing.
    pub async fn bind(
        &self,
        pods: &VolumesOnDisk,
        uid: &str,
        volume: OnDisk<'_>,
    ) -> Result<(PathBuf, bool), DiskError> {
        let (plugin, mount) = (volume.source.plugin(), volume.mount_name());
        let lock = self.lock(&mount);
        let _guard = lock.lock().await;
        let (pods_of, of, name) = (pods.clone(), uid.to_owned(), volume.name.to_owned());
        // The directory of the pod comes first: the mount is undone when no pod has one.
        let place = move || pods_of.mount_point(&of, plugin, &name);
        let (path, bound) = run_blocking(place).await?;
        if bound {
            return Ok((path, false));
        }
        let recorded = self.record_use(pods, uid, volume).await?;
        self.mount_device(pods, volume.by_recorded(recorded.as_ref())).await?;
        let (mounts, pods_of) = (self.mounts.clone(), pods.clone());
        let (of, name) = (uid.to_owned(), volume.name.to_owned());
        run_blocking(move || {
            let source = mounts.open(plugin, &mount)?;
            pods_of.bind(&of, plugin, &name, &source)
        })
        .await
    }

    /// Attaches the device of a volume with `volumeMode: Block`; its path.
    ///
    /// # Errors
    /// See [`Disks::bind`].
    pub async fn device(
        &self,
        pods: &VolumesOnDisk,
        uid: &str,
        volume: OnDisk<'_>,
    ) -> Result<PathBuf, DiskError> {
        let plugin = volume.source.plugin();
        let lock = self.lock(&volume.mount_name());
        let _guard = lock.lock().await;
        let (pods_of, of, name) = (pods.clone(), uid.to_owned(), volume.name.to_owned());
        run_blocking(move || pods_of.mount_point(&of, plugin, &name)).await?;
        let recorded = self.record_use(pods, uid, volume).await?;
        self.attach(volume.by_recorded(recorded.as_ref())).await.map(PathBuf::from)
    }

    async fn mount_device(
        &self,
        pods: &VolumesOnDisk,
        volume: OnDisk<'_>,
    ) -> Result<(), DiskError> {
        let (mounts, name) = (self.mounts.clone(), volume.mount_name());
        let plugin = volume.source.plugin();
        let (pods, writes) = (pods.clone(), !volume.read_only);
        let place = move || {
            let (target, there) = mounts.mount_point(plugin, &name)?;
            let frozen = there && writes && mounts.is_read_only(plugin, &name)?;
            let held = frozen && is_bound(&pods, &mounts, plugin, &name)?;
            if frozen && !held {
                // No pod uses the read-only mount any more.
                mounts.unmount(plugin, &name)?;
                return mounts
                    .mount_point(plugin, &name)
                    .map(|(target, there)| (target, there, false));
            }
            Ok((target, there, held))
        };
        let (target, there, held) = run_blocking(place).await?;
        if held {
            return Err(DiskError::ReadOnly);
        }
        if there {
            return Ok(());
        }
        let device = self.attach(volume).await?;
        let fs_type = self.prepare(volume, &device).await?;
        let mut options = volume.options.to_vec();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let run = disk::mount(&device, &fs_type, &options, &target.to_string_lossy());
        Ok(self.run(volume, run).await.map(drop)?)
    }

    /// Formats an empty device, checks another one; the type of its file system. A device that the node has mounted under another name is
    /// neither formatted nor checked.
    async fn prepare(&self, volume: OnDisk<'_>, device: &str) -> Result<String, DiskError> {
        let (mounts, of) = (self.mounts.clone(), PathBuf::from(device));
        let used = run_blocking(move || mounts.device_use(&of)).await?;
        let refused = || DiskError::DeviceInUse { device: device.to_owned() };
        // A path of the node is an administrator's choice; an attached disk may be named by any pod.
        if used == DeviceUse::Foreign && matches!(volume.source, DiskSource::Attached(_)) {
            return Err(refused());
        }
        let output = self.run(volume, disk::probe(device)).await?;
        let found = disk::parse_probe(&output);
        let planned = disk::plan_mount(device, &found, volume.fs_type, volume.read_only);
        let (step, fs_type) = planned?;
        match step {
            DiskStep::Format(_) if used != DeviceUse::Free => return Err(refused()),
            DiskStep::Check(_) if used == DeviceUse::Mounted => {}
            DiskStep::Format(run) => {
                tracing::info!(device, fs_type, volume = volume.name, "formatting an empty device");
                self.run(volume, run).await?;
            }
            DiskStep::Check(run) => {
                let checked = self.run(volume, run).await;
                let device = device.to_owned();
                checked.map_err(|source| DiskError::Damaged { device, source })?;
            }
            DiskStep::None => {}
        }
        Ok(fs_type)
    }

    /// Attaches the device if necessary; its path.
    async fn attach(&self, volume: OnDisk<'_>) -> Result<String, DiskError> {
        match volume.source {
            DiskSource::Device(path) => {
                let path = path.to_owned();
                let checked = path.clone();
                let check = move || host_path::check(&checked, HostPathKind::BlockDevice);
                offload(check).await.map_err(DiskError::Interrupted)??;
                Ok(path)
            }
            DiskSource::Attached(disk) => self.attach_disk(disk, volume).await,
        }
    }

    async fn attach_disk(
        &self,
        disk: &AttachedDisk,
        volume: OnDisk<'_>,
    ) -> Result<String, DiskError> {
        match disk {
            AttachedDisk::Iscsi(iscsi) => {
                // A device that exists may belong to a session that is being logged out.
                let lock = self.lock(&iscsi.iqn);
                let _guard = lock.lock().await;
                if let Some(path) = self.find_device(disk).await? {
                    return Ok(path);
                }
                let logged_in = tokio::time::timeout(LOG_IN_TIMEOUT, self.log_in(iscsi, volume));
                logged_in.await.map_err(|_| DiskError::LogInTimeout)??;
            }
            AttachedDisk::FibreChannel(_) => {
                if let Some(path) = self.find_device(disk).await? {
                    return Ok(path);
                }
                run_blocking(devices::rescan_adapters).await?;
            }
        }
        let deadline = tokio::time::Instant::now() + DEVICE_TIMEOUT;
        loop {
            if let Some(path) = self.find_device(disk).await? {
                return Ok(path);
            }
            if tokio::time::Instant::now() > deadline {
                let links = disk.links().join(", ");
                return Err(DiskError::NoDevice { links });
            }
            tokio::time::sleep(DEVICE_POLL_INTERVAL).await;
        }
    }

    /// Logs in to all portals, a few at the same time. One session is enough; the others are additional paths.
    async fn log_in(&self, disk: &Iscsi, volume: OnDisk<'_>) -> Result<(), DiskError> {
        let portals = disk.log_in(volume.secret)?;
        self.run_all(volume, disk.create_interface()).await?;
        let each = portals.into_iter().map(|portal| self.run_all(volume, portal));
        let mut under_way =
            stream::iter(each.collect::<Vec<_>>()).buffer_unordered(PORTALS_AT_ONCE);
        let mut outcome = Err(DiskError::NoPortal);
        while let Some(done) = under_way.next().await {
            outcome = done;
            if outcome.is_ok() {
                // Cancel safe: a later session is logged out with the others.
                let others = async { while under_way.next().await.is_some() {} };
                let _ = tokio::time::timeout(OTHER_PORTALS_TIMEOUT, others).await;
                break;
            }
        }
        outcome
    }

    async fn run_all(&self, volume: OnDisk<'_>, runs: Vec<ProgramRun>) -> Result<(), DiskError> {
        for run in runs {
            self.run(volume, run).await?;
        }
        Ok(())
    }

    async fn run(&self, volume: OnDisk<'_>, run: ProgramRun) -> Result<ProgramOutput, HelperError> {
        self.helpers.run(&run.for_namespace(volume.namespace)).await
    }

    async fn find_device(&self, disk: &AttachedDisk) -> Result<Option<String>, DiskError> {
        let (root, links) = (self.links_dir.clone(), disk.links());
        run_blocking(move || Ok(devices::find_device(&root, &links))).await
    }

    fn lock(&self, name: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry(name.to_owned()).or_default().clone()
    }

    /// Drops locks that are neither held nor awaited.
    fn drop_unused_locks(&self) {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
    }
}

/// Whether the mount of a device is bound into a pod.
fn is_bound(
    pods: &VolumesOnDisk,
    mounts: &SharedMounts,
    plugin: VolumePlugin,
    name: &str,
) -> rustix::io::Result<bool> {
    for user in mounts.pending_record(plugin, name)?.map(|of| of.users).unwrap_or_default() {
        if pods.is_bound(plugin, &user)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs blocking work on the blocking pool.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> rustix::io::Result<T> + Send + 'static,
) -> Result<T, DiskError> {
    Ok(offload(work).await.map_err(DiskError::Interrupted)??)
}

/// For tests: another directory of the links to block devices.
#[cfg(test)]
impl Disks {
    fn with_links_dir(self, root: &std::path::Path) -> Self {
        Self { links_dir: root.to_owned(), ..self }
    }
}

#[cfg(test)]
mod tests;
