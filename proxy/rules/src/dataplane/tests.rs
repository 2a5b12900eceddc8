use super::*;
use crate::diff::{self, diff};
use crate::layout::FAMILIES;
use crate::model::{
    EgressMasquerade, EndpointState, LocalEndpoint, LocalPort, Locality, Policy, Protocol,
    Settings, SlicePort,
};
use crate::trace::{Origin, Packet, PacketOutcome, Sender, possible_outcomes};
use proptest::prelude::*;
use proxy_netfilter::fake::FakeKernel;
use proxy_netfilter::nft::Batch;
use proxy_netfilter::nft::numbers::TableFlags;
use std::collections::HashMap;
use std::net::IpAddr;

pub(super) const NODE: &str = "192.168.1.10";
pub(super) const POD_HERE: &str = "10.244.1.5";
pub(super) const CLIENT: &str = "203.0.113.7";

pub(super) fn layout() -> Layout {
    let blocks = ["10.244.0.0/16", "fd00:10:244::/56"];
    Layout {
        table: "orch-proxy".into(),
        flags: TableFlags::NONE,
        families: FAMILIES.into(),
        settings: Settings {
            cluster_cidrs: blocks.map(|block| block.parse().unwrap()).into(),
            ..Settings::default()
        },
    }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A service with one TCP port 80, target port 8080.
pub(super) fn service(cluster_ips: &[&str]) -> LocalService {
    let port = LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    LocalService {
        cluster_ips: cluster_ips.iter().map(|text| ip(text)).collect(),
        ports: [port].into(),
        ..LocalService::default()
    }
}

pub(super) fn slice(id: &ServiceId, endpoints: &[(&str, Locality)]) -> LocalSlice {
    let ports = [Protocol::Tcp, Protocol::Udp].map(|protocol| SlicePort {
        name: "".into(),
        protocol,
        port: 8080,
    });
    let endpoint = |&(address, place): &(&str, Locality)| LocalEndpoint {
        address: ip(address),
        state: EndpointState::Ready,
        place,
    };
    LocalSlice {
        service: id.clone(),
        ports: ports.into(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        ..LocalSlice::default()
    }
}

/// A node with one Service, loaded.
pub(super) fn node(service: LocalService, endpoints: &[(&str, Locality)]) -> Dataplane {
    node_with(layout(), service, endpoints)
}

/// The same with another layout.
pub(super) fn node_with(
    layout: Layout,
    service: LocalService,
    endpoints: &[(&str, Locality)],
) -> Dataplane {
    let id = ServiceId::new("ns", "web");
    let mut node = Dataplane::new(layout);
    node.service_changed(&id, Some(Arc::new(service)));
    node.slice_changed("web-1", None, Some(Arc::new(slice(&id, endpoints))));
    node.load();
    node
}

/// Possible results of a TCP connection, by the tables' own rules.
pub(super) fn ask(
    node: &Dataplane,
    origin: Origin,
    from: &str,
    to: &str,
    port: u16,
) -> Vec<PacketOutcome> {
    let (src, dst) = (ip(from), ip(to));
    let packet =
        Packet { src, src_port: 40000, dst, dst_port: port, protocol: Protocol::Tcp, origin };
    let family = crate::model::family_of(dst);
    let table = node.tables().into_iter().find(|(f, _)| *f == family).unwrap().1;
    let local = [NODE, "127.0.0.1", "fd00::10", "::1"].map(ip);
    possible_outcomes(&table, &packet, &|address| local.contains(&address), 64)
        .into_iter()
        .collect()
}

pub(super) fn sent(to: &[&str], from: Sender) -> Vec<PacketOutcome> {
    to.iter().map(|to| PacketOutcome::Sent { to: ip(to), port: 8080, from }).collect()
}

use Locality::{Elsewhere, Here};
use Origin::{Host, Network};
use Sender::{Itself, Masqueraded};

#[test]
fn a_cluster_address_leads_to_each_endpoint() {
    let node = node(
        service(&["10.96.0.1", "fd00:96::1"]),
        &[("10.244.1.5", Here), ("10.244.2.6", Elsewhere), ("fd00:10:244::9", Elsewhere)],
    );
    let both = ["10.244.1.5", "10.244.2.6"];
    assert_eq!(ask(&node, Network, "10.244.1.9", "10.96.0.1", 80), sent(&both, Itself));
    let v6 = ask(&node, Network, "fd00:10:244::1", "fd00:96::1", 80);
    assert_eq!(v6, sent(&["fd00:10:244::9"], Itself));
    // Replies to a client outside the pod CIDRs would not return through this node.
    assert_eq!(ask(&node, Host, NODE, "10.96.0.1", 80), sent(&both, Masqueraded));
    assert_eq!(ask(&node, Network, CLIENT, "10.96.0.1", 80), sent(&both, Masqueraded));
    // Another port of a cluster IP, and an unused address.
    assert_eq!(ask(&node, Network, POD_HERE, "10.96.0.1", 81), [PacketOutcome::Reset]);
    assert_eq!(ask(&node, Network, POD_HERE, "10.96.0.2", 80), [PacketOutcome::Untouched]);
}

#[test]
fn an_endpoint_that_reaches_itself_is_masqueraded() {
    let node = node(service(&["10.96.0.1"]), &[(POD_HERE, Here)]);
    assert_eq!(ask(&node, Network, POD_HERE, "10.96.0.1", 80), sent(&[POD_HERE], Masqueraded));
}

#[test]
fn without_endpoints_a_connection_is_refused() {
    let node = node(service(&["10.96.0.1"]), &[]);
    assert_eq!(ask(&node, Network, POD_HERE, "10.96.0.1", 80), [PacketOutcome::Reset]);
    assert_eq!(ask(&node, Host, NODE, "10.96.0.1", 80), [PacketOutcome::Reset]);
}

#[test]
fn the_internal_policy_local_keeps_to_this_node() {
    let local = |endpoints: &[(&str, Locality)]| {
        let service = LocalService { internal: Policy::Local, ..service(&["10.96.0.1"]) };
        ask(&node(service, endpoints), Network, "10.244.1.9", "10.96.0.1", 80)
    };
    assert_eq!(local(&[(POD_HERE, Here), ("10.244.2.6", Elsewhere)]), sent(&[POD_HERE], Itself));
    assert_eq!(local(&[("10.244.2.6", Elsewhere)]), [PacketOutcome::Dropped]);
    assert_eq!(local(&[]), [PacketOutcome::Reset]);
}

pub(super) fn with_node_port(external: Policy) -> LocalService {
    let mut service = service(&["10.96.0.1"]);
    service.external_ips = [ip("198.51.100.1")].into();
    service.external = external;
    service.ports[0].node_port = Some(30080);
    service
}

#[test]
fn external_frontends_reach_all_endpoints_masqueraded() {
    let both = [(POD_HERE, Here), ("10.244.2.6", Elsewhere)];
    let node = node(with_node_port(Policy::Cluster), &both);
    let expected = sent(&[POD_HERE, "10.244.2.6"], Masqueraded);
    for (to, port) in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(ask(&node, Network, CLIENT, to, port), expected, "{to}");
        assert_eq!(ask(&node, Host, NODE, to, port), expected, "{to}");
    }
    assert_eq!(ask(&node, Network, CLIENT, NODE, 80), [PacketOutcome::Untouched]);
    // Node ports are not served at loopback addresses, nor at other nodes' addresses.
    assert_eq!(ask(&node, Host, "127.0.0.1", "127.0.0.1", 30080), [PacketOutcome::Untouched]);
    assert_eq!(ask(&node, Network, POD_HERE, "192.168.1.11", 30080), [PacketOutcome::Untouched]);
}

#[test]
fn the_external_policy_local_keeps_the_sender() {
    let endpoints = [("10.244.1.6", Here), ("10.244.2.6", Elsewhere)];
    let node_with_one = node(with_node_port(Policy::Local), &endpoints);
    for (to, port) in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(ask(&node_with_one, Network, CLIENT, to, port), sent(&["10.244.1.6"], Itself));
        // The cluster's own traffic reaches all endpoints.
        let all = sent(&["10.244.1.6", "10.244.2.6"], Itself);
        assert_eq!(ask(&node_with_one, Network, POD_HERE, to, port), all);
    }
    let none_here = node(with_node_port(Policy::Local), &[("10.244.2.6", Elsewhere)]);
    assert_eq!(ask(&none_here, Network, CLIENT, NODE, 30080), [PacketOutcome::Dropped]);
    assert_eq!(ask(&none_here, Network, CLIENT, "198.51.100.1", 80), [PacketOutcome::Dropped]);
    assert_eq!(
        ask(&none_here, Network, POD_HERE, "198.51.100.1", 80),
        sent(&["10.244.2.6"], Itself)
    );
}

