//! Stale flows in the real kernel: those in use are deleted at their next packet, the others by a walk.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/net.rs"]
mod net;
#[path = "support/sctp.rs"]
mod sctp;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{Net, Reply, ask_udp};
use orch_proxy::tables;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_kernel::{KernelFeatures, PacketLog, Session, Socket};
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::Dataplane;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    RemovedEndpointPolicy, ServiceId, Settings, SlicePort,
};
use proxy_sync::conntrack_cleanup;
use proxy_sync::desired::DesiredForwarding;
use proxy_sync::driver::{Driver, SyncIntervals};
use proxy_sync::metrics::ProxyMetrics;
use sys::{in_namespace, run};

const NODE: [&str; 2] = ["192.168.9.1", "fd00:9::1"];
const CLIENT: [&str; 2] = ["203.0.113.7", "fd00:cc::7"];
const PODS: [[&str; 2]; 2] = [["10.244.1.5", "fd00:10:244::5"], ["10.244.1.6", "fd00:10:244::6"]];
const SERVICE: [&str; 2] = ["10.96.0.1", "fd00:96::1"];
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_053;
/// A port whose servers reply on command.
const LATE: u16 = 81;
const TARGET: u16 = 8080;
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(24 * 3600);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A UDP Service with one of the pods as its endpoint.
struct Node {
    net: Net,
    desired: Arc<DesiredForwarding>,
    driver: Driver<Socket>,
    metrics: ProxyMetrics,
}

impl Node {
    fn start(settle: Duration, with_trap: bool) -> Self {
        Self::start_with(
            (settle, conntrack_cleanup::UNREPLIED_DELAY),
            with_trap,
            RemovedEndpointPolicy::Left,
        )
    }

    fn start_with(
        pauses: (Duration, Duration),
        with_trap: bool,
        removed: RemovedEndpointPolicy,
    ) -> Self {
        let places = [("client", CLIENT), ("pod1", PODS[0]), ("pod2", PODS[1])];
        let net = Net::make(&NODE, &places);
        net.serve("pod1", TARGET);
        net.serve("pod2", TARGET);
        let mut session = Session::new(Socket::open().unwrap());
        let features = KernelFeatures::probe(&mut session, "probe", &FAMILIES).unwrap();
        let layout = Layout {
            table: "orch-proxy".into(),
            flags: features.owner_flags,
            families: FAMILIES.into(),
            settings: Settings { removed, ..Settings::default() },
        };
        let stale_flow_log = with_trap.then(|| tables::stale_flow_log(&layout));
        let desired = Arc::new(DesiredForwarding::new(Dataplane::new(layout)));
        let registry = Metrics::new("x", BuildInfo { version: "0", commit: "0" }).unwrap();
        let metrics = ProxyMetrics::register(&registry, "x").unwrap();
        let driver = Driver::new(
            desired.clone(),
            session,
            conntrack_cleanup::start(metrics.clone(), stale_flow_log, pauses.0, pauses.1).unwrap(),
            metrics.clone(),
            StatusBoard::default().task("forwarding"),
            Readiness::default().guard("forwarding"),
            SyncIntervals { read_back: NEVER, between: Duration::ZERO },
        );
        let mut node = Self { net, desired, driver, metrics };
        let port = LocalPort {
            name: "".into(),
            protocol: Protocol::Udp,
            port: PORT,
            node_port: Some(NODE_PORT),
        };
        let tcp =
            LocalPort { name: "tcp".into(), protocol: Protocol::Tcp, port: PORT, node_port: None };
        let sctp = LocalPort { name: "sctp".into(), protocol: Protocol::Sctp, ..tcp.clone() };
        let late =
            LocalPort { name: "late".into(), protocol: Protocol::Udp, port: LATE, node_port: None };
        let service = LocalService {
            cluster_ips: SERVICE.map(ip).into(),
            ports: [port, tcp, sctp, late].into(),
            ..LocalService::default()
        };
        node.desired.plane().service_changed(&id(), Some(Arc::new(service)));
        node.lead_to(None, Some(0));
        node
    }

