//! The DNS server for this node's pods.
//!
//! Pods query the cluster IP of the cluster's DNS Service. On this node that Service has one endpoint, this server at
//! the node's own address, whatever endpoints the API has: a query for a cluster name does not leave the node. The
//! server has a thread of its own, so that syncs and queries do not delay each other. While the process is down,
//! queries are refused; a new process listens first of all, and queries wait for a bounded time until it is synced.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use proto_api::names::Names;
use proto_daemon::backoff::Backoff;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::statusz::TaskStatus;
use proxy_dns::{Zone, ZoneError, resolv_conf};
use proxy_nameserver::{
    BindError, ClientFilter, Listener, NameMetrics, Resolver, SharedZone, Upstreams,
};
use proxy_node_addresses::local_addresses as addresses;
use proxy_rules::model::{
    Cidr, EndpointState, LocalEndpoint, LocalSlice, Locality, Protocol, ServiceId, SlicePort,
};
use proxy_sync::change_handler::ChangeHandler;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::dns_settings::DnsSettings;

/// Interval of checking the node's addresses and resolv.conf.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Delay before binding is retried.
const RETRY: Backoff =
    Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(5) };
/// Names of the EndpointSlices that select this server, by family; the API does not allow such names.
const SLICES: [&str; 2] = ["this node's resolver, IPv4", "this node's resolver, IPv6"];
/// Networks that are not reachable from the internet; clients there may query if the cluster CIDRs are not configured.
const PRIVATE: [&str; 6] =
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fe80::/10"];

/// The cluster's DNS Service.
pub fn service_id(names: &Names) -> ServiceId {
    ServiceId::new(names.system_namespace(), &names.component("dns"))
}

/// The zone of a cluster, empty until synced.
pub fn zone(settings: &DnsSettings, names: &Names) -> Result<Arc<SharedZone>, ZoneError> {
    let own = (names.system_namespace(), names.component("dns"));
    Ok(Arc::new(SharedZone::new(Zone::new(&settings.domain, (own.0, &own.1))?)))
}

/// The EndpointSlice of each family.
type SlicePair = [Option<Arc<LocalSlice>>; 2];

/// The DNS server, built but not running.
pub struct Nameserver {
    /// Configuration of the server.
    pub settings: DnsSettings,
    /// The cluster CIDRs, whose pods may query.
    pub pods: Vec<Cidr>,
    /// Names of the profile.
    pub names: &'static Names,
    /// The cluster's names.
    pub zone: Arc<SharedZone>,
    /// Receives the EndpointSlices that select this server.
    pub forwards: Arc<dyn ChangeHandler>,
    /// Metrics of the server.
    pub metrics: NameMetrics,
    /// Status for `/statusz`.
    pub status: TaskStatus,
}

/// Serves until drained. The EndpointSlices are set at once, before the first sync, so that a restart changes nothing
/// in the kernel.
pub async fn start(nameserver: Nameserver, drain: DrainWatch) -> std::io::Result<()> {
    let local = addresses::local().await.unwrap_or_default();
    let at = nameserver.addresses(&local);
    let slices = nameserver.lead_to(&[None, None], &at);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let body = move || runtime.block_on(nameserver.keep(at, slices, local, drain));
    std::thread::Builder::new().name("dns".into()).spawn(body).map(drop)
}

impl Nameserver {
    /// Addresses to bind.
    fn addresses(&self, local: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        match self.settings.bind_addresses.as_slice() {
            [] => addresses::own(local),
            configured => configured.to_vec(),
        }
    }

    /// Selects these addresses as endpoints of the DNS Service, instead of those of `old`.
    fn lead_to(&self, old: &SlicePair, at: &[IpAddr]) -> SlicePair {
        let new = slices(self.names, at, self.settings.port);
        for (name, (old, new)) in SLICES.into_iter().zip(old.iter().zip(&new)) {
            self.forwards.slice_changed(name, old.as_ref(), new.clone());
        }
        new
    }

