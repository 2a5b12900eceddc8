//! Compiles one Service into set elements.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use proxy_netfilter::nft::{Data, Element, Family, Value};

use crate::budget::Budget;
use crate::endpoint_selection::{Backend, SlicesByPort, consistent, reslot, select_endpoints};
use crate::frontend_owners::{Claim, FrontendOwners, Rank};
use crate::layout::{
    BACKENDS_MAX, Class, EndpointPool, Layout, Map, address_value, backend_value, live_key,
    node_port_key, service_key, slot_key, source_range_key,
};
use crate::model::{
    Choice, Cidr, ConnectionCounting, LocalPort, LocalService, LocalSlice, Locality, Policy,
    Protocol, ServiceId, Settings, Topology, family_of,
};
use crate::packed::PackedList;

/// An element of one of the proxy's sets or maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetElement {
    /// Family of the table.
    pub family: Family,
    /// The set or map.
    pub map: Map,
    pub key: Value,
    /// The data, in a map.
    pub data: Option<Value>,
}

impl SetElement {
    /// Table, map and key.
    pub fn place(&self) -> (Family, Map, Value) {
        (self.family, self.map, self.key.clone())
    }

    /// As a netfilter element.
    pub fn element(&self) -> Element {
        match &self.data {
            Some(data) => Element::entry(self.key.clone(), Data::Value(data.clone())),
            None => Element::member(self.key.clone()),
        }
    }

    /// Address and port of an endpoint in its data, if the map's data are endpoints.
    pub fn endpoint(&self) -> Option<&[u8]> {
        match self.map {
            Map::Endpoints | Map::NodePortEndpoints => Some(self.data.as_ref()?.bytes()),
            _ => None,
        }
    }

    /// The class in its data, if the map's data are classes.
    pub fn class(&self) -> Option<Class> {
        match self.map {
            Map::Services | Map::ServicesExternal | Map::NodePorts | Map::NodePortsExternal => {
                Class::from_data(self.data.as_ref()?.bytes())
            }
            _ => None,
        }
    }

    /// The prefix length that needs a rule, for a source range.
    pub fn prefix(&self) -> Option<u8> {
        if self.map != Map::SourceRanges {
            return None;
        }
        u8::try_from(u32::from_ne_bytes(*self.key.bytes().last_chunk()?)).ok()
    }
}

/// Receives the elements of a Service as they are compiled.
pub trait Sink {
    /// Adds an element.
    fn push(&mut self, entry: SetElement);
}

impl Sink for Vec<SetElement> {
    fn push(&mut self, entry: SetElement) {
        Self::push(self, entry);
    }
}

/// A compiled Service: its endpoints in their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledService {
    cluster_ips: Box<[IpAddr]>,
    /// Endpoints on this node, which may connect to themselves through the Service; each once.
    hairpin: Box<[IpAddr]>,
    /// Addresses of a load balancer that a node announces.
    load_balancer_ips: Box<[IpAddr]>,
    /// Whether this node announces them.
    announces: bool,
    /// `spec.loadBalancerSourceRanges`.
    source_ranges: Box<[Cidr]>,
    counting: ConnectionCounting,
    ports: Box<[CompiledPort]>,
    /// What it cost of its budget.
    work: u32,
    is_over_budget: bool,
}

/// A port of a Service, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CompiledPort {
    family: Family,
    protocol: Protocol,
    number: u16,
    frontends: Box<[(Frontend, Policy)]>,
    choice: Choice,
    all: PackedList<Backend>,
    here: PackedList<Backend>,
}

/// An address or node port to which clients connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frontend {
    ClusterIp(IpAddr),
    External(IpAddr),
    LoadBalancer(IpAddr),
    NodePort(u16),
}

