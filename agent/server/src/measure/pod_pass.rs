//! One pass over the pods: their cgroups, containers, networks and volumes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_host::cgroup_stats;
use agent_host::disk_usage::{self, DiskUsage};
use agent_host::{machine, net_counters};
use agent_node::cgroup::CgroupName;
use agent_node::qos::assigned_qos_class;
use agent_pod::translate::log_directory;
use agent_runtime::runtime::ContainerUsage;
use agent_volume::open_volume::{self, OpenVolume};
use proto_api::core::v1::Pod;
use proto_daemon::mountinfo;

use super::{Measure, usage_of};
use crate::stats::{ContainerStats, FsUsage, PodStats, Usage, VolumeStats};

/// Timeout for statistics of a network or FUSE volume.
const PATIENCE: Duration = Duration::from_millis(500);

/// In-memory file systems, which never hang.
const IN_MEMORY: [&[u8]; 3] = [b"tmpfs", b"ramfs", b"hugetlbfs"];

/// One pass over the pods.
pub(super) struct PodPass<'a> {
    measure: &'a Measure,
    /// Directories that were measured.
    seen: Vec<PathBuf>,
    /// Mounts in pods' directories that may hang, relative to the pods' directory.
    foreign: Vec<PathBuf>,
    now: i64,
    /// The node's own file system.
    fs: Option<FsUsage>,
}

impl<'a> PodPass<'a> {
    pub(super) fn new(measure: &'a Measure, now: i64, fs: Option<FsUsage>) -> Self {
        let foreign = foreign_mounts(&measure.sites.root_dir.join("pods"));
        Self { measure, seen: Vec::new(), foreign, now, fs }
    }

    /// The directories that were measured.
    pub(super) fn into_seen(self) -> Vec<PathBuf> {
        self.seen
    }

    /// Statistics of a pod with running containers.
    pub(super) fn pod(&mut self, pod: &Pod, layers: &[ContainerUsage]) -> Option<PodStats> {
        let sites = &self.measure.sites;
        let meta = &pod.metadata;
        let place = CgroupName::pod(&sites.cgroup_root, assigned_qos_class(pod), &meta.uid)
            .path(sites.driver);
        let counted = self.measure.counted(&place);
        let own = layers.iter().filter(|layer| layer.pod_uid == meta.uid);
        let containers: Vec<_> =
            own.filter_map(|layer| self.container(pod, &place, layer)).collect();
        if counted.is_none() && containers.is_empty() {
            return None;
        }
        let network =
            if pod.spec.host_network { Vec::new() } else { self.network(&place, &containers) };
        let volumes = self.volumes(pod);
        let usage =
            counted.as_ref().map(|counted| self.measure.usage(&meta.uid, &counted.stats, self.now));
        Some(PodStats {
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            started: pod.status.start_time.and_then(proto_api::Time::unix).unwrap_or(0),
            usage: usage.or_else(|| Some(sum(&containers)).filter(|_| !containers.is_empty())),
            network,
            ephemeral: self.ephemeral(&containers, &volumes),
            volumes,
            containers,
            cgroup: counted,
        })
    }

