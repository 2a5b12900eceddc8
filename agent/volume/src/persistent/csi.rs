//! CSI volumes: the data of the pod, the persistent volume and the CSIDriver object that driver calls need.

use std::collections::BTreeMap;

use proto_api::core::v1::{PersistentVolume, Pod, SecretReference, Volume as ApiVolume};
use proto_api::sha256_hex;
use proto_api::storage::v1::CSIDriver;

use super::migration::MigrationError;
use super::{KnownObjects, PersistentError, migration};
use crate::sources::TokenWant;

/// Default lifetime of a driver's token in seconds.
const TOKEN_SECS_DEFAULT: i64 = 3600;
/// Shortest lifetime of a token in seconds.
const TOKEN_SECS_MIN: i64 = 600;

/// A volume of a CSI driver with what NodeStageVolume and NodePublishVolume need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CsiVolume {
    /// Name of the driver.
    pub driver: String,
    /// Volume handle.
    pub handle: String,
    /// Whether it is an inline ephemeral volume, which is neither attached nor staged.
    pub ephemeral: bool,
    /// File system type to create if there is none.
    pub fs_type: String,
    /// Access modes in the API's names; the first one is used.
    pub access_modes: Vec<String>,
    /// Whether the pod mounts it read-only.
    pub read_only: bool,
    /// Volume attributes, from provisioning or from the pod.
    pub attributes: BTreeMap<String, String>,
    /// Secret for NodeStageVolume, by namespace and name.
    pub stage_secret: Option<(String, String)>,
    /// Secret for NodePublishVolume.
    pub publish_secret: Option<(String, String)>,
    /// Secret for NodeExpandVolume.
    pub expand_secret: Option<(String, String)>,
    /// Name of its VolumeAttachment; `None` if it does not need one.
    pub attachment: Option<String>,
    /// Publish context from the attachment.
    pub publish_context: BTreeMap<String, String>,
    /// Whether the driver gets information about the pod (`podInfoOnMount`).
    pub pod_info: bool,
    /// Service account tokens for the driver (`tokenRequests`).
    pub tokens: Vec<TokenWant>,
    /// Whether NodePublishVolume is repeated periodically (`requiresRepublish`).
    pub republish: bool,
    /// Who applies `fsGroup`.
    pub fs_group: FsGroupPolicy,
    /// Whether it can be mounted with an SELinux context.
    pub se_linux_mount: bool,
}

/// `fsGroupPolicy`: whether the agent applies `fsGroup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsGroupPolicy {
    /// If it is writable by one node only and has a file system type.
    #[default]
    ReadWriteOnceWithFsType,
    /// Always.
    File,
    /// Never.
    None,
}

impl CsiVolume {
    /// Secrets that its calls need.
    pub fn secrets(&self) -> impl Iterator<Item = &(String, String)> {
        [&self.stage_secret, &self.publish_secret, &self.expand_secret].into_iter().flatten()
    }

    /// Whether the agent applies `fsGroup`.
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

/// Name of the VolumeAttachment of a volume and a node, as in Kubernetes.
#[must_use]
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(format!("{handle}{driver}{node}").as_bytes()))
}

/// The CSI source of a persistent volume, directly or by migration; `None` for other sources.
///
/// # Errors
/// The source cannot be migrated.
pub(super) fn from_volume(volume: &PersistentVolume) -> Result<Option<CsiVolume>, MigrationError> {
    let spec = &volume.spec;
    let Some(csi) = &spec.persistent_volume_source.csi else {
        return migration::migrate_volume(volume);
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

/// The CSI source of a volume described in a pod, directly or by migration; `None` for other sources.
///
/// # Errors
/// The source cannot be migrated.
pub(super) fn from_pod(pod: &Pod, volume: &ApiVolume) -> Result<Option<CsiVolume>, MigrationError> {
    let Some(csi) = &volume.volume_source.csi else {
        return migration::migrate_pod_volume(pod, volume);
    };
    let secret = csi.node_publish_secret_ref.as_ref();
    Ok(Some(CsiVolume {
        driver: csi.driver.clone(),
        handle: format!(
            "csi-{}",
            sha256_hex(format!("{}{}", pod.metadata.uid, volume.name).as_bytes())
        ),
        ephemeral: true,
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        read_only: csi.read_only == Some(true),
        attributes: csi.volume_attributes.clone(),
        publish_secret: secret.map(|s| (pod.metadata.namespace.clone(), s.name.clone())),
        ..CsiVolume::default()
    }))
}

/// Whether the volume needs an attachment; true unless the driver's object says otherwise.
pub(super) fn needs_attachment(volume: &CsiVolume, driver: Option<&CSIDriver>) -> bool {
    !volume.ephemeral && driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}

/// Adds the settings of the driver's object and the publish context of the attachment.
///
/// # Errors
/// The driver does not support such volumes, or the volume is not attached.
pub(super) fn complete(
    mut volume: CsiVolume,
    name: &str,
    node: &str,
    known: &KnownObjects,
) -> Result<CsiVolume, PersistentError> {
    let Some(driver) = known.drivers.get(&volume.driver) else {
        return Err(PersistentError::Unknown(format!("CSIDriver {}", volume.driver)));
    };
    let driver = driver.as_deref();
    check_lifecycle(&volume, name, driver)?;
    if needs_attachment(&volume, driver) {
        let attachment = attachment_name(&volume.handle, &volume.driver, node);
        volume.publish_context = publish_context(&attachment, name, known)?;
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

/// The publish context of an attached volume.
fn publish_context(
    attachment: &str,
    name: &str,
    known: &KnownObjects,
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
