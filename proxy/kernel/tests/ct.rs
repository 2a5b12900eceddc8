//! The table of connections against the real kernel and `conntrack`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/sys.rs"]
mod sys;

use std::net::{IpAddr, UdpSocket};

use proxy_kernel::{Session, Socket};
use proxy_netfilter::ct::{AddressFamily, Flow, FlowFilter, TupleFilter};
use sys::{in_namespace, run};

const UDP: u8 = 17;

/// Connections are tracked once somebody asks about them.
fn track() {
    let rules =
        "table inet t { chain c { type filter hook output priority 0; ct state new accept\n}\n}";
    run(&["nft", rules]);
}

/// Flows of UDP datagrams to some ports, both families.
fn flows(ports: &[u16]) {
    for (any, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let socket = UdpSocket::bind(any).unwrap();
        let to: IpAddr = to.parse().unwrap();
        for port in ports {
            socket.send_to(b"x", (to, *port)).unwrap();
        }
    }
}

fn dump(session: &mut Session<Socket>, family: AddressFamily, filter: &FlowFilter) -> Vec<Flow> {
    let mut found = Vec::new();
    session.flows(family, filter, |flow| found.push(flow)).unwrap();
    found
}

#[test]
fn flows_are_found_told_apart_and_deleted() {
    in_namespace("flows_are_found_told_apart_and_deleted", || {
        track();
        flows(&[4001, 4002, 4003]);
        let mut session = Session::new(Socket::open().unwrap());
        for family in [AddressFamily::V4, AddressFamily::V6] {
            let all = dump(&mut session, family, &FlowFilter::default());
            let name = if family == AddressFamily::V4 { "ipv4" } else { "ipv6" };
            let listed = run(&["conntrack", "-L", "-f", name, "-p", "udp"]);
            for flow in all.iter().filter(|flow| flow.orig.proto == UDP) {
                let ports = format!("sport={} dport={}", flow.orig.src_port, flow.orig.dst_port);
                assert!(listed.contains(&ports), "{ports} is not in {listed}");
            }
            let udp = all.iter().filter(|flow| flow.orig.proto == UDP).count();
            assert_eq!((udp, listed.lines().count()), (3, 3), "{listed}");

            let orig =
                TupleFilter { proto: Some(UDP), dst_port: Some(4002), ..TupleFilter::default() };
            let filter = FlowFilter { orig, ..FlowFilter::default() };
            let found = dump(&mut session, family, &filter);
            assert_eq!(found.len(), 1, "{found:?}");
            let reply = TupleFilter {
                src: Some(found[0].reply.src),
                proto: Some(UDP),
                src_port: Some(4002),
                ..TupleFilter::default()
            };
            let by_reply = FlowFilter { reply, ..FlowFilter::default() };
            // Its timeout goes on meanwhile; the flow is the same.
            let same = dump(&mut session, family, &by_reply);
            assert_eq!(same.iter().map(|f| f.id).collect::<Vec<_>>(), [found[0].id]);
            assert!(session.delete_flow(&found[0]).unwrap());
            assert!(!session.delete_flow(&found[0]).unwrap());
            assert_eq!(dump(&mut session, family, &filter), []);
        }
        let used = session.flow_table_use().unwrap();
        assert!(used.entries >= 4 && used.entries_max >= used.entries, "{used:?}");
    });
}
