//! The cost of packets: the first of a connection, later ones, and connections per second; through a Service and
//! directly, through the node with the Services and through one without.
//!
//! The cost of a packet is the CPU time of the sending thread: the kernel delivers it through client, node and server
//! within that call. Rounds alternate between the cases, so that disturbances affect all.

use std::collections::VecDeque;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::figures::{Figure, Group, KUBE_PROXY, OURS, Unit};
use crate::network::{Processors, Road, SERVERS, inside, keep_to};
use crate::sys::raw_socket;

/// First packets per case and round. Fewer than any machine's conntrack limit.
const PACKETS: u32 = 20_000;
/// Rounds over all cases.
const ROUNDS: usize = 9;
/// Connections per case and round.
const CONNECTIONS: u32 = 1000;
/// Concurrent connections, and packets on each.
const ESTABLISHED: u32 = 100;
const PACKETS_EACH: u32 = 50;
/// First cluster IP.
const SERVICES: u32 = 0x0a60_0000;

/// Both paths, with servers.
pub struct Roads {
    plain: Road,
    here: Road,
}

/// Destination of the packets.
#[derive(Clone, Copy)]
struct Question {
    /// Through the node with the Services.
    here: bool,
    service: bool,
    /// To all Services, or to one.
    all: bool,
}

impl Question {
    const fn new(here: bool, service: bool, all: bool) -> Self {
        Self { here, service, all }
    }

    /// Destination of the `n`th packet.
    fn to(self, n: u32, services: u32) -> SocketAddrV4 {
        let which = if self.all { mix(n) % services } else { 7 % services };
        match self.service {
            true => SocketAddrV4::new(Ipv4Addr::from(SERVICES + which), 80),
            false => SocketAddrV4::new(Ipv4Addr::from(SERVERS + which * 8 + 1), 8080),
        }
    }
}

/// Directly through either node, and through Services: one address, then all at random.
const QUESTIONS: [Question; 6] = [
    Question::new(false, false, false),
    Question::new(true, false, false),
    Question::new(true, true, false),
    Question::new(false, false, true),
    Question::new(true, false, true),
    Question::new(true, true, true),
];

/// Nanoseconds of one kind in each round, in the order of [`QUESTIONS`].
struct Costs([Vec<f64>; 6]);

impl Costs {
    /// What a side pays for `what`: as a multiple of the same without Services, round by round; ours in nanoseconds too, without Services.
    fn tell(self, side: &str, services: u32, what: &str) {
        let [plain, here, service, plain_all, _, service_all] = self.0;
        let times = |paid: &[f64], plain: &[f64]| {
            paid.iter().zip(plain).map(|(paid, plain)| paid / plain).collect()
        };
        let tell = |how: &str, unit, samples| {
            let figure =
                Figure::from_samples(Group::Packets, format!("{what}, {how}"), unit, samples);
            let figure = figure.at(services, crate::dataplane_sizes::SERVICES).side(side);
            let is_compared = side == OURS && services == crate::kube_proxy::SERVICES;
            let is_compared = is_compared && unit == Unit::Times;
            if is_compared { figure.beside(KUBE_PROXY) } else { figure }.tell().unwrap();
        };
        tell("one address", Unit::Times, times(&service, &plain));
        tell("all at random", Unit::Times, times(&service_all, &plain_all));
        tell("past all Services", Unit::Times, times(&here, &plain));
        if side == OURS {
            tell("without Services", Unit::Nanos, plain);
        }
    }
}

impl Roads {
    /// Creates the paths. Servers accept at every address and never close.
    pub fn make() -> Self {
        crate::network::prepare();
        let roads = Self { plain: Road::over_nothing(), here: Road::over_here() };
        for road in [&roads.plain, &roads.here] {
            let listener = inside(&road.server, || TcpListener::bind("0.0.0.0:8080").unwrap());
            thread::spawn(move || {
                let mut open = VecDeque::new();
                for stream in listener.incoming().flatten() {
                    open.push_back(stream);
                    // The client has no more open at once.
                    if open.len() > 2 * ESTABLISHED as usize {
                        open.pop_front();
                    }
                }
            });
        }
        roads
    }

    fn road(&self, question: Question) -> &Road {
        if question.here { &self.here } else { &self.plain }
    }

