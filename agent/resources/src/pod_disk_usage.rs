//! Disk usage of pods: logs and `emptyDir` volumes, walked in the background, so that what needs a figure never waits for a walk. Two pods
//! are walked at a time. A walk has a budget of files and time, and the longer it takes the later its pod is walked again. Where pods are
//! about to be ranked by their figures, old ones are renewed first ([`PodDiskUsages::are_recent`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use agent_host::disk_usage::{self, DiskUsage, WalkBudget};
use agent_node::eviction::storage;
use agent_pod::translate::log_directory;
use agent_runtime::UsageReader;
use agent_runtime::runtime::ContainerUsage;
use agent_volume::open_volume;
use agent_volume::sources::VolumePlugin;
use proto_api::core::v1::Pod;
use proto_daemon::blocking_shares::{self, ShareError, WorkOwner};
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Interval of rounds; in each, pods with limits on local storage are walked ...
const ROUND: Duration = Duration::from_secs(10);
/// ... and the others at this interval, as the kubelet does.
const UNLIMITED_PERIOD: Duration = Duration::from_secs(60);
/// Pods walked at a time.
const WALKS_MAX: usize = 2;
/// Most files of one pod that a walk looks at, and its longest time. The figures of a pod with more are lower bounds.
const FILES_MAX: u64 = 5_000_000;
const WALK_MAX: Duration = Duration::from_secs(60);
/// A pod is walked again after this many times the duration of its walk, but not later than after ...
const REST_FACTOR: u32 = 20;
/// ... this time.
const REST_MAX: Duration = Duration::from_secs(600);
/// Timeout of the runtime's figures of writable layers.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Figures of this age rank pods ...
const RECENT: Duration = Duration::from_secs(15);
/// ... and older ones after this time for renewing them, since a walk may take long.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
/// After this time a request to renew is over.
const REQUEST_MAX: Duration = Duration::from_secs(300);

/// Where pods have their files.
#[derive(Clone, Debug)]
pub struct PodDirectories {
    /// The agent's root directory.
    pub root_dir: PathBuf,
    /// Directory of the logs of pods.
    pub pod_logs_dir: String,
}

/// What a pod takes of the node's disk apart from writable layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDiskUsage {
    /// Logs, by name of the container.
    pub logs: BTreeMap<String, DiskUsage>,
    /// `emptyDir` volumes, including those in memory, by name.
    pub volumes: BTreeMap<String, DiskUsage>,
    /// Whether the walk ended with its budget, so that the figures are lower bounds.
    pub is_partial: bool,
}

/// The last measurement of a pod.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The figures.
    pub usage: Arc<PodDiskUsage>,
    /// How long ago its walk began.
    pub age: Duration,
}

/// The last measurement of each pod.
pub struct PodDiskUsages {
    walk: Walk,
    runtime: Arc<dyn UsageReader>,
    started: Instant,
    state: Mutex<State>,
    /// Notified when figures are to be renewed.
    renew: Notify,
}

type Walk = Arc<dyn Fn(&Pod, &mut WalkBudget) -> PodDiskUsage + Send + Sync>;

#[derive(Default)]
struct State {
    pods: BTreeMap<String, KnownPod>,
    /// Usage of writable layers of all pods, from the runtime.
    layers: Arc<Vec<ContainerUsage>>,
    /// Figures from before this time are to be renewed.
    renew_since: Option<Instant>,
}

/// A pod that is or was walked.
struct KnownPod {
    latest: Option<(Arc<PodDiskUsage>, Instant)>,
    /// When it is walked again; `None` while it is walked.
    next: Option<Instant>,
}

impl PodDiskUsages {
    /// Nothing is measured before [`PodDiskUsages::run`].
    pub fn new(directories: PodDirectories, runtime: Arc<dyn UsageReader>) -> Self {
        let walk: Walk =
            Arc::new(move |pod: &Pod, budget: &mut WalkBudget| walk(&directories, pod, budget));
        let (started, renew) = (Instant::now(), Notify::new());
        Self { walk, runtime, started, state: Mutex::default(), renew }
    }

