//! The program: built from settings, bound to its sockets, run until it is told to stop. The parts are below `app/`; here is their
//! order.

mod allocation;
mod cluster;
mod node;
mod parts;
mod runtime;
mod serve;
mod upkeep;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent_csi::{CsiError, CsiNode, Drivers, registration};
use agent_host::cgroups::Cgroups;
use agent_host::machine;
use agent_node::status::{self, Machine};
use agent_runtime::cri::CriRuntime;
use agent_runtime::observe;
use agent_volume::private;
use agent_volume::shared_mounts::SharedMounts;
use proto_client::Client;
use proto_client::config::file;
use proto_client::events::EventKind;
use proto_client::metrics::RequestMetrics;
use proto_daemon::drain::{Drain, DrainWatch, stop_signal};
use proto_daemon::exit::Failure;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{mpsc, watch};

use crate::allocator::Allocator;
use crate::bootstrap;
use crate::config::Settings;
use crate::csi_node::{ClusterDrivers, NoCluster, WithDevices};
use crate::images::Logins;
use crate::journal::{Journal, Record};
use crate::metrics::{AgentMetrics, Registrations};
use crate::node_events::NodeEvents;
use crate::persistent_volumes::block::Disks;
use crate::persistent_volumes::helpers::OnNode;
use crate::pod_cgroups::{Bounded, Enforced, NodePlace};
use crate::pods::in_hand::InHand;
use crate::pods::runtime_limiter::Turns;
use crate::pods::{Found, Pods};
use crate::shutdown::Shutdown;

/// What sources say that waits for the pods' dispatcher.
const SAID_LEN: usize = 256;
/// How long parts may take to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Everything that is needed to run, before anything runs.
pub struct Bound {
    allocator: Arc<Allocator>,
    settings: Settings,
    machine: Machine,
    boot_id: String,
    runtime: CriRuntime,
    client: Option<Client>,
    place: NodePlace,
    /// Where pods are kept, free of links.
    root_dir: PathBuf,
    csi: Arc<CsiNode>,
    disks: Arc<Disks>,
    journal: Journal,
    in_hand: InHand,
    records: BTreeMap<String, Record>,
    board: StatusBoard,
    logins: Logins,
    registry: Metrics,
    metrics: AgentMetrics,
    turns: Arc<Turns>,
}

/// Reads the machine, opens the journal, makes the clients. Changes nothing but the agent's own directories and cgroups.
///
/// # Errors
/// What is missing or wrong, as the program's failure.
pub fn build(settings: Settings) -> Result<Bound, Failure> {
    if let Ok(score) = i16::try_from(settings.file.oom_score_adj)
        && let Err(error) = machine::set_oom_score_adj(score)
    {
        tracing::info!(score, %error, "oomScoreAdj is not set: a score below the present one needs CAP_SYS_RESOURCE");
    }
    let root = &settings.flags.root_dir;
    for directory in [root.clone(), root.join("pods")] {
        private::make(&directory).map_err(|error| {
            Failure::run(format!(
                "{} cannot be the agent's own directory: {error}",
                directory.display()
            ))
        })?;
    }
    let identity = machine::identity();
    let machine = node::describe(&settings, &identity)?;
    let runtime =
        CriRuntime::held(&settings.file.container_runtime_endpoint).map_err(Failure::usage)?;
    let (journal, records) =
        Journal::open(&root.join("journal.redb"), &identity.boot_id).map_err(Failure::run)?;
    // After the journal, which no two processes have at a time.
    let in_hand = InHand::open(&root.join("in-hand")).unwrap_or_else(|error| {
        tracing::warn!(%error, "pods that end the agent are not known by the next one");
        InHand::default()
    });
    let cgroups = Cgroups::detect().map_err(Failure::run)?;
    let pids = u64::try_from(settings.file.pod_pids_limit).ok().filter(|limit| *limit > 0);
    let driver = settings.file.cgroup_driver.into();
    let place = NodePlace::new(
        cgroups,
        &settings.file.cgroup_root,
        driver,
        pids,
        settings.file.cpu_bound(),
    );
    let (capacity, _) = status::capacity(&machine.capacity, &machine.reserved);
    place.prepare(&capacity, &enforced(&settings, &machine)).map_err(Failure::run)?;
    let (registry, metrics) = metrics(&settings, &machine).map_err(Failure::run)?;
    let logins = upkeep::logins(&settings, &metrics.acts)?;
    let client = client(&settings, &registry)?;
    let allocator = allocation::allocator(&settings, &machine, &journal, metrics.acts.clone())?;
    let registrations = Registrations::new(settings.names, allocator.plugins().clone());
    registrations.and_then(|all| registry.register(all)).map_err(Failure::run)?;
    let root_dir = root.canonicalize().map_err(Failure::run)?;
    if let Err(error) = agent_volume::mount::share(&root_dir) {
        // Without it everything works but drivers that run in pods.
        tracing::warn!(%error, "mounts of drivers in pods do not travel to the node");
    }
    let csi = CsiNode::open(&root_dir, settings.names, &machine.name, Drivers::default());
    let csi = Arc::new(csi.map_err(Failure::run)?);
    let mounts = SharedMounts::new(&root_dir, settings.names);
    let disks = Arc::new(Disks::new(mounts, Arc::new(OnNode), csi.changes().clone()));
    Ok(Bound {
        allocator,
        root_dir,
        csi,
        disks,
        logins,
        machine,
        boot_id: identity.boot_id,
        runtime,
        client,
        place,
        journal,
        in_hand,
        records,
        board: StatusBoard::default(),
        registry,
        metrics,
        settings,
        turns: Arc::new(Turns::new(processors())),
    })
}

