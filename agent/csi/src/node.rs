//! Brings drivers' volumes to pods and takes them away again.
//!
//! ```text
//! <root>/plugins/<domain>/csi/<driver>/<sha256 of handle>/globalmount           staged, once a node
//! <root>/pods/<uid>/volumes/<domain>~csi/<spec name>/mount                      published, once a pod
//! <root>/plugins/<domain>/csi/volumeDevices/staging/<spec name>                 the same for block devices
//! <root>/plugins/<domain>/csi/volumeDevices/publish/<spec name>/<uid>
//! <root>/pods/<uid>/volumeDevices/<domain>~csi/<spec name>/vol_data.json
//! ```
//!
//! Order of things, so that a crash between any two leaves what the next start understands: the pod's record, the stage's record, the
//! stage call, the publish call; and back: the unpublish call, the pod's record, and then, if no other pod's record names the volume,
//! the unstage call and the stage's record, for which the pod's end does not wait (`unstage`).

mod paths;
mod set_up;
mod unstage;
mod users;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use agent_volume::PodVolumes;
use agent_volume::persistent::{CsiVolume, Persistent};
use futures_util::future::join_all;
use proto_api::core::v1::Secret;
use proto_api::names::Names;
use proto_grpc::csi::v1 as wire;
use tokio::sync::watch;

use crate::driver::{CallError, Driver, text};
use crate::drivers::Drivers;
use crate::mounts::MountTable;
use crate::offload::offload;
use crate::record::{Record, gone};
use crate::request::{PodFacts, Token};
use paths::Paths;
use set_up::Task;
use users::Users;

/// Why a driver's volume is not as it should be. The texts are shown to users as they are.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// No such driver is registered on this node.
    #[error(
        "{step} failed for volume {volume:?} : {plugin}: {} failed to get CSI client: driver name {driver} not found in the list of registered CSI drivers",
        asker(step)
    )]
    NoDriver {
        /// What was tried, as the ecosystem names it.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// Name of the driver.
        driver: String,
        /// Name of the plugin in the ecosystem.
        plugin: String,
    },
    /// A call failed.
    #[error("{step} failed for volume {volume:?} : {source}")]
    Call {
        /// What was tried, as the ecosystem names it.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// Why.
        source: CallError,
    },
    /// The Node object does not list the volume, so that whoever attaches volumes may take it from the node.
    #[error(
        "{SET_UP} failed for volume {volume:?} : Volume has not been added to the list of VolumesInUse in the node's volume status"
    )]
    NotListed {
        /// Name of the volume.
        volume: String,
    },
    /// One pod at a time may have the volume, and another one does.
    #[error(
        "{SET_UP} failed for volume {volume:?} : volume uses the ReadWriteOncePod access mode and is already in use by another pod"
    )]
    OnePodOnly {
        /// Name of the volume.
        volume: String,
    },
    /// The node's own part failed.
    #[error("{step} failed for volume {volume:?} : {what}: {source}")]
    Node {
        /// What was tried, as the ecosystem names it.
        step: &'static str,
        /// Name of the volume.
        volume: String,
        /// What of it.
        what: String,
        /// Why.
        source: io::Error,
    },
}

const SET_UP: &str = "MountVolume.SetUp";
const STAGE: &str = "MountVolume.MountDevice";
const EXPAND: &str = "MountVolume.NodeExpandVolume";
const UNPUBLISH: &str = "UnmountVolume.TearDown";
const UNSTAGE: &str = "UnmountDevice";

/// Who in the ecosystem asks for a driver.
fn asker(step: &str) -> &'static str {
    if step == UNPUBLISH { "Unmounter.TearDownAt" } else { "mounter.SetUpAt" }
}

/// What the calls for a volume carry beside the volume itself.
#[derive(Default)]
pub struct Material {
    /// Secret of the stage call.
    pub stage: HashMap<String, String>,
    /// Secret of the publish call.
    pub publish: HashMap<String, String>,
    /// Secret of the expand call.
    pub expand: HashMap<String, String>,
    /// Tokens that the driver asked for.
    pub tokens: Vec<Token>,
}

/// A secret's data as calls carry it.
#[must_use]
pub fn carried(secret: &Secret) -> HashMap<String, String> {
    let text = |data: &Vec<u8>| String::from_utf8_lossy(data).into_owned();
    secret.data.iter().map(|(key, value)| (key.clone(), text(value))).collect()
}

