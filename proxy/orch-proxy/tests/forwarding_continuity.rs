//! Forwarding continues while the program is killed and restarted repeatedly and endpoints are replaced under load: no
//! connection fails.
//!
//! `ORCH_NO_GAP_SECS` sets the duration; by default a few endpoints are replaced.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/api.rs"]
mod api;
#[path = "support/net.rs"]
mod net;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use api::Api;
use net::{Net, inside};
use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::ct::{AddressFamily, FlowFilter, TupleFilter};
use proxy_netfilter::nft::Family;
use proxy_sync::table_swap;
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
/// Endpoints replaced by default.
const ROLLS: usize = 8;
/// Longer than a busy machine needs to respond.
const PATIENCE: Duration = Duration::from_secs(20);

/// Stages of an endpoint, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It does not exist: connections to it are refused.
    Gone,
    /// It serves and gets connections.
    Ready,
    /// It serves its existing connections.
    Terminating,
}

/// The endpoints, and the API with their EndpointSlice.
struct Backends {
    api: Api,
    stages: [Stage; PODS.len()],
}

impl Backends {
    fn set(&mut self, pod: usize, stage: Stage) {
        let reject = "table inet gone { chain c { type filter hook input priority 0; \
            meta l4proto { tcp, udp } reject\n}\n}";
        let namespace = format!("--net=/run/netns/pod{pod}");
        if self.stages[pod] == Stage::Gone && stage != Stage::Gone {
            run(&["nsenter", &namespace, "nft", "delete table inet gone"]);
        }
        self.stages[pod] = stage;
        self.api.put_slice(self.slice());
        if stage == Stage::Gone {
            // As with a sufficient grace period: it serves until nothing is sent to it any more.
            let address = PODS[pod][0].parse().unwrap();
            let gone =
                || endpoints().is_some_and(|all| !all.contains(&address)) && !is_used(address);
            wait_for("nobody is sent to the endpoint any more", gone);
            // Earlier connections are short, but not on a busy machine.
            thread::sleep(Duration::from_millis(50));
            let is_idle = || {
                let sockets = run(&["nsenter", &namespace, "ss", "-Htan"]);
                let has_ended =
                    |line: &str| ["LISTEN", "TIME-WAIT"].iter().any(|s| line.starts_with(s));
                sockets.lines().all(has_ended)
            };
            wait_for("connections to the endpoint end", is_idle);
            run(&["nsenter", &namespace, "nft", reject]);
        }
    }

    fn slice(&self) -> EndpointSlice {
        let mut slice = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
        slice.metadata.namespace = "ns".into();
        slice.metadata.name = "web-1".into();
        slice.metadata.labels.insert("kubernetes.io/service-name".into(), "web".into());
        let port = |name: &str, protocol: &str| EndpointPort {
            name: Some(name.into()),
            protocol: Some(protocol.into()),
            port: Some(TARGET.into()),
            ..EndpointPort::default()
        };
        slice.ports = vec![port("t", "TCP"), port("u", "UDP")];
        let there = self.stages.iter().zip(PODS).filter(|(stage, _)| **stage != Stage::Gone);
        slice.endpoints = there
            .map(|(stage, [address, _])| {
                let mut endpoint =
                    Endpoint { addresses: vec![address.into()], ..Endpoint::default() };
                endpoint.conditions.ready = Some(*stage == Stage::Ready);
                endpoint.conditions.serving = Some(true);
                endpoint.conditions.terminating = Some(*stage == Stage::Terminating);
                endpoint
            })
            .collect();
        slice
    }
}

fn service() -> Service {
    let mut service = Service::default();
    service.metadata.namespace = "ns".into();
    service.metadata.name = "web".into();
    service.spec.type_ = "ClusterIP".into();
    service.spec.cluster_ip = SERVICE.into();
    service.spec.cluster_ips = vec![SERVICE.into()];
    let port = |name: &str, protocol: &str| ServicePort {
        name: name.into(),
        protocol: protocol.into(),
        port: PORT.into(),
        ..ServicePort::default()
    };
    service.spec.ports = vec![port("t", "TCP"), port("u", "UDP")];
    service
}

