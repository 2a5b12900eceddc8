//! Startup: [`build`] does everything that can fail before forwarding begins.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use proto_api::core::v1::Node;
use proto_client::config::file;
use proto_client::metrics::RequestMetrics;
use proto_client::{Client, ClientConfig};
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::health::{Health, Scope};
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_dns::ZoneError;
use proxy_kernel::{CommitError, KernelFeatures, NftMonitor, OpenError, Socket, Transport};
use proxy_nameserver::NameMetrics;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::Dataplane;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::Counting;
use proxy_rules::stale_flow_log::StaleFlowLog;
use proxy_userspace::ForwardMetrics;

use crate::addresses;
use crate::config::{BindFailure, Config, DetectLocal, LoopbackNodePorts, PodRoutes};
use crate::conntrack_cleanup;
use crate::counters::ServiceCounters;
use crate::desired::Desired;
use crate::dns::{self, Nameserver};
use crate::driver::{Driver, SyncIntervals, ThreadError};
use crate::health_check;
use crate::health_page::HealthPage;
use crate::host;
use crate::local_node;
use crate::loopback;
use crate::metrics::{HealthMetrics, ProxyMetrics};
use crate::metrics_page::MetricsPage;
use crate::mode::NetfilterHandle;
use crate::router;
use crate::sources::{self, ChangeHandler, ChangeHandlers};

/// NFLOG group for packets of stale flows; high, so that it does not collide with groups that other software uses.
const STALE_FLOW_GROUP: u16 = 0x4f50;

/// Interval and deadline of requests for the Node object while it has no pod CIDRs.
const NODE_POLL: Duration = Duration::from_secs(1);
const NODE_PATIENCE: Duration = Duration::from_secs(300);

