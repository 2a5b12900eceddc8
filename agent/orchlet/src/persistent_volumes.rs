//! A pod's persistent volumes on this node: whatever is behind each, it ends as a path that containers are given.

pub mod block;
pub mod helpers;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_csi::node::{Material, Published, carried};
use agent_csi::request::{PodFacts, Token};
use agent_csi::{CsiNode, offload};
use agent_pod::events::{PodEvent, Severity};
use agent_pod::volume_mounts::VolumeOnHost;
use agent_volume::disk::Run;
use agent_volume::fs_group::Change;
use agent_volume::persistent::{self, Attached, Backing, CsiVolume, Known, Persistent, se_linux};
use agent_volume::sources::{HostPathKind, Plugin, TokenWant, fs_group};
use agent_volume::{PodVolumes, host_path};
use proto_api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use proto_client::{Client, Patch, WriteParams};
use proto_daemon::exit::chain;
use serde_json::json;

use self::block::{Disks, OnDisk, Source};
use self::helpers::Helpers;
use crate::metrics::Acts;
use crate::pods::ports::{Line, Reports};

/// How often a driver that asked for it is called again for a volume that it has published.
pub const REPUBLISH_PERIOD: Duration = Duration::from_secs(60);
/// The helper that mounts directories of other machines.
const MOUNT_NFS: &str = "mount.nfs";

/// Persistent volumes of this node's pods.
pub struct NodePersistent {
    /// Drivers' volumes.
    pub csi: Arc<CsiNode>,
    /// Where the pods' directories are.
    pub volumes: PodVolumes,
    /// Name of the node.
    pub node: String,
    /// The API server.
    pub client: Option<Client>,
    /// Where events go.
    pub reports: Arc<dyn Reports>,
    /// Volumes that lie on disks.
    pub disks: Arc<Disks>,
    /// Programs of the node.
    pub helpers: Arc<dyn Helpers>,
    /// What is done, counted.
    pub acts: Acts,
    /// Whether the node has SELinux.
    pub labels: bool,
}

/// Tokens that were asked for, each with the time when it expires.
pub type Tokens = BTreeMap<TokenWant, Token>;

impl NodePersistent {
    /// The persistent volumes of a pod, in order.
    ///
    /// # Errors
    /// The first that cannot be used, as users are told.
    pub fn of(&self, pod: &Pod, known: &Known) -> Result<Vec<Persistent>, Line> {
        let all = pod.spec.volumes.iter();
        let found = all.map(|volume| persistent::resolve(pod, volume, &self.node, known));
        found.filter_map(Result::transpose).collect::<Result<_, _>>().map_err(|error| {
            match &error {
                // what the ecosystem's event begins with is the step that failed
                persistent::PersistentError::NotAttached { .. } => error.to_string(),
                _ => unmounted(pod, &error.to_string()),
            }
        })
    }

    /// Sets one volume up, or brings it up to date.
    ///
    /// # Errors
    /// Why it cannot be used, as users are told.
    pub async fn set_up(
        &self,
        pod: &Arc<Pod>,
        volume: &Persistent,
        known: &Known,
        tokens: &Tokens,
    ) -> Result<VolumeOnHost, Line> {
        let path = match &volume.backing {
            Backing::HostPath { path, kind } => self.on_node(volume, path, *kind).await?,
            Backing::Local { path, fs_type } if !volume.block && is_device(path).await? => {
                let source = Source::Device(path);
                self.on_disk(pod, volume, source, fs_type, None).await?
            }
            Backing::Local { path, .. } => self.local(pod, volume, path).await?,
            Backing::Disk { disk, fs_type } => {
                let secret = disk.secret().and_then(|key| known.secrets.get(key)?.as_deref());
                let source = Source::Attached(disk);
                self.on_disk(pod, volume, source, fs_type, secret).await?
            }
            Backing::Nfs { server, path } => self.nfs(pod, volume, server, path).await?,
            Backing::Csi(csi) => self.driven(pod, volume, csi, known, tokens).await?,
        };
        Ok(self.on_host(pod, volume, &path))
    }

    /// Drivers' volumes that a pod has had since before this process, by name in the pod. Nobody is asked who could hang.
    pub async fn since_before(
        &self,
        pod: &Pod,
        volumes: &[Persistent],
    ) -> BTreeMap<String, VolumeOnHost> {
        let mut there = BTreeMap::new();
        for volume in volumes {
            let Backing::Csi(csi) = &volume.backing else { continue };
            if let Some(path) = self.csi.published(&facts(pod), volume, csi).await {
                there.insert(volume.name.clone(), self.on_host(pod, volume, &path));
            }
        }
        there
    }

