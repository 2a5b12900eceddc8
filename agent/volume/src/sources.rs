//! What a pod's volumes are and what each should hold: pure functions from API objects to [`Payload`]s.
//!
//! The four projected sources (config map, secret, downward API, token) are one thing here, a list of [`Projection`]s; a volume of one
//! of the single kinds is a list of one.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod downward_api;
mod medium;
mod objects;

use std::collections::{BTreeMap, BTreeSet};

use agent_pod::env::Objects;
use proto_api::Quantity;
use proto_api::core::v1::{
    DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, ProjectedVolumeSource,
    Volume as ApiVolume, VolumeProjection, VolumeSource,
};

use crate::budget::{Budget, OverBudget};
use crate::payload::{PathError, Payload, PayloadFile};
use crate::tree::Ownership;

pub use medium::Medium;

/// Mode of projected files when nothing says otherwise.
const DEFAULT_MODE: u32 = 0o644;
/// Mode of a token that has an owner other than root.
const TOKEN_MODE_OWNED: u32 = 0o600;
/// Life of a token when nothing says otherwise, in seconds.
const TOKEN_SECS_DEFAULT: i64 = 3600;
/// Shortest life of a token, in seconds.
const TOKEN_SECS_MIN: i64 = 600;

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Name, unique in the pod.
    pub name: String,
    /// What it is.
    pub kind: VolumeKind,
}

/// What a volume is.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeKind {
    /// Files made from API objects, following them.
    Projected(Projected),
    /// An empty directory.
    EmptyDir(Medium),
    /// A path of the node.
    HostPath {
        /// Absolute path.
        path: String,
        /// What has to be there.
        kind: HostPathKind,
    },
    /// Something that lasts longer than the pod, or that a driver provides: see [`crate::persistent`].
    Persistent,
}

/// A volume of files made from API objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Projected {
    /// Which of the kinds it is in the API, which decides its directory's name.
    pub plugin: Plugin,
    /// Where its files come from; later ones win.
    pub projections: Vec<Projection>,
}

/// Kinds of volumes that have a directory below the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plugin {
    /// `configMap`.
    ConfigMap,
    /// `secret`.
    Secret,
    /// `downwardAPI`.
    DownwardApi,
    /// `projected`.
    Projected,
    /// `emptyDir`.
    EmptyDir,
    /// `local`, a persistent volume.
    Local,
    /// `nfs`.
    Nfs,
    /// `iscsi`.
    Iscsi,
    /// `fc`.
    Fc,
}

impl Plugin {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::ConfigMap,
        Self::Secret,
        Self::DownwardApi,
        Self::Projected,
        Self::EmptyDir,
        Self::Local,
        Self::Nfs,
        Self::Iscsi,
        Self::Fc,
    ];

    /// The part of the directory's name after the domain.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
            Self::DownwardApi => "downward-api",
            Self::Projected => "projected",
            Self::EmptyDir => "empty-dir",
            Self::Local => "local-volume",
            Self::Nfs => "nfs",
            Self::Iscsi => "iscsi",
            Self::Fc => "fc",
        }
    }

    /// Whether its volumes are mounts of what exists without the pod.
    #[must_use]
    pub fn is_bound(self) -> bool {
        matches!(self, Self::Local | Self::Nfs | Self::Iscsi | Self::Fc)
    }

    /// Whether its files must stay off the disk: they may hold secrets or tokens, or name what a pod is.
    #[must_use]
    pub fn in_memory(self) -> bool {
        matches!(self, Self::Secret | Self::DownwardApi | Self::Projected)
    }
}

/// What has to be at a path of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Whatever is there.
    Unset,
    /// A directory, made when missing.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made when missing.
    FileOrCreate,
    /// A file.
    File,
    /// A UNIX socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

/// One source of files.
#[derive(Clone, Debug, PartialEq)]
pub enum Projection {
    /// Keys of a config map.
    ConfigMap(Keys),
    /// Keys of a secret.
    Secret(Keys),
    /// Fields of the pod.
    DownwardApi {
        /// One file each.
        items: Vec<DownwardAPIVolumeFile>,
        /// Mode of files that name none.
        mode: u32,
    },
    /// A token of the pod's service account.
    Token {
        /// What is asked of the API server.
        want: TokenWant,
        /// Path of the file.
        path: String,
        /// Its mode.
        mode: u32,
    },
}

