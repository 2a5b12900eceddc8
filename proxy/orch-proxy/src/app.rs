//! Startup: [`build`] does everything that can fail before forwarding begins.

use std::sync::Arc;

use proto_client::Client;
use proto_client::metrics::RequestMetrics;
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::health::{Health, Scope};
use proto_daemon::metrics::Metrics;
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_kernel::{NftMonitor, Socket, Transport};
use proxy_node_addresses::announcer::{Announcer, AnnouncerInputs, Followed};
use proxy_pod_routes::router;
use proxy_rules::Dataplane;
use proxy_rules::model::ConnectionCounting;
use proxy_sync::conntrack_cleanup;
use proxy_sync::counters::ServiceCounters;
use proxy_sync::desired::DesiredForwarding;
use proxy_sync::driver::{Driver, SyncIntervals, ThreadError};
use proxy_sync::metrics::ProxyMetrics;
use proxy_userspace::ForwardMetrics;

use crate::build_error::BuildError;
use crate::config::{Config, LoopbackNodePorts, PodRoutes};
use crate::dns::{self, Nameserver};
use crate::forwarding_path::NetfilterHandle;
use crate::health_check;
use crate::health_metrics::HealthMetrics;
use crate::health_page::HealthPage;
use crate::host;
use crate::local_node;
use crate::loopback;
use crate::metrics_page::MetricsPage;
use crate::sources::{self, ChangeHandlers};
use crate::startup::{self, BUILD};
use crate::tables;

/// The proxy in nftables mode, built but not running.
pub struct NftablesProxy<T = Socket> {
    client: Client,
    config: Config,
    desired: Arc<DesiredForwarding>,
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
    let client = startup::client(&config)?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    host::prepare(&config.conntrack);
    host::protect_from_oom(config.oom_score_adj);
    let config = startup::with_node_blocks(&client, config).await?;
    let config = startup::with_protected(&client, config).await;
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
    let layout = tables::layout(&features, &config);
    let stale_flow_log = tables::stale_flow_log(&layout);
    let desired = Arc::new(DesiredForwarding::new(Dataplane::new(layout)));
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
    let health = Health::new(readiness)
        .with("forwarding-current", Scope::Live, move || Ok(sync_health.check()?));
    let forwards = desired.clone();
    let nameserver = startup::nameserver(&config, forwards, &registry, &prefix, &status)?;
    let pages = AdminPages { health, metrics: registry, status };
    let health_counts = HealthMetrics::register(&pages.metrics, &prefix)?;
    let health_server = startup::bind(config.health_address, &config).await?;
    let metrics_server = startup::bind(config.metrics_address, &config).await?;
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
            && let Err(error) = dns::start(nameserver, drain.clone()).await
        {
            tracing::error!(%error, "cannot start the DNS thread; DNS is not served");
        }
        let listeners = ChangeHandlers { forwards: self.desired.clone(), names };
        self.start_loopback(&drain);
        let followed = sources::start(&self.client, &self.config, &listeners, &drain);
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
        if self.config.settings.counting == ConnectionCounting::On {
            self.start_counters(&drain);
        }
        if self.config.pod_routes == PodRoutes::Keep {
            let status = self.pages.status.task("pod routes");
            let cluster = self.config.settings.cluster_cidrs.clone();
            router::start(&self.client, &self.config.node_name, cluster, status, &drain);
        }
        if self.config.settings.announcing.is_some() {
            self.start_announcer(followed, &drain).await;
        }
        self.driver.run_on_thread(drain).await
    }

    /// Before rules are committed, so that they guard what an earlier process left.
    async fn start_announcer(&self, followed: Followed, drain: &DrainWatch) {
        let status = self.pages.status.task("addresses of load balancers");
        let forwards = self.desired.clone();
        let inputs = AnnouncerInputs {
            desired: self.desired.announced_addresses(),
            followed,
            guard_assigned: Box::new(move |addresses| forwards.guard_assigned(addresses)),
        };
        Announcer::new(&self.client, &self.config.node_name, inputs, status).start(drain).await;
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
