//! ctnetlink against the real kernel and `conntrack`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/sys.rs"]
mod sys;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::ct::{AddressFamily, Flow, FlowFilter, TupleFilter};
use sys::{in_namespace, run};

const UDP: u8 = 17;

/// Enables conntrack by a rule that uses it.
fn track() {
    let rules =
        "table inet t { chain c { type filter hook output priority 0; ct state new accept\n}\n}";
    run(&["nft", rules]);
}

/// UDP flows to some ports, of both families.
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
fn conntrack_entries_are_listed_filtered_and_deleted() {
    in_namespace("conntrack_entries_are_listed_filtered_and_deleted", || {
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
            // Its timeout differs; the flow is the same.
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

#[test]
fn conntrack_entries_have_state_and_counters() {
    in_namespace("conntrack_entries_have_state_and_counters", || {
        track();
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_acct", "1").unwrap();
        let listener = TcpListener::bind("127.0.0.1:4005").unwrap();
        let mut client = TcpStream::connect("127.0.0.1:4005").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        let state = |session: &mut Session<Socket>| {
            let orig = TupleFilter { proto: Some(6), dst_port: Some(4005), ..Default::default() };
            let filter = FlowFilter { orig, ..FlowFilter::default() };
            let mut found = Vec::new();
            session
                .flow_states(AddressFamily::V4, &filter, |flow, state| {
                    assert_eq!(flow.orig.dst_port, 4005);
                    found.push(state);
                })
                .unwrap();
            assert_eq!(found.len(), 1);
            found[0]
        };
        let mut session = Session::new(Socket::open().unwrap());
        let now = state(&mut session);
        assert_eq!((now.name(6), now.name(17)), (Some("ESTABLISHED"), None));
        let [there, back] = now.counters.unwrap();
        assert!(there.packets >= 3 && there.bytes > 5 && back.packets >= 2, "{now:?}");
        drop((client, server));
        // Its end may be under way on a busy machine.
        let is_same = |_| {
            let listed = run(&["conntrack", "-L", "-p", "tcp", "--dport", "4005"]);
            let name = state(&mut session).name(6).unwrap();
            println!("{name} in {listed}");
            listed.contains(name)
        };
        assert!((0..100).any(is_same));
    });
}

/// The flows to these ports, as `conntrack` lists them and as we decode them.
fn both_views(session: &mut Session<Socket>) -> [BTreeSet<(u16, u16)>; 2] {
    let udp = TupleFilter { proto: Some(UDP), ..TupleFilter::default() };
    let filter = FlowFilter { orig: udp, ..FlowFilter::default() };
    let read = dump(session, AddressFamily::V4, &filter);
    let read = read.iter().map(|flow| (flow.orig.src_port, flow.orig.dst_port)).collect();
    let listed = run(&["conntrack", "-L", "-f", "ipv4", "-p", "udp"]);
    let number = |line: &str, key: &str| -> u16 {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(key));
        word.unwrap().parse().unwrap()
    };
    let listed = listed.lines().map(|line| (number(line, "sport="), number(line, "dport=")));
    [read, listed.collect()]
}

/// Flows are created and deleted at random; after each change our view and that of `conntrack` agree, and deleted
/// flows are gone.
#[test]
fn we_and_conntrack_see_the_same_after_random_changes() {
    in_namespace("we_and_conntrack_see_the_same_after_random_changes", || {
        track();
        let mut session = Session::new(Socket::open().unwrap());
        let sockets: Vec<_> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let begin = (0usize..4, 5000u16..5008).prop_map(|(from, to)| (true, from, to));
        let end = (0usize..4, 5000u16..5008).prop_map(|(from, to)| (false, from, to));
        let changes = proptest::collection::vec(prop_oneof![3 => begin, 2 => end], 1..25);
        let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
        let session = std::cell::RefCell::new(&mut session);
        let ran = TestRunner::new(config).run(&changes, |changes| {
            let session = &mut **session.borrow_mut();
            run(&["conntrack", "-F"]);
            let mut believed = BTreeSet::new();
            for (begins, from, to) in changes {
                let port = sockets[from].local_addr().unwrap().port();
                if begins {
                    sockets[from].send_to(b"x", ("127.0.0.1", to)).unwrap();
                    believed.insert((port, to));
                } else {
                    let orig = TupleFilter {
                        proto: Some(UDP),
                        src_port: Some(port),
                        dst_port: Some(to),
                        ..TupleFilter::default()
                    };
                    let filter = FlowFilter { orig, ..FlowFilter::default() };
                    let found = dump(session, AddressFamily::V4, &filter);
                    let deleted = session.delete_flows(&found).unwrap();
                    prop_assert_eq!(deleted, u64::from(believed.remove(&(port, to))));
                }
                let [read, listed] = both_views(session);
                prop_assert_eq!(&read, &listed);
                prop_assert_eq!(&read, &believed);
            }
            Ok(())
        });
        ran.unwrap();
    });
}