/// Compiles a Service for the families of a layout, on a node in `zone` if that is known. Endpoints keep their slots
/// of `old` where possible. What exceeds `budget` is left out.
pub fn compile<'a>(
    service: &LocalService,
    slices: impl Iterator<Item = &'a LocalSlice>,
    layout: &Layout,
    old: &CompiledService,
    zone: Option<&str>,
    budget: Budget,
) -> CompiledService {
    let (families, counting) = (&layout.families, layout.settings.counting);
    let announcing = layout.settings.announcing.as_ref();
    let mut work = Compilation {
        service,
        settings: &layout.settings,
        zone: zone.filter(|_| service.topology == Topology::Hints),
        slices: SlicesByPort::new(slices),
        before: Before::from_compiled(old),
        taken: BTreeSet::new(),
        budget,
    };
    let mut ports = Vec::new();
    let has = |family: &&Family| service.cluster_ips.iter().any(|ip| family_of(*ip) == **family);
    for &family in families.iter().filter(has) {
        let addresses = Addresses::from_service(service, family);
        for port in &service.ports {
            if work.budget.is_overdrawn() {
                break;
            }
            ports.extend(work.port(family, port, &addresses));
        }
    }
    let ours = |ip: &&IpAddr| families.contains(&family_of(**ip));
    let cluster_ips = service.cluster_ips.iter().filter(ours).copied().collect();
    CompiledService {
        cluster_ips,
        hairpin: hairpin(&ports),
        load_balancer_ips: announced_ips(service, layout),
        announces: announcing
            .is_some_and(|announcing| service.announced_by.as_ref() == Some(&announcing.node)),
        source_ranges: service.source_ranges.clone(),
        counting,
        ports: ports.into(),
        work: u32::try_from(work.budget.used()).unwrap_or(u32::MAX),
        is_over_budget: work.budget.is_overdrawn(),
    }
}

/// The state of one compilation.
struct Compilation<'a> {
    service: &'a LocalService,
    settings: &'a Settings,
    zone: Option<&'a str>,
    slices: SlicesByPort<'a>,
    before: Before<'a>,
    /// If two ports of the Service have the same frontend, which the API forbids, the first one gets it.
    taken: BTreeSet<Claim>,
    budget: Budget,
}

impl Compilation<'_> {
    /// A port in one family with as many frontends as the budget allows; `None` if it does not allow the endpoints.
    fn port(
        &mut self,
        family: Family,
        port: &LocalPort,
        addresses: &Addresses,
    ) -> Option<CompiledPort> {
        let choice = self.service.choice;
        self.budget.charge(self.slices.endpoints_len(port).saturating_add(1))?;
        let mut chosen = select_endpoints(&self.slices, family, port, self.zone);
        chosen.all.truncate(BACKENDS_MAX);
        chosen.here.truncate(BACKENDS_MAX);
        if choice == Choice::Consistent {
            let slots = consistent::table_len(chosen.all.len())
                .saturating_add(consistent::table_len(chosen.here.len()));
            self.budget.charge(slots)?;
        }
        let before = self.before.port(family, port);
        let before = before.filter(|before| before.choice != Choice::Consistent);
        let slots = |old: Option<&PackedList<Backend>>, wanted: &[Backend]| match choice {
            Choice::Consistent => consistent::build_table(wanted).into(),
            _ => reslot(old.into_iter().flat_map(PackedList::iter), wanted).into(),
        };
        let mut compiled = CompiledPort {
            family,
            protocol: port.protocol,
            number: port.port,
            frontends: Box::default(),
            choice,
            all: slots(before.map(|b| &b.all), &chosen.all),
            here: slots(before.map(|b| &b.here), &chosen.here),
        };
        compiled.frontends = self.frontends(&compiled, port, addresses);
        Some(compiled)
    }

    fn frontends(
        &mut self,
        compiled: &CompiledPort,
        port: &LocalPort,
        addresses: &Addresses,
    ) -> Box<[(Frontend, Policy)]> {
        let (internal, external) = (self.service.internal, self.service.external);
        let settings = self.settings;
        // An address that is in both lists counts as a load balancer's: those have source ranges.
        let allowed = |ip: &&IpAddr| !settings.protects(**ip, port.port, port.protocol);
        let node_port = port.node_port.filter(|port| !settings.uses_port(*port, compiled.protocol));
        let cluster = addresses.cluster.iter().map(|ip| (Frontend::ClusterIp(*ip), internal));
        let balanced = addresses.balanced.iter().filter(allowed);
        let balanced = balanced.map(|ip| (Frontend::LoadBalancer(*ip), external));
        let outside = addresses.external.iter().filter(allowed);
        let outside = outside.map(|ip| (Frontend::External(*ip), external));
        let node_port = node_port.map(|number| (Frontend::NodePort(number), external));
        let mut taken = Vec::new();
        for (frontend, policy) in cluster.chain(balanced).chain(outside).chain(node_port) {
            let weight = compiled.weight(frontend, policy, addresses.blocks);
            if self.budget.charge(weight).is_none() {
                break;
            }
            proto_api::count_steps!(1);
            if self.taken.insert(compiled.claim(frontend).0) {
                taken.push((frontend, policy));
            }
        }
        taken.into()
    }
}

