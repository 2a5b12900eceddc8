//! Health check node ports: report to load balancers whether this node has endpoints of a Service. One server per
//! port; the result is looked up for each request, so changes of endpoints start and stop nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body_util::Full;
use proto_api::core::v1::ObjectReference;
use proto_api::event_report::EventKind;
use proto_client::Client;
use proto_client::events::{self, Recorder};
use proto_daemon::admin::AdminServer;
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::{Drain, DrainWatch};
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proxy_node_addresses::address_table::AddressTableError;
use proxy_node_addresses::local_addresses::local;
use proxy_rules::health::{HealthCheck, HealthChecks};
use proxy_rules::model::{Cidr, ServiceId};
use proxy_sync::driver::SyncHealth;
use tokio::sync::watch;

use crate::config::Config;

/// Header with the number of local endpoints, for load balancers with weights.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";
/// kube-proxy's reason of the event for a port that cannot be bound.
const FAILED: &str = "FailedToStartServiceHealthcheck";
/// Delay before binding is retried.
pub const RETRY: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
/// Time for responses to complete when a server stops.
const DRAIN_DEADLINE: Duration = Duration::from_secs(1);

/// Serves `healthCheckNodePort` of Services.
pub struct HealthCheckServers {
    /// Results by Service.
    pub checks: watch::Receiver<Arc<HealthChecks>>,
    /// If passes fail, every response is 503.
    pub sync_health: SyncHealth,
    /// CIDRs of node addresses to bind; empty for all addresses.
    pub blocks: Vec<Cidr>,
    /// Name of the Node object, for events.
    pub node_name: String,
    /// Recorder of events for ports that cannot be bound.
    pub recorder: Recorder,
    /// Status for `/statusz`.
    pub status: TaskStatus,
    /// Delay before binding is retried.
    pub retry: Backoff,
}

/// Starts the servers and the event recorder, until drained.
pub fn start(
    client: &Client,
    config: &Config,
    checks: watch::Receiver<Arc<HealthChecks>>,
    sync_health: SyncHealth,
    status: TaskStatus,
    drain: &DrainWatch,
) {
    let (component, node_name) = (config.names.component("proxy"), config.node_name.clone());
    let (recorder, writer) = events::recorder(client.clone(), &component, &node_name);
    tokio::spawn(writer.run(drain.clone()));
    let blocks = config.settings.node_port_cidrs.clone();
    let servers = HealthCheckServers {
        checks,
        sync_health,
        blocks,
        node_name,
        recorder,
        status,
        retry: RETRY,
    };
    tokio::spawn(servers.run(drain.clone()));
}

/// A port cannot be bound.
#[derive(Debug, thiserror::Error)]
enum ListenError {
    #[error("cannot list the addresses of this node")]
    Addresses(#[source] AddressTableError),
    #[error("no address of this node is within --nodeport-addresses")]
    NoAddress,
    #[error("cannot listen at {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
}

/// A port that is bound. Dropping the drain stops its servers.
struct Served {
    service: ServiceId,
    drain: Drain,
}

impl HealthCheckServers {
    /// Serves until drained.
    pub async fn run(mut self, drain: DrainWatch) {
        let mut served: BTreeMap<u16, Served> = BTreeMap::new();
        let mut failures: u32 = 0;
        loop {
            self.status.started("services changed, or a port could not be bound");
            let wanted = by_port(&self.checks.borrow_and_update());
            let failed = self.keep(&mut served, &wanted).await;
            match failed {
                0 => self.status.done(format!("{} ports", served.len())),
                _ => self.status.failed(format!("{failed} ports cannot be bound")),
            }
            failures = if failed == 0 { 0 } else { failures.saturating_add(1) };
            // All arms are cancel safe.
            tokio::select! {
                () = drain.asked() => break,
                changed = self.checks.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                () = tokio::time::sleep(self.retry.delay(failures, 1.0)), if failures > 0 => {}
            }
        }
        drain_all(served.into_values()).await;
    }

