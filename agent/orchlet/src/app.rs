//! The program: built from settings, bound to its sockets, run until it is told to stop.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use agent_host::address;
use agent_host::cgroups::Cgroups;
use agent_host::machine::{self, Identity};
use agent_node::resources::{self, Amounts};
use agent_node::status::{self, Machine, Reserved};
use agent_pod::env::ServiceEnv;
use agent_pod::spec::DnsConfig;
use agent_pod::translate::NodeFacts;
use agent_pod::want::Source;
use agent_runtime::cri::CriRuntime;
use agent_runtime::{Runtime, events, import, pause};
use proto_api::core::v1::{self, Node, NodeSystemInfo, Pod};
use proto_client::config::file;
use proto_client::events::recorder;
use proto_client::{Client, ListParams, Reflector, Store};
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::{Drain, DrainWatch, stop_signal};
use proto_daemon::exit::{Failure, chain};
use proto_daemon::health::Health;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::{Notify, mpsc, watch};

use crate::config::Settings;
use crate::journal::{Journal, Record};
use crate::node::{self, NodeTask};
use crate::objects::{ClusterObjects, NoObjects, Subscribe};
use crate::place::NodePlace;
use crate::pods::parts::Parts;
use crate::pods::seams::Reports;
use crate::pods::{Pods, Said};
use crate::reports::{ClusterReports, NoReports};
use crate::server::Server;
use crate::server::agent::{AgentView, CpuTimes};
use crate::server::open::Opening;
use crate::server::tls::TlsFiles;
use crate::sources::{api, manifests, mirrors};
use crate::volumes::NodeVolumes;
use crate::{network, resolver};

/// Namespace of containerd in which its CRI plugin keeps everything.
const CRI_NAMESPACE: &str = "k8s.io";
/// What sources say that waits for the pods' dispatcher.
const SAID_LEN: usize = 256;
/// Pause between attempts to reach the runtime at the start.
const RUNTIME_RETRY: Duration = Duration::from_millis(250);
/// How often the runtime is looked at as a whole, to repair what no event told of.
const LOOK_PERIOD: Duration = Duration::from_secs(300);
/// Port of the plain health endpoint.
const HEALTHZ_PORT: u16 = 10248;
/// How long parts may take to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);

/// Everything that is needed to run, before anything runs.
pub struct Bound {
    settings: Settings,
    machine: Machine,
    boot_id: String,
    runtime: CriRuntime,
    client: Option<Client>,
    place: NodePlace,
    journal: Journal,
    records: BTreeMap<String, Record>,
    board: StatusBoard,
}

/// Reads the machine, opens the journal, makes the clients. Changes nothing but the agent's own directories and cgroups.
///
/// # Errors
/// What is missing or wrong, as the program's failure.
pub fn build(settings: Settings) -> Result<Bound, Failure> {
    let root = &settings.flags.root_dir;
    std::fs::create_dir_all(root.join("pods")).map_err(Failure::run)?;
    let identity = machine::identity();
    let machine = describe(&settings, &identity)?;
    let runtime =
        CriRuntime::new(&settings.file.container_runtime_endpoint).map_err(Failure::usage)?;
    let client = client(&settings)?;
    let (journal, records) =
        Journal::open(&root.join("journal.redb"), &identity.boot_id).map_err(Failure::run)?;
    let cgroups = Cgroups::detect().map_err(Failure::run)?;
    let pids = u64::try_from(settings.file.pod_pids_limit).ok().filter(|limit| *limit > 0);
    let driver = settings.file.cgroup_driver.into();
    let place = NodePlace::new(cgroups, &settings.file.cgroup_root, driver, pids);
    let (_, allocatable) = status::capacity(&machine.capacity, &machine.reserved);
    place.prepare(&allocatable).map_err(Failure::run)?;
    Ok(Bound {
        machine,
        boot_id: identity.boot_id,
        runtime,
        client,
        place,
        journal,
        records,
        board: StatusBoard::default(),
        settings,
    })
}

fn client(settings: &Settings) -> Result<Option<Client>, Failure> {
    let Some(path) = &settings.flags.kubeconfig else { return Ok(None) };
    let config = file::load(path, None).map_err(Failure::usage)?;
    let agent = format!("orchlet/{}", env!("CARGO_PKG_VERSION"));
    Client::new(&config, settings.names, &agent).map(Some).map_err(Failure::usage)
}