    /// Replaces the endpoint of the Service.
    fn lead_to(&mut self, from: Option<usize>, to: Option<usize>) {
        for family in 0..2 {
            let old = from.map(|pod| slice(pod, family));
            let new = to.map(|pod| Arc::new(slice(pod, family)));
            self.desired.plane().slice_changed(&format!("s{family}"), old.as_ref(), new);
        }
        self.driver.pass().unwrap();
    }

    /// Sockets with flows to the Service: from outside and from the node itself, by its cluster IP and by the node
    /// port. They wait long: a late answer to a repeated question would be read as that to the next one.
    fn sockets(&self) -> Vec<(usize, UdpSocket)> {
        let mut sockets = Vec::new();
        for family in 0..2 {
            let service = ip(SERVICE[family]);
            sockets.push((family, self.net.udp_socket("client", service, PORT)));
            sockets.push((family, self.net.udp_socket("node", service, PORT)));
            sockets.push((family, self.net.udp_socket("client", ip(NODE[family]), NODE_PORT)));
        }
        for (_, socket) in &sockets {
            socket.set_read_timeout(Some(net::LONG_PATIENCE)).unwrap();
        }
        sockets
    }
}

fn id() -> ServiceId {
    ServiceId::new("ns", "dns")
}

fn slice(pod: usize, family: usize) -> LocalSlice {
    let endpoint = LocalEndpoint {
        address: ip(PODS[pod][family]),
        state: EndpointState::Ready,
        place: Locality::Here,
    };
    LocalSlice {
        service: id(),
        ports: [
            SlicePort { name: "".into(), protocol: Protocol::Udp, port: TARGET },
            SlicePort { name: "late".into(), protocol: Protocol::Udp, port: LATE },
            SlicePort { name: "tcp".into(), protocol: Protocol::Tcp, port: TARGET + 1 },
            SlicePort { name: "sctp".into(), protocol: Protocol::Sctp, port: TARGET },
        ]
        .into(),
        endpoints: [endpoint].into(),
        hints: [].into(),
    }
}

