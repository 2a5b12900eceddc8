//! Disks that pods name themselves and that a node cannot give to two of them.

use proto_api::core::v1::Pod;

/// A disk that a pod names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What kind it is.
    kind: &'static str,
    /// Which; any of these names is the disk's.
    names: Vec<String>,
    /// Whether pods that only read may share it.
    readers_share: bool,
    /// Whether the pod only reads.
    reads: bool,
}

/// The disks that a pod names.
pub fn of_pod(pod: &Pod) -> Vec<Disk> {
    let mut disks = Vec::new();
    for volume in &pod.spec.volumes {
        let source = &volume.volume_source;
        let disk = |kind, names: Vec<String>, readers_share, reads| Disk {
            kind,
            names,
            readers_share,
            reads,
        };
        if let Some(gce) = &source.gce_persistent_disk {
            disks.push(disk("gce", vec![gce.pd_name.clone()], true, gce.read_only));
        }
        if let Some(ebs) = &source.aws_elastic_block_store {
            disks.push(disk("ebs", vec![ebs.volume_id.clone()], false, ebs.read_only));
        }
        if let Some(iscsi) = &source.iscsi {
            disks.push(disk("iscsi", vec![iscsi.iqn.clone()], true, iscsi.read_only));
        }
        if let Some(rbd) = &source.rbd {
            let named = |monitor: &String| format!("{monitor} {}/{}", rbd.pool, rbd.image);
            let names = rbd.monitors.iter().map(named).collect();
            disks.push(disk("rbd", names, true, rbd.read_only));
        }
    }
    disks
}

/// Whether a node cannot give both to pods.
pub fn conflict(one: &Disk, other: &Disk) -> bool {
    let same = one.kind == other.kind && one.names.iter().any(|name| other.names.contains(name));
    same && !(one.readers_share && one.reads && other.reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readers_share_a_disk() {
        let disk = |kind, name: &str, reads| Disk {
            kind,
            names: vec![name.to_owned()],
            readers_share: kind != "ebs",
            reads,
        };
        assert!(conflict(&disk("gce", "a", false), &disk("gce", "a", true)));
        assert!(!conflict(&disk("gce", "a", true), &disk("gce", "a", true)));
        assert!(conflict(&disk("ebs", "a", true), &disk("ebs", "a", true)));
        assert!(!conflict(&disk("gce", "a", false), &disk("gce", "b", false)));
        assert!(!conflict(&disk("gce", "a", false), &disk("iscsi", "a", false)));
    }
}