/// Keys of an object that become files.
#[derive(Clone, Debug, PartialEq)]
pub struct Keys {
    /// Name of the object, in the pod's namespace.
    pub object: String,
    /// Which keys go where; all to their own names when empty.
    pub items: Vec<KeyToPath>,
    /// Whether object and keys may be missing.
    pub optional: bool,
    /// Mode of files that name none.
    pub mode: u32,
}

/// A token to ask the API server for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenWant {
    /// Whom it is meant for; the API server itself when empty.
    pub audience: String,
    /// Wanted life in seconds, at least ten minutes.
    pub expiration_secs: i64,
}

/// Objects that must be at hand before volumes can be filled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Names of config maps.
    pub config_maps: BTreeSet<String>,
    /// Names of secrets.
    pub secrets: BTreeSet<String>,
    /// Tokens.
    pub tokens: BTreeSet<TokenWant>,
}

/// What payloads are made from.
pub struct Inputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Objects of the pod's namespace.
    pub objects: &'a dyn Objects,
    /// Tokens that were asked for.
    pub tokens: &'a BTreeMap<TokenWant, String>,
    /// What the node can give to pods; stands in for a limit that is not set.
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// How much the files of all volumes of the pod may still come to.
    pub budget: &'a Budget,
}

/// Why a volume cannot be filled. The texts are shown to users as they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The node agent cannot set this kind up.
    #[error(
        "volume {volume:?}: {source_kind} volumes are not supported by this node agent: {}",
        why_not(source_kind)
    )]
    Unsupported {
        /// Name of the volume.
        volume: String,
        /// Its source as the API names it.
        source_kind: &'static str,
    },
    /// A medium that cannot be had.
    #[error("volume {volume:?}: {why}")]
    Medium {
        /// Name of the volume.
        volume: String,
        /// Why not.
        why: String,
    },
    /// A type of host path that there is not.
    #[error("volume {volume:?}: unknown hostPath type {kind:?}")]
    HostPathKind {
        /// Name of the volume.
        volume: String,
        /// The type.
        kind: String,
    },
    /// A required object does not exist.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A required key is missing.
    #[error("{kind} references non-existent {kind} key: {key}")]
    NoKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// A file cannot be where it should.
    #[error("volume path")]
    Path(#[from] PathError),
    /// The pod's files come to too much.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// A mode outside 0 to 0777.
    #[error("invalid file mode {0}")]
    Mode(i32),
    /// The pod has no such field, or no volume may show it.
    #[error("unsupported fieldPath: {0}")]
    UnknownField(String),
    /// There is no such resource.
    #[error("unsupported container resource: {0}")]
    UnknownResource(String),
    /// There is no such container.
    #[error("container {0} not found")]
    UnknownContainer(String),
    /// The token has not been given.
    #[error("no token for audience {0:?}")]
    NoToken(String),
}

/// The volumes of a pod, in order.
///
/// # Errors
/// The first volume of a kind that cannot be set up here.
pub fn volumes(pod: &Pod) -> Result<Vec<Volume>, SourceError> {
    pod.spec.volumes.iter().map(|each| volume(pod, each)).collect()
}

impl Volume {
    /// Adds the objects that the volume is made from, optional ones included.
    pub fn add_needs(&self, needs: &mut Needs) {
        let VolumeKind::Projected(projected) = &self.kind else { return };
        for projection in &projected.projections {
            match projection {
                Projection::ConfigMap(keys) => {
                    needs.config_maps.insert(keys.object.clone());
                }
                Projection::Secret(keys) => {
                    needs.secrets.insert(keys.object.clone());
                }
                Projection::Token { want, .. } => {
                    needs.tokens.insert(want.clone());
                }
                Projection::DownwardApi { .. } => {}
            }
        }
    }
}

