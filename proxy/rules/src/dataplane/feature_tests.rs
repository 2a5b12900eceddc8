//! Features of Services one by one: affinity, source ranges, consistent choice, zones, health checks.

use super::tests::{
    CLIENT, NODE, POD_HERE, ask, follow, ip, layout, node, node_with, sent, service, slice,
    with_node_port,
};
use super::*;
use crate::health::HealthCheck;
use crate::layout::FAMILIES;
use crate::model::{
    AddressRange, AddressRanges, Announcing, Choice, EndpointState, InterfaceName, LocalTraffic,
    Locality, Policy, Protocol,
};
use crate::trace::{Origin, Packet, PacketOutcome, Sender, SetUpdate, possible_outcomes, trace};
use Locality::{Elsewhere, Here};
use Origin::{Host, Network};
use Sender::{Itself, Masqueraded};
use std::net::{IpAddr, SocketAddr};

const ENDPOINTS: [(&str, Locality); 3] =
    [("10.244.1.6", Here), ("10.244.2.6", Elsewhere), ("10.244.3.6", Elsewhere)];

fn sticky(service: LocalService) -> LocalService {
    LocalService { choice: Choice::sticky(10), ..service }
}

/// Updates of the kernel's tables by packets.
struct Memory(Vec<SetUpdate>);

impl Memory {
    /// Result of a connection when `drawn` is drawn; its updates are stored.
    fn connect(
        &mut self,
        node: &Dataplane,
        from: &str,
        to: (&str, u16),
        drawn: u32,
    ) -> PacketOutcome {
        let (src, dst) = (ip(from), ip(to.0));
        let origin = if from == NODE { Host } else { Network };
        let protocol = Protocol::Tcp;
        let packet = Packet { src, src_port: 40000, dst, dst_port: to.1, protocol, origin };
        let family = crate::model::family_of(dst);
        let mut table = node.tables().into_iter().find(|(f, _)| *f == family).unwrap().1;
        self.0.iter().for_each(|learned| learned.apply(&mut table));
        let local = |address: IpAddr| address == ip(NODE);
        let traced = trace(&table, &packet, &local, &mut |count| drawn.min(count - 1));
        self.0.extend(traced.learned);
        traced.outcome
    }
}

fn endpoint(outcome: &PacketOutcome) -> String {
    match outcome {
        PacketOutcome::Sent { to, .. } => to.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Replaces the endpoints of the Service of [`node`].
fn change_endpoints(
    node: &mut Dataplane,
    from: &[(&str, Locality)],
    to: &[(&str, Locality)],
) -> Transaction {
    let id = ServiceId::new("ns", "web");
    let (old, new) = (slice(&id, from), slice(&id, to));
    node.slice_changed("web-1", Some(&old), Some(Arc::new(new)));
    match node.pass() {
        Pass::Change(transaction) => transaction,
        Pass::Reload => panic!("reload"),
    }
}

#[test]
fn a_client_comes_back_to_its_endpoint_as_long_as_that_serves() {
    for (to, port) in [("10.96.0.1", 80), ("198.51.100.1", 80), (NODE, 30080)] {
        let mut node = node(sticky(with_node_port(Policy::Cluster)), &ENDPOINTS);
        let mut memory = Memory(Vec::new());
        let [one, other] = [CLIENT, "203.0.113.8"];
        let first = memory.connect(&node, one, (to, port), 1);
        assert_eq!(endpoint(&first), "10.244.2.6", "{to}");
        assert_eq!(endpoint(&memory.connect(&node, other, (to, port), 2)), "10.244.3.6");
        for drawn in 0..3 {
            assert_eq!(memory.connect(&node, one, (to, port), drawn), first, "{to}");
            let theirs = memory.connect(&node, other, (to, port), drawn);
            assert_eq!(endpoint(&theirs), "10.244.3.6");
        }
        // The endpoint is removed: the client gets another one and keeps it, even when the first one returns.
        let rest = [ENDPOINTS[0], ENDPOINTS[2]];
        change_endpoints(&mut node, &ENDPOINTS, &rest);
        assert_eq!(endpoint(&memory.connect(&node, one, (to, port), 0)), "10.244.1.6");
        change_endpoints(&mut node, &rest, &ENDPOINTS);
        for drawn in 0..3 {
            assert_eq!(endpoint(&memory.connect(&node, one, (to, port), drawn)), "10.244.1.6");
            assert_eq!(endpoint(&memory.connect(&node, other, (to, port), drawn)), "10.244.3.6");
        }
    }
}

#[test]
fn affinity_never_leads_where_the_policy_does_not() {
    let cluster = sticky(with_node_port(Policy::Cluster));
    let mut node = node(cluster, &ENDPOINTS);
    let mut memory = Memory(Vec::new());
    for to in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(endpoint(&memory.connect(&node, CLIENT, to, 2)), "10.244.3.6");
    }
    let id = ServiceId::new("ns", "web");
    node.service_changed(&id, Some(Arc::new(sticky(with_node_port(Policy::Local)))));
    follow(&mut node);
    for to in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(endpoint(&memory.connect(&node, CLIENT, to, 2)), "10.244.1.6");
    }
}

