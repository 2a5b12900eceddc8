//! The program with an API server, from bytes on the watch's socket to the kernel's commit.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::{Pid, gettid};
use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proxy_kernel::{Session, Socket};
use proxy_netfilter::nft::Family;

use crate::api::{self, Api};
use crate::dataplane_sizes::{SERVICES, scatter};
use crate::figures::{Figure, Group, Unit};
use crate::network::{Processors, keep_to};
use crate::program::{HEALTH_ADDRESS, PATIENCE, Program, memory_mb, quiet};

/// Changes that are timed.
const ROUNDS: u32 = 2000;
/// What the minimum for a change is measured by as well.
const COMMITTED: &str = "watch's socket -> committed";

/// Measures each size, the one with a memory budget, and the largest with DNS.
pub fn measure_all(sizes: &[u32]) {
    let Some(program) = Program::ours() else {
        eprintln!("orch-proxy is not beside this program's directory: cargo build --release");
        return;
    };
    figure(COMMITTED, Unit::Micros, floor())
        .side("a socket and an empty transaction")
        .tell()
        .unwrap();
    sizes.iter().for_each(|services| measure(&program, *services, 3, false));
    measure(&program, 30_000, 4, false);
    let named = program.with(&["--dns", "--dns-bind-address=127.0.0.1"]);
    measure(&named, 30_000, 4, true);
    if let Some(largest) = sizes.iter().max() {
        measure(&named, *largest, 3, true);
    }
}

/// The minimum for a change on this machine: a thread reads from a socket and commits
/// one transaction.
fn floor() -> Vec<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut reader, _) = listener.accept().unwrap();
    writer.set_nodelay(true).unwrap();
    let waiter = std::thread::spawn(move || {
        keep_to(Pid::from_raw(0), Processors::Others);
        let mut session = Session::new(Socket::open().unwrap());
        let mut byte = [0; 1];
        while reader.read_exact(&mut byte).is_ok() {
            let mut batch = session.batch(None);
            proxy_rules::transaction::clear_table("floor", Family::Ip, &mut batch);
            session.commit(batch).unwrap();
        }
    });
    let mut session = Session::new(Socket::open().unwrap());
    keep_to(gettid(), Processors::First);
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let generation = session.generation().unwrap();
        let started = Instant::now();
        writer.write_all(b"x").unwrap();
        while session.generation().unwrap() == generation {}
        times.push(started.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    keep_to(gettid(), Processors::All);
    drop(writer);
    waiter.join().unwrap();
    times
}

fn figure(what: &str, unit: Unit, times: Vec<Duration>) -> Figure {
    Figure::of_times(Group::Proxy, what, unit, times)
}

fn measure(program: &Program, services: u32, endpoints: u32, naming: bool) {
    let names = Names::new(Profile::Kubernetes);
    let api = Api::new(names);
    for n in 0..services {
        api.put_service(service(n));
        api.put_slice(slice(n, 0, endpoints));
    }
    let path = std::env::temp_dir().join(format!("orch-proxy-bench-{}", std::process::id()));
    std::fs::write(&path, api::kubeconfig(api.serve())).unwrap();
    let mut session = Session::new(Socket::open().unwrap());
    let before = session.generation().unwrap();
    let started = Instant::now();
    let child = program.start(&path);
    // The second one shows how long this machine lets any thread wait.
    let (health, echo) =
        (Probe::start(HEALTH_ADDRESS.parse().unwrap()), Probe::start(serve_echo()));
    // Probing the kernel takes a few transactions as well: the load is over when the ruleset is stable.
    let loaded = wait_loaded(&mut session, before, started);
    let (health, echo) = (health.end(), echo.end());
    // The measuring thread and the measured process have separate processors.
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    let threads: Vec<i32> = threads.filter(|thread| *thread != gettid().as_raw()).collect();
    let process = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let others = |processors| {
        threads.iter().for_each(|thread| keep_to(Pid::from_raw(*thread), processors));
        keep_to(process, processors);
    };
    others(Processors::Others);
    keep_to(gettid(), Processors::First);
    let times = changes(&api, &mut session, services, endpoints);
    others(Processors::All);
    keep_to(gettid(), Processors::All);
    let burst = burst(&api, &mut session, services, endpoints);
    let memory = memory_mb(child.id());
    let with = [(endpoints != 3, ", four endpoints"), (naming, ", with --dns")];
    let with: String = with.iter().filter(|(is_so, _)| *is_so).map(|(_, with)| *with).collect();
    let tell = |what: &str, unit, times, side: Option<&str>| {
        let figure = figure(&format!("{what}{with}"), unit, times).at(services, SERVICES);
        side.map_or(figure.clone(), |side| figure.side(side)).tell().unwrap();
    };
    tell("program started -> loaded", Unit::Millis, vec![loaded], None);
    tell("/healthz during the load", Unit::Millis, health, None);
    tell("/healthz during the load", Unit::Millis, echo, Some("a thread that echoes"));
    tell(COMMITTED, Unit::Micros, times, None);
    tell("10,000 changed at once", Unit::Millis, vec![burst], None);
    for (what, value) in [("PSS", memory.pss), ("private dirty memory", memory.private_dirty)] {
        let figure = Figure::new(Group::Proxy, format!("{what}{with}"), Unit::Megabytes, value);
        figure.at(services, SERVICES).tell().unwrap();
    }
    program.end(child, &path);
    std::fs::remove_file(&path).unwrap();
}