/// What the node is, from the machine and the settings.
fn describe(settings: &Settings, identity: &Identity) -> Result<Machine, Failure> {
    let found = machine::capacity(&settings.flags.root_dir, settings.file.max_pods);
    let found = found.map_err(Failure::run)?;
    let (flags, file) = (&settings.flags, &settings.file);
    if file.fail_swap_on && machine::usage().map_err(Failure::run)?.swap_total_bytes > 0 {
        return Err(Failure::run("swap is active and --fail-swap-on is set"));
    }
    let name = flags.hostname_override.clone().unwrap_or_else(|| identity.hostname.clone());
    let name = name.trim().to_lowercase();
    let ips: Vec<IpAddr> =
        if flags.node_ip.is_empty() { address::node_addresses() } else { flags.node_ip.clone() };
    let mut amounts = Amounts::new();
    resources::add(&mut amounts, &file.system_reserved);
    resources::add(&mut amounts, &file.kube_reserved);
    let version = format!("v1.25.0-orchlet-{}", env!("CARGO_PKG_VERSION"));
    Ok(Machine {
        hostname: name.clone(),
        name,
        ips: ips.iter().map(ToString::to_string).collect(),
        info: NodeSystemInfo {
            machine_id: identity.machine_id.clone(),
            system_uuid: identity.system_uuid.clone(),
            boot_id: identity.boot_id.clone(),
            kernel_version: identity.kernel_version.clone(),
            os_image: identity.os_image.clone(),
            kubelet_version: version.clone(),
            kube_proxy_version: version,
            operating_system: "linux".to_owned(),
            architecture: identity.architecture.to_owned(),
            ..NodeSystemInfo::default()
        },
        capacity: found,
        reserved: Reserved { amounts, eviction_memory_bytes: EVICTION_MEMORY_BYTES },
        port: file.port,
        labels: flags.node_labels.iter().cloned().collect(),
        taints: file.register_with_taints.clone(),
        pod_cidr: file.pod_cidr.clone(),
    })
}

/// Memory kept free of pods, the ecosystem's default `memory.available<100Mi`.
const EVICTION_MEMORY_BYTES: u64 = 100 << 20;

impl Bound {
    /// Runs until SIGTERM or SIGINT. Pods run on after that.
    ///
    /// # Errors
    /// A part that everything depends on failed for good.
    pub async fn run(mut self) -> Result<(), Failure> {
        let drain = Drain::default();
        let stop = stop_signal();
        tokio::pin!(stop);
        // Cancel safe: a start that is cut off has changed nothing that the next start does not find.
        tokio::select! {
            signal = &mut stop => {
                tracing::info!(signal = signal.map_err(Failure::run)?, "stopped before the start");
                return Ok(());
            }
            started = self.start(&drain) => started?,
        }
        let signal = stop.await.map_err(Failure::run)?;
        tracing::info!(signal, "stopping; pods run on");
        self.journal.close();
        drain.drain(DRAIN_DEADLINE).await;
        Ok(())
    }

    /// Starts every task.
    async fn start(&mut self, drain: &Drain) -> Result<(), Failure> {
        self.runtime_ready().await;
        let (node_sender, node) = watch::channel(None);
        let cluster = self.client.clone().map(|client| self.follow_cluster(&client, drain));
        let parts = Arc::new(self.parts(cluster.as_ref(), node.clone()));
        let found = self.found_pods(&parts).await;
        let happened = self.happened();
        let (say, said) = mpsc::channel(SAID_LEN);
        let sources = self.start_sources(cluster.as_ref(), &say);
        let records = std::mem::take(&mut self.records);
        let pods = Pods::new(parts.clone(), self.board.clone(), found, records, sources);
        tokio::spawn(until(drain.watch(), pods.run(said, happened)));
        self.start_servers(cluster.as_ref().map(|c| &c.client), &parts, drain).await?;
        if let Some(cluster) = cluster {
            self.start_node(&cluster.client, parts, node_sender, node, drain)?;
        }
        tracing::info!(node = self.machine.name, boot = self.boot_id, "running");
        Ok(())
    }

