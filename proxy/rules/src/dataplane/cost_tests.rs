//! The cost of hostile objects: work in proportion to the object, a limit per Service, no effect on others.

use super::loaded_tables::CLASSES_SPARE;
use super::tests::{ip, layout, service};
use super::*;
use crate::budget::WORK_MAX;
use crate::model::{Choice, EndpointState, LocalEndpoint, LocalPort, Locality, Policy, SlicePort};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

fn id(name: &str) -> ServiceId {
    ServiceId::new("ns", name)
}

/// Named ports.
fn ports(count: usize) -> Box<[LocalPort]> {
    let port = |n: usize| LocalPort {
        name: n.to_string().into(),
        protocol: Protocol::Tcp,
        port: u16::try_from(n + 1).unwrap(),
        node_port: None,
    };
    (0..count).map(port).collect()
}

fn slice(service: &str, ports: usize, endpoints: std::ops::Range<usize>) -> LocalSlice {
    let port = |n: usize| SlicePort {
        name: n.to_string().into(),
        protocol: Protocol::Tcp,
        port: u16::try_from(n + 1).unwrap(),
    };
    let endpoint = |n: usize| LocalEndpoint {
        address: Ipv4Addr::from(0x0af4_0000 + u32::try_from(n).unwrap()).into(),
        state: EndpointState::Ready,
        place: Locality::Here,
    };
    LocalSlice {
        service: id(service),
        ports: (0..ports).map(port).collect(),
        endpoints: endpoints.map(endpoint).collect(),
        ..LocalSlice::default()
    }
}

/// Work may grow with the object, and by a logarithm.
fn check(what: &str, cost: impl Fn(usize) -> u64) {
    let sizes = [100, 200, 400, 800];
    let costs = sizes.map(cost);
    for pair in costs.windows(2) {
        assert!(pair[0] > 0 && pair[1] <= pair[0] * 5 / 2, "{what}: {costs:?} steps for {sizes:?}");
    }
}

#[test]
fn work_grows_with_the_number_of_changes() {
    check("ports of a service", |count| {
        let mut node = Dataplane::new(layout());
        let wide = LocalService { ports: ports(count), ..service(&["10.96.0.1"]) };
        proto_api::steps::count_during(|| {
            node.service_changed(&id("a"), Some(Arc::new(wide.clone())));
            node.slice_changed("a", None, Some(Arc::new(slice("a", count, 0..2))));
            node.load();
            node.service_changed(&id("a"), Some(Arc::new(wide)));
            assert!(matches!(node.pass(), Pass::Change(_)));
        })
    });
    check("slices of a service", |count| {
        let mut node = Dataplane::new(layout());
        proto_api::steps::count_during(|| {
            let one = LocalService { ports: ports(1), ..service(&["10.96.0.1"]) };
            node.service_changed(&id("a"), Some(Arc::new(one)));
            for n in 0..count {
                let new = Arc::new(slice("a", 1, n * 3..n * 3 + 3));
                node.slice_changed(&n.to_string(), None, Some(new));
            }
            node.load();
        })
    });
    check("services that want the same", |count| {
        let mut node = Dataplane::new(layout());
        node.load();
        proto_api::steps::count_during(|| {
            for n in 0..count {
                let greedy =
                    LocalService { external_ips: [ip("198.51.100.1")].into(), ..service(&[]) };
                let own = Ipv4Addr::from(0x0a60_0000 + u32::try_from(n).unwrap()).into();
                let greedy = LocalService { cluster_ips: [own].into(), ..greedy };
                node.service_changed(&id(&n.to_string()), Some(Arc::new(greedy)));
            }
            node.pass();
            for n in 0..count {
                node.service_changed(&id(&n.to_string()), None);
            }
            node.pass();
        })
    });
    check("endpoints that go", |count| {
        let mut node = Dataplane::new(layout());
        Arc::make_mut(&mut node.layout).settings.removed = RemovedEndpointPolicy::Reset;
        let one = LocalService { ports: ports(1), ..service(&["10.96.0.1"]) };
        node.service_changed(&id("a"), Some(Arc::new(one)));
        let (old, new) = (slice("a", 1, 0..count), slice("a", 1, count..count * 2));
        node.slice_changed("a", None, Some(Arc::new(old.clone())));
        node.load();
        proto_api::steps::count_during(|| {
            node.slice_changed("a", Some(&old), Some(Arc::new(new)));
            let Pass::Change(transaction) = node.pass() else { return };
            assert_eq!(transaction.resets.len(), count);
        })
    });
}

/// As many addresses of one kind as a Service may have.
fn addresses(from: u32) -> Box<[IpAddr]> {
    (0..1024).map(|n| Ipv4Addr::from(from + n).into()).collect()
}

