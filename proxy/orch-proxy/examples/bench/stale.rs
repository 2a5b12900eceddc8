//! Stale flows deleted among as many conntrack entries as this kernel allows.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::Instant;

use orch_proxy::conntrack_cleanup::{FlowSelection, WalkTargets, delete_stale_flows};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::ct::{AddressFamily, FlowFilter, TupleFilter};
use proxy_rules::stale::StaleFlows;

use crate::figures::{Figure, Group, Unit};

/// Conntrack entries to create.
const CONNECTIONS: u32 = 1_000_000;
/// Flows that become stale.
const STALE: u16 = 100;
/// First destination of the others.
const ELSEWHERE: u32 = 0x0ac8_0000;

/// Fills the conntrack table as far as the kernel allows, then measures.
pub fn measure() {
    for words in [
        "ip link add va type veth peer name vb",
        "ip link set va arp off up",
        "ip link set vb up",
        "ip addr add 10.199.0.1/32 dev va",
        "ip route add 10.200.0.0/13 dev va",
        "ip route add 10.96.0.1/32 dev lo src 127.0.0.1",
    ] {
        run(words);
    }
    let rules = "table ip track { chain o { type nat hook output priority -100; \
        ip daddr 10.96.0.1 udp dport 53 dnat to 127.0.0.1:5353\n}\n}";
    assert!(Command::new("nft").arg(rules).status().unwrap().success());
    let room = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap();
    let room: u32 = room.trim().parse().unwrap();
    let wanted = CONNECTIONS.min(room.saturating_sub(room / 10));
    fill(wanted);
    let mut session = Session::new(Socket::open().unwrap());
    let used = session.flow_table_use().unwrap().entries;
    let tell = |what: &str, started: Instant| {
        let figure = Figure::of_times(Group::Stale, what, Unit::Millis, [started.elapsed()]);
        figure.at(used, "connections").tell().unwrap();
    };
    let mut stale = |what: &str, filters: usize| {
        let _service = UdpSocket::bind("127.0.0.1:5353").unwrap();
        let clients: Vec<UdpSocket> = (0..STALE)
            .map(|_| {
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.send_to(b"x", "10.96.0.1:53").unwrap();
                client
            })
            .collect();
        let wrong = (0..filters).map(|n| flows(5400 + u16::try_from(n).unwrap()));
        let stale = wrong.chain([flows(5353)]).collect();
        let started = Instant::now();
        let work = WalkTargets { stale, allowed: None };
        let deleted = delete_stale_flows(&mut session, &work, FlowSelection::All).unwrap().deleted;
        tell(what, started);
        eprintln!("{deleted} of {STALE} flows deleted");
        drop(clients);
    };
    stale("100 flows of one endpoint removed, the kernel compares", 0);
    stale("100 flows, a thousand endpoints removed, one walk", 999);
    let all = Instant::now();
    let mut seen = 0_u64;
    session.flows(AddressFamily::V4, &FlowFilter::default(), |_| seen += 1).unwrap();
    tell("all flows read, for comparison", all);
    eprintln!("{seen} flows read");
}

fn flows(port: u16) -> StaleFlows {
    let orig = TupleFilter {
        dst: Some([10, 96, 0, 1].into()),
        proto: Some(17),
        dst_port: Some(53),
        ..TupleFilter::default()
    };
    let reply = TupleFilter {
        src: Some([127, 0, 0, 1].into()),
        proto: Some(17),
        src_port: Some(port),
        ..TupleFilter::default()
    };
    let filter = FlowFilter { orig, reply, status: Some((32, 32)) };
    StaleFlows { family: AddressFamily::V4, filter }
}

/// One datagram, and so one conntrack entry, to each of many addresses and ports.
fn fill(wanted: u32) {
    let socket = UdpSocket::bind("10.199.0.1:0").unwrap();
    for n in 0..wanted {
        let address = Ipv4Addr::from(ELSEWHERE + n / 1000);
        let port = u16::try_from(10_000 + n % 1000).unwrap();
        // Undelivered datagrams are tracked too.
        let _ = socket.send_to(b"x", SocketAddrV4::new(address, port));
    }
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status();
    assert!(status.is_ok_and(|status| status.success()), "set up the network");
}
