//! Random Services on a node, and the expected result of a connection, derived from the Services' meaning and not from
//! any table: a model independent of tracer and kernel.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use proxy_netfilter::nft::Family;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::Dataplane;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    AddressRanges, Announcing, Choice, Cidr, EndpointState, InterfaceName, LocalEndpoint,
    LocalPort, LocalService, LocalSlice, LocalTraffic, Locality, Policy, Protocol, ServiceId,
    Settings, SlicePort, Topology, family_of,
};
use proxy_rules::trace::{Origin, Packet, PacketOutcome, Sender};

pub const NODE: [&str; 2] = ["192.168.1.10", "fd00:1::10"];
pub const CLIENT: [&str; 2] = ["192.168.1.100", "fd00:1::100"];
pub const PODS: [[&str; 2]; 2] =
    [["10.244.1.5", "fd00:10:244::5"], ["10.244.1.6", "fd00:10:244::6"]];
/// Cluster CIDRs.
pub const POD_BLOCKS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/64"];
/// Ports of pods.
pub const TARGETS: [u16; 2] = [8080, 8081];
pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
/// The node's zone.
pub const ZONE: &str = "east";

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn layout(table: &str, world: &World) -> Layout {
    let settings = Settings {
        cluster_cidrs: POD_BLOCKS.map(|block| block.parse().unwrap()).into(),
        local_traffic: world.local_traffic.clone(),
        announcing: world.announcing.clone(),
        ..Settings::default()
    };
    Layout { table: table.into(), flags: TableFlags::NONE, families: FAMILIES.into(), settings }
}

/// Number of random cases: `slice`, or `ORCH_TEST_CASES`.
pub fn cases(slice: u32) -> u32 {
    std::env::var("ORCH_TEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(slice)
}

/// Services with their endpoints.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub services: Vec<(LocalService, Vec<LocalSlice>)>,
    /// Where each pod runs, by the API.
    pub places: [Option<Locality>; 2],
    /// How traffic of pods is detected.
    pub local_traffic: LocalTraffic,
    /// The node and the ranges, if load balancers' addresses are announced on its network.
    pub announcing: Option<Announcing>,
}

/// Clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asker {
    Node,
    Client,
    Pod(usize),
}

impl Asker {
    /// The node's interface on which its packets arrive.
    pub fn interface(self) -> Option<InterfaceName> {
        match self {
            Self::Node => None,
            Self::Client => InterfaceName::new("v0"),
            Self::Pod(n) => InterfaceName::new(&format!("v{}", n + 1)),
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    pub from: Asker,
    pub protocol: Protocol,
    pub to: IpAddr,
    pub port: u16,
}

impl Question {
    pub fn source(&self) -> IpAddr {
        let family = usize::from(self.to.is_ipv6());
        ip(match self.from {
            Asker::Node => NODE[family],
            Asker::Client => CLIENT[family],
            Asker::Pod(n) => PODS[n][family],
        })
    }

    pub fn packet(&self, src_port: u16) -> Packet {
        let origin = self.from.interface().map_or(Origin::Host, Origin::Interface);
        let (src, dst, dst_port, protocol) = (self.source(), self.to, self.port, self.protocol);
        Packet { src, src_port, dst, dst_port, protocol, origin }
    }
}

pub fn id(index: usize) -> ServiceId {
    ServiceId::new("ns", &format!("service-{index}"))
}

impl World {
    /// A dataplane that has received everything.
    pub fn plane(&self, table: &str) -> Dataplane {
        let mut plane = Dataplane::new(layout(table, self));
        plane.zone_changed(Some(ZONE));
        for (n, (service, slices)) in self.services.iter().enumerate() {
            plane.service_changed(&id(n), Some(Arc::new(service.clone())));
            for (s, slice) in slices.iter().enumerate() {
                plane.slice_changed(&format!("{n}-{s}"), None, Some(Arc::new(slice.clone())));
            }
        }
        plane
    }

    /// Whether packets can come from there: a pod of another node sends nothing here.
    pub fn can_send(&self, from: Asker) -> bool {
        match from {
            Asker::Pod(n) => self.places[n] == Some(Locality::Here),
            Asker::Node | Asker::Client => true,
        }
    }
}

/// Whether a connection is detected as a pod's.
fn is_from_pod(world: &World, question: &Question) -> bool {
    let within = |blocks: &[Cidr]| blocks.iter().any(|block| block.contains(question.source()));
    let interface = question.from.interface();
    match &world.local_traffic {
        LocalTraffic::Cluster => within(&POD_BLOCKS.map(|block| block.parse().unwrap())),
        LocalTraffic::Blocks(blocks) => within(blocks),
        LocalTraffic::Interface(name) => interface == Some(*name),
        LocalTraffic::InterfacePrefix(prefix) => {
            interface.is_some_and(|name| name.to_string().starts_with(&prefix.to_string()))
        }
    }
}

/// Destination of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ClusterIp,
    LoadBalancer,
    External,
    NodePort,
}

/// Expected result of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Each of these is possible, nothing else.
    Each(BTreeSet<PacketOutcome>),
    /// One of these, always the same.
    OneOf(BTreeSet<PacketOutcome>),
}