    fn on_host(&self, pod: &Pod, volume: &Persistent, path: &Path) -> VolumeOnHost {
        VolumeOnHost {
            path: path.to_string_lossy().into_owned(),
            read_only: volume.read_only,
            managed: !matches!(volume.backing, Backing::HostPath { .. } | Backing::Nfs { .. })
                && self.label(pod, volume).is_none(),
            block: volume.block,
            checked: false,
            follows: false,
        }
    }

    async fn on_node(
        &self,
        volume: &Persistent,
        path: &str,
        kind: HostPathKind,
    ) -> Result<PathBuf, Line> {
        let (at, name) = (path.to_owned(), volume.spec_name.clone());
        blocking(move || host_path::check(&at, kind).map_err(|e| failed(&name, &chain(&e))))
            .await?;
        Ok(path.into())
    }

    /// A directory or device of this node. Given through a mount of its own, so that a directory that is replaced stays what it was.
    async fn local(&self, pod: &Pod, volume: &Persistent, path: &str) -> Result<PathBuf, Line> {
        let kind = if volume.block { HostPathKind::BlockDevice } else { HostPathKind::Directory };
        let (at, name) = (path.to_owned(), volume.spec_name.clone());
        if volume.block {
            return self.on_node(volume, &at, kind).await;
        }
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let (group, change, read_only) = (fs_group(pod), change_of(pod), volume.read_only);
        blocking(move || {
            let source = host_path::open(&at, kind).map_err(|e| failed(&name, &chain(&e)))?;
            let error = |e| failed(&name, &chain(&e));
            let (bound, fresh) =
                volumes.bind(&uid, Plugin::Local, &name, &source).map_err(error)?;
            if let Some(group) = group.filter(|_| fresh) {
                let given = volumes.give(&bound, group, read_only, change);
                given.map_err(|e| failed(&name, &format!("give to the group: {e}")))?;
            }
            Ok(bound)
        })
        .await
    }

    /// What lies on a disk, or the disk itself.
    async fn on_disk(
        &self,
        pod: &Pod,
        volume: &Persistent,
        source: Source<'_>,
        fs_type: &str,
        secret: Option<&Secret>,
    ) -> Result<PathBuf, Line> {
        let told = |step: &str, why: Line| {
            format!("{step} failed for volume {:?} : {why}", volume.spec_name)
        };
        let wanted = OnDisk {
            name: &volume.spec_name,
            source,
            fs_type,
            read_only: volume.read_only,
            options: &volume.mount_options,
            secret,
        };
        let uid = &pod.metadata.uid;
        if volume.block {
            let device = self.disks.device(&self.volumes, uid, wanted).await;
            return device.map_err(|why| told("MapVolume.WaitForAttach", why));
        }
        let bound = self.disks.bind(&self.volumes, uid, wanted).await;
        let (path, fresh) = bound.map_err(|why| told("MountVolume.MountDevice", why))?;
        let given = fs_group(pod).filter(|_| fresh && !volume.read_only);
        if let Some(group) = given {
            let (volumes, at) = (self.volumes.clone(), path.clone());
            let (name, change) = (volume.spec_name.clone(), change_of(pod));
            blocking(move || {
                let given = volumes.give(&at, group, false, change);
                given.map_err(|e| failed(&name, &format!("give to the group: {e}")))
            })
            .await?;
        }
        Ok(path)
    }

    async fn nfs(
        &self,
        pod: &Pod,
        volume: &Persistent,
        server: &str,
        path: &str,
    ) -> Result<PathBuf, Line> {
        let (volumes, uid) = (self.volumes.clone(), pod.metadata.uid.clone());
        let name = volume.spec_name.clone();
        let place = blocking(move || {
            let place = volumes.place(&uid, Plugin::Nfs, &name);
            place.map_err(|e| failed(&name, &chain(&e)))
        });
        let (target, mounted) = place.await?;
        if mounted {
            return Ok(target);
        }
        let mut options = volume.mount_options.clone();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let server = if server.contains(':') { format!("[{server}]") } else { server.to_owned() };
        let mut run =
            Run::new(MOUNT_NFS, &[&format!("{server}:{path}"), &*target.to_string_lossy()]);
        if !options.is_empty() {
            run.args.extend(["-o".to_owned(), options.join(",")]);
        }
        let done = self.helpers.run(&run).await;
        done.map_err(|why| failed(&volume.spec_name, &why.to_string()))?;
        Ok(target)
    }

