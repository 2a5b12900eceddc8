//! Hollow nodes, many in one process, to see what a cluster of this many nodes costs its control plane. Each has the pods' tasks, watches, status writes,
//! lease and connections of a node; only what is below them is in memory: runtime, cgroups, volumes and journal.

use std::path::PathBuf;
use std::sync::Arc;

use agent_clock as clock;
use agent_config::{self as config, Settings};
use agent_csi::Drivers;
use agent_host::machine;
use agent_images::{CredentialSources, Images, Providers};
use agent_journal::Journal;
use agent_journal::active_pods::ActivePods;
use agent_node::status::MachineInfo;
use agent_node::unsupported_fields::NodeFeatures;
use agent_node_volumes::volumes;
use agent_node_volumes::volumes_in_memory::VolumesInMemory;
use agent_pod::desired::PodSource;
use agent_resources::cgroups_in_memory::CgroupsInMemory;
use agent_resources::pod_environment::{PodEnvironment, RuntimeClasses};
use agent_runtime::events::RuntimeEvent;
use agent_runtime::memory::{MemoryRuntime, NAME, PodRange};
use agent_telemetry::metrics::AgentMetrics;
use agent_telemetry::timeline::Timelines;
use agent_workers::node_pods::NodePods;
use agent_workers::pod_context::PodContext;
use agent_workers::probes::NodeProbes;
use agent_workers::restart_limiter::RestartLimiter;
use agent_workers::runtime_limiter::RuntimeLimiter;
use agent_workers::{FoundAtStart, Pods, garbage};
use proto_api::core::v1::Node;
use proto_client::Client;
use proto_client::config::file;
use proto_client::metrics::RequestMetrics;
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::{Drain, stop_signal};
use proto_daemon::exit::Failure;
use proto_daemon::health::Health;
use proto_daemon::ready::{Readiness, ReadyGuard};
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};

use super::cluster::Cluster;
use super::node::{NodeTasks, describe};
use super::pod_context::{node_settings, unregistered};
use super::runtime::with_periodic_relists;
use super::serve::serve_health;
use super::{
    DRAIN_DEADLINE, SOURCE_EVENTS_LEN, make_root_directory, metrics, new_client, processors, until,
};

/// Runs the hollow nodes of the settings until SIGTERM or SIGINT.
///
/// # Errors
/// A setting is wrong, or a node cannot be started.
pub async fn run(settings: &Settings) -> Result<(), Failure> {
    let host = HollowHost::new(settings).await?;
    let (drain, readiness) = (Drain::default(), Readiness::default());
    let count = settings.flags.node.hollow_nodes;
    for number in 0..count {
        let node = host.node(format!("{}-{number}", host.machine.name))?;
        node.start(&host, readiness.guard("sources"), &drain)?;
    }
    let pages = AdminPages {
        health: Health::new(readiness),
        metrics: host.registry.clone(),
        status: StatusBoard::default(),
    };
    serve_health(settings, &pages, &drain).await;
    tracing::info!(count, prefix = host.machine.name, "hollow nodes are running");
    let signal = stop_signal().await.map_err(Failure::run)?;
    tracing::info!(signal, "hollow nodes are stopping");
    drain.drain(DRAIN_DEADLINE).await;
    Ok(())
}

/// What the hollow nodes of a process share.
struct HollowHost<'a> {
    settings: &'a Settings,
    /// Of every node but for its name, which is the prefix here.
    machine: MachineInfo,
    registry: proto_daemon::metrics::Metrics,
    metrics: AgentMetrics,
    requests: RequestMetrics,
}

/// A hollow node before its tasks are started.
struct HollowNode {
    machine: MachineInfo,
    client: Client,
    runtime: Arc<MemoryRuntime>,
    exits: mpsc::Receiver<RuntimeEvent>,
    root_dir: PathBuf,
}

impl<'a> HollowHost<'a> {
    async fn new(settings: &'a Settings) -> Result<Self, Failure> {
        make_root_directory(&settings.flags.root_dir)?;
        let mut machine = describe(settings, &machine::identity()).await?;
        let version = env!("CARGO_PKG_VERSION");
        machine.info.container_runtime_version = format!("{NAME}://{version}");
        let (registry, metrics) = metrics(settings, &machine).map_err(Failure::run)?;
        let requests = RequestMetrics::register(&registry).map_err(Failure::run)?;
        Ok(Self { settings, machine, registry, metrics, requests })
    }