impl Expected {
    pub fn admits(&self, possible_outcomes: &BTreeSet<PacketOutcome>) -> bool {
        match self {
            Self::Each(expected) => possible_outcomes == expected,
            Self::OneOf(expected) => {
                possible_outcomes.len() == 1 && possible_outcomes.is_subset(expected)
            }
        }
    }
}

/// How the endpoint of a connection is chosen, if it is to a Service.
pub fn choice_of(world: &World, question: &Question) -> Option<Choice> {
    let is_node = NODE.map(ip).contains(&question.to);
    let owner = owner(world, question, false)
        .or_else(|| is_node.then(|| owner(world, question, true)).flatten());
    owner.map(|(n, ..)| world.services[n].0.choice)
}

/// The expected result of a connection.
pub fn expected(world: &World, question: &Question) -> Expected {
    let each = |outcome: PacketOutcome| Expected::Each(BTreeSet::from([outcome]));
    let refused = if question.protocol == Protocol::Tcp {
        PacketOutcome::Reset
    } else {
        PacketOutcome::Unreachable
    };
    let is_node = NODE.map(ip).contains(&question.to);
    let owner = owner(world, question, false)
        .or_else(|| is_node.then(|| owner(world, question, true)).flatten());
    let has = |(s, _): &(LocalService, _)| s.cluster_ips.contains(&question.to);
    let is_cluster_ip = world.services.iter().any(has);
    let announcing = world.announcing.as_ref();
    let is_announced = announcing.is_some_and(|announcing| announcing.ranges.contains(question.to))
        && world.services.iter().any(|(service, _)| {
            service.announced_by.is_some() && service.load_balancer_ips.contains(&question.to)
        });
    let Some((n, port, kind)) = owner else {
        if is_announced {
            return each(PacketOutcome::Dropped);
        }
        return each(if is_cluster_ip { refused } else { PacketOutcome::Untouched });
    };
    let (service, slices) = &world.services[n];
    let family = family_of(question.to);
    let source = question.source();
    let ranges: Vec<&Cidr> =
        service.source_ranges.iter().filter(|block| family_of(block.first()) == family).collect();
    let may = ranges.is_empty() || ranges.iter().any(|block| block.contains(source));
    if kind == Kind::LoadBalancer && !may {
        return each(PacketOutcome::Dropped);
    }
    let from_pod = is_from_pod(world, question);
    let inside = question.from == Asker::Node || from_pod;
    let only_here = match kind {
        Kind::ClusterIp => service.internal == Policy::Local,
        _ => service.external == Policy::Local && !inside,
    };
    let (all, here) = endpoints(service, slices, family, &port);
    let list = if only_here { &here } else { &all };
    if list.is_empty() {
        return each(if all.is_empty() { refused } else { PacketOutcome::Dropped });
    }
    // An external address that is another Service's cluster IP is masqueraded as one, for every port.
    let masqueraded = |to: IpAddr| {
        to == source
            || (is_cluster_ip && !from_pod)
            || match kind {
                Kind::ClusterIp => false,
                _ => service.external == Policy::Cluster || question.from == Asker::Node,
            }
    };
    let possible_outcomes = list.iter().map(|(to, port)| {
        let from = if masqueraded(*to) { Sender::Masqueraded } else { Sender::Itself };
        PacketOutcome::Sent { to: *to, port: *port, from }
    });
    match service.choice {
        Choice::Consistent => Expected::OneOf(possible_outcomes.collect()),
        Choice::Random | Choice::Sticky(_) => Expected::Each(possible_outcomes.collect()),
    }
}

