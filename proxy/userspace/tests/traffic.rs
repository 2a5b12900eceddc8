//! Real sockets in a network namespace: clients on this node, endpoints at loopback addresses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto_daemon::drain::Drain;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::statusz::StatusBoard;
use proxy_rules::model::{
    Choice, EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};
use proxy_userspace::{ForwardMetrics, Forwarder, ForwarderLimits, Options, remove_leftovers};
use sys::{in_namespace, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);
const PORT: u16 = 8080;
const LINK: &str = "services";
const API_SERVER: &str = "192.0.2.6:6443";
const OTHER_NODE: &str = "192.0.2.7";

/// Sends its address to every client, then echoes.
async fn endpoint(address: &str) {
    let at = SocketAddr::new(address.parse().unwrap(), PORT);
    let tcp = TcpListener::bind(at).await.unwrap();
    let udp = UdpSocket::bind(at).await.unwrap();
    let name = address.to_owned();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = tcp.accept().await.unwrap();
            let name = name.clone();
            tokio::spawn(async move {
                stream.write_all(format!("{name}\n").as_bytes()).await.unwrap();
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    let name = address.to_owned();
    tokio::spawn(async move {
        let mut buffer = [0; 2048];
        loop {
            let (_, from) = udp.recv_from(&mut buffer).await.unwrap();
            udp.send_to(name.as_bytes(), from).await.unwrap();
        }
    });
}

fn service(choice: Choice) -> Arc<LocalService> {
    let port = |name: &str, protocol, node_port| LocalPort {
        name: name.into(),
        protocol,
        port: 80,
        node_port,
    };
    Arc::new(LocalService {
        cluster_ips: ["10.96.0.1".parse().unwrap(), "fd96::1".parse().unwrap()].into(),
        choice,
        ports: [port("t", Protocol::Tcp, Some(30_080)), port("u", Protocol::Udp, Some(30_080))]
            .into(),
        ..LocalService::default()
    })
}

fn slice(addresses: &[&str]) -> Arc<LocalSlice> {
    let endpoint = |address: &&str| LocalEndpoint {
        address: address.parse().unwrap(),
        state: EndpointState::Ready,
        place: Locality::Here,
    };
    let port = |name: &str, protocol| SlicePort { name: name.into(), protocol, port: PORT };
    Arc::new(LocalSlice {
        service: ServiceId::new("ns", "web"),
        ports: [port("t", Protocol::Tcp), port("u", Protocol::Udp)].into(),
        endpoints: addresses.iter().map(endpoint).collect(),
        ..LocalSlice::default()
    })
}

async fn open(to: &str) -> std::io::Result<(TcpStream, String)> {
    let mut stream = TcpStream::connect(to).await?;
    let mut name = String::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => return Ok((stream, name)),
            byte => name.push(byte.into()),
        }
    }
}

async fn tcp(to: &str) -> String {
    match timeout(PATIENCE, open(to)).await.unwrap() {
        Ok((_, name)) => name,
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// Queries from a socket, repeatedly, as datagrams are lost when sessions end.
async fn udp(socket: &UdpSocket) -> String {
    let mut buffer = [0; 64];
    let ask = async {
        loop {
            let asked = async {
                socket.send(b"?").await?;
                timeout(Duration::from_millis(200), socket.recv(&mut buffer)).await?
            };
            match asked.await {
                Ok(len) => return String::from_utf8_lossy(&buffer[..len]).into_owned(),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    return "refused".into();
                }
                Err(_) => {}
            }
        }
    };
    timeout(PATIENCE, ask).await.unwrap()
}

async fn udp_socket(to: &str) -> UdpSocket {
    let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).await.unwrap();
    socket.connect(to).await.unwrap();
    socket
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}: not in time"));
}

/// Runs `body` with a forwarder, in a namespace with a node's address and two endpoints per family.
fn with_forwarder<F: Future<Output = ()>>(test: &str, body: impl FnOnce(Arc<Forwarder>) -> F) {
    with_counted_forwarder(test, |forwarder, _| body(forwarder));
}

