//! Sets up CSI volumes for pods and tears them down.
//!
//! ```text
//! <root>/plugins/<domain>/csi/<driver>/<sha256 of handle>/globalmount           staged, once a node
//! <root>/pods/<uid>/volumes/<domain>~csi/<spec name>/mount                      published, once a pod
//! <root>/plugins/<domain>/csi/volumeDevices/staging/<spec name>                 the same for block devices
//! <root>/plugins/<domain>/csi/volumeDevices/publish/<spec name>/<uid>
//! <root>/pods/<uid>/volumeDevices/<domain>~csi/<spec name>/vol_data.json
//! ```
//!
//! The order of steps makes a crash between any two recoverable: pod record, stage record, NodeStageVolume, NodePublishVolume; in
//! reverse: NodeUnpublishVolume, pod record, and if no other pod's record names the volume, NodeUnstageVolume and the stage
//! record. The end of a pod does not wait for unstaging (`unstage`).

mod paths;
mod set_up;
mod unstage;
mod users;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use agent_host::offload;
use agent_volume::VolumesOnDisk;
use agent_volume::persistent::{CsiVolume, PersistentSource};
use futures_util::future::join_all;
use proto_api::core::v1::Secret;
use proto_api::names::Names;
use proto_daemon::exit::chain;
use proto_grpc::csi::v1 as wire;
use tokio::sync::watch;

use crate::driver::{CallError, Driver, text};
use crate::drivers::Drivers;
use crate::mounts::MountTable;
use crate::record::{VolumeRecord, ignore_missing};
use crate::request::{DriverToken, PodFacts};
use paths::Paths;
use set_up::SetUpTask;
use users::VolumeUsers;

/// Why a CSI volume could not be set up or torn down. With their causes the texts are the kubelet's, which users see.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// The driver is not registered on this node.
    #[error(
        "{step} failed for volume {volume:?} : {plugin}: {} failed to get CSI client: driver name {driver} not found in the list of registered CSI drivers",
        asker(step)
    )]
    NoDriver {
        /// The operation in the kubelet's terms.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// Name of the driver.
        driver: String,
        /// Name of the CSI plugin in the kubelet's terms.
        plugin: String,
    },
    /// A call to the driver failed.
    #[error("{step} failed for volume {volume:?} ")]
    Call {
        /// The operation in the kubelet's terms.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// Cause.
        source: CallError,
    },
    /// The Node object does not list the volume as in use, so the attach/detach controller might detach it.
    #[error(
        "{SET_UP} failed for volume {volume:?} : Volume has not been added to the list of VolumesInUse in the node's volume status"
    )]
    NotListed {
        /// Name of the volume.
        volume: String,
    },
    /// The volume is `ReadWriteOncePod` and another pod uses it.
    #[error(
        "{SET_UP} failed for volume {volume:?} : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    )]
    OnePodOnly {
        /// Name of the volume.
        volume: String,
    },
    /// An operation on the node failed.
    #[error("{step} failed for volume {volume:?} : {what}")]
    Node {
        /// The operation in the kubelet's terms.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// The failed step.
        what: String,
        /// Cause.
        source: io::Error,
    },
}

impl CsiError {
    /// Whether the volume is there and only its expansion failed.
    pub fn is_of_expansion(&self) -> bool {
        matches!(self, Self::NoDriver { step, .. } | Self::Call { step, .. } if *step == EXPAND)
    }
}

const SET_UP: &str = "MountVolume.SetUp";
const STAGE: &str = "MountVolume.MountDevice";
const EXPAND: &str = "MountVolume.NodeExpandVolume";
const UNPUBLISH: &str = "UnmountVolume.TearDown";
const UNSTAGE: &str = "UnmountDevice";

/// Name of the kubelet's component in messages about a missing driver.
fn asker(step: &str) -> &'static str {
    if step == UNPUBLISH { "Unmounter.TearDownAt" } else { "mounter.SetUpAt" }
}

/// Secrets and tokens for the calls of a volume.
#[derive(Default)]
pub struct CallMaterial {
    /// Secret for NodeStageVolume.
    pub stage: HashMap<String, String>,
    /// Secret for NodePublishVolume.
    pub publish: HashMap<String, String>,
    /// Secret for NodeExpandVolume.
    pub expand: HashMap<String, String>,
    /// Service account tokens for the driver.
    pub tokens: Vec<DriverToken>,
}

/// Data of a secret in the form that calls use.
#[must_use]
pub fn secret_values(secret: &Secret) -> HashMap<String, String> {
    let text = |data: &Vec<u8>| String::from_utf8_lossy(data).into_owned();
    secret.data.iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// A volume published for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedVolume {
    /// Path on the host.
    pub path: PathBuf,
    /// New size in bytes if its file system was expanded by this call.
    pub grown_to: Option<u64>,
}

/// Usage of a volume as its driver reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CsiVolumeStats {
    /// Name of the persistent volume, or of the pod's volume.
    pub spec_name: String,
    /// Bytes: total, used, available.
    pub bytes: Option<(i64, i64, i64)>,
    /// Inodes: total, used, available.
    pub inodes: Option<(i64, i64, i64)>,
    /// Problem reported by the driver, if any.
    pub abnormal: Option<String>,
}