/// The pod that replies, and the number of lost queries before.
fn served_by(socket: &UdpSocket) -> (IpAddr, u32) {
    for lost in 0..20 {
        if let Reply::Answer { server, .. } = ask_udp(socket) {
            return (server, lost);
        }
    }
    panic!("nobody answers");
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn trap_is_set() -> bool {
    run(&["nft", "list", "tables"]).contains("orch-proxy-stale")
}

#[test]
fn a_flow_in_use_loses_one_packet_without_any_walk() {
    in_namespace("a_flow_in_use_loses_one_packet_without_any_walk", || {
        let mut node = Node::start(NEVER, true);
        let sockets = node.sockets();
        for (family, socket) in &sockets {
            assert_eq!(served_by(socket).0, ip(PODS[0][*family]));
        }
        // The pod fails silently: packets to it are dropped.
        let drop = "table inet dead { chain c { type filter hook input priority 0; meta l4proto udp drop\n}\n}";
        run(&["nsenter", "--net=/run/netns/pod1", "nft", drop]);
        node.lead_to(Some(0), Some(1));
        wait_for("the trap is set", trap_is_set);
        for (nth, (family, socket)) in (1..).zip(&sockets) {
            // The packet that is lost: its flow is deleted, however long that takes on a busy machine.
            socket.send(b"who are you?").unwrap();
            wait_for("the flow is deleted", || node.metrics.flows_deleted.get() >= nth);
            let at = socket.peer_addr();
            assert_eq!(served_by(socket), (ip(PODS[1][*family]), 0), "{at:?}");
        }
        assert_eq!(node.metrics.flows_deleted.get(), sockets.len() as u64);
    });
}

/// INIT chunks from one port are one flow. The packets are handmade, as this machine may have no SCTP sockets.
#[test]
fn an_association_is_led_to_another_pod_at_its_second_packet() {
    in_namespace("an_association_is_led_to_another_pod_at_its_second_packet", || {
        let mut node = Node::start(NEVER, true);
        let setting = "/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_cookie_wait";
        std::fs::write(setting, "300").unwrap();
        let places = [("client", CLIENT), ("pod1", PODS[0]), ("pod2", PODS[1])];
        let mut associations = sctp::Associations::open(&places);
        let mut server = |family: usize| {
            let to = (ip(SERVICE[family]), PORT);
            match associations.call(("client", 40_000), to, Duration::from_secs(20)) {
                Reply::Answer { server, .. } => server,
                other => panic!("{other:?}"),
            }
        };
        for (family, pod) in PODS[0].map(ip).into_iter().enumerate() {
            // The same flow each time, until its entry is deleted.
            assert_eq!([server(family), server(family)], [pod; 2]);
        }
        node.lead_to(Some(0), Some(1));
        wait_for("the trap is set", trap_is_set);
        for (family, [old, new]) in
            [0, 1].map(|f| [0, 1].map(|pod| ip(PODS[pod][f]))).into_iter().enumerate()
        {
            assert_eq!(server(family), old, "reported, and passed on");
            let let_go = || node.metrics.flows_deleted.get() == family as u64 + 1;
            wait_for("the flow is deleted", let_go);
            assert_eq!(server(family), new);
        }
    });
}

/// Idle flows are deleted.
fn walk(with_trap: bool) {
    let mut node = Node::start(conntrack_cleanup::SETTLE_DELAY, with_trap);
    let sockets = node.sockets();
    for (family, socket) in &sockets {
        assert_eq!(served_by(socket).0, ip(PODS[0][*family]));
    }
    node.lead_to(Some(0), Some(1));
    let deleted = || node.metrics.flows_deleted.get() == sockets.len() as u64;
    wait_for("idle flows are let go", deleted);
    wait_for("the trap is taken away", || !trap_is_set());
    for (family, socket) in &sockets {
        assert_eq!(served_by(socket), (ip(PODS[1][*family]), 0));
    }
}

#[test]
fn a_walk_lets_go_of_the_rest_and_takes_the_trap_away() {
    in_namespace("a_walk_lets_go_of_the_rest_and_takes_the_trap_away", || walk(true));
}

#[test]
fn without_a_packet_log_the_walk_lets_go_of_all() {
    in_namespace("without_a_packet_log_the_walk_lets_go_of_all", || walk(false));
}

/// The reply to a query that is under way when its endpoint is removed is translated back, while the endpoint drains.
#[test]
fn a_question_under_way_is_answered_by_an_endpoint_that_drains() {
    in_namespace("a_question_under_way_is_answered_by_an_endpoint_that_drains", || {
        let mut node = Node::start_with((Duration::ZERO, NEVER), true, RemovedEndpointPolicy::Left);
        let server = net::inside("pod1", || UdpSocket::bind((PODS[0][0], LATE)).unwrap());
        let client = node.net.udp_socket("client", ip(SERVICE[0]), LATE);
        client.set_read_timeout(Some(net::LONG_PATIENCE)).unwrap();
        client.send(b"?").unwrap();
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        // Replied, and so deleted at once.
        let idle = node.net.udp_socket("client", ip(SERVICE[0]), PORT);
        assert_eq!(served_by(&idle).0, ip(PODS[0][0]));
        node.lead_to(Some(0), Some(1));
        wait_for("the answered flow is deleted", || node.metrics.flows_deleted.get() == 1);
        server.send_to(b"!", from).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1);
        // Its next query goes to an endpoint: the stale flow log waits for it.
        assert!(trap_is_set());
    });
}

