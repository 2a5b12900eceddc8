//! Volumes of drivers: what of the pod, the persistent volume and the driver's own object goes into the calls.

use std::collections::BTreeMap;

use proto_api::core::v1::{PersistentVolume, Pod, SecretReference, Volume as ApiVolume};
use proto_api::storage::v1::CSIDriver;
use sha2::{Digest as _, Sha256};

use super::{Known, PersistentError, migration};
use crate::sources::TokenWant;

/// Life of a driver's token when nothing says otherwise, in seconds.
const TOKEN_SECS_DEFAULT: i64 = 3600;
/// Shortest life of a token, in seconds.
const TOKEN_SECS_MIN: i64 = 600;

/// A volume of a driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CsiVolume {
    /// Name of the driver.
    pub driver: String,
    /// The driver's own name of the volume.
    pub handle: String,
    /// Whether it lives and dies with the pod, so that it is neither attached nor staged.
    pub ephemeral: bool,
    /// File system to make on it if there is none.
    pub fs_type: String,
    /// How it may be used at once, as the API names it; the first counts.
    pub access_modes: Vec<String>,
    /// Whether the pod may only read.
    pub read_only: bool,
    /// What the driver gave when it made the volume, or the pod's author wrote.
    pub attributes: BTreeMap<String, String>,
    /// Secret of the stage call, by namespace and name.
    pub stage_secret: Option<(String, String)>,
    /// Secret of the publish call.
    pub publish_secret: Option<(String, String)>,
    /// Secret of the expand call.
    pub expand_secret: Option<(String, String)>,
    /// Name of its attachment; `None` when it is not attached.
    pub attachment: Option<String>,
    /// What attaching it gave.
    pub publish_context: BTreeMap<String, String>,
    /// Whether the driver is told which pod it is for.
    pub pod_info: bool,
    /// Tokens that the driver is given.
    pub tokens: Vec<TokenWant>,
    /// Whether publishing is repeated from time to time.
    pub republish: bool,
    /// Who sees to the pod's group.
    pub fs_group: FsGroupPolicy,
    /// Whether it can be mounted with a label.
    pub se_linux_mount: bool,
}

/// Whether a driver's volumes are given to the pod's group by the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsGroupPolicy {
    /// When one node at a time writes to it, and it has a file system by name.
    #[default]
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

impl CsiVolume {
    /// Secrets that its calls carry.
    pub fn secrets(&self) -> impl Iterator<Item = &(String, String)> {
        [&self.stage_secret, &self.publish_secret, &self.expand_secret].into_iter().flatten()
    }

    /// Whether the agent gives the volume to the pod's group.
    #[must_use]
    pub fn takes_group(&self) -> bool {
        match self.fs_group {
            FsGroupPolicy::None => false,
            FsGroupPolicy::File => true,
            FsGroupPolicy::ReadWriteOnceWithFsType => {
                let once = self.access_modes.iter().any(|mode| mode == "ReadWriteOnce");
                !self.fs_type.is_empty() && once
            }
        }
    }
}

/// Name of the object that stands for a volume attached to a node.
#[must_use]
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", hex(&format!("{handle}{driver}{node}")))
}

/// SHA-256 of a text in hexadecimal, as names of volumes are made of.
pub(crate) fn hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The driver's part of a persistent volume: its own, or that of the driver which took the source's place. `None` for other sources.
///
/// # Errors
/// Why the source cannot be turned into a driver's.
pub(super) fn of_volume(volume: &PersistentVolume) -> Result<Option<CsiVolume>, String> {
    let spec = &volume.spec;
    let Some(csi) = &spec.persistent_volume_source.csi else {
        return migration::of_volume(volume);
    };
    Ok(Some(CsiVolume {
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        fs_type: csi.fs_type.clone(),
        access_modes: spec.access_modes.clone(),
        read_only: csi.read_only,
        attributes: csi.volume_attributes.clone(),
        stage_secret: reference(csi.node_stage_secret_ref.as_ref()),
        publish_secret: reference(csi.node_publish_secret_ref.as_ref()),
        expand_secret: reference(csi.node_expand_secret_ref.as_ref()),
        ..CsiVolume::default()
    }))
}

fn reference(secret: Option<&SecretReference>) -> Option<(String, String)> {
    secret.map(|secret| (secret.namespace.clone(), secret.name.clone()))
}