#[test]
fn a_client_that_cannot_be_remembered_is_served_all_the_same() {
    let node = node(sticky(service(&["10.96.0.1"])), &ENDPOINTS);
    let mut table = node.tables().remove(0).1;
    table.sets.get_mut("affinity").unwrap().set.size.0 = Some(0);
    let packet = Packet {
        src: ip(POD_HERE),
        src_port: 40000,
        dst: ip("10.96.0.1"),
        dst_port: 80,
        protocol: Protocol::Tcp,
        origin: Network,
    };
    let all: Vec<&str> = ENDPOINTS.iter().map(|(address, _)| *address).collect();
    let possible_outcomes: Vec<PacketOutcome> =
        possible_outcomes(&table, &packet, &|_| false, 64).into_iter().collect();
    assert_eq!(possible_outcomes, sent(&all, Itself));
}

#[test]
fn the_map_of_clients_is_small_until_a_service_wants_it() {
    let mut node = node(service(&["10.96.0.1"]), &ENDPOINTS);
    let size = |node: &Dataplane| node.tables()[0].1.sets["affinity"].set.size.0;
    assert_eq!(size(&node), Some(384));
    let id = ServiceId::new("ns", "web");
    node.service_changed(&id, Some(Arc::new(sticky(service(&["10.96.0.1"])))));
    assert_eq!(node.pass(), Pass::Reload);
    node.load();
    assert_eq!(size(&node), Some(65_536));
    // Now the map has its full size.
    let another = LocalService { choice: Choice::sticky(77), ..service(&["10.96.0.2"]) };
    node.service_changed(&ServiceId::new("ns", "more"), Some(Arc::new(another)));
    assert!(matches!(node.pass(), Pass::Change(_)));
}

fn balanced(ranges: &[&str]) -> LocalService {
    LocalService {
        load_balancer_ips: [ip("198.51.100.9"), ip("fd00:51::9")].into(),
        source_ranges: ranges.iter().map(|block| block.parse().unwrap()).collect(),
        ..with_node_port(Policy::Cluster)
    }
}

#[test]
fn source_ranges_guard_the_balancers_address_and_nothing_else() {
    let one = [("10.244.2.6", Elsewhere)];
    let node = node(balanced(&["203.0.113.0/28", "10.244.1.5/32", "10.0.0.0/30"]), &one);
    let served = sent(&["10.244.2.6"], Masqueraded);
    let guarded = |from: &str| ask(&node, Network, from, "198.51.100.9", 80);
    assert_eq!(guarded("203.0.113.7"), served);
    assert_eq!(guarded("203.0.113.16"), [PacketOutcome::Dropped]);
    assert_eq!(guarded(POD_HERE), served);
    assert_eq!(guarded("10.244.1.6"), [PacketOutcome::Dropped]);
    // 10.0.0.0/32 is in no list, though its first 30 bits are.
    assert_eq!(guarded("10.0.0.0"), served);
    assert_eq!(guarded("10.0.0.4"), [PacketOutcome::Dropped]);
    assert_eq!(ask(&node, Host, NODE, "198.51.100.9", 80), [PacketOutcome::Dropped]);
    // Other frontends of the Service are not restricted, and neither is an address of a family without ranges.
    for (to, port) in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(ask(&node, Network, "192.0.2.1", to, port), served, "{to}");
    }
    assert_eq!(ask(&node, Network, "192.0.2.1", "198.51.100.9", 81), [PacketOutcome::Untouched]);
}

