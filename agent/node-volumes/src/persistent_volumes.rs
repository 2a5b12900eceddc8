//! Persistent volumes of the pods on this node. Each becomes a path on the host that containers mount.

pub mod block;
pub mod helpers;
pub(crate) mod nfs_unmount;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_csi::CsiNode;
use agent_csi::mounts::MountTable;
use agent_csi::node::{CallMaterial, CsiError, PublishedVolume, secret_values};
use agent_csi::request::{DriverToken, PodFacts};
use agent_host::{PodWork, offload_for_pod};
use agent_interfaces::{Reports, VolumeError};
use agent_pod::events::{PodEvent, Severity, VolumeStep};
use agent_pod::volume_mounts::VolumeOnHost;
use agent_telemetry::metrics::OperationMetrics;
use agent_volume::disk::ProgramRun;
use agent_volume::fs_group::FsGroupChangePolicy;
use agent_volume::persistent::{
    self, AttachedDisk, Backing, CsiVolume, KnownObjects, PersistentError, PersistentSource,
    se_linux,
};
use agent_volume::sources::{HostPathKind, TokenWant, VolumePlugin, fs_group};
use agent_volume::{VolumesOnDisk, host_path};
use proto_api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use proto_client::{Client, Patch, WriteParams};
use proto_daemon::exit::chain;
use serde_json::json;

use self::block::{DiskError, DiskSource, Disks, OnDisk};
use self::helpers::Helpers;

/// Interval of repeated NodePublishVolume calls for drivers with `requiresRepublish`.
pub const REPUBLISH_PERIOD: Duration = Duration::from_secs(60);
/// The program that mounts NFS exports.
const MOUNT_NFS: &str = "mount.nfs";

/// Persistent volumes of this node's pods.
pub struct PersistentVolumes {
    /// CSI volumes.
    pub csi: Arc<CsiNode>,
    /// The directories of the pods.
    pub volumes: VolumesOnDisk,
    /// Name of the node.
    pub node: String,
    /// The API server.
    pub client: Option<Client>,
    /// Receives events.
    pub reports: Arc<dyn Reports>,
    /// Volumes on block devices.
    pub disks: Arc<Disks>,
    /// Programs of the node.
    pub helpers: Arc<dyn Helpers>,
    /// Counts operations.
    pub operations: OperationMetrics,
    /// Whether the node has SELinux.
    pub selinux: bool,
}

/// Service account tokens with their expiry, by what was requested.
pub type DriverTokens = BTreeMap<TokenWant, DriverToken>;

impl PersistentVolumes {
    /// Resolves the persistent volumes of a pod, in the pod's order.
    ///
    /// # Errors
    /// Why the first unusable volume is unusable, worded as the kubelet's event.
    pub fn resolve(
        &self,
        pod: &Pod,
        known: &KnownObjects,
    ) -> Result<Vec<PersistentSource>, VolumeError> {
        let all = pod.spec.volumes.iter();
        let found = all.map(|volume| persistent::resolve(pod, volume, &self.node, known));
        found
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()
            .map_err(|error| unresolved(pod, &error))
    }

    /// Sets up one volume, or updates it.
    ///
    /// # Errors
    /// Why it cannot be used, worded as the kubelet's event.
    pub async fn set_up(
        &self,
        pod: &Arc<Pod>,
        volume: &PersistentSource,
        known: &KnownObjects,
        tokens: &DriverTokens,
    ) -> Result<VolumeOnHost, VolumeError> {
        let path = match &volume.backing {
            Backing::HostPath { path, kind } => {
                self.check_host_path(pod, volume, path, *kind).await?
            }
            Backing::Local { path, fs_type } if !volume.block && is_device(pod, path).await? => {
                let source = DiskSource::Device(path);
                self.set_up_disk(pod, volume, source, fs_type, None).await?
            }
            Backing::Local { path, .. } => self.bind_local(pod, volume, path).await?,
            Backing::Disk { disk, fs_type } => {
                let secret = disk.secret().and_then(|key| known.secrets.get(key)?.as_deref());
                let source = DiskSource::Attached(disk);
                self.set_up_disk(pod, volume, source, fs_type, secret).await?
            }
            Backing::Nfs { server, path } => self.mount_nfs(pod, volume, server, path).await?,
            Backing::Csi(csi) => self.set_up_csi(pod, volume, csi, known, tokens).await?,
        };
        Ok(self.volume_on_host(pod, volume, &path))
    }