#[test]
fn node_ports_can_be_limited_to_blocks() {
    let mut limited = layout();
    limited.settings.node_port_cidrs = vec!["192.168.1.0/24".parse().unwrap()];
    let id = ServiceId::new("ns", "web");
    let mut node = Dataplane::new(limited);
    node.service_changed(&id, Some(Arc::new(with_node_port(Policy::Cluster))));
    node.slice_changed("web-1", None, Some(Arc::new(slice(&id, &[(POD_HERE, Here)]))));
    node.load();
    assert_eq!(ask(&node, Network, CLIENT, NODE, 30080), sent(&[POD_HERE], Masqueraded));
    assert_eq!(ask(&node, Host, "127.0.0.1", "127.0.0.1", 30080), [PacketOutcome::Untouched]);
}

/// Applies the result of a pass.
pub(super) fn follow(node: &mut Dataplane) {
    if node.pass() == Pass::Reload {
        node.load();
    }
}

#[test]
fn rules_of_rare_features_appear_once_a_service_uses_them() {
    let id = ServiceId::new("ns", "web");
    let mut node = node(service(&["10.96.0.1"]), &[(POD_HERE, Here)]);
    let rules = |node: &Dataplane| -> usize {
        node.tables()[0].1.chains.values().map(|chain| chain.rules.len()).sum()
    };
    let (plain, mut before) = (node.tables(), rules(&node));
    for policy in [Policy::Cluster, Policy::Local] {
        let external = with_node_port(policy);
        node.service_changed(&id, Some(Arc::new(external.clone())));
        assert_eq!(node.pass(), Pass::Reload, "{policy:?}");
        node.load();
        // The second such Service needs no load.
        let second = LocalService { external_ips: [ip("198.51.100.2")].into(), ..external };
        node.service_changed(&id, Some(Arc::new(second)));
        assert!(matches!(node.pass(), Pass::Change(_)), "{policy:?}");
        assert!(policy == Policy::Local || rules(&node) > before);
        before = rules(&node);
    }
    // Rules of unused maps may stay, and are no difference to a fresh start.
    node.service_changed(&id, Some(Arc::new(service(&["10.96.0.1"]))));
    assert!(matches!(node.pass(), Pass::Change(_)));
    for ((family, is), (_, should)) in node.tables().into_iter().zip(plain) {
        let found = crate::compare::compare(family, Some(&is), &should);
        assert_eq!(found.shape, Vec::<String>::new());
    }
}

