//! Prints throughput and latency of the server on this machine: `cargo run --release -p orch-apiserver --example figures [dir]`.
//! Server and clients share the process and its cores, over TLS on loopback, against a durable store in `dir`.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a tool for people: it stops at the first surprise"
)]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use orch_apiserver::Config;
use orch_apiserver::config::Storage;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Bytes of payload in each object.
const PAYLOAD_LEN: usize = 512;
const SECONDS: u64 = 4;

fn main() {
    let dir = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = dir.join(format!("orch-apiserver-figures-{}", std::process::id()));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("runtime").block_on(run(dir.clone()));
    std::fs::remove_dir_all(dir).expect("removed");
}

async fn run(dir: PathBuf) {
    let memory = Instant::now();
    let bound = orch_apiserver::build(Config::for_tests(Names::new(Profile::Kubernetes))).await;
    println!("start in process, in memory: {:.1} ms", millis(memory.elapsed()));
    drop(bound);
    let config = Config {
        storage: Storage::Directory(dir.join("data")),
        cert_dir: Some(dir.join("pki")),
        ..Config::for_tests(Names::new(Profile::Kubernetes))
    };
    let started = Instant::now();
    let bound = orch_apiserver::build(config).await.expect("built");
    println!("start in process, durable, own CA made: {:.1} ms", millis(started.elapsed()));
    let target = Arc::new(Target::new(bound.address(), bound.kubeconfig()));
    let drain = Drain::default();
    let running = tokio::spawn(bound.run(drain.watch()));
    creates(&target, 1).await;
    creates(&target, 16).await;
    creates(&target, 64).await;
    lists(&target).await;
    fan_out(&target, 1000, 200).await;
    drain.drain(Duration::from_secs(5)).await;
    running.await.expect("ended");
}

struct Target {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Target {
    /// The server at `address`, as the administrator of `kubeconfig`.
    fn new(address: SocketAddr, kubeconfig: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(&field(kubeconfig, "certificate-authority-data")) {
            roots.add(certificate).expect("CA");
        }
        let chain = certificates(&field(kubeconfig, "client-certificate-data"));
        let key = PrivateKeyDer::from_pem_slice(&field(kubeconfig, "client-key-data"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key.expect("key"))
            .expect("client certificate");
        Self { address, tls: TlsConnector::from(Arc::new(config)) }
    }

    async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let socket = TcpStream::connect(self.address).await.expect("connected");
        socket.set_nodelay(true).expect("option");
        let name = ServerName::try_from("127.0.0.1").expect("name");
        let stream = self.tls.connect(name, socket).await.expect("TLS");
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }
}

/// The decoded field of a kubeconfig.
fn field(kubeconfig: &str, name: &str) -> Vec<u8> {
    let prefix = format!("{name}: ");
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(prefix.as_str()));
    base64::engine::general_purpose::STANDARD.decode(line.expect("field")).expect("base64")
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).map(|certificate| certificate.expect("PEM")).collect()
}

fn request(method: Method, path: &str, body: String) -> Request<Full<Bytes>> {
    let builder = Request::builder().method(method).uri(path).header("host", "x");
    builder.header("content-type", "application/json").body(Full::from(body)).expect("valid")
}

async fn creates(target: &Arc<Target>, clients: usize) {
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let target = target.clone();
            tokio::spawn(async move {
                let mut sender = target.connect().await;
                let mut took = Vec::new();
                let payload = "x".repeat(PAYLOAD_LEN);
                while Instant::now() < until {
                    let name = format!("m-{clients}-{client}-{}", took.len());
                    let body =
                        format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"k":"{payload}"}}}}"#);
                    sender.ready().await.expect("connection");
                    let start = Instant::now();
                    let response = sender
                        .send_request(request(Method::POST, MAPS, body))
                        .await
                        .expect("answered");
                    assert_eq!(response.status(), 201);
                    response.into_body().collect().await.expect("body");
                    took.push(start.elapsed());
                }
                took
            })
        })
        .collect();
    let cpu = cpu_secs();
    let mut took = Vec::new();
    for task in tasks {
        took.extend(task.await.expect("client"));
    }
    let cpu = cpu_secs() - cpu;
    took.sort_unstable();
    println!(
        "durable creates, {clients} clients: {} a second, p50 {:.2} ms, p99 {:.2} ms; {:.0} us of CPU each",
        took.len() as u64 / SECONDS,
        millis(at(&took, 50)),
        millis(at(&took, 99)),
        cpu * 1e6 / took.len() as f64,
    );
}

async fn lists(target: &Arc<Target>) {
    let mut sender = target.connect().await;
    for (what, path) in [("8,300 objects", "?limit=8300"), ("500 objects", "?limit=500")] {
        let mut took = Vec::new();
        let mut len = 0;
        for _ in 0..20 {
            sender.ready().await.expect("connection");
            let start = Instant::now();
            let path = format!("{MAPS}{path}");
            let response = sender
                .send_request(request(Method::GET, &path, String::new()))
                .await
                .expect("answered");
            let mut body = response.into_body();
            len = 0;
            while let Some(frame) = body.frame().await {
                len += frame.expect("frame").data_ref().map_or(0, Bytes::len);
            }
            took.push(start.elapsed());
        }
        took.sort_unstable();
        println!(
            "list of {what}, {:.1} MB: p50 {:.1} ms, p99 {:.1} ms",
            len as f64 / 1e6,
            millis(at(&took, 50)),
            millis(at(&took, 99)),
        );
    }
}

async fn fan_out(target: &Arc<Target>, watchers: usize, writes: usize) {
    let path = "/api/v1/namespaces/default/secrets";
    let ready = Arc::new(tokio::sync::Barrier::new(watchers + 1));
    let tasks: Vec<_> = (0..watchers)
        .map(|_| {
            let (target, ready) = (target.clone(), ready.clone());
            tokio::spawn(async move {
                let mut sender = target.connect().await;
                let watch = request(
                    Method::GET,
                    &format!("{path}?watch=1&resourceVersion=0"),
                    String::new(),
                );
                let mut body = sender.send_request(watch).await.expect("answered").into_body();
                ready.wait().await;
                let mut seen = 0;
                while seen < writes {
                    let frame = body.frame().await.expect("more").expect("frame");
                    seen += frame
                        .data_ref()
                        .map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                }
            })
        })
        .collect();
    ready.wait().await;
    let (start, cpu) = (Instant::now(), cpu_secs());
    let mut sender = target.connect().await;
    for number in 0..writes {
        let body = format!(
            r#"{{"metadata":{{"name":"s-{number}"}},"stringData":{{"k":"{}"}}}}"#,
            "x".repeat(PAYLOAD_LEN)
        );
        sender.ready().await.expect("connection");
        let response =
            sender.send_request(request(Method::POST, path, body)).await.expect("answered");
        response.into_body().collect().await.expect("body");
    }
    for task in tasks {
        task.await.expect("watcher");
    }
    let rate = (watchers * writes) as f64 / start.elapsed().as_secs_f64();
    let each = (cpu_secs() - cpu) * 1e6 / (watchers * writes) as f64;
    println!(
        "fan-out of {writes} writes to {watchers} watchers: {rate:.0} events a second; {each:.1} us of CPU each"
    );
}

/// CPU time of the process in seconds, which is meaningful on a shared machine too.
fn cpu_secs() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let ticks = stat.rsplit(')').next().expect("fields").split_whitespace().skip(11).take(2);
    ticks.map(|field| field.parse::<f64>().expect("number")).sum::<f64>() / 100.0
}

fn at(sorted: &[Duration], percent: usize) -> Duration {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
