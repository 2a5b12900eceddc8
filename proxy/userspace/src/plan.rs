//! Pure: the frontends and their endpoints.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use proxy_netfilter::nft::Family;
use proxy_rules::budget::{Budget, WORK_MAX};
use proxy_rules::endpoint_selection::{Backend, SlicesByPort, select_endpoints};
use proxy_rules::health::{HealthCheck, HealthChecks, local_endpoints};
use proxy_rules::model::{
    Choice, Cidr, LocalPort, LocalService, LocalSlice, Policy, Protocol, ServiceId, Settings,
    Topology, family_of,
};
use proxy_rules::node_ports::NodePortService;

use crate::refusals::{AddressRefusal, ClaimRank, MachineAddresses};

/// Budget of a frontend: a Service may have 4096 of them.
const FRONTEND_WORK: usize = WORK_MAX / 4096;

/// Destination of clients: address, port and protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    pub protocol: Protocol,
    /// Address and port.
    pub at: SocketAddr,
}

/// A port of a Service in one family: all its frontends share the affinity of clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePort {
    pub service: ServiceId,
    /// Name of its port.
    pub port: Box<str>,
    pub protocol: Protocol,
    /// Whether for IPv4.
    pub is_v4: bool,
}

/// Endpoints of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendBackends {
    pub service_port: ServicePort,
    /// Endpoints for clients inside the cluster.
    pub inside: Arc<[SocketAddr]>,
    /// Endpoints for clients outside.
    pub outside: Arc<[SocketAddr]>,
    /// How one is chosen.
    pub choice: Choice,
    /// Source ranges; empty if not restricted.
    pub only: Arc<[Cidr]>,
}

impl FrontendBackends {
    /// The endpoints for a client.
    pub fn backends(&self, client: IpAddr, is_inside: bool) -> &[SocketAddr] {
        if !is_inside && !self.admits(client) {
            return &[];
        }
        if is_inside { &self.inside } else { &self.outside }
    }

    fn admits(&self, client: IpAddr) -> bool {
        let mut blocks = self
            .only
            .iter()
            .filter(|block| family_of(block.first()) == family_of(client))
            .peekable();
        blocks.peek().is_none() || blocks.any(|block| block.contains(client))
    }

    /// Whether any client may reach the endpoint.
    pub fn has(&self, backend: &SocketAddr) -> bool {
        self.inside.contains(backend) || self.outside.contains(backend)
    }

    /// Whether there are no endpoints.
    pub fn is_empty(&self) -> bool {
        self.inside.is_empty() && self.outside.is_empty()
    }
}

/// Clients inside the cluster: pods and this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRange {
    pods: Vec<Cidr>,
    addresses: BTreeSet<IpAddr>,
}

impl ClusterRange {
    /// Whether a client is inside.
    pub fn contains(&self, client: IpAddr) -> bool {
        let is_pod = || self.pods.iter().any(|block| block.contains(client));
        client.is_loopback() || is_pod() || self.addresses.contains(&client)
    }
}

/// The sockets to open and to close after a change of Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerChanges {
    /// Frontends without endpoints.
    pub close: Vec<Frontend>,
    /// Frontends that are new or have other endpoints.
    pub open: Vec<(Frontend, Arc<FrontendBackends>)>,
    /// Addresses that Services name and do not get, of Services for which these have changed. For the log.
    pub refused: Vec<(ServiceId, RefusedAddresses)>,
}

/// Addresses that a Service does not get.
pub type RefusedAddresses = Box<[(IpAddr, AddressRefusal)]>;

impl ListenerChanges {
    /// Whether no socket changes.
    pub fn is_empty(&self) -> bool {
        self.close.is_empty() && self.open.is_empty()
    }
}

/// Which frontends are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    All,
    /// Node ports: the kernel serves the others.
    NodePorts,
}