#[test]
fn a_cluster_address_beats_the_same_external_address() {
    let id = ServiceId::new("ns", "web");
    let thief = ServiceId::new("aa", "thief");
    let mut node = node(service(&["10.96.0.1"]), &[(POD_HERE, Here)]);
    let mut other = service(&["10.96.0.2"]);
    other.external_ips = [ip("10.96.0.1")].into();
    node.service_changed(&thief, Some(Arc::new(other)));
    let endpoints = slice(&thief, &[("10.244.6.6", Elsewhere)]);
    node.slice_changed("thief-1", None, Some(Arc::new(endpoints)));
    follow(&mut node);
    assert_eq!(ask(&node, Network, "10.244.1.9", "10.96.0.1", 80), sent(&[POD_HERE], Itself));
    node.service_changed(&id, None);
    follow(&mut node);
    let stolen = sent(&["10.244.6.6"], Masqueraded);
    assert_eq!(ask(&node, Network, "10.244.1.9", "10.96.0.1", 80), stolen);
}

#[test]
fn one_endpoint_costs_two_elements() {
    let many: Vec<String> = (1..=100).map(|n| format!("10.244.2.{n}")).collect();
    let mut endpoints: Vec<(&str, Locality)> =
        many.iter().map(|a| (a.as_str(), Elsewhere)).collect();
    let mut node = node(service(&["10.96.0.1"]), &endpoints);
    let id = ServiceId::new("ns", "web");
    endpoints[3].0 = "10.244.3.200";
    let old = slice(&id, &endpoints);
    node.slice_changed("web-1", Some(&old), Some(Arc::new(old.clone())));
    let Pass::Change(transaction) = node.pass() else { panic!("reload") };
    assert_eq!((transaction.removed.len(), transaction.added.len()), (1, 1));
    assert!(transaction.classes.is_empty());
    // Without a change there is nothing to do.
    node.slice_changed("web-1", Some(&old), Some(Arc::new(old.clone())));
    assert_eq!(node.pass(), Pass::Change(Transaction::default()));
}