impl Projected {
    /// The files of the volume.
    ///
    /// # Errors
    /// The first required thing that is missing or cannot be shown.
    pub fn payload(&self, inputs: &Inputs<'_>) -> Result<Payload, SourceError> {
        let mut payload = Payload::default();
        let has_owner = self.ownership(inputs.pod) != Ownership::default();
        for projection in &self.projections {
            match projection {
                Projection::ConfigMap(keys) => {
                    objects::config_map(keys, inputs, &mut payload)?;
                }
                Projection::Secret(keys) => objects::secret(keys, inputs, &mut payload)?,
                Projection::DownwardApi { items, mode } => {
                    downward_api::files(items, *mode, inputs, &mut payload)?;
                }
                Projection::Token { want, path, mode } => {
                    let token = inputs.tokens.get(want);
                    let token = token.ok_or_else(|| SourceError::NoToken(want.audience.clone()))?;
                    let mode = if has_owner { TOKEN_MODE_OWNED } else { *mode };
                    inputs.budget.take(token.len())?;
                    let file = PayloadFile { data: token.clone().into_bytes(), mode };
                    payload.insert(path, file)?;
                }
            }
        }
        Ok(payload)
    }

    /// Who owns the files: the pod's group if it has one. A token belongs to the user that all containers run as, if that is one.
    #[must_use]
    pub fn ownership(&self, pod: &Pod) -> Ownership {
        let gid = fs_group(pod);
        let has_token = self.projections.iter().any(|p| matches!(p, Projection::Token { .. }));
        let uid = if has_token && gid.is_none() { common_user(pod) } else { None };
        Ownership { uid, gid }
    }
}

/// The group that a pod's volumes are given to.
#[must_use]
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.security_context.as_ref().and_then(|context| context.fs_group);
    group.and_then(|group| u32::try_from(group).ok())
}

/// The user that all containers of a pod run as, when they name one and the same.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = pod.spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|container| {
        let own = container.security_context.as_ref().and_then(|context| context.run_as_user);
        own.or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

fn volume(pod: &Pod, volume: &ApiVolume) -> Result<Volume, SourceError> {
    let source = &volume.volume_source;
    let projected = |plugin, projections| VolumeKind::Projected(Projected { plugin, projections });
    let kind = if let Some(source) = &source.config_map {
        let keys = Keys {
            object: source.local_object_reference.name.clone(),
            items: source.items.clone(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode, DEFAULT_MODE)?,
        };
        projected(Plugin::ConfigMap, vec![Projection::ConfigMap(keys)])
    } else if let Some(source) = &source.secret {
        let keys = Keys {
            object: source.secret_name.clone(),
            items: source.items.clone(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode, DEFAULT_MODE)?,
        };
        projected(Plugin::Secret, vec![Projection::Secret(keys)])
    } else if let Some(source) = &source.downward_api {
        let items = source.items.clone();
        let mode = mode(source.default_mode, DEFAULT_MODE)?;
        projected(Plugin::DownwardApi, vec![Projection::DownwardApi { items, mode }])
    } else if let Some(source) = &source.projected {
        projected(Plugin::Projected, projections(source)?)
    } else if let Some(source) = &source.host_path {
        host_path(&volume.name, source)?
    } else if let Some(source) = &source.empty_dir {
        VolumeKind::EmptyDir(medium::of(pod, &volume.name, source)?)
    } else if is_persistent(source) {
        VolumeKind::Persistent
    } else {
        match other_source(source) {
            Some(source_kind) => return Err(unsupported(volume, source_kind)),
            // the API's default
            None => VolumeKind::EmptyDir(Medium::Disk),
        }
    };
    Ok(Volume { name: volume.name.clone(), kind })
}

fn projections(source: &ProjectedVolumeSource) -> Result<Vec<Projection>, SourceError> {
    let mode = mode(source.default_mode, DEFAULT_MODE)?;
    Ok(source.sources.iter().flat_map(|source| each_projection(source, mode)).collect())
}

