//! Announced addresses of load balancers in the real kernel: neighbours resolve them by ARP and neighbour discovery, a take-over reaches them at once, and
//! nothing of the node but Services answers at them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/api.rs"]
mod api;
#[path = "support/net.rs"]
mod net;
#[path = "support/program.rs"]
mod program;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use api::Api;
use net::{Net, Reply, inside};
use program::Program;
use proto_api::core::v1::{LoadBalancerIngress, Node, NodeAddress, Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proxy_node_addresses::address_table::{AddressTable, AddressTableError, withdraw_all};
use proxy_node_addresses::announcement::AddressChanges;
use proxy_node_addresses::local_addresses::local;
use proxy_rules::model::Protocol;
use sys::{in_namespace, run};

const BALANCER: [&str; 2] = ["192.0.2.50", "fd00:2::50"];
/// The ranges of the flag, with one more address than the Service has.
const ANNOUNCES: &str =
    "--announce-load-balancer-addresses=192.0.2.50-192.0.2.51,fd00:2::50-fd00:2::51";
/// An address of another Service, outside of the ranges.
const OUTSIDE: &str = "192.0.2.60";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A network with a host, which is this namespace, and two nodes.
fn flat_network() {
    run(&["mount", "--make-rprivate", "/"]);
    run(&["mount", "-t", "tmpfs", "tmpfs", "/run"]);
    run(&["ip", "link", "add", "lan", "type", "bridge"]);
    run(&["ip", "link", "set", "lan", "up"]);
    run(&["ip", "addr", "add", "192.0.2.100/24", "dev", "lan"]);
    run(&["ip", "addr", "add", "fd00:2::100/64", "dev", "lan", "nodad"]);
    for (node, number) in [("a", "10"), ("b", "11")] {
        run(&["ip", "netns", "add", node]);
        let near = format!("to-{node}");
        run(&["ip", "link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", node]);
        run(&["ip", "link", "set", &near, "master", "lan", "up"]);
        run(&["ip", "-n", node, "link", "set", "lo", "up"]);
        run(&["ip", "-n", node, "link", "set", "eth0", "up"]);
        let (v4, v6) = (format!("192.0.2.{number}/24"), format!("fd00:2::{number}/64"));
        run(&["ip", "-n", node, "addr", "add", &v4, "dev", "eth0"]);
        run(&["ip", "-n", node, "addr", "add", &v6, "dev", "eth0", "nodad"]);
    }
}

/// What a node does with its addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Announce,
    AnnounceAndNotify,
    Withdraw,
    WithdrawAll,
}

fn act(node: &'static str, own: &'static str, act: Act) {
    let wanted: BTreeSet<IpAddr> = match act {
        Act::Announce | Act::AnnounceAndNotify => BALANCER.map(ip).into(),
        Act::Withdraw | Act::WithdrawAll => BTreeSet::new(),
    };
    in_node(node, async move || {
        if act == Act::WithdrawAll {
            assert_eq!(withdraw_all().await.unwrap(), 2);
        }
        let table = AddressTable::open().unwrap();
        let found = table.addresses().await.unwrap();
        let interface = found.interface_of(&[ip(own)]).unwrap();
        table.apply(&found.plan(&wanted, Some(interface))).await.unwrap();
        let now = table.addresses().await.unwrap();
        assert_eq!(now.plan(&wanted, Some(interface)), AddressChanges::default());
        assert!(local().await.unwrap().is_disjoint(&BALANCER.map(ip).into()));
        if act == Act::AnnounceAndNotify {
            table.notify(interface, &BALANCER.map(ip)).await.unwrap();
        }
    });
}

fn in_node<T: Send + 'static>(
    node: &'static str,
    body: impl AsyncFnOnce() -> T + Send + 'static,
) -> T {
    inside(node, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(body())
    })
}

/// The hardware address of a node.
fn hardware(node: &str) -> String {
    let shown = run(&["ip", "-n", node, "-o", "link", "show", "eth0"]);
    shown.split_once("link/ether ").unwrap().1.split(' ').next().unwrap().to_owned()
}

/// Where the host sends packets to the balancer's addresses.
fn neighbours() -> [Option<String>; 2] {
    BALANCER.map(|address| {
        let shown = run(&["ip", "neigh", "show", "to", address, "dev", "lan"]);
        let rest = shown.split_once("lladdr ")?.1;
        rest.split(' ').next().map(str::to_owned)
    })
}

/// Sends a packet to each address, which makes the host resolve them.
fn send() {
    for address in BALANCER.map(ip) {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.send_to(b"x", SocketAddr::new(address, 9)).unwrap();
    }
}