#[test]
fn a_service_costs_a_bounded_number_of_elements() {
    let ranges: Vec<_> =
        (0..2000_u32).map(|n| format!("10.{}.{}.0/24", n / 256, n % 256)).collect();
    let many = LocalService {
        ports: ports(300),
        external_ips: addresses(0xc633_6401),
        ..service(&["10.96.0.1"])
    };
    let sticky =
        LocalService { choice: Choice::sticky(10), external: Policy::Local, ..many.clone() };
    let gated = LocalService {
        load_balancer_ips: addresses(0x2d00_0001),
        external_ips: Box::default(),
        source_ranges: ranges.iter().map(|text| text.parse().unwrap()).collect(),
        ..many.clone()
    };
    let consistent = LocalService { choice: Choice::Consistent, ..many.clone() };
    for (hostile, endpoints) in [(many, 200), (sticky, 200), (gated, 2), (consistent, 9000)] {
        let mut node = Dataplane::new(layout());
        node.service_changed(&id("hostile"), Some(Arc::new(hostile)));
        let changed = slice("hostile", 300, 0..endpoints);
        node.slice_changed("h", None, Some(Arc::new(changed)));
        let other = LocalService { ports: ports(1), ..service(&["10.96.0.2"]) };
        node.service_changed(&id("other"), Some(Arc::new(other)));
        node.slice_changed("o", None, Some(Arc::new(slice("other", 1, 0..1))));
        let entries = node.load().entries;
        assert!(entries.len() <= WORK_MAX + 100 + endpoints, "{}", entries.len());
        assert!(node.over_budget().iter().eq([&id("hostile")]));
        let claim = |address| Claim::Address { address, protocol: Protocol::Tcp, port: 1 };
        assert_eq!(node.owner(&claim(ip("10.96.0.2"))), Some(&id("other")));
        assert_eq!(node.owner(&claim(ip("10.96.0.1"))), Some(&id("hostile")), "the first fit");
        node.service_changed(&id("hostile"), None);
        node.pass();
        assert!(node.over_budget().is_empty());
    }
}

#[test]
fn the_services_of_a_namespace_cost_a_bounded_number_of_elements() {
    let mut node = Dataplane::new(layout());
    node.budgets.namespace_max = 4000;
    let address = |nth: u32| IpAddr::from(Ipv4Addr::from(0x0a60_0000 + nth));
    // Each costs 700: two for the endpoints of each of a hundred ports, and five for its frontend.
    let add = |node: &mut Dataplane, id: &ServiceId, nth: u32| {
        let one =
            LocalService { ports: ports(100), cluster_ips: [address(nth)].into(), ..service(&[]) };
        node.service_changed(id, Some(Arc::new(one)));
        let endpoints = LocalSlice { service: id.clone(), ..slice("", 100, 0..1) };
        node.slice_changed("a", None, Some(Arc::new(endpoints)));
    };
    (0..8).for_each(|nth| add(&mut node, &id(&nth.to_string()), nth));
    let other = ServiceId::new("other", "a");
    add(&mut node, &other, 8);
    node.load();
    let left_out = |node: &Dataplane| node.over_budget().iter().cloned().collect::<Vec<_>>();
    assert_eq!(left_out(&node), [id("5"), id("6"), id("7")]);
    assert_eq!(node.owner(&Claim::ClusterIp(address(8))), Some(&other));
    // Each that waits has its turn once there is room.
    for gone in ["0", "1"] {
        node.service_changed(&id(gone), None);
    }
    let mut passes = 0;
    while node.has_marked() && passes < 10 {
        passes += 1;
        node.pass();
    }
    assert_eq!((left_out(&node), passes), (vec![id("7")], 4));
    for nth in 5..7 {
        let claim = Claim::Address { address: address(nth), protocol: Protocol::Tcp, port: 100 };
        assert_eq!(node.owner(&claim), Some(&id(&nth.to_string())));
    }
}

/// The first of those that wait needs more than there will ever be, and changes meanwhile.
#[test]
fn a_service_that_is_too_large_keeps_no_other_of_its_namespace_waiting() {
    let mut node = Dataplane::new(layout());
    node.budgets.namespace_max = 4000;
    let address = |nth: u32| IpAddr::from(Ipv4Addr::from(0x0a60_0000 + nth));
    let add = |node: &mut Dataplane, nth: u32, endpoints: usize| {
        let (id, cluster_ips) = (id(&nth.to_string()), [address(nth)].into());
        let one = LocalService { ports: ports(1), cluster_ips, ..service(&[]) };
        node.service_changed(&id, Some(Arc::new(one)));
        let endpoints = LocalSlice { service: id, ..slice("", 1, 0..endpoints) };
        node.slice_changed(&nth.to_string(), None, Some(Arc::new(endpoints)));
    };
    let left_out = |node: &Dataplane| node.over_budget().iter().cloned().collect::<Vec<_>>();
    let settle = |node: &mut Dataplane| {
        let mut passes = 0;
        while node.has_marked() && passes < 50 {
            passes += 1;
            node.pass();
        }
        passes
    };
    add(&mut node, 1, 1700);
    add(&mut node, 2, 4100);
    (3..7).for_each(|nth| add(&mut node, nth, 400));
    node.load();
    assert_eq!(left_out(&node), ["2", "3", "4", "5", "6"].map(id));
    node.service_changed(&id("1"), None);
    add(&mut node, 2, 4200);
    // Each that waits has one turn, one pass for each.
    assert_eq!((settle(&mut node), left_out(&node)), (5, vec![id("2")]));
    for nth in 3..7 {
        let claim = Claim::Address { address: address(nth), protocol: Protocol::Tcp, port: 1 };
        assert_eq!(node.owner(&claim), Some(&id(&nth.to_string())));
    }
    // It waits on, and has a turn when there is room.
    (3..7).for_each(|nth| node.service_changed(&id(&nth.to_string()), None));
    add(&mut node, 2, 1700);
    settle(&mut node);
    assert_eq!(left_out(&node), []);
}

