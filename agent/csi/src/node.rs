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
//! stage call, the publish call; and back: the unpublish call, then, if no other pod's record names the volume, the unstage call and its
//! record, and the pod's record last.

mod paths;
mod users;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_volume::PodVolumes;
use agent_volume::persistent::{CsiVolume, Persistent};
use agent_volume::private;
use futures_util::future::join_all;
use proto_api::core::v1::Secret;
use proto_api::names::Names;
use proto_grpc::csi::v1 as wire;

use crate::driver::{CallError, Driver, text};
use crate::drivers::Drivers;
use crate::mounts::MountTable;
use crate::offload::offload;
use crate::record::{Record, gone};
use crate::request::{self, PodFacts, Token};
use paths::Paths;
use users::{Shared, Users};

/// Why a driver's volume is not as it should be. The texts are shown to users as they are.
#[derive(Debug, thiserror::Error)]
pub enum CsiError {
    /// No such driver is registered on this node.
    #[error(
        "{step} failed for volume {volume:?} : {plugin}: mounter.SetUpAt failed to get CSI client: driver name {driver} not found in the list of registered CSI drivers"
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

/// Between two looks for what is staged for nobody.
const HEAL_PERIOD: Duration = Duration::from_secs(60);

const SET_UP: &str = "MountVolume.SetUp";
const STAGE: &str = "MountVolume.MountDevice";
const EXPAND: &str = "MountVolume.NodeExpandVolume";
const UNPUBLISH: &str = "UnmountVolume.TearDown";
const UNSTAGE: &str = "UnmountDevice";

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
    /// Whether every record could be read. If not, a volume that seems to be nobody's may be somebody's.
    all_read: bool,
}

