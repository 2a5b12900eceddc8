//! The volumes of a pod and their content: pure functions from API objects to [`Payload`]s.
//!
//! The sources of projected volumes (ConfigMap, Secret, downward API, token) are a list of [`Projection`]s; a `configMap`,
//! `secret` or `downwardAPI` volume is a list of one.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod downward_api;
mod medium;
mod objects;

use std::collections::{BTreeMap, BTreeSet};

use agent_pod::env::EnvObjects;
use proto_api::Quantity;
use proto_api::core::v1::{
    DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod, ProjectedVolumeSource,
    Volume as ApiVolume, VolumeProjection, VolumeSource,
};

use crate::budget::{Budget, OverBudget};
use crate::payload::{PathError, Payload, PayloadFile};
use crate::tree::Ownership;

pub use medium::Medium;

/// Default mode of projected files.
const DEFAULT_MODE: u32 = 0o644;
/// Mode of a token file with an owner other than root.
const TOKEN_MODE_OWNED: u32 = 0o600;
/// Default lifetime of a token in seconds.
const TOKEN_SECS_DEFAULT: i64 = 3600;
/// Shortest lifetime of a token in seconds.
const TOKEN_SECS_MIN: i64 = 600;

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Volume {
    /// Name, unique in the pod.
    pub name: String,
    /// Kind with its settings.
    pub kind: VolumeKind,
}

/// How a volume of a pod is provided.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeKind {
    /// Files from API objects, refreshed when these change.
    Projected(Projected),
    EmptyDir(Medium),
    HostPath {
        /// Absolute path.
        path: String,
        /// Required type.
        kind: HostPathKind,
    },
    /// Persistent or provided by a CSI driver: see [`crate::persistent`].
    Persistent,
}

/// A volume of files from API objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Projected {
    /// Its kind in the API, which determines the name of its directory.
    pub plugin: VolumePlugin,
    /// Sources of files; later ones win.
    pub projections: Vec<Projection>,
}

/// Volume plugins with a directory below the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumePlugin {
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    EmptyDir,
    /// `local` persistent volume.
    Local,
    Nfs,
    Iscsi,
    Fc,
}

impl VolumePlugin {
    /// All plugins.
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

    /// Name in the directory after the domain.
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

    /// Whether its volumes are mounts of data that exists without the pod.
    #[must_use]
    pub fn is_bound(self) -> bool {
        matches!(self, Self::Local | Self::Nfs | Self::Iscsi | Self::Fc)
    }

    /// Whether its files must not be on disk, because they may contain secrets, tokens or metadata of the pod.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        matches!(self, Self::Secret | Self::DownwardApi | Self::Projected)
    }
}

/// `hostPath` type: what is required at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Anything.
    Unset,
    /// A directory, created if missing.
    DirectoryOrCreate,
    Directory,
    /// A file, created if missing.
    FileOrCreate,
    File,
    /// A UNIX socket.
    Socket,
    /// A character device.
    CharDevice,
    BlockDevice,
}

/// A source of files.
#[derive(Clone, Debug, PartialEq)]
pub enum Projection {
    /// Keys of a ConfigMap.
    ConfigMap(Keys),
    /// Keys of a Secret.
    Secret(Keys),
    /// Fields of the pod.
    DownwardApi {
        /// Files.
        items: Vec<DownwardAPIVolumeFile>,
        /// Mode of files without one.
        mode: u32,
    },
    /// A service account token.
    Token {
        /// The token to request.
        want: TokenWant,
        /// Path of the file.
        path: String,
        /// Mode of the file.
        mode: u32,
    },
}

/// Keys of an object that become files.
#[derive(Clone, Debug, PartialEq)]
pub struct Keys {
    /// Name of the object in the pod's namespace.
    pub object: String,
    /// Paths of selected keys; if empty, all keys under their own names.
    pub items: Vec<KeyToPath>,
    /// Whether object and keys may be missing.
    pub optional: bool,
    /// Mode of files without one.
    pub mode: u32,
}

/// A token to request from the API server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenWant {
    /// Audience; empty for the API server.
    pub audience: String,
    /// Requested lifetime in seconds, at least 600.
    pub expiration_secs: i64,
}

/// Objects that have to be fetched before volumes can be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeRequirements {
    /// Names of ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Names of Secrets.
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenWant>,
}

/// What the files of projected volumes are made from.
pub struct PayloadInputs<'a> {
    pub pod: &'a Pod,
    /// Objects of the pod's namespace.
    pub objects: &'a dyn EnvObjects,
    /// Tokens obtained from the API server.
    pub tokens: &'a BTreeMap<TokenWant, String>,
    /// Allocatable resources of the node, used for limits that are not set.
    pub allocatable: &'a BTreeMap<String, Quantity>,
    /// Budget for the files of all volumes of the pod.
    pub budget: &'a Budget,
}