    /// Waits for the runtime, and sees to it that it has the sandbox image.
    async fn runtime_ready(&mut self) {
        let name = &self.settings.flags.pod_infra_container_image;
        let mut told = false;
        loop {
            match self.prepare_runtime(name).await {
                Ok(version) => {
                    self.machine.info.container_runtime_version = version;
                    return;
                }
                Err(line) if !told => {
                    told = true;
                    tracing::warn!(error = line, "waiting for the container runtime");
                }
                Err(_) => {}
            }
            tokio::time::sleep(RUNTIME_RETRY).await;
        }
    }

    async fn prepare_runtime(&self, sandbox_image: &str) -> Result<String, String> {
        let runtime = &self.runtime;
        let version = runtime.version().await.map_err(|e| chain(&e))?;
        let there = runtime.image(sandbox_image).await.map_err(|e| chain(&e))?.is_some();
        if !there && version.name == "containerd" {
            let image = pause::image(sandbox_image);
            import::tar(runtime.channel(), CRI_NAMESPACE, &image, import::Keep::Pinned)
                .await
                .map_err(|e| chain(&e))?;
            import::shown(runtime, sandbox_image).await.map_err(|e| chain(&e))?;
        }
        Ok(format!("{}://{}", version.name, version.version))
    }

    /// What the runtime has, and what is left on disk of pods that it has not.
    async fn found_pods(&self, parts: &Parts) -> Vec<agent_runtime::runtime::PodOnNode> {
        let mut found = loop {
            match self.runtime.list().await {
                Ok(found) => break found,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "cannot list pods");
                    tokio::time::sleep(RUNTIME_RETRY).await;
                }
            }
        };
        let entries = std::fs::read_dir(parts.root_dir.join("pods"));
        for entry in entries.into_iter().flatten().flatten() {
            let uid = entry.file_name().to_string_lossy().into_owned();
            let known = found.iter().any(|pod| pod.uid == uid) || self.records.contains_key(&uid);
            if !known {
                found.push(agent_runtime::runtime::PodOnNode { uid, ..Default::default() });
            }
        }
        found
    }

    /// The runtime's news, and every few minutes a reminder to look.
    fn happened(&self) -> mpsc::Receiver<events::Happened> {
        let mut inner = events::watch(self.runtime.clone(), CRI_NAMESPACE);
        let (send, receive) = mpsc::channel(SAID_LEN);
        tokio::spawn(async move {
            let mut reminder = tokio::time::interval(LOOK_PERIOD);
            reminder.tick().await;
            loop {
                // Both arms are cancel safe.
                let news = tokio::select! {
                    news = inner.recv() => news,
                    _ = reminder.tick() => Some(events::Happened::Missed),
                };
                let Some(news) = news else { return };
                if send.send(news).await.is_err() {
                    return;
                }
            }
        });
        receive
    }

    fn parts(&self, cluster: Option<&Cluster>, node: watch::Receiver<Option<Arc<Node>>>) -> Parts {
        let (settings, machine) = (&self.settings, &self.machine);
        let (flags, file) = (&settings.flags, &settings.file);
        let client = cluster.map(|cluster| cluster.client.clone());
        let volumes = NodeVolumes::new(&flags.root_dir, settings.names, client, node);
        let (_, allocatable) = status::capacity(&machine.capacity, &machine.reserved);
        let mut own = Node::default();
        own.metadata.name.clone_from(&machine.name);
        own.metadata.labels = status::labels(settings.names, machine);
        own.spec.taints.clone_from(&machine.taints);
        own.status.allocatable = allocatable;
        Parts {
            runtime: Arc::new(self.runtime.clone()),
            reports: cluster
                .map_or_else(|| Arc::new(NoReports) as Arc<dyn Reports>, |c| c.reports.clone()),
            place: Arc::new(self.place.clone()),
            volumes: Arc::new(volumes),
            objects: cluster
                .map_or_else(|| Arc::new(NoObjects) as Arc<dyn Subscribe>, |c| c.objects.clone()),
            journal: self.journal.clone(),
            facts: NodeFacts {
                pod_logs_dir: flags.pod_logs_dir.to_string_lossy().into_owned(),
                seccomp_dir: flags.root_dir.join("seccomp").to_string_lossy().into_owned(),
                cluster_dns: file.cluster_dns.iter().map(ToString::to_string).collect(),
                cluster_domain: file.cluster_domain.clone(),
                resolver: resolver_of(file),
                memory_bytes: machine.capacity.memory_bytes,
            },
            host_ips: machine.ips.clone(),
            root_dir: flags.root_dir.clone(),
            node: RwLock::new(own),
            pods: Mutex::default(),
        }
    }

    /// Follows what the API server has for this node.
    fn follow_cluster(&self, client: &Client, drain: &Drain) -> Cluster {
        let pods = api::reflector(client, &self.machine.name);
        let services =
            Reflector::projected(client.all::<v1::Service>(), ListParams::default(), service_env);
        let (events, writer) = recorder(client.clone(), "orchlet", &self.machine.name);
        let (pods_store, changed) = (pods.store(), Arc::new(Notify::new()));
        let mirrors_changed = Arc::new(Notify::new());
        let mirrors_kept = Arc::new(Notify::new());
        let pokes = [changed.clone(), mirrors_changed.clone(), mirrors_kept.clone()];
        tokio::spawn(pods.run(drain.watch(), move |_| pokes.iter().for_each(|p| p.notify_one())));
        let objects = Arc::new(ClusterObjects::new(client, services.store()));
        tokio::spawn(services.run(drain.watch(), |_| {}));
        tokio::spawn(writer.run(drain.watch()));
        let reports = ClusterReports::new(client.clone(), events, pods_store.clone());
        Cluster {
            client: client.clone(),
            pods: pods_store,
            changed,
            mirrors_changed,
            mirrors_kept,
            objects,
            reports: Arc::new(reports),
        }
    }

    /// Starts the sources of pods; which there are.
    fn start_sources(&self, cluster: Option<&Cluster>, say: &mpsc::Sender<Said>) -> Vec<Source> {
        let names = self.settings.names;
        let mut sources = Vec::new();
        if let Some(cluster) = cluster {
            sources.push(Source::Api);
            let (store, changed) = (cluster.pods.clone(), cluster.changed.clone());
            tokio::spawn(api::run(store, changed, say.clone(), names));
        }
        if let Some(dir) = &self.settings.file.static_pod_path {
            sources.push(Source::Static);
            let (send, pods) = watch::channel(None);
            let period = self.settings.file.file_check_frequency;
            let node = self.machine.name.clone();
            tokio::spawn(manifests::run(dir.clone(), period, names, node, send));
            let store = cluster.map(|cluster| cluster.pods.clone());
            let changed = cluster.map_or_else(Arc::default, |c| c.mirrors_changed.clone());
            tokio::spawn(mirrors::tell(pods.clone(), store, changed, names, say.clone()));
            if let Some(cluster) = cluster {
                let (client, store) = (cluster.client.clone(), cluster.pods.clone());
                tokio::spawn(mirrors::keep(client, store, pods, cluster.mirrors_kept.clone()));
            }
        }
        sources
    }

    /// Starts the HTTPS endpoint, and health and metrics on a loopback port.
    async fn start_servers(
        &self,
        client: Option<&Client>,
        parts: &Arc<Parts>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let (names, flags) = (self.settings.names, &self.settings.flags);
        let build = BuildInfo { version: env!("CARGO_PKG_VERSION"), commit: "unknown" };
        let pages = AdminPages {
            health: Health::new(Readiness::default()),
            metrics: Metrics::new(&names.metric_prefix("agent"), build).map_err(Failure::run)?,
            status: self.board.clone(),
        };
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, HEALTHZ_PORT));
        let healthz = flags.common.healthz_bind_address;
        let healthz = healthz.map_or(loopback, |address| address.socket(HEALTHZ_PORT));
        match AdminServer::bind(healthz).await {
            Ok(server) => {
                tokio::spawn(server.run(pages.clone(), drain.watch()));
            }
            Err(error) => tracing::warn!(%healthz, %error, "no health endpoint"),
        }
        let server = self.endpoint(client, parts, pages).await?;
        tracing::info!(address = %server.address(), "serving");
        tokio::spawn(server.run(drain.watch()));
        Ok(())
    }

    async fn endpoint(
        &self,
        client: Option<&Client>,
        parts: &Arc<Parts>,
        pages: AdminPages,
    ) -> Result<Server, Failure> {
        let (flags, file) = (&self.settings.flags, &self.settings.file);
        let mut hosts = self.machine.ips.clone();
        hosts.push(self.machine.hostname.clone());
        let shown = parts.clone();
        let view = AgentView {
            runtime: parts.runtime.clone(),
            pods: Box::new(move || shown.shown_pods()),
            node: self.machine.name.clone(),
            pod_logs_dir: flags.pod_logs_dir.clone(),
            root_dir: flags.root_dir.clone(),
            configuration: serde_json::to_value(file).unwrap_or_default(),
            last: CpuTimes::default(),
        };
        let ip = file.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let opening = Opening {
            address: SocketAddr::new(ip, file.port),
            files: TlsFiles {
                identity: file.tls_cert_file.clone().zip(file.tls_private_key_file.clone()),
                client_authority: file.authentication.x509.client_ca_file.clone(),
            },
            hosts,
            rules: flags.access.rules(&self.machine.name),
            client: client.cloned(),
            view: Arc::new(view),
            pages,
            names: self.settings.names,
        };
        opening.open().await.map_err(Failure::run)
    }

    /// Starts the tasks of the Node object: status, lease, network.
    fn start_node(
        &self,
        client: &Client,
        parts: Arc<Parts>,
        sender: watch::Sender<Option<Arc<Node>>>,
        node: watch::Receiver<Option<Arc<Node>>>,
        drain: &Drain,
    ) -> Result<(), Failure> {
        let heartbeat = client.separate().map_err(Failure::run)?;
        let observed = node::observe(
            client.clone(),
            self.machine.name.clone(),
            parts.clone(),
            sender.clone(),
            drain.watch(),
        );
        tokio::spawn(observed);
        let task = NodeTask {
            client: heartbeat.clone(),
            machine: self.machine.clone(),
            parts,
            register: self.settings.file.register_node,
            look_every: self.settings.file.node_status_update_frequency,
            report_every: self.settings.file.node_status_report_frequency,
            node: sender,
        };
        tokio::spawn(task.run(self.board.task("node"), drain.watch()));
        let lease = heartbeat.separate().map_err(Failure::run)?;
        let (name, page) = (self.machine.name.clone(), self.board.task("lease"));
        tokio::spawn(node::renew(lease, name, node.clone(), page, drain.watch()));
        if let Some(dir) = self.settings.flags.cni_conf_dir.clone() {
            tokio::spawn(until(drain.watch(), network::follow(dir, node)));
        }
        Ok(())
    }
}