/// The proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Neither a kubeconfig nor an in-cluster configuration exists.
    #[error("no client configuration found: set --kubeconfig")]
    NoClientConfig,
    /// The kubeconfig is invalid.
    #[error("load the client configuration")]
    ClientConfig(#[source] proto_client::config::ConfigError),
    /// `--master` is not a URL.
    #[error("--master {0:?} is not a URL")]
    Master(String),
    /// The TLS configuration is invalid.
    #[error("create the API client")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The netlink socket cannot be opened.
    #[error("open a netlink socket to netfilter")]
    Kernel(#[from] OpenError),
    /// The kernel refused the probe transactions.
    #[error("probe the kernel's nf_tables features")]
    KernelFeatures(#[source] CommitError),
    /// Two metrics have the same name.
    #[error("register metrics")]
    Metrics(#[from] prometheus::Error),
    /// The cluster domain is not a DNS name.
    #[error("prepare the DNS zone")]
    Names(#[from] ZoneError),
    /// The address is in use and `bindAddressHardFail` is set.
    #[error("listen at {0}")]
    Bind(SocketAddr, #[source] std::io::Error),
    /// `--detect-local-mode=NodeCIDR` is set and the Node object has no pod CIDRs.
    #[error("node {0} has no spec.podCIDRs")]
    NodeBlocks(String),
    /// The thread cannot be created.
    #[error("start the conntrack cleanup thread")]
    ConntrackCleanup(#[source] std::io::Error),
}

/// Version and commit, for `/version` and the metric `build_info`.
pub(crate) const BUILD: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    commit: match option_env!("ORCH_COMMIT") {
        Some(commit) => commit,
        None => "unknown",
    },
};

/// The proxy in nftables mode, built but not running.
pub struct NftablesProxy<T = Socket> {
    client: Client,
    config: Config,
    desired: Arc<Desired>,
    driver: Driver<T>,
    nameserver: Option<Nameserver>,
    pages: AdminPages,
    health_counts: HealthMetrics,
    health_server: Option<AdminServer>,
    metrics_server: Option<AdminServer>,
}

/// Builds the proxy. Also sets sysctls and `oom_score_adj`; failures of these are logged and not fatal.
pub async fn build<T: Transport>(
    config: Config,
    kernel: NetfilterHandle<T>,
) -> Result<NftablesProxy<T>, BuildError> {
    let client = client(&config)?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    host::prepare(&config.conntrack);
    host::protect_from_oom(config.oom_score_adj);
    let config = with_protected(&client, with_node_blocks(&client, config).await?);
    if config.settings.cluster_cidrs.iter().any(|block| !block.is_ipv4()) {
        host::forward_ipv6();
    }
    let readiness = Readiness::default();
    let status = StatusBoard::default();
    let prefix = config.names.metric_prefix("proxy");
    let registry = Metrics::new(&prefix, BUILD)?;
    let metrics = ProxyMetrics::register(&registry, &prefix)?;
    let client = client.with_metrics(RequestMetrics::register(&registry)?);
    let NetfilterHandle { session, features } = kernel;
    let layout = layout(&features, &config);
    let stale_flow_log = stale_flow_log(&layout);
    let desired = Arc::new(Desired::new(Dataplane::new(layout)));
    let cleanup_queue = conntrack_cleanup::start(
        metrics.clone(),
        Some(stale_flow_log),
        conntrack_cleanup::SETTLE_DELAY,
        conntrack_cleanup::UNREPLIED_DELAY,
    )
    .map_err(BuildError::ConntrackCleanup)?;
    let mut driver = Driver::new(
        desired.clone(),
        session,
        cleanup_queue,
        metrics,
        status.task("forwarding"),
        readiness.guard("forwarding"),
        SyncIntervals { read_back: config.sync_period, between: config.min_sync_period },
    );
    match NftMonitor::open() {
        Ok(nft_monitor) => driver.use_nft_monitor(nft_monitor),
        Err(error) => {
            tracing::debug!(
                error = %chain(&error),
                "cannot open a socket for nftables notifications; polling the ruleset generation instead"
            )
        }
    }
    let sync_health = driver.sync_health();
    let health =
        Health::new(readiness).with("forwarding-current", Scope::Live, move || sync_health.check());
    let forwards = desired.clone();
    let nameserver = nameserver(&config, forwards, &registry, &prefix, &status)?;
    let pages = AdminPages { health, metrics: registry, status };
    let health_counts = HealthMetrics::register(&pages.metrics, &prefix)?;
    let health_server = bind(config.health_address, &config).await?;
    let metrics_server = bind(config.metrics_address, &config).await?;
    Ok(NftablesProxy {
        client,
        config,
        desired,
        driver,
        nameserver,
        pages,
        health_counts,
        health_server,
        metrics_server,
    })
}

/// Binds a server. Whether a failure is an error or a warning depends on `bindAddressHardFail`.
pub(crate) async fn bind(
    address: SocketAddr,
    config: &Config,
) -> Result<Option<AdminServer>, BuildError> {
    match (AdminServer::bind(address).await, config.bind_failure) {
        (Ok(server), _) => Ok(Some(server)),
        (Err(error), BindFailure::End) => Err(BuildError::Bind(address, error)),
        (Err(error), BindFailure::Warn) => {
            tracing::warn!(%address, %error, "cannot serve health and metrics");
            Ok(None)
        }
    }
}

/// The DNS server, with `--dns`.
pub(crate) fn nameserver(
    config: &Config,
    forwards: Arc<dyn ChangeHandler>,
    registry: &Metrics,
    prefix: &str,
    status: &StatusBoard,
) -> Result<Option<Nameserver>, BuildError> {
    let Some(settings) = config.dns.clone() else { return Ok(None) };
    Ok(Some(Nameserver {
        zone: dns::zone(&settings, config.names)?,
        pods: config.settings.cluster_cidrs.clone(),
        names: config.names,
        forwards,
        metrics: NameMetrics::register(registry, prefix)?,
        status: status.task("names"),
        settings,
    }))
}

/// Port of the kubelet's HTTPS server by default.
const KUBELET_PORT: u16 = 10250;

/// Adds to the configuration the sockets that no Service may claim by an external address: the API server's, if its
/// URL has an IP address, and those of the kubelet and of this proxy at the node's addresses.
pub(crate) fn with_protected(client: &Client, mut config: Config) -> Config {
    let server = &client.config().server;
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = server.port_u16().unwrap_or(443);
    let api_server = host.parse().ok().map(|address: IpAddr| SocketAddr::new(address, port));
    let node = addresses::local().unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "cannot list the node's addresses; external addresses of services may take ports of the node"
        );
        BTreeSet::new()
    });
    let ports = [KUBELET_PORT, config.health_address.port(), config.metrics_address.port()];
    let own = node.iter().flat_map(|ip| ports.map(|port| SocketAddr::new(*ip, port)));
    config.settings.protected = own.chain(api_server).collect();
    let here = api_server.filter(|at| node.contains(&at.ip())).map(|at| at.port());
    config.settings.kept_ports = ports.into_iter().chain(here).filter(|port| *port != 0).collect();
    config
}

/// Adds the node's pod CIDRs to the configuration with `--detect-local-mode=NodeCIDR`. Waits until the Node object has
/// some.
pub(crate) async fn with_node_blocks(
    client: &Client,
    mut config: Config,
) -> Result<Config, BuildError> {
    if config.detect_local == DetectLocal::Static {
        return Ok(config);
    }
    let nodes = client.all::<Node>();
    let blocks = async {
        loop {
            match nodes.find(&config.node_name).await {
                Ok(Some(node)) => {
                    let blocks = local_node::pod_blocks(&node);
                    if !blocks.is_empty() {
                        return blocks;
                    }
                    tracing::info!(
                        node = config.node_name,
                        "waiting for spec.podCIDRs of this node"
                    );
                }
                Ok(None) => tracing::info!(
                    node = config.node_name,
                    "waiting for the Node object of this node"
                ),
                Err(error) => {
                    tracing::warn!(
                        error = %chain(&error),
                        "cannot get the Node object of this node; trying again"
                    )
                }
            }
            tokio::time::sleep(NODE_POLL).await;
        }
    };
    let blocks = tokio::time::timeout(NODE_PATIENCE, blocks).await;
    let blocks = blocks.map_err(|_| BuildError::NodeBlocks(config.node_name.clone()))?;
    config.settings.local_traffic = local_node::local_traffic(&blocks);
    Ok(config)
}

/// The layout of the tables on this kernel.
pub fn layout(features: &KernelFeatures, config: &Config) -> Layout {
    if features.families.len() < FAMILIES.len() || features.owner_flags == TableFlags::NONE {
        tracing::info!(
            ?features,
            "this kernel lacks an address family or table ownership; forwarding without it"
        );
    }
    Layout {
        table: config.table.clone(),
        flags: features.owner_flags,
        families: features.families.clone(),
        settings: config.settings.clone(),
    }
}

/// The stale flow log of tables with this layout.
pub fn stale_flow_log(layout: &Layout) -> StaleFlowLog {
    StaleFlowLog::new(&layout.table, layout.flags, &layout.families, STALE_FLOW_GROUP)
}

pub(crate) fn client(config: &Config) -> Result<Client, BuildError> {
    let environment = |name: &str| std::env::var(name).ok();
    let mut client = match &config.kubeconfig {
        Some(path) => file::load(path, None).map_err(BuildError::ClientConfig)?,
        None => match ClientConfig::in_cluster(config.names, environment) {
            Ok(inside) => inside,
            Err(_) => {
                let path = file::locate(config.names, None, environment);
                let path = path.filter(|p| p.exists()).ok_or(BuildError::NoClientConfig)?;
                file::load(&path, None).map_err(BuildError::ClientConfig)?
            }
        },
    };
    if let Some(master) = &config.master {
        client.server = master.parse().map_err(|_| BuildError::Master(master.clone()))?;
    }
    let agent = concat!("orch-proxy/", env!("CARGO_PKG_VERSION"));
    Client::new(&client, config.names, agent).map_err(|error| BuildError::Client(error.into()))
}

impl<T: Transport + Send + 'static> NftablesProxy<T> {
    /// Addresses of the health and metrics servers, if they listen.
    pub fn addresses(&self) -> Vec<std::net::SocketAddr> {
        let servers = self.health_server.iter().chain(&self.metrics_server);
        servers.map(AdminServer::address).collect()
    }

    /// Forwards until drained and the commit under way is done. The kernel keeps the ruleset.
    pub async fn run(mut self, drain: DrainWatch) -> Result<(), ThreadError> {
        if let Some(server) = self.metrics_server.take() {
            let page = MetricsPage::new(self.pages.clone(), &self.config, "nftables");
            tokio::spawn(server.serve(move |request| page.answer(request), drain.clone()));
        }
        let names = self.nameserver.as_ref().map(|nameserver| nameserver.zone.clone());
        if let Some(nameserver) = self.nameserver.take()
            && let Err(error) = dns::start(nameserver, drain.clone())
        {
            tracing::error!(%error, "cannot start the DNS thread; DNS is not served");
        }
        let listeners = ChangeHandlers { forwards: self.desired.clone(), names };
        self.start_loopback(&drain);
        sources::start(&self.client, &self.config, &listeners, &drain);
        let node = local_node::watch_node(&self.client, &self.config.node_name, &drain);
        if let Some(server) = self.health_server.take() {
            let (pages, sync_health) = (self.pages.clone(), self.driver.sync_health());
            let page = HealthPage {
                pages,
                sync_health,
                node: node.clone(),
                counts: self.health_counts.clone(),
            };
            tokio::spawn(server.serve(move |request| page.answer(request), drain.clone()));
        }
        let detect = self.config.detect_local;
        tokio::spawn(local_node::update_dataplane(
            node,
            detect,
            self.desired.clone(),
            drain.clone(),
        ));
        let checks = self.desired.health_checks();
        let (sync_health, status) =
            (self.driver.sync_health(), self.pages.status.task("health checks"));
        health_check::start(&self.client, &self.config, checks, sync_health, status, &drain);
        if self.config.settings.counting == Counting::On {
            self.start_counters(&drain);
        }
        if self.config.pod_routes == PodRoutes::Keep {
            let status = self.pages.status.task("pod routes");
            let cluster = self.config.settings.cluster_cidrs.clone();
            router::start(&self.client, &self.config.node_name, cluster, status, &drain);
        }
        self.driver.run_on_thread(drain).await
    }

    fn start_loopback(&self, drain: &DrainWatch) {
        if self.config.loopback_node_ports == LoopbackNodePorts::Leave {
            return;
        }
        let prefix = self.config.names.metric_prefix("proxy");
        let status = self.pages.status.task("node ports at loopback addresses");
        match ForwardMetrics::register(&self.pages.metrics, &prefix) {
            Ok(metrics) => {
                let settings = self.config.settings.clone();
                let forwarder = loopback::start(settings, metrics, status, drain.clone());
                self.desired.serve_loopback(forwarder);
            }
            Err(error) => status.failed(chain(&error)),
        }
    }

    fn start_counters(&self, drain: &DrainWatch) {
        let prefix = self.config.names.metric_prefix("proxy");
        let status = self.pages.status.task("service counters");
        match ServiceCounters::register(&self.pages.metrics, &prefix) {
            Ok(counters) => {
                drop(tokio::spawn(counters.run(self.desired.clone(), status, drain.clone())));
            }
            Err(error) => status.failed(chain(&error)),
        }
    }
}