/// CSI volumes of this node.
#[derive(Debug)]
pub struct CsiNode {
    paths: Paths,
    node: String,
    drivers: Drivers,
    pods: VolumesOnDisk,
    users: VolumeUsers,
    /// Volumes whose records could not be read. One of them may be in use although no record says so.
    unread: BTreeSet<String>,
    /// `volumesInUse` of the Node object, once known.
    listed: watch::Sender<Option<BTreeSet<String>>>,
}

impl CsiNode {
    /// Opens the volumes below `root` with the records of an earlier process. Damaged records are logged and kept.
    ///
    /// # Errors
    /// The directories of the records cannot be read.
    pub fn open(root: &Path, names: &Names, node: &str, drivers: Drivers) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let paths = Paths::new(&root, names);
        let table = MountTable::read()?;
        let users = VolumeUsers::default();
        let (mut unread, mut published) = (BTreeSet::new(), BTreeSet::new());
        for (uid, directory) in paths.pod_records()? {
            match read(&directory) {
                Ok(Some(record)) => {
                    users.get(&record).add(&uid, &record);
                    if table.has(&paths.target(&uid, &record)) {
                        published.insert((record.driver, record.handle));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    unread.extend(directory.file_name().map(|n| n.to_string_lossy().into_owned()));
                    tracing::error!(directory = %directory.display(), %error, "cannot read the record of a CSI volume; the volume stays as it is");
                }
            }
        }
        for directory in paths.stage_records()? {
            let Ok(Some(record)) = read(&directory) else { continue };
            if paths.stage_record(&record) != directory {
                continue;
            }
            let shared = users.get(&record);
            shared.may_be_staged(&record);
            // A volume published for a pod was completely staged; the state of all others is unknown.
            let whole = table.has(&paths.stage(&record))
                && published.contains(&(record.driver.clone(), record.handle.clone()));
            if whole {
                shared.set_staged(true);
            }
        }
        let pods = VolumesOnDisk::new(&root, names);
        let listed = watch::channel(None).0;
        Ok(Self { paths, node: node.to_owned(), drivers, pods, users, unread, listed })
    }