#[test]
fn where_the_packet_log_s_group_is_another_s_the_walk_lets_go_of_all() {
    in_namespace("where_the_packet_log_s_group_is_another_s_the_walk_lets_go_of_all", || {
        let layout = Layout {
            table: "x".into(),
            flags: TableFlags::NONE,
            families: FAMILIES.into(),
            settings: Settings::default(),
        };
        let group = tables::stale_flow_log(&layout).group;
        let _theirs = PacketLog::open(group).unwrap();
        assert!(PacketLog::open(group).is_err(), "a group has one listener");
        walk(true);
    });
}

/// Connections through the Service to a removed pod: reset if that is enabled, else left alone.
fn long_lived(removed: RemovedEndpointPolicy) -> std::io::Result<usize> {
    let mut node = Node::start_with(
        (conntrack_cleanup::SETTLE_DELAY, conntrack_cleanup::UNREPLIED_DELAY),
        true,
        removed,
    );
    let listener = net::inside("pod1", || TcpListener::bind((PODS[0][0], TARGET + 1)).unwrap());
    let mut client = net::inside("client", || TcpStream::connect((SERVICE[0], PORT)).unwrap());
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    node.lead_to(Some(0), Some(1));
    if removed == RemovedEndpointPolicy::Reset {
        wait_for("the connection is let go", || node.metrics.flows_deleted.get() > 0);
    }
    // The write provokes the reset, the read reports it.
    client.write_all(b"y").unwrap();
    let patience = match removed {
        RemovedEndpointPolicy::Reset => net::LONG_PATIENCE,
        RemovedEndpointPolicy::Left => net::PATIENCE,
    };
    client.set_read_timeout(Some(patience)).unwrap();
    client.read(&mut [0])
}

#[test]
fn long_lived_connections_to_removed_endpoints_are_reset_on_demand() {
    in_namespace("long_lived_connections_to_removed_endpoints_are_reset_on_demand", || {
        let error = long_lived(RemovedEndpointPolicy::Reset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn long_lived_connections_to_removed_endpoints_stay_by_default() {
    in_namespace("long_lived_connections_to_removed_endpoints_stay_by_default", || {
        let error = long_lived(RemovedEndpointPolicy::Left).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

/// The pod fails silently, and then is no endpoint any more: the SYN that is sent again goes to another.
#[test]
fn a_handshake_without_answer_goes_on_with_another_endpoint() {
    in_namespace("a_handshake_without_answer_goes_on_with_another_endpoint", || {
        let pauses = (conntrack_cleanup::SETTLE_DELAY, conntrack_cleanup::UNREPLIED_DELAY);
        let mut node = Node::start_with(pauses, true, RemovedEndpointPolicy::Left);
        let _servers = [0, 1].map(|pod| {
            let place = ["pod1", "pod2"][pod];
            net::inside(place, move || TcpListener::bind((PODS[pod][0], TARGET + 1)).unwrap())
        });
        let connect = || TcpStream::connect((SERVICE[0], PORT)).unwrap();
        // Answered, and so left alone.
        let mut open = net::inside("client", connect);
        let drop = "table inet dead { chain c { type filter hook input priority 0; tcp flags syn drop\n}\n}";
        run(&["nsenter", "--net=/run/netns/pod1", "nft", drop]);
        let client = std::thread::spawn(move || net::inside("client", connect));
        let unanswered = || run(&["conntrack", "-L", "-p", "tcp", "--state", "SYN_SENT"]);
        wait_for("a handshake waits", || unanswered().contains(PODS[0][0]));
        node.lead_to(Some(0), Some(1));
        client.join().unwrap();
        assert_eq!(node.metrics.flows_deleted.get(), 1);
        assert!(!trap_is_set());
        open.write_all(b"x").unwrap();
        open.set_read_timeout(Some(net::PATIENCE)).unwrap();
        assert_eq!(open.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}