/// The addresses of a Service in one family.
struct Addresses {
    cluster: Vec<IpAddr>,
    balanced: Vec<IpAddr>,
    external: Vec<IpAddr>,
    /// Number of source ranges.
    blocks: usize,
}

impl Addresses {
    fn from_service(service: &LocalService, family: Family) -> Self {
        let ours =
            |all: &[IpAddr]| all.iter().filter(|ip| family_of(**ip) == family).copied().collect();
        Self {
            cluster: ours(&service.cluster_ips),
            balanced: ours(&service.load_balancer_ips),
            external: ours(&service.external_ips),
            blocks: service.source_ranges.iter().filter(|b| family_of(b.first()) == family).count(),
        }
    }
}

/// The ports of the previous compilation; of two with the same key, which the API forbids, the first.
struct Before<'a>(BTreeMap<(Family, Protocol, u16), &'a CompiledPort>);

impl<'a> Before<'a> {
    fn from_compiled(old: &'a CompiledService) -> Self {
        proto_api::count_steps!(old.ports.len());
        let key = |port: &CompiledPort| (port.family, port.protocol, port.number);
        Self(old.ports.iter().rev().map(|port| (key(port), port)).collect())
    }

    fn port(&self, family: Family, port: &LocalPort) -> Option<&'a CompiledPort> {
        self.0.get(&(family, port.protocol, port.port)).copied()
    }
}

/// The announced addresses of a Service without those that the node has for itself. Only those in the ranges of the setting: who may write annotations and
/// statuses of Services takes no other host's address.
fn announced_ips(service: &LocalService, layout: &Layout) -> Box<[IpAddr]> {
    let announcing = layout.settings.announcing.as_ref();
    let announcing = announcing.filter(|_| service.announced_by.is_some());
    let is_announced = |ip: &&IpAddr| {
        announcing.is_some_and(|announcing| announcing.ranges.contains(**ip))
            && layout.families.contains(&family_of(**ip))
            && !layout.settings.has_address(**ip)
    };
    service.load_balancer_ips.iter().filter(is_announced).copied().collect()
}

