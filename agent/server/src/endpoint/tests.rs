//! The endpoint over TLS, with an agent that is made up and a runtime's streaming server that
//! echoes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use agent_runtime::runtime::ExecOutput;
use agent_telemetry::metrics::AgentMetrics;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::Empty;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::{Names, Profile};
use proto_client::config::{Pem, Verification};
use proto_client::{Client, ClientConfig, ClientError, request};
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::Drain;
use proto_daemon::health::Health;
use proto_daemon::metrics::{BuildInfo, Metrics};
use proto_daemon::ready::Readiness;
use proto_daemon::statusz::StatusBoard;
use std::convert::Infallible;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod idle_clients;
mod sparse_logs;

use agent_telemetry::timeline::Timeline;

use super::*;
use crate::access::{AccessRules, Anonymous, Authorization, Tokens};
use crate::open::EndpointParts;
use crate::routes::ContainerName;
use crate::routes::PodName;
use crate::service::Switches;
use crate::stats::NodeStats;
use crate::tls::TlsFiles;
use crate::view::LogFile;
use crate::view::{LogRun, NodeView, Session};
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use proto_api::core::v1::Pod;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// An agent with the pods `a/web` and `b/web`, whose containers `c` log to one file.
struct Agent {
    log: PathBuf,
    streaming: SocketAddr,
    running: AtomicBool,
    /// Ends one command `wait`.
    ended: Notify,
}

impl Agent {
    fn knows(&self, pod: &PodName) -> Result<(), ViewError> {
        if matches!((pod.namespace.as_str(), pod.name.as_str()), ("a" | "b", "web")) {
            return Ok(());
        }
        Err(ViewError::NotFound(format!("pod {}_{} does not exist", pod.name, pod.namespace)))
    }
}

impl NodeView for Agent {
    fn pods(&self) -> Vec<Pod> {
        let metadata =
            ObjectMeta { name: "web".into(), namespace: "a".into(), ..ObjectMeta::default() };
        vec![Pod { metadata, ..Pod::default() }]
    }

    fn running_pods(&self) -> BoxFuture<'_, Result<Vec<Pod>, ViewError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn log_file<'a>(
        &'a self,
        container: &'a ContainerName,
        run: LogRun,
    ) -> BoxFuture<'a, Result<LogFile, ViewError>> {
        Box::pin(async move {
            self.knows(&container.pod)?;
            match run {
                LogRun::Last => Ok(LogFile { path: self.log.clone(), instance: "id-1".into() }),
                LogRun::Previous => {
                    Err(ViewError::NotNow("previous terminated container \"c\" not found".into()))
                }
            }
        })
    }

    fn is_running<'a>(&'a self, _: &'a LogFile) -> BoxFuture<'a, bool> {
        Box::pin(async { self.running.load(Ordering::Relaxed) })
    }

    fn session<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, Result<String, ViewError>> {
        Box::pin(async move {
            let Session::Exec { container, command, streams } = session else {
                return Ok(format!("http://{}/refuse", self.streaming));
            };
            self.knows(&container.pod)?;
            assert_eq!(
                (command.join(" ").as_str(), streams.stdin, streams.tty),
                ("sh -c ls", true, false)
            );
            Ok(format!("http://{}/exec/token-1", self.streaming))
        })
    }

    fn run<'a>(
        &'a self,
        _: &'a ContainerName,
        command: &'a [String],
        _: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput, ViewError>> {
        let stdout = command.join("+").into_bytes();
        Box::pin(async move {
            if command == ["wait"] {
                self.ended.notified().await;
            }
            Ok(ExecOutput { stdout, ..ExecOutput::default() })
        })
    }

    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerName,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, ViewError>> {
        Box::pin(async move {
            self.knows(&container.pod)?;
            match timeout.as_secs() {
                0 => Ok("/checkpoints/web.tar".into()),
                _ => Err(ViewError::Failed("unknown method CheckpointContainer".into())),
            }
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<NodeStats, ViewError>> {
        Box::pin(async { Ok(NodeStats { name: "n1".into(), ..NodeStats::default() }) })
    }

    fn machine(&self) -> Value {
        json!({"num_cores": 2})
    }

    fn timeline(&self, _: &str, _: &str) -> Vec<(String, Timeline)> {
        Vec::new()
    }

    fn configuration(&self) -> Value {
        json!({"orchletconfig": {"maxPods": 110}})
    }
}

/// Switches protocols and sends everything back, in another case; anything but a session is a
/// redirect.
async fn echoing_runtime() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = service_fn(|mut request: Request<Incoming>| async move {
                let mut response = Response::new(Empty::<Bytes>::new());
                if request.uri().path() != "/exec/token-1" {
                    *response.status_mut() = StatusCode::FOUND;
                    response
                        .headers_mut()
                        .insert(header::LOCATION, HeaderValue::from_static("http://169.254.0.1/"));
                    return Ok::<_, Infallible>(response);
                }
                assert!(!request.headers().contains_key(header::AUTHORIZATION));
                let protocol = request.headers()[header::UPGRADE].clone();
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let mut stream = TokioIo::new(upgrade.await.expect("upgraded"));
                    let mut buffer = [0; 64];
                    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
                        stream
                            .write_all(&buffer[..len].to_ascii_uppercase())
                            .await
                            .expect("written");
                    }
                });
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                response.headers_mut().insert(header::UPGRADE, protocol);
                Ok(response)
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .with_upgrades();
            tokio::spawn(connection);
        }
    });
    address
}