/// The Services of this node. The cost follows the Services that change.
#[derive(Debug)]
pub struct Plan {
    settings: Settings,
    reach: Reach,
    machines: MachineAddresses,
    /// This node's zone.
    zone: Option<Box<str>>,
    services: HashMap<ServiceId, Record>,
    marked: HashSet<ServiceId>,
    claims: HashMap<Frontend, BTreeMap<(ClaimRank, ServiceId), Arc<FrontendBackends>>>,
    /// Number of Services with an address.
    addresses: BTreeMap<IpAddr, usize>,
    health_checks: HealthChecks,
    health_checks_changed: bool,
    sctp: Sctp,
}

/// Whether this host has SCTP sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sctp {
    /// No: SCTP ports are not served.
    #[default]
    Absent,
    /// Yes.
    Present,
}

#[derive(Debug, Default)]
struct Record {
    service: Option<Arc<LocalService>>,
    slices: BTreeMap<Box<str>, Arc<LocalSlice>>,
    claims: Vec<(Frontend, ClaimRank)>,
    addresses: BTreeSet<IpAddr>,
    refused: RefusedAddresses,
}

impl Plan {
    /// A node without Services.
    pub fn new(settings: Settings) -> Self {
        Self::with(settings, Reach::All, BTreeSet::new())
    }

    /// Only node ports, at these addresses.
    pub fn of_node_ports(settings: Settings, at: BTreeSet<IpAddr>) -> Self {
        Self::with(settings, Reach::NodePorts, at)
    }

    fn with(settings: Settings, reach: Reach, own: BTreeSet<IpAddr>) -> Self {
        Self {
            settings,
            reach,
            machines: MachineAddresses { own, nodes: None },
            zone: None,
            services: HashMap::new(),
            marked: HashSet::new(),
            claims: HashMap::new(),
            addresses: BTreeMap::new(),
            health_checks: HealthChecks::new(),
            health_checks_changed: false,
            sctp: Sctp::default(),
        }
    }

    /// On a host with or without SCTP sockets.
    #[must_use]
    pub fn with_sctp(self, sctp: Sctp) -> Self {
        Self { sctp, ..self }
    }

    /// Health check results as of the last pass, if they changed since the last call.
    pub fn changed_health_checks(&mut self) -> Option<HealthChecks> {
        std::mem::take(&mut self.health_checks_changed).then(|| self.health_checks.clone())
    }

    /// Number of ports that are not served because this host has no sockets of their protocol.
    pub fn unserved_len(&self) -> usize {
        let unserved = |service: &LocalService| {
            let ports = service.ports.iter().filter(|port| !self.serves(port.protocol));
            ports.filter(|port| self.reach == Reach::All || port.node_port.is_some()).count()
        };
        self.services.values().filter_map(|record| record.service.as_deref()).map(unserved).sum()
    }

    fn serves(&self, protocol: Protocol) -> bool {
        protocol != Protocol::Sctp || self.sctp == Sctp::Present
    }

    /// Number of Services.
    pub fn services_len(&self) -> usize {
        self.services.values().filter(|record| record.service.is_some()).count()
    }