fn hairpin(ports: &[CompiledPort]) -> Box<[IpAddr]> {
    let backends = ports.iter().flat_map(|port| port.all.iter().chain(port.here.iter()));
    let here = backends.filter(|backend| backend.place == Locality::Here);
    let mut addresses: Vec<IpAddr> = here.map(|backend| backend.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}

/// The claim of a port to a frontend.
fn claim(family: Family, protocol: Protocol, number: u16, frontend: Frontend) -> (Claim, Rank) {
    let at = |address| Claim::Address { address, protocol, port: number };
    match frontend {
        Frontend::ClusterIp(address) => (at(address), Rank::Cluster),
        Frontend::External(address) | Frontend::LoadBalancer(address) => {
            (at(address), Rank::External)
        }
        Frontend::NodePort(port) => (Claim::NodePort { family, protocol, port }, Rank::External),
    }
}

impl CompiledService {
    /// All claims of the Service.
    pub fn claims(&self) -> impl Iterator<Item = (Claim, Rank)> {
        let ips = self.cluster_ips.iter().map(|ip| (Claim::ClusterIp(*ip), Rank::Cluster));
        let hairpin = self.hairpin.iter().map(|ip| (Claim::Hairpin(*ip), Rank::Cluster));
        let announced = self.load_balancer_ips.iter();
        let announced = announced.map(|ip| (Claim::LoadBalancerIp(*ip), Rank::External));
        ips.chain(hairpin).chain(announced).chain(self.ports.iter().flat_map(CompiledPort::claims))
    }

    /// Addresses, `None` for a node port, and ports at which a protocol is served.
    pub fn served_addresses(
        &self,
        protocol: Protocol,
    ) -> impl Iterator<Item = (Family, Option<IpAddr>, u16)> {
        let ports = self.ports.iter().filter(move |port| port.protocol == protocol);
        ports.flat_map(|port| {
            port.frontends.iter().map(|(frontend, ..)| match frontend {
                Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                    (port.family, Some(*ip), port.number)
                }
                Frontend::NodePort(number) => (port.family, None, *number),
            })
        })
    }

    /// Appends the elements of the claims that the Service owns.
    pub fn entries(&self, id: &ServiceId, claims: &FrontendOwners, entries: &mut impl Sink) {
        for ip in self.cluster_ips.iter().filter(|ip| claims.owns(&Claim::ClusterIp(**ip), id)) {
            let (family, map) = (family_of(*ip), Map::ClusterIps);
            entries.push(SetElement { family, map, key: address_value(ip), data: None });
        }
        for ip in self.hairpin.iter().filter(|ip| claims.owns(&Claim::Hairpin(**ip), id)) {
            let address = address_value(ip);
            let key = Value::concat(&[address.bytes(), address.bytes()]);
            entries.push(SetElement { family: family_of(*ip), map: Map::Hairpin, key, data: None });
        }
        let announced = self.load_balancer_ips.iter();
        for ip in announced.filter(|ip| claims.owns(&Claim::LoadBalancerIp(**ip), id)) {
            let (family, map) = (family_of(*ip), Map::LoadBalancerIps);
            entries.push(SetElement { family, map, key: address_value(ip), data: None });
        }
        for port in &self.ports {
            for (frontend, policy) in &port.frontends {
                if claims.owns(&port.claim(*frontend).0, id) {
                    port.frontend_entries(*frontend, *policy, entries);
                    port.gate_entries(*frontend, &self.source_ranges, entries);
                    if self.counting == ConnectionCounting::On {
                        entries.push(port.counter(*frontend));
                    }
                }
            }
        }
    }

    /// Ports with dropped traffic because the policy is Local and no endpoint is on this node: for cluster IPs, and
    /// for external addresses and node ports. A port of two families counts once.
    pub fn without_local_endpoints(&self) -> [usize; 2] {
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        let bare = self.ports.iter().filter(|port| port.here.is_empty() && !port.all.is_empty());
        for port in bare {
            for (frontend, _) in port.frontends.iter().filter(|(_, p)| *p == Policy::Local) {
                let external = !matches!(frontend, Frontend::ClusterIp(_));
                let [inside, outside] = &mut found;
                let found = if external { outside } else { inside };
                found.insert((port.protocol, port.number));
            }
        }
        found.map(|ports| ports.len())
    }

    /// The result for a Service whose compilation failed: nothing is forwarded.
    pub fn failed() -> Self {
        Self { is_over_budget: true, ..Self::default() }
    }

    /// The addresses of its load balancer that this node announces.
    pub fn announced(&self) -> &[IpAddr] {
        if self.announces { &self.load_balancer_ips } else { &[] }
    }

    /// What it cost of its budget.
    pub fn work(&self) -> usize {
        usize::try_from(self.work).unwrap_or(usize::MAX)
    }

    /// Whether something was left out, by budget or failure.
    pub fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }
}

impl CompiledPort {
    fn claim(&self, frontend: Frontend) -> (Claim, Rank) {
        claim(self.family, self.protocol, self.number, frontend)
    }

    /// Maximum number of elements of a frontend with this many source ranges.
    fn weight(&self, frontend: Frontend, policy: Policy, blocks: usize) -> usize {
        let is_cluster_ip = matches!(frontend, Frontend::ClusterIp(_));
        let slots = match (is_cluster_ip, policy) {
            (true, Policy::Local) => self.here.len(),
            (_, Policy::Cluster) => self.all.len(),
            (false, Policy::Local) => self.all.len().saturating_add(self.here.len()),
        };
        let remembered = if matches!(self.choice, Choice::Sticky(_)) { slots } else { 0 };
        let gate = if matches!(frontend, Frontend::LoadBalancer(_)) { blocks } else { 0 };
        // Internal and external class or masquerade mark, gate, counter.
        [slots, remembered, gate].into_iter().fold(4, usize::saturating_add)
    }