/// Whether flows lead to an address: a client may reuse the port of an earlier flow.
fn is_used(address: IpAddr) -> bool {
    let reply = TupleFilter { src: Some(address), proto: Some(17), ..TupleFilter::default() };
    let filter = FlowFilter { reply, ..FlowFilter::default() };
    let mut used = false;
    let mut session = Session::new(Socket::open().unwrap());
    session.flows(AddressFamily::V4, &filter, |_| used = true).unwrap();
    used
}

/// Addresses of endpoints in the kernel's tables; `None` if they change while they are read.
fn endpoints() -> Option<Vec<IpAddr>> {
    let mut session = Session::new(Socket::open().unwrap());
    let table = table_swap::serving_table(&mut session, TABLE, &[Family::Ip]).ok()?;
    let table = session.read_table(Family::Ip, &table).ok()??;
    let elements = table.sets.get("endpoints").into_iter().flat_map(|set| set.elements.values());
    let address = |data: &proxy_netfilter::nft::Data| match data {
        proxy_netfilter::nft::Data::Value(value) => {
            value.bytes().first_chunk::<4>().map(|octets| IpAddr::from(*octets))
        }
        proxy_netfilter::nft::Data::Verdict(_) => None,
    };
    let all: Vec<_> = elements.filter_map(|e| address(e.data.as_ref()?)).collect();
    (!all.is_empty()).then_some(all)
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Starts and kills the program repeatedly until stopped; returns how often.
fn kill_in_a_loop(
    kubeconfig: String,
    steps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> thread::JoinHandle<u32> {
    let start = move || -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orch-proxy"));
        let command = command
            .args(["--naming=kubernetes", "--hostname-override=node", "--nft-table", TABLE])
            .args(["--conntrack-max-per-core=0", "--healthz-bind-address=127.0.0.1:0"])
            .args(["--metrics-bind-address=127.0.0.1:0", "--kubeconfig", &kubeconfig])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        sys::die_with_us(command).spawn().unwrap()
    };
    thread::spawn(move || {
        let mut kills = 0;
        while !stop.load(Ordering::Relaxed) {
            let before = steps.load(Ordering::Relaxed);
            let mut child = start();
            // Some are killed just after the start or while working; every third may finish a step first, so that
            // machines of any speed make progress.
            let went_on =
                || stop.load(Ordering::Relaxed) || steps.load(Ordering::Relaxed) != before;
            if kills % 3 == 2 {
                wait_for("a step is done", went_on);
            }
            thread::sleep(Duration::from_millis(u64::from(kills) * 37 % 200));
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        kills
    })
}

/// Calls that were answered and that failed, and the error of the first failure.
#[derive(Default)]
struct Calls {
    done: AtomicU64,
    failed: AtomicU64,
    failure: std::sync::Mutex<Option<String>>,
}

/// Calls the Service until stopped, each time with a new connection or flow.
fn load(call: fn() -> std::io::Result<()>, calls: Arc<Calls>, stop: Arc<AtomicBool>) {
    let work = move || {
        while !stop.load(Ordering::Relaxed) {
            match call() {
                Ok(()) => drop(calls.done.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    calls.failed.fetch_add(1, Ordering::Relaxed);
                    calls.failure.lock().unwrap().get_or_insert(format!("{error:?}"));
                }
            }
        }
    };
    inside("client", move || drop(thread::spawn(work)));
}

fn tcp() -> std::io::Result<()> {
    // Thousands per second are enough load; more would fill the conntrack table.
    thread::sleep(Duration::from_micros(200));
    let to = SocketAddr::new(SERVICE.parse().unwrap(), PORT);
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.is_empty() { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// Counts the source ports of queries.
static NEXT_PORT: AtomicU64 = AtomicU64::new(0);

fn udp() -> std::io::Result<()> {
    // The same for flows, whose conntrack entries live longer.
    thread::sleep(Duration::from_millis(1));
    // A port is not reused while its flow is in conntrack: a flow in use may lose one packet when its endpoint is
    // removed, and reusing its port would make a new query part of it. `ORCH_NO_GAP_ANY_PORT` allows that.
    let next = 10_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 50_000;
    let any = std::env::var_os("ORCH_NO_GAP_ANY_PORT").is_some();
    let socket = UdpSocket::bind(("0.0.0.0", if any { 0 } else { next as u16 }))?;
    socket.connect((SERVICE, PORT))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.send(b"?")?;
    socket.recv(&mut [0; 128]).map(drop)
}

fn roll_under_fire() {
    let places = PODS.map(|addresses| addresses);
    let named: Vec<(&str, [&str; 2])> =
        ["pod0", "pod1", "pod2", "pod3"].into_iter().zip(places).collect();
    let net = Net::make(&NODE, &[&[("client", CLIENT)][..], &named].concat());
    named.iter().for_each(|(pod, _)| net.serve(pod, TARGET));
    // Entries of closed connections expire soon: a long run would fill the conntrack table.
    for (setting, secs) in [("tcp_timeout_time_wait", "5"), ("udp_timeout", "10")] {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{setting}");
        std::fs::write(path, secs).unwrap();
    }
    let api = Api::new(Names::new(Profile::Kubernetes));
    let address = api.serve();
    let path = std::env::temp_dir().join(format!("orch-no-gap-{}", std::process::id()));
    std::fs::write(&path, api::kubeconfig(address)).unwrap();
    api.put_service(service());
    let mut backends = Backends { api, stages: [Stage::Ready; PODS.len()] };
    backends.api.put_slice(backends.slice());

    let (stop_kills, stop_load) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let steps = Arc::new(AtomicU64::new(0));
    let kubeconfig = path.display().to_string();
    let killer = kill_in_a_loop(kubeconfig, steps.clone(), stop_kills.clone());
    let complete = || endpoints().is_some_and(|all| all.len() == 2 * PODS.len());
    wait_for("all endpoints are in the kernel", complete);
    steps.fetch_add(1, Ordering::Relaxed);
    let calls = [Arc::new(Calls::default()), Arc::new(Calls::default())];
    for (call, calls) in [(tcp as fn() -> _, &calls[0]), (udp, &calls[1])] {
        load(call, calls.clone(), stop_load.clone());
        load(call, calls.clone(), stop_load.clone());
    }
    let secs = std::env::var("ORCH_NO_GAP_SECS").ok().and_then(|secs| secs.parse().ok());
    let (started, long) = (Instant::now(), secs.map(Duration::from_secs));
    let mut rolls = 0;
    while rolls < ROLLS || long.is_some_and(|long| started.elapsed() < long) {
        let roll = rolls;
        rolls += 1;
        let pod = roll % PODS.len();
        let before = calls.each_ref().map(|calls| calls.done.load(Ordering::Relaxed));
        for stage in [Stage::Terminating, Stage::Gone, Stage::Ready] {
            backends.set(pod, stage);
            steps.fetch_add(1, Ordering::Relaxed);
        }
        wait_for("calls go on", || {
            let now = calls.each_ref().map(|calls| calls.done.load(Ordering::Relaxed));
            now.iter().zip(before).all(|(now, before)| *now > before + 20)
        });
    }
    stop_load.store(true, Ordering::Relaxed);
    stop_kills.store(true, Ordering::Relaxed);
    let kills = killer.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    let done = calls.each_ref().map(|calls| calls.done.load(Ordering::Relaxed));
    let took = started.elapsed();
    println!(
        "{} TCP connections, {} UDP flows, {rolls} back-ends replaced, {kills} kills in {took:.1?}",
        done[0], done[1]
    );
    for (protocol, calls) in ["TCP", "UDP"].into_iter().zip(&calls) {
        let failed = calls.failed.load(Ordering::Relaxed);
        let failure = calls.failure.lock().unwrap().take().map(|error| (failed, error));
        // The kernel's counters distinguish a full conntrack table from a gap.
        let counts = failure.as_ref().map(|_| run(&["conntrack", "-S"])).unwrap_or_default();
        assert_eq!(failure, None, "a call by {protocol} failed\n{counts}");
    }
    assert!(kills > 1);
}

#[test]
fn backends_roll_and_the_program_is_killed_and_no_connection_fails() {
    in_namespace(
        "backends_roll_and_the_program_is_killed_and_no_connection_fails",
        roll_under_fire,
    );
}
