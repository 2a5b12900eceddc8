//! The context of a small node made of test doubles.

#![allow(clippy::arithmetic_side_effects, clippy::expect_used, reason = "of tests only")]

use std::path::Path;
use std::sync::{Arc, OnceLock};

use agent_images::{PullBounds, STANDSTILL};
use agent_interfaces::Reports;
use agent_interfaces::objects::NoObjects;
use agent_interfaces::testing::{Api, FakeHost};
use agent_journal::Journal;
use agent_runtime::Runtime;
use agent_telemetry::metrics::AgentMetrics;
use proto_api::core::v1::Node;

use super::node_pods::NodePods;
use super::pod_context::{NodeSettings, PodContext};

/// The parts that a test chooses of a context.
pub struct TestContextParts<'a> {
    /// Holds the root directory and the logs.
    pub dir: &'a Path,
    /// The container runtime.
    pub runtime: Arc<dyn Runtime>,
    /// The API server.
    pub reports: Arc<dyn Reports>,
    /// Cgroups and volumes.
    pub host: Arc<FakeHost>,
    /// Opened by the test, which may share it with an earlier context.
    pub journal: Journal,
}

/// A directory in memory, where there is one: a test whose clock does not run waits for the journal's thread, and a busy disk would make that long.
#[cfg(test)]
pub(crate) fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    dir.expect("tempdir")
}

/// Metrics shared by all nodes of a test, since registering them is slow and they are not read.
pub fn metrics() -> AgentMetrics {
    static METRICS: OnceLock<AgentMetrics> = OnceLock::new();
    METRICS.get_or_init(AgentMetrics::default).clone()
}

/// Two pulls at a time, at any rate.
pub fn pull_bounds() -> PullBounds {
    PullBounds { parallel: 2, qps: 0, burst: 0, standstill: STANDSTILL }
}

/// The context of a small node.
pub fn pod_context(outside: TestContextParts<'_>) -> PodContext {
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
        settings: NodeSettings {
            facts: agent_pod::node_facts::NodeFacts { pod_logs_dir: logs, ..Default::default() },
            host_ips: vec!["10.0.0.1".into()],
            root_dir: outside.dir.join("root"),
            dead_kept: 1,
            crash_delay_max: agent_pod::backoff::CRASH_DELAY_MAX,
            sandbox_image: "pause:1".into(),
            names: proto_api::names::Names::new(Default::default()),
        },
        environment: agent_resources::pod_environment::PodEnvironment::default(),
        pods: NodePods::new(node),
        images: agent_images::Images::new(outside.runtime, Default::default(), pull_bounds()),
        node_pressure: tokio::sync::watch::Sender::default(),
        timelines: agent_telemetry::timeline::Timelines::default(),
        metrics: metrics(),
        probes: crate::probes::NodeProbes::new("agent/1".into()),
        runtime_limiter: crate::runtime_limiter::RuntimeLimiter::new(2).into(),
        restart_limiter: crate::restart_limiter::RestartLimiter::new(2),
        active_pods: agent_journal::active_pods::ActivePods::default(),
    }
}

/// The context of a small node with an accepting API server and its own journal.
pub fn plain_context(runtime: Arc<dyn Runtime>, dir: &Path) -> Arc<PodContext> {
    std::fs::create_dir_all(dir.join("root")).expect("mkdir");
    let (journal, _) = Journal::open(&dir.join("journal.redb"), "boot").expect("journal");
    let (reports, host) = (Arc::<Api>::default(), Arc::default());
    Arc::new(pod_context(TestContextParts { dir, runtime, reports, host, journal }))
}
