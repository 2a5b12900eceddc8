//! Assembles the agent from its settings and runs it until SIGTERM or SIGINT. This file has the
//! order of the start; the parts are in `app/`.

mod allocation;
mod cluster;
pub mod hollow;
mod maintenance;
mod node;
mod pod_context;
mod runtime;
mod serve;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_config::Settings;
use agent_csi::{CsiError, CsiNode, Drivers, registration};
use agent_host::cgroups::Cgroups;
use agent_host::{machine, process};
use agent_images::CredentialSources;
use agent_journal::active_pods::ActivePods;
use agent_journal::last_run::{self, LastEnd, RunState};
use agent_journal::{Journal, Record};
use agent_node::status::{self, MachineInfo};
use agent_node_volumes::csi_node::{ClusterDrivers, NoCluster, WithDevices};
use agent_node_volumes::persistent_volumes::block::Disks;
use agent_node_volumes::persistent_volumes::helpers::NodeHelpers;
use agent_resources::allocator::Allocator;
use agent_resources::pod_cgroups::{Bounded, Enforced, NodeCgroups};
use agent_runtime::cri::CriRuntime;
use agent_runtime::observe;
use agent_telemetry::metrics::{AgentMetrics, Registrations};
use agent_telemetry::node_events::NodeEvents;
use agent_volume::private_dirs;
use agent_volume::shared_mounts::SharedMounts;
use agent_workers::runtime_limiter::RuntimeLimiter;
use agent_workers::{FoundAtStart, Pods};
use proto_api::event_report::EventKind;
use proto_client::config::file;
use proto_client::metrics::RequestMetrics;
use proto_client::{Client, ClientConfig};
use proto_daemon::drain::{Drain, DrainWatch, stop_signal};
use proto_daemon::exit::{Failure, chain};
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};

use crate::bootstrap;
use crate::shutdown::Shutdown;

/// Version and commit, for `--version` and the metric `build_info`.
pub const BUILD: BuildInfo = proto_daemon::build_info!();
/// Events of pod sources that may wait for the dispatcher.
const SOURCE_EVENTS_LEN: usize = 256;
/// Time limit for tasks to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Everything that the agent needs to run, before any task is started.
pub struct Agent {
    settings: Settings,
    machine: MachineInfo,
    boot_id: String,
    runtime: CriRuntime,
    runtime_limiter: Arc<RuntimeLimiter>,
    client: Option<Client>,
    logins: CredentialSources,
    resources: NodeResources,
    storage: NodeStorage,
    kept: KeptState,
    telemetry: Telemetry,
}

/// What pods are given shares of.
struct NodeResources {
    allocator: Arc<Allocator>,
    cgroups: NodeCgroups,
}

/// What volumes are made with.
struct NodeStorage {
    /// The root directory with symbolic links resolved.
    root_dir: PathBuf,
    csi: Arc<CsiNode>,
    disks: Arc<Disks>,
}

/// What earlier agents left on disk for this one.
struct KeptState {
    journal: Journal,
    active_pods: ActivePods,
    records: BTreeMap<String, Record>,
}

/// What the agent says of itself.
struct Telemetry {
    board: StatusBoard,
    registry: Metrics,
    metrics: AgentMetrics,
}

/// Reads the machine's properties, opens the journal and creates the clients. Modifies only the
/// agent's own directories and cgroups.
///
/// # Errors
/// A setting is wrong or a resource is missing.
pub async fn build(settings: Settings) -> Result<Agent, Failure> {
    if let Ok(score) = i16::try_from(settings.file.oom_score_adj)
        && let Err(error) = machine::set_oom_score_adj(score)
    {
        tracing::info!(score, %error, "cannot set oomScoreAdj; lowering it needs CAP_SYS_RESOURCE");
    }
    let root = &settings.flags.root_dir;
    make_root_directory(root)?;
    let identity = machine::identity();
    let machine = node::describe(&settings, &identity).await?;
    let runtime = CriRuntime::with_connection_keeper(&settings.file.container_runtime_endpoint)
        .map_err(Failure::usage)?;
    let (journal, records) =
        Journal::open(&root.join("journal.redb"), &identity.boot_id).map_err(Failure::run)?;
    // After the journal, whose lock only one process holds at a time.
    let end = judge_last_run(&root.join("last-run"), &identity.boot_id);
    let active_pods = ActivePods::open(&root.join("in-hand"), end).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot open the record of active pods; a pod that crashes the agent will not be quarantined");
        ActivePods::default()
    });
    let cgroups = Cgroups::detect().map_err(Failure::run)?;
    let pids = u64::try_from(settings.file.pod_pids_limit).ok().filter(|limit| *limit > 0);
    let driver = settings.file.cgroup_driver.into();
    let cgroups = NodeCgroups::new(
        cgroups,
        &settings.file.cgroup_root,
        driver,
        pids,
        settings.file.cpu_bound(),
    );
    let (capacity, _) = status::capacity(&machine.capacity, &machine.reserved);
    cgroups.prepare(&capacity, &enforced(&settings, &machine)).map_err(Failure::run)?;
    let (registry, metrics) = metrics(&settings, &machine).map_err(Failure::run)?;
    let logins = maintenance::logins(&settings, &metrics.operations)?;
    let client = client(&settings, &registry)?;
    let allocator =
        allocation::allocator(&settings, &machine, &journal, metrics.operations.clone())?;
    let registrations = Registrations::new(settings.names, allocator.plugins().clone());
    registrations.and_then(|all| registry.register(all)).map_err(Failure::run)?;
    let root_dir = root.canonicalize().map_err(Failure::run)?;
    if let Err(error) = agent_volume::mount::share(&root_dir) {
        // Only CSI drivers that run in pods need it.
        tracing::warn!(%error, "cannot share mounts of the root directory; CSI drivers in pods cannot mount volumes on the node");
    }
    let csi = CsiNode::open(&root_dir, settings.names, &machine.name, Drivers::default());
    let csi = Arc::new(csi.map_err(Failure::run)?);
    let mounts = SharedMounts::new(&root_dir, settings.names);
    let disks =
        Arc::new(Disks::new(mounts, Arc::new(NodeHelpers::default()), csi.changes().clone()));
    Ok(Agent {
        settings,
        machine,
        boot_id: identity.boot_id,
        runtime,
        runtime_limiter: Arc::new(RuntimeLimiter::new(processors())),
        client,
        logins,
        resources: NodeResources { allocator, cgroups },
        storage: NodeStorage { root_dir, csi, disks },
        kept: KeptState { journal, active_pods, records },
        telemetry: Telemetry { board: StatusBoard::default(), registry, metrics },
    })
}