/// The Service that owns the frontend: the one with the better claim, then the first by name.
fn owner(world: &World, question: &Question, node_port: bool) -> Option<(usize, LocalPort, Kind)> {
    let family = family_of(question.to);
    let mut claims = Vec::new();
    for (n, (service, _)) in world.services.iter().enumerate() {
        if !service.cluster_ips.iter().any(|ip| family_of(*ip) == family) {
            continue;
        }
        let mut kinds = Vec::new();
        if node_port {
            kinds.push(Kind::NodePort);
        } else {
            let lists = [
                (Kind::ClusterIp, &service.cluster_ips),
                (Kind::LoadBalancer, &service.load_balancer_ips),
                (Kind::External, &service.external_ips),
            ];
            let has = lists.into_iter().filter(|(_, list)| list.contains(&question.to));
            kinds.extend(has.map(|(kind, _)| kind));
        }
        for kind in kinds {
            let asked = |port: &&LocalPort| match kind {
                Kind::NodePort => port.node_port == Some(question.port),
                _ => port.port == question.port,
            };
            let mut ports = service.ports.iter().filter(|p| p.protocol == question.protocol);
            if let Some(port) = ports.find(asked) {
                let rank = u8::from(kind != Kind::ClusterIp);
                claims.push((rank, id(n), kind, n, port.clone()));
            }
        }
    }
    let best = claims.into_iter().min_by_key(|(rank, id, kind, ..)| (*rank, id.clone(), *kind))?;
    Some((best.3, best.4, best.2))
}

type Backends = BTreeSet<(IpAddr, u16)>;

/// Endpoints of a port: for the policy Cluster, and for Local.
fn endpoints(
    service: &LocalService,
    slices: &[LocalSlice],
    family: Family,
    port: &LocalPort,
) -> (Backends, Backends) {
    let mut best: BTreeMap<(IpAddr, u16), (EndpointState, Locality)> = BTreeMap::new();
    let mut zones: BTreeMap<(IpAddr, u16), Vec<String>> = BTreeMap::new();
    for slice in slices {
        for target in
            slice.ports.iter().filter(|p| (&p.name, p.protocol) == (&port.name, port.protocol))
        {
            for (at, endpoint) in slice.endpoints.iter().enumerate() {
                if family_of(endpoint.address) != family {
                    continue;
                }
                let key = (endpoint.address, target.port);
                let seen = (endpoint.state, endpoint.place);
                if best.get(&key).is_none_or(|known| *known < seen) {
                    best.insert(key, seen);
                    let hints = slice.hints.get(at).into_iter().flatten();
                    zones.insert(key, hints.map(ToString::to_string).collect());
                }
            }
        }
    }
    let with = |state, place| -> Backends {
        let fits =
            |(_, (s, p)): &(&(IpAddr, u16), &(EndpointState, Locality))| *s == state && *p >= place;
        best.iter().filter(fits).map(|(key, _)| *key).collect()
    };
    let usable = |place| {
        let ready = with(EndpointState::Ready, place);
        if ready.is_empty() { with(EndpointState::Draining, place) } else { ready }
    };
    let ready = with(EndpointState::Ready, Locality::Elsewhere);
    let near: Backends =
        ready.iter().filter(|key| zones[key].iter().any(|zone| zone == ZONE)).copied().collect();
    let hinted =
        service.topology == Topology::Hints && ready.iter().all(|key| !zones[key].is_empty());
    let all = if hinted && !near.is_empty() { near } else { usable(Locality::Elsewhere) };
    (all, usable(Locality::Here))
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Cluster), Just(Policy::Local)]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)]
}

/// Addresses of both families for a number below a prefix, or of one, or none.
fn addresses(v4: &'static str, v6: &'static str) -> impl Strategy<Value = Vec<IpAddr>> {
    let without = prop_oneof![6 => Just(0u8), 1 => Just(1), 1 => Just(2), 1 => Just(3)];
    (1u8..5, without).prop_map(move |(n, without)| {
        let both = [ip(&format!("{v4}{n}")), ip(&format!("{v6}{n:x}"))];
        both.into_iter()
            .enumerate()
            .filter(|(i, _)| without & 1 << i == 0)
            .map(|(_, a)| a)
            .collect()
    })
}