    async fn keep(
        self,
        mut at: Vec<IpAddr>,
        mut slices: SlicePair,
        local: BTreeSet<IpAddr>,
        drain: DrainWatch,
    ) {
        let upstreams = Upstreams::new(self.upstreams(&at).await);
        let resolver = Arc::new(Resolver::new(self.zone.clone(), upstreams, self.metrics.clone()));
        let local = Arc::new(RwLock::new(local));
        let client_filter = client_filter(self.pods.clone(), local.clone());
        let mut listening = JoinSet::new();
        let mut failures = 0;
        loop {
            if listening.is_empty() {
                self.status.started("listen");
                match self.listen(&at, &resolver, &client_filter, &mut listening).await {
                    Ok(()) => {
                        failures = 0;
                        self.status
                            .done(format!("listening at {at:?} port {}", self.settings.port));
                    }
                    Err(error) => {
                        failures += 1;
                        tracing::warn!(error = %chain(&error), "cannot serve DNS; retried");
                        self.status.failed(chain(&error));
                    }
                }
            }
            let pause = if failures > 0 { RETRY.delay(failures, 1.0) } else { LOOK_EVERY };
            // Both arms are cancel safe.
            tokio::select! {
                () = drain.asked() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let now = addresses::local().await.unwrap_or_default();
            let wanted = self.addresses(&now);
            *local.write().unwrap_or_else(PoisonError::into_inner) = now;
            if wanted != at && !wanted.is_empty() {
                tracing::info!(
                    ?at,
                    ?wanted,
                    "the node's addresses have changed; the DNS server binds to the new ones"
                );
                listening = JoinSet::new();
                at = wanted;
                slices = self.lead_to(&slices, &at);
            }
            resolver.use_upstreams(Upstreams::new(self.upstreams(&at).await));
        }
    }

    /// Binds all addresses, or none.
    async fn listen(
        &self,
        at: &[IpAddr],
        resolver: &Arc<Resolver>,
        client_filter: &ClientFilter,
        listening: &mut JoinSet<()>,
    ) -> Result<(), BindError> {
        let mut listeners = Vec::new();
        for address in at {
            listeners.push(Listener::bind(SocketAddr::new(*address, self.settings.port)).await?);
        }
        for listener in listeners {
            listening.spawn(listener.run(resolver.clone(), client_filter.clone()));
        }
        Ok(())
    }

    /// Upstream servers, without this server's own addresses and the DNS Service's.
    async fn upstreams(&self, at: &[IpAddr]) -> Vec<SocketAddr> {
        if !self.settings.upstreams.is_empty() {
            return self.settings.upstreams.clone();
        }
        let text = match tokio::fs::read_to_string(&self.settings.resolv_conf).await {
            Ok(text) => text,
            Err(error) => {
                let path = self.settings.resolv_conf.display();
                tracing::debug!(%path, %error, "cannot read resolv.conf: no upstream DNS servers");
                return Vec::new();
            }
        };
        let ourselves = match self.settings.port {
            53 => at.to_vec(),
            _ => Vec::new(),
        };
        let service = self.zone.read().own_addresses();
        resolv_conf::servers(&text, &[ourselves, service].concat())
    }
}

/// The EndpointSlices that select this server, for `trace` and `diff`.
pub async fn own_slices(config: &Config) -> Vec<(String, Arc<LocalSlice>)> {
    let Some(settings) = &config.dns else { return Vec::new() };
    let at = match settings.bind_addresses.as_slice() {
        [] => addresses::own(&addresses::local().await.unwrap_or_default()),
        configured => configured.to_vec(),
    };
    let slices = slices(config.names, &at, settings.port).into_iter();
    let named = SLICES.into_iter().map(str::to_owned).zip(slices);
    named.filter_map(|(name, slice)| Some((name, slice?))).collect()
}

/// The endpoints of the DNS Service on this node, by family. The port names are those of every manifest of that
/// Service.
fn slices(names: &Names, at: &[IpAddr], port: u16) -> SlicePair {
    let port = |name: &str, protocol| SlicePort { name: name.into(), protocol, port };
    let slice = |address: &IpAddr| LocalSlice {
        service: service_id(names),
        ports: [port("dns", Protocol::Udp), port("dns-tcp", Protocol::Tcp)].into(),
        endpoints: [LocalEndpoint {
            address: *address,
            state: EndpointState::Ready,
            place: Locality::Here,
        }]
        .into(),
        hints: Box::default(),
    };
    let of_family = |v4| at.iter().find(|address| address.is_ipv4() == v4);
    [true, false].map(|v4| of_family(v4).map(|address| Arc::new(slice(address))))
}

/// Pods and this node may query. If the cluster CIDRs are not configured, all private addresses may: the socket is
/// bound to the node's address and must not serve the internet.
fn client_filter(pods: Vec<Cidr>, local: Arc<RwLock<BTreeSet<IpAddr>>>) -> ClientFilter {
    let private = || PRIVATE.iter().filter_map(|block| block.parse().ok()).collect();
    let blocks: Vec<Cidr> = if pods.is_empty() { private() } else { pods };
    Arc::new(move |from| {
        let from = from.to_canonical();
        let local = || local.read().unwrap_or_else(PoisonError::into_inner).contains(&from);
        from.is_loopback() || blocks.iter().any(|block| block.contains(from)) || local()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_and_the_node_may_query_dns() {
        let local = Arc::new(RwLock::new(BTreeSet::from(["203.0.113.5".parse().unwrap()])));
        let may = |pods: &[&str], from: &str| {
            let pods = pods.iter().map(|block| block.parse().unwrap()).collect();
            client_filter(pods, local.clone())(from.parse().unwrap())
        };
        for (pods, from, expected) in [
            (&["10.244.0.0/16"][..], "10.244.3.4", true),
            (&["10.244.0.0/16"], "::ffff:10.244.3.4", true),
            (&["10.244.0.0/16"], "127.0.0.1", true),
            (&["10.244.0.0/16"], "203.0.113.5", true),
            (&["10.244.0.0/16"], "10.245.0.1", false),
            (&[], "10.245.0.1", true),
            (&[], "8.8.8.8", false),
            (&[], "2001:db8::1", false),
        ] {
            assert_eq!(may(pods, from), expected, "{from} with {pods:?}");
        }
    }
}
