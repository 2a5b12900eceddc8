//! One service into the elements that it needs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy_netfilter::nft::{Data, Element, Family, Value};

use crate::choose::{Backend, choose, consistent, reslot};
use crate::claims::{Claim, Claims, Rank};
use crate::layout::{
    BACKENDS_MAX, Class, Draw, Layout, Map, address_value, backend_value, live_key, node_port_key,
    service_key, slot_key, source_range_key,
};
use crate::model::{
    Choice, Cidr, Counting, LocalPort, LocalService, LocalSlice, Place, Policy, Protocol,
    ServiceId, Settings, Topology, family_of,
};
use crate::packed::Packed;

/// One element of one of our maps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The table.
    pub family: Family,
    /// The map.
    pub map: Map,
    /// The key.
    pub key: Value,
    /// What a map's key leads to.
    pub data: Option<Value>,
}

impl Entry {
    /// Where it is: table, map and key.
    pub fn place(&self) -> (Family, Map, Value) {
        (self.family, self.map, self.key.clone())
    }

    /// The element as it travels.
    pub fn element(&self) -> Element {
        match &self.data {
            Some(data) => Element::entry(self.key.clone(), Data::Value(data.clone())),
            None => Element::member(self.key.clone()),
        }
    }

    /// The class that it leads to, if its map is one that leads to classes.
    pub fn class(&self) -> Option<Class> {
        match self.map {
            Map::Services | Map::ServicesExternal | Map::NodePorts | Map::NodePortsExternal => {
                Class::from_data(self.data.as_ref()?.bytes())
            }
            _ => None,
        }
    }

    /// The length of prefix that it needs a rule for, if it is a block of senders.
    pub fn prefix(&self) -> Option<u8> {
        if self.map != Map::SourceRanges {
            return None;
        }
        u8::try_from(u32::from_ne_bytes(*self.key.bytes().last_chunk()?)).ok()
    }
}

/// Where elements go as they are made.
pub trait Sink {
    /// Takes one.
    fn push(&mut self, entry: Entry);
}

impl Sink for Vec<Entry> {
    fn push(&mut self, entry: Entry) {
        Self::push(self, entry);
    }
}

/// A service with its endpoints in their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiled {
    cluster_ips: Box<[IpAddr]>,
    /// Endpoints that could meet their own connections: those on this node, each once.
    hairpin: Box<[IpAddr]>,
    /// Who may use the addresses of load balancers.
    source_ranges: Box<[Cidr]>,
    counting: Counting,
    ports: Box<[CompiledPort]>,
}

/// A port of a service, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CompiledPort {
    family: Family,
    protocol: Protocol,
    number: u16,
    frontends: Box<[(Frontend, Policy)]>,
    choice: Choice,
    all: Packed<Backend>,
    here: Packed<Backend>,
}

/// What clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frontend {
    ClusterIp(IpAddr),
    External(IpAddr),
    LoadBalancer(IpAddr),
    NodePort(u16),
}

/// Compiles a service for the families of a layout, on a node of `zone` if it has one. Endpoints keep the slots that they
/// have in `old` where they can.
pub fn compile<'a>(
    service: &LocalService,
    slices: impl Iterator<Item = &'a LocalSlice> + Clone,
    layout: &Layout,
    old: &Compiled,
    zone: Option<&str>,
) -> Compiled {
    let (families, counting) = (&layout.families, layout.settings.counting);
    let zone = zone.filter(|_| service.topology == Topology::Hints);
    let mut ports = Vec::new();
    // A frontend that two ports of the service ask for, which the API forbids, is the first one's.
    let mut taken = BTreeSet::new();
    for &family in families {
        if !service.cluster_ips.iter().any(|ip| family_of(*ip) == family) {
            continue;
        }
        for port in &service.ports {
            let mut chosen = choose(slices.clone(), family, port, zone);
            chosen.all.truncate(BACKENDS_MAX);
            chosen.here.truncate(BACKENDS_MAX);
            let before = old.port(family, port);
            let slots = |old: Option<&Packed<Backend>>, wanted: &[Backend]| match service.choice {
                Choice::Consistent => consistent::table(wanted).into(),
                _ => reslot(old.into_iter().flat_map(Packed::iter), wanted).into(),
            };
            let before = before.filter(|before| before.choice != Choice::Consistent);
            ports.push(CompiledPort {
                family,
                protocol: port.protocol,
                number: port.port,
                frontends: frontends(service, port, family, &layout.settings, &mut taken),
                choice: service.choice,
                all: slots(before.map(|b| &b.all), &chosen.all),
                here: slots(before.map(|b| &b.here), &chosen.here),
            });
        }
    }
    let ours = |ip: &&IpAddr| families.contains(&family_of(**ip));
    let cluster_ips = service.cluster_ips.iter().filter(ours).copied().collect();
    let source_ranges = service.source_ranges.clone();
    Compiled { cluster_ips, hairpin: hairpin(&ports), source_ranges, counting, ports: ports.into() }
}