    /// Addresses of Services, which must be assigned to this node.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        self.addresses.keys().copied().collect()
    }

    /// Clients inside the cluster.
    pub fn inside(&self) -> ClusterRange {
        let own = self.machines.own.iter().chain(self.addresses.keys()).copied();
        ClusterRange { pods: self.settings.local_blocks().to_vec(), addresses: own.collect() }
    }

    /// Sets this node's zone.
    pub fn zone_changed(&mut self, zone: Option<&str>) {
        if self.zone.as_deref() != zone {
            self.zone = zone.map(Into::into);
            self.marked.extend(self.services.keys().cloned());
        }
    }

    /// Sets this node's addresses.
    pub fn node_changed(&mut self, addresses: BTreeSet<IpAddr>) {
        if addresses != self.machines.own {
            self.machines.own = addresses;
            self.marked.extend(self.services.keys().cloned());
        }
    }

    /// Sets the addresses of all Nodes. Before, Services get no external addresses but this node's.
    pub fn nodes_changed(&mut self, addresses: BTreeSet<IpAddr>) {
        let before = self.machines.nodes.replace(addresses.clone());
        let changed = |ip: &IpAddr| match &before {
            Some(before) => before.contains(ip) != addresses.contains(ip),
            None => true,
        };
        let concerned = |record: &Record| {
            let mut lists = record.service.iter().flat_map(|service| ranked_addresses(service));
            lists.any(|(list, _)| list.iter().any(changed))
        };
        let concerned = self.services.iter().filter(|(_, record)| concerned(record));
        self.marked.extend(concerned.map(|(id, _)| id.clone()));
    }

    /// Sets a Service, or removes it.
    pub fn service_changed(&mut self, id: &ServiceId, service: Option<Arc<LocalService>>) {
        if service.is_none() && !self.services.contains_key(id) {
            return;
        }
        self.services.entry(id.clone()).or_default().service = service;
        self.marked.insert(id.clone());
    }

    /// Sets a Service with all its EndpointSlices, or removes it.
    pub fn service_replaced(&mut self, id: &ServiceId, now: Option<NodePortService>) {
        if now.is_none() && !self.services.contains_key(id) {
            return;
        }
        let record = self.services.entry(id.clone()).or_default();
        (record.service, record.slices) = match now {
            Some(NodePortService { service, slices }) => {
                (Some(service), slices.into_iter().collect())
            }
            None => (None, BTreeMap::new()),
        };
        self.marked.insert(id.clone());
    }

    /// Sets an EndpointSlice, or removes it; `old` is its previous state.
    pub fn slice_changed(
        &mut self,
        name: &str,
        old: Option<&LocalSlice>,
        new: Option<Arc<LocalSlice>>,
    ) {
        if let Some(record) = old.and_then(|old| self.services.get_mut(&old.service)) {
            record.slices.remove(name);
        }
        self.marked.extend(old.map(|old| old.service.clone()));
        if let Some(new) = new {
            self.marked.insert(new.service.clone());
            let record = self.services.entry(new.service.clone()).or_default();
            record.slices.insert(name.into(), new);
        }
    }

    /// Plans the marked Services and returns the changes.
    pub fn pass(&mut self) -> ListenerChanges {
        let mut touched: BTreeMap<Frontend, Option<Arc<FrontendBackends>>> = BTreeMap::new();
        let mut changes = ListenerChanges::default();
        for id in std::mem::take(&mut self.marked) {
            self.check_health(&id);
            let refused = self.replan(&id, &mut touched);
            changes.refused.extend(refused.map(|refused| (id, refused)));
        }
        for (frontend, before) in touched {
            let now = self.winner(&frontend);
            match now {
                Some(target) if before.as_ref() != Some(&target) => {
                    changes.open.push((frontend, target));
                }
                None if before.is_some() => changes.close.push(frontend),
                _ => {}
            }
        }
        changes
    }

    /// Updates the health check result of a Service.
    fn check_health(&mut self, id: &ServiceId) {
        let Some(record) = self.services.get(id) else { return };
        let port = record.service.as_ref().and_then(|service| service.health_check_port);
        let port = port.filter(|port| !self.settings.uses_port(*port, Protocol::Tcp));
        self.health_checks_changed |= match port {
            Some(port) => {
                let slices = record.slices.values().map(|slice| &**slice);
                let check = HealthCheck { port, local_endpoints: local_endpoints(slices) };
                self.health_checks.insert(id.clone(), check) != Some(check)
            }
            None => self.health_checks.remove(id).is_some(),
        };
    }

    /// Returns the refused addresses if they have changed.
    fn replan(
        &mut self,
        id: &ServiceId,
        touched: &mut BTreeMap<Frontend, Option<Arc<FrontendBackends>>>,
    ) -> Option<RefusedAddresses> {
        let record = self.services.get(id)?;
        let wanted = match &record.service {
            Some(service) => self.targets(id, service, &record.slices),
            None => Vec::new(),
        };
        let all = record.service.as_ref().filter(|_| self.reach == Reach::All);
        let (addresses, refused) = all.map(|all| self.sort_addresses(all)).unwrap_or_default();
        let before = record.claims.clone();
        let all = before.iter().map(|(f, _)| *f).chain(wanted.iter().map(|(f, ..)| *f));
        for frontend in all {
            touched.entry(frontend).or_insert_with(|| winner(&self.claims, &frontend));
        }
        for (frontend, rank) in before {
            if let Some(claims) = self.claims.get_mut(&frontend) {
                claims.remove(&(rank, id.clone()));
                if claims.is_empty() {
                    self.claims.remove(&frontend);
                }
            }
        }
        let claims = wanted.iter().map(|(frontend, rank, _)| (*frontend, *rank)).collect();
        for (frontend, rank, target) in wanted {
            let claims = self.claims.entry(frontend).or_default();
            claims.entry((rank, id.clone())).or_insert(target);
        }
        let record = self.services.get_mut(id)?;
        record.claims = claims;
        let is_news = record.refused != refused;
        record.refused.clone_from(&refused);
        let old = std::mem::replace(&mut record.addresses, addresses.clone());
        if record.service.is_none() && record.slices.is_empty() {
            self.services.remove(id);
        }
        for address in addresses {
            *self.addresses.entry(address).or_default() += 1;
        }
        for address in old {
            if let Some(count) = self.addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    self.addresses.remove(&address);
                }
            }
        }
        is_news.then_some(refused)
    }

    /// The addresses that a Service gets and those that it does not, except those of which it is not known yet.
    fn sort_addresses(&self, service: &LocalService) -> (BTreeSet<IpAddr>, RefusedAddresses) {
        let (mut granted, mut refused) = (BTreeSet::new(), BTreeMap::new());
        for (list, rank) in ranked_addresses(service) {
            for address in list {
                match self.machines.refusal(*address, rank, &self.settings) {
                    None => drop(granted.insert(*address)),
                    Some(AddressRefusal::NodesUnknown) => {}
                    Some(refusal) => drop(refused.insert(*address, refusal)),
                }
            }
        }
        (granted, refused.into_iter().collect())
    }

    /// Whether a Service gets a socket.
    fn grants(&self, address: IpAddr, rank: ClaimRank, port: &LocalPort) -> bool {
        let (number, protocol) = (port.port, port.protocol);
        let keeps = || self.machines.keeps(address, number, protocol, &self.settings);
        self.machines.refusal(address, rank, &self.settings).is_none()
            && (rank == ClaimRank::Cluster || !keeps())
    }

    /// All frontends of a Service with their endpoints, within its [`Budget`].
    fn targets(
        &self,
        id: &ServiceId,
        service: &LocalService,
        slices: &BTreeMap<Box<str>, Arc<LocalSlice>>,
    ) -> Vec<(Frontend, ClaimRank, Arc<FrontendBackends>)> {
        let mut found = Vec::new();
        // Hints count only for Services that enable them.
        let zone = self.zone.as_deref().filter(|_| service.topology == Topology::Hints);
        let slices = SlicesByPort::new(slices.values().map(|slice| &**slice));
        let mut budget = Budget::default();
        let families = [Family::Ip, Family::Ip6].into_iter();
        let has = |family: &Family| service.cluster_ips.iter().any(|ip| family_of(*ip) == *family);
        for family in families.filter(has) {
            for port in service.ports.iter().filter(|port| self.serves(port.protocol)) {
                if budget.charge(slices.endpoints_len(port).saturating_add(1)).is_none() {
                    return found;
                }
                let chosen = select_endpoints(&slices, family, port, zone);
                let endpoints =
                    Endpoints { all: sockets(&chosen.all), here: sockets(&chosen.here) };
                let service_port = ServicePort {
                    service: id.clone(),
                    port: port.name.clone(),
                    protocol: port.protocol,
                    is_v4: family == Family::Ip,
                };
                let internal = endpoints.internal(&service_port, service);
                let external = endpoints.external(&service_port, service, &[]);
                let balanced = endpoints.external(&service_port, service, &service.source_ranges);
                let mut add =
                    |address: IpAddr, number: u16, rank, target: &Arc<FrontendBackends>| {
                        if family_of(address) == family && budget.charge(FRONTEND_WORK).is_some() {
                            let at = SocketAddr::new(address, number);
                            let frontend = Frontend { protocol: port.protocol, at };
                            found.push((frontend, rank, target.clone()));
                        }
                    };
                let lists =
                    ranked_addresses(service).into_iter().zip([&internal, &external, &balanced]);
                for ((list, rank), target) in lists.filter(|_| self.reach == Reach::All) {
                    let granted = list.iter().filter(|ip| self.grants(**ip, rank, port));
                    granted.for_each(|ip| add(*ip, port.port, rank, target));
                }
                let kept = |number: &u16| self.settings.uses_port(*number, port.protocol);
                let node_ports = node_ports(port, &self.settings, &self.machines.own);
                for (ip, number) in node_ports.filter(|(_, number)| !kept(number)) {
                    add(ip, number, ClaimRank::External, &external);
                }
            }
        }
        found
    }

    fn winner(&self, frontend: &Frontend) -> Option<Arc<FrontendBackends>> {
        winner(&self.claims, frontend)
    }
}