    /// The CSI volumes that an earlier process published for a pod, by name in the pod. No driver is called.
    pub async fn list_published(
        &self,
        pod: &Pod,
        volumes: &[PersistentSource],
    ) -> BTreeMap<String, VolumeOnHost> {
        let mut there = BTreeMap::new();
        for volume in volumes {
            let Backing::Csi(csi) = &volume.backing else { continue };
            if let Some(path) = self.csi.published_volumes(&pod_facts(pod), volume, csi).await {
                there.insert(volume.name.clone(), self.volume_on_host(pod, volume, &path));
            }
        }
        there
    }

    fn volume_on_host(&self, pod: &Pod, volume: &PersistentSource, path: &Path) -> VolumeOnHost {
        VolumeOnHost {
            path: path.to_string_lossy().into_owned(),
            read_only: volume.read_only,
            managed: !matches!(volume.backing, Backing::HostPath { .. } | Backing::Nfs { .. })
                && self.selinux_option(pod, volume).is_none(),
            block: volume.block,
            checked: false,
            follows: false,
        }
    }

    async fn check_host_path(
        &self,
        pod: &Pod,
        volume: &PersistentSource,
        path: &str,
        kind: HostPathKind,
    ) -> Result<PathBuf, VolumeError> {
        let (at, name) = (path.to_owned(), volume.spec_name.clone());
        blocking(pod, move || host_path::check(&at, kind).map_err(|e| failed(&name, &chain(&e))))
            .await?;
        Ok(path.into())
    }

    /// Binds a directory of this node, so that the pod keeps it when another directory takes over its path. A device is only checked.
    async fn bind_local(
        &self,
        pod: &Pod,
        volume: &PersistentSource,
        path: &str,
    ) -> Result<PathBuf, VolumeError> {
        let kind = if volume.block { HostPathKind::BlockDevice } else { HostPathKind::Directory };
        let (at, name) = (path.to_owned(), volume.spec_name.clone());
        if volume.block {
            return self.check_host_path(pod, volume, &at, kind).await;
        }
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let (group, change, read_only) = (fs_group(pod), change_policy(pod), volume.read_only);
        blocking(pod, move || {
            let source = host_path::open(&at, kind).map_err(|e| failed(&name, &chain(&e)))?;
            let error = |e| failed(&name, &chain(&e));
            let (bound, fresh) =
                volumes.bind(&uid, VolumePlugin::Local, &name, &source).map_err(error)?;
            if let Some(group) = group.filter(|_| fresh) {
                let given = volumes.apply_fs_group(&bound, group, read_only, change);
                given.map_err(|e| failed(&name, &format!("set fsGroup: {e}")))?;
            }
            Ok(bound)
        })
        .await
    }

    /// Sets up a volume on a block device: a bind mount of its file system, or the device itself.
    async fn set_up_disk(
        &self,
        pod: &Pod,
        volume: &PersistentSource,
        source: DiskSource<'_>,
        fs_type: &str,
        secret: Option<&Secret>,
    ) -> Result<PathBuf, VolumeError> {
        let failure = |step: VolumeStep, operation: &str, why: DiskError| {
            let (name, why) = (&volume.spec_name, chain(&why));
            let message = format!("{operation} failed for volume {name:?} : {why}");
            VolumeError { step, message }
        };
        let wanted = OnDisk {
            name: &volume.spec_name,
            source,
            fs_type,
            read_only: volume.read_only,
            options: &volume.mount_options,
            secret,
            namespace: &pod.metadata.namespace,
        };
        let uid = &pod.metadata.uid;
        if volume.block {
            let device = self.disks.device(&self.volumes, uid, wanted).await;
            return device
                .map_err(|why| failure(VolumeStep::MapDevice, "MapVolume.WaitForAttach", why));
        }
        let bound = self.disks.bind(&self.volumes, uid, wanted).await;
        let (path, fresh) =
            bound.map_err(|why| failure(VolumeStep::Mount, "MountVolume.MountDevice", why))?;
        let given = fs_group(pod).filter(|_| fresh && !volume.read_only);
        if let Some(group) = given {
            let (volumes, at) = (self.volumes.clone(), path.clone());
            let (name, change) = (volume.spec_name.clone(), change_policy(pod));
            blocking(pod, move || {
                let given = volumes.apply_fs_group(&at, group, false, change);
                given.map_err(|e| failed(&name, &format!("set fsGroup: {e}")))
            })
            .await?;
        }
        Ok(path)
    }

