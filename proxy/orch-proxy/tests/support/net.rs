//! A test network: this network namespace is the node, each other one is connected to it by a veth pair.

#![allow(dead_code, reason = "each test binary uses what it needs")]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use proxy_rules::model::Protocol;

use crate::sys::run;

/// How long no response counts as silence, where silence is possible.
pub const PATIENCE: Duration = Duration::from_millis(400);

/// The same where a response has to come, however busy the machine is.
pub const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// The next client's UDP port. No port is used twice: conntrack keeps the endpoint of an earlier flow with the same ports for a while.
static CLIENT_PORT: AtomicU16 = AtomicU16::new(10_000);

/// The network. Its namespaces end with the test's mount namespace.
pub struct Net {
    places: Vec<String>,
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A server replied.
    Answer {
        /// Its address.
        server: IpAddr,
        port: u16,
        /// The client's address as the server sees it.
        peer: IpAddr,
    },
    /// The call was refused.
    Refused,
    /// No reply.
    Silence,
}

impl Net {
    /// Creates a namespace per place, with its addresses, and assigns the node's own addresses to loopback, so that
    /// they do not depend on a link.
    pub fn make(node: &[&str; 2], places: &[(&str, [&str; 2])]) -> Self {
        run(&["mount", "--make-rprivate", "/"]);
        run(&["mount", "-t", "tmpfs", "tmpfs", "/run"]);
        for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{setting}"), "1").unwrap();
        }
        // Without rate limits, every ICMP error is sent.
        for setting in ["net/ipv4/icmp_ratelimit", "net/ipv6/icmp/ratelimit"] {
            std::fs::write(format!("/proc/sys/{setting}"), "0").unwrap();
        }
        ip(&["addr", "add", node[0], "dev", "lo"]);
        ip(&["addr", "add", node[1], "dev", "lo", "nodad"]);
        for (n, (place, addresses)) in places.iter().enumerate() {
            link(n, place, addresses, node);
        }
        // The default route leads to the first place.
        if let Some((_, addresses)) = places.first() {
            for (version, via) in [("-4", addresses[0]), ("-6", addresses[1])] {
                ip(&[version, "route", "add", "default", "via", via, "dev", "v0", "onlink"]);
            }
        }
        Self { places: places.iter().map(|(place, _)| (*place).to_owned()).collect() }
    }

    /// Answers every TCP connection and UDP datagram to `port` in a place, with the client's address.
    pub fn serve(&self, place: &str, port: u16) {
        let (tcp, udp) = inside(place, move || {
            let any = SocketAddr::new("::".parse::<IpAddr>().unwrap(), port);
            (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
        });
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let mut stream = stream;
                let (local, peer) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
                let _ = write!(stream, "{} {port} {}", plain(local.ip()), plain(peer.ip()));
            }
        });
        let place = place.to_owned();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                let server = inside(&place, move || local_address_towards(peer));
                let text = format!("{} {port} {}", plain(server), plain(peer.ip()));
                let _ = udp.send_to(text.as_bytes(), peer);
            }
        });
    }

    /// Calls from a place, or from the node.
    pub fn call(&self, from: &str, protocol: Protocol, to: IpAddr, port: u16) -> Reply {
        self.call_within(PATIENCE, from, protocol, to, port)
    }

    /// The same with another time after which no response counts as silence.
    pub fn call_within(
        &self,
        patience: Duration,
        from: &str,
        protocol: Protocol,
        to: IpAddr,
        port: u16,
    ) -> Reply {
        assert!(from == "node" || self.places.iter().any(|place| place == from));
        if protocol == Protocol::Tcp {
            return inside(from, move || call_tcp(SocketAddr::new(to, port), patience));
        }
        let socket = self.udp_socket(from, to, port);
        socket.set_read_timeout(Some(patience)).unwrap();
        ask_udp(&socket)
    }

    /// A UDP socket in a place, connected to `to`.
    pub fn udp_socket(&self, from: &str, to: IpAddr, port: u16) -> UdpSocket {
        inside(from, move || {
            let any = if to.is_ipv4() { "0.0.0.0" } else { "[::]" };
            let own = CLIENT_PORT.fetch_add(1, Ordering::Relaxed);
            let socket = UdpSocket::bind(format!("{any}:{own}")).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.connect((to, port)).unwrap();
            socket
        })
    }
}

