//! From the node-local model to the kernel, for each size: a load, then the kernel's part and the total of replacing an endpoint, of adding or removing an
//! endpoint, of adding or removing a Service, of bulk changes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proxy_kernel::{Session, Socket};
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::layout::{FAMILIES, Layout};
use proxy_rules::model::{
    EndpointState, LocalEndpoint, LocalPort, LocalService, LocalSlice, Locality, Protocol,
    ServiceId, Settings, SlicePort,
};
use proxy_rules::{Dataplane, Pass};

use crate::figures::{Figure, Group, OURS, Unit};
use crate::memory;
use crate::packets::Roads;

/// Endpoints per Service.
const ENDPOINTS: u32 = 3;
/// Repetitions of each small change.
const ROUNDS: u32 = 2000;

/// What is varied.
pub const SERVICES: &str = "Services";
/// What other layouts are measured by as well.
pub const LOAD: &str = "load from nothing";
pub const LOAD_IN_KERNEL: &str = "load from nothing, in the kernel";
pub const REPLACE: &str = "one endpoint replaced";
pub const REPLACE_IN_KERNEL: &str = "one endpoint replaced, in the kernel";

/// Kernel memory is stable after this time.
const SETTLED: Duration = Duration::from_millis(300);

/// Measures each size; with `roads`, the cost of packets too.
pub fn measure_all(sizes: &[u32], roads: Option<&Roads>) {
    let group = memory::Group::enter();
    sizes.iter().for_each(|services| measure(*services, group.as_ref()));
    drop(group);
    let Some(roads) = roads else { return };
    crate::peers::with_one_rule(|| roads.measure("one rule without lookup", 1));
    for services in sizes {
        let bench = Bench::loaded(*services).0;
        roads.measure(OURS, *services);
        bench.clear();
    }
}

/// A figure of durations with this many Services.
pub fn figure(what: &str, unit: Unit, services: u32, times: Vec<Duration>) -> Figure {
    Figure::of_times(Group::Plane, what, unit, times).at(services, SERVICES)
}

/// A node with its tables.
struct Bench {
    plane: Dataplane,
    session: Session<Socket>,
}

/// Duration of one change: in the kernel, and in total.
struct Took {
    kernel: Duration,
    whole: Duration,
}

impl Bench {
    /// A node with this many Services in the kernel; durations of compiling and encoding, and of the commit.
    fn loaded(services: u32) -> (Self, Duration, Duration) {
        let layout = Layout {
            table: "bench".into(),
            flags: TableFlags::NONE,
            families: FAMILIES.into(),
            settings: Settings::default(),
        };
        let mut plane = Dataplane::new(layout);
        for n in 0..services {
            plane.service_changed(&id(n), Some(Arc::new(service(n))));
            plane.slice_changed(&slice_name(n), None, Some(slice(n, 0, ENDPOINTS)));
        }
        let mut session = Session::new(Socket::open().unwrap());
        let started = Instant::now();
        let load = plane.load();
        let mut batch = session.batch(None);
        load.encode(plane.layout(), &mut batch);
        let compiled = started.elapsed();
        let started = Instant::now();
        session.commit(batch).unwrap();
        (Self { plane, session }, compiled, started.elapsed())
    }

    /// Deletes the tables.
    fn clear(mut self) {
        let mut batch = self.session.batch(None);
        for family in FAMILIES {
            proxy_rules::transaction::clear(self.plane.layout(), family, &mut batch);
        }
        self.session.commit(batch).unwrap();
    }

    /// Commits the marked changes.
    fn pass(&mut self) -> Took {
        let started = Instant::now();
        let Pass::Change(transaction) = self.plane.pass() else {
            eprintln!("a reload in the middle of a measurement");
            return Took { kernel: Duration::ZERO, whole: Duration::ZERO };
        };
        let mut batch = self.session.batch(None);
        transaction.encode(self.plane.layout(), &mut batch);
        let sent = Instant::now();
        self.session.commit(batch).unwrap();
        Took { kernel: sent.elapsed(), whole: started.elapsed() }
    }

    fn endpoints_changed(&mut self, n: u32, old: &Arc<LocalSlice>, new: &Arc<LocalSlice>) {
        self.plane.slice_changed(&slice_name(n), Some(old), Some(new.clone()));
    }
}

/// Kernel memory of this program, once it is stable.
fn kernel_bytes(group: Option<&memory::Group>) -> Option<u64> {
    std::thread::sleep(SETTLED);
    group?.kernel_bytes()
}

