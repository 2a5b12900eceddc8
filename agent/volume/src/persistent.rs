//! Resolution of a pod's persistent volumes: pure functions of the pod, its claims, their volumes and the drivers' objects.
//!
//! ```text
//! pod ─ claim ─► PersistentVolumeClaim ─ volumeName ─► PersistentVolume ─ source ─► Backing
//!     └ csi ───────────────────────────────────────────────────────────────────────► Backing
//!                      driver ─► CSIDriver: attach? pod info? tokens? group?  ─► VolumeAttachment
//! ```
//!
//! Each step names the objects that the next one needs ([`wanted`]); the caller looks them up and calls again until no new names
//! appear.

pub mod attached;
mod csi;
mod migration;
mod nfs_export;
pub mod se_linux;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSource, Pod, Secret,
    Volume as ApiVolume,
};
use proto_api::storage::v1::{CSIDriver, VolumeAttachment};

use crate::sources::{self, HostPathKind};

pub use attached::AttachedDisk;
pub use csi::{CsiVolume, FsGroupPolicy, attachment_name};

/// Objects of the cluster by name as far as they were looked up; `None` is known not to exist.
#[derive(Clone, Debug, Default)]
pub struct KnownObjects {
    /// Claims in the pod's namespace.
    pub claims: BTreeMap<String, Option<Arc<PersistentVolumeClaim>>>,
    /// `PersistentVolume` objects.
    pub volumes: BTreeMap<String, Option<Arc<PersistentVolume>>>,
    /// `CSIDriver` objects.
    pub drivers: BTreeMap<String, Option<Arc<CSIDriver>>>,
    /// `VolumeAttachment` objects for this node.
    pub attachments: BTreeMap<String, Option<Arc<VolumeAttachment>>>,
    /// Secrets by namespace and name.
    pub secrets: BTreeMap<(String, String), Option<Arc<Secret>>>,
}

/// Names of objects to look up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectNames {
    /// Claims in the pod's namespace.
    pub claims: BTreeSet<String>,
    /// `PersistentVolume` objects.
    pub volumes: BTreeSet<String>,
    /// `CSIDriver` objects.
    pub drivers: BTreeSet<String>,
    /// `VolumeAttachment` objects.
    pub attachments: BTreeSet<String>,
    /// Secrets by namespace and name.
    pub secrets: BTreeSet<(String, String)>,
}

/// A persistent volume of a pod, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct PersistentSource {
    /// Name of the volume in the pod.
    pub name: String,
    /// Name of its directory: that of the persistent volume, or of the pod's volume if there is none.
    pub spec_name: String,
    /// Its source.
    pub backing: Backing,
    /// Whether it is read-only for the whole pod.
    pub read_only: bool,
    /// Whether it is given to containers as a block device.
    pub block: bool,
    pub mount_options: Vec<String>,
    /// Size in bytes to which its file system has to be expanded, if claim and volume differ.
    pub grow_to: Option<u64>,
    /// Name of its claim.
    pub claim: Option<String>,
}

/// The source of a persistent volume.
#[derive(Clone, Debug, PartialEq)]
pub enum Backing {
    /// A path of the node.
    HostPath {
        /// Absolute path.
        path: String,
        /// Required type.
        kind: HostPathKind,
    },
    /// `local`: a directory or block device of this node.
    Local {
        /// Absolute path.
        path: String,
        /// File system type on a device; empty for the default.
        fs_type: String,
    },
    /// A disk that the node attaches (iSCSI, Fibre Channel).
    Disk {
        disk: AttachedDisk,
        /// File system type; empty for the default.
        fs_type: String,
    },
    /// An NFS export.
    Nfs {
        /// Name or address of the server.
        server: String,
        /// Exported path.
        path: String,
    },
    /// A CSI volume.
    Csi(Box<CsiVolume>),
}