/// Requests a page continually.
struct Probe {
    ended: Arc<AtomicBool>,
    times: std::thread::JoinHandle<Vec<Duration>>,
}

impl Probe {
    fn start(at: SocketAddr) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = ended.clone();
        let times = std::thread::spawn(move || {
            let mut times = Vec::new();
            let Some(mut stream) = connect(at, &end) else { return times };
            let mut response = [0; 4096];
            while !end.load(Ordering::Relaxed) {
                let started = Instant::now();
                stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
                // Small enough to arrive as a whole.
                assert!(stream.read(&mut response).unwrap() > 0, "the page is gone");
                times.push(started.elapsed());
                std::thread::sleep(Duration::from_micros(200));
            }
            times
        });
        Self { ended, times }
    }

    /// How long each request took.
    fn end(self) -> Vec<Duration> {
        self.ended.store(true, Ordering::Relaxed);
        self.times.join().unwrap()
    }
}

/// Connects as soon as something listens.
fn connect(at: SocketAddr, end: &AtomicBool) -> Option<TcpStream> {
    while !end.load(Ordering::Relaxed) {
        if let Ok(stream) = TcpStream::connect(at) {
            stream.set_nodelay(true).unwrap();
            return Some(stream);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    None
}

/// Echoes what one client sends, on a thread that does nothing else.
fn serve_echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 4096];
        while let Ok(len) = stream.read(&mut bytes) {
            if len == 0 || stream.write_all(bytes.get(..len).unwrap_or_default()).is_err() {
                return;
            }
        }
    });
    at
}

/// Replaces single endpoints.
fn changes(
    api: &Api,
    session: &mut Session<Socket>,
    services: u32,
    endpoints: u32,
) -> Vec<Duration> {
    let mut times = Vec::new();
    // The current variant of each Service: the next one always differs, also for a Service that is chosen twice.
    let mut variants = vec![0; services as usize];
    for round in 0..ROUNDS {
        let n = scatter(round, services);
        let variant = &mut variants[n as usize];
        *variant = *variant % 7 + 1;
        let generation = session.generation().unwrap();
        api.put_slice(slice(n, *variant, endpoints));
        let begun = Instant::now();
        while session.generation().unwrap() == generation {
            assert!(begun.elapsed() < PATIENCE, "a change is lost");
        }
        times.push(api.since_written());
        std::thread::sleep(Duration::from_millis(1));
    }
    times
}

/// Changes ten thousand Services, or all, at once; waits until the ruleset is stable.
fn burst(api: &Api, session: &mut Session<Socket>, services: u32, endpoints: u32) -> Duration {
    let started = Instant::now();
    for n in 0..services.min(10_000) {
        api.put_slice(slice(n, 9, endpoints));
    }
    quiet(session, Duration::from_millis(300)).duration_since(started)
}

fn wait_loaded(session: &mut Session<Socket>, before: u32, started: Instant) -> Duration {
    loop {
        let read = session.read_shape(Family::Ip, "orch-proxy");
        if read.is_ok_and(|shape| shape.is_some()) && session.generation().unwrap() != before {
            return quiet(session, Duration::from_millis(500)).duration_since(started);
        }
        assert!(started.elapsed() < Duration::from_secs(120), "never loaded");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A Service with a cluster IP.
pub fn service(n: u32) -> Service {
    let mut service = Service::default();
    service.metadata.namespace = "default".into();
    service.metadata.name = format!("service-{n}");
    service.spec.type_ = "ClusterIP".into();
    service.spec.cluster_ip = std::net::Ipv4Addr::from(0x0a60_0000 + n).to_string();
    service.spec.cluster_ips = vec![service.spec.cluster_ip.clone()];
    service.spec.ports =
        vec![ServicePort { protocol: "TCP".into(), port: 80, ..ServicePort::default() }];
    service
}

/// Endpoints of a Service; in another `variant` the first one differs.
pub fn slice(n: u32, variant: u32, endpoints: u32) -> EndpointSlice {
    let mut slice = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
    slice.metadata.namespace = "default".into();
    slice.metadata.name = format!("service-{n}-abcde");
    let label = "kubernetes.io/service-name".to_owned();
    slice.metadata.labels.insert(label, format!("service-{n}"));
    // As the EndpointSlice controller labels it; only endpoints of headless Services have DNS names.
    let label = "endpointslice.kubernetes.io/managed-by".to_owned();
    slice.metadata.labels.insert(label, "endpointslice-controller.k8s.io".to_owned());
    slice.ports = vec![EndpointPort {
        name: Some(String::new()),
        protocol: Some("TCP".into()),
        port: Some(8080),
        ..EndpointPort::default()
    }];
    let endpoint = |k: u32| {
        let last = if k == 0 { 4 + variant } else { k };
        let address = std::net::Ipv4Addr::from(0x0b00_0000 + n * 16 + last).to_string();
        let mut endpoint = Endpoint { addresses: vec![address], ..Endpoint::default() };
        endpoint.conditions.ready = Some(true);
        endpoint.node_name = Some("elsewhere".into());
        endpoint
    };
    slice.endpoints = (0..endpoints).map(endpoint).collect();
    slice
}