fn measure(services: u32, group: Option<&memory::Group>) {
    let before = kernel_bytes(group);
    let (mut bench, compiled, committed) = Bench::loaded(services);
    let held = kernel_bytes(group).zip(before).map(|(after, before)| after.saturating_sub(before));
    proto_daemon::heap::trim();
    let pss = crate::program::memory_mb(std::process::id()).pss;
    for (what, took) in [(LOAD, compiled + committed), (LOAD_IN_KERNEL, committed)] {
        figure(what, Unit::Millis, services, vec![took]).tell().unwrap();
    }
    let (kernel, whole) = replace(&mut bench, services);
    for (what, times) in [
        (REPLACE, whole),
        (REPLACE_IN_KERNEL, kernel),
        ("one endpoint added or removed, in the kernel", grow(&mut bench, services)),
        ("one Service added or removed, in the kernel", come(&mut bench, services)),
    ] {
        figure(what, Unit::Micros, services, times).tell().unwrap();
    }
    let number = |what: &str, unit, value| {
        Figure::new(Group::Plane, what, unit, value).at(services, SERVICES).tell().unwrap();
    };
    number("endpoints replaced in bulk", Unit::PerSecond, bulk(&mut bench, services));
    number("model in memory: PSS", Unit::Megabytes, pss);
    if let Some(bytes) = held {
        let each = bytes as f64 / f64::from(services * (1 + ENDPOINTS));
        number("kernel memory for a Service or endpoint", Unit::Bytes, each);
    }
    bench.clear();
}

/// Replaces one endpoint of a Service.
fn replace(bench: &mut Bench, services: u32) -> (Vec<Duration>, Vec<Duration>) {
    let (mut kernel, mut whole) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let n = scatter(round, services);
        let (old, new) = (slice(n, 0, ENDPOINTS), slice(n, 1, ENDPOINTS));
        for (old, new) in [(&old, &new), (&new, &old)] {
            bench.endpoints_changed(n, old, new);
            let took = bench.pass();
            kernel.push(took.kernel);
            whole.push(took.whole);
        }
    }
    (kernel, whole)
}

/// Adds and removes an endpoint of a Service.
fn grow(bench: &mut Bench, services: u32) -> Vec<Duration> {
    let mut kernel = Vec::new();
    for round in 0..ROUNDS {
        let n = scatter(round, services);
        let (old, new) = (slice(n, 0, ENDPOINTS), slice(n, 0, ENDPOINTS + 1));
        for (old, new) in [(&old, &new), (&new, &old)] {
            bench.endpoints_changed(n, old, new);
            kernel.push(bench.pass().kernel);
        }
    }
    kernel
}

/// Adds and removes a Service.
fn come(bench: &mut Bench, services: u32) -> Vec<Duration> {
    let mut kernel = Vec::new();
    for _ in 0..ROUNDS {
        let slice = slice(services, 0, ENDPOINTS);
        bench.plane.service_changed(&id(services), Some(Arc::new(service(services))));
        bench.plane.slice_changed(&slice_name(services), None, Some(slice.clone()));
        kernel.push(bench.pass().kernel);
        bench.plane.service_changed(&id(services), None);
        bench.plane.slice_changed(&slice_name(services), Some(&slice), None);
        kernel.push(bench.pass().kernel);
    }
    kernel
}

/// Endpoints replaced per second, a thousand Services per pass.
fn bulk(bench: &mut Bench, services: u32) -> f64 {
    let changes = services.min(1000);
    let (mut busy, mut replaced) = (Duration::ZERO, 0);
    for round in 0..20 {
        for n in 0..changes {
            let (old, new) = (slice(n, round % 2, ENDPOINTS), slice(n, (round + 1) % 2, ENDPOINTS));
            bench.endpoints_changed(n, &old, &new);
        }
        busy += bench.pass().whole;
        replaced += changes;
    }
    f64::from(replaced) / busy.as_secs_f64()
}

fn id(n: u32) -> ServiceId {
    ServiceId::new("default", &format!("service-{n}"))
}

fn slice_name(n: u32) -> String {
    format!("service-{n}-abcde")
}

fn service(n: u32) -> LocalService {
    let port = LocalPort { name: "".into(), protocol: Protocol::Tcp, port: 80, node_port: None };
    LocalService {
        cluster_ips: [IpAddr::from((0x0a60_0000 + n).to_be_bytes())].into(),
        ports: [port].into(),
        ..LocalService::default()
    }
}

/// Endpoints of a Service; in another `variant` the first one differs.
fn slice(n: u32, variant: u32, endpoints: u32) -> Arc<LocalSlice> {
    let endpoint = |k: u32| {
        let last = if k == 0 { variant * 7 } else { k };
        let address = IpAddr::from((0x0b00_0000 + n * 8 + last).to_be_bytes());
        LocalEndpoint { address, state: EndpointState::Ready, place: Locality::Elsewhere }
    };
    Arc::new(LocalSlice {
        service: id(n),
        ports: [SlicePort { name: "".into(), protocol: Protocol::Tcp, port: 8080 }].into(),
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..LocalSlice::default()
    })
}

/// Scatters rounds over all Services.
pub fn scatter(round: u32, services: u32) -> u32 {
    round.wrapping_mul(2_654_435_761) % services
}