struct Bench {
    client: Client,
    address: SocketAddr,
    agent: Arc<Agent>,
    _drain: Drain,
    _directory: tempfile::TempDir,
}

async fn bench(anonymous: Anonymous, authorization: Authorization) -> Bench {
    let directory = tempfile::tempdir().expect("tempdir");
    let log = directory.path().join("0.log");
    std::fs::write(&log, "2024-01-01T00:00:01Z stdout F one\n2024-01-01T00:00:02Z stderr F two\n")
        .expect("written");
    let agent = Arc::new(Agent {
        log,
        streaming: echoing_runtime().await,
        running: AtomicBool::new(false),
        ended: Notify::new(),
    });
    let names = Names::new(Profile::Kubernetes);
    let pages = AdminPages {
        health: Health::new(Readiness::default()),
        metrics: Metrics::new("kubelet", BuildInfo { version: "1", commit: "c" })
            .expect("valid names"),
        status: StatusBoard::default(),
    };
    let opening = EndpointParts {
        address: "127.0.0.1:0".parse().expect("valid"),
        files: TlsFiles::default(),
        hosts: vec!["127.0.0.1".into()],
        rules: AccessRules {
            node: "n1".into(),
            anonymous,
            tokens: Tokens::REVIEWED,
            authorization,
        },
        client: None,
        view: agent.clone(),
        pages,
        names,
        switches: Switches {
            debugging: true,
            system_logs: true,
            profiling: false,
            flags: true,
            checkpoint: true,
        },
        system_logs_dir: directory.path().to_owned(),
        probes: Box::new(|| "prober_probe_total 1\n".to_owned()),
        metrics: AgentMetrics::default(),
    };
    let server = opening.open().await.expect("open");
    let mut config =
        ClientConfig::direct(format!("https://{}", server.address()).parse().expect("valid"));
    config.tls.verification = Verification::Skipped;
    config.tls.authority = None::<Pem>;
    let client = Client::new(&config, names, "test/1").expect("valid");
    let address = server.address();
    let drain = Drain::default();
    tokio::spawn(server.run(drain.watch()));
    Bench { client, address, agent, _drain: drain, _directory: directory }
}