    fn claims(&self) -> impl Iterator<Item = (Claim, Rank)> {
        self.frontends.iter().map(|(frontend, _)| self.claim(*frontend))
    }

    fn frontend_entries(&self, frontend: Frontend, policy: Policy, out: &mut impl Sink) {
        let mut push = |map, key: &Value, data| {
            proto_api::count_steps!(1);
            out.push(SetElement { family: self.family, map, key: key.clone(), data });
        };
        let (address_maps, node_port_maps) = (
            [Map::Services, Map::ServicesExternal, Map::Masquerade, Map::Endpoints],
            [
                Map::NodePorts,
                Map::NodePortsExternal,
                Map::NodePortMasquerade,
                Map::NodePortEndpoints,
            ],
        );
        let (key, [inside, outside, masquerade, endpoints], draw_all, draw_here) = match frontend {
            Frontend::NodePort(port) => {
                let key = node_port_key(self.protocol, port);
                (key, node_port_maps, EndpointPool::NodePort, EndpointPool::NodePortHere)
            }
            Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                let key = service_key(&ip, self.protocol, self.number);
                (key, address_maps, EndpointPool::Service, EndpointPool::ServiceHere)
            }
        };
        let is_cluster_ip = matches!(frontend, Frontend::ClusterIp(_));
        let none_here = if self.all.is_empty() { Class::Reject } else { Class::Drop };
        let all = Class::for_endpoints(draw_all, self.choice, self.all.len(), Class::Reject).data();
        let here = Class::for_endpoints(draw_here, self.choice, self.here.len(), none_here).data();
        // Traffic from inside the cluster to an external frontend may reach all endpoints, as it would without the
        // detour through the load balancer.
        let (inside_class, uses_all, uses_here) = match (is_cluster_ip, policy) {
            (true, Policy::Local) => (here.clone(), false, true),
            (true, Policy::Cluster) | (false, Policy::Cluster) => (all, true, false),
            (false, Policy::Local) => (all, true, true),
        };
        push(inside, &key, Some(inside_class));
        match (is_cluster_ip, policy) {
            (false, Policy::Local) => push(outside, &key, Some(here)),
            (false, Policy::Cluster) => push(masquerade, &key, None),
            (true, _) => {}
        }
        let lists = [(uses_all, &self.all, draw_all), (uses_here, &self.here, draw_here)];
        for (_, backends, draw) in lists.into_iter().filter(|(used, ..)| *used) {
            for (backend, slot) in backends.iter().zip(draw.first_slot()..) {
                let data = backend_value(&backend.address, backend.port);
                push(endpoints, &slot_key(&key, slot), Some(data));
            }
            if matches!(self.choice, Choice::Sticky(_)) {
                backends.iter().for_each(|b| push(draw.live(), &self.live_key(frontend, &b), None));
            }
        }
    }

    fn counter(&self, frontend: Frontend) -> SetElement {
        let (map, key) = match frontend {
            Frontend::NodePort(port) => (Map::NodePortCounted, node_port_key(self.protocol, port)),
            Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                (Map::Counted, service_key(&ip, self.protocol, self.number))
            }
        };
        SetElement { family: self.family, map, key, data: None }
    }

    fn live_key(&self, frontend: Frontend, backend: &Backend) -> Value {
        let (address, port) = match frontend {
            Frontend::NodePort(port) => (None, port),
            Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                (Some(ip), self.number)
            }
        };
        let to = (&backend.address, backend.port);
        live_key(to, address.as_ref(), (self.protocol, port))
    }

    /// Restricts a load balancer's address. Without source ranges of the address's family all clients may connect, as in
    /// Kubernetes.
    fn gate_entries(&self, frontend: Frontend, source_ranges: &[Cidr], out: &mut impl Sink) {
        let Frontend::LoadBalancer(ip) = frontend else { return };
        let (family, key) = (self.family, service_key(&ip, self.protocol, self.number));
        let mut keys: Vec<Value> = source_ranges
            .iter()
            .filter(|block| family_of(block.first()) == family)
            .map(|block| source_range_key(&key, block))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            out.push(SetElement { family, map: Map::Gated, key, data: None });
        }
        proto_api::count_steps!(keys.len());
        for key in keys {
            out.push(SetElement { family, map: Map::SourceRanges, key, data: None });
        }
    }
}