#[test]
fn a_service_on_the_number_of_a_node_port_is_not_masqueraded_for_it() {
    let mut node = node(with_node_port(Policy::Cluster), &[(POD_HERE, Here)]);
    let other = ServiceId::new("ns", "other");
    let mut service = service(&["10.96.0.2"]);
    service.ports[0].port = 30080;
    node.service_changed(&other, Some(Arc::new(service)));
    let endpoints = slice(&other, &[("10.244.2.6", Elsewhere)]);
    node.slice_changed("other-1", None, Some(Arc::new(endpoints)));
    assert!(matches!(node.pass(), Pass::Change(_)));
    let to_other = ask(&node, Network, "10.244.1.9", "10.96.0.2", 30080);
    assert_eq!(to_other, sent(&["10.244.2.6"], Itself));
    let to_node_port = ask(&node, Network, "10.244.1.9", NODE, 30080);
    assert_eq!(to_node_port, sent(&[POD_HERE], Masqueraded));
}

#[test]
fn a_full_map_asks_for_a_reload_with_more_room() {
    let mut node = node(service(&["10.96.0.1"]), &[(POD_HERE, Here)]);
    let many: Vec<String> = (0..400).map(|n| format!("10.244.{}.{}", n / 200, n % 200)).collect();
    let endpoints: Vec<(&str, Locality)> = many.iter().map(|a| (a.as_str(), Elsewhere)).collect();
    let old = slice(&ServiceId::new("ns", "web"), &[]);
    let new = slice(&old.service, &endpoints);
    node.slice_changed("web-1", Some(&old), Some(Arc::new(new)));
    assert_eq!(node.pass(), Pass::Reload);
    let load = node.load();
    assert_eq!(load.tables[0].1.sets["endpoints"].set.size.0, Some(1536));
    assert_eq!(ask(&node, Network, POD_HERE, "10.96.0.1", 80).len(), 64);
}

#[test]
fn room_fills_the_kernels_hash_buckets() {
    for (elements, expected) in
        [(0, 384), (192, 384), (193, 768), (30_000, 98_304), (100_000, 196_608), (300_000, 393_216)]
    {
        assert_eq!(super::loaded_tables::room(elements), expected, "{elements}");
    }
}

#[test]
fn a_kernel_without_a_family_gets_nothing_of_it() {
    let mut node = Dataplane::new(Layout { families: vec![Family::Ip], ..layout() });
    let id = ServiceId::new("ns", "web");
    node.service_changed(&id, Some(Arc::new(service(&["10.96.0.1", "fd00:96::1"]))));
    let endpoints = slice(&id, &[(POD_HERE, Here), ("fd00:10:244::9", Elsewhere)]);
    node.slice_changed("web-1", None, Some(Arc::new(endpoints)));
    let load = node.load();
    assert!(load.tables.iter().all(|(family, _)| *family == Family::Ip));
    assert!(
        load.entries.iter().all(|entry| entry.family == Family::Ip) && !load.entries.is_empty()
    );
}