/// The node `name` announces what lies in these ranges.
fn announcing(name: &str, ranges: &[&str]) -> Option<Announcing> {
    let ranges: Vec<AddressRange> = ranges.iter().map(|text| text.parse().unwrap()).collect();
    let ranges = AddressRanges::new(&ranges).unwrap();
    ranges.map(|ranges| Announcing { node: name.into(), ranges })
}

#[test]
fn an_announced_address_serves_nothing_but_its_services() {
    let one = [("10.244.2.6", Elsewhere)];
    // As on the node that announces them, the addresses are local.
    let addresses = [ip(NODE), ip("fd00::10")];
    let announced = |by: Option<&str>| LocalService {
        load_balancer_ips: addresses.into(),
        announced_by: by.map(Into::into),
        ..with_node_port(Policy::Cluster)
    };
    let outcomes =
        |node: &Dataplane| [80, 81, 30080].map(|port| ask(node, Network, "192.0.2.1", NODE, port));
    let served = sent(&["10.244.2.6"], Masqueraded);
    let not_announced = node(announced(None), &one);
    let untouched = vec![PacketOutcome::Untouched];
    assert_eq!(outcomes(&not_announced), [served.clone(), untouched, served.clone()]);
    // Without the flag the annotation means nothing.
    assert_eq!(outcomes(&node(announced(Some("b")), &one)), outcomes(&not_announced));
    let with_ranges = |ranges: &[&str]| {
        let mut layout = layout();
        layout.settings.announcing = announcing("a", ranges);
        layout
    };
    // Nor for addresses outside of the ranges.
    let elsewhere = with_ranges(&["198.51.100.0/24", "fd00::11/128"]);
    let outside = node_with(elsewhere, announced(Some("b")), &one);
    assert_eq!(outcomes(&outside), outcomes(&not_announced));
    let here = [&format!("{NODE}-{NODE}"), "fd00::10/128"];
    let mut node = node_with(with_ranges(&here), announced(Some("b")), &one);
    let dropped = vec![PacketOutcome::Dropped];
    assert_eq!(outcomes(&node), [served, dropped.clone(), dropped.clone()]);
    assert_eq!(ask(&node, Network, "2001:db8::1", "fd00::10", 22), dropped);
    // Another Service with the address, and both without it.
    let [web, other] = ["web", "other"].map(|name| ServiceId::new("ns", name));
    node.service_changed(&other, Some(Arc::new(announced(Some("a")))));
    assert!(matches!(node.pass(), Pass::Change(_)));
    node.service_changed(&web, None);
    assert!(matches!(node.pass(), Pass::Change(_)));
    assert_eq!(ask(&node, Network, "192.0.2.1", NODE, 81), dropped);
    node.service_changed(&other, None);
    assert!(matches!(node.pass(), Pass::Change(_)));
    assert_eq!(ask(&node, Network, "192.0.2.1", NODE, 81), [PacketOutcome::Untouched]);
}

