//! The node part of the driver.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use proto_grpc::csi::v1::node_server::Node;
use proto_grpc::csi::v1::*;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use serde_json::json;
use tonic::{Request, Response, Status};

use crate::Flags;
use crate::faults;
use crate::store::Store;

/// Directories of the host as volumes.
pub struct HostNode {
    flags: Flags,
    store: Arc<Store>,
}

impl HostNode {
    /// As the flags say.
    pub fn new(flags: Flags, store: Arc<Store>) -> Self {
        Self { flags, store }
    }

    async fn asked(&self, call: &str, what: serde_json::Value) -> Result<(), Status> {
        self.store.note(call, &what);
        faults::happen(self.store.fault(call)).await
    }
}

fn failed(what: &str) -> impl Fn(io::Error) -> Status + '_ {
    move |error| Status::internal(format!("{what}: {error}"))
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    matches!(
        capability.and_then(|c| c.access_type.as_ref()),
        Some(volume_capability::AccessType::Block(_))
    )
}

/// Whether something is mounted there; nothing there is no.
fn is_mounted(path: &Path) -> io::Result<bool> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let path = path.to_string_lossy().into_owned();
    Ok(table.lines().any(|line| line.split(' ').nth(4) == Some(&path)))
}

fn bind(source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
    if is_mounted(target)? {
        return Ok(());
    }
    mount_bind(source, target)?;
    if read_only {
        mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

fn take_off(target: &Path) -> io::Result<()> {
    while is_mounted(target)? {
        unmount(target, UnmountFlags::NOFOLLOW)?;
    }
    Ok(())
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The node of a block device that stands for a volume: the first loop device, whether or not it is there.
fn device(volume: &Path) -> io::Result<std::path::PathBuf> {
    let path = volume.join("device");
    if !path.exists() {
        mknodat(CWD, &path, FileType::BlockDevice, Mode::from_raw_mode(0o660), makedev(7, 0))?;
    }
    Ok(path)
}

#[tonic::async_trait]
impl Node for HostNode {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let asked = request.into_inner();
        let secrets: Vec<&String> = asked.secrets.keys().collect();
        self.asked("NodeStageVolume", json!({"id": asked.volume_id, "secrets": secrets})).await?;
        let volume = self.store.volume(&asked.volume_id).map_err(failed("volume"))?;
        if !is_block(asked.volume_capability.as_ref()) {
            bind(&volume, Path::new(&asked.staging_target_path), false).map_err(failed("stage"))?;
        }
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let asked = request.into_inner();
        self.asked("NodeUnstageVolume", json!({"id": asked.volume_id})).await?;
        take_off(Path::new(&asked.staging_target_path)).map_err(failed("unstage"))?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let what = json!({
            "id": asked.volume_id,
            "context": asked.volume_context,
            "attached": asked.publish_context,
            "secrets": asked.secrets.keys().collect::<Vec<_>>(),
            "readonly": asked.readonly,
        });
        self.asked("NodePublishVolume", what).await?;
        let volume = self.store.volume(&asked.volume_id).map_err(failed("volume"))?;
        let target = Path::new(&asked.target_path);
        if is_block(asked.volume_capability.as_ref()) {
            let device = device(&volume).map_err(failed("device"))?;
            fs::File::create(target).map_err(failed("target"))?;
            bind(&device, target, false).map_err(failed("publish"))?;
            return Ok(Response::new(NodePublishVolumeResponse {}));
        }
        let staged = !asked.staging_target_path.is_empty();
        let source = if staged { Path::new(&asked.staging_target_path) } else { &volume };
        if staged && !is_mounted(source).map_err(failed("look"))? {
            return Err(Status::failed_precondition("the volume is not staged"));
        }
        fs::create_dir_all(target).map_err(failed("target"))?;
        bind(source, target, asked.readonly).map_err(failed("publish"))?;
        if let Some(tokens) = asked.volume_context.get("csi.storage.k8s.io/serviceAccount.tokens") {
            fs::write(volume.join("tokens"), tokens).map_err(failed("tokens"))?;
        }
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        self.asked("NodeUnpublishVolume", json!({"id": asked.volume_id})).await?;
        let target = Path::new(&asked.target_path);
        take_off(target).map_err(failed("unpublish"))?;
        let removed =
            if target.is_dir() { fs::remove_dir(target) } else { fs::remove_file(target) };
        gone(removed).map_err(failed("target"))?;
        // one that a pod described lives as long as the pod
        if asked.volume_id.starts_with("csi-") {
            self.store.remove(&asked.volume_id).map_err(failed("remove"))?;
        }
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let asked = request.into_inner();
        self.asked("NodeGetVolumeStats", json!({"id": asked.volume_id})).await?;
        let (total, used) = self.store.size(&asked.volume_id).map_err(failed("size"))?;
        let unit = volume_usage::Unit::Bytes.into();
        let usage = VolumeUsage { total, used, available: total - used, unit };
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: vec![usage], volume_condition: None }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let asked = request.into_inner();
        let bytes = asked.capacity_range.map_or(0, |range| range.required_bytes);
        self.asked("NodeExpandVolume", json!({"id": asked.volume_id, "bytes": bytes})).await?;
        self.store.resize(&asked.volume_id, bytes).map_err(failed("resize"))?;
        Ok(Response::new(NodeExpandVolumeResponse { capacity_bytes: bytes }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        use node_service_capability::rpc::Type as Rpc;
        let stage = (!self.flags.no_stage).then_some(Rpc::StageUnstageVolume);
        let all = stage.into_iter().chain([Rpc::GetVolumeStats, Rpc::ExpandVolume]);
        let capability = |rpc: Rpc| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(node_service_capability::Rpc {
                r#type: rpc.into(),
            })),
        };
        let capabilities = all.map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let key = format!("topology.{}/zone", self.flags.name);
        let segments = HashMap::from([(key, "z1".to_owned())]);
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.flags.node_id.clone(),
            max_volumes_per_node: self.flags.volumes_max,
            accessible_topology: Some(Topology { segments }),
        }))
    }
}