    fn node(&self, name: String) -> Result<HollowNode, Failure> {
        let flags = &self.settings.flags;
        let kubeconfig = flags.kubeconfig.as_ref().ok_or_else(|| {
            Failure::usage("--runtime=memory needs --kubeconfig: all pods of hollow nodes come from an API server")
        })?;
        let kubeconfig = match kubeconfig.is_dir() {
            true => kubeconfig.join(format!("{name}.conf")),
            false => kubeconfig.clone(),
        };
        let config = file::load(&kubeconfig, None).map_err(Failure::usage)?;
        let client = new_client(&config, self.settings)?.with_metrics(self.requests.clone());
        let root_dir = flags.root_dir.join(&name);
        make_root_directory(&root_dir)?;
        let (runtime, exits) = MemoryRuntime::new(unix_nanos);
        let machine = MachineInfo { hostname: name.clone(), name, ..self.machine.clone() };
        Ok(HollowNode { machine, client, runtime: Arc::new(runtime), exits, root_dir })
    }
}

fn unix_nanos() -> i64 {
    clock::now().unix_seconds.saturating_mul(1_000_000_000)
}

impl HollowNode {
    /// Starts the tasks that every node has. `unready` is dropped once its pods are known.
    fn start(
        self,
        host: &HollowHost<'_>,
        unready: ReadyGuard,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let settings = host.settings;
        let (sender, node) = watch::channel(None);
        let limiter = Arc::new(RuntimeLimiter::new(processors()));
        let (name, client) = (&self.machine.name, &self.client);
        let cluster =
            Cluster::follow(client, settings, name, Drivers::default(), limiter.clone(), drain);
        let shared = Arc::new(self.pod_context(host, &cluster, node.clone(), limiter));
        let (say, said) = mpsc::channel(SOURCE_EVENTS_LEN);
        cluster.send_pods(settings.names, &say);
        let board = StatusBoard::default();
        let found = FoundAtStart::new(Vec::new(), Default::default(), shared.leftover_uids());
        let sources = vec![PodSource::Api];
        let pods = Pods::new(shared.clone(), board.clone(), found, sources, unready);
        tokio::spawn(until(drain.watch(), pods.run(said, with_periodic_relists(self.exits))));
        tokio::spawn(until(drain.watch(), garbage::run(shared.clone(), board.task("garbage"))));
        tokio::spawn(until(drain.watch(), follow_pod_range(self.runtime.clone(), node.clone())));
        let (machine, board) = (&self.machine, &board);
        let events = cluster.events.clone();
        NodeTasks { client, settings, machine, board, shared, events }.start(sender, node, drain)
    }

    fn pod_context(
        &self,
        host: &HollowHost<'_>,
        cluster: &Cluster,
        node: watch::Receiver<Option<Arc<Node>>>,
        runtime_limiter: Arc<RuntimeLimiter>,
    ) -> PodContext {
        let (settings, names) = (host.settings, host.settings.names);
        let logins = CredentialSources::new(&self.root_dir, Providers::default());
        let bounds = config::node::pull_bounds(&settings.file);
        let issuer = volumes::issuer(self.client.clone());
        let logs = self.root_dir.join("logs/pods");
        PodContext {
            runtime: self.runtime.clone(),
            reports: cluster.reports.clone(),
            cgroups: Arc::new(CgroupsInMemory::default()),
            volumes: Arc::new(VolumesInMemory::new(issuer, node, names)),
            object_cache: cluster.objects.clone(),
            journal: Journal::of_hollow_node(),
            settings: node_settings(settings, &self.machine, &self.root_dir, &logs),
            environment: PodEnvironment {
                abilities: NodeFeatures {
                    names,
                    apparmor: machine::has_apparmor(),
                    allowed_sysctls: settings.file.allowed_unsafe_sysctls.clone(),
                },
                resolv_conf: None,
                classes: RuntimeClasses::new(Some(self.client.clone())),
                allocator: None,
            },
            pods: NodePods::new(unregistered(names, &self.machine)),
            images: Images::new(self.runtime.clone(), logins, bounds),
            node_pressure: watch::Sender::default(),
            timelines: Timelines::default(),
            metrics: host.metrics.clone(),
            probes: NodeProbes::new(format!("{}/1.25", names.component("probe"))),
            runtime_limiter,
            restart_limiter: RestartLimiter::new(processors()),
            active_pods: ActivePods::default(),
        }
    }
}

/// Gives the runtime the addresses of the Node's pod CIDR as soon as there is one.
async fn follow_pod_range(
    runtime: Arc<MemoryRuntime>,
    mut node: watch::Receiver<Option<Arc<Node>>>,
) {
    loop {
        let cidr = node.borrow_and_update().as_ref().map(|node| node.spec.pod_cidr.clone());
        if let Some(range) = cidr.as_deref().and_then(PodRange::parse) {
            runtime.set_pod_range(range);
        }
        if node.changed().await.is_err() {
            return;
        }
    }
}
