//! Disks that pods name themselves and that a node cannot give to two of them.

use std::collections::BTreeMap;

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

/// The disks of a node's pods, by kind and name. A question costs as much as the disk that is asked for has names.
#[derive(Clone, Debug, Default)]
pub struct Disks(BTreeMap<&'static str, BTreeMap<String, Users>>);

/// Who has a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Users {
    /// Pods that only read, and may share it.
    Readers,
    /// Somebody who shares it with nobody.
    Alone,
}

impl Disk {
    fn users(&self) -> Users {
        if self.readers_share && self.reads { Users::Readers } else { Users::Alone }
    }
}

impl Disks {
    /// Gives a disk to a pod.
    pub fn add(&mut self, disk: &Disk) {
        let of_kind = self.0.entry(disk.kind).or_default();
        for name in &disk.names {
            let users = of_kind.entry(name.clone()).or_insert(Users::Readers);
            if disk.users() == Users::Alone {
                *users = Users::Alone;
            }
        }
    }

    /// Whether a pod cannot have the disk as well.
    pub fn is_refused(&self, disk: &Disk) -> bool {
        let Some(of_kind) = self.0.get(disk.kind) else { return false };
        let mut found = disk.names.iter().filter_map(|name| of_kind.get(name));
        found.any(|users| (*users, disk.users()) != (Users::Readers, Users::Readers))
    }
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
        let conflict = |one: &Disk, other: &Disk| {
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
        assert!(there.is_refused(&disk("gce", "a", true)), "a reader does not hide who writes");
        let wide = |from: usize| Disk {
            names: (from..from + 30_000).map(|nth| nth.to_string()).collect(),
            ..disk("rbd", "", false)
        };
        let begun = std::time::Instant::now();
        there.add(&wide(0));
        assert!(!there.is_refused(&wide(30_000)) && there.is_refused(&wide(29_999)));
        assert!(begun.elapsed().as_secs() < 5, "names do not look at each other");
    }
}
