//! Measures the node on request: cgroups, file systems and interfaces from the kernel, writable
//! layers from the runtime. One call to the runtime; the rest is blocking IO off the async threads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_host::cgroup_stats::{self, CgroupStats};
use agent_host::cgroups::Cgroups;
use agent_host::disk_usage::{self, DiskUsage};
use agent_host::{machine, net_counters, process};
use agent_node::cgroup::{CgroupManager, CgroupName};
use agent_node::qos::{QosClass, qos_class};
use agent_pod::translate::log_directory;
use agent_runtime::runtime::ContainerUsage;
use agent_runtime::{ImageRuntime, UsageReader};
use agent_volume::open_volume::{self, OpenVolume};
use proto_api::core::v1::Pod;
use proto_daemon::exit::chain;
use proto_daemon::{mountinfo, panics};

use super::mount_queries::MountQueries;
use super::stats::{
    ContainerStats, Counted, FsUsage, NodeStats, PodStats, SystemStats, Usage, VolumeStats,
};
use super::view::ViewError;

/// The paths and cgroups to measure.
#[derive(Clone, Debug)]
pub struct MeasuredPaths {
    /// Name of the node.
    pub node: String,
    /// Name of the agent in the list of system daemons.
    pub agent: String,
    /// The agent's root directory; its file system is the node's.
    pub root_dir: PathBuf,
    /// Directory of the logs of pods.
    pub pod_logs_dir: PathBuf,
    /// The cgroup hierarchies; without them only the runtime's figures are reported.
    pub cgroups: Option<Cgroups>,
    /// Parent of the pods' cgroups.
    pub cgroup_root: String,
    /// The cgroup driver.
    pub driver: CgroupManager,
    /// How long the measured size of a directory is reused.
    pub disk_period: Duration,
}

/// Timeout for statistics of a network or FUSE volume.
const PATIENCE: Duration = Duration::from_millis(500);

/// Measures, and caches what rates and directory sizes need.
#[derive(Debug)]
pub struct Measure {
    sites: MeasuredPaths,
    /// CPU times of the previous pass.
    last: CpuTimes,
    disks: Mutex<BTreeMap<PathBuf, (Instant, DiskUsage)>>,
    looks: MountQueries,
}

/// CPU time in nanoseconds by container id, with the time of measurement.
#[derive(Debug, Default)]
pub struct CpuTimes(Mutex<BTreeMap<String, (i64, u64)>>);

impl Measure {
    /// Nothing is measured before the first request.
    pub fn new(sites: MeasuredPaths) -> Self {
        Self {
            sites,
            last: CpuTimes::default(),
            disks: Mutex::default(),
            looks: MountQueries::default(),
        }
    }