/// A volume that a pod has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where it lies on the host.
    pub path: PathBuf,
    /// The size to which its file system grew by this call, in bytes.
    pub grown_to: Option<u64>,
}

/// How full a volume is, as its driver tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Name of the persistent volume, or of the pod's.
    pub spec_name: String,
    /// Bytes: all, used, available.
    pub bytes: Option<(i64, i64, i64)>,
    /// Inodes: all, used, available.
    pub inodes: Option<(i64, i64, i64)>,
    /// What is wrong with it, if the driver says that something is.
    pub abnormal: Option<String>,
}

/// Drivers' volumes of this node.
#[derive(Debug)]
pub struct CsiNode {
    paths: Paths,
    node: String,
    drivers: Drivers,
    pods: PodVolumes,
    users: Users,
    /// Volumes of records that could not be read. One of these that seems to be nobody's may be somebody's.
    unread: BTreeSet<String>,
    /// What the Node object lists as in use, once that is known.
    listed: watch::Sender<Option<BTreeSet<String>>>,
}

impl CsiNode {
    /// Volumes below `root`, with what the records of an earlier process say. A damaged record is told of and left where it is.
    ///
    /// # Errors
    /// The directories of the records cannot be read.
    pub fn open(root: &Path, names: &Names, node: &str, drivers: Drivers) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let paths = Paths::new(&root, names);
        let table = MountTable::read()?;
        let users = Users::default();
        let (mut unread, mut published) = (BTreeSet::new(), BTreeSet::new());
        for (uid, directory) in paths.pod_records()? {
            match read(&directory) {
                Ok(Some(record)) => {
                    users.of(&record).add(&uid, &record);
                    if table.has(&paths.target(&uid, &record)) {
                        published.insert((record.driver, record.handle));
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    unread.extend(directory.file_name().map(|n| n.to_string_lossy().into_owned()));
                    tracing::error!(directory = %directory.display(), %error, "a volume's record cannot be read");
                }
            }
        }
        for directory in paths.stage_records()? {
            let Ok(Some(record)) = read(&directory) else { continue };
            if paths.stage_record(&record) != directory {
                continue;
            }
            let shared = users.of(&record);
            shared.may_be_staged(&record);
            // What a pod has was staged to the end; of everything else nobody knows how far it came.
            let whole = table.has(&paths.stage(&record))
                && published.contains(&(record.driver.clone(), record.handle.clone()));
            if whole {
                shared.staged(true);
            }
        }
        let pods = PodVolumes::new(&root, names);
        let listed = watch::channel(None).0;
        Ok(Self { paths, node: node.to_owned(), drivers, pods, users, unread, listed })
    }

