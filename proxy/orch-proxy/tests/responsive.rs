//! The main thread responds while the kernel holds up a commit: health and metrics pages, watches, shutdown.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may end anywhere")]

#[path = "support/api.rs"]
mod api;
#[path = "../../kernel/tests/support/sys.rs"]
mod sys;

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use api::Api;
use clap::Parser as _;
use orch_proxy::flags::Flags;
use orch_proxy::forwarding_path::NetfilterHandle;
use orch_proxy::{app, config};
use proto_api::core::v1::{Service, ServicePort};
use proto_api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use proto_api::names::{Names, Profile};
use proto_daemon::drain::{Drain, DrainOutcome};
use proxy_kernel::{FakeTransport, KernelFeatures, Session, Transport};
use proxy_netfilter::nft::numbers::TableFlags;
use proxy_rules::layout::FAMILIES;
use sys::in_namespace;

/// Timeout of a page, and of a change to become visible.
const PATIENCE: Duration = Duration::from_secs(60);

/// Type of the message that begins a transaction, NFNL_MSG_BATCH_BEGIN (linux/netfilter/nfnetlink.h).
const BATCH_BEGIN: [u8; 2] = 16_u16.to_ne_bytes();

/// Holds up transactions to the kernel while it is closed.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: bool,
    /// Transactions that went through.
    sent: Vec<Vec<u8>>,
}

impl Gate {
    fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().closed = closed;
        self.changed.notify_all();
    }

    fn pass(&self, transaction: &[u8]) {
        let mut state = self.state.lock().unwrap();
        while state.closed {
            state.waiting = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        state.waiting = false;
        state.sent.push(transaction.to_owned());
    }

    /// Whether a transaction with these bytes went through.
    fn has_sent(&self, bytes: &[u8]) -> bool {
        let state = self.state.lock().unwrap();
        state.sent.iter().any(|sent| sent.windows(bytes.len()).any(|part| part == bytes))
    }

    /// Returns once a transaction is held up.
    fn wait_until_used(&self) {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut GateState| !state.waiting;
        let (state, _) = self.changed.wait_timeout_while(state, PATIENCE, waits).unwrap();
        assert!(state.waiting, "nothing was sent to the kernel");
    }
}

/// A kernel that holds up every transaction while its gate is closed, as the real one does while another program commits.
struct SlowKernel {
    inner: FakeTransport,
    gate: Arc<Gate>,
}

impl Transport for SlowKernel {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if datagram.get(4..6) == Some(&BATCH_BEGIN) {
            self.gate.pass(datagram);
        }
        self.inner.send(datagram)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        self.inner.receive()
    }

    fn port(&self) -> u32 {
        self.inner.port()
    }
}

fn service() -> Service {
    let mut service = Service::default();
    (service.metadata.namespace, service.metadata.name) = ("ns".into(), "web".into());
    service.spec.type_ = "ClusterIP".into();
    service.spec.cluster_ip = "10.96.0.1".into();
    service.spec.cluster_ips = vec!["10.96.0.1".into()];
    let port = ServicePort { protocol: "TCP".into(), port: 80, ..ServicePort::default() };
    service.spec.ports = vec![port];
    service
}

fn slice(last: u8) -> EndpointSlice {
    let mut slice = EndpointSlice { address_type: "IPv4".into(), ..EndpointSlice::default() };
    (slice.metadata.namespace, slice.metadata.name) = ("ns".into(), "web-1".into());
    slice.metadata.labels.insert("kubernetes.io/service-name".into(), "web".into());
    slice.ports = vec![EndpointPort {
        name: Some(String::new()),
        protocol: Some("TCP".into()),
        port: Some(8080),
        ..EndpointPort::default()
    }];
    let address = Ipv4Addr::new(10, 244, 0, last).to_string();
    let mut endpoint = Endpoint { addresses: vec![address], ..Endpoint::default() };
    endpoint.conditions.ready = Some(true);
    slice.endpoints = vec![endpoint];
    slice
}

/// Status and body of a page; fails if it is not complete in time.
fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    let read = stream.read_to_string(&mut text);
    assert!(read.is_ok(), "{path} is not answered: {read:?}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn metric(at: SocketAddr, name: &str) -> u64 {
    let text = get(at, "/metrics").1;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const PENDING: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_pending";
const COMMITTED: &str = "kubeproxy_sync_proxy_rules_endpoint_changes_total";

#[test]
fn pages_and_watches_go_on_while_a_commit_blocks_and_shutdown_waits_for_it() {
    in_namespace("pages_and_watches_go_on_while_a_commit_blocks_and_shutdown_waits_for_it", || {
        let api = Api::new(Names::new(Profile::Kubernetes));
        api.put_service(service());
        api.put_slice(slice(1));
        let kubeconfig =
            std::env::temp_dir().join(format!("orch-proxy-responsive-{}", std::process::id()));
        std::fs::write(&kubeconfig, api::kubeconfig(api.serve())).unwrap();
        // The namespace is this test's own: nothing else has these ports.
        let [health, metrics] =
            [10256_u16, 10249].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let gate = Arc::new(Gate::default());
        let drain = Drain::default();
        let (watch, kernel_gate) = (drain.watch(), gate.clone());
        let words = [
            "orch-proxy".to_owned(),
            "--naming=kubernetes".to_owned(),
            "--hostname-override=node".to_owned(),
            "--conntrack-max-per-core=0".to_owned(),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--healthz-bind-address={health}"),
            format!("--metrics-bind-address={metrics}"),
        ];
        // One thread, as in the program.
        let proxy = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let flags = Flags::try_parse_from(words).unwrap();
            let config = config::load(&flags, flags.common.names()).unwrap();
            let kernel = SlowKernel { inner: FakeTransport::default(), gate: kernel_gate };
            let features =
                KernelFeatures { owner_flags: TableFlags::NONE, families: FAMILIES.into() };
            let handle = NetfilterHandle { session: Session::new(kernel), features };
            runtime.block_on(async {
                app::build(config, handle).await.unwrap().run(watch).await.unwrap();
            });
        });
        wait_for("the proxy starts", || {
            TcpStream::connect(health).is_ok() && get(health, "/healthz").0 == 200
        });
        let before = metric(metrics, COMMITTED);

        gate.set_closed(true);
        api.put_slice(slice(2));
        gate.wait_until_used();
        assert_eq!(get(health, "/healthz").0, 200);
        assert_eq!(metric(metrics, COMMITTED), before);
        api.put_slice(slice(3));
        wait_for("a watch event is received", || metric(metrics, PENDING) == 2);
        gate.set_closed(false);
        wait_for("both changes are committed", || metric(metrics, PENDING) == 0);
        assert_eq!(metric(metrics, COMMITTED), before + 2);

        gate.set_closed(true);
        api.put_slice(slice(4));
        gate.wait_until_used();
        let draining = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(drain.drain(PATIENCE))
        });
        std::thread::sleep(Duration::from_millis(300));
        assert!(!draining.is_finished() && !proxy.is_finished(), "the commit is abandoned");
        gate.set_closed(false);
        assert_eq!(draining.join().unwrap(), DrainOutcome::Finished);
        proxy.join().unwrap();
        assert!(gate.has_sent(&[10, 244, 0, 4]), "the last change is not committed");
        assert!(!gate.has_sent(&[10, 244, 0, 5]));
        std::fs::remove_file(&kubeconfig).unwrap();
    });
}