    /// Measures `pods` in rounds for as long as the agent runs. Limits on local storage only matter if `has_limits`.
    pub async fn run(
        self: Arc<Self>,
        pods: impl Fn() -> Vec<Arc<Pod>> + Send,
        has_limits: bool,
        page: TaskStatus,
    ) {
        // Walks end with this task; a walk that has started ends by its budget.
        let mut walks = JoinSet::new();
        loop {
            page.started("round");
            let known = pods();
            let is_limited = |pod: &Pod| has_limits && storage::is_limited(pod);
            if known.iter().any(|pod| is_limited(pod)) {
                self.read_layers().await;
            }
            for pod in self.begin_round(&known) {
                while walks.len() >= WALKS_MAX {
                    walks.join_next().await;
                }
                let period = if is_limited(&pod) { ROUND } else { UNLIMITED_PERIOD };
                walks.spawn(self.clone().measure(pod, period));
            }
            page.done(self.describe());
            // Cancel safe: both arms only time the next round.
            tokio::select! {
                () = tokio::time::sleep(ROUND) => {}
                () = self.renew.notified() => {}
            }
            while walks.try_join_next().is_some() {}
        }
    }

    /// The last measurement of a pod, if there is one.
    pub fn latest(&self, uid: &str) -> Option<Measurement> {
        let (usage, at) = self.lock().pods.get(uid)?.latest.clone()?;
        Some(Measurement { usage, age: at.elapsed() })
    }

    /// Usage of the writable layers of all pods, if any pod has limits.
    pub fn layers(&self) -> Arc<Vec<ContainerUsage>> {
        self.lock().layers.clone()
    }

    /// Whether the figures of these pods are recent enough to rank them. If not, they are renewed; some seconds later they are taken as
    /// they are, because a pod whose walk takes long must not keep others from being evicted.
    pub fn are_recent<'a>(&self, mut uids: impl Iterator<Item = &'a str>) -> bool {
        let mut state = self.lock();
        let is_recent = |uid: &str| {
            let latest = state.pods.get(uid).and_then(|known| known.latest.as_ref());
            latest.is_some_and(|(_, at)| at.elapsed() <= RECENT)
        };
        if uids.all(is_recent) {
            state.renew_since = None;
            return true;
        }
        let since = state.renew_since.filter(|since| since.elapsed() < REQUEST_MAX);
        let since = since.unwrap_or_else(Instant::now);
        state.renew_since = Some(since);
        self.renew.notify_one();
        since.elapsed() >= RENEWED_WITHIN
    }

    async fn read_layers(&self) {
        match tokio::time::timeout(ANSWER_WITHIN, self.runtime.usage()).await {
            Ok(Ok(layers)) => self.lock().layers = Arc::new(layers),
            Ok(Err(error)) => tracing::warn!(
                error = chain(&error),
                "cannot get usage of writable layers from the runtime; limits are checked with the previous one"
            ),
            Err(_) => tracing::warn!(
                "the runtime does not report usage of writable layers in time; limits are checked with the previous one"
            ),
        }
    }

    /// Forgets other pods; those of these that are due, the one that waits longest first.
    fn begin_round(&self, pods: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let uids: BTreeSet<&str> = pods.iter().map(|pod| pod.metadata.uid.as_str()).collect();
        let now = Instant::now();
        let mut state = self.lock();
        state.pods.retain(|uid, _| uids.contains(uid.as_str()));
        let due = |pod: &Arc<Pod>| {
            let Some(known) = state.pods.get(&pod.metadata.uid) else {
                return Some((self.started, pod.clone()));
            };
            let next = known.next?;
            let is_old = |since| known.latest.as_ref().is_none_or(|(_, at)| *at < since);
            (next <= now || state.renew_since.is_some_and(is_old)).then(|| (next, pod.clone()))
        };
        let mut due: Vec<_> = pods.iter().filter_map(due).collect();
        due.sort_by_key(|(next, _)| *next);
        due.into_iter().map(|(_, pod)| pod).collect()
    }

    async fn measure(self: Arc<Self>, pod: Arc<Pod>, period: Duration) {
        let (began, uid) = (Instant::now(), &pod.metadata.uid);
        let latest = self.lock().pods.remove(uid).and_then(|known| known.latest);
        self.lock().pods.insert(uid.clone(), KnownPod { latest, next: None });
        let (walk, of) = (self.walk.clone(), pod.clone());
        let owner = WorkOwner { group: "node".to_owned(), name: "disk usage".to_owned() };
        let measured = blocking_shares::run(owner, move || {
            let mut budget = WalkBudget::new(FILES_MAX, WALK_MAX);
            let usage = walk(&of, &mut budget);
            PodDiskUsage { is_partial: budget.is_exceeded(), ..usage }
        });
        let measured = measured.await;
        let next = began.checked_add(next_walk_after(period, began.elapsed()));
        self.record(&pod, measured, began, next.unwrap_or(began));
    }

    fn record(
        &self,
        pod: &Pod,
        measured: Result<PodDiskUsage, ShareError>,
        began: Instant,
        next: Instant,
    ) {
        let meta = &pod.metadata;
        let (name, namespace) = (&meta.name, &meta.namespace);
        let mut state = self.lock();
        // A pod that has been forgotten meanwhile is not added again.
        let Some(known) = state.pods.get_mut(&meta.uid) else { return };
        known.next = Some(next);
        let usage = match measured {
            Ok(usage) => usage,
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(
                    pod = name,
                    namespace,
                    error,
                    "cannot measure the pod's disk usage; the previous figures stay"
                );
                return;
            }
        };
        if usage.is_partial && known.latest.as_ref().is_none_or(|(usage, _)| !usage.is_partial) {
            let (files, secs) = (FILES_MAX, WALK_MAX.as_secs());
            tracing::warn!(
                pod = name,
                namespace,
                files,
                secs,
                "the pod has more files than its disk usage is measured of; its figures are lower bounds"
            );
        }
        known.latest = Some((Arc::new(usage), began));
    }

    fn describe(&self) -> String {
        let state = self.lock();
        let ages = state.pods.values().filter_map(|known| known.latest.as_ref());
        let oldest = ages.clone().map(|(_, at)| at.elapsed().as_secs()).max().unwrap_or(0);
        let (measured, known) = (ages.count(), state.pods.len());
        format!("{measured} of {known} pods measured, the longest ago {oldest} s")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time from the begin of a walk to that of the pod's next one.
fn next_walk_after(period: Duration, took: Duration) -> Duration {
    period.max(took.saturating_mul(REST_FACTOR).min(REST_MAX))
}

fn walk(directories: &PodDirectories, pod: &Pod, budget: &mut WalkBudget) -> PodDiskUsage {
    let mut usage = PodDiskUsage::default();
    let logs = PathBuf::from(log_directory(&directories.pod_logs_dir, pod));
    let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|c| &c.name);
    let ephemeral = pod.spec.ephemeral_containers.iter();
    let ephemeral = ephemeral.map(|c| &c.ephemeral_container_common.name);
    for name in containers.chain(ephemeral) {
        let size = disk_usage::measure_within(&logs.join(name), budget);
        usage.logs.insert(name.clone(), size.unwrap_or_default());
    }
    for volume in &pod.spec.volumes {
        if volume.volume_source.empty_dir.is_some() {
            let size = in_empty_dir(directories, &pod.metadata.uid, &volume.name, budget);
            usage.volumes.insert(volume.name.clone(), size);
        }
    }
    usage
}