/// Why a persistent volume cannot be set up. The texts are shown to users and are Kubernetes' own where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersistentError {
    /// An object has not been looked up yet.
    #[error("{0} has not been read from the API server yet")]
    Unknown(String),
    /// The claim does not exist.
    #[error(
        "error processing PVC {namespace}/{name}: failed to fetch PVC from API server: persistentvolumeclaims {name:?} not found"
    )]
    NoClaim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
    },
    /// The claim is not usable.
    #[error("error processing PVC {namespace}/{name}: {why}")]
    Claim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
        /// Reason.
        why: String,
    },
    /// The volume is not usable.
    #[error("volume {volume:?}: {why}")]
    Volume {
        /// Name of the persistent volume, or of the pod's volume.
        volume: String,
        /// Reason.
        why: String,
    },
    /// A CSI volume is not attached to the node.
    #[error("AttachVolume.Attach failed for volume {volume:?} : {why}")]
    NotAttached {
        /// Name of the persistent volume.
        volume: String,
        /// Reason.
        why: String,
    },
}

/// Name of the claim of a pod's volume; also for generic ephemeral volumes.
#[must_use]
pub fn claim_name(pod: &Pod, volume: &ApiVolume) -> Option<String> {
    let source = &volume.volume_source;
    if let Some(claim) = &source.persistent_volume_claim {
        return Some(claim.claim_name.clone());
    }
    source.ephemeral.is_some().then(|| format!("{}-{}", pod.metadata.name, volume.name))
}

/// All object names that can be determined so far, known or not.
#[must_use]
pub fn required_objects(pod: &Pod, node: &str, known: &KnownObjects) -> ObjectNames {
    let mut wanted = ObjectNames::default();
    for volume in &pod.spec.volumes {
        let source = match claim_name(pod, volume) {
            Some(claim) => {
                wanted.claims.insert(claim.clone());
                let Some(Some(claim)) = known.claims.get(&claim) else { continue };
                if claim.spec.volume_name.is_empty() {
                    continue;
                }
                wanted.volumes.insert(claim.spec.volume_name.clone());
                let Some(Some(found)) = known.volumes.get(&claim.spec.volume_name) else {
                    continue;
                };
                let disk = attached::from_volume(found).ok().flatten();
                wanted.secrets.extend(disk.and_then(|(disk, ..)| disk.secret().cloned()));
                csi::from_volume(found)
            }
            None => {
                let disk = attached::from_pod(pod, volume).ok().flatten();
                wanted.secrets.extend(disk.and_then(|(disk, ..)| disk.secret().cloned()));
                csi::from_pod(pod, volume)
            }
        };
        let Ok(Some(source)) = source else { continue };
        wanted.drivers.insert(source.driver.clone());
        wanted.secrets.extend(source.secrets().cloned());
        if let Some(driver) = known.drivers.get(&source.driver)
            && csi::needs_attachment(&source, driver.as_deref())
        {
            wanted.attachments.insert(attachment_name(&source.handle, &source.driver, node));
        }
    }
    wanted
}

impl ObjectNames {
    /// Whether all objects have been looked up.
    #[must_use]
    pub fn is_known(&self, known: &KnownObjects) -> bool {
        self.claims.iter().all(|name| known.claims.contains_key(name))
            && self.volumes.iter().all(|name| known.volumes.contains_key(name))
            && self.drivers.iter().all(|name| known.drivers.contains_key(name))
            && self.attachments.iter().all(|name| known.attachments.contains_key(name))
            && self.secrets.iter().all(|name| known.secrets.contains_key(name))
    }
}

/// Resolves a pod's volume; `None` if it is not persistent.
///
/// # Errors
/// An object is missing, or the volume is not usable.
pub fn resolve(
    pod: &Pod,
    volume: &ApiVolume,
    node: &str,
    known: &KnownObjects,
) -> Result<Option<PersistentSource>, PersistentError> {
    let Some(name) = claim_name(pod, volume) else { return inline(pod, volume, node, known) };
    let claim = claim(pod, volume, &name, known)?;
    let found = bound_volume(claim, known)?;
    let block = found.spec.volume_mode.as_deref() == Some("Block");
    check_use(pod, volume, found, block)?;
    let mut persistent = PersistentSource {
        name: volume.name.clone(),
        spec_name: found.metadata.name.clone(),
        backing: backing(found, node, known)?,
        read_only: is_read_only(volume, found),
        block,
        mount_options: found.spec.mount_options.clone(),
        grow_to: grow_to(claim, found),
        claim: Some(name),
    };
    if let Backing::Csi(csi) = &mut persistent.backing {
        csi.read_only = persistent.read_only;
    }
    Ok(Some(persistent))
}

