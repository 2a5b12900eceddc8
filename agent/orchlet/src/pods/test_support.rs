//! Test doubles around pod tasks: an API server, a host, and the context made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use agent_pod::events::PodEvent;
use agent_runtime::Runtime;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Node, Pod, PodStatus};
use tokio::sync::watch;

use super::pod_context::PodContext;
use super::ports::{
    ErrorText, MountedVolumes, PodCgroups, PodObjects, PodVolumes, ReportError, Reported, Reports,
    StatusChange,
};
use super::shown::ServerStatus;
use crate::images::{PullBounds, STANDSTILL};
use crate::journal::Journal;
use crate::metrics::AgentMetrics;
use crate::object_cache::NoObjects;

/// An API server that accepts every write.
#[derive(Default)]
pub struct Api {
    /// Written statuses, oldest first.
    pub statuses: watch::Sender<Vec<PodStatus>>,
    /// Uids of deleted objects.
    pub deleted: Mutex<Vec<String>>,
    /// Recorded events.
    pub events: Mutex<Vec<PodEvent>>,
    /// The resource version of the next response.
    pub version: Mutex<String>,
}

impl Api {
    /// The reasons of the recorded events.
    pub fn reasons(&self) -> Vec<String> {
        self.events.lock().expect("lock").iter().map(|event| event.reason.to_string()).collect()
    }
}

impl Reports for Api {
    fn status<'a>(
        &'a self,
        _: &'a Pod,
        change: StatusChange<'a>,
    ) -> BoxFuture<'a, Result<Reported, ReportError>> {
        self.statuses.send_modify(|all| all.push(change.to.clone()));
        let version = self.version.lock().expect("lock").clone();
        let answer = ServerStatus { status: change.to.clone(), version };
        std::future::ready(Ok(Reported::Shown(answer.into()))).boxed()
    }

    fn deleted<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ReportError>> {
        self.deleted.lock().expect("lock").push(pod.metadata.uid.clone());
        self.statuses.send_modify(|_| {});
        std::future::ready(Ok(())).boxed()
    }

    fn event(&self, _: &Pod, event: PodEvent) {
        self.events.lock().expect("lock").push(event);
    }
}

/// A host in memory: the cgroups and volumes of pods, by uid.
#[derive(Default)]
pub struct FakeHost {
    cgroups: Mutex<BTreeSet<String>>,
    volumes: Mutex<BTreeSet<String>>,
}

impl FakeHost {
    /// Whether nothing of any pod is left.
    pub fn is_bare(&self) -> bool {
        self.cgroups.lock().expect("lock").is_empty()
            && self.volumes.lock().expect("lock").is_empty()
    }
}

impl PodCgroups for FakeHost {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, ErrorText> {
        self.cgroups.lock().expect("lock").insert(pod.metadata.uid.clone());
        Ok(self.cgroup_parent(pod))
    }

    fn cgroup_parent(&self, pod: &Pod) -> String {
        format!("/kubepods/pod{}", pod.metadata.uid)
    }

    fn adopt_cgroup(&self, pod: &Pod) -> bool {
        self.cgroups.lock().expect("lock").contains(&pod.metadata.uid)
    }

    fn uids(&self) -> Vec<String> {
        self.cgroups.lock().expect("lock").iter().cloned().collect()
    }

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ErrorText>> {
        self.cgroups.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

impl PodVolumes for FakeHost {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        _: &'a PodObjects,
    ) -> BoxFuture<'a, Result<MountedVolumes, ErrorText>> {
        self.volumes.lock().expect("lock").insert(pod.metadata.uid.clone());
        std::future::ready(Ok(MountedVolumes::default())).boxed()
    }

    fn bind_parts<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a str,
        _: Vec<crate::pods::ports::WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, ErrorText>> {
        std::future::ready(Ok(BTreeMap::new())).boxed()
    }

    fn exist(&self, pod: &Pod) -> bool {
        self.volumes.lock().expect("lock").contains(&pod.metadata.uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), ErrorText>> {
        self.volumes.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

/// The parts that a test chooses of a context.
pub struct Outside<'a> {
    pub dir: &'a Path,
    pub runtime: Arc<dyn Runtime>,
    pub reports: Arc<dyn Reports>,
    /// Cgroups and volumes.
    pub host: Arc<FakeHost>,
    pub journal: Journal,
}

/// Metrics shared by all nodes of a test, since registering them is slow and they are not read.
pub fn metrics() -> AgentMetrics {
    static METRICS: OnceLock<AgentMetrics> = OnceLock::new();
    METRICS.get_or_init(AgentMetrics::default).clone()
}

pub fn pull_bounds() -> PullBounds {
    PullBounds { parallel: 2, qps: 0, burst: 0, standstill: STANDSTILL }
}

/// The context of a small node.
pub fn pod_context(outside: Outside<'_>) -> PodContext {
    let mut node = Node::default();
    for (name, amount) in [("cpu", "1"), ("pods", "10")] {
        node.status.allocatable.insert(name.into(), amount.parse().expect("quantity"));
    }
    let logs = outside.dir.join("logs").to_string_lossy().into_owned();
    PodContext {
        runtime: outside.runtime.clone(),
        reports: outside.reports,
        cgroups: outside.host.clone(),
        volumes: outside.host,
        object_cache: Arc::new(NoObjects),
        journal: outside.journal,
        facts: agent_pod::node_facts::NodeFacts { pod_logs_dir: logs, ..Default::default() },
        environment: crate::pod_environment::PodEnvironment::default(),
        host_ips: vec!["10.0.0.1".into()],
        root_dir: outside.dir.join("root"),
        node: node.into(),
        pods: Mutex::default(),
        decisions: Default::default(),
        images: crate::images::Images::new(outside.runtime, Default::default(), pull_bounds()),
        dead_kept: 1,
        crash_delay_max: agent_pod::backoff::CRASH_DELAY_MAX,
        sandbox_image: "pause:1".into(),
        names: proto_api::names::Names::new(Default::default()),
        node_pressure: watch::Sender::default(),
        timelines: crate::timeline::Timelines::default(),
        metrics: metrics(),
        probes: crate::pods::probes::NodeProbes::new("agent/1".into()),
        runtime_limiter: crate::pods::runtime_limiter::RuntimeLimiter::new(2).into(),
        restart_limiter: crate::pods::restart_limiter::RestartLimiter::new(2),
        active_pods: crate::pods::active_pods::ActivePods::default(),
    }
}

/// The context of a small node with an accepting API server and its own journal.
pub fn plain_context(runtime: Arc<dyn Runtime>, dir: &Path) -> Arc<PodContext> {
    std::fs::create_dir_all(dir.join("root")).expect("mkdir");
    let (journal, _) = Journal::open(&dir.join("journal.redb"), "boot").expect("journal");
    let (reports, host) = (Arc::<Api>::default(), Arc::default());
    Arc::new(pod_context(Outside { dir, runtime, reports, host, journal }))
}