    /// Measures the node and these pods.
    pub async fn node(
        self: &Arc<Self>,
        usage: &dyn UsageReader,
        images: &dyn ImageRuntime,
        pods: Vec<Pod>,
    ) -> Result<NodeStats, ViewError> {
        // Without the runtime's answer the kernel's figures are still reported.
        let layers = usage.usage().await.unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "cannot get usage of writable layers from the runtime; they are left out"
            );
            Vec::new()
        });
        let images = images.image_filesystems().await.unwrap_or_default().into_iter().next();
        let measure = self.clone();
        let measured = panics::spawn_blocking(move || {
            let image_fs = images.map(|found| {
                let fs = file_system(Path::new(&found.mountpoint)).unwrap_or_default();
                FsUsage { used_bytes: found.used_bytes, inodes_used: found.inodes_used, ..fs }
            });
            measure.measure(&pods, &layers).map(|stats| NodeStats { image_fs, ..stats })
        });
        measured
            .await
            .map_err(|error| ViewError::Failed(format!("the measurement panicked: {error}")))?
    }

    fn measure(&self, pods: &[Pod], layers: &[ContainerUsage]) -> Result<NodeStats, ViewError> {
        let now = nanos_since_1970();
        let machine = machine::usage().map_err(|error| ViewError::Failed(chain(&error)))?;
        let root = self.counted("/");
        let used = machine.memory_total_bytes.saturating_sub(machine.memory_available_bytes);
        let node = root.as_ref().map_or_else(CgroupStats::default, |root| root.stats.clone());
        let working_set = if root.is_some() { node.working_set_bytes } else { used };
        let usage = Usage {
            cpu_nanos: machine.cpu_nanos,
            cpu_nanos_per_sec: self.last.rate("", now, machine.cpu_nanos),
            memory_bytes: if root.is_some() { node.memory_bytes } else { used },
            working_set_bytes: working_set,
            rss_bytes: node.rss_bytes,
            available_bytes: Some(machine.memory_total_bytes.saturating_sub(working_set)),
            page_faults: root.is_some().then_some(node.page_faults),
            at_nanos: now,
        };
        let fs = file_system(&self.sites.root_dir);
        let foreign = foreign_mounts(&self.sites.root_dir.join("pods"));
        let mut looked = Looked { measure: self, seen: Vec::new(), foreign, now, fs };
        let pods: Vec<_> = pods.iter().filter_map(|pod| looked.pod(pod, layers)).collect();
        let seen = looked.seen;
        self.forget_but(&seen, &pods);
        Ok(NodeStats {
            name: self.sites.node.clone(),
            booted: boot_time(),
            usage,
            cgroup: root,
            fs,
            image_fs: None,
            network: net_counters::read_process(None),
            tasks: Some((machine.tasks, machine.tasks_max)),
            machine: (processors(), machine.memory_total_bytes),
            system: self.system(now),
            pods,
        })
    }

    fn counted(&self, place: &str) -> Option<Counted> {
        let stats = cgroup_stats::read(self.sites.cgroups.as_ref()?, place)?;
        Some(Counted { place: place.to_owned(), stats })
    }

    /// The pods' cgroup as a whole, and the agent itself.
    fn system(&self, now: i64) -> Vec<SystemStats> {
        let pods = self.counted(&CgroupName::pods(&self.sites.cgroup_root).path(self.sites.driver));
        let pods = pods.map(|counted| SystemStats {
            name: "pods".to_owned(),
            started: counted.stats.made,
            usage: self.usage("pods", &counted.stats, now),
            cgroup: Some(counted),
        });
        let own = process::own_usage().map(|own| SystemStats {
            name: self.sites.agent.clone(),
            started: 0,
            usage: Usage {
                at_nanos: now,
                cpu_nanos: own.cpu_nanos,
                cpu_nanos_per_sec: self.last.rate("agent", now, own.cpu_nanos),
                memory_bytes: own.rss_bytes,
                working_set_bytes: own.rss_bytes,
                rss_bytes: own.rss_bytes,
                ..Usage::default()
            },
            cgroup: None,
        });
        pods.into_iter().chain(own).collect()
    }

    fn usage(&self, id: &str, stats: &CgroupStats, now: i64) -> Usage {
        Usage {
            at_nanos: now,
            cpu_nanos: stats.cpu_nanos,
            cpu_nanos_per_sec: self.last.rate(id, now, stats.cpu_nanos),
            memory_bytes: stats.memory_bytes,
            working_set_bytes: stats.working_set_bytes,
            rss_bytes: stats.rss_bytes,
            available_bytes: stats
                .memory_limit
                .map(|limit| limit.saturating_sub(stats.working_set_bytes)),
            page_faults: Some(stats.page_faults),
        }
    }

    /// The size of a directory, measured again if the last measurement is too old.
    fn disk(
        &self,
        directory: &Path,
        look: impl FnOnce() -> rustix::io::Result<DiskUsage>,
    ) -> DiskUsage {
        let known =
            self.disks.lock().unwrap_or_else(PoisonError::into_inner).get(directory).copied();
        if let Some((at, known)) = known
            && at.elapsed() < self.sites.disk_period
        {
            return known;
        }
        // A directory that cannot be opened counts as empty.
        let found = look().unwrap_or_default();
        let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
        disks.insert(directory.to_owned(), (Instant::now(), found));
        found
    }

    fn forget_but(&self, seen: &[PathBuf], pods: &[PodStats]) {
        self.disks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|path, _| seen.contains(path));
        let mut last = self.last.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lives = |id: &str| {
            pods.iter().any(|pod| {
                pod.uid == id || pod.containers.iter().any(|container| container.id == id)
            })
        };
        last.retain(|id, _| matches!(id.as_str(), "" | "pods" | "agent") || lives(id));
    }
}