fn hairpin(ports: &[CompiledPort]) -> Box<[IpAddr]> {
    let backends = ports.iter().flat_map(|port| port.all.iter().chain(port.here.iter()));
    let here = backends.filter(|backend| backend.place == Place::Here);
    let mut addresses: Vec<IpAddr> = here.map(|backend| backend.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.into()
}

/// The claim to a frontend of a port.
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

fn frontends(
    service: &LocalService,
    port: &LocalPort,
    family: Family,
    settings: &Settings,
    taken: &mut BTreeSet<Claim>,
) -> Box<[(Frontend, Policy)]> {
    let ours = |ip: &&IpAddr| family_of(**ip) == family;
    let cluster = service.cluster_ips.iter().filter(ours);
    // An address that is both is taken for a load balancer's: those have gates.
    let allowed = |ip: &&IpAddr| !settings.protects(**ip, port.port, port.protocol);
    let balanced = service.load_balancer_ips.iter().filter(ours).filter(allowed);
    let external = service.external_ips.iter().filter(ours).filter(allowed);
    let cluster = cluster.map(|ip| (Frontend::ClusterIp(*ip), service.internal));
    let external = external.map(|ip| (Frontend::External(*ip), service.external));
    let node_port = port.node_port.map(|number| (Frontend::NodePort(number), service.external));
    let balanced = balanced.map(|ip| (Frontend::LoadBalancer(*ip), service.external));
    let all = cluster.chain(balanced).chain(external).chain(node_port);
    all.filter(|(f, _)| taken.insert(claim(family, port.protocol, port.port, *f).0)).collect()
}

impl Compiled {
    /// What the service claims for itself.
    pub fn claims(&self) -> impl Iterator<Item = (Claim, Rank)> {
        let ips = self.cluster_ips.iter().map(|ip| (Claim::ClusterIp(*ip), Rank::Cluster));
        let hairpin = self.hairpin.iter().map(|ip| (Claim::Hairpin(*ip), Rank::Cluster));
        ips.chain(hairpin).chain(self.ports.iter().flat_map(CompiledPort::claims))
    }

    /// Addresses, none for a node port, and ports at which a protocol is served.
    pub fn served(
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

    /// Puts the elements of what it claims and owns into `entries`.
    pub fn entries(&self, id: &ServiceId, claims: &Claims, entries: &mut impl Sink) {
        for ip in self.cluster_ips.iter().filter(|ip| claims.owns(&Claim::ClusterIp(**ip), id)) {
            let (family, map) = (family_of(*ip), Map::ClusterIps);
            entries.push(Entry { family, map, key: address_value(ip), data: None });
        }
        for ip in self.hairpin.iter().filter(|ip| claims.owns(&Claim::Hairpin(**ip), id)) {
            let address = address_value(ip);
            let key = Value::concat(&[address.bytes(), address.bytes()]);
            entries.push(Entry { family: family_of(*ip), map: Map::Hairpin, key, data: None });
        }
        for port in &self.ports {
            for (frontend, policy) in &port.frontends {
                if claims.owns(&port.claim(*frontend).0, id) {
                    port.frontend_entries(*frontend, *policy, entries);
                    port.gate_entries(*frontend, &self.source_ranges, entries);
                    if self.counting == Counting::On {
                        entries.push(port.counter(*frontend));
                    }
                }
            }
        }
    }

    /// Ports of which some traffic is dropped because the policy asks for endpoints of this node and all are elsewhere:
    /// to cluster addresses, and to external addresses and node ports. A port with two families counts once.
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

    fn port(&self, family: Family, port: &LocalPort) -> Option<&CompiledPort> {
        self.ports
            .iter()
            .find(|p| (p.family, p.protocol, p.number) == (family, port.protocol, port.port))
    }
}

impl CompiledPort {
    fn claim(&self, frontend: Frontend) -> (Claim, Rank) {
        claim(self.family, self.protocol, self.number, frontend)
    }

    fn claims(&self) -> impl Iterator<Item = (Claim, Rank)> {
        self.frontends.iter().map(|(frontend, _)| self.claim(*frontend))
    }

    fn frontend_entries(&self, frontend: Frontend, policy: Policy, out: &mut impl Sink) {
        let mut push = |map, key: &Value, data| {
            out.push(Entry { family: self.family, map, key: key.clone(), data });
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
                (key, node_port_maps, Draw::NodePort, Draw::NodePortHere)
            }
            Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                let key = service_key(&ip, self.protocol, self.number);
                (key, address_maps, Draw::Service, Draw::ServiceHere)
            }
        };
        let is_cluster_ip = matches!(frontend, Frontend::ClusterIp(_));
        let none_here = if self.all.is_empty() { Class::Reject } else { Class::Drop };
        let all = Class::of(draw_all, self.choice, self.all.len(), Class::Reject).data();
        let here = Class::of(draw_here, self.choice, self.here.len(), none_here).data();
        // Traffic of the cluster itself to an external frontend may reach all endpoints: it would, without
        // the detour over the outside.
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

    fn counter(&self, frontend: Frontend) -> Entry {
        let (map, key) = match frontend {
            Frontend::NodePort(port) => (Map::NodePortCounted, node_port_key(self.protocol, port)),
            Frontend::ClusterIp(ip) | Frontend::External(ip) | Frontend::LoadBalancer(ip) => {
                (Map::Counted, service_key(&ip, self.protocol, self.number))
            }
        };
        Entry { family: self.family, map, key, data: None }
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

    /// Who may use a load balancer's address. Without blocks of its family everybody may, as the ecosystem has it.
    fn gate_entries(&self, frontend: Frontend, source_ranges: &[Cidr], out: &mut impl Sink) {
        let Frontend::LoadBalancer(ip) = frontend else { return };
        let (family, key) = (self.family, service_key(&ip, self.protocol, self.number));
        let mut keys: Vec<Value> = source_ranges
            .iter()
            .filter(|block| block.family() == family)
            .map(|block| source_range_key(&key, block))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            out.push(Entry { family, map: Map::Gated, key, data: None });
        }
        for key in keys {
            out.push(Entry { family, map: Map::SourceRanges, key, data: None });
        }
    }
}
