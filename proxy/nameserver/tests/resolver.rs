//! The DNS server over real sockets, with fake upstream servers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use proto_daemon::metrics::{BuildInfo, Metrics};
use proxy_dns::Zone;
use proxy_dns::model::{NamedEndpoint, NamedPort, NamedService, NamedSlice, ServiceTarget};
use proxy_nameserver::{Listener, NameMetrics, Resolver, SharedZone, Upstreams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long no response must arrive where none is expected.
const SILENCE: Duration = Duration::from_millis(300);
/// When the resolver repeats a question that is not answered.
const REPEATED_AFTER: Duration = Duration::from_millis(1500);

struct Node {
    zone: Arc<SharedZone>,
    resolver: Arc<Resolver>,
    address: SocketAddr,
}

/// A DNS server with `db` as a headless Service of `endpoints_len` endpoints.
async fn node(upstreams: Vec<SocketAddr>, endpoints_len: u32) -> Node {
    let mut zone = Zone::new("cluster.local", ("system", "dns")).unwrap();
    let headless = NamedService { leads: ServiceTarget::ToEndpoints, ports: Box::default() };
    let external = NamedService {
        leads: ServiceTarget::ToName("www.example.com".into()),
        ports: Box::default(),
    };
    zone.service_changed("demo", "db", Some(Arc::new(headless)));
    zone.service_changed("demo", "out", Some(Arc::new(external)));
    let endpoint = |n: u32| NamedEndpoint {
        address: Ipv4Addr::from(0x0af4_0000 + n).into(),
        hostname: format!("db-{n}").into(),
    };
    let port = NamedPort { name: "sql".into(), protocol: "tcp", port: 5432 };
    let slice = NamedSlice {
        namespace: "demo".into(),
        service: "db".into(),
        ports: [port].into(),
        endpoints: (1..=endpoints_len).map(endpoint).collect(),
    };
    zone.slice_changed("db-4", None, Some(Arc::new(slice)));
    let zone = Arc::new(SharedZone::new(zone));
    let metrics = Metrics::new("test", BuildInfo { version: "0", commit: "0" }).unwrap();
    let metrics = NameMetrics::register(&metrics, "test").unwrap();
    let resolver = Arc::new(Resolver::new(zone.clone(), Upstreams::new(upstreams), metrics));
    let listener = bind_free().await;
    let address = listener.address();
    // All clients but the second loopback address are admitted; requests of 127.0.0.99 panic.
    let [turned_away, panicking] = [2, 99].map(|last| IpAddr::from([127, 0, 0, last]));
    let client_filter = move |from| {
        assert_ne!(from, panicking, "its requests panic");
        from != turned_away
    };
    tokio::spawn(listener.run(resolver.clone(), Arc::new(client_filter)));
    Node { zone, resolver, address }
}

/// The kernel chooses the port of streams; a client's socket may have the same one of datagrams.
async fn bind_free() -> Listener {
    for _ in 0..100 {
        if let Ok(listener) = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).await {
            return listener;
        }
    }
    panic!("no port is free for streams and datagrams");
}

fn complete(node: &Node) {
    node.zone.source_complete();
    node.zone.source_complete();
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.queries = vec![Query::query(Name::from_ascii(name).unwrap(), kind)];
    message
}

async fn by_datagram(server: SocketAddr, message: &Message) -> Message {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&message.to_vec().unwrap()).await.unwrap();
    let mut buffer = [0; 4096];
    let len = timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    Message::from_vec(&buffer[..len]).unwrap()
}

async fn by_stream(server: SocketAddr, messages: &[Message]) -> Vec<Message> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    for message in messages {
        let bytes = message.to_vec().unwrap();
        stream.write_u16(u16::try_from(bytes.len()).unwrap()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
    }
    let mut answers = Vec::new();
    for _ in messages {
        let len = timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap();
        let mut bytes = vec![0; len.into()];
        stream.read_exact(&mut bytes).await.unwrap();
        answers.push(Message::from_vec(&bytes).unwrap());
    }
    answers
}

/// A fake upstream server: its responses to each query, over UDP and TCP; an empty list is silence.
struct Other {
    address: SocketAddr,
    datagrams: Arc<AtomicUsize>,
    streams: Arc<AtomicUsize>,
}

type Script = Arc<dyn Fn(&Message, bool) -> Vec<Message> + Send + Sync>;

