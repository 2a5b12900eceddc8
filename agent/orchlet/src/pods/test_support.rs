//! What tests put around pods' tasks: an API server, a node's share, and the parts made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use agent_pod::events::PodEvent;
use agent_runtime::Runtime;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto_api::core::v1::{Node, Pod, PodStatus};
use tokio::sync::watch;

use super::pod_context::Parts;
use super::ports::{
    Line, MountedVolumes, PodPlace, PodVolumes, ReportError, Reported, Reports, Sources,
    StatusChange,
};
use super::shown::Answer;
use crate::images::{PullBounds, STANDSTILL};
use crate::journal::Journal;
use crate::metrics::AgentMetrics;
use crate::object_cache::NoObjects;

/// An API server that takes everything.
#[derive(Default)]
pub struct Api {
    /// Statuses, oldest first.
    pub statuses: watch::Sender<Vec<PodStatus>>,
    /// Uids of objects that were let go.
    pub deleted: Mutex<Vec<String>>,
    /// Reasons of events.
    pub events: Mutex<Vec<PodEvent>>,
    /// The resource version that the next write answers with.
    pub version: Mutex<String>,
}

impl Api {
    /// The reasons of the events that were told.
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
        let answer = Answer { status: change.to.clone(), version };
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

/// Cgroups and volumes of pods, by uid.
#[derive(Default)]
pub struct Place {
    cgroups: Mutex<BTreeSet<String>>,
    volumes: Mutex<BTreeSet<String>>,
}

impl Place {
    /// Whether nothing of any pod is left.
    pub fn is_bare(&self) -> bool {
        self.cgroups.lock().expect("lock").is_empty()
            && self.volumes.lock().expect("lock").is_empty()
    }
}

impl PodPlace for Place {
    fn make_cgroup(&self, pod: &Pod) -> Result<String, Line> {
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

    fn remove_cgroup<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>> {
        self.cgroups.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

impl PodVolumes for Place {
    fn set_up<'a>(
        &'a self,
        pod: &'a Arc<Pod>,
        _: &'a Sources,
    ) -> BoxFuture<'a, Result<MountedVolumes, Line>> {
        self.volumes.lock().expect("lock").insert(pod.metadata.uid.clone());
        std::future::ready(Ok(MountedVolumes::default())).boxed()
    }

    fn bind_parts<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a str,
        _: Vec<crate::pods::ports::WantedPart>,
    ) -> BoxFuture<'a, Result<BTreeMap<usize, String>, Line>> {
        std::future::ready(Ok(BTreeMap::new())).boxed()
    }

    fn exist(&self, pod: &Pod) -> bool {
        self.volumes.lock().expect("lock").contains(&pod.metadata.uid)
    }

    fn tear_down<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Line>> {
        self.volumes.lock().expect("lock").remove(&pod.metadata.uid);
        std::future::ready(Ok(())).boxed()
    }
}

/// What the parts are made of.
pub struct Outside<'a> {
    /// Directory of the agent.
    pub dir: &'a Path,
    /// The runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The API server.
    pub reports: Arc<dyn Reports>,
    /// The node's share.
    pub place: Arc<Place>,
    /// The journal.
    pub journal: Journal,
}

/// Counters that all nodes of a test share: nobody reads them, and making them takes its time.
pub fn metrics() -> AgentMetrics {
    static METRICS: OnceLock<AgentMetrics> = OnceLock::new();
    METRICS.get_or_init(AgentMetrics::default).clone()
}

/// Bounds on pulls of a small node.
pub fn pull_bounds() -> PullBounds {
    PullBounds { parallel: 2, qps: 0, burst: 0, standstill: STANDSTILL }
}

/// The parts of a small node.
pub fn parts(outside: Outside<'_>) -> Parts {
    let mut node = Node::default();
    for (name, amount) in [("cpu", "1"), ("pods", "10")] {
        node.status.allocatable.insert(name.into(), amount.parse().expect("quantity"));
    }
    let logs = outside.dir.join("logs").to_string_lossy().into_owned();
    Parts {
        runtime: outside.runtime.clone(),
        reports: outside.reports,
        place: outside.place.clone(),
        volumes: outside.place,
        objects: Arc::new(NoObjects),
        journal: outside.journal,
        facts: agent_pod::node_facts::NodeFacts { pod_logs_dir: logs, ..Default::default() },
        provision: crate::pod_environment::Provision::default(),
        host_ips: vec!["10.0.0.1".into()],
        root_dir: outside.dir.join("root"),
        node: node.into(),
        pods: Mutex::default(),
        verdicts: Default::default(),
        images: crate::images::Images::new(outside.runtime, Default::default(), pull_bounds()),
        dead_kept: 1,
        crash_delay_max: agent_pod::backoff::CRASH_DELAY_MAX,
        sandbox_image: "pause:1".into(),
        names: proto_api::names::Names::new(Default::default()),
        strain: watch::Sender::default(),
        timelines: crate::timeline::Timelines::default(),
        metrics: metrics(),
        probes: crate::pods::probes::NodeProbes::new("agent/1".into()),
        turns: crate::pods::runtime_limiter::Turns::new(2).into(),
        restarts: crate::pods::restart_limiter::Restarts::new(2),
        in_hand: crate::pods::in_hand::InHand::default(),
    }
}

/// The parts of a small node whose API server takes everything, with a journal of their own.
pub fn plain(runtime: Arc<dyn Runtime>, dir: &Path) -> Arc<Parts> {
    std::fs::create_dir_all(dir.join("root")).expect("mkdir");
    let (journal, _) = Journal::open(&dir.join("journal.redb"), "boot").expect("journal");
    let (reports, place) = (Arc::<Api>::default(), Arc::default());
    Arc::new(parts(Outside { dir, runtime, reports, place, journal }))
}
