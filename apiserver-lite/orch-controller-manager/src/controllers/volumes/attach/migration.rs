//! Sources of clouds and vendors that drivers have taken the place of: the driver, and what it calls the volume. The
//! agents of nodes make the same names of them, since both name the attachment by them.

use proto_api::core::v1::PersistentVolumeSource;

/// A place in a cloud that only the driver knows.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Driver and handle of a source that a driver took over; none for others.
pub fn driver_of(source: &PersistentVolumeSource) -> Option<(&'static str, String)> {
    if let Some(disk) = &source.gce_persistent_disk {
        let name = &disk.pd_name;
        let handle = if name.contains('/') {
            name.clone()
        } else {
            format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{name}")
        };
        return Some(("pd.csi.storage.gke.io", handle));
    }
    if let Some(disk) = &source.aws_elastic_block_store {
        // Also in the form `aws://<zone>/<id>`.
        let id = disk.volume_id.rsplit('/').next().unwrap_or_default();
        return Some(("ebs.csi.aws.com", id.to_owned()));
    }
    if let Some(disk) = &source.azure_disk {
        return Some(("disk.csi.azure.com", disk.disk_uri.clone()));
    }
    if let Some(disk) = &source.cinder {
        return Some(("cinder.csi.openstack.org", disk.volume_id.clone()));
    }
    if let Some(disk) = &source.vsphere_volume {
        return Some(("csi.vsphere.vmware.com", disk.volume_path.clone()));
    }
    let disk = source.portworx_volume.as_ref()?;
    Some(("pxd.portworx.com", disk.volume_id.clone()))
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{AWSElasticBlockStoreVolumeSource, GCEPersistentDiskVolumeSource};

    use super::*;

    #[test]
    fn disks_of_clouds_are_their_drivers() {
        let aws = |id: &str| PersistentVolumeSource {
            aws_elastic_block_store: Some(Box::new(AWSElasticBlockStoreVolumeSource {
                volume_id: id.into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let ebs = Some(("ebs.csi.aws.com", "vol-1".to_owned()));
        assert_eq!(driver_of(&aws("aws://eu-1a/vol-1")), ebs);
        assert_eq!(driver_of(&aws("vol-1")), ebs);
        let gce = PersistentVolumeSource {
            gce_persistent_disk: Some(Box::new(GCEPersistentDiskVolumeSource {
                pd_name: "d".into(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let handle = driver_of(&gce).map(|(_, handle)| handle);
        assert_eq!(handle.as_deref(), Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"));
        assert_eq!(driver_of(&PersistentVolumeSource::default()), None);
    }
}