async fn other(script: impl Fn(&Message, bool) -> Vec<Message> + Send + Sync + 'static) -> Other {
    let script: Script = Arc::new(script);
    let (tcp, udp) = loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        // A client's socket may have this port.
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            break (tcp, udp);
        }
    };
    let address = tcp.local_addr().unwrap();
    let (datagrams, streams) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, answers) = (datagrams.clone(), script.clone());
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (len, from) = udp.recv_from(&mut buffer).await.unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
            let question = Message::from_vec(&buffer[..len]).unwrap();
            for message in answers(&question, false) {
                udp.send_to(&message.to_vec().unwrap(), from).await.unwrap();
            }
        }
    });
    let counter = streams.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
            let len = stream.read_u16().await.unwrap();
            let mut bytes = vec![0; len.into()];
            stream.read_exact(&mut bytes).await.unwrap();
            for message in script(&Message::from_vec(&bytes).unwrap(), true) {
                let bytes = message.to_vec().unwrap();
                stream.write_u16(u16::try_from(bytes.len()).unwrap()).await.unwrap();
                stream.write_all(&bytes).await.unwrap();
            }
        }
    });
    Other { address, datagrams, streams }
}

fn says(question: &Message, address: [u8; 4]) -> Message {
    let mut message = Message::response(question.metadata.id, OpCode::Query);
    message.queries = question.queries.clone();
    let name = question.queries[0].name.clone();
    message.answers = vec![Record::from_rdata(name, 60, Ipv4Addr::from(address).into())];
    message
}

fn data(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

#[tokio::test]
async fn names_of_the_cluster_over_both_transports() {
    let node = node(Vec::new(), 2).await;
    complete(&node);
    let asked = query("DB.demo.svc.cluster.local.", RecordType::A);
    let answer = by_datagram(node.address, &asked).await;
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (4711, ResponseCode::NoError));
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);
    assert_eq!(answer.queries, asked.queries);
    assert!(answer.queries[0].name.eq_case(&asked.queries[0].name), "letters as they were asked");
    let mut found = data(&answer);
    found.sort();
    assert_eq!(found, ["10.244.0.1", "10.244.0.2"]);
    let missing = query("nobody.demo.svc.cluster.local.", RecordType::A);
    let answers = by_stream(node.address, &[asked, missing]).await;
    assert_eq!(answers[0].answers.len(), 2);
    assert_eq!(answers[1].metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(answers[1].authorities.len(), 1);
}

#[tokio::test]
async fn an_answer_too_large_for_a_datagram_comes_by_stream() {
    let node = node(Vec::new(), 200).await;
    complete(&node);
    let mut asked = query("db.demo.svc.cluster.local.", RecordType::A);
    let plain = by_datagram(node.address, &asked).await;
    assert!(plain.metadata.truncation && !plain.answers.is_empty() && plain.edns.is_none());
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    asked.edns = Some(edns);
    let more = by_datagram(node.address, &asked).await;
    assert!(more.metadata.truncation && more.answers.len() > plain.answers.len());
    assert!(more.edns.is_some());
    let whole = by_stream(node.address, &[asked]).await;
    assert!(!whole[0].metadata.truncation);
    assert_eq!(whole[0].answers.len(), 200);
}

#[tokio::test]
async fn nothing_is_denied_before_everything_is_known() {
    let node = node(Vec::new(), 1).await;
    let asked = query("later.demo.svc.cluster.local.", RecordType::A);
    let address = node.address;
    let waiting = tokio::spawn(async move { by_datagram(address, &asked).await });
    // The query arrives before the Service.
    while node.resolver.metrics().requests.with_label_values(&["udp"]).get() == 0 {
        tokio::task::yield_now().await;
    }
    let service = NamedService {
        leads: ServiceTarget::ToItself([IpAddr::from([10, 96, 0, 9])].into()),
        ports: Box::default(),
    };
    node.zone.change(|zone| zone.service_changed("demo", "later", Some(Arc::new(service))));
    complete(&node);
    assert_eq!(data(&waiting.await.unwrap()), ["10.96.0.9"]);
}