fn with_counted_forwarder<F: Future<Output = ()>>(
    test: &str,
    body: impl FnOnce(Arc<Forwarder>, ForwardMetrics) -> F,
) {
    in_namespace(test, || {
        run(&["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far"]);
        run(&["ip", "link", "set", "eth0", "up"]);
        run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth0"]);
        for address in ["fd00::1/128", "fd00::2/128"] {
            run(&["ip", "addr", "add", address, "dev", "lo", "nodad"]);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for address in ["127.0.1.1", "127.0.1.2", "fd00::1", "fd00::2"] {
                endpoint(address).await;
            }
            let metrics = Metrics::new("test", BuildInfo { version: "0", commit: "0" }).unwrap();
            let metrics = ForwardMetrics::register(&metrics, "test").unwrap();
            let options = Options {
                limits: ForwarderLimits::default(),
                link: Some(LINK.into()),
                metrics: metrics.clone(),
                status: StatusBoard::default().task("forwarding"),
            };
            let protected = [API_SERVER.parse().unwrap()].into();
            let settings = Settings { protected, ..Settings::default() };
            let forwarder = Arc::new(Forwarder::new(settings));
            forwarder.nodes_changed([OTHER_NODE.parse().unwrap()].into());
            let drain = Drain::default();
            let (worker, watch) = (forwarder.clone(), drain.watch());
            tokio::spawn(async move { worker.run(options, || {}, watch).await });
            forwarder.source_complete();
            forwarder.source_complete();
            body(forwarder, metrics).await;
        });
    });
}

#[test]
fn connections_go_to_endpoints_in_turn() {
    with_forwarder("connections_go_to_endpoints_in_turn", |forwarder| async move {
        let id = ServiceId::new("ns", "web");
        forwarder.service_changed(&id, Some(service(Choice::Random)));
        forwarder.slice_changed("a", None, Some(slice(&["127.0.1.1", "127.0.1.2"])));
        forwarder.slice_changed("b", None, Some(slice(&["fd00::1", "fd00::2"])));
        until("a listener", async || tcp("[fd96::1]:80").await.starts_with("fd00")).await;
        let four = ["127.0.1.1", "127.0.1.1", "127.0.1.2", "127.0.1.2"];
        let six = ["fd00::1", "fd00::1", "fd00::2", "fd00::2"];
        for (to, expected) in [
            ("10.96.0.1:80", four),
            ("192.0.2.1:30080", four),
            ("127.0.0.1:30080", four),
            ("[fd96::1]:80", six),
        ] {
            let mut names = Vec::new();
            for _ in 0..4 {
                names.push(tcp(to).await);
            }
            names.sort();
            assert_eq!(names, expected, "{to}");
            let mut names = Vec::new();
            // All stay open: another socket on the port of a closed one would continue its session.
            let mut clients = Vec::new();
            for _ in 0..4 {
                let socket = udp_socket(to).await;
                let name = udp(&socket).await;
                assert_eq!(udp(&socket).await, name, "a client keeps its endpoint");
                names.push(name);
                clients.push(socket);
            }
            names.sort();
            assert_eq!(names, expected, "datagrams to {to}");
        }
        // Another port of the same address is unused.
        assert_eq!(tcp("10.96.0.1:81").await, "ConnectionRefused");
        // Many bytes in both directions, and the half-close of one side reaches the other.
        let (stream, _) = open("10.96.0.1:80").await.unwrap();
        let (mut read, mut write) = stream.into_split();
        let sender = tokio::spawn(async move {
            write.write_all(&vec![7; 4 << 20]).await.unwrap();
        });
        let mut echo = Vec::new();
        timeout(PATIENCE, read.read_to_end(&mut echo)).await.unwrap().unwrap();
        sender.await.unwrap();
        assert_eq!(echo.len(), 4 << 20);
    });
}

#[test]
fn a_client_keeps_its_endpoint() {
    with_forwarder("a_client_keeps_its_endpoint", |forwarder| async move {
        forwarder.service_changed(&ServiceId::new("ns", "web"), Some(service(Choice::sticky(600))));
        forwarder.slice_changed("a", None, Some(slice(&["127.0.1.1", "127.0.1.2"])));
        until("a listener", async || tcp("10.96.0.1:80").await.starts_with("127")).await;
        let first = tcp("10.96.0.1:80").await;
        // By any frontend, from the same address.
        for _ in 0..4 {
            assert_eq!(tcp("10.96.0.1:80").await, first);
        }
    });
}

