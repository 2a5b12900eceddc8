//! Endpoints are added and removed thousands of times a second, in one transaction with the number of slots, while
//! connections are opened: a packet that sees the old number and whose slot is gone takes the first slot, so none
//! fails.
//!
//! `ORCH_SHRINK_SECS` sets the duration. With `ORCH_SHRINK_BARE` the rule for such packets is removed: the connections
//! that fail then are those that it saves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/net.rs"]
mod net;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use net::{Net, inside};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};
use proxy_rules::{Dataplane, Pass};
use sys::{in_namespace, run};

const NODE: [&str; 2] = ["192.168.9.1", "fd00:9::1"];
const CLIENT: [&str; 2] = ["203.0.113.7", "fd00:cc::7"];
const PODS: [[&str; 2]; 4] = [
    ["10.244.1.1", "fd00:10:244::1"],
    ["10.244.1.2", "fd00:10:244::2"],
    ["10.244.1.3", "fd00:10:244::3"],
    ["10.244.1.4", "fd00:10:244::4"],
];
const SERVICE: &str = "10.96.0.1";
const PORT: u16 = 80;
const TARGET: u16 = 8080;
const TABLE: &str = "orch-proxy";
/// Connections of each kind by default.
const CALLS: u64 = 2000;
/// Longer than a busy machine needs to respond.
const PATIENCE: Duration = Duration::from_secs(20);

fn id() -> ServiceId {
    ServiceId::new("ns", "web")
}

fn service() -> LocalService {
    let port = |name: &str, protocol| LocalPort {
        name: name.into(),
        protocol,
        port: PORT,
        node_port: None,
    };
    LocalService {
        cluster_ips: [SERVICE.parse().unwrap()].into(),
        ports: [port("t", Protocol::Tcp), port("u", Protocol::Udp)].into(),
        ..LocalService::default()
    }
}

fn slice(pods: &[[&str; 2]]) -> LocalSlice {
    let port = |name: &str, protocol| SlicePort { name: name.into(), protocol, port: TARGET };
    let endpoint = |pod: &[&str; 2]| LocalEndpoint {
        address: pod[0].parse::<IpAddr>().unwrap(),
        state: EndpointState::Ready,
        place: Locality::Here,
    };
    LocalSlice {
        service: id(),
        ports: [port("t", Protocol::Tcp), port("u", Protocol::Udp)].into(),
        endpoints: pods.iter().map(endpoint).collect(),
        ..LocalSlice::default()
    }
}

/// Removes the rules for packets whose slot is gone.
fn take_fallbacks_out() {
    let chains = run(&["nft", "-a", "list", "chains"]);
    let balances = chains.lines().filter_map(|line| line.trim().strip_prefix("chain balance-"));
    for chain in balances.filter_map(|rest| rest.split(' ').next()) {
        let name = format!("balance-{chain}");
        let listed = run(&["nft", "-a", "list", "chain", "ip", TABLE, &name]);
        let lost = listed.lines().filter(|line| line.contains("its slot went away"));
        for handle in lost.filter_map(|line| line.rsplit(' ').next()) {
            run(&["nft", "delete", "rule", "ip", TABLE, &name, "handle", handle]);
        }
    }
}

fn tcp() -> std::io::Result<()> {
    let to = SocketAddr::new(SERVICE.parse().unwrap(), PORT);
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    std::io::Read::read_to_string(&mut { stream }, &mut String::new()).map(drop)
}

fn udp() -> std::io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect((SERVICE, PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    socket.recv(&mut [0; 128]).map(drop)
}

/// Calls of one kind.
#[derive(Default)]
struct Calls {
    done: AtomicU64,
    failed: AtomicU64,
}

/// Calls the Service until stopped, each time with a new connection.
fn load(call: fn() -> std::io::Result<()>, calls: Arc<Calls>, stop: Arc<AtomicBool>) {
    let work = move || {
        while !stop.load(Ordering::Relaxed) {
            let count = if call().is_ok() { &calls.done } else { &calls.failed };
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    inside("client", move || drop(thread::spawn(work)));
}

fn shrink_under_load() {
    let named: Vec<(&str, [&str; 2])> =
        ["pod0", "pod1", "pod2", "pod3"].into_iter().zip(PODS).collect();
    let net = Net::make(&NODE, &[&[("client", CLIENT)][..], &named].concat());
    named.iter().for_each(|(pod, _)| net.serve(pod, TARGET));
    let settings = Settings::default();
    let families = FAMILIES.into();
    let layout = Layout { table: TABLE.into(), flags: TableFlags::NONE, families, settings };
    let mut plane = Dataplane::new(layout);
    let (all, one) = (slice(&PODS), slice(&PODS[2..3]));
    plane.service_changed(&id(), Some(Arc::new(service())));
    plane.slice_changed("s", None, Some(Arc::new(all.clone())));
    let layout = plane.layout().clone();
    let mut session = Session::new(Socket::open().unwrap());
    let mut batch = session.batch(None);
    plane.load().encode(&layout, &mut batch);
    session.commit(batch).unwrap();
    let mut change = |plane: &mut Dataplane, from: &LocalSlice, to: &LocalSlice| {
        plane.slice_changed("s", Some(from), Some(Arc::new(to.clone())));
        let Pass::Change(transaction) = plane.pass() else { panic!("a map is full") };
        let mut batch = session.batch(None);
        transaction.encode(&layout, &mut batch);
        session.commit(batch).unwrap();
    };
    // Both classes have their chains now.
    change(&mut plane, &all, &one);
    change(&mut plane, &one, &all);
    let bare = std::env::var_os("ORCH_SHRINK_BARE").is_some();
    if bare {
        take_fallbacks_out();
    }
    let secs = std::env::var("ORCH_SHRINK_SECS").ok().and_then(|secs| secs.parse().ok());
    let long = Duration::from_secs(secs.unwrap_or(0));
    let stop = Arc::new(AtomicBool::new(false));
    let calls = [Arc::new(Calls::default()), Arc::new(Calls::default())];
    for (call, calls) in [(tcp as fn() -> _, &calls[0]), (udp, &calls[1])] {
        load(call, calls.clone(), stop.clone());
    }
    let (started, mut rounds) = (Instant::now(), 0_u64);
    let enough = || {
        let counts = calls
            .iter()
            .map(|calls| calls.done.load(Ordering::Relaxed) + calls.failed.load(Ordering::Relaxed));
        counts.min().unwrap() >= CALLS && started.elapsed() >= long
    };
    while !enough() {
        assert!(started.elapsed() < long + Duration::from_secs(120), "calls do not go on");
        for _ in 0..100 {
            change(&mut plane, &all, &one);
            change(&mut plane, &one, &all);
        }
        rounds += 100;
    }
    stop.store(true, Ordering::Relaxed);
    let took = started.elapsed();
    let [tcp, udp] = calls
        .each_ref()
        .map(|calls| (calls.done.load(Ordering::Relaxed), calls.failed.load(Ordering::Relaxed)));
    println!(
        "{rounds} times from 4 endpoints to 1 and back in {took:.1?}: {} TCP connections, {} failed; {} UDP flows, {} failed",
        tcp.0, tcp.1, udp.0, udp.1
    );
    assert!(bare || (tcp.1, udp.1) == (0, 0));
}

#[test]
fn no_packet_fails_that_crosses_a_transaction_which_takes_endpoints_away() {
    in_namespace(
        "no_packet_fails_that_crosses_a_transaction_which_takes_endpoints_away",
        shrink_under_load,
    );
}