/// The owner of a frontend with several claims; one without endpoints does not exist, so that clients are refused.
fn winner(
    claims: &HashMap<Frontend, BTreeMap<(ClaimRank, ServiceId), Arc<FrontendBackends>>>,
    frontend: &Frontend,
) -> Option<Arc<FrontendBackends>> {
    let (_, target) = claims.get(frontend)?.first_key_value()?;
    (!target.is_empty()).then(|| target.clone())
}

/// Cluster IPs, external addresses, and those of load balancers.
fn ranked_addresses(service: &LocalService) -> [(&[IpAddr], ClaimRank); 3] {
    [
        (&service.cluster_ips, ClaimRank::Cluster),
        (&service.external_ips, ClaimRank::External),
        (&service.load_balancer_ips, ClaimRank::External),
    ]
}

/// Node addresses that serve the node port of a port.
fn node_ports<'a>(
    port: &LocalPort,
    settings: &'a Settings,
    node: &'a BTreeSet<IpAddr>,
) -> impl Iterator<Item = (IpAddr, u16)> + 'a {
    let blocks = &settings.node_port_cidrs;
    let serves =
        |ip: &&IpAddr| blocks.is_empty() || blocks.iter().any(|block| block.contains(**ip));
    // Link-local addresses would need a scope.
    let is_link_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
    let addresses = node.iter().filter(serves).filter(move |ip| !is_link_local(ip));
    port.node_port
        .into_iter()
        .flat_map(move |number| addresses.clone().map(move |ip| (*ip, number)))
}