/// In-memory file systems, which never hang.
const IN_MEMORY: [&[u8]; 3] = [b"tmpfs", b"ramfs", b"hugetlbfs"];

/// Mounts of other file systems below the pods' directory: `<uid>/volumes/<plugin>/<volume>...`
fn foreign_mounts(pods: &Path) -> Vec<PathBuf> {
    let Ok(pods) = pods.canonicalize() else { return Vec::new() };
    let all = mountinfo::read().unwrap_or_default().into_iter();
    let others = all.filter(|mount| !IN_MEMORY.contains(&mount.kind.as_slice()));
    others.filter_map(|mount| Some(mount.point.strip_prefix(&pods).ok()?.to_owned())).collect()
}

/// One pass over the pods.
struct Looked<'a> {
    measure: &'a Measure,
    /// Directories that were measured.
    seen: Vec<PathBuf>,
    /// Mounts in pods' directories that may hang, relative to the pods' directory.
    foreign: Vec<PathBuf>,
    now: i64,
    /// The node's own file system.
    fs: Option<FsUsage>,
}

impl Looked<'_> {
    /// Statistics of a pod with running containers.
    fn pod(&mut self, pod: &Pod, layers: &[ContainerUsage]) -> Option<PodStats> {
        let sites = &self.measure.sites;
        let meta = &pod.metadata;
        let place = CgroupName::pod(&sites.cgroup_root, class(pod), &meta.uid).path(sites.driver);
        let counted = self.measure.counted(&place);
        let own = layers.iter().filter(|layer| layer.pod_uid == meta.uid);
        let containers: Vec<_> = own.map(|layer| self.container(pod, &place, layer)).collect();
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

    fn container(&mut self, pod: &Pod, place: &str, layer: &ContainerUsage) -> ContainerStats {
        let sites = &self.measure.sites;
        let counted = sites
            .cgroups
            .as_ref()
            .and_then(|cgroups| cgroup_stats::place_of_container(cgroups, place, &layer.id));
        let counted = counted.and_then(|place| self.measure.counted(&place));
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
        ContainerStats {
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
        }
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

impl CpuTimes {
    /// CPU time per second since the previous call for `id`.
    fn rate(&self, id: &str, at: i64, cpu_nanos: u64) -> Option<u64> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (then, before) = last.insert(id.to_owned(), (at, cpu_nanos))?;
        let passed = u128::try_from(at.checked_sub(then)?).ok().filter(|passed| *passed > 0)?;
        let spent = u128::from(cpu_nanos.checked_sub(before)?);
        u64::try_from(spent.checked_mul(1_000_000_000)?.checked_div(passed)?).ok()
    }
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

/// The QoS class from the status, which never changes, else computed.
fn class(pod: &Pod) -> QosClass {
    match pod.status.qos_class.as_str() {
        "Guaranteed" => QosClass::Guaranteed,
        "Burstable" => QosClass::Burstable,
        "BestEffort" => QosClass::BestEffort,
        _ => qos_class(pod),
    }
}

fn file_system(path: &Path) -> Option<FsUsage> {
    machine::disk_room(path).ok().map(usage_of)
}

fn usage_of(disk: machine::DiskRoom) -> FsUsage {
    FsUsage {
        capacity_bytes: disk.total_bytes,
        available_bytes: disk.available_bytes,
        used_bytes: disk.total_bytes.saturating_sub(disk.available_bytes),
        inodes: disk.inodes,
        inodes_free: disk.inodes_free,
        inodes_used: disk.inodes.saturating_sub(disk.inodes_free),
    }
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

fn nanos_since_1970() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Boot time in seconds since 1970; 0 if the kernel does not report it.
fn boot_time() -> i64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "));
    line.and_then(|secs| secs.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_measurements_in_order() {
        let last = CpuTimes::default();
        let second = 1_000_000_000;
        assert_eq!(last.rate("c", 10 * second, 5), None);
        assert_eq!(last.rate("c", 12 * second, 1_000_000_005), Some(500_000_000));
        assert_eq!(last.rate("c", 12 * second, 1_000_000_005), None, "no time has passed");
        assert_eq!(last.rate("c", 13 * second, 7), None, "a restart counts from 0");
    }

    fn sites(root: &Path) -> MeasuredPaths {
        MeasuredPaths {
            node: "n1".into(),
            agent: "agent".into(),
            root_dir: root.join("root"),
            pod_logs_dir: root.join("logs"),
            cgroups: None,
            cgroup_root: "/".into(),
            driver: CgroupManager::Cgroupfs,
            disk_period: Duration::from_secs(60),
        }
    }

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
        let looked = Looked { measure: &measure, seen: Vec::new(), foreign, now: 0, fs: None };
        let is_shown = |volume: &str| looked.top("u-1", volume).is_some();
        let began = Instant::now();
        assert_eq!(["silent", "well", "tmp"].map(is_shown), [false, true, true]);
        assert!(began.elapsed() < PATIENCE, "it is not waited for again");
        drop(answer);
    }

    #[test]
    fn a_pod_is_measured_from_trees_and_directories() {
        let root = tempfile::tempdir().expect("tempdir");
        let put = |path: &str, content: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("made");
            std::fs::write(path, content).expect("written");
        };
        put("cgroup/kubepods/besteffort/podu-1/memory.current", "500\n");
        put("cgroup/kubepods/besteffort/podu-1/cpu.stat", "usage_usec 7\n");
        put("cgroup/kubepods/besteffort/podu-1/id-1/memory.current", "300\n");
        put("cgroup/kubepods/besteffort/podu-1/id-1/cgroup.procs", "");
        put("root/pods/u-1/volumes/empty/tmp/file", &"x".repeat(9000));
        put("logs/a_web_u-1/c/0.log", &"x".repeat(5000));
        let mount = root.path().join("cgroup");
        let cgroups = Some(Cgroups::new(agent_host::cgroups::Layout::V2 { mount }));
        let sites = MeasuredPaths { cgroups, ..sites(root.path()) };
        let mut pod = Pod::default();
        pod.metadata.name = "web".into();
        pod.metadata.namespace = "a".into();
        pod.metadata.uid = "u-1".into();
        pod.spec.volumes =
            vec![proto_api::core::v1::Volume { name: "tmp".into(), ..Default::default() }];
        let layer = ContainerUsage {
            id: "id-1".into(),
            name: "c".into(),
            pod_uid: "u-1".into(),
            writable_bytes: 100,
            ..ContainerUsage::default()
        };
        let stats =
            Measure::new(sites).measure(&[pod, Pod::default()], &[layer]).expect("measured");
        let [pod] = &stats.pods[..] else { panic!("one pod runs: {:?}", stats.pods) };
        assert_eq!(
            pod.usage.as_ref().map(|usage| (usage.memory_bytes, usage.cpu_nanos)),
            Some((500, 7000))
        );
        assert_eq!(pod.containers[0].usage.memory_bytes, 300);
        let logs = pod.containers[0].logs.expect("logs").used_bytes;
        let volume = pod.volumes[0].fs.used_bytes;
        assert!(logs >= 5000 && volume >= 9000, "{logs} {volume}");
        assert_eq!(pod.ephemeral.expect("sum").used_bytes, logs + volume + 100);
        assert!(stats.fs.is_some() && stats.machine.0 > 0 && stats.booted > 0);
    }
}
