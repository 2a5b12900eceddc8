//! Disks of clouds in pod specs, without a claim. They are attached to the node, and count for its limits like those of claims.

use proto_api::core::v1::{CinderPersistentVolumeSource, PersistentVolumeSource, Pod, Volume};
use proto_api::migration;

use crate::claim_use::CLAIMS_MAX;

/// A disk of a cloud. Its source says nothing of a CSI driver; one has taken the place of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudDisk {
    /// The driver that replaces the source.
    pub driver: &'static str,
    /// The disk, by the driver's handle.
    pub handle: String,
}

/// The disks in a pod spec. Of more than [`CLAIMS_MAX`] one more counts: no node mounts that many.
pub fn of_pod(pod: &Pod) -> Vec<CloudDisk> {
    let disks = pod.spec.volumes.iter().filter_map(of_volume);
    disks.take(CLAIMS_MAX.saturating_add(1)).collect()
}

/// The disk of a source in a pod: persistent volumes have the same sources.
fn of_volume(volume: &Volume) -> Option<CloudDisk> {
    let own = &volume.volume_source;
    let cinder = own.cinder.as_ref().map(|disk| {
        let volume_id = disk.volume_id.clone();
        Box::new(CinderPersistentVolumeSource { volume_id, ..Default::default() })
    });
    let (driver, handle) = migration::disk(&PersistentVolumeSource {
        gce_persistent_disk: own.gce_persistent_disk.clone(),
        aws_elastic_block_store: own.aws_elastic_block_store.clone(),
        azure_disk: own.azure_disk.clone(),
        cinder,
        vsphere_volume: own.vsphere_volume.clone(),
        portworx_volume: own.portworx_volume.clone(),
        ..PersistentVolumeSource::default()
    })?;
    Some(CloudDisk { driver, handle })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(volumes: &str) -> Pod {
        let text = format!("{{\"spec\": {{\"containers\": [], \"volumes\": [{volumes}]}}}}");
        serde_json::from_str(&text).expect("a pod")
    }

    #[test]
    fn disks_of_every_cloud_are_those_of_their_drivers() {
        for (source, expected) in [
            (
                r#""awsElasticBlockStore": {"volumeID": "aws://zone/vol-1"}"#,
                Some((migration::AWS, "vol-1")),
            ),
            (
                r#""gcePersistentDisk": {"pdName": "d"}"#,
                Some((migration::GCE, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d")),
            ),
            (
                r#""azureDisk": {"diskName": "d", "diskURI": "/subscriptions/d"}"#,
                Some((migration::AZURE_DISK, "/subscriptions/d")),
            ),
            (r#""cinder": {"volumeID": "c"}"#, Some((migration::CINDER, "c"))),
            (r#""vsphereVolume": {"volumePath": "[a] b"}"#, Some((migration::VSPHERE, "[a] b"))),
            (r#""portworxVolume": {"volumeID": "p"}"#, Some((migration::PORTWORX, "p"))),
            (r#""azureFile": {"secretName": "s", "shareName": "f"}"#, None),
            (r#""csi": {"driver": "ebs.csi.aws.com"}"#, None),
            (r#""emptyDir": {}"#, None),
        ] {
            let found = of_pod(&pod(&format!("{{\"name\": \"v\", {source}}}")));
            let expected =
                expected.map(|(driver, handle)| CloudDisk { driver, handle: handle.into() });
            assert_eq!(found, Vec::from_iter(expected), "{source}");
        }
    }

    #[test]
    fn very_many_disks_are_as_many_as_no_node_mounts() {
        let disk =
            |nth| format!("{{\"name\": \"v{nth}\", \"cinder\": {{\"volumeID\": \"c{nth}\"}}}}");
        let disks: Vec<String> = (0..300).map(disk).collect();
        assert_eq!(of_pod(&pod(&disks.join(", "))).len(), 257);
    }
}