#[tokio::test]
async fn external_names_are_forwarded_once_and_cached() {
    let asked_for = Arc::new(Mutex::new(Vec::new()));
    let log = asked_for.clone();
    let other = other(move |question, _| {
        log.lock().unwrap().push(question.queries[0].name.to_string());
        vec![says(question, [192, 0, 2, 1])]
    })
    .await;
    let node = node(vec![other.address], 1).await;
    complete(&node);
    let asked = query("www.example.com.", RecordType::A);
    let all = (0..20).map(|_| {
        let (asked, address) = (asked.clone(), node.address);
        tokio::spawn(async move { by_datagram(address, &asked).await })
    });
    let began = Instant::now();
    for answer in all.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        assert_eq!(data(&answer), ["192.0.2.1"]);
        assert!(!answer.metadata.authoritative);
    }
    // On a busy machine the answer may be late, and the question repeated once.
    let repeats = usize::from(began.elapsed() >= REPEATED_AFTER);
    let forwarded = other.datagrams.load(Ordering::SeqCst);
    assert!((1..=1 + repeats).contains(&forwarded), "forwarded {forwarded} times");
    // An alias of a Service resolves through the cache.
    let alias =
        by_datagram(node.address, &query("out.demo.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(data(&alias), ["www.example.com.", "192.0.2.1"]);
    assert_eq!(*asked_for.lock().unwrap(), vec!["www.example.com."; forwarded]);
    // Names made by search lists never go upstream.
    let made =
        by_datagram(node.address, &query("www.example.com.demo.svc.cluster.local.", RecordType::A))
            .await;
    assert_eq!(made.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(other.datagrams.load(Ordering::SeqCst), forwarded);
}

#[tokio::test]
async fn a_truncated_answer_is_retried_over_tcp() {
    let other = other(|question, by_stream| {
        let mut answer = says(question, [192, 0, 2, 2]);
        if !by_stream {
            answer.answers.clear();
            answer.metadata.truncation = true;
        }
        vec![answer]
    })
    .await;
    let node = node(vec![other.address], 1).await;
    complete(&node);
    let answer = by_datagram(node.address, &query("big.example.com.", RecordType::A)).await;
    assert_eq!(data(&answer), ["192.0.2.2"]);
    assert_eq!(other.streams.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn forged_and_failing_servers_are_passed_by() {
    let forger = other(|question, _| {
        let mut forged = says(question, [203, 0, 113, 1]);
        forged.metadata.id = forged.metadata.id.wrapping_add(1);
        let mut foreign = says(question, [203, 0, 113, 2]);
        foreign.queries[0].set_name(Name::from_ascii("other.example.").unwrap());
        vec![forged, foreign, says(question, [192, 0, 2, 3])]
    })
    .await;
    let broken = other(|question, _| {
        vec![Message::error_msg(question.metadata.id, OpCode::Query, ResponseCode::ServFail)]
    })
    .await;
    // Nothing listens there, and no socket gets this port by chance.
    let gone = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let node = node(vec![gone, broken.address, forger.address], 1).await;
    complete(&node);
    let answer = by_datagram(node.address, &query("www.example.org.", RecordType::A)).await;
    assert_eq!(data(&answer), ["192.0.2.3"]);
}

#[tokio::test]
async fn without_other_servers_the_answer_is_a_failure_at_once() {
    let node = node(Vec::new(), 1).await;
    complete(&node);
    let answer = by_datagram(node.address, &query("www.example.com.", RecordType::A)).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    // An alias is a response, as far as it goes.
    let alias =
        by_datagram(node.address, &query("out.demo.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(data(&alias), ["www.example.com."]);
    // Upstream servers that are added later are used.
    let other = other(|question, _| vec![says(question, [192, 0, 2, 4])]).await;
    node.resolver.use_upstreams(Upstreams::new(vec![other.address]));
    let answer = by_datagram(node.address, &query("www.example.com.", RecordType::A)).await;
    assert_eq!(data(&answer), ["192.0.2.4"]);
}

#[tokio::test]
async fn other_clients_and_malformed_messages_get_no_answer() {
    let node = node(Vec::new(), 1).await;
    complete(&node);
    let stranger = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    let asked = query("db.demo.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    stranger.send_to(&asked, node.address).await.unwrap();
    let mut buffer = [0; 512];
    assert!(timeout(SILENCE, stranger.recv(&mut buffer)).await.is_err());
    let friend = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    friend.send_to(b"noise", node.address).await.unwrap();
    assert!(timeout(SILENCE, friend.recv(&mut buffer)).await.is_err());
    // The socket still works.
    friend.send_to(&asked, node.address).await.unwrap();
    assert!(timeout(PATIENCE, friend.recv(&mut buffer)).await.is_ok());
    let counted = node.resolver.metrics().turned_away.with_label_values(&["source"]).get();
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn a_client_that_floods_the_resolver_leaves_room_for_others() {
    // No response to names of the flood.
    let other = other(|question, _| match data_name(question).contains("flood") {
        true => Vec::new(),
        false => vec![says(question, [192, 0, 2, 7])],
    })
    .await;
    let node = node(vec![other.address], 0).await;
    complete(&node);
    let flood = UdpSocket::bind("127.0.0.3:0").await.unwrap();
    for n in 0..1500 {
        let question = query(&format!("n{n}.flood.example."), RecordType::A);
        flood.send_to(&question.to_vec().unwrap(), node.address).await.unwrap();
        // So that no datagram is lost.
        if n % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let answer = by_datagram(node.address, &query("quiet.example.", RecordType::A)).await;
    assert_eq!(data(&answer), ["192.0.2.7"]);
}

/// An upstream server that answers all names but those below `slow.example.`.
async fn answers_all_but_slow() -> Other {
    other(|question, _| match data_name(question).contains("slow") {
        true => Vec::new(),
        false => vec![says(question, [192, 0, 2, 8])],
    })
    .await
}

async fn ask_slow(socket: &UdpSocket, server: SocketAddr, name: &str) {
    let question = query(&format!("{name}.slow.example."), RecordType::A);
    socket.send_to(&question.to_vec().unwrap(), server).await.unwrap();
}

#[tokio::test]
async fn names_without_an_answer_do_not_use_up_a_server() {
    let other = answers_all_but_slow().await;
    let node = node(vec![other.address], 0).await;
    complete(&node);
    let flood = Arc::new(UdpSocket::bind("127.0.0.3:0").await.unwrap());
    for n in 0..50 {
        ask_slow(&flood, node.address, &format!("first-{n}")).await;
    }
    let mut buffer = [0; 512];
    timeout(PATIENCE, flood.recv(&mut buffer)).await.unwrap().unwrap();
    let (sender, server) = (flood.clone(), node.address);
    let flooding = tokio::spawn(async move {
        for n in 0.. {
            ask_slow(&sender, server, &format!("more-{n}")).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    for n in 0..20 {
        let good = query(&format!("n{n}.good.example."), RecordType::A);
        assert_eq!(data(&by_datagram(node.address, &good).await), ["192.0.2.8"], "{n}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    flooding.abort();
}

#[tokio::test]
async fn a_client_has_its_share_of_the_questions_to_other_servers() {
    let other = answers_all_but_slow().await;
    let node = node(vec![other.address], 0).await;
    complete(&node);
    let greedy = UdpSocket::bind("127.0.0.3:0").await.unwrap();
    for n in 0..200 {
        ask_slow(&greedy, node.address, &format!("n{n}")).await;
        tokio::task::yield_now().await;
    }
    let mut buffer = [0; 512];
    timeout(PATIENCE, greedy.recv(&mut buffer)).await.unwrap().unwrap();
    let turned_away = node.resolver.metrics().turned_away.with_label_values(&["busy"]).get();
    assert!(turned_away > 0, "all of one client's questions were passed on");
    let answer = by_datagram(node.address, &query("good.example.", RecordType::A)).await;
    assert_eq!(data(&answer), ["192.0.2.8"]);
}

fn data_name(question: &Message) -> String {
    question.queries[0].name.to_string()
}

#[tokio::test]
async fn a_request_that_panics_fails_alone() {
    let node = node(Vec::new(), 3).await;
    complete(&node);
    let asked = query("db.demo.svc.cluster.local.", RecordType::A);
    let panicking = UdpSocket::bind("127.0.0.99:0").await.unwrap();
    panicking.send_to(&asked.to_vec().unwrap(), node.address).await.unwrap();
    let stream = tokio::net::TcpSocket::new_v4().unwrap();
    stream.bind("127.0.0.99:0".parse().unwrap()).unwrap();
    let mut stream = stream.connect(node.address).await.unwrap();
    let closed = timeout(PATIENCE, stream.read_u16()).await.unwrap();
    assert!(closed.is_err(), "the connection is closed without an answer");
    let answers = [by_datagram(node.address, &asked).await];
    let answers = answers.into_iter().chain(by_stream(node.address, &[asked]).await);
    answers.for_each(|answer| assert_eq!(answer.answers.len(), 3));
    let mut buffer = [0; 512];
    assert!(timeout(SILENCE, panicking.recv(&mut buffer)).await.is_err());
}