impl Bench {
    async fn send(&self, method: http::Method, path: &str, body: &str) -> Result<String, u16> {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Bytes::copy_from_slice(body.as_bytes())).expect("valid");
        let answer = self.client.call(request).await;
        answer
            .map(|answer| String::from_utf8(answer.body.to_vec()).expect("text"))
            .map_err(|error| error.code().expect("an answer"))
    }

    async fn get(&self, path: &str) -> Result<String, u16> {
        let answer = self.client.call(request::get(path.to_owned())).await;
        answer
            .map(|answer| String::from_utf8(answer.body.to_vec()).expect("text"))
            .map_err(|error| error.code().expect("an answer"))
    }
}

#[tokio::test]
async fn the_log_can_be_made_louder_and_a_container_written_to_disk() {
    use http::Method;
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    proto_daemon::log::init(proto_daemon::log::LogSettings {
        format: proto_daemon::log::LogFormat::Text,
        verbosity: 0,
    });
    let set = |body: &'static str| bench.send(Method::PUT, "/debug/flags/v", body);
    let done = set("0").await.expect("set");
    assert_eq!(done, "successfully set klog.logging.verbosity to 0\n");
    assert_eq!(set("loud").await, Err(400));
    assert_eq!(set("00000000000000000000001").await, Err(400), "longer than any number");
    assert_eq!(bench.get("/debug/flags/v").await, Err(405));
    let write = |path: &'static str| bench.send(Method::POST, path, "");
    let written = write("/checkpoint/a/web/c").await.expect("written");
    assert_eq!(written, "{\"items\":[\"/checkpoints/web.tar\"]}");
    assert_eq!(write("/checkpoint/a/none/c").await, Err(404));
    assert_eq!(write("/checkpoint/a/web/c?timeout=x").await, Err(400));
    assert_eq!(write("/checkpoint/a/web/c?timeout=5").await, Err(500));
}

#[tokio::test]
async fn pages_are_served() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    assert_eq!(bench.get("/healthz").await.as_deref(), Ok("ok"));
    let pods: Value = serde_json::from_str(&bench.get("/pods").await.expect("pods")).expect("JSON");
    assert_eq!(
        (&pods["kind"], &pods["items"][0]["metadata"]["name"]),
        (&json!("PodList"), &json!("web"))
    );
    assert!(bench.get("/stats/summary").await.expect("stats").contains("\"nodeName\":\"n1\""));
    assert!(bench.get("/metrics/resource").await.expect("metrics").contains("scrape_error 0"));
    assert!(bench.get("/metrics").await.expect("metrics").contains("kubelet_build_info"));
    assert!(bench.get("/configz").await.expect("configuration").contains("\"maxPods\":110"));
    assert_eq!(bench.get("/debug/pprof").await, Err(405));
    assert_eq!(bench.get("/debug/flags/x").await, Err(404));
    assert!(bench.get("/metrics/cadvisor").await.expect("metrics").contains("machine_cpu_cores"));
    assert_eq!(bench.get("/metrics/probes").await.as_deref(), Ok("prober_probe_total 1\n"));
    assert_eq!(bench.get("/spec/").await.as_deref(), Ok("{\"num_cores\":2}"));
    assert!(bench.get("/logs/").await.expect("a page").contains("<a href=\"0.log\">0.log</a>"));
    assert!(bench.get("/logs/0.log").await.expect("a file").contains("stdout F one"));
    assert_eq!(bench.get("/logs/none").await, Err(404));
    let explained = bench.get("/debug/pods/a/web").await.expect("known");
    assert!(explained.contains("uid"), "{explained}");
    assert_eq!(bench.get("/debug/pods/a/none").await, Err(404));
    let run = http::Request::post("/run/a/web/c?cmd=ls%20-l").body(Bytes::new()).expect("valid");
    assert_eq!(bench.client.call(run).await.expect("run").body, "ls+-l");
}

