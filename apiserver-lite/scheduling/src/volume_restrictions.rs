//! The filter VolumeRestrictions: disks in pod specs that two pods of a node cannot share.

use std::collections::BTreeMap;

use proto_api::core::v1::Pod;

/// A disk in a pod spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDisk {
    /// The volume plugin.
    kind: &'static str,
    /// The names of the disk; one in common means the same disk.
    names: Vec<String>,
    /// Whether read-only pods can share it.
    shareable: bool,
    /// Whether the pod mounts it read-only.
    read_only: bool,
}

/// The disks in a pod spec.
pub fn of_pod(pod: &Pod) -> Vec<PodDisk> {
    let mut disks = Vec::new();
    for volume in &pod.spec.volumes {
        let source = &volume.volume_source;
        let disk = |kind, names: Vec<String>, shareable, read_only| PodDisk {
            kind,
            names,
            shareable,
            read_only,
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

/// The disks in use on a node, by volume plugin and name. A lookup takes one step per name of the disk.
#[derive(Clone, Debug, Default)]
pub struct Disks(BTreeMap<&'static str, BTreeMap<String, Sharing>>);

/// How a disk is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sharing {
    /// By pods that share it read-only.
    ReadOnly,
    /// By one pod that excludes others.
    Exclusive,
}

impl PodDisk {
    fn sharing(&self) -> Sharing {
        if self.shareable && self.read_only { Sharing::ReadOnly } else { Sharing::Exclusive }
    }
}

impl Disks {
    /// Adds a disk that a pod of the node mounts.
    pub fn add(&mut self, disk: &PodDisk) {
        let of_kind = self.0.entry(disk.kind).or_default();
        for name in &disk.names {
            proto_api::count_steps!(1);
            let sharing = of_kind.entry(name.clone()).or_insert(Sharing::ReadOnly);
            if disk.sharing() == Sharing::Exclusive {
                *sharing = Sharing::Exclusive;
            }
        }
    }

    /// Whether a pod on the node excludes another use of the disk.
    pub fn is_refused(&self, disk: &PodDisk) -> bool {
        let Some(of_kind) = self.0.get(disk.kind) else { return false };
        let mut found = disk.names.iter().filter_map(|name| {
            proto_api::count_steps!(1);
            of_kind.get(name)
        });
        found.any(|sharing| (*sharing, disk.sharing()) != (Sharing::ReadOnly, Sharing::ReadOnly))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_read_only_pods_share_a_disk() {
        let disk = |kind, name: &str, read_only| PodDisk {
            kind,
            names: vec![name.to_owned()],
            shareable: kind != "ebs",
            read_only,
        };
        let conflict = |one: &PodDisk, other: &PodDisk| {
            let mut there = Disks::default();
            there.add(other);
            there.is_refused(one)
        };
        assert!(conflict(&disk("gce", "a", false), &disk("gce", "a", true)));
        assert!(!conflict(&disk("gce", "a", true), &disk("gce", "a", true)));
        assert!(conflict(&disk("ebs", "a", true), &disk("ebs", "a", true)));
        assert!(!conflict(&disk("gce", "a", false), &disk("gce", "b", false)));
        assert!(!conflict(&disk("gce", "a", false), &disk("iscsi", "a", false)));
        let mut there = Disks::default();
        there.add(&disk("gce", "a", false));
        there.add(&disk("gce", "a", true));
        assert!(
            there.is_refused(&disk("gce", "a", true)),
            "a read-only pod does not replace a writer"
        );
        let wide = |from: usize| PodDisk {
            names: (from..from + 30_000).map(|nth| nth.to_string()).collect(),
            ..disk("rbd", "", false)
        };
        // A step is a name that is looked up.
        let steps = proto_api::steps::count_during(|| {
            there.add(&wide(0));
            assert!(!there.is_refused(&wide(30_000)) && there.is_refused(&wide(29_999)));
        });
        assert!((60_000..=90_000).contains(&steps), "the check is not quadratic: {steps}");
    }
}
