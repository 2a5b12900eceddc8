//! orch-proxy and kube-proxy compared, if kube-proxy's path is given: the same Services on the same API server, the
//! same measurements.

use std::path::Path;
use std::time::{Duration, Instant};

use proto_api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use proto_api::names::{Names, Profile};
use proxy_kernel::{Session, Socket};

use crate::api::{self, Api};
use crate::packets::{self, Roads};
use crate::plane::{quantiles, scatter};
use crate::program::{PATIENCE, Program, last_change, memory_mib, processor_time, quiet};
use crate::watch;

/// Services of three endpoints each.
const SERVICES: u32 = 1000;
const ENDPOINTS: u32 = 3;
/// Changes that are timed, with pauses: kube-proxy batches changes for a second.
const ROUNDS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1500);
/// A sync is complete when the tables have not changed for this time.
const SETTLED: Duration = Duration::from_secs(3);

/// Measures both.
pub fn measure(peer: &Path, flags: &[String], roads: &Roads) {
    println!("{SERVICES} services of {ENDPOINTS}: ours and {}", peer.display());
    println!(
        "{:<22} {:>16} {:>30} {:>18} {:>9}",
        "program", "start to loaded", "written to committed p50/p99", "CPU of a change", "PSS MiB"
    );
    if let Some(ours) = Program::ours() {
        measure_program("orch-proxy", &ours, roads);
    }
    let theirs = Program::theirs(peer.to_owned(), flags);
    measure_program("the peer", &theirs, roads);
}

fn measure_program(name: &str, program: &Program, roads: &Roads) {
    let names = Names::new(Profile::Kubernetes);
    let api = Api::new(names);
    for n in 0..SERVICES {
        api.put_service(watch::service(n));
        put(&api, n, 0);
    }
    let path = std::env::temp_dir().join(format!("proxy-bench-{}", std::process::id()));
    std::fs::write(&path, api::kubeconfig(api.serve())).unwrap();
    let mut session = Session::new(Socket::open().unwrap());
    let started = Instant::now();
    let child = program.start(&path);
    while !packets::answers(roads, SERVICES - 1) {
        assert!(started.elapsed() < PATIENCE, "{} never loaded", program.path().display());
        std::thread::sleep(Duration::from_millis(2));
    }
    let answered = started.elapsed();
    quiet(&mut session, SETTLED);
    let before = processor_time(child.id());
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let generation = session.generation().unwrap();
        let begun = Instant::now();
        put(&api, scatter(round, SERVICES), round + 1);
        while session.generation().unwrap() == generation {
            assert!(begun.elapsed() < PATIENCE, "a change is lost");
        }
        let first = Instant::now();
        // A change may be several transactions: the last one counts.
        let last = last_change(&mut session, Duration::from_millis(500)).unwrap_or(first);
        times.push(last.duration_since(begun));
        std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
    }
    let busy = processor_time(child.id()).saturating_sub(before) / ROUNDS;
    println!(
        "{name:<22} {:>13.0} ms {:>30} {:>15.1} ms {:>9.1}",
        answered.as_secs_f64() * 1e3,
        quantiles(times),
        busy.as_secs_f64() * 1e3,
        memory_mib(child.id()).pss,
    );
    packets::head();
    roads.measure(name, SERVICES);
    program.end(child, &path);
    std::fs::remove_file(&path).unwrap();
}

/// Endpoints of a Service, as EndpointSlice and Endpoints.
fn put(api: &Api, n: u32, variant: u32) {
    let slice = watch::slice(n, variant, ENDPOINTS);
    let mut endpoints = Endpoints::default();
    endpoints.metadata.namespace = slice.metadata.namespace.clone();
    endpoints.metadata.name = format!("service-{n}");
    let address = |ip: &String| EndpointAddress { ip: ip.clone(), ..EndpointAddress::default() };
    let addresses = slice.endpoints.iter().flat_map(|e| &e.addresses).map(address).collect();
    let port = EndpointPort { port: 8080, protocol: "TCP".into(), ..EndpointPort::default() };
    endpoints.subsets =
        vec![EndpointSubset { addresses, ports: vec![port], ..EndpointSubset::default() }];
    api.put_endpoints(endpoints);
    api.put_slice(slice);
}