#[test]
fn removed_endpoints_drain_and_dead_endpoints_are_skipped() {
    with_forwarder(
        "removed_endpoints_drain_and_dead_endpoints_are_skipped",
        |forwarder| async move {
            let id = ServiceId::new("ns", "web");
            forwarder.service_changed(&id, Some(service(Choice::Random)));
            let both = slice(&["127.0.1.1", "127.0.1.2"]);
            forwarder.slice_changed("a", None, Some(both.clone()));
            until("a listener", async || tcp("10.96.0.1:80").await.starts_with("127")).await;
            let mut held = open("10.96.0.1:80").await.unwrap();
            while held.1 != "127.0.1.1" {
                held = open("10.96.0.1:80").await.unwrap();
            }
            let session = loop {
                let socket = udp_socket("10.96.0.1:80").await;
                if udp(&socket).await == "127.0.1.1" {
                    break socket;
                }
            };
            // The first endpoint is removed: its connection continues, new ones go to the other.
            let one = slice(&["127.0.1.2"]);
            forwarder.slice_changed("a", Some(&both), Some(one.clone()));
            until("the session moves", async || udp(&session).await == "127.0.1.2").await;
            for _ in 0..4 {
                assert_eq!(tcp("10.96.0.1:80").await, "127.0.1.2");
            }
            held.0.write_all(b"still there?").await.unwrap();
            let mut echo = [0; 12];
            timeout(PATIENCE, held.0.read_exact(&mut echo)).await.unwrap().unwrap();
            assert_eq!(&echo, b"still there?");
            // An endpoint without a listener fails no connection.
            let dead = slice(&["127.0.1.2", "127.0.1.9"]);
            forwarder.slice_changed("a", Some(&one), Some(dead.clone()));
            for _ in 0..8 {
                assert_eq!(tcp("10.96.0.1:80").await, "127.0.1.2");
            }
            // Without endpoints clients are refused; without the Service its address is not local.
            forwarder.slice_changed("a", Some(&dead), None);
            until("refused", async || tcp("10.96.0.1:80").await == "ConnectionRefused").await;
            assert_eq!(udp(&udp_socket("10.96.0.1:80").await).await, "refused");
            let link = || run(&["ip", "-o", "addr", "show", "dev", LINK]);
            assert!(link().contains("10.96.0.1/32") && link().contains("fd96::1/128"));
            forwarder.service_changed(&id, None);
            let is_bare = || !["10.96.0.1", "fd96::1"].iter().any(|ip| link().contains(ip));
            until("no address", async || is_bare()).await;
            let node = run(&["ip", "-o", "addr", "show", "dev", "eth0"]);
            assert!(node.contains("192.0.2.1/24"), "{node}");
        },
    );
}

/// What the kernel does with packets to an address.
fn route(to: &str) -> String {
    run(&["ip", "route", "get", to])
}

#[test]
fn a_service_does_not_cut_the_node_off_from_other_machines() {
    with_forwarder(
        "a_service_does_not_cut_the_node_off_from_other_machines",
        |forwarder| async move {
            let id = ServiceId::new("ns", "web");
            let api_server = API_SERVER.parse::<SocketAddr>().unwrap().ip().to_string();
            let others = [api_server.as_str(), OTHER_NODE];
            let mut greedy = (*service(Choice::Random)).clone();
            greedy.external_ips =
                [others[0], others[1], "198.51.100.1"].map(|ip| ip.parse().unwrap()).into();
            greedy.load_balancer_ips = others.map(|ip| ip.parse().unwrap()).into();
            forwarder.service_changed(&id, Some(Arc::new(greedy)));
            forwarder.slice_changed("a", None, Some(slice(&["127.0.1.1"])));
            until("the other address", async || tcp("198.51.100.1:80").await == "127.0.1.1").await;
            for address in others {
                assert!(!route(address).starts_with("local"), "{}", route(address));
            }
            // A machine that joins later gets its address back.
            assert!(route("198.51.100.1").starts_with("local"));
            let nodes = [OTHER_NODE, "198.51.100.1"].map(|ip| ip.parse().unwrap());
            forwarder.nodes_changed(nodes.into());
            let is_free = async || !run(&["ip", "addr"]).contains("198.51.100.1");
            until("the address is free", is_free).await;
            assert_eq!(tcp("10.96.0.1:80").await, "127.0.1.1");
        },
    );
}