#[test]
fn ports_of_one_name_do_not_multiply_the_endpoints() {
    let mut twice = slice("a", 20_000, 0..20_000);
    twice.ports.iter_mut().for_each(|port| port.name = "".into());
    let mut node = Dataplane::new(layout());
    node.service_changed(&id("a"), Some(Arc::new(service(&["10.96.0.1"]))));
    node.slice_changed("a", None, Some(Arc::new(twice)));
    let cost = proto_api::steps::count_during(|| drop(node.load()));
    assert!(cost <= WORK_MAX as u64 * 2, "{cost} steps");
    assert_eq!(node.over_budget().len(), 1);
}

/// Every affinity timeout is a class of its own, and chains stay until the next load.
#[test]
fn classes_that_were_in_use_once_do_not_pile_up() {
    let mut node = Dataplane::new(layout());
    node.slice_changed("a", None, Some(Arc::new(slice("a", 1, 0..1))));
    node.load();
    let (mut reloads, mut most) = (0, 0);
    for seconds in 1..5000 {
        let choice = Choice::sticky(seconds);
        let one = LocalService { ports: ports(1), choice, ..service(&["10.96.0.1"]) };
        node.service_changed(&id("a"), Some(Arc::new(one)));
        if node.pass() == Pass::Reload {
            reloads += 1;
            node.load();
        }
        most = most.max(node.tables.class_count());
    }
    assert!(most <= CLASSES_SPARE + 4 && reloads <= 6, "{most} classes, {reloads} loads");
}

#[test]
fn a_node_port_takes_no_port_that_the_node_needs() {
    let mut careful = layout();
    careful.settings.kept_ports = [10_250].into();
    let at = |address: &str| SocketAddr::new(ip(address), 10_250);
    careful.settings.protected = [at("192.168.1.10")].into();
    let port = |protocol, number, node_port| LocalPort {
        name: "0".into(),
        protocol,
        port: number,
        node_port: Some(node_port),
    };
    let ports = [
        port(Protocol::Tcp, 80, 10_250),
        port(Protocol::Udp, 80, 10_250),
        port(Protocol::Tcp, 81, 10_251),
    ];
    let hostile = LocalService {
        ports: ports.into(),
        health_check_port: Some(10_250),
        ..service(&["10.96.0.1"])
    };
    let mut node = Dataplane::new(careful);
    node.service_changed(&id("a"), Some(Arc::new(hostile)));
    node.slice_changed("a", None, Some(Arc::new(slice("a", 1, 0..1))));
    node.load();
    let owner = |protocol, port| {
        node.owner(&Claim::NodePort { family: Family::Ip, protocol, port }).is_some()
    };
    assert!(!owner(Protocol::Tcp, 10_250));
    assert!(owner(Protocol::Udp, 10_250) && owner(Protocol::Tcp, 10_251));
    assert!(node.health_checks.all.is_empty());
}

/// Every second compilation panics.
#[test]
fn a_service_that_cannot_be_compiled_fails_alone() {
    static TURN: AtomicBool = AtomicBool::new(false);
    let mut node = Dataplane::new(layout());
    node.isolate_with(|work| {
        work();
        TURN.fetch_not(Ordering::Relaxed)
    });
    let names = ["a", "b"];
    for (name, address) in names.into_iter().zip(["10.96.0.1", "10.96.0.2"]) {
        node.service_changed(&id(name), Some(Arc::new(service(&[address]))));
    }
    node.load();
    let at = |address| Claim::ClusterIp(ip(address));
    assert_eq!(
        (node.owner(&at("10.96.0.1")), node.owner(&at("10.96.0.2"))),
        (None, Some(&id("b")))
    );
    assert!(node.over_budget().iter().eq([&id("a")]));
    // It is compiled again when it changes.
    TURN.store(true, Ordering::Relaxed);
    node.service_changed(&id("a"), Some(Arc::new(service(&["10.96.0.1"]))));
    assert!(matches!(node.pass(), Pass::Change(_)));
    assert_eq!(node.owner(&at("10.96.0.1")), Some(&id("a")));
    assert!(node.over_budget().is_empty());
}