    /// Statistics of a container with processes. Of one that has ended the runtime knows the writable layer only: as in the kubelet it is left out, also where
    /// the container has been restarted.
    fn container(
        &mut self,
        pod: &Pod,
        place: &str,
        layer: &ContainerUsage,
    ) -> Option<ContainerStats> {
        let sites = &self.measure.sites;
        let counted = sites
            .cgroups
            .as_ref()
            .and_then(|cgroups| cgroup_stats::place_of_container(cgroups, place, &layer.id));
        let counted = counted.and_then(|place| self.measure.counted(&place));
        if counted.is_none() && layer.measured_at == 0 {
            return None;
        }
        let usage = match &counted {
            Some(counted) => self.measure.usage(&layer.id, &counted.stats, self.now),
            None => Usage {
                at_nanos: layer.measured_at,
                cpu_nanos: layer.cpu_nanos,
                cpu_nanos_per_sec: self.measure.last.rate(
                    &layer.id,
                    layer.measured_at,
                    layer.cpu_nanos,
                ),
                memory_bytes: layer.usage_bytes,
                working_set_bytes: layer.working_set_bytes,
                rss_bytes: layer.rss_bytes,
                ..Usage::default()
            },
        };
        let logs = PathBuf::from(log_directory(&sites.pod_logs_dir.to_string_lossy(), pod))
            .join(&layer.name);
        let logs = self.disk(logs.clone(), || disk_usage::measure(&logs));
        let of_node = self.fs.unwrap_or_default();
        let statuses =
            pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
        let status = statuses
            .chain(&pod.status.ephemeral_container_statuses)
            .find(|status| status.name == layer.name);
        let running = status.and_then(|status| status.state.running.as_ref());
        let started = running.and_then(|running| running.started_at.unix());
        Some(ContainerStats {
            name: layer.name.clone(),
            id: layer.id.clone(),
            image: status.map(|status| status.image.clone()).unwrap_or_default(),
            started: started.or(counted.as_ref().map(|counted| counted.stats.made)).unwrap_or(0),
            usage,
            rootfs: Some(FsUsage {
                used_bytes: layer.writable_bytes,
                inodes_used: layer.writable_inodes,
                ..of_node
            }),
            logs: Some(FsUsage { used_bytes: logs.bytes, inodes_used: logs.inodes, ..of_node }),
            cgroup: counted,
        })
    }

    /// Read through a process of the pod: of the sandbox, whose cgroup belongs to no container, or
    /// of any container.
    fn network(
        &self,
        place: &str,
        containers: &[ContainerStats],
    ) -> Vec<net_counters::InterfaceCounters> {
        let Some(cgroups) = &self.measure.sites.cgroups else { return Vec::new() };
        let children = cgroups.children(place);
        let (of_containers, others): (Vec<_>, Vec<_>) = children
            .iter()
            .partition(|child| containers.iter().any(|container| child.contains(&container.id)));
        let mut processes = others
            .into_iter()
            .chain(of_containers)
            .filter_map(|child| cgroup_stats::any_process(cgroups, &format!("{place}/{child}")));
        processes.next().map(|pid| net_counters::read_process(Some(pid))).unwrap_or_default()
    }

    /// Opens the root of a volume and reads its file system's usage. Mounts that may hang get a
    /// short timeout.
    fn top(&self, uid: &str, volume: &str) -> Option<(OpenVolume, FsUsage)> {
        let is_there = |point: &&PathBuf| {
            point.starts_with(uid) && point.iter().nth(3) == Some(volume.as_ref())
        };
        let foreign = self.foreign.iter().find(is_there);
        let (root, uid, volume) =
            (self.measure.sites.root_dir.clone(), uid.to_owned(), volume.to_owned());
        let look = move || {
            let top = open_volume::open_volume(&root, &uid, &volume, None).ok()??;
            let fs = machine::open_disk_room(&top.directory).map(usage_of).ok()?;
            Some((top, fs))
        };
        match foreign {
            Some(point) => self.measure.looks.at(point, PATIENCE, look)?,
            None => look(),
        }
    }

    fn volumes(&mut self, pod: &Pod) -> Vec<VolumeStats> {
        let root = self.measure.sites.root_dir.clone();
        let uid = &pod.metadata.uid;
        let mut stats = Vec::new();
        for volume in &pod.spec.volumes {
            let Some((OpenVolume { directory, own_fs }, fs)) = self.top(uid, &volume.name) else {
                continue;
            };
            let used = if own_fs {
                DiskUsage { bytes: fs.used_bytes, inodes: fs.inodes_used }
            } else {
                let remembered_as = root.join("pods").join(uid).join(&volume.name);
                self.disk(remembered_as, || disk_usage::measure_open(directory))
            };
            let claim = volume
                .volume_source
                .persistent_volume_claim
                .as_ref()
                .map(|claim| claim.claim_name.clone());
            let ephemeral = volume
                .volume_source
                .ephemeral
                .as_ref()
                .map(|_| format!("{}-{}", pod.metadata.name, volume.name));
            stats.push(VolumeStats {
                name: volume.name.clone(),
                claim: claim.or(ephemeral),
                fs: FsUsage { used_bytes: used.bytes, inodes_used: used.inodes, ..fs },
                own_fs,
            });
        }
        stats
    }