/// The driver's part of a volume that a pod describes; `None` for other sources.
///
/// # Errors
/// Why the source cannot be turned into a driver's.
pub(super) fn of_pod(pod: &Pod, volume: &ApiVolume) -> Result<Option<CsiVolume>, String> {
    let Some(csi) = &volume.volume_source.csi else { return migration::of_pod(pod, volume) };
    let secret = csi.node_publish_secret_ref.as_ref();
    Ok(Some(CsiVolume {
        driver: csi.driver.clone(),
        handle: format!("csi-{}", hex(&format!("{}{}", pod.metadata.uid, volume.name))),
        ephemeral: true,
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        read_only: csi.read_only == Some(true),
        attributes: csi.volume_attributes.clone(),
        publish_secret: secret.map(|s| (pod.metadata.namespace.clone(), s.name.clone())),
        ..CsiVolume::default()
    }))
}

/// Whether a volume has to be attached before the node can use it: unless its driver says otherwise.
pub(super) fn is_attached(volume: &CsiVolume, driver: Option<&CSIDriver>) -> bool {
    !volume.ephemeral && driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}

/// Adds what the driver says of itself and what attaching the volume gave.
///
/// # Errors
/// The driver does not take such volumes, or the volume is not attached.
pub(super) fn complete(
    mut volume: CsiVolume,
    name: &str,
    node: &str,
    known: &Known,
) -> Result<CsiVolume, PersistentError> {
    let Some(driver) = known.drivers.get(&volume.driver) else {
        return Err(PersistentError::Unknown(format!("CSIDriver {}", volume.driver)));
    };
    let driver = driver.as_deref();
    check_lifecycle(&volume, name, driver)?;
    if is_attached(&volume, driver) {
        let attachment = attachment_name(&volume.handle, &volume.driver, node);
        volume.publish_context = attached(&attachment, name, known)?;
        volume.attachment = Some(attachment);
    }
    let Some(driver) = driver else { return Ok(volume) };
    volume.pod_info = driver.spec.pod_info_on_mount == Some(true);
    volume.republish = driver.spec.requires_republish == Some(true);
    volume.se_linux_mount = driver.spec.se_linux_mount == Some(true);
    volume.fs_group = match driver.spec.fs_group_policy.as_deref() {
        Some("File") => FsGroupPolicy::File,
        Some("None") => FsGroupPolicy::None,
        _ => FsGroupPolicy::ReadWriteOnceWithFsType,
    };
    let token = |request: &proto_api::storage::v1::TokenRequest| TokenWant {
        audience: request.audience.clone(),
        expiration_secs: request
            .expiration_seconds
            .unwrap_or(TOKEN_SECS_DEFAULT)
            .max(TOKEN_SECS_MIN),
    };
    volume.tokens = driver.spec.token_requests.iter().map(token).collect();
    Ok(volume)
}

fn check_lifecycle(
    volume: &CsiVolume,
    name: &str,
    driver: Option<&CSIDriver>,
) -> Result<(), PersistentError> {
    let refused = |why| Err(PersistentError::Volume { volume: name.to_owned(), why });
    let modes = driver.map(|driver| driver.spec.volume_lifecycle_modes.as_slice());
    let wanted = if volume.ephemeral { "Ephemeral" } else { "Persistent" };
    match modes {
        None if volume.ephemeral => refused(format!(
            "volume mode \"Ephemeral\" not supported by driver {} (no CSIDriver object)",
            volume.driver
        )),
        None => Ok(()),
        Some([]) if !volume.ephemeral => Ok(()),
        Some(modes) if modes.iter().any(|mode| mode == wanted) => Ok(()),
        Some(modes) => refused(format!(
            "volume mode {wanted:?} not supported by driver {} (only supports {modes:?})",
            volume.driver
        )),
    }
}

/// What attaching a volume gave.
fn attached(
    attachment: &str,
    name: &str,
    known: &Known,
) -> Result<BTreeMap<String, String>, PersistentError> {
    let waits = |why: String| PersistentError::NotAttached { volume: name.to_owned(), why };
    match known.attachments.get(attachment) {
        None => Err(PersistentError::Unknown(format!("VolumeAttachment {attachment}"))),
        Some(None) => Err(waits(format!("volume attachment {attachment} not found"))),
        Some(Some(found)) if found.metadata.deletion_timestamp.is_some() => {
            Err(waits(format!("volume attachment {attachment} is being deleted")))
        }
        Some(Some(found)) if found.status.attached => Ok(found.status.attachment_metadata.clone()),
        Some(Some(found)) => Err(waits(match &found.status.attach_error {
            Some(error) => error.message.clone(),
            None => format!("volume attachment {attachment} is not attached yet"),
        })),
    }
}