    async fn mount_nfs(
        &self,
        pod: &Pod,
        volume: &PersistentSource,
        server: &str,
        path: &str,
    ) -> Result<PathBuf, VolumeError> {
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let name = volume.spec_name.clone();
        let target = blocking(pod, move || {
            if let Some(mounted) = find_nfs_mount(&volumes, &uid, &name)? {
                return Ok((mounted, true));
            }
            let made = volumes.mount_point(&uid, VolumePlugin::Nfs, &name);
            made.map_err(|e| failed(&name, &chain(&e)))
        });
        let (target, mounted) = target.await?;
        if mounted {
            return Ok(target);
        }
        let mut options = volume.mount_options.clone();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
        let mut run =
            ProgramRun::new(MOUNT_NFS, &[&format!("{server}:{path}"), &*target.to_string_lossy()]);
        if !options.is_empty() {
            run.args.extend(["-o".to_owned(), options.join(",")]);
        }
        let done = self.helpers.run(&run.for_namespace(&pod.metadata.namespace)).await;
        done.map_err(|why| failed(&volume.spec_name, &why.to_string()))?;
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let name = volume.spec_name.clone();
        blocking(pod, move || {
            // Without a mount the pod would write to the node's disk.
            let nothing =
                || format!("{MOUNT_NFS} succeeded, but nothing is mounted at {}", target.display());
            find_nfs_mount(&volumes, &uid, &name)?.ok_or_else(|| failed(&name, &nothing()))
        })
        .await
    }

    async fn set_up_csi(
        &self,
        pod: &Arc<Pod>,
        volume: &PersistentSource,
        csi: &CsiVolume,
        known: &KnownObjects,
        tokens: &DriverTokens,
    ) -> Result<PathBuf, VolumeError> {
        let material = call_material(volume, csi, known, tokens)?;
        let mut labelled = volume.clone();
        labelled.mount_options.extend(self.selinux_option(pod, volume));
        let done = self.csi.set_up(&pod_facts(pod), &labelled, csi, material).await;
        let PublishedVolume { path, grown_to } = done.map_err(|error| csi_failure(&error))?;
        if grown_to.is_some() {
            self.report_expansion(pod, volume, known).await?;
        }
        Ok(path)
    }

    /// The mount option that labels a whole volume, on a node with SELinux.
    fn selinux_option(&self, pod: &Pod, volume: &PersistentSource) -> Option<String> {
        let option = self.selinux.then(|| se_linux::mount_option(pod, volume));
        option.flatten()
    }

    /// Records the new size of an expanded file system in its claim.
    async fn report_expansion(
        &self,
        pod: &Pod,
        volume: &PersistentSource,
        known: &KnownObjects,
    ) -> Result<(), VolumeError> {
        let claim = volume.claim.as_ref().and_then(|name| known.claims.get(name)?.clone());
        let wanted = known.volumes.get(&volume.spec_name).and_then(Option::as_ref);
        let size = wanted.and_then(|found| found.spec.capacity.get("storage"));
        let (Some(claim), Some(size), Some(client)) = (claim, size, &self.client) else {
            return Ok(());
        };
        let conditions = claim.status.conditions.iter();
        let left: Vec<_> = conditions
            .filter(|c| c.type_ != "FileSystemResizePending" && c.type_ != "Resizing")
            .collect();
        let status = json!({"capacity": {"storage": size}, "conditions": left});
        let patch = Patch::Merge(json!({"status": status}));
        let api = client.within::<PersistentVolumeClaim>(&pod.metadata.namespace);
        let written = api.patch_status(&claim.metadata.name, &patch, &WriteParams::default()).await;
        written.map_err(|e| {
            let name = &claim.metadata.name;
            VolumeError::mount(format!("update the capacity of claim {name}: {}", chain(&e)))
        })?;
        let message =
            format!("MountVolume.NodeExpandVolume succeeded for volume {:?}", volume.spec_name);
        let event = PodEvent::new(Severity::Normal, "FileSystemResizeSuccessful", message);
        self.reports.event(pod, event);
        Ok(())
    }
}

/// Where an NFS volume of a pod is mounted. By the mount table and not by stat(2), which would hold a thread of the pool for as long as the
/// server is away.
fn find_nfs_mount(
    volumes: &VolumesOnDisk,
    uid: &str,
    name: &str,
) -> Result<Option<PathBuf>, VolumeError> {
    let known = volumes.nfs_mount_points(uid).map_err(|e| failed(name, &chain(&e)))?;
    let table = MountTable::read().map_err(|e| failed(name, &chain(&e)))?;
    let mounted = known.into_iter().find(|at| at.volume == name && table.has(&at.path));
    Ok(mounted.map(|mounted| mounted.path))
}