/// How the last agent ended. From now on an abort of this one is marked.
fn judge_last_run(path: &Path, boot_id: &str) -> LastEnd {
    let now = RunState { boot_id, oom_kills: machine::oom_kills() };
    let begun = last_run::begin(path, &now)
        .and_then(|(end, file)| process::mark_aborts(file).map(|()| end));
    begun.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot record how this run ends; a kill of the agent will count as a crash of the pods that it was handling");
        LastEnd::Crashed
    })
}

/// Makes the root directory and the one of the pods, closed to other users.
fn make_root_directory(root: &Path) -> Result<(), Failure> {
    for directory in [root.to_owned(), root.join("pods")] {
        private_dirs::make(&directory).map_err(|error| {
            let directory = directory.display();
            Failure::run(format!("cannot use {directory} as the root directory: {error}"))
        })?;
    }
    Ok(())
}

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// The cgroup limits that the settings enforce.
fn enforced(settings: &Settings, machine: &MachineInfo) -> Enforced {
    let file = &settings.file;
    let asks = |what: &str| file.enforce_node_allocatable.iter().any(|asked| asked == what);
    let groups = [
        ("system-reserved", &file.system_reserved_cgroup, &file.system_reserved),
        ("kube-reserved", &file.kube_reserved_cgroup, &file.kube_reserved),
    ];
    Enforced {
        pods: if asks("pods") { Bounded::Yes } else { Bounded::No },
        reserved: machine.reserved.amounts.clone(),
        groups: groups
            .into_iter()
            .filter(|(what, ..)| asks(what))
            .map(|(_, cgroup, amounts)| (cgroup.clone(), amounts.clone()))
            .collect(),
    }
}

/// The metrics registry with the agent's metrics.
fn metrics(
    settings: &Settings,
    machine: &MachineInfo,
) -> Result<(Metrics, AgentMetrics), prometheus::Error> {
    let registry = Metrics::new(&settings.names.metric_prefix("let"), BUILD)?;
    let metrics = AgentMetrics::register(&registry, settings.names, &machine.name)?;
    let calls = metrics.clone();
    observe::set_observer(move |ended| calls.record_call(ended));
    Ok((registry, metrics))
}

fn client(settings: &Settings, registry: &Metrics) -> Result<Option<Client>, Failure> {
    let Some(path) = &settings.flags.kubeconfig else { return Ok(None) };
    let mut config = file::load(path, None).map_err(Failure::usage)?;
    if settings.file.rotate_certificates {
        bootstrap::renewed_identity(settings, &mut config).map_err(Failure::run)?;
    }
    let client = new_client(&config, settings)?;
    let requests = RequestMetrics::register(registry).map_err(Failure::run)?;
    Ok(Some(client.with_metrics(requests)))
}

/// A client that says who it is.
fn new_client(config: &ClientConfig, settings: &Settings) -> Result<Client, Failure> {
    let agent = format!("orchlet/{}", env!("CARGO_PKG_VERSION"));
    Client::new(config, settings.names, &agent).map_err(Failure::usage)
}