/// What the API server gives to the other parts.
struct Cluster {
    client: Client,
    pods: Store<Pod>,
    changed: Arc<Notify>,
    mirrors_changed: Arc<Notify>,
    mirrors_kept: Arc<Notify>,
    objects: Arc<ClusterObjects>,
    reports: Arc<ClusterReports>,
}

/// A service as it shows in environments; one without an address of its own does not.
fn service_env(service: v1::Service) -> Option<ServiceEnv> {
    let ip = &service.spec.cluster_ip;
    if ip.is_empty() || ip == "None" {
        return None;
    }
    let ports = service.spec.ports.iter();
    Some(ServiceEnv {
        name: service.metadata.name.clone(),
        cluster_ip: ip.clone(),
        ports: ports.map(|p| (p.name.clone(), p.protocol.clone(), p.port)).collect(),
    })
}

fn resolver_of(file: &crate::config::FileConfig) -> DnsConfig {
    match std::fs::read_to_string(&file.resolv_conf) {
        Ok(text) => resolver::parse(&text),
        Err(error) => {
            tracing::warn!(path = %file.resolv_conf.display(), %error, "no resolver configuration");
            DnsConfig::default()
        }
    }
}

async fn until(drain: DrainWatch, work: impl Future<Output = ()>) {
    // Cancel safe: what work has begun is found again by the next start.
    tokio::select! {
        () = drain.asked() => {}
        () = work => {}
    }
}
