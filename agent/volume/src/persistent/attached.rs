//! Disks that the node attaches: iSCSI and Fibre Channel. Pure: which disk a volume is, and the names under which the kernel shows it.

mod iscsi;
mod limits;
mod portal;

use proto_api::core::v1::{
    FCVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource, LocalObjectReference,
    PersistentVolume, Pod, SecretReference, Volume as ApiVolume,
};
use proto_api::sha256_hex;

pub use iscsi::{Iscsi, IscsiError};
pub use limits::DiskFieldError;

/// A Fibre Channel disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FibreChannel {
    /// Its unique name among the node's volumes, as in Kubernetes.
    pub name: String,
    /// World wide names of targets with the LUN.
    pub targets: Vec<(String, i32)>,
    /// World wide identifiers of the disk.
    pub ids: Vec<String>,
}

/// A disk that the node attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachedDisk {
    /// Over iSCSI.
    Iscsi(Iscsi),
    /// Over Fibre Channel.
    FibreChannel(FibreChannel),
}

/// A disk, its file system type, and whether it is read-only.
pub(super) type FoundDisk = (AttachedDisk, String, bool);

/// The disk of a persistent volume; `None` for other sources.
///
/// # Errors
/// A field has more than is supported.
pub(super) fn from_volume(volume: &PersistentVolume) -> Result<Option<FoundDisk>, DiskFieldError> {
    let source = &volume.spec.persistent_volume_source;
    match (&source.fc, &source.iscsi) {
        (Some(fc), _) => fibre_channel(fc).map(Some),
        (None, Some(of_volume)) => iscsi_disk(of_volume).map(Some),
        (None, None) => Ok(None),
    }
}

/// The disk of a volume described in a pod; `None` for other sources.
///
/// # Errors
/// A field has more than is supported.
pub(super) fn from_pod(pod: &Pod, volume: &ApiVolume) -> Result<Option<FoundDisk>, DiskFieldError> {
    let source = &volume.volume_source;
    match (&source.fc, &source.iscsi) {
        (Some(fc), _) => fibre_channel(fc).map(Some),
        (None, Some(of_pod)) => {
            // Before they are copied.
            limits::check_list(iscsi::PORTALS, &of_pod.portals)?;
            iscsi_disk(&as_persistent(of_pod, &pod.metadata.namespace)).map(Some)
        }
        (None, None) => Ok(None),
    }
}

/// A pod's source as a persistent volume's: its secret is in the pod's namespace.
fn as_persistent(of_pod: &ISCSIVolumeSource, namespace: &str) -> ISCSIPersistentVolumeSource {
    let secret = |of: &LocalObjectReference| SecretReference {
        name: of.name.clone(),
        namespace: namespace.to_owned(),
    };
    ISCSIPersistentVolumeSource {
        target_portal: of_pod.target_portal.clone(),
        iqn: of_pod.iqn.clone(),
        lun: of_pod.lun,
        iscsi_interface: of_pod.iscsi_interface.clone(),
        fs_type: of_pod.fs_type.clone(),
        read_only: of_pod.read_only,
        portals: of_pod.portals.clone(),
        chap_auth_discovery: of_pod.chap_auth_discovery,
        chap_auth_session: of_pod.chap_auth_session,
        secret_ref: of_pod.secret_ref.as_ref().map(secret),
        initiator_name: of_pod.initiator_name.clone(),
    }
}

fn iscsi_disk(source: &ISCSIPersistentVolumeSource) -> Result<FoundDisk, DiskFieldError> {
    let disk = AttachedDisk::Iscsi(Iscsi::from_source(source)?);
    Ok((disk, source.fs_type.clone(), source.read_only))
}

fn fibre_channel(fc: &FCVolumeSource) -> Result<FoundDisk, DiskFieldError> {
    limits::check_world_wide_names("fc.targetWWNs", &fc.target_wwns)?;
    limits::check_world_wide_names("fc.wwids", &fc.wwids)?;
    let lun = fc.lun.unwrap_or(0);
    let targets = fc.target_wwns.iter().map(|name| (name.to_lowercase(), lun)).collect();
    // Formatted like a Go list.
    let name = match fc.target_wwns.as_slice() {
        [] => format!("[{}]", fc.wwids.join(" ")),
        names => format!("[{}]:{lun}", names.join(" ")),
    };
    let disk = FibreChannel { name, targets, ids: fc.wwids.clone() };
    Ok((AttachedDisk::FibreChannel(disk), fc.fs_type.clone(), fc.read_only))
}