/// A change in a random history.
#[derive(Clone, Debug)]
enum Event {
    Service(usize, Option<LocalService>),
    Slice(usize, usize, Option<LocalSlice>),
}

fn id(index: usize) -> ServiceId {
    ServiceId::new("ns", ["a", "b", "c", "d"][index])
}

fn events() -> impl Strategy<Value = Event> {
    let policy = || prop_oneof![Just(Policy::Cluster), Just(Policy::Local)];
    let port = (0u16..2, prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)], any::<bool>());
    let service = (0u8..3, proptest::option::of(0u8..4), policy(), policy(), port).prop_map(
        |(cluster, external, internal, external_policy, (port, protocol, node_port))| {
            LocalService {
                cluster_ips: [
                    IpAddr::from([10, 96, 0, cluster]),
                    ip(&format!("fd00:96::{cluster}")),
                ]
                .into(),
                external_ips: external.map(|e| IpAddr::from([10, 96, 0, e])).into_iter().collect(),
                internal,
                external: external_policy,
                ports: [LocalPort {
                    name: "".into(),
                    protocol,
                    port: 80 + port,
                    node_port: node_port.then_some(30000 + port),
                }]
                .into(),
                ..LocalService::default()
            }
        },
    );
    let state = prop_oneof![
        Just(EndpointState::Ready),
        Just(EndpointState::Draining),
        Just(EndpointState::Down)
    ];
    let endpoint = (0u8..6, state, any::<bool>()).prop_map(|(n, state, here)| LocalEndpoint {
        address: IpAddr::from([10, 244, 0, n]),
        state,
        place: if here { Here } else { Elsewhere },
    });
    let endpoints = proptest::collection::vec(endpoint, 0..5);
    prop_oneof![
        (0usize..4, proptest::option::weighted(0.8, service))
            .prop_map(|(n, s)| Event::Service(n, s)),
        (0usize..4, 0usize..2, proptest::option::weighted(0.8, endpoints)).prop_map(|(n, s, e)| {
            let new =
                e.map(|endpoints| LocalSlice { endpoints: endpoints.into(), ..slice(&id(n), &[]) });
            Event::Slice(n, s, new)
        }),
    ]
}

/// The objects of the API.
#[derive(Default)]
struct World {
    slices: HashMap<(usize, usize), Arc<LocalSlice>>,
    services: HashMap<usize, LocalService>,
}

impl World {
    fn tell(&mut self, node: &mut Dataplane, event: Event) {
        match event {
            Event::Service(n, service) => {
                node.service_changed(&id(n), service.clone().map(Arc::new));
                match service {
                    Some(service) => drop(self.services.insert(n, service)),
                    None => drop(self.services.remove(&n)),
                }
            }
            Event::Slice(n, s, slice) => {
                let slice = slice.map(Arc::new);
                let old = match &slice {
                    Some(slice) => self.slices.insert((n, s), slice.clone()),
                    None => self.slices.remove(&(n, s)),
                };
                node.slice_changed(["x", "y"][s], old.as_deref(), slice);
            }
        }
    }

    /// A node that receives everything at once.
    fn fresh(&self) -> Dataplane {
        let mut node = Dataplane::new(layout());
        for (n, service) in &self.services {
            node.service_changed(&id(*n), Some(Arc::new(service.clone())));
        }
        for ((_, s), slice) in &self.slices {
            node.slice_changed(["x", "y"][*s], None, Some(slice.clone()));
        }
        node.load();
        node
    }
}

/// Family, set, key without slot, data.
type Canonical = (Family, String, Vec<u8>, Option<Vec<u8>>);