#[test]
fn a_new_process_has_no_addresses_of_an_earlier_one() {
    in_namespace("a_new_process_has_no_addresses_of_an_earlier_one", || {
        run(&["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "far"]);
        run(&["ip", "link", "set", "eth0", "up"]);
        run(&["ip", "addr", "add", "192.0.2.1/24", "dev", "eth0"]);
        // A veth, as some kernels have no dummy links.
        run(&["ip", "link", "add", LINK, "type", "veth", "peer", "name", "services-x"]);
        run(&["ip", "link", "set", LINK, "up"]);
        run(&["ip", "addr", "add", "192.0.2.6/32", "dev", LINK]);
        assert!(route("192.0.2.6").starts_with("local"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            remove_leftovers(LINK).await;
            assert!(route("192.0.2.6").contains("dev eth0"), "{}", route("192.0.2.6"));
            assert!(route("192.0.2.1").starts_with("local"));
            // There is nothing left to remove.
            remove_leftovers(LINK).await;
        });
    });
}

/// Without the check one connection would be thousands, until no more are admitted.
#[test]
fn an_endpoint_that_is_a_frontend_is_skipped() {
    let name = "an_endpoint_that_is_a_frontend_is_skipped";
    with_counted_forwarder(name, |forwarder, metrics| async move {
        let id = ServiceId::new("ns", "web");
        forwarder.service_changed(&id, Some(service(Choice::Random)));
        let of = |port: u16, address: &str| {
            let mut own = (*slice(&[address])).clone();
            own.ports.iter_mut().for_each(|at| at.port = port);
            Arc::new(own)
        };
        // Its cluster IP and its node port.
        forwarder.slice_changed("a", None, Some(of(80, "10.96.0.1")));
        forwarder.slice_changed("b", None, Some(of(30_080, "192.0.2.1")));
        let is_reset =
            async || matches!(&*tcp("10.96.0.1:80").await, "ConnectionReset" | "UnexpectedEof");
        until("a listener", is_reset).await;
        assert_eq!(metrics.begun.with_label_values(&["tcp"]).get(), 0);
        assert!(metrics.refused.with_label_values(&["loop"]).get() > 0);
        forwarder.slice_changed("c", None, Some(slice(&["127.0.1.1"])));
        until("the endpoint", async || tcp("10.96.0.1:80").await == "127.0.1.1").await;
        for to in ["10.96.0.1:80", "192.0.2.1:30080"] {
            for _ in 0..6 {
                assert_eq!(tcp(to).await, "127.0.1.1", "{to}");
            }
        }
        // A datagram to an endpoint that leads back is dropped; the next one goes to the next endpoint.
        let socket = udp_socket("10.96.0.1:80").await;
        assert_eq!(udp(&socket).await, "127.0.1.1");
    });
}

/// An SCTP socket; `None` if this machine has none.
fn sctp_socket() -> Option<std::net::TcpStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let made = socket(AddressFamily::Inet, SockType::Stream, flags, SockProtocol::Sctp);
    made.ok().map(Into::into)
}

/// A blocking stream, read and written message by message, which the runtime does not support.
fn blocking(stream: TcpStream) -> std::net::TcpStream {
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Messages are forwarded one by one in both directions, and so is the end of an association.
#[test]
fn associations_carry_messages_where_there_are_sockets_for_them() {
    let name = "associations_carry_messages_where_there_are_sockets_for_them";
    if sctp_socket().is_none() {
        println!("SKIPPED {name}: this machine has no sockets for SCTP");
        return;
    }
    with_forwarder(name, async |forwarder| {
        let at = SocketAddr::new("127.0.0.7".parse().unwrap(), PORT);
        let socket = || tokio::net::TcpSocket::from_std_stream(sctp_socket().unwrap());
        let listener = socket();
        listener.bind(at).unwrap();
        let listener = listener.listen(8).unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = blocking(stream);
                // Each message is answered by its length.
                tokio::task::spawn_blocking(move || {
                    let mut message = [0; 64];
                    while let Ok(len) = stream.read(&mut message)
                        && len > 0
                    {
                        stream.write_all(len.to_string().as_bytes()).unwrap();
                    }
                });
            }
        });
        let mut service = (*service(Choice::Random)).clone();
        service.ports =
            [LocalPort { name: "s".into(), protocol: Protocol::Sctp, port: 80, node_port: None }]
                .into();
        let mut slice = (*slice(&["127.0.0.7"])).clone();
        slice.ports = [SlicePort { name: "s".into(), protocol: Protocol::Sctp, port: PORT }].into();
        let id = ServiceId::new("ns", "web");
        forwarder.service_changed(&id, Some(Arc::new(service)));
        forwarder.slice_changed("s", None, Some(Arc::new(slice)));
        until("an association is answered", async || {
            let Ok(client) = socket().connect("10.96.0.1:80".parse().unwrap()).await else {
                return false;
            };
            let mut client = blocking(client);
            let talk = tokio::task::spawn_blocking(move || {
                client.write_all(b"one").unwrap();
                client.write_all(b"seventeen").unwrap();
                let mut answer = || {
                    let mut answer = [0; 64];
                    let len = client.read(&mut answer).unwrap();
                    String::from_utf8_lossy(&answer[..len]).into_owned()
                };
                let answers = [answer(), answer()];
                client.shutdown(std::net::Shutdown::Write).unwrap();
                // The end of an association is the end of the stream or an error.
                let is_over = match client.read(&mut [0; 8]) {
                    Ok(len) => len == 0,
                    Err(error) => error.kind() == std::io::ErrorKind::NotConnected,
                };
                (answers, is_over)
            });
            assert_eq!(talk.await.unwrap(), (["3".to_owned(), "9".to_owned()], true));
            true
        })
        .await;
    });
}
