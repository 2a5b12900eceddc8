//! Set-up of one volume for one pod: stage, publish, `fsGroup`, expansion.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_host::{PodWork, offload_for_pod};
use agent_volume::persistent::{CsiVolume, PersistentSource};
use agent_volume::private_dirs;
use proto_grpc::csi::v1 as wire;

use super::users::StagedVolume;
use super::{
    CallMaterial, CsiError, CsiNode, EXPAND, PublishedVolume, SET_UP, STAGE, blocking, read,
};
use crate::driver::{CallError, Capabilities, Driver, text};
use crate::mounts::MountTable;
use crate::record::VolumeRecord;
use crate::request::{self, PodFacts};

/// Access mode that allows one pod in the cluster.
const ONE_POD: &str = "ReadWriteOncePod";
/// How long the Node object may take to list a volume as in use.
const LISTED: Duration = Duration::from_secs(30);

const PERSISTENT: &str = "Persistent";
const EPHEMERAL: &str = "Ephemeral";

/// The set-up of one volume for one pod.
pub(super) struct SetUpTask<'a> {
    pub(super) node: &'a CsiNode,
    pub(super) pod: &'a PodFacts,
    pub(super) volume: &'a PersistentSource,
    pub(super) csi: &'a CsiVolume,
    pub(super) material: CallMaterial,
}

impl SetUpTask<'_> {
    pub(super) async fn set_up(mut self) -> Result<PublishedVolume, CsiError> {
        let driver = self.node.driver(SET_UP, &self.volume.spec_name, &self.csi.driver)?;
        let mut record = self.record();
        let shared = self.node.users.get(&record);
        let _turn = shared.lock().await;
        let directory = self.node.paths.record(&self.pod.uid, &record);
        let target = self.node.paths.target(&self.pod.uid, &record);
        let known = self.read_record(&directory).await?;
        let table = self.read_mounts(SET_UP).await?;
        let mounted = table.has(&target);
        if let Some(known) = &known {
            record.group_given = known.group_given && mounted;
        }
        if !mounted || known.is_none() {
            self.is_alone(&shared)?;
            self.write(&directory, &record).await?;
            shared.add(&self.pod.uid, &record);
            self.node.users.notify();
            self.is_listed(&record).await?;
            self.stage(&driver, &shared, &record, &table).await?;
        }
        if !mounted || self.csi.republish {
            self.publish(&driver, &record, &target).await?;
        }
        if self.applies_fs_group(driver.able) && !record.group_given {
            self.apply_fs_group(&target).await?;
            record.group_given = true;
            self.write(&directory, &record).await?;
        }
        let grown_to = self.expand(&driver, &record, &target).await?;
        Ok(PublishedVolume { path: target, grown_to })
    }

    async fn read_mounts(&self, step: &'static str) -> Result<MountTable, CsiError> {
        let table = MountTable::read_offloaded().await;
        table.map_err(|error| self.node_error(step, "read mounts", error))
    }

    /// Rejects a second pod for a `ReadWriteOncePod` volume, including pods that did not pass the scheduler.
    fn is_alone(&self, shared: &StagedVolume) -> Result<(), CsiError> {
        // With several access modes it is unknown which one the pod relies on.
        let for_one = matches!(self.csi.access_modes.as_slice(), [only] if only == ONE_POD);
        if for_one && shared.is_used_by_other(&self.pod.uid) {
            return Err(CsiError::OnePodOnly { volume: self.volume.spec_name.clone() });
        }
        Ok(())
    }

    /// See [`CsiNode::published_volumes`].
    pub(super) async fn published_path(&self) -> Option<PathBuf> {
        let record = self.record();
        let known =
            self.read_record(&self.node.paths.record(&self.pod.uid, &record)).await.ok()??;
        let able = self.node.drivers.get(&self.csi.driver).map(|driver| driver.able);
        let same = (&known.driver, &known.handle) == (&record.driver, &record.handle);
        let whole = same && (known.group_given || !self.applies_fs_group(able.unwrap_or_default()));
        let target = self.node.paths.target(&self.pod.uid, &record);
        (whole && self.read_mounts(SET_UP).await.ok()?.has(&target)).then_some(target)
    }

    fn record(&self) -> VolumeRecord {
        VolumeRecord {
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

    async fn read_record(&self, directory: &Path) -> Result<Option<VolumeRecord>, CsiError> {
        let of = directory.to_owned();
        blocking(SET_UP, &self.volume.spec_name, "read the record", move || read(&of)).await
    }

    async fn write(&self, directory: &Path, record: &VolumeRecord) -> Result<(), CsiError> {
        let (of, record) = (directory.to_owned(), record.clone());
        blocking(SET_UP, &self.volume.spec_name, "write the record", move || record.write(&of))
            .await
    }

    /// Waits until the Node object lists an attached volume as in use; from then on it is not detached.
    async fn is_listed(&self, record: &VolumeRecord) -> Result<(), CsiError> {
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

    /// Stages the volume unless it is known to be staged; repeated calls are harmless.
    async fn stage(
        &mut self,
        driver: &Driver,
        shared: &StagedVolume,
        record: &VolumeRecord,
        table: &MountTable,
    ) -> Result<(), CsiError> {
        let stage = self.node.paths.stage(record);
        if !driver.able.stage || self.csi.ephemeral || shared.is_staged(table.has(&stage)) {
            return Ok(());
        }
        let (made, of, staged) =
            (stage.clone(), self.node.paths.stage_record(record), record.clone());
        // The mount may hang or be left by a dead driver: clearing it is up to the driver.
        let is_there = table.has(&stage);
        let prepare = move || {
            staged.write(&of)?;
            // A directory in both cases; for a block volume the driver creates a file in it.
            if is_there { Ok(()) } else { private_dirs::make_place(&made) }
        };
        // Whether or not the record reached the disk: the stage may exist and has to be undone.
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
        let table = self.read_mounts(STAGE).await?;
        shared.set_staged(table.has(&stage));
        Ok(())
    }

    async fn publish(
        &mut self,
        driver: &Driver,
        record: &VolumeRecord,
        target: &Path,
    ) -> Result<(), CsiError> {
        if let Some(parent) = target.parent().map(Path::to_owned) {
            let make = move || private_dirs::make(&parent);
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

    /// Whether the agent applies `fsGroup` to the volume.
    fn applies_fs_group(&self, able: Capabilities) -> bool {
        self.pod.group.is_some()
            && self.csi.takes_group()
            && !self.volume.block
            && !self.csi.read_only
            && !able.mount_group
    }

    async fn apply_fs_group(&self, target: &Path) -> Result<(), CsiError> {
        let Some(gid) = self.pod.group else { return Ok(()) };
        let (pods, root) = (self.node.pods.clone(), target.to_owned());
        let change = self.pod.change;
        let give = move || pods.apply_fs_group(&root, gid, false, change).map_err(io::Error::from);
        // The walk takes as long as the volume has files.
        let of = (self.pod.namespace.as_str(), self.pod.uid.as_str());
        let done = offload_for_pod(of, PodWork::SetUp, give).await.and_then(|done| done);
        done.map_err(|error| self.node_error(SET_UP, "give to the group", error))
    }

    async fn expand(
        &mut self,
        driver: &Driver,
        record: &VolumeRecord,
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