/// Resolves a volume described in the pod.
fn inline(
    pod: &Pod,
    volume: &ApiVolume,
    node: &str,
    known: &KnownObjects,
) -> Result<Option<PersistentSource>, PersistentError> {
    let refused = |why| PersistentError::Volume { volume: volume.name.clone(), why };
    let source = &volume.volume_source;
    let disk = attached::from_pod(pod, volume).map_err(|error| refused(error.to_string()))?;
    let mut frozen = source.nfs.as_ref().is_some_and(|nfs| nfs.read_only);
    let backing = if let Some(nfs) = &source.nfs {
        nfs_export::backing(&nfs.server, &nfs.path).map_err(|error| refused(error.to_string()))?
    } else if let Some((disk, fs_type, read_only)) = disk {
        frozen = read_only;
        Backing::Disk { disk, fs_type }
    } else if let Some(csi) =
        csi::from_pod(pod, volume).map_err(|error| refused(error.to_string()))?
    {
        Backing::Csi(Box::new(csi::complete(csi, &volume.name, node, known)?))
    } else {
        return Ok(None);
    };
    let read_only = match &backing {
        Backing::Csi(csi) => csi.read_only,
        _ => frozen,
    };
    Ok(Some(PersistentSource {
        name: volume.name.clone(),
        spec_name: volume.name.clone(),
        backing,
        read_only,
        block: false,
        mount_options: Vec::new(),
        grow_to: None,
        claim: None,
    }))
}

/// The claim, if it is bound and belongs to the pod.
fn claim<'a>(
    pod: &Pod,
    volume: &ApiVolume,
    name: &str,
    known: &'a KnownObjects,
) -> Result<&'a PersistentVolumeClaim, PersistentError> {
    let namespace = &pod.metadata.namespace;
    let (namespace, name) = (namespace.clone(), name.to_owned());
    let claim = match known.claims.get(&name) {
        None => return Err(PersistentError::Unknown(format!("PVC {namespace}/{name}"))),
        Some(None) => return Err(PersistentError::NoClaim { namespace, name }),
        Some(Some(claim)) => claim,
    };
    let refused = |why: String| {
        Err(PersistentError::Claim { namespace: namespace.clone(), name: name.clone(), why })
    };
    if volume.volume_source.ephemeral.is_some() {
        let owns = |owner: &proto_api::meta::v1::OwnerReference| {
            owner.controller == Some(true) && owner.uid == pod.metadata.uid
        };
        if !claim.metadata.owner_references.iter().any(owns) {
            let pod = &pod.metadata.name;
            return refused(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
            ));
        }
    }
    if claim.metadata.deletion_timestamp.is_some() && pod.status.phase != "Running" {
        return refused("can't start pod because PVC is being deleted".to_owned());
    }
    if claim.status.phase != "Bound" || claim.spec.volume_name.is_empty() {
        return refused("PVC is not bound".to_owned());
    }
    Ok(claim)
}

/// The volume that a claim is bound to, if it is bound to the claim.
fn bound_volume<'a>(
    claim: &PersistentVolumeClaim,
    known: &'a KnownObjects,
) -> Result<&'a PersistentVolume, PersistentError> {
    let name = &claim.spec.volume_name;
    let refused = |why: &str| PersistentError::Claim {
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        why: why.to_owned(),
    };
    let volume = match known.volumes.get(name) {
        None => return Err(PersistentError::Unknown(format!("PV {name}"))),
        Some(None) => {
            let why = format!(
                "failed to fetch PV {name:?} from API server: persistentvolumes {name:?} not found"
            );
            return Err(refused(&why));
        }
        Some(Some(volume)) => volume,
    };
    match &volume.spec.claim_ref {
        None => Err(refused(&format!("found PV object {name} bound to PVC with nil claimRef"))),
        Some(of) if of.uid != claim.metadata.uid => Err(refused(&format!(
            "PV {name:?} is bound to another PVC {}/{}",
            of.namespace, of.name
        ))),
        Some(_) => Ok(volume),
    }
}

