//! Random Services in the real kernel, with real TCP and UDP and handmade SCTP packets of both families: the result of
//! a connection is one of those that the tracer predicts for the same tables. `ORCH_TEST_CASES` sets the number of
//! cases.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

#[path = "support/net.rs"]
mod net;

#[path = "support/sctp.rs"]
mod sctp;

#[path = "../../rules/tests/support/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use net::{Net, Reply, inside};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::nft::Family;
use proxy_netfilter::nft::ruleset::TableRules;
use proxy_rules::model::{Choice, Protocol, family_of};
use proxy_rules::trace::{PacketOutcome, Sender, possible_outcomes};
use sctp::Associations;
use sys::{in_namespace, run};
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;
use world::{
    Asker, CLIENT, NODE, PODS, Question, TARGETS, World, cases, choice_of, ip, questions, worlds,
};

const TABLE: &str = "orch-proxy";
/// Timeout of an expected response: a busy machine may take its time.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long no response must arrive where none is expected.
const SILENCE: Duration = Duration::from_millis(60);

/// This node in its test network.
struct Node {
    session: Session<Socket>,
    associations: Associations,
    next_port: u16,
    /// Connections that an endpoint answered, and all.
    served: (u32, u32),
    _net: Net,
}

impl Node {
    fn start() -> Self {
        let places = [("client", CLIENT), ("pod1", PODS[0]), ("pod2", PODS[1])];
        let net = Net::make(&NODE, &places);
        for pod in ["pod1", "pod2"] {
            TARGETS.into_iter().for_each(|port| net.serve(pod, port));
        }
        let everybody = [places.as_slice(), &[("node", NODE)]].concat();
        let associations = Associations::open(&everybody);
        let session = Session::new(Socket::open().unwrap());
        Self { session, associations, next_port: 20_000, served: (0, 0), _net: net }
    }

    /// Loads the tables of these Services, and deletes conntrack entries of the previous ones.
    fn load(&mut self, world: &World) -> Vec<(Family, TableRules)> {
        let mut plane = world.plane(TABLE);
        let mut batch = self.session.batch(None);
        let load = plane.load();
        load.encode(plane.layout(), &mut batch);
        self.session.commit(batch).unwrap();
        run(&["conntrack", "-F"]);
        plane.tables()
    }

    /// Result of one connection, and the results that the tracer predicts.
    fn ask(
        &mut self,
        tables: &[(Family, TableRules)],
        question: &Question,
    ) -> (Reply, BTreeSet<PacketOutcome>) {
        self.next_port = 20_000 + (self.next_port - 19_999) % 10_000;
        let port = self.next_port;
        let table = &tables.iter().find(|(f, _)| *f == family_of(question.to)).unwrap().1;
        let local = [NODE[0], NODE[1], "127.0.0.1", "::1"].map(ip);
        let traced =
            possible_outcomes(table, &question.packet(port), &|a| local.contains(&a), 1024);
        let silent = traced
            .iter()
            .all(|outcome| matches!(outcome, PacketOutcome::Dropped | PacketOutcome::Untouched));
        let patience = if silent { SILENCE } else { PATIENCE };
        let from = match question.from {
            Asker::Node => "node",
            Asker::Client => "client",
            Asker::Pod(0) => "pod1",
            Asker::Pod(_) => "pod2",
        };
        let (source, to) = (question.source(), SocketAddr::new(question.to, question.port));
        let source = SocketAddr::new(source, port);
        let reply = match question.protocol {
            Protocol::Tcp => inside(from, move || call_tcp(source, to, patience)),
            Protocol::Udp => inside(from, move || call_udp(source, to, patience)),
            Protocol::Sctp => {
                self.associations.call((from, port), (question.to, question.port), patience)
            }
        };
        self.served.0 +=
            u32::from(traced.iter().any(|outcome| matches!(outcome, PacketOutcome::Sent { .. })));
        self.served.1 += 1;
        (reply, traced)
    }
}

