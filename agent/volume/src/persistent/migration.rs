//! CSI migration: in-tree sources as volumes of the CSI drivers that replaced them.

use proto_api::core::v1::{
    AzureFilePersistentVolumeSource, CinderPersistentVolumeSource, PersistentVolume,
    PersistentVolumeSource, Pod, Volume as ApiVolume,
};
use proto_api::migration::{AZURE_FILE, RBD, disk};

use super::csi::CsiVolume;

/// Why a source cannot be handed to its driver. The volume has to name the driver itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MigrationError {
    #[error("rbd volumes need the CSI driver {RBD} and its clusterID")]
    Rbd,
}

/// The CSI volume for an in-tree source; `None` for a source without a replacement.
///
/// # Errors
/// The source lacks a field that the driver needs.
pub(super) fn migrate_volume(
    volume: &PersistentVolume,
) -> Result<Option<CsiVolume>, MigrationError> {
    let source = &volume.spec.persistent_volume_source;
    if source.rbd.is_some() {
        return Err(MigrationError::Rbd);
    }
    let mut found = match (&source.azure_file, disk(source)) {
        (Some(file), _) => share(file, volume),
        (None, Some((driver, handle))) => {
            let (fs_type, attributes) = details(source);
            let attributes = attributes.into_iter().filter(|(_, value)| !value.is_empty());
            CsiVolume {
                driver: driver.to_owned(),
                handle,
                fs_type,
                attributes: attributes.map(|(key, value)| (key.to_owned(), value)).collect(),
                ..CsiVolume::default()
            }
        }
        (None, None) => return Ok(None),
    };
    found.access_modes.clone_from(&volume.spec.access_modes);
    Ok(Some(found))
}

/// File system type and volume attributes.
fn details(source: &PersistentVolumeSource) -> (String, Vec<(&'static str, String)>) {
    let partition = |number: i32| if number > 0 { number.to_string() } else { String::new() };
    if let Some(gce) = &source.gce_persistent_disk {
        return (gce.fs_type.clone(), vec![("partition", partition(gce.partition))]);
    }
    if let Some(aws) = &source.aws_elastic_block_store {
        return (aws.fs_type.clone(), vec![("partition", partition(aws.partition))]);
    }
    if let Some(azure) = &source.azure_disk {
        let caching = azure.caching_mode.clone().unwrap_or_default();
        let kind = azure.kind.clone().unwrap_or_default();
        let fs_type = azure.fs_type.clone().unwrap_or_default();
        return (fs_type, vec![("cachingMode", caching), ("kind", kind)]);
    }
    let others = [
        source.cinder.as_ref().map(|disk| &disk.fs_type),
        source.vsphere_volume.as_ref().map(|disk| &disk.fs_type),
        source.portworx_volume.as_ref().map(|disk| &disk.fs_type),
    ];
    (others.into_iter().flatten().next().cloned().unwrap_or_default(), Vec::new())
}

/// An Azure file share, whose secret is in the namespace named by the source, or in the claim's.
fn share(file: &AzureFilePersistentVolumeSource, volume: &PersistentVolume) -> CsiVolume {
    let named = file.secret_namespace.clone().filter(|namespace| !namespace.is_empty());
    let claimed = volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.clone());
    let claimed = claimed.filter(|namespace| !namespace.is_empty());
    let namespace = named.or(claimed).unwrap_or_else(|| "default".to_owned());
    share_in(&namespace, &file.share_name, &file.secret_name, &volume.metadata.name)
}

fn share_in(namespace: &str, share: &str, secret: &str, volume: &str) -> CsiVolume {
    CsiVolume {
        driver: AZURE_FILE.to_owned(),
        handle: format!("##{share}#{volume}#{namespace}"),
        attributes: [("shareName".to_owned(), share.to_owned())].into(),
        stage_secret: Some((namespace.to_owned(), secret.to_owned())),
        ..CsiVolume::default()
    }
}

/// The CSI volume for an in-tree source in a pod.
///
/// # Errors
/// The source lacks a field that the driver needs.
pub(super) fn migrate_pod_volume(
    pod: &Pod,
    volume: &ApiVolume,
) -> Result<Option<CsiVolume>, MigrationError> {
    let source = &volume.volume_source;
    if source.rbd.is_some() {
        return Err(MigrationError::Rbd);
    }
    if let Some(file) = &source.azure_file {
        let namespace = &pod.metadata.namespace;
        let found = share_in(namespace, &file.share_name, &file.secret_name, &volume.name);
        let access_modes = vec!["ReadWriteMany".to_owned()];
        return Ok(Some(CsiVolume { access_modes, read_only: file.read_only, ..found }));
    }
    // Persistent volumes have the same sources; they differ in the namespaces of secrets, and no disk driver gets a secret.
    let mut persistent = PersistentVolume::default();
    persistent.metadata.name.clone_from(&volume.name);
    persistent.spec.access_modes = vec!["ReadWriteOnce".to_owned()];
    let target = &mut persistent.spec.persistent_volume_source;
    target.gce_persistent_disk.clone_from(&source.gce_persistent_disk);
    target.aws_elastic_block_store.clone_from(&source.aws_elastic_block_store);
    target.azure_disk.clone_from(&source.azure_disk);
    target.vsphere_volume.clone_from(&source.vsphere_volume);
    target.portworx_volume.clone_from(&source.portworx_volume);
    let cinder = source.cinder.as_deref();
    target.cinder = cinder.map(|disk| {
        Box::new(CinderPersistentVolumeSource {
            volume_id: disk.volume_id.clone(),
            fs_type: disk.fs_type.clone(),
            ..CinderPersistentVolumeSource::default()
        })
    });
    let mut found = migrate_volume(&persistent)?;
    if let (Some(found), Some(disk)) = (&mut found, cinder) {
        found.read_only = disk.read_only;
    }
    Ok(found)
}
