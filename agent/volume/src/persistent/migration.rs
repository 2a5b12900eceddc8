//! Sources of clouds and vendors that drivers have taken the place of: which driver, and what the volume is called there.

use std::collections::BTreeMap;

use proto_api::core::v1::{PersistentVolume, Pod, Volume as ApiVolume};

use super::csi::CsiVolume;

/// Drivers that took a source's place, with the name under which the source was known.
pub const DRIVERS: [(&str, &str); 8] = [
    ("gce-pd", "pd.csi.storage.gke.io"),
    ("aws-ebs", "ebs.csi.aws.com"),
    ("azure-disk", "disk.csi.azure.com"),
    ("azure-file", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("vsphere-volume", "csi.vsphere.vmware.com"),
    ("portworx-volume", "pxd.portworx.com"),
    ("rbd", "rbd.csi.ceph.com"),
];

const GCE: &str = DRIVERS[0].1;
const AWS: &str = DRIVERS[1].1;
const AZURE_DISK: &str = DRIVERS[2].1;
const AZURE_FILE: &str = DRIVERS[3].1;
const CINDER: &str = DRIVERS[4].1;
const VSPHERE: &str = DRIVERS[5].1;
const PORTWORX: &str = DRIVERS[6].1;

/// A place in a cloud that only the driver's controller knows.
const UNSPECIFIED: &str = "UNSPECIFIED";

fn csi(driver: &str, handle: String, fs_type: &str, attributes: &[(&str, String)]) -> CsiVolume {
    let attributes = attributes.iter().filter(|(_, value)| !value.is_empty());
    CsiVolume {
        driver: driver.to_owned(),
        handle,
        fs_type: fs_type.to_owned(),
        attributes: attributes.map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        ..CsiVolume::default()
    }
}

fn partition(number: i32) -> String {
    if number > 0 { number.to_string() } else { String::new() }
}

fn disk_of_gce(name: &str) -> String {
    if name.contains('/') {
        return name.to_owned();
    }
    format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{name}")
}

/// An EBS volume by its plain id, also from the form `aws://<zone>/<id>`.
fn id_of_ebs(id: &str) -> String {
    id.rsplit('/').next().unwrap_or(id).to_owned()
}

/// A volume of a cloud as its driver's; `None` for a source that no driver took over.
///
/// # Errors
/// The source says too little for the driver.
pub(super) fn of_volume(volume: &PersistentVolume) -> Result<Option<CsiVolume>, String> {
    let source = &volume.spec.persistent_volume_source;
    let mut found = if let Some(gce) = &source.gce_persistent_disk {
        csi(
            GCE,
            disk_of_gce(&gce.pd_name),
            &gce.fs_type,
            &[("partition", partition(gce.partition))],
        )
    } else if let Some(aws) = &source.aws_elastic_block_store {
        csi(
            AWS,
            id_of_ebs(&aws.volume_id),
            &aws.fs_type,
            &[("partition", partition(aws.partition))],
        )
    } else if let Some(disk) = &source.azure_disk {
        let caching = disk.caching_mode.clone().unwrap_or_default();
        let kind = disk.kind.clone().unwrap_or_default();
        let fs_type = disk.fs_type.clone().unwrap_or_default();
        csi(
            AZURE_DISK,
            disk.disk_uri.clone(),
            &fs_type,
            &[("cachingMode", caching), ("kind", kind)],
        )
    } else if let Some(file) = &source.azure_file {
        let namespace = file.secret_namespace.clone().filter(|n| !n.is_empty());
        let claimed = volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.clone());
        let claimed = claimed.filter(|namespace| !namespace.is_empty());
        let namespace = namespace.or(claimed).unwrap_or_else(|| "default".to_owned());
        let handle = format!("##{}#{}#{namespace}", file.share_name, volume.metadata.name);
        let attributes = [("shareName", file.share_name.clone())];
        let mut found = csi(AZURE_FILE, handle, "", &attributes);
        found.stage_secret = Some((namespace, file.secret_name.clone()));
        found
    } else if let Some(cinder) = &source.cinder {
        csi(CINDER, cinder.volume_id.clone(), &cinder.fs_type, &[])
    } else if let Some(vsphere) = &source.vsphere_volume {
        csi(VSPHERE, vsphere.volume_path.clone(), &vsphere.fs_type, &[])
    } else if let Some(portworx) = &source.portworx_volume {
        csi(PORTWORX, portworx.volume_id.clone(), &portworx.fs_type, &[])
    } else if source.rbd.is_some() {
        return Err(format!("rbd volumes need the driver {} and its cluster id", DRIVERS[7].1));
    } else {
        return Ok(None);
    };
    found.access_modes.clone_from(&volume.spec.access_modes);
    Ok(Some(found))
}

/// A volume of a cloud that a pod describes, as its driver's.
///
/// # Errors
/// The source says too little for the driver.
pub(super) fn of_pod(pod: &Pod, volume: &ApiVolume) -> Result<Option<CsiVolume>, String> {
    let source = &volume.volume_source;
    // The same sources stand in a persistent volume, the secrets of one apart.
    let mut persistent = PersistentVolume::default();
    persistent.metadata.name.clone_from(&volume.name);
    persistent.spec.access_modes = vec!["ReadWriteOnce".to_owned()];
    let target = &mut persistent.spec.persistent_volume_source;
    target.gce_persistent_disk.clone_from(&source.gce_persistent_disk);
    target.aws_elastic_block_store.clone_from(&source.aws_elastic_block_store);
    target.azure_disk.clone_from(&source.azure_disk);
    target.vsphere_volume.clone_from(&source.vsphere_volume);
    target.portworx_volume.clone_from(&source.portworx_volume);
    if let Some(file) = &source.azure_file {
        let (share, namespace) = (&file.share_name, &pod.metadata.namespace);
        let handle = format!("##{share}#{}#{namespace}", volume.name);
        let mut found = csi(AZURE_FILE, handle, "", &[("shareName", share.clone())]);
        found.access_modes = vec!["ReadWriteMany".to_owned()];
        found.read_only = file.read_only;
        found.stage_secret = Some((namespace.clone(), file.secret_name.clone()));
        return Ok(Some(found));
    }
    if let Some(cinder) = &source.cinder {
        let mut found = csi(CINDER, cinder.volume_id.clone(), &cinder.fs_type, &[]);
        found.access_modes = persistent.spec.access_modes;
        found.read_only = cinder.read_only;
        return Ok(Some(found));
    }
    if source.rbd.is_some() {
        return Err(format!("rbd volumes need the driver {} and its cluster id", DRIVERS[7].1));
    }
    of_volume(&persistent)
}

/// Sources that drivers have taken over, by the names that a node announces it with.
#[must_use]
pub fn migrated() -> BTreeMap<&'static str, &'static str> {
    DRIVERS.into_iter().collect()
}