fn call_tcp(source: SocketAddr, to: SocketAddr, patience: Duration) -> Reply {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async move {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        let socket = socket.unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(source).unwrap();
        let answer = async {
            let mut text = String::new();
            socket.connect(to).await?.read_to_string(&mut text).await?;
            Ok(text)
        };
        match tokio::time::timeout(patience, answer).await {
            Ok(Ok(text)) => net::parse(&text),
            Ok(Err(error)) => net::silence(&error),
            Err(_) => Reply::Silence,
        }
    })
}

fn call_udp(source: SocketAddr, to: SocketAddr, patience: Duration) -> Reply {
    let socket = UdpSocket::bind(source).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.connect(to).unwrap();
    net::ask_udp(&socket)
}

/// Whether the result is one of the predicted ones.
fn agrees(reply: &Reply, traced: &BTreeSet<PacketOutcome>, question: &Question) -> bool {
    let is_host = question.from == Asker::Node;
    traced.iter().any(|outcome| match (outcome, reply) {
        (PacketOutcome::Sent { to, port, from }, Reply::Answer { server, port: at, peer }) => {
            let masqueraded = *peer != question.source();
            // Packets of this node have its address, masqueraded or not.
            let seen = is_host || (*from == Sender::Masqueraded) == masqueraded;
            (to, port) == (server, at) && seen
        }
        (PacketOutcome::Reset, Reply::Refused) => question.protocol == Protocol::Tcp,
        (PacketOutcome::Unreachable, Reply::Refused) => question.protocol != Protocol::Tcp,
        (PacketOutcome::Dropped, Reply::Silence) => true,
        // A local process gets an error for a dropped datagram.
        (PacketOutcome::Dropped, Reply::Refused) => is_host,
        // The destination has the port,
        (PacketOutcome::Untouched, Reply::Answer { server, port, .. }) => {
            (*server, *port) == (question.to, question.port)
        }
        // or no host has the address, or the host has no such port.
        (PacketOutcome::Untouched, Reply::Silence | Reply::Refused) => true,
        _ => false,
    })
}

fn server(reply: &Reply) -> Option<(IpAddr, u16)> {
    match reply {
        Reply::Answer { server, port, .. } => Some((*server, *port)),
        Reply::Refused | Reply::Silence => None,
    }
}

fn check(node: &mut Node, world: &World, questions: &[Question]) -> Result<(), TestCaseError> {
    let tables = node.load(world);
    for question in questions.iter().filter(|question| world.can_send(question.from)) {
        let (reply, traced) = node.ask(&tables, question);
        let agree = agrees(&reply, &traced, question);
        prop_assert!(agree, "{:?}: {:?}, not among {:?}", question, reply, traced);
        // A returning client reaches its previous endpoint.
        if matches!(choice_of(world, question), Some(Choice::Sticky(_))) && traced.len() > 1 {
            for _ in 0..3 {
                let (again, _) = node.ask(&tables, question);
                prop_assert_eq!(server(&again), server(&reply), "{:?}", question);
            }
        }
    }
    Ok(())
}

#[test]
fn kernel_and_tracer_agree_on_random_services() {
    in_namespace("kernel_and_tracer_agree_on_random_services", || {
        let mut node = Node::start();
        let config = Config { cases: cases(40), failure_persistence: None, ..Config::default() };
        let strategy = worlds().prop_flat_map(|world| {
            let questions = proptest::collection::vec(questions(&world), 1..16);
            (Just(world), questions)
        });
        let node = std::cell::RefCell::new(&mut node);
        TestRunner::new(config)
            .run(&strategy, |(world, questions)| check(&mut node.borrow_mut(), &world, &questions))
            .unwrap();
        let (served, asked) = node.borrow().served;
        println!("{served} of {asked} connections were for an endpoint");
        assert!(served * 10 > asked, "hardly anything is served: the test asks nothing");
    });
}
