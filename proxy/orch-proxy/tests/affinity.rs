//! Session affinity in the real kernel: while the endpoint serves, across restarts of the program, until the timeout.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

#[path = "support/net.rs"]
mod net;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use net::{Net, Reply};
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use proxy_kernel::{Session, Socket};
use proxy_netfilter::nft::Family;
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::Dataplane;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    Choice, EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};
use proxy_sync::desired::DesiredForwarding;
use proxy_sync::driver::{Driver, SyncIntervals};
use proxy_sync::metrics::ProxyMetrics;
use sys::in_namespace;

const NODE: [&str; 2] = ["192.168.1.10", "fd00:1::10"];
const CLIENT: [&str; 2] = ["192.168.1.100", "fd00:1::100"];
const PODS: [[&str; 2]; 3] = [
    ["10.244.1.5", "fd00:10:244::5"],
    ["10.244.1.6", "fd00:10:244::6"],
    ["10.244.1.7", "fd00:10:244::7"],
];
const FRONTENDS: [(&str, u16); 4] =
    [("10.96.0.1", 80), ("fd00:96::1", 80), (NODE[0], 30080), (NODE[1], 30080)];
const TABLE: &str = "orch-proxy";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn id() -> ServiceId {
    ServiceId::new("ns", "web")
}

fn network() -> Net {
    let places = [("client", CLIENT), ("pod0", PODS[0]), ("pod1", PODS[1]), ("pod2", PODS[2])];
    let net = Net::make(&NODE, &places);
    (0..PODS.len()).for_each(|pod| net.serve(&format!("pod{pod}"), 8080));
    net
}

fn service(seconds: u32) -> LocalService {
    let port =
        LocalPort { name: "".into(), protocol: Protocol::Udp, port: 80, node_port: Some(30080) };
    LocalService {
        cluster_ips: [ip("10.96.0.1"), ip("fd00:96::1")].into(),
        choice: Choice::sticky(seconds),
        ports: [port].into(),
        ..LocalService::default()
    }
}

fn slice(pods: &[usize]) -> LocalSlice {
    let endpoint = |address: &str| LocalEndpoint {
        address: ip(address),
        state: EndpointState::Ready,
        place: Locality::Here,
    };
    LocalSlice {
        service: id(),
        ports: [SlicePort { name: "".into(), protocol: Protocol::Udp, port: 8080 }].into(),
        endpoints: pods.iter().flat_map(|pod| PODS[*pod].map(endpoint)).collect(),
        ..LocalSlice::default()
    }
}

/// The program as it starts, without knowledge of the kernel's tables.
fn start(seconds: u32, pods: &[usize]) -> (Arc<DesiredForwarding>, Driver<Socket>) {
    let layout = Layout {
        table: TABLE.into(),
        flags: TableFlags::NONE,
        families: FAMILIES.into(),
        settings: Settings::default(),
    };
    let mut plane = Dataplane::new(layout);
    plane.service_changed(&id(), Some(Arc::new(service(seconds))));
    plane.slice_changed("web", None, Some(Arc::new(slice(pods))));
    let desired = Arc::new(DesiredForwarding::new(plane));
    let registry = Metrics::new("x", BuildInfo { version: "0", commit: "0" }).unwrap();
    let metrics = ProxyMetrics::register(&registry, "x").unwrap();
    let mut driver = Driver::new(
        desired.clone(),
        Session::new(Socket::open().unwrap()),
        proxy_sync::conntrack_cleanup::start(metrics.clone(), None, Duration::ZERO, Duration::ZERO)
            .unwrap(),
        metrics,
        StatusBoard::default().task("forwarding"),
        Readiness::default().guard("forwarding"),
        SyncIntervals { read_back: Duration::from_secs(900), between: Duration::ZERO },
    );
    driver.pass().unwrap();
    (desired, driver)
}

/// The pod that a new connection of the client reaches, for each frontend.
fn served_by(net: &Net) -> Vec<IpAddr> {
    let call = |(to, port): (&str, u16)| {
        // A datagram may be lost on a busy machine; no response at all is a failure.
        let calls = (0..20).map(|_| net.call("client", Protocol::Udp, ip(to), port));
        let mut answers = calls.filter_map(|reply| match reply {
            Reply::Answer { server, .. } => Some(server),
            Reply::Refused | Reply::Silence => None,
        });
        answers.next().unwrap_or_else(|| panic!("no answer from {to}"))
    };
    FRONTENDS.into_iter().map(call).collect()
}

#[test]
fn clients_keep_their_endpoint_until_it_is_removed() {
    in_namespace("clients_keep_their_endpoint_until_it_is_removed", || {
        let net = network();
        let (desired, mut driver) = start(10_800, &[0, 1, 2]);
        let first = served_by(&net);
        (0..10).for_each(|_| assert_eq!(served_by(&net), first));
        // The program is killed and restarted, and the tables are loaded again.
        drop(driver);
        let (now, mut restarted) = start(10_800, &[0, 1, 2]);
        (0..10).for_each(|_| assert_eq!(served_by(&net), first));
        let table = now.plane().layout().table.clone();
        let clients = restarted.session().elements(Family::Ip, &table, "affinity").unwrap();
        assert_eq!(clients.len(), 2, "{clients:?}");
        assert!(clients.iter().all(|c| c.timeout_ms == Some(10_800_000)), "{clients:?}");
        drop((desired, restarted));
        // Pods are removed one after another: their clients get other pods and keep them.
        let (desired, started) = start(10_800, &[0, 1, 2]);
        driver = started;
        let mut before = first;
        let mut pods = vec![0, 1, 2];
        while pods.len() > 1 {
            let old = slice(&pods);
            let gone = pods.remove(0);
            let new = slice(&pods);
            desired.plane().slice_changed("web", Some(&old), Some(Arc::new(new)));
            driver.pass().unwrap();
            let now = served_by(&net);
            for ((frontend, was), is) in FRONTENDS.iter().zip(&before).zip(&now) {
                let lost = PODS[gone].map(ip).contains(was);
                assert_eq!(lost, was != is, "{frontend:?}: {was} and then {is}");
            }
            (0..5).for_each(|_| assert_eq!(served_by(&net), now));
            before = now;
        }
    });
}

#[test]
fn clients_are_forgotten_in_time() {
    in_namespace("clients_are_forgotten_in_time", || {
        let net = network();
        let (_desired, _driver) = start(1, &[0, 1, 2]);
        // Each wait exceeds the timeout, so each call is a new draw: with three pods, sixty calls to the same one do
        // not happen.
        let started = Instant::now();
        let mut seen: Vec<BTreeSet<IpAddr>> = vec![BTreeSet::new(); FRONTENDS.len()];
        while seen.iter().any(|pods| pods.len() < 2) {
            assert!(started.elapsed() < Duration::from_secs(120), "never forgotten: {seen:?}");
            for (pods, pod) in seen.iter_mut().zip(served_by(&net)) {
                pods.insert(pod);
            }
            std::thread::sleep(Duration::from_millis(1500));
        }
    });
}