fn each_projection(source: &VolumeProjection, mode: u32) -> Vec<Projection> {
    let secret = source.secret.as_ref().map(|source| {
        Projection::Secret(Keys {
            object: source.local_object_reference.name.clone(),
            items: source.items.clone(),
            optional: source.optional == Some(true),
            mode,
        })
    });
    let config_map = source.config_map.as_ref().map(|source| {
        Projection::ConfigMap(Keys {
            object: source.local_object_reference.name.clone(),
            items: source.items.clone(),
            optional: source.optional == Some(true),
            mode,
        })
    });
    let downward = source
        .downward_api
        .as_ref()
        .map(|source| Projection::DownwardApi { items: source.items.clone(), mode });
    let token = source.service_account_token.as_ref().map(|source| {
        let secs = source.expiration_seconds.unwrap_or(TOKEN_SECS_DEFAULT).max(TOKEN_SECS_MIN);
        let want = TokenWant { audience: source.audience.clone(), expiration_secs: secs };
        Projection::Token { want, path: source.path.clone(), mode }
    });
    [secret, downward, config_map, token].into_iter().flatten().collect()
}

/// What has to be at a path, by the type's name in the API.
pub(crate) fn host_path_kind(name: &str) -> Option<HostPathKind> {
    Some(match name {
        "" => HostPathKind::Unset,
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "Directory" => HostPathKind::Directory,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "File" => HostPathKind::File,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        _ => return None,
    })
}

fn host_path(volume: &str, source: &HostPathVolumeSource) -> Result<VolumeKind, SourceError> {
    let name = source.type_.as_deref().unwrap_or_default();
    let kind = host_path_kind(name).ok_or_else(|| SourceError::HostPathKind {
        volume: volume.to_owned(),
        kind: name.to_owned(),
    })?;
    Ok(VolumeKind::HostPath { path: source.path.clone(), kind })
}

fn unsupported(volume: &ApiVolume, source_kind: &'static str) -> SourceError {
    SourceError::Unsupported { volume: volume.name.clone(), source_kind }
}

/// Whether a source leads to a persistent volume, or to a driver.
fn is_persistent(source: &VolumeSource) -> bool {
    source.persistent_volume_claim.is_some()
        || source.csi.is_some()
        || source.ephemeral.is_some()
        || source.nfs.is_some()
        || source.iscsi.is_some()
        || source.fc.is_some()
        || source.rbd.is_some()
        || source.cinder.is_some()
        || source.gce_persistent_disk.is_some()
        || source.aws_elastic_block_store.is_some()
        || source.azure_file.is_some()
        || source.azure_disk.is_some()
        || source.vsphere_volume.is_some()
        || source.portworx_volume.is_some()
}

/// The name of a source that this agent does not set up; `None` when there is no source at all. Files of a repository and what a
/// vendor's script makes are refused for good: both ran programs of others with the agent's rights.
fn other_source(source: &VolumeSource) -> Option<&'static str> {
    [
        ("gitRepo", source.git_repo.is_some()),
        ("glusterfs", source.glusterfs.is_some()),
        ("cephfs", source.cephfs.is_some()),
        ("flexVolume", source.flex_volume.is_some()),
        ("flocker", source.flocker.is_some()),
        ("quobyte", source.quobyte.is_some()),
        ("photonPersistentDisk", source.photon_persistent_disk.is_some()),
        ("scaleIO", source.scale_io.is_some()),
        ("storageos", source.storageos.is_some()),
    ]
    .into_iter()
    .find_map(|(name, there)| there.then_some(name))
}

/// Why a source is not set up, and what serves instead.
pub(crate) fn why_not(source: &str) -> &'static str {
    match source {
        "gitRepo" => {
            "it runs programs that a repository brings with the agent's rights; clone in an init container"
        }
        "flexVolume" => "its drivers run with the agent's rights on the node; use a CSI driver",
        _ => "nothing on the node serves it; use a CSI driver",
    }
}

fn mode(mode: Option<i32>, default: u32) -> Result<u32, SourceError> {
    match mode {
        None => Ok(default),
        Some(mode) => {
            let bits = u32::try_from(mode).ok().filter(|bits| *bits <= 0o777);
            bits.ok_or(SourceError::Mode(mode))
        }
    }
}

#[cfg(test)]
mod tests;