/// Processors that this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Which bounds the settings ask for.
fn enforced(settings: &Settings, machine: &Machine) -> Enforced {
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
            .map(|(_, place, amounts)| (place.clone(), amounts.clone()))
            .collect(),
    }
}

/// The registry, with what the agent counts in it.
fn metrics(
    settings: &Settings,
    machine: &Machine,
) -> Result<(Metrics, AgentMetrics), prometheus::Error> {
    let build = BuildInfo { version: env!("CARGO_PKG_VERSION"), commit: "unknown" };
    let registry = Metrics::new(&settings.names.metric_prefix("let"), build)?;
    let metrics = AgentMetrics::register(&registry, settings.names, &machine.name)?;
    let calls = metrics.clone();
    observe::set(move |ended| calls.call(ended));
    Ok((registry, metrics))
}

fn client(settings: &Settings, registry: &Metrics) -> Result<Option<Client>, Failure> {
    let Some(path) = &settings.flags.kubeconfig else { return Ok(None) };
    let mut config = file::load(path, None).map_err(Failure::usage)?;
    if settings.file.rotate_certificates {
        bootstrap::renewed_identity(settings, &mut config).map_err(Failure::run)?;
    }
    let agent = format!("orchlet/{}", env!("CARGO_PKG_VERSION"));
    let client = Client::new(&config, settings.names, &agent).map_err(Failure::usage)?;
    let requests = RequestMetrics::register(registry).map_err(Failure::run)?;
    Ok(Some(client.with_metrics(requests)))
}

impl Bound {
    /// Runs until SIGTERM or SIGINT. Pods run on after that, unless the signal is all that tells of the machine's end.
    ///
    /// # Errors
    /// A part that everything depends on failed for good.
    pub async fn run(mut self) -> Result<(), Failure> {
        let drain = Drain::default();
        let stop = stop_signal();
        tokio::pin!(stop);
        // Cancel safe: a start that is cut off has changed nothing that the next start does not find.
        let shutdown = tokio::select! {
            signal = &mut stop => {
                tracing::info!(signal = signal.map_err(Failure::run)?, "stopped before the start");
                return Ok(());
            }
            started = self.start(&drain) => started?,
        };
        let signal = stop.await.map_err(Failure::run)?;
        if signal == "SIGTERM" {
            shutdown.on_sigterm().await;
        }
        tracing::info!(signal, "stopping; pods that run run on");
        self.journal.close();
        drain.drain(DRAIN_DEADLINE).await;
        self.in_hand.close();
        Ok(())
    }

