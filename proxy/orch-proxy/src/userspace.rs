//! Userspace mode: the same sources, health pages and DNS, with [`proxy_userspace`] instead of the driver and the
//! kernel. There are no metrics of passes.

use std::sync::Arc;

use proto_api::core::v1::Node;
use proto_client::metrics::RequestMetrics;
use proto_client::{Change, Client, ListParams, Reflector};
use proto_daemon::admin::{AdminPages, AdminServer};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::health::{Health, Scope};
use proto_daemon::metrics::Metrics;
use proto_daemon::ready::{Readiness, ReadyGuard};
use proto_daemon::statusz::StatusBoard;
use proxy_node_addresses::announcement::internal_addresses;
use proxy_pod_routes::router;
use proxy_sync::driver::SyncHealth;
use proxy_userspace::{ForwardMetrics, Forwarder, ForwarderLimits, Options};

use crate::build_error::BuildError;
use crate::config::{Config, PodRoutes};
use crate::dns::{self, Nameserver};
use crate::health_metrics::HealthMetrics;
use crate::health_page::HealthPage;
use crate::metrics_page::MetricsPage;
use crate::sources::{self, ChangeHandlers};
use crate::startup;
use crate::{cleanup, health_check, local_node};

/// The proxy in userspace mode, built but not running.
pub struct UserspaceProxy {
    client: Client,
    config: Config,
    forwarder: Arc<Forwarder>,
    options: Options,
    sync_health: SyncHealth,
    ready: ReadyGuard,
    nameserver: Option<Nameserver>,
    pages: AdminPages,
    health_counts: HealthMetrics,
    health_server: Option<AdminServer>,
    metrics_server: Option<AdminServer>,
}

/// Builds the proxy. Deletes tables of an earlier process, which would forward too.
pub async fn build(config: Config) -> Result<UserspaceProxy, BuildError> {
    if config.settings.announcing.is_some() {
        return Err(BuildError::AnnouncingInUserSpace);
    }
    let client = startup::client(&config)?;
    config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let config = startup::with_node_blocks(&client, config).await?;
    let config = startup::with_protected(&client, config).await;
    if let Err(error) = cleanup::clean_up(&config) {
        tracing::debug!(
            error = %chain(&error),
            "cannot delete the nftables tables of an earlier process; they stay in the kernel"
        );
    }
    let (readiness, status) = (Readiness::default(), StatusBoard::default());
    let prefix = config.names.metric_prefix("proxy");
    let registry = Metrics::new(&prefix, startup::BUILD)?;
    let client = client.with_metrics(RequestMetrics::register(&registry)?);
    let mut limits = ForwarderLimits::of_open_files();
    limits.idle = config.udp_timeout.unwrap_or(limits.idle);
    let options = Options {
        limits,
        link: Some(config.names.component("proxy")),
        metrics: ForwardMetrics::register(&registry, &prefix)?,
        status: status.task("forwarding"),
    };
    let forwarder = Arc::new(Forwarder::new(config.settings.clone()));
    let ready = readiness.guard("forwarding");
    let sync_health = SyncHealth::default();
    let fresh = sync_health.clone();
    let health =
        Health::new(readiness).with("forwarding-current", Scope::Live, move || Ok(fresh.check()?));
    let nameserver = startup::nameserver(&config, forwarder.clone(), &registry, &prefix, &status)?;
    let pages = AdminPages { health, metrics: registry, status };
    let health_counts = HealthMetrics::register(&pages.metrics, &prefix)?;
    let health_server = startup::bind(config.health_address, &config).await?;
    let metrics_server = startup::bind(config.metrics_address, &config).await?;
    Ok(UserspaceProxy {
        client,
        config,
        forwarder,
        options,
        sync_health,
        ready,
        nameserver,
        pages,
        health_counts,
        health_server,
        metrics_server,
    })
}

impl UserspaceProxy {
    /// Forwards until drained. Connections end with the process.
    pub async fn run(self, drain: DrainWatch) {
        if let Some(server) = self.metrics_server {
            let page = MetricsPage::new(self.pages.clone(), &self.config, "userspace");
            tokio::spawn(server.serve(move |request| page.answer(request), drain.clone()));
        }
        let names = self.nameserver.as_ref().map(|nameserver| nameserver.zone.clone());
        if let Some(nameserver) = self.nameserver
            && let Err(error) = dns::start(nameserver, drain.clone()).await
        {
            tracing::error!(%error, "cannot start the DNS thread; DNS is not served");
        }
        let listeners = ChangeHandlers { forwards: self.forwarder.clone(), names };
        sources::start(&self.client, &self.config, &listeners, &drain);
        watch_nodes(&self.client, self.forwarder.clone(), &drain);
        let mut node = local_node::watch_node(&self.client, &self.config.node_name, &drain);
        let (checks, status) =
            (self.forwarder.health_checks(), self.pages.status.task("health checks"));
        let sync_health = self.sync_health.clone();
        health_check::start(&self.client, &self.config, checks, sync_health, status, &drain);
        if let Some(server) = self.health_server {
            let (pages, sync_health) = (self.pages.clone(), self.sync_health.clone());
            let page =
                HealthPage { pages, sync_health, node: node.clone(), counts: self.health_counts };
            tokio::spawn(server.serve(move |request| page.answer(request), drain.clone()));
        }
        if self.config.pod_routes == PodRoutes::Keep {
            let status = self.pages.status.task("pod routes");
            let cluster = self.config.settings.cluster_cidrs.clone();
            router::start(&self.client, &self.config.node_name, cluster, status, &drain);
        }
        let handle = self.forwarder.clone();
        tokio::spawn(async move {
            // Ends when the watch of the node ends.
            while node.changed().await.is_ok() {
                let zone = node.borrow_and_update().as_ref().and_then(|node| node.zone.clone());
                handle.zone_changed(zone.as_deref());
            }
        });
        let (mut ready, sync_health) = (Some(self.ready), self.sync_health);
        let passed = move || {
            drop(ready.take());
            sync_health.record_pass(true);
        };
        self.forwarder.run(self.options, passed, drain).await;
    }
}

/// Reports the addresses of all Nodes until drained.
fn watch_nodes(client: &Client, forwarder: Arc<Forwarder>, drain: &DrainWatch) {
    let addresses = |node: Node| internal_addresses(&node);
    let nodes = Reflector::projected(client.all::<Node>(), ListParams::default(), addresses);
    let (store, mut is_synced) = (nodes.store(), false);
    tokio::spawn(nodes.run(drain.clone(), move |change| {
        is_synced |= matches!(change, Change::Synced);
        // Most updates of a Node are of other fields.
        let is_same = matches!(&change, Change::Applied { new, old: Some(old), .. } if new == old);
        if is_synced && !is_same {
            forwarder.nodes_changed(store.objects().iter().flat_map(|all| all.to_vec()).collect());
        }
    }));
}