impl CsiNode {
    /// Volumes below `root`, with what the records of an earlier process say. A damaged record is told of and left where it is.
    ///
    /// # Errors
    /// The directories of the records cannot be read.
    pub fn open(root: &Path, names: &Names, node: &str, drivers: Drivers) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let paths = Paths::new(&root, names);
        let users = Users::default();
        let mut all_read = true;
        for (uid, directory) in paths.pod_records()? {
            match read(&directory) {
                Ok(Some(record)) => users.of(&record.driver, &record.handle).add(&uid, &record),
                Ok(None) => {}
                Err(error) => {
                    all_read = false;
                    tracing::error!(directory = %directory.display(), %error, "a volume's record cannot be read");
                }
            }
        }
        let pods = PodVolumes::new(&root, names);
        Ok(Self { paths, node: node.to_owned(), drivers, pods, users, all_read })
    }

    /// The drivers.
    #[must_use]
    pub fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    /// Names of attached volumes that pods of this node have, as the Node object lists them.
    #[must_use]
    pub fn in_use(&self) -> Vec<String> {
        let names = self.users.attached().into_iter();
        names.map(|(driver, handle)| format!("{}/{driver}^{handle}", self.paths.plugin())).collect()
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

    /// Takes everything away that drivers have published for a pod, and unstages what nobody else has.
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

    /// Unstages what a driver has staged for nobody: what a crash left, once its driver is there.
    pub async fn heal(&self, driver: &Driver) {
        if !self.all_read {
            return;
        }
        for directory in self.paths.staged_by(&driver.name).unwrap_or_default() {
            let Ok(Some(record)) = read(&directory) else { continue };
            let shared = self.users.of(&record.driver, &record.handle);
            let _turn = shared.turn().await;
            if shared.is_free()
                && let Err(error) = self.unstage(driver, &record, &directory, &shared).await
            {
                tracing::warn!(handle = record.handle, %error, "a volume of nobody is still staged");
            }
        }
    }

    /// Does so again and again for all drivers, for what a crash or a failure left in spite of everything.
    pub async fn keep_healed(&self) {
        loop {
            tokio::time::sleep(HEAL_PERIOD).await;
            let drivers = self.drivers.all();
            join_all(drivers.iter().map(|driver| self.heal(driver))).await;
        }
    }

    /// How full the volumes of a pod are, as far as their drivers tell.
    pub async fn fill(&self, uid: &str) -> Vec<Fill> {
        let mut all = Vec::new();
        for directory in self.paths.records_of(uid).unwrap_or_default() {
            let Ok(Some(record)) = read(&directory) else { continue };
            let Some(driver) = self.drivers.get(&record.driver).filter(|d| d.able.stats) else {
                continue;
            };
            let asked = wire::NodeGetVolumeStatsRequest {
                volume_id: record.handle.clone(),
                volume_path: text(&self.paths.target(uid, &record)),
                staging_target_path: String::new(),
            };
            match driver.stats(asked).await {
                Ok(answer) => all.push(fill(&record.spec_name, &answer)),
                Err(error) => tracing::debug!(volume = record.spec_name, %error, "no volume stats"),
            }
        }
        all
    }

    async fn take_away(
        &self,
        uid: &str,
        directory: &Path,
        record: &Record,
    ) -> Result<(), CsiError> {
        let shared = self.users.of(&record.driver, &record.handle);
        let _turn = shared.turn().await;
        let target = self.paths.target(uid, record);
        let driver = self.driver(UNPUBLISH, &record.spec_name, &record.driver)?;
        let failed =
            |source| CsiError::Call { step: UNPUBLISH, volume: record.spec_name.clone(), source };
        driver.unpublish(&record.handle, &target).await.map_err(failed)?;
        self.remove_target(&target, record).await?;
        // The pod has the volume until nothing is left to do for it: whoever dies or fails before that does all of this again.
        if shared.has_only(uid, record) && driver.able.stage && record.lifecycle != EPHEMERAL {
            let staged = self.paths.stage_record(record);
            self.unstage(&driver, record, &staged, &shared).await?;
        }
        // Should its record go only half-way, nobody would tell any more who has it.
        shared.remove(uid, record);
        let of = directory.to_owned();
        blocking(UNPUBLISH, &record.spec_name, "remove the record", move || Record::remove(&of))
            .await?;
        self.users.forget(&record.driver, &record.handle);
        Ok(())
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

    async fn unstage(
        &self,
        driver: &Driver,
        record: &Record,
        directory: &Path,
        shared: &Shared,
    ) -> Result<(), CsiError> {
        let stage = self.paths.stage(record);
        let failed =
            |source| CsiError::Call { step: UNSTAGE, volume: record.spec_name.clone(), source };
        driver.unstage(&record.handle, &stage).await.map_err(failed)?;
        shared.unstaged();
        let of = directory.to_owned();
        blocking(UNSTAGE, &record.spec_name, "remove the mount point", move || {
            gone(std::fs::remove_dir(&stage))?;
            Record::remove(&of)
        })
        .await
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

const PERSISTENT: &str = "Persistent";
const EPHEMERAL: &str = "Ephemeral";

/// One volume being set up for one pod.
struct Task<'a> {
    node: &'a CsiNode,
    pod: &'a PodFacts,
    volume: &'a Persistent,
    csi: &'a CsiVolume,
    material: Material,
}

impl Task<'_> {
    async fn set_up(mut self) -> Result<Published, CsiError> {
        let driver = self.node.driver(SET_UP, &self.volume.spec_name, &self.csi.driver)?;
        let shared = self.node.users.of(&self.csi.driver, &self.csi.handle);
        let _turn = shared.turn().await;
        let mut record = self.record();
        let directory = self.node.paths.record(&self.pod.uid, &record);
        let target = self.node.paths.target(&self.pod.uid, &record);
        let known = self.known(&directory).await?;
        let table = MountTable::read().map_err(|e| self.node_error(SET_UP, "read mounts", e))?;
        let mounted = table.has(&target);
        if let Some(known) = &known {
            record.group_given = known.group_given && mounted;
        }
        if !mounted || known.is_none() {
            self.write(&directory, &record).await?;
            shared.add(&self.pod.uid, &record);
            self.stage(&driver, &shared, &record, &table).await?;
        }
        if !mounted || self.csi.republish {
            self.publish(&driver, &record, &target).await?;
        }
        if self.gives_group(&driver) && !record.group_given {
            self.give(&target).await?;
            record.group_given = true;
            self.write(&directory, &record).await?;
        }
        let grown_to = self.grow(&driver, &record, &target).await?;
        Ok(Published { path: target, grown_to })
    }

    fn record(&self) -> Record {
        Record {
            spec_name: self.volume.spec_name.clone(),
            handle: self.csi.handle.clone(),
            driver: self.csi.driver.clone(),
            node: self.node.node.clone(),
            attachment: self.csi.attachment.clone().unwrap_or_default(),
            lifecycle: if self.csi.ephemeral { EPHEMERAL } else { PERSISTENT }.to_owned(),
            block: self.volume.block,
            group_given: false,
        }
    }

    async fn known(&self, directory: &Path) -> Result<Option<Record>, CsiError> {
        let of = directory.to_owned();
        blocking(SET_UP, &self.volume.spec_name, "read the record", move || read(&of)).await
    }

    async fn write(&self, directory: &Path, record: &Record) -> Result<(), CsiError> {
        let (of, record) = (directory.to_owned(), record.clone());
        blocking(SET_UP, &self.volume.spec_name, "write the record", move || record.write(&of))
            .await
    }

    /// Stages the volume unless it is. A stage that left no mount is remembered by this process only; asking again is harmless.
    async fn stage(
        &mut self,
        driver: &Driver,
        shared: &Shared,
        record: &Record,
        table: &MountTable,
    ) -> Result<(), CsiError> {
        let stage = self.node.paths.stage(record);
        if !driver.able.stage || self.csi.ephemeral || shared.is_staged(table.has(&stage)) {
            return Ok(());
        }
        let (made, of, staged) =
            (stage.clone(), self.node.paths.stage_record(record), record.clone());
        let prepare = move || {
            staged.write(&of)?;
            // a directory for either kind; a driver puts a device's file into it
            private::make(&made)
        };
        blocking(STAGE, &self.volume.spec_name, "prepare", prepare).await?;
        let asked = wire::NodeStageVolumeRequest {
            volume_id: self.csi.handle.clone(),
            publish_context: self.csi.publish_context.clone().into_iter().collect(),
            staging_target_path: text(&stage),
            volume_capability: Some(self.capability(driver)),
            secrets: std::mem::take(&mut self.material.stage),
            volume_context: self.csi.attributes.clone().into_iter().collect(),
        };
        driver.stage(asked).await.map_err(|e| self.call_error(STAGE, e))?;
        let table = MountTable::read().map_err(|e| self.node_error(STAGE, "read mounts", e))?;
        shared.staged(table.has(&stage));
        Ok(())
    }

    async fn publish(
        &mut self,
        driver: &Driver,
        record: &Record,
        target: &Path,
    ) -> Result<(), CsiError> {
        if let Some(parent) = target.parent().map(Path::to_owned) {
            let make = move || private::make(&parent);
            blocking(SET_UP, &self.volume.spec_name, "make the directory", make).await?;
        }
        let staged = driver.able.stage && !self.csi.ephemeral;
        let stage = if staged { text(&self.node.paths.stage(record)) } else { String::new() };
        let asked = wire::NodePublishVolumeRequest {
            volume_id: self.csi.handle.clone(),
            publish_context: self.csi.publish_context.clone().into_iter().collect(),
            staging_target_path: stage,
            target_path: text(target),
            volume_capability: Some(self.capability(driver)),
            readonly: self.csi.read_only,
            secrets: std::mem::take(&mut self.material.publish),
            volume_context: request::publish_context(self.csi, self.pod, &self.material.tokens),
        };
        driver.publish(asked).await.map_err(|e| self.call_error(SET_UP, e))
    }

    fn capability(&self, driver: &Driver) -> wire::VolumeCapability {
        request::capability(self.volume, self.csi, self.pod.group, driver.able)
    }

    /// Whether the agent gives the volume to the pod's group.
    fn gives_group(&self, driver: &Driver) -> bool {
        self.pod.group.is_some()
            && self.csi.takes_group()
            && !self.volume.block
            && !self.csi.read_only
            && !driver.able.mount_group
    }

    async fn give(&self, target: &Path) -> Result<(), CsiError> {
        let Some(gid) = self.pod.group else { return Ok(()) };
        let (pods, root) = (self.node.pods.clone(), target.to_owned());
        let change = self.pod.change;
        let give = move || pods.give(&root, gid, false, change).map_err(io::Error::from);
        blocking(SET_UP, &self.volume.spec_name, "give to the group", give).await
    }

    async fn grow(
        &mut self,
        driver: &Driver,
        record: &Record,
        target: &Path,
    ) -> Result<Option<u64>, CsiError> {
        let Some(bytes) = self.volume.grow_to.filter(|_| driver.able.expand) else {
            return Ok(None);
        };
        let stage = self.node.paths.stage(record);
        let asked = wire::NodeExpandVolumeRequest {
            volume_id: self.csi.handle.clone(),
            volume_path: text(target),
            capacity_range: Some(wire::CapacityRange {
                required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            staging_target_path: if driver.able.stage { text(&stage) } else { String::new() },
            volume_capability: Some(self.capability(driver)),
            secrets: std::mem::take(&mut self.material.expand),
        };
        driver.expand(asked).await.map_err(|e| self.call_error(EXPAND, e))?;
        Ok(Some(bytes))
    }

    fn call_error(&self, step: &'static str, source: CallError) -> CsiError {
        CsiError::Call { step, volume: self.volume.spec_name.clone(), source }
    }

    fn node_error(&self, step: &'static str, what: &str, source: io::Error) -> CsiError {
        let (volume, what) = (self.volume.spec_name.clone(), what.to_owned());
        CsiError::Node { step, volume, what, source }
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