    /// Measures the loaded tables of a side.
    pub fn measure(&self, side: &str, services: u32) {
        let first = |question| self.first_packets(question, services);
        self.rounds(first).tell(side, services, "first packet");
        let known = |question| self.known_packets(question, services);
        self.rounds(known).tell(side, services, "packet of a connection");
        let connected = |question| self.connections(question, services);
        self.rounds(connected).tell(side, services, "to connect");
    }

    fn rounds(&self, measure: impl Fn(Question) -> f64) -> Costs {
        let mut rounds = [const { Vec::new() }; 6];
        for round in 0..=ROUNDS {
            for (question, costs) in QUESTIONS.into_iter().zip(&mut rounds) {
                self.road(question).forget();
                let cost = measure(question);
                // The first round is a warm-up.
                if round > 0 {
                    costs.push(cost);
                }
            }
        }
        Costs(rounds)
    }

    /// Cost of the first packet of a connection.
    fn first_packets(&self, question: Question, services: u32) -> f64 {
        let road = self.road(question);
        let cost = inside(&road.client, move || {
            keep_to(Pid::from_raw(0), Processors::First);
            let socket = raw_socket(libc::IPPROTO_RAW);
            let mut packet = syn();
            let started = thread_time();
            for n in 0..PACKETS {
                send(&socket, &mut packet, n, question.to(n, services));
            }
            (thread_time() - started).as_nanos() as f64 / f64::from(PACKETS)
        });
        let tracked = road.tracked();
        assert!(tracked >= PACKETS / 100 * 99, "{tracked} of {PACKETS} packets arrived");
        cost
    }

    /// Cost of a packet of an established connection.
    fn known_packets(&self, question: Question, services: u32) -> f64 {
        inside(&self.road(question).client, move || {
            keep_to(Pid::from_raw(0), Processors::First);
            let mut streams: Vec<TcpStream> =
                (0..ESTABLISHED).map(|n| connect(question.to(n, services))).collect();
            streams.iter().for_each(|stream| stream.set_nodelay(true).unwrap());
            let started = thread_time();
            for _ in 0..PACKETS_EACH {
                streams.iter_mut().for_each(|stream| stream.write_all(b"x").unwrap());
            }
            (thread_time() - started).as_nanos() as f64 / f64::from(ESTABLISHED * PACKETS_EACH)
        })
    }

    /// Cost of a connection, one after another.
    fn connections(&self, question: Question, services: u32) -> f64 {
        inside(&self.road(question).client, move || {
            let started = Instant::now();
            for n in 0..CONNECTIONS {
                drop(connect(question.to(n, services)));
            }
            started.elapsed().as_nanos() as f64 / f64::from(CONNECTIONS)
        })
    }
}

/// Whether a Service responds.
pub fn answers(roads: &Roads, service: u32) -> bool {
    let to = SocketAddr::from((Ipv4Addr::from(SERVICES + service), 80));
    inside(&roads.here.client, move || {
        TcpStream::connect_timeout(&to, Duration::from_millis(5)).is_ok()
    })
}

/// A connection that leaves no TIME_WAIT when it is dropped.
fn connect(to: SocketAddrV4) -> TcpStream {
    let stream = TcpStream::connect_timeout(&SocketAddr::V4(to), Duration::from_secs(5)).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(&stream, sockopt::Linger, &linger).unwrap();
    stream
}

/// A SYN packet without addresses.
fn syn() -> [u8; 40] {
    let mut packet = [0; 40];
    // IPv4 header of 20 bytes, TTL 64, TCP; TCP header of 20 bytes, SYN, a window.
    packet[0] = 0x45;
    packet[8] = 64;
    packet[9] = 6;
    packet[32] = 5 << 4;
    packet[33] = 2;
    packet[34] = 0xff;
    packet
}

/// Sends the first packet of the `n`th connection: each from another address and port.
fn send(socket: &UdpSocket, packet: &mut [u8; 40], n: u32, to: SocketAddrV4) {
    let [a, b, c, d] = mix(n).to_be_bytes();
    packet[12..16].copy_from_slice(&[10, 1, a, b]);
    packet[16..20].copy_from_slice(&to.ip().octets());
    packet[20..22].copy_from_slice(&[c | 4, d]);
    packet[22..24].copy_from_slice(&to.port().to_be_bytes());
    socket.send_to(packet, to).unwrap();
}

/// Pseudo-random numbers.
fn mix(n: u32) -> u32 {
    let n = (n ^ (n >> 16)).wrapping_mul(0x045d_9f3b);
    let n = (n ^ (n >> 16)).wrapping_mul(0x045d_9f3b);
    n ^ (n >> 16)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap())
}