/// Checks that a block volume is used as a device, and a file system volume as a mount.
fn check_use(
    pod: &Pod,
    volume: &ApiVolume,
    found: &PersistentVolume,
    block: bool,
) -> Result<(), PersistentError> {
    let (name, containers) =
        (&volume.name, pod.spec.init_containers.iter().chain(&pod.spec.containers));
    let mut containers = containers;
    let wrong = containers.any(|container| {
        if block {
            container.volume_mounts.iter().any(|mount| mount.name == *name)
        } else {
            container.volume_devices.iter().any(|device| device.name == *name)
        }
    });
    if !wrong {
        return Ok(());
    }
    let (mode, place) =
        if block { ("Block", "volumeMounts") } else { ("Filesystem", "volumeDevices") };
    let why = format!("volume {name} has volumeMode {mode}, but is specified in {place}");
    Err(PersistentError::Volume { volume: found.metadata.name.clone(), why })
}

fn backing(
    volume: &PersistentVolume,
    node: &str,
    known: &KnownObjects,
) -> Result<Backing, PersistentError> {
    let name = &volume.metadata.name;
    let refused = |why| PersistentError::Volume { volume: name.clone(), why };
    let source: &PersistentVolumeSource = &volume.spec.persistent_volume_source;
    if let Some(host_path) = &source.host_path {
        let kind = sources::host_path_kind(host_path.type_.as_deref().unwrap_or_default());
        let kind = kind.ok_or_else(|| refused("unknown hostPath type".to_owned()))?;
        return Ok(Backing::HostPath { path: host_path.path.clone(), kind });
    }
    if let Some(local) = &source.local {
        let fs_type = local.fs_type.clone().unwrap_or_default();
        return Ok(Backing::Local { path: local.path.clone(), fs_type });
    }
    let disk = attached::from_volume(volume).map_err(|error| refused(error.to_string()))?;
    if let Some((disk, fs_type, _)) = disk {
        return Ok(Backing::Disk { disk, fs_type });
    }
    if let Some(nfs) = &source.nfs {
        return nfs_export::backing(&nfs.server, &nfs.path)
            .map_err(|error| refused(error.to_string()));
    }
    match csi::from_volume(volume).map_err(|error| refused(error.to_string()))? {
        Some(csi) => Ok(Backing::Csi(Box::new(csi::complete(csi, name, node, known)?))),
        None => Err(PersistentError::Volume {
            volume: name.clone(),
            why: format!(
                "{kind} volumes are not supported by this node agent: {}",
                sources::unsupported_reason(kind_of(source)),
                kind = kind_of(source)
            ),
        }),
    }
}

/// Name of an unsupported source.
fn kind_of(source: &PersistentVolumeSource) -> &'static str {
    [
        ("glusterfs", source.glusterfs.is_some()),
        ("cephfs", source.cephfs.is_some()),
        ("flocker", source.flocker.is_some()),
        ("flexVolume", source.flex_volume.is_some()),
        ("quobyte", source.quobyte.is_some()),
        ("photonPersistentDisk", source.photon_persistent_disk.is_some()),
        ("scaleIO", source.scale_io.is_some()),
        ("storageos", source.storageos.is_some()),
    ]
    .into_iter()
    .find_map(|(name, there)| there.then_some(name))
    .unwrap_or("unknown")
}

fn is_read_only(volume: &ApiVolume, found: &PersistentVolume) -> bool {
    let claim = volume.volume_source.persistent_volume_claim.as_ref();
    let source = &found.spec.persistent_volume_source;
    claim.is_some_and(|claim| claim.read_only)
        || source.csi.as_ref().is_some_and(|csi| csi.read_only)
        || source.nfs.as_ref().is_some_and(|nfs| nfs.read_only)
        || matches!(attached::from_volume(found), Ok(Some((_, _, true))))
}

/// Size in bytes to which the file system has to be expanded: the volume's capacity, if the claim shows less.
fn grow_to(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<u64> {
    let size =
        |map: &BTreeMap<String, proto_api::Quantity>| map.get("storage").map(|q| q.as_bytes());
    let (has, wants) = (size(&claim.status.capacity)?, size(&volume.spec.capacity)?);
    (has < wants).then_some(wants)
}

#[cfg(test)]
mod tests;