fn ports() -> impl Strategy<Value = Vec<LocalPort>> {
    let port = (0usize..2, protocol(), 80u16..83, proptest::option::of(30_000u16..30_004));
    proptest::collection::vec(port, 1..4).prop_map(|ports| {
        let port = |(name, protocol, port, node_port): (usize, _, _, _)| LocalPort {
            name: ["", "b"][name].into(),
            protocol,
            port,
            node_port,
        };
        ports.into_iter().map(port).collect()
    })
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        2 => Just(Choice::Random),
        1 => Just(Choice::Consistent),
        1 => (1u32..100_000).prop_map(Choice::sticky),
    ]
}

fn source_ranges() -> impl Strategy<Value = Vec<Cidr>> {
    let blocks = [
        "192.168.1.0/24",
        "192.168.1.100/32",
        "10.244.1.5/32",
        "10.0.0.0/8",
        "0.0.0.0/0",
        "203.0.113.0/24",
        "fd00:1::/64",
        "fd00:10:244::5/128",
        "::/0",
        "2001:db8::/32",
    ];
    let some = proptest::sample::subsequence(blocks.to_vec(), 0..4);
    prop_oneof![Just(Vec::new()), some]
        .prop_map(|blocks| blocks.into_iter().map(|block| block.parse().unwrap()).collect())
}

fn service() -> impl Strategy<Value = LocalService> {
    let addresses = (
        addresses("10.96.0.", "fd00:96::"),
        // Also addresses of other Services.
        prop_oneof![addresses("198.51.100.", "fd00:51::"), addresses("10.96.0.", "fd00:96::")],
        addresses("198.51.100.", "fd00:51::"),
    );
    let flags = (any::<bool>(), any::<bool>());
    (addresses, source_ranges(), policy(), policy(), choice(), flags, ports()).prop_map(
        |(
            (cluster, external, balanced),
            ranges,
            internal,
            external_policy,
            choice,
            (hints, announced),
            ports,
        )| {
            LocalService {
                cluster_ips: cluster.into(),
                external_ips: external.into(),
                load_balancer_ips: balanced.into(),
                announced_by: announced.then(|| "a".into()),
                source_ranges: ranges.into(),
                internal,
                external: external_policy,
                choice,
                topology: if hints { Topology::Hints } else { Topology::Ignored },
                health_check_port: None,
                ports: ports.into(),
            }
        },
    )
}

/// Pods of EndpointSlices, their states and hints, the ports, and the families.
type Pieces = (Vec<(usize, EndpointState, u8)>, Vec<(usize, Protocol, usize)>, u8);

fn pieces() -> impl Strategy<Value = Pieces> {
    let state = prop_oneof![
        3 => Just(EndpointState::Ready),
        1 => Just(EndpointState::Draining),
        1 => Just(EndpointState::Down),
    ];
    let pods = proptest::collection::vec((0usize..2, state, 0u8..4), 0..4);
    let named = (0usize..2).flat_map(|name| PROTOCOLS.map(|protocol| (name, protocol)));
    let ports = proptest::sample::subsequence(named.collect::<Vec<_>>(), 2..=6)
        .prop_flat_map(|ports| (Just(ports), proptest::collection::vec(0usize..2, 6)))
        .prop_map(|(ports, targets)| {
            let ports = ports.into_iter().zip(targets);
            ports.map(|((name, protocol), target)| (name, protocol, target)).collect()
        });
    (pods, ports, prop_oneof![4 => Just(3u8), 1 => Just(1), 1 => Just(2)])
}

fn slice(of: usize, (pods, ports, _): &Pieces, places: [Locality; 2], family: usize) -> LocalSlice {
    let port = |&(name, protocol, target): &(usize, Protocol, usize)| SlicePort {
        name: ["", "b"][name].into(),
        protocol,
        port: TARGETS[target],
    };
    let endpoint = |&(pod, state, _): &(usize, EndpointState, u8)| LocalEndpoint {
        address: ip(PODS[pod][family]),
        state,
        place: places[pod],
    };
    let zones = |&(.., zones): &(usize, EndpointState, u8)| -> Box<[Box<str>]> {
        let all = [ZONE, "west"].into_iter().enumerate();
        all.filter(|(i, _)| zones & 1 << i != 0).map(|(_, zone)| zone.into()).collect()
    };
    LocalSlice {
        service: id(of),
        ports: ports.iter().map(port).collect(),
        endpoints: pods.iter().map(endpoint).collect(),
        hints: pods.iter().map(zones).collect(),
    }
}