/// Usage of an `emptyDir`; zero if it does not exist yet.
fn in_empty_dir(
    directories: &PodDirectories,
    uid: &str,
    volume: &str,
    budget: &mut WalkBudget,
) -> DiskUsage {
    let (root, plugin) = (&directories.root_dir, Some(VolumePlugin::EmptyDir));
    let top = open_volume::open_volume(root, uid, volume, plugin).ok().flatten();
    let size = top.map(|top| disk_usage::measure_open_within(top.directory, budget));
    size.and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use agent_runtime::fake::FakeRuntime;
    use proto_api::core::v1::{Container, EmptyDirVolumeSource, Volume};
    use proto_daemon::statusz::StatusBoard;

    use super::*;

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        (pod.metadata.uid, pod.metadata.name) = (uid.into(), uid.into());
        pod.spec.containers = vec![Container { name: "c".into(), ..Container::default() }];
        let mut volume = Volume { name: "v".into(), ..Volume::default() };
        volume.volume_source.empty_dir = Some(EmptyDirVolumeSource::default());
        pod.spec.volumes = vec![volume];
        Arc::new(pod)
    }

    fn usages(directories: PodDirectories) -> PodDiskUsages {
        PodDiskUsages::new(directories, Arc::new(FakeRuntime::new().0))
    }

    async fn wait_until_measured(usages: &PodDiskUsages, uid: &str) -> Measurement {
        let measured = async {
            loop {
                if let Some(measured) = usages.latest(uid) {
                    return measured;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), measured).await.expect("measured")
    }

    #[tokio::test]
    async fn logs_and_volumes_are_measured_in_the_background() {
        let root = tempfile::tempdir().expect("tempdir");
        let write = |path: &str, len: usize| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("made");
            std::fs::write(path, vec![1; len]).expect("written");
        };
        write("logs/_a_a/c/0.log", 50_000);
        write("root/pods/a/volumes/kubernetes.io~empty-dir/v/f", 100_000);
        let pod_logs_dir = root.path().join("logs").to_string_lossy().into_owned();
        let root_dir = root.path().join("root");
        let usages = Arc::new(usages(PodDirectories { root_dir, pod_logs_dir }));
        assert!(usages.latest("a").is_none());
        let pods = || vec![pod("a")];
        let task = tokio::spawn(usages.clone().run(pods, true, StatusBoard::default().task("t")));
        let measured = wait_until_measured(&usages, "a").await.usage;
        let (logs, volume) = (measured.logs["c"], measured.volumes["v"]);
        assert!(logs.bytes >= 50_000 && volume.bytes >= 100_000, "{measured:?}");
        assert!((logs.inodes, volume.inodes, measured.is_partial) == (2, 2, false));
        task.abort();
        assert_eq!(usages.begin_round(&[]).len(), 0);
        assert!(usages.latest("a").is_none(), "a pod that has gone is forgotten");
    }

    #[tokio::test]
    async fn a_walk_that_takes_long_keeps_no_other_pod_from_being_measured() {
        let (release, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let directories = PodDirectories { root_dir: "/".into(), pod_logs_dir: "/".into() };
        let mut usages = usages(directories);
        usages.walk = Arc::new(move |pod: &Pod, budget: &mut WalkBudget| {
            if pod.metadata.uid == "large" {
                let _ = wait.lock().expect("lock").recv();
                *budget = WalkBudget::new(0, Duration::ZERO);
                let _ = disk_usage::measure_within("/".as_ref(), budget);
            }
            PodDiskUsage::default()
        });
        let usages = Arc::new(usages);
        let pods = || ["large", "a", "b", "c"].map(pod).to_vec();
        let task = tokio::spawn(usages.clone().run(pods, true, StatusBoard::default().task("t")));
        for uid in ["a", "b", "c"] {
            assert!(!wait_until_measured(&usages, uid).await.usage.is_partial);
        }
        assert!(usages.latest("large").is_none());
        let due = usages.begin_round(&pods());
        assert!(due.is_empty(), "one is walked, the others were just now: {}", due.len());
        drop(release);
        assert!(wait_until_measured(&usages, "large").await.usage.is_partial);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn old_figures_are_renewed_before_pods_are_ranked_but_not_waited_for() {
        let directories = PodDirectories { root_dir: "/".into(), pod_logs_dir: "/".into() };
        let usages = usages(directories);
        let pods = ["a", "b"].map(pod);
        let measure = |uid: &str| {
            let latest = Some((Arc::default(), Instant::now()));
            let next = Some(Instant::now() + UNLIMITED_PERIOD);
            usages.lock().pods.insert(uid.to_owned(), KnownPod { latest, next });
        };
        let are_recent = || usages.are_recent(["a", "b"].into_iter());
        let due = || -> Vec<String> {
            let due = usages.begin_round(&pods).into_iter();
            due.map(|pod| pod.metadata.uid.clone()).collect()
        };
        ["a", "b"].iter().for_each(|uid| measure(uid));
        assert!(are_recent() && due().is_empty());
        tokio::time::advance(RECENT + Duration::from_secs(1)).await;
        assert!(due().is_empty());
        assert!(!are_recent(), "they are renewed");
        assert_eq!(due(), ["a", "b"]);
        measure("a");
        assert_eq!(due(), ["b"]);
        assert!(!are_recent(), "one is missing");
        tokio::time::advance(RENEWED_WITHIN).await;
        assert!(are_recent(), "it takes long");
        measure("b");
        assert!(are_recent() && due().is_empty());
        tokio::time::advance(RECENT + Duration::from_secs(1)).await;
        assert!(!are_recent(), "a request of its own");
    }

    #[test]
    fn the_longer_a_walk_takes_the_later_its_pod_is_walked_again() {
        let secs = Duration::from_secs;
        for (period, took, next) in [(10, 0, 10), (60, 1, 60), (10, 1, 20), (10, 60, 600)] {
            assert_eq!(next_walk_after(secs(period), secs(took)), secs(next));
        }
    }
}