#[test]
fn a_node_announces_the_addresses_that_name_it_unless_it_has_them_itself() {
    let made = |ranges: &[&str]| {
        let mut layout = layout();
        layout.settings.announcing = announcing("a", ranges);
        layout.settings.protected = [SocketAddr::new(ip("198.51.100.7"), 10250)].into();
        Dataplane::new(layout)
    };
    let announced = |node: &mut Dataplane, by: Option<&str>| {
        let service = LocalService {
            load_balancer_ips: ["198.51.100.7", "198.51.100.9", "fd00:51::9"].map(ip).into(),
            announced_by: by.map(Into::into),
            ..service(&["10.96.0.1"])
        };
        node.service_changed(&ServiceId::new("ns", "web"), Some(Arc::new(service)));
        if node.pass() == Pass::Reload {
            node.load();
        }
        node.changed_announced_addresses()
    };
    let all = ["198.51.100.0/24", "fd00:51::/64"];
    let mut node = made(&all);
    assert_eq!(announced(&mut node, Some("b")), Some(BTreeSet::new()));
    let ours = BTreeSet::from(["198.51.100.9", "fd00:51::9"].map(ip));
    assert_eq!(announced(&mut node, Some("a")), Some(ours));
    assert_eq!(announced(&mut node, Some("a")), None);
    assert_eq!(announced(&mut node, None), Some(BTreeSet::new()));
    let one = BTreeSet::from([ip("198.51.100.9")]);
    assert_eq!(announced(&mut made(&all[..1]), Some("a")), Some(one), "within the ranges");
    // Without the flag.
    assert_eq!(announced(&mut made(&[]), Some("a")), Some(BTreeSet::new()));
    assert_eq!(announced(&mut made(&[]), None), Some(BTreeSet::new()));
}

#[test]
fn an_address_that_the_node_has_still_is_guarded_without_its_service() {
    let one = [("10.244.2.6", Elsewhere)];
    let (web, address) = (ServiceId::new("ns", "web"), "198.51.100.9");
    let service = LocalService {
        load_balancer_ips: [ip(address)].into(),
        announced_by: Some("a".into()),
        ..with_node_port(Policy::Cluster)
    };
    let mut layout = layout();
    layout.settings.announcing = announcing("a", &["198.51.100.9/32"]);
    let mut node = node_with(layout, service, &one);
    let asked = |node: &Dataplane| ask(node, Network, "192.0.2.1", address, 22);
    let assigned = BTreeSet::from([ip(address), ip("198.51.100.10")]);
    node.guard_assigned(&assigned);
    node.pass();
    assert_eq!(node.changed_announced_addresses(), Some([ip(address)].into()));
    node.service_changed(&web, None);
    assert!(matches!(node.pass(), Pass::Change(_)));
    // It is to be withdrawn, and is guarded meanwhile.
    assert_eq!(node.changed_announced_addresses(), Some(BTreeSet::new()));
    assert_eq!((asked(&node), node.services_len()), (vec![PacketOutcome::Dropped], 0));
    let other = ask(&node, Network, "192.0.2.1", "198.51.100.10", 22);
    assert_eq!(other, [PacketOutcome::Untouched], "outside of the ranges");
    node.guard_assigned(&BTreeSet::new());
    assert!(matches!(node.pass(), Pass::Change(_)));
    assert_eq!(asked(&node), [PacketOutcome::Untouched]);
}

#[test]
fn the_first_block_of_a_length_brings_its_rule() {
    let one = [("10.244.2.6", Elsewhere)];
    let mut node = node(balanced(&["203.0.113.0/28"]), &one);
    let id = ServiceId::new("ns", "web");
    let more = balanced(&["203.0.113.0/28", "192.0.2.0/24", "192.0.0.0/24", "::/0"]);
    node.service_changed(&id, Some(Arc::new(more)));
    let Pass::Change(transaction) = node.pass() else { panic!("reload") };
    // The Service has no load balancer's address of the other family, so nothing is restricted there.
    assert_eq!(transaction.prefixes, [(Family::Ip, 24)]);
    assert_eq!((transaction.removed.len(), transaction.added.len()), (0, 2));
    let served = sent(&["10.244.2.6"], Masqueraded);
    assert_eq!(ask(&node, Network, "192.0.2.77", "198.51.100.9", 80), served);
    node.service_changed(&id, Some(Arc::new(balanced(&[]))));
    assert!(matches!(node.pass(), Pass::Change(_)));
    assert_eq!(ask(&node, Network, "198.18.0.1", "198.51.100.9", 80), served);
}