    /// The registered drivers.
    #[must_use]
    pub fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    /// Unique names of attached volumes that are published or staged, for `volumesInUse`.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let names = self.users.attached().into_iter();
        names.map(|(driver, handle)| self.unique(&driver, &handle)).collect()
    }

    fn unique(&self, driver: &str, handle: &str) -> String {
        format!("{}/{driver}^{handle}", self.paths.plugin())
    }

    /// Notifies when a volume comes into or goes out of use; also notified for volumes that are not CSI volumes. The value has no
    /// meaning.
    #[must_use]
    pub fn changes(&self) -> &watch::Sender<u64> {
        self.users.changes()
    }

    /// Sets the Node object's `volumesInUse`. An attached volume is not staged or published before it is listed.
    pub fn set_listed_in_use(&self, names: impl IntoIterator<Item = String>) {
        self.listed.send_replace(Some(names.into_iter().collect()));
    }

    /// Whether CSI volumes of a pod are on disk.
    #[must_use]
    pub fn has(&self, uid: &str) -> bool {
        self.paths.records_of(uid).is_ok_and(|records| !records.is_empty())
    }

    /// Stages and publishes a volume, or refreshes it. Idempotent; a failure never unpublishes a published volume.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn set_up(
        &self,
        pod: &PodFacts,
        volume: &PersistentSource,
        csi: &CsiVolume,
        material: CallMaterial,
    ) -> Result<PublishedVolume, CsiError> {
        let task = SetUpTask { node: self, pod, volume, csi, material };
        task.set_up().await
    }

    /// Path of a volume that was published before, including the application of its `fsGroup`. Calls no driver and changes
    /// nothing; `None` if anything is left to do before containers may use it.
    pub async fn published_volumes(
        &self,
        pod: &PodFacts,
        volume: &PersistentSource,
        csi: &CsiVolume,
    ) -> Option<PathBuf> {
        SetUpTask { node: self, pod, volume, csi, material: CallMaterial::default() }
            .published_path()
            .await
    }

    /// Unpublishes all CSI volumes of a pod. Volumes without other users are unstaged afterwards, see [`CsiNode::keep_unstaged`].
    ///
    /// # Errors
    /// The first failure; the other volumes are unpublished nevertheless.
    pub async fn tear_down(&self, uid: &str) -> Result<(), CsiError> {
        let node_error = |source| CsiError::Node {
            step: UNPUBLISH,
            volume: uid.to_owned(),
            what: "read the records".to_owned(),
            source,
        };
        let mut outcome = Ok(());
        for directory in self.paths.records_of(uid).map_err(node_error)? {
            let done = match read(&directory).map_err(node_error)? {
                Some(record) => self.unpublish(uid, &directory, &record).await,
                None => self.forget(uid, &directory).await,
            };
            if let Err(error) = done {
                tracing::warn!(
                    uid,
                    error = chain(&error),
                    "cannot tear down a CSI volume; retried with the pod's next cleanup"
                );
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// Usage of a pod's volumes, as far as their drivers report it. All drivers are called concurrently, so an unresponsive one
    /// does not delay others.
    pub async fn volume_stats(&self, uid: &str) -> Vec<CsiVolumeStats> {
        let records = self.paths.records_of(uid).unwrap_or_default().into_iter();
        let asked = records.filter_map(|directory| {
            let record = read(&directory).ok()??;
            let driver = self.drivers.get(&record.driver).filter(|driver| driver.able.stats)?;
            Some(self.stats_of(uid, record, driver))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn stats_of(
        &self,
        uid: &str,
        record: VolumeRecord,
        driver: Driver,
    ) -> Option<CsiVolumeStats> {
        let asked = wire::NodeGetVolumeStatsRequest {
            volume_id: record.handle.clone(),
            volume_path: text(&self.paths.target(uid, &record)),
            staging_target_path: String::new(),
        };
        match driver.stats(asked).await {
            Ok(answer) => Some(fill(&record.spec_name, &answer)),
            Err(error) => {
                tracing::debug!(volume = record.spec_name, %error, "cannot get the statistics of a CSI volume; the stats summary leaves the volume out");
                None
            }
        }
    }

    async fn unpublish(
        &self,
        uid: &str,
        directory: &Path,
        record: &VolumeRecord,
    ) -> Result<(), CsiError> {
        let shared = self.users.get(record);
        let _turn = shared.lock().await;
        let target = self.paths.target(uid, record);
        let driver = self.driver(UNPUBLISH, &record.spec_name, &record.driver)?;
        let failed =
            |source| CsiError::Call { step: UNPUBLISH, volume: record.spec_name.clone(), source };
        driver.unpublish(&record.handle, &target).await.map_err(failed)?;
        self.remove_target(&target, record).await?;
        // If its record were removed only partly, no record would show the user of the volume.
        shared.remove(uid, record);
        let of = directory.to_owned();
        let removed = blocking(UNPUBLISH, &record.spec_name, "remove the record", move || {
            VolumeRecord::remove(&of)
        });
        let removed = removed.await;
        self.users.forget(record);
        removed
    }

    /// Removes the target path of a volume, which has to be empty.
    async fn remove_target(&self, target: &Path, record: &VolumeRecord) -> Result<(), CsiError> {
        let (place, block) = (target.to_owned(), record.block);
        blocking(UNPUBLISH, &record.spec_name, "remove the mount point", move || {
            let removed =
                if block { std::fs::remove_file(&place) } else { std::fs::remove_dir(&place) };
            ignore_missing(removed)?;
            if let Some(parent) = place.parent().filter(|_| block) {
                // Devices of other pods may be in the same directory.
                let _ = std::fs::remove_dir(parent);
            }
            Ok(())
        })
        .await
    }

    /// Removes a directory without a record, left by a crash before any call to a driver.
    async fn forget(&self, uid: &str, directory: &Path) -> Result<(), CsiError> {
        let of = directory.to_owned();
        blocking(UNPUBLISH, uid, "remove what is left", move || VolumeRecord::remove(&of)).await
    }

    fn driver(&self, step: &'static str, volume: &str, name: &str) -> Result<Driver, CsiError> {
        self.drivers.get(name).ok_or_else(|| CsiError::NoDriver {
            step,
            volume: volume.to_owned(),
            driver: name.to_owned(),
            plugin: self.paths.plugin().to_owned(),
        })
    }
}

/// The record in a directory; `None` and a log entry if it is damaged.
fn read(directory: &Path) -> io::Result<Option<VolumeRecord>> {
    match VolumeRecord::read(directory) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::error!(directory = %directory.display(), %error, "the record of a CSI volume is invalid; the volume stays as it is");
            Err(error)
        }
        result => result,
    }
}

async fn blocking<T: Send + 'static>(
    step: &'static str,
    volume: &str,
    what: &str,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, CsiError> {
    let done = offload(work).await.and_then(|done| done);
    let (volume, what) = (volume.to_owned(), what.to_owned());
    done.map_err(|source| CsiError::Node { step, volume, what, source })
}

fn fill(spec_name: &str, answer: &wire::NodeGetVolumeStatsResponse) -> CsiVolumeStats {
    use wire::volume_usage::Unit;
    let of = |unit: Unit| {
        let usage = answer.usage.iter().find(|usage| usage.unit == i32::from(unit));
        usage.map(|usage| (usage.total, usage.used, usage.available))
    };
    let condition = answer.volume_condition.as_ref().filter(|condition| condition.abnormal);
    CsiVolumeStats {
        spec_name: spec_name.to_owned(),
        bytes: of(Unit::Bytes),
        inodes: of(Unit::Inodes),
        abnormal: condition.map(|condition| condition.message.clone()),
    }
}

#[cfg(test)]
mod tests;
