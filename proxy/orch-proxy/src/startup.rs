//! Steps at the start that both modes take: the client, the configuration with what depends on the node, servers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto_api::core::v1::Node;
use proto_client::config::file;
use proto_client::{Client, ClientConfig};
use proto_daemon::admin::AdminServer;
use proto_daemon::exit::chain;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::statusz::StatusBoard;
use proxy_nameserver::NameMetrics;
use proxy_node_addresses::local_addresses as addresses;
use proxy_pod_routes::pod_cidrs::pod_blocks;
use proxy_sync::change_handler::ChangeHandler;

use crate::build_error::BuildError;
use crate::config::{BindFailure, Config, DetectLocal};
use crate::dns::{self, Nameserver};
use crate::local_node;

/// Version and commit, for `/version` and the metric `build_info`.
pub(crate) const BUILD: BuildInfo = proto_daemon::build_info!();

/// Interval and deadline of requests for the Node object while it has no pod CIDRs.
const NODE_POLL: Duration = Duration::from_secs(1);
const NODE_PATIENCE: Duration = Duration::from_secs(300);
const RESOLVE_PATIENCE: Duration = Duration::from_secs(5);

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

/// Adds to the configuration the sockets that no Service may claim by an external address: the API server's, at the
/// addresses that its name has now, and those of the kubelet and of this proxy at the node's addresses.
pub(crate) async fn with_protected(client: &Client, mut config: Config) -> Config {
    let server = &client.config().server;
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = server.port_u16().unwrap_or(443);
    let api_server = resolve(host, port).await;
    let node = addresses::local().await.unwrap_or_else(|error| {
        tracing::warn!(
            error = %chain(&error),
            "cannot list the node's addresses; external addresses of services may take ports of the node"
        );
        BTreeSet::new()
    });
    let ports = [KUBELET_PORT, config.health_address.port(), config.metrics_address.port()];
    let own = node.iter().flat_map(|ip| ports.map(|port| SocketAddr::new(*ip, port)));
    config.settings.protected = own.chain(api_server.iter().copied()).collect();
    let here = api_server.into_iter().filter(|at| node.contains(&at.ip())).map(|at| at.port());
    config.settings.kept_ports = ports.into_iter().chain(here).filter(|port| *port != 0).collect();
    config
}

/// The sockets of a host; none if its name is not resolved in time.
async fn resolve(host: &str, port: u16) -> Vec<SocketAddr> {
    match tokio::time::timeout(RESOLVE_PATIENCE, tokio::net::lookup_host((host, port))).await {
        Ok(Ok(sockets)) => sockets.collect(),
        _ => {
            tracing::warn!(host, "cannot resolve the API server; services may take its address");
            Vec::new()
        }
    }
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
                    let blocks = pod_blocks(&node);
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
                        "cannot get the Node object of this node; retried"
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

/// The client of the API server that the configuration selects.
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