    /// Usage of the node's disk by a pod: layers, logs and local volumes.
    fn ephemeral(&self, containers: &[ContainerStats], volumes: &[VolumeStats]) -> Option<FsUsage> {
        let of_containers =
            containers.iter().flat_map(|container| [container.rootfs, container.logs]).flatten();
        let of_volumes = volumes.iter().filter(|volume| !volume.own_fs).map(|volume| volume.fs);
        let add = |sum: FsUsage, one: FsUsage| FsUsage {
            used_bytes: sum.used_bytes.saturating_add(one.used_bytes),
            inodes_used: sum.inodes_used.saturating_add(one.inodes_used),
            ..sum
        };
        let none = FsUsage { used_bytes: 0, inodes_used: 0, ..self.fs? };
        Some(of_containers.chain(of_volumes).fold(none, add))
    }

    fn disk(
        &mut self,
        directory: PathBuf,
        look: impl FnOnce() -> rustix::io::Result<DiskUsage>,
    ) -> DiskUsage {
        let found = self.measure.disk(&directory, look);
        self.seen.push(directory);
        found
    }
}

/// Mounts of other file systems below the pods' directory: `<uid>/volumes/<plugin>/<volume>...`
fn foreign_mounts(pods: &Path) -> Vec<PathBuf> {
    let Ok(pods) = pods.canonicalize() else { return Vec::new() };
    let all = mountinfo::read().unwrap_or_default().into_iter();
    let others = all.filter(|mount| !IN_MEMORY.contains(&mount.kind.as_slice()));
    others.filter_map(|mount| Some(mount.point.strip_prefix(&pods).ok()?.to_owned())).collect()
}

/// The sum over containers, for a pod whose cgroup cannot be read.
fn sum(containers: &[ContainerStats]) -> Usage {
    containers.iter().map(|container| &container.usage).fold(Usage::default(), |sum, one| Usage {
        at_nanos: sum.at_nanos.max(one.at_nanos),
        cpu_nanos: sum.cpu_nanos.saturating_add(one.cpu_nanos),
        memory_bytes: sum.memory_bytes.saturating_add(one.memory_bytes),
        working_set_bytes: sum.working_set_bytes.saturating_add(one.working_set_bytes),
        rss_bytes: sum.rss_bytes.saturating_add(one.rss_bytes),
        ..sum
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::sites;
    use super::*;

    /// A hanging volume only affects its own figures, and holds one thread however often it is
    /// measured.
    #[test]
    fn a_volume_that_hangs_is_left_out() {
        let root = tempfile::tempdir().expect("tempdir");
        for volume in ["nfs/silent", "nfs/well", "empty/tmp"] {
            let at = root.path().join("root/pods/u-1/volumes").join(volume);
            std::fs::create_dir_all(at).expect("made");
        }
        let measure = Measure::new(sites(root.path()));
        let foreign =
            ["u-1/volumes/nfs/silent", "u-1/volumes/nfs/well"].map(PathBuf::from).to_vec();
        let (answer, asked) = std::sync::mpsc::channel::<()>();
        let hang = move || {
            let _ = asked.recv();
        };
        assert_eq!(measure.looks.at(&foreign[0], PATIENCE, hang), None);
        let pass = PodPass { measure: &measure, seen: Vec::new(), foreign, now: 0, fs: None };
        let is_shown = |volume: &str| pass.top("u-1", volume).is_some();
        // A second query would not hang, and show it.
        assert!(!is_shown("silent"), "it is queried again");
        // On a busy machine one may not be answered in time.
        let is_shown_once = |volume: &str| {
            let mut looks = (0..600).map(|_| {
                std::thread::sleep(Duration::from_millis(1));
                is_shown(volume)
            });
            looks.any(|shown| shown)
        };
        assert_eq!(["well", "tmp"].map(is_shown_once), [true, true]);
        drop(answer);
    }
}