/// Why the content of a volume cannot be determined. The texts are shown to users and are Kubernetes' own where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The agent does not support the source.
    #[error(
        "volume {volume:?}: {source_kind} volumes are not supported by this node agent: {}",
        unsupported_reason(source_kind)
    )]
    Unsupported {
        /// Name of the volume.
        volume: String,
        /// Name of the source in the API.
        source_kind: &'static str,
    },
    /// The medium of an `emptyDir` is not possible.
    #[error("volume {volume:?}: {why}")]
    Medium {
        /// Name of the volume.
        volume: String,
        /// Reason.
        why: String,
    },
    /// An unknown `hostPath` type.
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
        /// Name of the object.
        name: String,
    },
    /// A required key is missing.
    #[error("{kind} references non-existent {kind} key: {key}")]
    NoKey {
        /// `configmap` or `secret`.
        kind: &'static str,
        key: String,
    },
    /// The path of a file is not allowed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The files of the pod exceed the budget.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// A mode outside 0 to 0777.
    #[error("invalid file mode {0}")]
    Mode(i32),
    /// The field does not exist or is not available to volumes.
    #[error("unsupported fieldPath: {0}")]
    UnknownField(String),
    /// The resource does not exist.
    #[error("unsupported container resource: {0}")]
    UnknownResource(String),
    /// The container does not exist.
    #[error("container {0} not found")]
    UnknownContainer(String),
    /// The token has not been obtained yet.
    #[error("no token for audience {0:?}")]
    NoToken(String),
}

/// The volumes of a pod in order.
///
/// # Errors
/// The first volume of an unsupported kind.
pub fn volumes(pod: &Pod) -> Result<Vec<Volume>, SourceError> {
    pod.spec.volumes.iter().map(|each| volume(pod, each)).collect()
}

impl Volume {
    /// Adds the objects that the volume needs, including optional ones.
    pub fn add_needs(&self, needs: &mut VolumeRequirements) {
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
    /// The first required object that is missing, or value that cannot be shown.
    pub fn payload(&self, inputs: &PayloadInputs<'_>) -> Result<Payload, SourceError> {
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
                    inputs.budget.reserve(token.len())?;
                    let file = PayloadFile { data: token.clone().into_bytes(), mode };
                    payload.insert(path, file)?;
                }
            }
        }
        Ok(payload)
    }

    /// Owner of the files: the pod's `fsGroup` if set; tokens belong to the user of all containers, if they run as the same user.
    #[must_use]
    pub fn ownership(&self, pod: &Pod) -> Ownership {
        let gid = fs_group(pod);
        let has_token = self.projections.iter().any(|p| matches!(p, Projection::Token { .. }));
        let uid = if has_token && gid.is_none() { common_user(pod) } else { None };
        Ownership { uid, gid }
    }
}

/// The `fsGroup` of a pod.
#[must_use]
pub fn fs_group(pod: &Pod) -> Option<u32> {
    let group = pod.spec.security_context.as_ref().and_then(|context| context.fs_group);
    group.and_then(|group| u32::try_from(group).ok())
}

/// The user of all containers of a pod, if all specify the same.
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
        projected(VolumePlugin::ConfigMap, vec![Projection::ConfigMap(keys)])
    } else if let Some(source) = &source.secret {
        let keys = Keys {
            object: source.secret_name.clone(),
            items: source.items.clone(),
            optional: source.optional == Some(true),
            mode: mode(source.default_mode, DEFAULT_MODE)?,
        };
        projected(VolumePlugin::Secret, vec![Projection::Secret(keys)])
    } else if let Some(source) = &source.downward_api {
        let items = source.items.clone();
        let mode = mode(source.default_mode, DEFAULT_MODE)?;
        projected(VolumePlugin::DownwardApi, vec![Projection::DownwardApi { items, mode }])
    } else if let Some(source) = &source.projected {
        projected(VolumePlugin::Projected, projections(source)?)
    } else if let Some(source) = &source.host_path {
        host_path(&volume.name, source)?
    } else if let Some(source) = &source.empty_dir {
        VolumeKind::EmptyDir(medium::parse(pod, &volume.name, source)?)
    } else if is_persistent(source) {
        VolumeKind::Persistent
    } else {
        match other_source(source) {
            Some(source_kind) => return Err(unsupported(volume, source_kind)),
            // The API's default.
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

/// Parses a `hostPath` type.
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

/// Whether the source refers to a persistent volume or a CSI driver.
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

/// Name of an unsupported source; `None` if the volume has no source. `gitRepo` and `flexVolume` stay unsupported, because both
/// run foreign programs with the agent's privileges.
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

/// Why a source is not supported, and what to use instead.
pub(crate) fn unsupported_reason(source: &str) -> &'static str {
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
