//! Measures the node on request: cgroups, file systems and interfaces from the kernel, writable
//! layers from the runtime. One call to the runtime; the rest is blocking IO off the async threads.

mod cpu_times;
mod pod_pass;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent_host::cgroup_stats::{self, CgroupStats};
use agent_host::cgroups::Cgroups;
use agent_host::disk_usage::DiskUsage;
use agent_host::{machine, net_counters, process};
use agent_node::cgroup::{CgroupManager, CgroupName};
use agent_runtime::runtime::ContainerUsage;
use agent_runtime::{ImageRuntime, UsageReader};
use procfs::boot_time_secs;
use proto_api::core::v1::Pod;
use proto_daemon::blocking_shares::{self, WorkOwner};
use proto_daemon::exit::chain;

use super::mount_queries::MountQueries;
use super::stats::{Counted, FsUsage, NodeStats, PodStats, SystemStats, Usage};
use super::view::ViewError;
use cpu_times::CpuTimes;
use pod_pass::PodPass;

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

/// Measures, and caches what rates and directory sizes need.
#[derive(Debug)]
pub struct Measure {
    sites: MeasuredPaths,
    /// CPU times of the previous pass.
    last: CpuTimes,
    disks: Mutex<BTreeMap<PathBuf, (Instant, DiskUsage)>>,
    looks: MountQueries,
}

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
        let measured = blocking_shares::run(share(), move || {
            let image_fs = images.map(|found| {
                let fs = file_system(Path::new(&found.mountpoint)).unwrap_or_default();
                FsUsage { used_bytes: found.used_bytes, inodes_used: found.inodes_used, ..fs }
            });
            measure.measure(&pods, &layers).map(|stats| NodeStats { image_fs, ..stats })
        });
        measured.await.map_err(|error| {
            ViewError::Failed(format!("cannot measure the pods: {}", chain(&error)))
        })?
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
        let mut pass = PodPass::new(self, now, fs);
        let pods: Vec<_> = pods.iter().filter_map(|pod| pass.pod(pod, layers)).collect();
        self.forget_but(&pass.into_seen(), &pods);
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
        let lives = |id: &str| {
            pods.iter().any(|pod| {
                pod.uid == id || pod.containers.iter().any(|container| container.id == id)
            })
        };
        self.last.retain(|id| matches!(id, "" | "pods" | "agent") || lives(id));
    }
}

/// The share of the walks over the pods' files: requests wait for each other, and nothing else does for them.
fn share() -> WorkOwner {
    WorkOwner { group: "node".to_owned(), name: "statistics".to_owned() }
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
    boot_time_secs().ok().and_then(|secs| i64::try_from(secs).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sites(root: &Path) -> MeasuredPaths {
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

    /// Each request may walk over the files of all pods.
    #[tokio::test]
    async fn statistics_take_a_bounded_share_of_the_threads() {
        let root = tempfile::tempdir().expect("tempdir");
        let runtime = agent_runtime::fake::FakeRuntime::new().0;
        let measure = Arc::new(Measure::new(sites(root.path())));
        let mut hung = Vec::new();
        for _ in 0..2 {
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let (begun, begins) = tokio::sync::oneshot::channel();
            tokio::spawn(blocking_shares::run(share(), move || {
                let _ = begun.send(());
                let _ = wait.recv();
            }));
            begins.await.expect("it begins");
            hung.push(release);
        }
        let watched = Duration::from_millis(200);
        let waits = measure.node(&runtime, &runtime, Vec::new());
        assert!(tokio::time::timeout(watched, waits).await.is_err(), "two are under way");
        drop(hung);
        measure.node(&runtime, &runtime, Vec::new()).await.expect("measured");
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
        // Ended instances: of this container, and of another one.
        let mut ended = [layer.clone(), layer.clone()];
        (ended[0].id, ended[1].id) = ("id-0".into(), "id-2".into());
        ended[1].name = "setup".into();
        let layers = [ended[0].clone(), layer, ended[1].clone()];
        let stats = Measure::new(sites).measure(&[pod, Pod::default()], &layers).expect("measured");
        let [pod] = &stats.pods[..] else { panic!("one pod runs: {:?}", stats.pods) };
        let ids: Vec<&str> = pod.containers.iter().map(|container| &*container.id).collect();
        assert_eq!(ids, ["id-1"], "what has ended has no usage");
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