fn local_traffic() -> impl Strategy<Value = LocalTraffic> {
    let name = |text| InterfaceName::new(text).unwrap();
    let own_pod = ["10.244.1.5/32", "fd00:10:244::5/128"].map(|block| block.parse().unwrap());
    prop_oneof![
        4 => Just(LocalTraffic::Cluster),
        1 => Just(LocalTraffic::Blocks(own_pod.into())),
        1 => Just(LocalTraffic::Interface(name("v1"))),
        // A prefix of a name does not match.
        1 => Just(LocalTraffic::Interface(name("v"))),
        1 => Just(LocalTraffic::InterfacePrefix(name("v2"))),
        1 => Just(LocalTraffic::InterfacePrefix(name("v"))),
    ]
}

/// Random Services.
pub fn worlds() -> impl Strategy<Value = World> {
    let one = (service(), proptest::collection::vec(pieces(), 0..5));
    let place = || prop_oneof![3 => Just(Locality::Here), 1 => Just(Locality::Elsewhere)];
    let services = proptest::collection::vec(one, 1..5);
    let all = (services, [place(), place()], local_traffic(), announcing());
    all.prop_map(|(services, places, local_traffic, announcing)| {
        let services = services.into_iter().enumerate().map(|(n, (service, pieces))| {
            let slices = pieces.iter().flat_map(|pieces| {
                let families = [0, 1].into_iter().filter(|family| pieces.2 & 1 << family != 0);
                families.map(|family| slice(n, pieces, places, family))
            });
            let slices = slices.collect();
            (service, slices)
        });
        let (services, places) = (services.collect(), places.map(Some));
        World { services, places, local_traffic, announcing }
    })
}

/// Nothing is announced, or addresses of all or some load balancers.
fn announcing() -> impl Strategy<Value = Option<Announcing>> {
    let ranges = ["198.51.100.0/24", "198.51.100.2-198.51.100.3", "fd00:51::/64", "fd00:51::1/128"];
    let ranges = proptest::sample::subsequence(ranges.to_vec(), 0..4);
    (proptest::sample::select(vec!["a", "b"]), ranges).prop_map(|(node, ranges)| {
        let ranges: Vec<_> = ranges.into_iter().map(|range| range.parse().unwrap()).collect();
        let ranges = AddressRanges::new(&ranges).unwrap();
        ranges.map(|ranges| Announcing { node: node.into(), ranges })
    })
}

/// Random connections: mostly to frontends, also to unused addresses and ports.
pub fn questions(world: &World) -> impl Strategy<Value = Question> + use<> {
    let mut targets = Vec::new();
    for (service, _) in &world.services {
        let lists = [&service.cluster_ips, &service.load_balancer_ips, &service.external_ips];
        let addresses: Vec<IpAddr> = lists.into_iter().flatten().copied().collect();
        for port in &service.ports {
            targets.extend(addresses.iter().map(|to| (*to, port.port, port.protocol)));
            let numbers = port.node_port.into_iter();
            targets.extend(numbers.flat_map(|n| NODE.map(|node| (ip(node), n, port.protocol))));
        }
    }
    let anywhere = prop_oneof![
        Just(ip("10.96.0.1")),
        Just(ip("fd00:96::2")),
        Just(ip("10.96.0.99")),
        Just(ip("198.51.100.2")),
        Just(ip(NODE[0])),
        Just(ip(NODE[1])),
    ];
    let any_port = prop_oneof![80u16..83, 30_000u16..30_004];
    let unknown = (anywhere, any_port, protocol()).boxed();
    let target = match targets.is_empty() {
        true => unknown,
        false => prop_oneof![5 => proptest::sample::select(targets), 1 => unknown].boxed(),
    };
    let from = prop_oneof![
        Just(Asker::Node),
        Just(Asker::Client),
        Just(Asker::Pod(0)),
        Just(Asker::Pod(1))
    ];
    (from, target).prop_map(|(from, (to, port, protocol))| Question { from, protocol, to, port })
}