    /// The drivers.
    #[must_use]
    pub fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    /// Names of attached volumes that pods of this node have or that are still staged, as the Node object lists them.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let names = self.users.attached().into_iter();
        names.map(|(driver, handle)| self.unique(&driver, &handle)).collect()
    }

    fn unique(&self, driver: &str, handle: &str) -> String {
        format!("{}/{driver}^{handle}", self.paths.plugin())
    }

    /// Tells when a volume comes into or out of use, and is told of those that are no driver's; the value is of no meaning.
    #[must_use]
    pub fn changes(&self) -> &watch::Sender<u64> {
        self.users.changes()
    }

    /// Takes in what the Node object lists as in use. No attached volume is staged or published before it is listed.
    pub fn listed(&self, names: impl IntoIterator<Item = String>) {
        self.listed.send_replace(Some(names.into_iter().collect()));
    }

    /// Whether anything of a driver is on disk for a pod.
    #[must_use]
    pub fn has(&self, uid: &str) -> bool {
        self.paths.records_of(uid).is_ok_and(|records| !records.is_empty())
    }

    /// Stages and publishes a volume, or brings it up to date. Safe to repeat; a published volume is never taken away by a failure.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn set_up(
        &self,
        pod: &PodFacts,
        volume: &Persistent,
        csi: &CsiVolume,
        material: Material,
    ) -> Result<Published, CsiError> {
        let task = Task { node: self, pod, volume, csi, material };
        task.set_up().await
    }

    /// Where a pod has had a volume since before: published, and given to its group if it is to be. No driver is asked, and nothing is
    /// changed; `None` when there is something to do before a container may use it.
    pub async fn published(
        &self,
        pod: &PodFacts,
        volume: &Persistent,
        csi: &CsiVolume,
    ) -> Option<PathBuf> {
        Task { node: self, pod, volume, csi, material: Material::default() }.published().await
    }

    /// Takes everything away that drivers have published for a pod. What nobody else has is unstaged after that, see
    /// [`CsiNode::keep_unstaged`].
    ///
    /// # Errors
    /// The first failure; what can be done beside it is done.
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
                Some(record) => self.take_away(uid, &directory, &record).await,
                None => self.forget(uid, &directory).await,
            };
            if let Err(error) = done {
                tracing::warn!(uid, error = %error, "a driver's volume is not taken away");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// How full the volumes of a pod are, as far as their drivers tell. All are asked at once: who is silent holds up no other.
    pub async fn fill(&self, uid: &str) -> Vec<Fill> {
        let records = self.paths.records_of(uid).unwrap_or_default().into_iter();
        let asked = records.filter_map(|directory| {
            let record = read(&directory).ok()??;
            let driver = self.drivers.get(&record.driver).filter(|driver| driver.able.stats)?;
            Some(self.fill_of(uid, record, driver))
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    async fn fill_of(&self, uid: &str, record: Record, driver: Driver) -> Option<Fill> {
        let asked = wire::NodeGetVolumeStatsRequest {
            volume_id: record.handle.clone(),
            volume_path: text(&self.paths.target(uid, &record)),
            staging_target_path: String::new(),
        };
        match driver.stats(asked).await {
            Ok(answer) => Some(fill(&record.spec_name, &answer)),
            Err(error) => {
                tracing::debug!(volume = record.spec_name, %error, "no volume stats");
                None
            }
        }
    }

    async fn take_away(
        &self,
        uid: &str,
        directory: &Path,
        record: &Record,
    ) -> Result<(), CsiError> {
        let shared = self.users.of(record);
        let _turn = shared.turn().await;
        let target = self.paths.target(uid, record);
        let driver = self.driver(UNPUBLISH, &record.spec_name, &record.driver)?;
        let failed =
            |source| CsiError::Call { step: UNPUBLISH, volume: record.spec_name.clone(), source };
        driver.unpublish(&record.handle, &target).await.map_err(failed)?;
        self.remove_target(&target, record).await?;
        // Should its record go only half-way, nobody would tell any more who has it.
        shared.remove(uid, record);
        let of = directory.to_owned();
        let removed = blocking(UNPUBLISH, &record.spec_name, "remove the record", move || {
            Record::remove(&of)
        });
        let removed = removed.await;
        self.users.forget(record);
        removed
    }

    /// Removes the place of a volume, which has to be empty.
    async fn remove_target(&self, target: &Path, record: &Record) -> Result<(), CsiError> {
        let (place, block) = (target.to_owned(), record.block);
        blocking(UNPUBLISH, &record.spec_name, "remove the mount point", move || {
            let removed =
                if block { std::fs::remove_file(&place) } else { std::fs::remove_dir(&place) };
            gone(removed)?;
            if let Some(parent) = place.parent().filter(|_| block) {
                // another pod's device may be beside it
                let _ = std::fs::remove_dir(parent);
            }
            Ok(())
        })
        .await
    }

    /// A directory without a record is what a crash left before anything was asked of a driver.
    async fn forget(&self, uid: &str, directory: &Path) -> Result<(), CsiError> {
        let of = directory.to_owned();
        blocking(UNPUBLISH, uid, "remove what is left", move || Record::remove(&of)).await
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

/// The record of a directory. One that is damaged says nothing, and is told of.
fn read(directory: &Path) -> io::Result<Option<Record>> {
    match Record::read(directory) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::error!(directory = %directory.display(), %error, "a volume's record is damaged");
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

fn fill(spec_name: &str, answer: &wire::NodeGetVolumeStatsResponse) -> Fill {
    use wire::volume_usage::Unit;
    let of = |unit: Unit| {
        let usage = answer.usage.iter().find(|usage| usage.unit == i32::from(unit));
        usage.map(|usage| (usage.total, usage.used, usage.available))
    };
    let condition = answer.volume_condition.as_ref().filter(|condition| condition.abnormal);
    Fill {
        spec_name: spec_name.to_owned(),
        bytes: of(Unit::Bytes),
        inodes: of(Unit::Inodes),
        abnormal: condition.map(|condition| condition.message.clone()),
    }
}

#[cfg(test)]
mod tests;