fn sockets(backends: &[Backend]) -> Arc<[SocketAddr]> {
    backends.iter().map(|backend| SocketAddr::new(backend.address, backend.port)).collect()
}

/// The endpoints of a port, by policy.
struct Endpoints {
    all: Arc<[SocketAddr]>,
    here: Arc<[SocketAddr]>,
}

impl Endpoints {
    fn internal(
        &self,
        service_port: &ServicePort,
        service: &LocalService,
    ) -> Arc<FrontendBackends> {
        let backends = match service.internal {
            Policy::Cluster => &self.all,
            Policy::Local => &self.here,
        };
        self.target(service_port, service, backends, backends, &[])
    }

    /// Clients inside the cluster may reach all endpoints, as they would without the detour through the load balancer.
    fn external(
        &self,
        service_port: &ServicePort,
        service: &LocalService,
        only: &[Cidr],
    ) -> Arc<FrontendBackends> {
        let outside = match service.external {
            Policy::Cluster => &self.all,
            Policy::Local => &self.here,
        };
        self.target(service_port, service, &self.all, outside, only)
    }

    fn target(
        &self,
        service_port: &ServicePort,
        service: &LocalService,
        inside: &Arc<[SocketAddr]>,
        outside: &Arc<[SocketAddr]>,
        only: &[Cidr],
    ) -> Arc<FrontendBackends> {
        Arc::new(FrontendBackends {
            service_port: service_port.clone(),
            inside: inside.clone(),
            outside: outside.clone(),
            choice: service.choice,
            only: only.into(),
        })
    }
}

#[cfg(test)]
mod tests;