#[test]
fn neighbours_resolve_addresses_and_a_take_over_moves_them() {
    in_namespace("neighbours_resolve_addresses_and_a_take_over_moves_them", || {
        flat_network();
        act("a", "192.0.2.10", Act::AnnounceAndNotify);
        send();
        let of = |node: &str| [Some(hardware(node)), Some(hardware(node))];
        wait_for("ARP and neighbour discovery answer", || neighbours() == of("a"));
        // No connection of the node begins at them.
        for (to, from) in [("192.0.2.100", "192.0.2.10"), ("fd00:2::100", "fd00:2::10")] {
            let route = run(&["ip", "-n", "a", "route", "get", to]);
            assert!(route.contains(&format!("src {from} ")), "{route}");
        }
        act("a", "192.0.2.10", Act::Withdraw);
        act("b", "192.0.2.11", Act::Announce);
        assert_eq!(neighbours(), of("a"), "the kernel alone notifies no neighbour");
        act("b", "192.0.2.11", Act::AnnounceAndNotify);
        wait_for("the notices reach the host", || neighbours() == of("b"));
        act("b", "192.0.2.11", Act::WithdrawAll);
        let left = run(&["ip", "-n", "b", "addr"]);
        assert!(!BALANCER.iter().any(|address| left.contains(&format!("{address}/"))), "{left}");
    });
}

#[test]
fn addresses_of_the_node_are_neither_announced_nor_removed() {
    in_namespace("addresses_of_the_node_are_neither_announced_nor_removed", || {
        flat_network();
        run(&["ip", "-n", "a", "addr", "add", "192.0.2.50/32", "dev", "lo"]);
        in_node("a", async || {
            let table = AddressTable::open().unwrap();
            let found = table.addresses().await.unwrap();
            let interface = found.interface_of(&[ip("192.0.2.10")]);
            let outcome = table.apply(&found.plan(&BALANCER.map(ip).into(), interface)).await;
            assert!(matches!(outcome, Err(AddressTableError::Conflict(_))), "{outcome:?}");
            assert_eq!(withdraw_all().await.unwrap(), 1, "that of the other family");
        });
        assert!(run(&["ip", "-n", "a", "addr", "show", "dev", "lo"]).contains("192.0.2.50/32"));
    });
}

const NODE: [&str; 2] = ["192.168.9.1", "fd00:9::1"];
const CLIENT: [&str; 2] = ["203.0.113.7", "fd00:cc::7"];
const POD: [&str; 2] = ["10.244.1.1", "fd00:10:244::1"];
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const TARGET: u16 = 8080;
/// Where a server of the node listens at all addresses.
const HOST_PORT: u16 = 2222;

/// A load balancer of both families, announced by a node.
fn service(node: &str) -> Service {
    let mut service = Service::default();
    service.metadata.namespace = "ns".into();
    service.metadata.name = "web".into();
    service.metadata.annotations.insert("kubernetes.io/load-balancer-node".into(), node.into());
    service.spec.type_ = "LoadBalancer".into();
    service.spec.cluster_ip = "10.96.0.1".into();
    service.spec.cluster_ips = vec!["10.96.0.1".into(), "fd00:96::1".into()];
    service.spec.ports = vec![ServicePort {
        protocol: "TCP".into(),
        port: PORT.into(),
        node_port: NODE_PORT.into(),
        ..ServicePort::default()
    }];
    let entry = |ip: &str| LoadBalancerIngress { ip: ip.into(), ..LoadBalancerIngress::default() };
    service.status.load_balancer.ingress = BALANCER.map(entry).into();
    service
}

fn slice(family: usize) -> EndpointSlice {
    let address_type = ["IPv4", "IPv6"][family].into();
    let mut slice = EndpointSlice { address_type, ..EndpointSlice::default() };
    slice.metadata.namespace = "ns".into();
    slice.metadata.name = format!("web-{family}");
    slice.metadata.labels.insert("kubernetes.io/service-name".into(), "web".into());
    slice.ports = vec![EndpointPort {
        name: Some(String::new()),
        protocol: Some("TCP".into()),
        port: Some(TARGET.into()),
        ..EndpointPort::default()
    }];
    let mut endpoint = Endpoint { addresses: vec![POD[family].into()], ..Endpoint::default() };
    endpoint.node_name = Some("node".into());
    endpoint.conditions.ready = Some(true);
    slice.endpoints = vec![endpoint];
    slice
}

fn node() -> Node {
    let mut node = Node::default();
    node.metadata.name = "node".into();
    let address = |ip: &str| NodeAddress { type_: "InternalIP".into(), address: ip.into() };
    node.status.addresses = NODE.map(address).into();
    node
}

fn has_addresses() -> [bool; 2] {
    let shown = run(&["ip", "-o", "addr"]);
    BALANCER.map(|address| shown.contains(&format!(" {address}/")))
}