#[tokio::test]
async fn logs_are_cut_followed_and_refused() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    assert_eq!(bench.get("/containerLogs/a/web/c").await.as_deref(), Ok("one\ntwo\n"));
    assert_eq!(bench.get("/containerLogs/a/web/c?tailLines=1").await.as_deref(), Ok("two\n"));
    assert_eq!(bench.get("/containerLogs/a/web/c?tailLines=x").await, Err(400));
    assert_eq!(bench.get("/containerLogs/a/web/c?previous=true").await, Err(400));
    assert_eq!(bench.get("/containerLogs/a/none/c").await, Err(404));

    bench.agent.running.store(true, Ordering::Relaxed);
    let request = request::get("/containerLogs/a/web/c?follow=true".to_owned());
    let mut body = bench.client.open(request).await.expect("opened").into_body();
    let mut next =
        async || body.frame().await.map(|frame| frame.expect("read").into_data().expect("data"));
    assert_eq!(next().await.as_deref(), Some(b"one\ntwo\n".as_slice()));
    let mut file = std::fs::OpenOptions::new().append(true).open(&bench.agent.log).expect("open");
    std::io::Write::write_all(&mut file, b"2024-01-01T00:00:03Z stdout F three\n")
        .expect("written");
    assert_eq!(next().await.as_deref(), Some(b"three\n".as_slice()));
    bench.agent.running.store(false, Ordering::Relaxed);
    // The end may come as an empty piece.
    assert!(next().await.is_none_or(|rest| rest.is_empty()));
}

/// A request to upgrade the connection.
fn exec(path: &str) -> Request<Bytes> {
    http::Request::post(path)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "SPDY/3.1")
        .body(Bytes::new())
        .expect("valid")
}

#[tokio::test]
async fn sessions_pass_bytes_through() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    let path = "/exec/a/web/c?command=sh&command=-c&command=ls&input=1&output=1";
    let (headers, upgraded) = bench.client.upgrade(exec(path)).await.expect("upgraded");
    assert_eq!(headers[header::UPGRADE], "SPDY/3.1");
    let mut session = TokioIo::new(upgraded);
    for piece in ["hello", "again"] {
        let frame = [&[0, 0, 0, 1, 0, 0, 0, 5], piece.as_bytes()].concat();
        session.write_all(&frame).await.expect("written");
        let mut echo = [0; 13];
        session.read_exact(&mut echo).await.expect("read");
        assert_eq!(echo, frame.to_ascii_uppercase().as_slice());
    }
    // SETTINGS with more entries than bytes ends the session and does not reach the runtime.
    let junk = [0x80, 3, 0, 4, 0, 0, 0, 0x0c, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    session.write_all(&junk).await.expect("written");
    let mut rest = Vec::new();
    let _ = session.read_to_end(&mut rest).await;
    assert!(rest.is_empty(), "{rest:?}");

    let refused = |error: ClientError| error.code();
    let forward = bench.client.upgrade(exec("/portForward/a/web?port=80")).await;
    assert_eq!(
        forward.map(|_| ()).map_err(refused),
        Err(Some(302)),
        "a redirect is shown, not followed"
    );
    let none =
        bench.client.upgrade(exec("/exec/a/none/c?command=sh&command=-c&command=ls&input=1")).await;
    assert_eq!(none.map(|_| ()).map_err(refused), Err(Some(404)));
    let silent = bench.client.upgrade(exec("/exec/a/web/c?command=ls")).await;
    assert_eq!(silent.map(|_| ()).map_err(refused), Err(Some(400)), "no stream was asked for");
    assert_eq!(bench.get("/exec/a/web/c?command=ls&output=1").await, Err(400), "no upgrade");
}

#[tokio::test]
async fn unauthorized_clients_get_the_same_answer_for_every_path() {
    let closed = bench(Anonymous::Refused, Authorization::AlwaysAllow).await;
    for path in ["/healthz", "/pods", "/no/such/page"] {
        assert_eq!(closed.get(path).await, Err(401), "{path}");
    }
    let denied = bench(Anonymous::Allowed, Authorization::WEBHOOK).await;
    for path in ["/healthz", "/pods", "/no/such/page"] {
        assert_eq!(denied.get(path).await, Err(403), "{path}");
    }
}