    async fn driven(
        &self,
        pod: &Arc<Pod>,
        volume: &Persistent,
        csi: &CsiVolume,
        known: &Known,
        tokens: &Tokens,
    ) -> Result<PathBuf, Line> {
        let material = material(volume, csi, known, tokens)?;
        let mut labelled = volume.clone();
        labelled.mount_options.extend(self.label(pod, volume));
        let done = self.csi.set_up(&facts(pod), &labelled, csi, material).await;
        let Published { path, grown_to } = done.map_err(|e| e.to_string())?;
        if grown_to.is_some() {
            self.tell_growth(pod, volume, known).await?;
        }
        Ok(path)
    }

    /// The option that labels a volume as a whole, on a node that labels.
    fn label(&self, pod: &Pod, volume: &Persistent) -> Option<String> {
        let option = self.labels.then(|| se_linux::mount_option(pod, volume));
        option.flatten()
    }

    /// Shows in the claim that its file system has grown.
    async fn tell_growth(&self, pod: &Pod, volume: &Persistent, known: &Known) -> Result<(), Line> {
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
        written.map_err(|e| format!("show the size of {}: {}", claim.metadata.name, chain(&e)))?;
        let message =
            format!("MountVolume.NodeExpandVolume succeeded for volume {:?}", volume.spec_name);
        let event = PodEvent::new(Severity::Normal, "FileSystemResizeSuccessful", message);
        self.reports.event(pod, event);
        Ok(())
    }
}

/// What the calls of a driver carry.
fn material(
    volume: &Persistent,
    csi: &CsiVolume,
    known: &Known,
    tokens: &Tokens,
) -> Result<Material, Line> {
    let secret = |of: &Option<(String, String)>| -> Result<HashMap<String, String>, Line> {
        let Some(key) = of else { return Ok(HashMap::new()) };
        let found = known.secrets.get(key).and_then(Option::as_ref);
        let missing =
            || failed(&volume.spec_name, &format!("secret \"{}/{}\" not found", key.0, key.1));
        found.map(|secret| carried(secret)).ok_or_else(missing)
    };
    Ok(Material {
        stage: secret(&csi.stage_secret)?,
        publish: secret(&csi.publish_secret)?,
        expand: secret(&csi.expand_secret)?,
        tokens: csi.tokens.iter().filter_map(|want| tokens.get(want).cloned()).collect(),
    })
}

/// The ecosystem's name of what makes a persistent volume.
pub fn plugin(backing: &Backing, domain: &str) -> String {
    match backing {
        Backing::HostPath { .. } => format!("{domain}/host-path"),
        Backing::Local { .. } => format!("{domain}/local-volume"),
        Backing::Nfs { .. } => format!("{domain}/nfs"),
        Backing::Disk { disk: Attached::Iscsi(_), .. } => format!("{domain}/iscsi"),
        Backing::Disk { disk: Attached::FibreChannel(_), .. } => format!("{domain}/fc"),
        Backing::Csi(csi) => format!("{domain}/csi:{}", csi.driver),
    }
}

/// What drivers are told of a pod.
fn facts(pod: &Pod) -> PodFacts {
    PodFacts {
        uid: pod.metadata.uid.clone(),
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        account: pod.spec.service_account_name.clone(),
        group: fs_group(pod),
        change: change_of(pod),
    }
}

fn change_of(pod: &Pod) -> Change {
    let context = pod.spec.security_context.as_ref();
    Change::of(context.and_then(|context| context.fs_group_change_policy.as_deref()))
}

fn failed(volume: &str, why: &str) -> Line {
    format!("MountVolume.SetUp failed for volume {volume:?} : {why}")
}

/// The ecosystem's sentence about a pod whose volumes are not there.
fn unmounted(pod: &Pod, why: &str) -> Line {
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

/// Whether a path of the node is a block device; what is not there is none.
async fn is_device(path: &str) -> Result<bool, Line> {
    let at = path.to_owned();
    blocking(move || Ok(host_path::check(&at, HostPathKind::BlockDevice).is_ok())).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Line> + Send + 'static,
) -> Result<T, Line> {
    offload(work).await.map_err(|e| format!("setting a volume up broke off: {e}"))?
}
