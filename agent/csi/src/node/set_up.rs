//! One volume on its way to one pod: staged once a node, published, given to the pod's group, made larger.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_volume::persistent::{CsiVolume, Persistent};
use agent_volume::private;
use proto_grpc::csi::v1 as wire;

use super::users::Shared;
use super::{CsiError, CsiNode, EXPAND, Material, Published, SET_UP, STAGE, blocking, read};
use crate::driver::{CallError, Capabilities, Driver, text};
use crate::mounts::MountTable;
use crate::record::Record;
use crate::request::{self, PodFacts};

/// The access mode that one pod of the cluster has for itself.
const ONE_POD: &str = "ReadWriteOncePod";
/// How long the Node object may take to list a volume that comes into use.
const LISTED: Duration = Duration::from_secs(30);

const PERSISTENT: &str = "Persistent";
const EPHEMERAL: &str = "Ephemeral";

/// One volume being set up for one pod.
pub(super) struct Task<'a> {
    pub(super) node: &'a CsiNode,
    pub(super) pod: &'a PodFacts,
    pub(super) volume: &'a Persistent,
    pub(super) csi: &'a CsiVolume,
    pub(super) material: Material,
}

impl Task<'_> {
    pub(super) async fn set_up(mut self) -> Result<Published, CsiError> {
        let driver = self.node.driver(SET_UP, &self.volume.spec_name, &self.csi.driver)?;
        let mut record = self.record();
        let shared = self.node.users.of(&record);
        let _turn = shared.turn().await;
        let directory = self.node.paths.record(&self.pod.uid, &record);
        let target = self.node.paths.target(&self.pod.uid, &record);
        let known = self.known(&directory).await?;
        let table = MountTable::read().map_err(|e| self.node_error(SET_UP, "read mounts", e))?;
        let mounted = table.has(&target);
        if let Some(known) = &known {
            record.group_given = known.group_given && mounted;
        }
        if !mounted || known.is_none() {
            self.is_alone(&shared)?;
            self.write(&directory, &record).await?;
            shared.add(&self.pod.uid, &record);
            self.node.users.changed();
            self.is_listed(&record).await?;
            self.stage(&driver, &shared, &record, &table).await?;
        }
        if !mounted || self.csi.republish {
            self.publish(&driver, &record, &target).await?;
        }
        if self.gives_group(driver.able) && !record.group_given {
            self.give(&target).await?;
            record.group_given = true;
            self.write(&directory, &record).await?;
        }
        let grown_to = self.grow(&driver, &record, &target).await?;
        Ok(Published { path: target, grown_to })
    }

    /// A volume for one pod is given to one, also when a pod has come here past the scheduler.
    fn is_alone(&self, shared: &Shared) -> Result<(), CsiError> {
        // of several modes nobody knows which one the pod means
        let for_one = matches!(self.csi.access_modes.as_slice(), [only] if only == ONE_POD);
        if for_one && shared.is_had_beside(&self.pod.uid) {
            return Err(CsiError::OnePodOnly { volume: self.volume.spec_name.clone() });
        }
        Ok(())
    }

    /// See [`CsiNode::published`].
    pub(super) async fn published(&self) -> Option<PathBuf> {
        let record = self.record();
        let known = self.known(&self.node.paths.record(&self.pod.uid, &record)).await.ok()??;
        let able = self.node.drivers.get(&self.csi.driver).map(|driver| driver.able);
        let same = (&known.driver, &known.handle) == (&record.driver, &record.handle);
        let whole = same && (known.group_given || !self.gives_group(able.unwrap_or_default()));
        let target = self.node.paths.target(&self.pod.uid, &record);
        (whole && MountTable::read().ok()?.has(&target)).then_some(target)
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

    /// Waits until the Node object lists an attached volume as in use: from then on nobody takes it from the node.
    async fn is_listed(&self, record: &Record) -> Result<(), CsiError> {
        if record.attachment.is_empty() {
            return Ok(());
        }
        let name = self.node.unique(&record.driver, &record.handle);
        let mut listed = self.node.listed.subscribe();
        let there = listed.wait_for(|all| all.as_ref().is_some_and(|all| all.contains(&name)));
        let there = tokio::time::timeout(LISTED, there).await.is_ok_and(|there| there.is_ok());
        let not_listed = || CsiError::NotListed { volume: record.spec_name.clone() };
        there.then_some(()).ok_or_else(not_listed)
    }

    /// Stages the volume unless it is for certain; asking again is harmless.
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
        // What is mounted there may hang, or be all that a driver that ended has left: that is the driver's to clear up.
        let is_there = table.has(&stage);
        let prepare = move || {
            staged.write(&of)?;
            // a directory for either kind; a driver puts a device's file into it
            if is_there { Ok(()) } else { private::make_place(&made) }
        };
        // Whether or not the record is on disk: what may be is undone.
        shared.may_be_staged(record);
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
    fn gives_group(&self, able: Capabilities) -> bool {
        self.pod.group.is_some()
            && self.csi.takes_group()
            && !self.volume.block
            && !self.csi.read_only
            && !able.mount_group
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