impl Agent {
    /// Runs until SIGTERM or SIGINT. Containers keep running after that, unless SIGTERM is the only
    /// sign that the machine shuts down.
    ///
    /// # Errors
    /// An essential part cannot be started, or the machine got its address only after the start.
    pub async fn run(mut self) -> Result<(), Failure> {
        let drain = Drain::default();
        let stop = stop_signal();
        tokio::pin!(stop);
        // Cancel safe: the next start repeats an aborted one.
        let shutdown = tokio::select! {
            signal = &mut stop => {
                tracing::info!(signal = signal.map_err(Failure::run)?, "orchlet was stopped before its start was complete");
                return Ok(());
            }
            started = self.start(&drain) => started?,
        };
        // Cancel safe: both only wait.
        let (signal, address) = tokio::select! {
            signal = &mut stop => (signal.map_err(Failure::run)?, None),
            address = node::changed_address(&self.settings, &self.machine) => ("", Some(address)),
        };
        if signal == "SIGTERM" {
            shutdown.on_sigterm().await;
        }
        tracing::info!(signal, "orchlet is stopping; containers keep running");
        self.kept.journal.close();
        drain.drain(DRAIN_DEADLINE).await;
        self.kept.active_pods.close();
        match address {
            None => Ok(()),
            Some(address) => Err(Failure::run(format!(
                "the machine's address is now {address}; a new process registers it"
            ))),
        }
    }

    /// Starts all tasks. Returns the handler of the machine's shutdown.
    async fn start(&mut self, drain: &Drain) -> Result<Arc<Shutdown>, Failure> {
        let (capacity, _) = status::capacity(&self.machine.capacity, &self.machine.reserved);
        let enforced = enforced(&self.settings, &self.machine);
        self.resources
            .cgroups
            .write_slice_limits(&capacity, &enforced)
            .await
            .map_err(Failure::run)?;
        self.wait_for_runtime().await;
        let (node_sender, node) = watch::channel(None);
        let cluster = self.client.clone().map(|client| self.follow_cluster(&client, drain));
        let images = self.images();
        let shared = Arc::new(self.pod_context(cluster.as_ref(), node.clone(), images));
        let (listed, happened) = self.subscribe_and_list().await;
        let (say, said) = mpsc::channel(SOURCE_EVENTS_LEN);
        let sources = self.start_sources(cluster.as_ref(), &say);
        let found = FoundAtStart::new(
            listed,
            std::mem::take(&mut self.kept.records),
            shared.leftover_uids(),
        );
        let readiness = Readiness::default();
        let unready = readiness.guard("sources");
        let pods = Pods::new(shared.clone(), self.telemetry.board.clone(), found, sources, unready);
        tokio::spawn(until(drain.watch(), pods.run(said, happened)));
        let client = cluster.as_ref().map(|c| &c.client);
        self.start_servers(client, &shared, readiness, drain).await?;
        let events = cluster.as_ref().map(|cluster| cluster.events.clone());
        let events = events.unwrap_or_else(|| NodeEvents::new(None, &self.machine.name));
        let shutdown = self.start_maintenance(&shared, &events, drain);
        self.start_allocation(&shared, drain);
        self.start_drivers(cluster.as_ref().map(|c| &c.client), &events, drain);
        if let Some(cluster) = cluster {
            self.start_certificates(&cluster.client, drain);
            self.start_node(&cluster.client, shared, events, node_sender, node, drain)?;
        }
        tracing::info!(node = self.machine.name, boot = self.boot_id, "orchlet is running");
        Ok(shutdown)
    }
}

impl Agent {
    /// Starts the registration of CSI drivers and device plugins.
    fn start_drivers(&self, client: Option<&Client>, events: &NodeEvents, drain: &Drain) {
        let announce: Arc<dyn registration::DriverAnnouncer> = match client {
            Some(client) => {
                Arc::new(ClusterDrivers { client: client.clone(), node: self.machine.name.clone() })
            }
            None => Arc::new(NoCluster),
        };
        let devices = self.resources.allocator.plugins().clone();
        let announce = Arc::new(WithDevices { drivers: announce, devices });
        let dir = self.storage.root_dir.join("plugins_registry");
        let drivers = self.storage.csi.drivers().clone();
        let follow = registration::run(dir, drivers, announce, agent_csi::driver::CHANGE);
        tokio::spawn(until(drain.watch(), follow));
        let (csi, of_node) = (self.storage.csi.clone(), events.clone());
        let report = move |error: &CsiError| {
            let error = chain(error);
            tracing::warn!(error, "cannot unstage a volume that no pod uses; retried");
            of_node.record_event(EventKind::Warning, "FailedUnMount", error);
        };
        tokio::spawn(until(drain.watch(), async move { csi.keep_unstaged(report).await }));
        let (disks, of_node) = (self.storage.disks.clone(), events.clone());
        let pods = agent_volume::VolumesOnDisk::new(&self.storage.root_dir, self.settings.names);
        let report = move |error: &str| {
            tracing::warn!(error, "cannot detach a disk that no pod uses; retried");
            of_node.record_event(EventKind::Warning, "FailedUnMount", error.to_owned());
        };
        tokio::spawn(until(drain.watch(), async move { disks.detach_unused(&pods, report).await }));
    }
}

async fn until(drain: DrainWatch, work: impl Future<Output = ()>) {
    // Cancel safe: the next start finds the state that `work` leaves.
    tokio::select! {
        () = drain.asked() => {}
        () = work => {}
    }
}