    /// Starts every task; what ends pods when the machine shuts down.
    async fn start(&mut self, drain: &Drain) -> Result<Arc<Shutdown>, Failure> {
        let (capacity, _) = status::capacity(&self.machine.capacity, &self.machine.reserved);
        let enforced = enforced(&self.settings, &self.machine);
        self.place.settle(&capacity, &enforced).await.map_err(Failure::run)?;
        self.runtime_ready().await;
        let (node_sender, node) = watch::channel(None);
        let cluster = self.client.clone().map(|client| self.follow_cluster(&client, drain));
        let images = self.images();
        let parts = Arc::new(self.parts(cluster.as_ref(), node.clone(), images));
        let (listed, happened) = self.runtime_from_now().await;
        let (say, said) = mpsc::channel(SAID_LEN);
        let sources = self.start_sources(cluster.as_ref(), &say);
        let found = Found::new(listed, std::mem::take(&mut self.records), parts.left());
        let readiness = Readiness::default();
        let unready = readiness.guard("sources");
        let pods = Pods::new(parts.clone(), self.board.clone(), found, sources, unready);
        tokio::spawn(until(drain.watch(), pods.run(said, happened)));
        let client = cluster.as_ref().map(|c| &c.client);
        self.start_servers(client, &parts, readiness, drain).await?;
        let events = cluster.as_ref().map(|cluster| cluster.events.clone());
        let events = events.unwrap_or_else(|| NodeEvents::new(None, &self.machine.name));
        let shutdown = self.start_upkeep(&parts, &events, drain);
        self.start_allocation(&parts, drain);
        self.start_drivers(cluster.as_ref().map(|c| &c.client), &events, drain);
        if let Some(cluster) = cluster {
            self.start_certificates(&cluster.client, drain);
            self.start_node(&cluster.client, parts, events, node_sender, node, drain)?;
        }
        tracing::info!(node = self.machine.name, boot = self.boot_id, "running");
        Ok(shutdown)
    }
}

impl Bound {
    /// Starts to take in drivers of volumes, and to tell the cluster of them.
    fn start_drivers(&self, client: Option<&Client>, events: &NodeEvents, drain: &Drain) {
        let announce: Arc<dyn registration::Announce> = match client {
            Some(client) => {
                Arc::new(ClusterDrivers { client: client.clone(), node: self.machine.name.clone() })
            }
            None => Arc::new(NoCluster),
        };
        let devices = self.allocator.plugins().clone();
        let announce = Arc::new(WithDevices { drivers: announce, devices });
        let dir = self.root_dir.join("plugins_registry");
        let drivers = self.csi.drivers().clone();
        let follow = registration::run(dir, drivers, announce, agent_csi::driver::CHANGE);
        tokio::spawn(until(drain.watch(), follow));
        let (csi, of_node) = (self.csi.clone(), events.clone());
        let told = move |error: &CsiError| {
            tracing::warn!(%error, "a volume of no pod is still staged");
            of_node.tell(EventKind::Warning, "FailedUnMount", error.to_string());
        };
        tokio::spawn(until(drain.watch(), async move { csi.keep_unstaged(told).await }));
        let (disks, of_node) = (self.disks.clone(), events.clone());
        let pods = agent_volume::PodVolumes::new(&self.root_dir, self.settings.names);
        let told = move |error: &str| {
            tracing::warn!(error, "a disk of no pod is still there");
            of_node.tell(EventKind::Warning, "FailedUnMount", error.to_owned());
        };
        tokio::spawn(until(drain.watch(), async move { disks.keep_let_go(&pods, told).await }));
    }
}

async fn until(drain: DrainWatch, work: impl Future<Output = ()>) {
    // Cancel safe: what work has begun is found again by the next start.
    tokio::select! {
        () = drain.asked() => {}
        () = work => {}
    }
}