#[test]
fn the_consistent_choice_depends_on_the_client_alone() {
    let consistent = LocalService { choice: Choice::Consistent, ..service(&["10.96.0.1"]) };
    let one = node(consistent.clone(), &ENDPOINTS);
    // A node with another history: the endpoints were added one by one, and others removed.
    let mut other = node(consistent, &[("10.244.9.9", Elsewhere)]);
    let mut before = vec![("10.244.9.9", Elsewhere)];
    for endpoint in ENDPOINTS {
        let after = [&before[..], &[endpoint]].concat();
        change_endpoints(&mut other, &before, &after);
        before = after;
    }
    let without = ENDPOINTS.map(|(address, _)| (address, Elsewhere));
    change_endpoints(&mut other, &before, &without);
    let mut seen = BTreeSet::new();
    for n in 0..40u8 {
        let from = format!("10.244.7.{n}");
        let select_endpoints = |node: &Dataplane| ask(node, Network, &from, "10.96.0.1", 80);
        let chosen = select_endpoints(&one);
        assert_eq!((chosen.len(), &chosen), (1, &select_endpoints(&other)));
        seen.extend(chosen);
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn traffic_keeps_to_the_zone_of_the_node_as_soon_as_it_is_known() {
    let hinted = LocalService { topology: Topology::Hints, ..service(&["10.96.0.1"]) };
    let id = ServiceId::new("ns", "web");
    let mut node = Dataplane::new(layout());
    let zones = [["east"], ["west"], ["west"]];
    let slice = LocalSlice {
        hints: zones.map(|zones| zones.map(Box::from).into()).into(),
        ..slice(&id, &ENDPOINTS)
    };
    node.service_changed(&id, Some(Arc::new(hinted)));
    node.slice_changed("web-1", None, Some(Arc::new(slice)));
    node.load();
    let all = ["10.244.1.6", "10.244.2.6", "10.244.3.6"];
    let ask = |node: &Dataplane| ask(node, Network, POD_HERE, "10.96.0.1", 80);
    assert_eq!(ask(&node), sent(&all, Itself));
    for (zone, expected) in
        [(Some("west"), &all[1..]), (Some("east"), &all[..1]), (Some("south"), &all), (None, &all)]
    {
        node.zone_changed(zone);
        assert!(matches!(node.pass(), Pass::Change(_)));
        assert_eq!(ask(&node), sent(expected, Itself), "{zone:?}");
    }
    node.zone_changed(None);
    assert_eq!(node.pass(), Pass::Change(Transaction::default()));
}

#[test]
fn a_draining_endpoint_serves_while_there_is_no_other() {
    let id = ServiceId::new("ns", "web");
    let mut node = node(with_node_port(Policy::Local), &[]);
    let mut here = slice(&id, &[("10.244.1.6", Here), ("10.244.2.6", Elsewhere)]);
    let first = here.endpoints.iter().map(|e| e.address).next();
    let drains = |e| crate::model::LocalEndpoint { state: EndpointState::Draining, ..e };
    let all = here.endpoints.iter();
    here.endpoints = all.map(|e| if Some(e.address) == first { drains(e) } else { e }).collect();
    node.slice_changed("web-1", Some(&slice(&id, &[])), Some(Arc::new(here)));
    assert!(matches!(node.pass(), Pass::Change(_)));
    // The load balancer may not have noticed yet, so its traffic is served; internal traffic has a better endpoint.
    assert_eq!(ask(&node, Network, CLIENT, NODE, 30080), sent(&["10.244.1.6"], Itself));
    let inside = ask(&node, Network, "10.244.1.9", "10.96.0.1", 80);
    assert_eq!(inside, sent(&["10.244.2.6"], Itself));
}

#[test]
fn this_machine_passes_the_policy_local_by_and_is_masqueraded() {
    let node = node(with_node_port(Policy::Local), &ENDPOINTS);
    let all: Vec<&str> = ENDPOINTS.iter().map(|(address, _)| *address).collect();
    for (to, port) in [("198.51.100.1", 80), (NODE, 30080)] {
        assert_eq!(ask(&node, Host, NODE, to, port), sent(&all, Masqueraded), "{to}");
    }
}

#[test]
fn an_external_address_takes_no_socket_that_the_node_needs() {
    let mut careful = layout();
    careful.settings.protected = [(NODE, 80), ("198.51.100.1", 443)]
        .map(|(address, port)| std::net::SocketAddr::new(ip(address), port))
        .into();
    let id = ServiceId::new("ns", "web");
    let mut node = Dataplane::new(careful);
    let service = LocalService {
        external_ips: [ip(NODE), ip("198.51.100.1")].into(),
        load_balancer_ips: [ip(NODE)].into(),
        ..service(&["10.96.0.1"])
    };
    node.service_changed(&id, Some(Arc::new(service)));
    node.slice_changed("web-1", None, Some(Arc::new(slice(&id, &ENDPOINTS[..1]))));
    node.load();
    assert_eq!(ask(&node, Network, CLIENT, NODE, 80), [PacketOutcome::Untouched]);
    // Only address and port together are protected.
    assert_eq!(ask(&node, Network, CLIENT, "198.51.100.1", 80), sent(&["10.244.1.6"], Masqueraded));
}

#[test]
fn loopback_serves_no_node_ports_whatever_the_blocks() {
    let mut everywhere = layout();
    everywhere.settings.node_port_cidrs = vec!["0.0.0.0/0".parse().unwrap()];
    let id = ServiceId::new("ns", "web");
    let mut node = Dataplane::new(everywhere);
    node.service_changed(&id, Some(Arc::new(with_node_port(Policy::Cluster))));
    node.slice_changed("web-1", None, Some(Arc::new(slice(&id, &ENDPOINTS[..1]))));
    node.load();
    let served = sent(&["10.244.1.6"], Masqueraded);
    assert_eq!(ask(&node, Network, CLIENT, NODE, 30080), served);
    assert_eq!(ask(&node, Host, "127.0.0.1", "127.0.0.1", 30080), [PacketOutcome::Untouched]);
}

#[test]
fn balancers_hear_of_endpoints_here_and_only_of_changes() {
    let id = ServiceId::new("ns", "web");
    let asked = LocalService { health_check_port: Some(31000), ..with_node_port(Policy::Local) };
    let mut node = node(asked.clone(), &ENDPOINTS);
    let check = |local_endpoints| HealthCheck { port: 31000, local_endpoints };
    let checks = |check| Some(HealthChecks::from([(id.clone(), check)]));
    assert_eq!(node.changed_health_checks(), checks(check(1)));
    assert_eq!(node.changed_health_checks(), None);
    change_endpoints(&mut node, &ENDPOINTS, &ENDPOINTS[..2]);
    assert_eq!(node.changed_health_checks(), None);
    change_endpoints(&mut node, &ENDPOINTS[..2], &ENDPOINTS[1..2]);
    assert_eq!(node.changed_health_checks(), checks(check(0)));
    node.service_changed(&id, Some(Arc::new(with_node_port(Policy::Local))));
    node.pass();
    assert_eq!(node.changed_health_checks(), Some(HealthChecks::new()));
}

#[test]
fn every_family_has_every_feature() {
    let v6 = |name: &str| ip(&format!("fd00:{name}"));
    let service = LocalService {
        cluster_ips: [v6("96::1")].into(),
        load_balancer_ips: [v6("51::1")].into(),
        source_ranges: ["fd00:1::/64".parse().unwrap()].into(),
        ..sticky(with_node_port(Policy::Cluster))
    };
    let endpoints = [("fd00:10:244::6", Here), ("fd00:10:244::7", Elsewhere)];
    let node = node(service, &endpoints);
    let mut memory = Memory(Vec::new());
    let first = memory.connect(&node, "fd00:1::7", ("fd00:51::1", 80), 1);
    assert_eq!(endpoint(&first), "fd00:10:244::7");
    assert_eq!(memory.connect(&node, "fd00:1::7", ("fd00:51::1", 80), 0), first);
    let outside = memory.connect(&node, "fd00:2::7", ("fd00:51::1", 80), 0);
    assert_eq!(outside, PacketOutcome::Dropped);
    assert_eq!(FAMILIES.len(), 2);
}

#[test]
fn pod_traffic_detection_decides_what_is_masqueraded_and_what_is_outside() {
    let by = |name: &str| Origin::Interface(InterfaceName::new(name).unwrap());
    let blocks = |text: &str| LocalTraffic::Blocks(vec![text.parse().unwrap()]);
    let name = |text: &str| InterfaceName::new(text).unwrap();
    let interface = |text: &str| LocalTraffic::Interface(name(text));
    let prefix = |text: &str| LocalTraffic::InterfacePrefix(name(text));
    for (local_traffic, origin, from, is_pod) in [
        (LocalTraffic::Cluster, by("veth7"), "10.244.2.9", true),
        (LocalTraffic::Cluster, by("cbr0"), CLIENT, false),
        (blocks("10.244.1.0/24"), by("veth7"), POD_HERE, true),
        (blocks("10.244.1.0/24"), by("veth7"), "10.244.2.9", false),
        (blocks("10.244.1.0/24"), Host, NODE, false),
        (interface("cbr0"), by("cbr0"), CLIENT, true),
        (interface("cbr0"), by("cbr01"), POD_HERE, false),
        (interface("cbr0"), by("cbr"), POD_HERE, false),
        (interface("cbr0"), Host, NODE, false),
        (prefix("veth"), by("veth7"), CLIENT, true),
        (prefix("veth"), by("veth"), POD_HERE, true),
        (prefix("veth"), by("eth0"), POD_HERE, false),
        (prefix("veth"), Host, NODE, false),
    ] {
        let id = ServiceId::new("ns", "web");
        let mut node = node(with_node_port(Policy::Local), &ENDPOINTS);
        let traced = format!("{local_traffic:?}: {origin:?} {from}");
        node.local_traffic_changed(local_traffic.clone());
        assert_eq!(node.pass() == Pass::Reload, local_traffic != LocalTraffic::Cluster);
        node.load();
        let all: Vec<&str> = ENDPOINTS.iter().map(|(address, _)| *address).collect();
        let sender = if is_pod { Itself } else { Masqueraded };
        assert_eq!(ask(&node, origin, from, "10.96.0.1", 80), sent(&all, sender), "{traced}");
        // For external traffic the policy Local applies; this node and pods reach all endpoints.
        let outside = sent(&all[..1], Itself);
        let expected = match (is_pod, origin) {
            (true, _) => sent(&all, Itself),
            (false, Host) => sent(&all, Masqueraded),
            (false, _) => outside,
        };
        assert_eq!(ask(&node, origin, from, "198.51.100.1", 80), expected, "{traced}");
        assert_eq!(node.owner(&Claim::ClusterIp(ip("10.96.0.1"))), Some(&id));
    }
}

#[test]
fn ports_without_endpoints_here_are_counted_by_policy() {
    let with =
        |internal, external| LocalService { internal, external, ..with_node_port(Policy::Cluster) };
    let id = ServiceId::new("ns", "web");
    let (cluster, local) = (Policy::Cluster, Policy::Local);
    for (internal, external, endpoints, expected) in [
        (local, local, &ENDPOINTS[1..], [1, 1]),
        (local, cluster, &ENDPOINTS[1..], [1, 0]),
        (cluster, local, &ENDPOINTS[1..], [0, 1]),
        (cluster, cluster, &ENDPOINTS[1..], [0, 0]),
        (local, local, &ENDPOINTS[..], [0, 0]),
        // Rejected because there are none.
        (local, local, &[], [0, 0]),
    ] {
        let mut node = node(with(internal, external), endpoints);
        assert_eq!(node.without_local_endpoints(), expected, "{internal:?} {external:?}");
        node.service_changed(&id, None);
        node.pass();
        assert_eq!(node.without_local_endpoints(), [0, 0]);
    }
}

/// The endpoints flows to which are stale after a change.
fn stale_endpoints(transaction: &Transaction) -> Vec<IpAddr> {
    let stale = crate::stale::stale_flows(transaction);
    stale.iter().filter_map(|flows| flows.filter.reply.src).collect()
}

#[test]
fn flows_to_an_endpoint_that_keeps_a_slot_are_not_stale() {
    let id = ServiceId::new("ns", "web");
    let mut node = node(with_node_port(Policy::Local), &ENDPOINTS);
    // The only one here drains: it is left to those from outside.
    let (old, mut new) = (slice(&id, &ENDPOINTS), slice(&id, &ENDPOINTS));
    let drains = |e| crate::model::LocalEndpoint { state: EndpointState::Draining, ..e };
    let all = old.endpoints.iter();
    new.endpoints = all.map(|e| if e.place == Here { drains(e) } else { e }).collect();
    node.slice_changed("web-1", Some(&old), Some(Arc::new(new)));
    let Pass::Change(transaction) = node.pass() else { panic!("reload") };
    let stale = crate::stale::stale_flows(&transaction);
    // By the balancer's address, and by the node port.
    let from_outside = [Some(ip("198.51.100.1")), None];
    assert!(!stale.is_empty(), "those from inside go elsewhere");
    assert!(stale.iter().all(|flows| !from_outside.contains(&flows.filter.orig.dst)), "{stale:?}");

    // One more takes slots of all others.
    let consistent = LocalService { choice: Choice::Consistent, ..service(&["10.96.0.1"]) };
    let mut node = super::tests::node(consistent, &ENDPOINTS);
    let more = [&ENDPOINTS[..], &[("10.244.4.6", Elsewhere)]].concat();
    let transaction = change_endpoints(&mut node, &ENDPOINTS, &more);
    assert!(transaction.removed.iter().any(|entry| entry.endpoint().is_some()));
    assert_eq!(stale_endpoints(&transaction), Vec::<IpAddr>::new());
    let transaction = change_endpoints(&mut node, &more, &ENDPOINTS);
    assert_eq!(stale_endpoints(&transaction), [ip("10.244.4.6")]);
}

#[test]
fn flows_to_endpoints_whose_frontend_another_service_takes_are_stale() {
    const THREE: [(&str, Locality); 3] =
        [("10.244.2.1", Elsewhere), ("10.244.2.2", Elsewhere), ("10.244.2.3", Elsewhere)];
    let (id, first) = (ServiceId::new("ns", "web"), ServiceId::new("aa", "first"));
    let mut node = super::tests::node(with_node_port(Policy::Cluster), &THREE);
    // In one pass it loses an endpoint, others move to its slots, and a Service before it takes its external address.
    let (old, new) = (slice(&id, &THREE), slice(&id, &THREE[1..]));
    node.slice_changed("web-1", Some(&old), Some(Arc::new(new)));
    let external = Box::new([ip("198.51.100.1")]);
    let other = LocalService { external_ips: external, ..service(&["10.96.0.2"]) };
    node.service_changed(&first, Some(Arc::new(other)));
    let endpoints = slice(&first, &[("10.244.3.1", Elsewhere)]);
    node.slice_changed("first-1", None, Some(Arc::new(endpoints)));
    let Pass::Change(transaction) = node.pass() else { panic!("reload") };
    let stale = crate::stale::stale_flows(&transaction);
    let by_address = |address: &str| {
        let of_it = stale.iter().filter(|flows| flows.filter.orig.dst == Some(ip(address)));
        of_it.filter_map(|flows| flows.filter.reply.src).collect::<BTreeSet<_>>()
    };
    assert_eq!(by_address("198.51.100.1"), THREE.iter().map(|(at, _)| ip(at)).collect());
    assert_eq!(by_address("10.96.0.1"), [ip("10.244.2.1")].into());
}
