//! The real program, from bytes on the watch's socket to the kernel's commit.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proxy_kernel::{Session, Socket};

use crate::api::{self, Api};
use crate::plane::{quantiles, scatter};

/// Changes that are timed.
const ROUNDS: u32 = 2000;
/// A change that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures each size, and the one whose memory has a budget.
pub fn measure_all(sizes: &[u32]) {
    let program = program();
    if !program.exists() {
        println!("{} is not there: build it by cargo build --release", program.display());
        return;
    }
    println!("the program at an API server over plain HTTP, Protobuf");
    println!(
        "{:>9} {:>4} {:>22} {:>24} {:>20} {:>9}",
        "services",
        "eps",
        "start to loaded",
        "socket to commit p50/99",
        "10,000 at once",
        "RSS MiB"
    );
    sizes.iter().for_each(|services| measure(&program, *services, 3));
    measure(&program, 30_000, 4);
}

fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("orch-proxy")
}

fn measure(program: &Path, services: u32, endpoints: u32) {
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
    let mut child = start(program, &path);
    // Asking what the kernel can do are a few transactions as well: loaded is what is quiet and large.
    let loaded = wait_loaded(&mut session, before, started);
    let mut times = Vec::new();
    // The one that each service has: the next is always another, also for a service that comes twice.
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
    let burst = burst(&api, &mut session, services, endpoints);
    let rss = rss_mib(child.id());
    let quantiles = quantiles(times);
    println!(
        "{services:>9} {endpoints:>4} {:>19.0} ms {quantiles:>24} {:>17.0} ms {rss:>9.1}",
        loaded.as_secs_f64() * 1e3,
        burst.as_secs_f64() * 1e3,
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let cleaned = command(program, &path).arg("cleanup").status().unwrap();
    assert!(cleaned.success(), "clean up");
    std::fs::remove_file(&path).unwrap();
}

/// Ten thousand services, or all, change at once: until nothing changes any more.
fn burst(api: &Api, session: &mut Session<Socket>, services: u32, endpoints: u32) -> Duration {
    let started = Instant::now();
    for n in 0..services.min(10_000) {
        api.put_slice(slice(n, 9, endpoints));
    }
    quiet(session, Duration::from_millis(300)).duration_since(started)
}

/// When the ruleset last changed, once it has not for so long.
fn quiet(session: &mut Session<Socket>, long: Duration) -> Instant {
    let (mut generation, mut since) = (session.generation().unwrap(), Instant::now());
    while since.elapsed() < long {
        std::thread::sleep(Duration::from_millis(1));
        let now = session.generation().unwrap();
        if now != generation {
            (generation, since) = (now, Instant::now());
        }
    }
    since
}

fn wait_loaded(session: &mut Session<Socket>, before: u32, started: Instant) -> Duration {
    loop {
        let read = session.read_shape(proxy_netfilter::nft::Family::Ip, "orch-proxy");
        if read.is_ok_and(|shape| shape.is_some()) && session.generation().unwrap() != before {
            return quiet(session, Duration::from_millis(500)).duration_since(started);
        }
        assert!(started.elapsed() < Duration::from_secs(120), "never loaded");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn command(program: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--naming=kubernetes", "--hostname-override=node", "--nft-table=orch-proxy"])
        .args(["--conntrack-max-per-core=0", "--metrics-bind-address=127.0.0.1:0"])
        .args(["--healthz-bind-address=127.0.0.1:0", "--kubeconfig"])
        .arg(kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn start(program: &Path, kubeconfig: &Path) -> Child {
    command(program, kubeconfig).spawn().unwrap()
}

fn service(n: u32) -> Service {
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

/// Endpoints of a service; in another `variant` the first is another one.
fn slice(n: u32, variant: u32, endpoints: u32) -> EndpointSlice {
    let mut slice = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
    slice.metadata.namespace = "default".into();
    slice.metadata.name = format!("service-{n}-abcde");
    let label = "kubernetes.io/service-name".to_owned();
    slice.metadata.labels.insert(label, format!("service-{n}"));
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

fn rss_mib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages: f64 = status.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or_default();
    pages * 4096.0 / f64::from(1 << 20)
}
