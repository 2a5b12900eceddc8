//! CSI migration of in-tree volume sources: the driver of a source, and the driver's handle of the volume. VolumeAttachments are named by both, so the
//! attach controller and the node agent have to agree on them.

use crate::core::v1::PersistentVolumeSource;

/// Disks of Google Cloud.
pub const GCE: &str = "pd.csi.storage.gke.io";
/// Disks of AWS.
pub const AWS: &str = "ebs.csi.aws.com";
pub const AZURE_DISK: &str = "disk.csi.azure.com";
/// File shares of Azure, which are not attached.
pub const AZURE_FILE: &str = "file.csi.azure.com";
/// Disks of OpenStack.
pub const CINDER: &str = "cinder.csi.openstack.org";
/// Disks of vSphere.
pub const VSPHERE: &str = "csi.vsphere.vmware.com";
/// Disks of Portworx.
pub const PORTWORX: &str = "pxd.portworx.com";
/// Images of Ceph; the driver needs more parameters than the source has.
pub const RBD: &str = "rbd.csi.ceph.com";

/// Drivers that replace a source, by the names of the source in node annotations.
pub const DRIVERS: [(&str, &str); 8] = [
    ("aws-ebs", AWS),
    ("azure-disk", AZURE_DISK),
    ("azure-file", AZURE_FILE),
    ("cinder", CINDER),
    ("gce-pd", GCE),
    ("portworx-volume", PORTWORX),
    ("rbd", RBD),
    ("vsphere-volume", VSPHERE),
];

/// A location that only the driver's controller knows.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Driver and handle of a disk whose source was migrated; `None` for other sources, and for those without a disk.
#[must_use]
pub fn disk(source: &PersistentVolumeSource) -> Option<(&'static str, String)> {
    if let Some(disk) = &source.gce_persistent_disk {
        let name = &disk.pd_name;
        let handle = if name.contains('/') {
            name.clone()
        } else {
            format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{name}")
        };
        return Some((GCE, handle));
    }
    if let Some(disk) = &source.aws_elastic_block_store {
        // Also in the form `aws://<zone>/<id>`.
        let id = disk.volume_id.rsplit('/').next().unwrap_or_default();
        return Some((AWS, id.to_owned()));
    }
    if let Some(disk) = &source.azure_disk {
        return Some((AZURE_DISK, disk.disk_uri.clone()));
    }
    if let Some(disk) = &source.cinder {
        return Some((CINDER, disk.volume_id.clone()));
    }
    if let Some(disk) = &source.vsphere_volume {
        return Some((VSPHERE, disk.volume_path.clone()));
    }
    let disk = source.portworx_volume.as_ref()?;
    Some((PORTWORX, disk.volume_id.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::v1::{AWSElasticBlockStoreVolumeSource, GCEPersistentDiskVolumeSource};

    #[test]
    fn disks_of_clouds_are_their_drivers() {
        let aws = |id: &str| PersistentVolumeSource {
            aws_elastic_block_store: Some(Box::new(AWSElasticBlockStoreVolumeSource {
                volume_id: id.into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let ebs = Some((AWS, "vol-1".to_owned()));
        assert_eq!(disk(&aws("aws://eu-1a/vol-1")), ebs);
        assert_eq!(disk(&aws("vol-1")), ebs);
        let gce = |name: &str| PersistentVolumeSource {
            gce_persistent_disk: Some(Box::new(GCEPersistentDiskVolumeSource {
                pd_name: name.into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let handle = |source| disk(&source).map(|(_, handle)| handle);
        let found = handle(gce("d"));
        assert_eq!(found.as_deref(), Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"));
        assert_eq!(handle(gce("projects/p/disks/d")).as_deref(), Some("projects/p/disks/d"));
        assert_eq!(disk(&PersistentVolumeSource::default()), None);
    }
}