    /// Starts and stops servers; returns the number of ports that cannot be bound.
    async fn keep(
        &self,
        served: &mut BTreeMap<u16, Served>,
        wanted: &BTreeMap<u16, ServiceId>,
    ) -> usize {
        let is_wanted = |port: &u16, s: &Served| wanted.get(port) == Some(&s.service);
        let stopped: Vec<Served> =
            served.extract_if(.., |port, s| !is_wanted(port, s)).map(|(_, s)| s).collect();
        drain_all(stopped).await;
        let mut failed: usize = 0;
        for (port, service) in wanted {
            if served.contains_key(port) {
                continue;
            }
            match self.serve(*port, service).await {
                Ok(drain) => drop(served.insert(*port, Served { service: service.clone(), drain })),
                Err(error) => {
                    failed = failed.saturating_add(1);
                    self.report(*port, service, &chain(&error));
                }
            }
        }
        failed
    }

    /// Binds a port at all addresses, or at none.
    async fn serve(&self, port: u16, service: &ServiceId) -> Result<Drain, ListenError> {
        let drain = Drain::default();
        let mut servers = Vec::new();
        for address in addresses(&self.blocks).await? {
            servers.push(bind(address, port).await?);
        }
        for server in servers {
            let (checks, sync_health) = (self.checks.clone(), self.sync_health.clone());
            let service = service.clone();
            let answer = move |_: &_| {
                let check = checks.borrow().get(&service).copied();
                answer(&service, check, sync_health.check().is_ok())
            };
            tokio::spawn(server.serve(answer, drain.watch()));
        }
        Ok(drain)
    }

    fn report(&self, port: u16, service: &ServiceId, why: &str) {
        let node = &self.node_name;
        let message =
            format!("node {node} failed to start healthcheck \"{service}\" on port {port}: {why}");
        tracing::warn!(
            %service,
            port,
            error = why,
            "cannot serve the health check node port of a service; load balancers see this node as unhealthy for it"
        );
        let about = ObjectReference {
            kind: "Service".to_owned(),
            api_version: "v1".to_owned(),
            namespace: service.namespace().to_owned(),
            name: service.name().to_owned(),
            ..ObjectReference::default()
        };
        self.recorder.event(&about, EventKind::Warning, FAILED, message);
    }
}

/// Stops servers concurrently, so that a client with connections to many of them delays no new one.
async fn drain_all(stopped: impl IntoIterator<Item = Served>) {
    let drains = stopped.into_iter().map(|port| port.drain.drain(DRAIN_DEADLINE));
    futures_util::future::join_all(drains).await;
}

/// The Service of each port; if several have the same port, which the API server prevents, the first by name.
fn by_port(checks: &HealthChecks) -> BTreeMap<u16, ServiceId> {
    checks.iter().rev().map(|(service, check)| (check.port, service.clone())).collect()
}

async fn bind(address: IpAddr, port: u16) -> Result<AdminServer, ListenError> {
    let at = SocketAddr::new(address, port);
    match AdminServer::bind(at).await {
        // A host without IPv6.
        Err(error)
            if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                && error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT) =>
        {
            let at = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
            AdminServer::bind(at).await.map_err(|error| ListenError::Listen(at, error))
        }
        other => other.map_err(|error| ListenError::Listen(at, error)),
    }
}

/// Addresses to bind: unspecified, or this node's addresses within `blocks`.
async fn addresses(blocks: &[Cidr]) -> Result<Vec<IpAddr>, ListenError> {
    if blocks.is_empty() {
        return Ok(vec![Ipv6Addr::UNSPECIFIED.into()]);
    }
    let local = local().await.map_err(ListenError::Addresses)?;
    let inside = |address: &IpAddr| blocks.iter().any(|block| block.contains(*address));
    let within: Vec<IpAddr> = local.into_iter().filter(inside).collect();
    if within.is_empty() { Err(ListenError::NoAddress) } else { Ok(within) }
}

/// 200 with local endpoints, 503 without. A Service that has been removed has none.
fn answer(service: &ServiceId, check: Option<HealthCheck>, healthy: bool) -> Response<Full<Bytes>> {
    let count = check.map_or(0, |check| check.local_endpoints);
    let (namespace, name) = (service.namespace(), service.name());
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\
         \"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    let mut response = Response::new(Full::new(Bytes::from(body)));
    if count == 0 || !healthy {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    let headers = response.headers_mut();
    let json = header::HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.insert(WEIGHT, header::HeaderValue::from(count));
    response
}

#[cfg(test)]
mod tests;