/// Secrets and tokens for the calls of a driver.
fn call_material(
    volume: &PersistentSource,
    csi: &CsiVolume,
    known: &KnownObjects,
    tokens: &DriverTokens,
) -> Result<CallMaterial, VolumeError> {
    let secret = |of: &Option<(String, String)>| -> Result<HashMap<String, String>, VolumeError> {
        let Some(key) = of else { return Ok(HashMap::new()) };
        let found = known.secrets.get(key).and_then(Option::as_ref);
        let missing =
            || failed(&volume.spec_name, &format!("secret \"{}/{}\" not found", key.0, key.1));
        found.map(|secret| secret_values(secret)).ok_or_else(missing)
    };
    Ok(CallMaterial {
        stage: secret(&csi.stage_secret)?,
        publish: secret(&csi.publish_secret)?,
        expand: secret(&csi.expand_secret)?,
        tokens: csi.tokens.iter().filter_map(|want| tokens.get(want).cloned()).collect(),
    })
}

/// The volume plugin that serves a persistent volume, as Kubernetes names it in metrics.
pub fn plugin_name(backing: &Backing, domain: &str) -> String {
    match backing {
        Backing::HostPath { .. } => format!("{domain}/host-path"),
        Backing::Local { .. } => format!("{domain}/local-volume"),
        Backing::Nfs { .. } => format!("{domain}/nfs"),
        Backing::Disk { disk: AttachedDisk::Iscsi(_), .. } => format!("{domain}/iscsi"),
        Backing::Disk { disk: AttachedDisk::FibreChannel(_), .. } => format!("{domain}/fc"),
        Backing::Csi(csi) => format!("{domain}/csi:{}", csi.driver),
    }
}

/// The failure for a volume that cannot be resolved.
fn unresolved(pod: &Pod, error: &PersistentError) -> VolumeError {
    match error {
        PersistentError::NotAttached { .. } => {
            VolumeError { step: VolumeStep::Attach, message: error.to_string() }
        }
        _ => VolumeError::mount(unmounted_message(pod, &error.to_string())),
    }
}

/// The failure for a volume whose driver cannot set it up.
fn csi_failure(error: &CsiError) -> VolumeError {
    let step = if error.is_of_expansion() { VolumeStep::Expand } else { VolumeStep::Mount };
    VolumeError { step, message: chain(error) }
}

/// What CSI calls carry of a pod.
fn pod_facts(pod: &Pod) -> PodFacts {
    PodFacts {
        uid: pod.metadata.uid.clone(),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        account: pod.spec.service_account_name.clone(),
        group: fs_group(pod),
        change: change_policy(pod),
    }
}

fn change_policy(pod: &Pod) -> FsGroupChangePolicy {
    let context = pod.spec.security_context.as_ref();
    FsGroupChangePolicy::parse(
        context.and_then(|context| context.fs_group_change_policy.as_deref()),
    )
}

fn failed(volume: &str, why: &str) -> VolumeError {
    VolumeError::mount(format!("MountVolume.SetUp failed for volume {volume:?} : {why}"))
}

/// The kubelet's message about a pod that waits for its volumes.
fn unmounted_message(pod: &Pod, why: &str) -> String {
    let is_claimed =
        |volume: &&proto_api::core::v1::Volume| persistent::claim_name(pod, volume).is_some();
    let names = pod.spec.volumes.iter();
    let missing: Vec<&str> = names.clone().filter(is_claimed).map(|v| v.name.as_str()).collect();
    let all: Vec<&str> = names.map(|v| v.name.as_str()).collect();
    let (missing, all) = (missing.join(" "), all.join(" "));
    format!(
        "Unable to attach or mount volumes: unmounted volumes=[{missing}], unattached volumes=[{all}]: {why}"
    )
}

/// Whether a path of the node is a block device; a missing path is not.
async fn is_device(pod: &Pod, path: &str) -> Result<bool, VolumeError> {
    let at = path.to_owned();
    let checked = move || Ok(host_path::check(&at, HostPathKind::BlockDevice).is_ok());
    blocking(pod, checked).await
}

/// Blocking work of a set-up, in the pod's share.
async fn blocking<T: Send + 'static>(
    pod: &Pod,
    work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
) -> Result<T, VolumeError> {
    let of = (pod.metadata.namespace.as_str(), pod.metadata.uid.as_str());
    offload_for_pod(of, PodWork::SetUp, work)
        .await
        .map_err(|e| VolumeError::mount(format!("set-up of a volume was interrupted: {e}")))?
}

#[cfg(test)]
pub(crate) mod tests;