impl AttachedDisk {
    /// Its unique name among the node's volumes, without the plugin's name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Iscsi(disk) => &disk.name,
            Self::FibreChannel(disk) => &disk.name,
        }
    }

    /// Name of its mount directory. It is derived from the disk, because volume names in pods are not unique.
    #[must_use]
    pub fn mount_name(&self) -> String {
        match self {
            Self::Iscsi(disk) => sha256_hex(format!("{} {}", disk.interface, disk.name).as_bytes()),
            Self::FibreChannel(disk) => sha256_hex(disk.name.as_bytes()),
        }
    }

    /// The secret required to attach it.
    #[must_use]
    pub fn secret(&self) -> Option<&(String, String)> {
        match self {
            Self::Iscsi(disk) => disk.secret.as_ref(),
            Self::FibreChannel(_) => None,
        }
    }

    /// Names below `/dev/disk` that link to the attached disk, in order of preference; `*` is a wildcard.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        match self {
            Self::Iscsi(disk) => disk.every_link(),
            Self::FibreChannel(disk) => {
                let port = |(name, lun): &(String, i32)| {
                    let name = name.strip_prefix("0x").unwrap_or(name);
                    format!("by-path/*-fc-0x{name}-lun-{lun}")
                };
                let id = |id: &String| format!("by-id/scsi-{}", id.replace(' ', "_"));
                disk.targets.iter().map(port).chain(disk.ids.iter().map(id)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_named_by_its_disk() {
        let of = |lun, interface: &str| {
            let name = format!("10.0.0.1:iqn.2003-04.com.example:x:{lun}");
            let disk = Iscsi { name, lun, interface: interface.into(), ..Iscsi::default() };
            AttachedDisk::Iscsi(disk).mount_name()
        };
        assert_eq!(of(0, "default"), of(0, "default"));
        assert!(of(0, "default") != of(1, "default") && of(0, "default") != of(0, "own"));
        let name = |name: &str| FibreChannel { name: name.into(), ..FibreChannel::default() };
        let [one, other] = ["[a]:0", "../../x"].map(|of| AttachedDisk::FibreChannel(name(of)));
        assert_ne!(one.mount_name(), other.mount_name());
        assert!(!other.mount_name().contains('/'));
    }

    #[test]
    fn disks_of_a_storage_network_are_found_by_port_or_by_identifier() {
        let source = FCVolumeSource {
            target_wwns: vec!["50060E801049CFD1".into()],
            lun: Some(2),
            ..FCVolumeSource::default()
        };
        let (disk, ..) = fibre_channel(&source).unwrap();
        assert_eq!(disk.links(), ["by-path/*-fc-0x50060e801049cfd1-lun-2"]);
        assert_eq!(disk.name(), "[50060E801049CFD1]:2");
        let source = FCVolumeSource { wwids: vec!["36 00a".into()], ..FCVolumeSource::default() };
        let (disk, ..) = fibre_channel(&source).unwrap();
        assert_eq!(disk.links(), ["by-id/scsi-36_00a"]);
        assert_eq!(disk.name(), "[36 00a]");
    }

    #[test]
    fn a_pods_disk_is_a_persistent_volumes_with_a_secret_of_its_namespace() {
        let source = ISCSIVolumeSource {
            target_portal: "10.0.0.1".into(),
            iqn: "iqn.2003-04.com.example:x".into(),
            lun: 3,
            fs_type: "xfs".into(),
            chap_auth_session: true,
            secret_ref: Some(LocalObjectReference { name: "chap".into() }),
            ..ISCSIVolumeSource::default()
        };
        let mut pod = Pod::default();
        pod.metadata.namespace = "ns".into();
        let mut volume = ApiVolume::default();
        volume.volume_source.iscsi = Some(Box::new(source));
        let (disk, fs_type, _) = from_pod(&pod, &volume).unwrap().unwrap();
        assert_eq!(disk.name(), "10.0.0.1:iqn.2003-04.com.example:x:3");
        assert_eq!(disk.secret(), Some(&("ns".to_owned(), "chap".to_owned())));
        assert_eq!(fs_type, "xfs");
    }
}