#[test]
fn the_program_announces_what_names_it_and_serves_nothing_else_there() {
    in_namespace("the_program_announces_what_names_it_and_serves_nothing_else_there", || {
        let net = Net::make(&NODE, &[("client", CLIENT), ("pod", POD)]);
        net.serve("pod", TARGET);
        net.serve("node", HOST_PORT);
        let api = Api::new(Names::new(Profile::Kubernetes));
        let address = api.serve();
        api.put_node(node());
        api.put_service(service("other"));
        (0..2).for_each(|family| api.put_slice(slice(family)));
        let pods = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/64";
        let mut elsewhere = service("node");
        elsewhere.metadata.name = "elsewhere".into();
        let entry = LoadBalancerIngress { ip: OUTSIDE.into(), ..LoadBalancerIngress::default() };
        elsewhere.status.load_balancer.ingress = vec![entry];
        elsewhere.spec.cluster_ips = vec!["10.96.0.2".into()];
        elsewhere.spec.cluster_ip = "10.96.0.2".into();
        elsewhere.spec.ports[0].node_port = i32::from(NODE_PORT) + 1;
        api.put_service(elsewhere);
        let mut program = Program::start(address, &[pods, ANNOUNCES]);
        let tcp = |to: &str, port| net.call("client", Protocol::Tcp, ip(to), port);
        let answers = |to: &str, port| matches!(tcp(to, port), Reply::Answer { .. });
        wait_for("Services are forwarded", || answers(BALANCER[0], PORT));
        assert_eq!(has_addresses(), [false; 2]);
        api.put_service(service("node"));
        wait_for("the addresses are announced", || has_addresses() == [true; 2]);
        for family in 0..2 {
            let (balancer, own) = (BALANCER[family], NODE[family]);
            wait_for("the Service answers", || answers(balancer, PORT));
            wait_for("the node's server answers", || answers(own, HOST_PORT));
            wait_for("the node port answers", || answers(own, NODE_PORT));
            assert_eq!(tcp(balancer, HOST_PORT), Reply::Silence, "{balancer}");
            assert_eq!(tcp(balancer, NODE_PORT), Reply::Silence, "{balancer}");
        }
        assert!(!run(&["ip", "-o", "addr"]).contains(OUTSIDE), "outside of the ranges");
        // They stay without the program; another one recognises them.
        program.end();
        assert_eq!(has_addresses(), [true; 2]);
        let mut program = Program::start(address, &[pods, ANNOUNCES]);
        api.put_service(service("other"));
        wait_for("what is another node's is withdrawn", || has_addresses() == [false; 2]);
        api.put_service(service("node"));
        wait_for("the addresses are announced again", || has_addresses() == [true; 2]);
        // The guard outlives the Service until the addresses are withdrawn.
        let mut released = service("node");
        released.spec.type_ = "ClusterIP".into();
        api.put_service(released);
        wait_for("what no Service has is withdrawn", || {
            assert!(!answers(BALANCER[0], HOST_PORT), "the node's server");
            has_addresses() == [false; 2]
        });
        api.put_service(service("node"));
        wait_for("the addresses are announced once more", || has_addresses() == [true; 2]);
        program.end();
        let program = Program::start(address, &[pods]);
        wait_for("without the flag they are withdrawn", || has_addresses() == [false; 2]);
        drop(program);
    });
}

/// Announces the addresses, as an earlier process did.
fn leave_addresses() {
    run(&["ip", "link", "set", "lo", "up"]);
    run(&["ip", "addr", "add", "192.0.2.10/24", "dev", "lo"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let table = AddressTable::open().unwrap();
        let found = table.addresses().await.unwrap();
        let interface = found.interface_of(&[ip("192.0.2.10")]);
        table.apply(&found.plan(&BALANCER.map(ip).into(), interface)).await.unwrap();
    });
    assert_eq!(has_addresses(), [true; 2]);
}

#[test]
fn without_the_api_server_a_new_process_withdraws_what_an_earlier_one_left() {
    let name = "without_the_api_server_a_new_process_withdraws_what_an_earlier_one_left";
    in_namespace(name, || {
        leave_addresses();
        let nowhere = SocketAddr::new(ip("127.0.0.1"), 1);
        let program = Program::start(nowhere, &[ANNOUNCES]);
        wait_for("they are withdrawn after 40 s", || has_addresses() == [false; 2]);
        drop(program);
    });
}

#[test]
fn cleanup_withdraws_the_addresses() {
    in_namespace("cleanup_withdraws_the_addresses", || {
        leave_addresses();
        run(&[env!("CARGO_BIN_EXE_orch-proxy"), "cleanup"]);
        assert_eq!(has_addresses(), [false; 2]);
    });
}