/// Sends a datagram and waits for the reply.
pub fn ask_udp(socket: &UdpSocket) -> Reply {
    let mut buffer = [0; 128];
    let answer = socket.send(b"who are you?").and_then(|_| socket.recv(&mut buffer));
    match answer {
        Ok(len) => parse(&String::from_utf8_lossy(&buffer[..len])),
        Err(error) => silence(&error),
    }
}

fn call_tcp(to: SocketAddr, patience: Duration) -> Reply {
    let mut text = String::new();
    let read = TcpStream::connect_timeout(&to, patience).and_then(|mut stream| {
        stream.set_read_timeout(Some(patience))?;
        stream.read_to_string(&mut text)
    });
    match read {
        Ok(_) => parse(&text),
        Err(error) => silence(&error),
    }
}

/// The result that an error means.
pub fn silence(error: &std::io::Error) -> Reply {
    match error.kind() {
        // A local datagram that is rejected gets EPERM.
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::PermissionDenied => {
            Reply::Refused
        }
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Reply::Silence,
        _ => panic!("call: {error}"),
    }
}

/// Parses a server's reply.
pub fn parse(text: &str) -> Reply {
    let words: Vec<&str> = text.split(' ').collect();
    let [server, port, peer] = words[..] else { panic!("answer {text:?}") };
    let (server, peer) = (server.parse().unwrap(), peer.parse().unwrap());
    Reply::Answer { server, port: port.parse().unwrap(), peer }
}

/// IPv4-mapped IPv6 addresses as IPv4.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn local_address_towards(peer: SocketAddr) -> IpAddr {
    let peer = SocketAddr::new(plain(peer.ip()), peer.port());
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).unwrap();
    socket.connect(peer).unwrap();
    socket.local_addr().unwrap().ip()
}

/// Runs `body` on a thread in a namespace; its sockets stay there.
pub fn inside<T: Send + 'static>(place: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let path = (place != "node").then(|| format!("/run/netns/{place}"));
    let thread = thread::spawn(move || {
        if let Some(path) = path {
            setns(File::open(path).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
        }
        body()
    });
    thread.join().unwrap()
}

fn link(n: usize, place: &str, addresses: &[&str; 2], node: &[&str; 2]) {
    let (near, far) = (format!("v{n}"), "eth0");
    ip(&["netns", "add", place]);
    // A place is a host that forwards nothing; a new namespace has the machine's setting, which Docker turns on.
    inside(place, || {
        // `/proc/sys/net` is that of the thread.
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    });
    ip(&["link", "add", &near, "type", "veth", "peer", "name", far, "netns", place]);
    ip(&["link", "set", &near, "up"]);
    // Both ends of a pair are on-link; everything else is routed through the node.
    let gateways = ["169.254.1.1", "fe80::1"];
    ip(&["addr", "add", &format!("{}/32", gateways[0]), "dev", &near]);
    ip(&["addr", "add", &format!("{}/64", gateways[1]), "dev", &near, "nodad"]);
    ip(&["-n", place, "link", "set", "lo", "up"]);
    ip(&["-n", place, "link", "set", far, "up"]);
    for (version, address, gateway) in
        [("-4", addresses[0], gateways[0]), ("-6", addresses[1], gateways[1])]
    {
        let quiet: &[&str] = if version == "-6" { &["nodad"] } else { &[] };
        ip(&[&["-n", place, version, "addr", "add", address, "dev", far], quiet].concat());
        ip(&["-n", place, version, "route", "add", gateway, "dev", far]);
        ip(&["-n", place, version, "route", "add", "default", "via", gateway, "dev", far]);
    }
    ip(&["-4", "route", "add", addresses[0], "dev", &near, "src", node[0]]);
    ip(&["-6", "route", "add", addresses[1], "dev", &near, "src", node[1]]);
}

fn ip(words: &[&str]) {
    run(&[&["ip"], words].concat());
}
