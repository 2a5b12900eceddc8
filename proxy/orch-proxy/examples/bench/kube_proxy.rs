//! orch-proxy and, if its path is given, kube-proxy: the same Services on the same API server, the same measurements.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use proto_api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints};
use proto_api::names::{Names, Profile};
use proxy_kernel::{Session, Socket};

use crate::api::{self, Api};
use crate::dataplane_sizes::{self, scatter};
use crate::figures::{self, Figure, Group, KUBE_PROXY, OURS, Unit};
use crate::packets::{self, Roads};
use crate::program::{PATIENCE, Program, last_change, memory_mb, processor_time, quiet};
use crate::watch;

/// Services of three endpoints each.
pub const SERVICES: u32 = 1000;
const ENDPOINTS: u32 = 3;
/// Changes that are timed, with pauses: kube-proxy batches changes for a second.
const ROUNDS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1500);
/// A sync is complete when the tables have not changed for this time.
const SETTLED: Duration = Duration::from_secs(3);

/// Measures both, or ours alone.
pub fn measure(peer: Option<&Path>, flags: &[String], roads: &Roads) {
    if let Some(ours) = Program::ours() {
        measure_program(OURS, &ours, roads);
    }
    if let Some(peer) = peer {
        let version = Command::new(peer).arg("--version").output().unwrap().stdout;
        figures::tell_version(KUBE_PROXY, &String::from_utf8_lossy(&version)).unwrap();
        measure_program(KUBE_PROXY, &Program::theirs(peer.to_owned(), flags), roads);
    }
}

fn measure_program(side: &str, program: &Program, roads: &Roads) {
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
    let figure = |what: &str, unit, times| {
        let figure = Figure::of_times(Group::Proxy, what, unit, times);
        figure.at(SERVICES, dataplane_sizes::SERVICES).side(side).beside(KUBE_PROXY)
    };
    for (what, times) in [
        ("program started -> a Service answers", vec![answered]),
        ("endpoint written -> last transaction", times),
        ("CPU time of a change", vec![busy]),
    ] {
        figure(what, Unit::Millis, times).tell().unwrap();
    }
    let mut pss = figure("PSS after changes", Unit::Megabytes, Vec::new());
    pss.median = memory_mb(child.id()).pss;
    pss.tell().unwrap();
    // Ours have been measured with the tables alone.
    if side != OURS {
        roads.measure(side, SERVICES);
    }
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