/// Tables without what may depend on history: the order of slots, and chains of unused classes.
fn canonical(node: &Dataplane) -> Vec<Canonical> {
    let mut all = Vec::new();
    for (family, table) in node.tables() {
        for (name, set) in table.sets.iter().filter(|(name, _)| *name != "classes") {
            for element in set.elements.values() {
                let data = element.data.as_ref().map(|data| format!("{data:?}").into_bytes());
                let key = element.key.bytes();
                let slots = name.ends_with("endpoints");
                // The slot's lowest word only distinguishes the two pools.
                let at = key.len() - if slots { 4 } else { 0 };
                let here = slots && key[at + 1] & 0x80 != 0;
                let key = [&key[..at], &[u8::from(here)]].concat();
                all.push((family, name.clone(), key, data));
            }
        }
    }
    all.sort();
    all
}

fn send(kernel: &mut FakeKernel, encode: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::new(1, None);
    encode(&mut batch);
    if !batch.is_empty() {
        let answers = kernel.send(&batch.finish().unwrap().bytes);
        let message = proxy_netfilter::wire::Messages::new(&answers[0]).next().unwrap().unwrap();
        let ack = proxy_netfilter::ack::Ack::read(&message).unwrap();
        assert_eq!((answers.len(), ack.errno), (1, 0), "{answers:?}");
    }
}

proptest! {
    #[test]
    fn changes_lead_where_a_fresh_start_leads(history in proptest::collection::vec((events(), any::<bool>()), 1..40)) {
        let (mut world, mut node, mut kernel) = (World::default(), Dataplane::new(layout()), FakeKernel::default());
        let layout = layout();
        send(&mut kernel, |batch| node.load().encode(&layout, batch));
        for (event, pause) in history {
            world.tell(&mut node, event);
            if pause {
                continue;
            }
            match node.pass() {
                Pass::Change(transaction) => send(&mut kernel, |batch| transaction.encode(&layout, batch)),
                Pass::Reload => send(&mut kernel, |batch| node.load().encode(&layout, batch)),
            }
            // The fake kernel has reached the state of the model.
            for (family, table) in node.tables() {
                let held = &kernel.ruleset().tables[&(family, layout.table.clone())];
                prop_assert_eq!(diff(family, Some(held), &table), diff::Difference::Elements(Transaction::default()));
            }
            prop_assert_eq!(canonical(&node), canonical(&world.fresh()));
        }
    }

    #[test]
    fn a_difference_applied_leaves_none(left in proptest::collection::vec(events(), 0..12), right in proptest::collection::vec(events(), 0..12)) {
        let build = |events: Vec<Event>| {
            let (mut world, mut node) = (World::default(), Dataplane::new(layout()));
            events.into_iter().for_each(|event| world.tell(&mut node, event));
            node.load();
            node
        };
        let (left, right) = (build(left), build(right));
        let layout = layout();
        for ((family, is), (_, should)) in left.tables().into_iter().zip(right.tables()) {
            if let diff::Difference::Elements(transaction) = diff(family, Some(&is), &should) {
                let mut table = is.clone();
                transaction.apply(&layout, family, &mut table);
                prop_assert_eq!(diff(family, Some(&table), &should), diff::Difference::Elements(Transaction::default()));
                prop_assert!(is != should || transaction.is_empty());
            }
        }
    }
}

#[test]
fn egress_masquerade_gives_traffic_beyond_the_cluster_the_address_of_the_node() {
    let asked = |leaving| {
        let mut layout = layout();
        layout.settings.leaving = leaving;
        let id = ServiceId::new("ns", "web");
        let mut node = Dataplane::new(layout);
        node.service_changed(&id, Some(Arc::new(service(&["10.96.0.1"]))));
        let endpoints = [("10.244.2.6", Elsewhere), ("192.168.1.1", Elsewhere)];
        node.slice_changed("web-1", None, Some(Arc::new(slice(&id, &endpoints))));
        node.load();
        ask(&node, Network, POD_HERE, "10.96.0.1", 80)
    };
    let to_pod = sent(&["10.244.2.6"], Itself);
    assert_eq!(asked(EgressMasquerade::AsIs), sent(&["10.244.2.6", "192.168.1.1"], Itself));
    assert_eq!(
        asked(EgressMasquerade::Masqueraded),
        [to_pod, sent(&["192.168.1.1"], Masqueraded)].concat()
    );
}
