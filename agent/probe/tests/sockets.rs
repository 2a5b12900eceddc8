//! Probes against servers on real sockets: results, and the sockets left behind.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::convert::Infallible;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use agent_pod::handler::{Handler, HttpGet};
use agent_pod::probe::ProbeOutcome;
use agent_probe::{NameLookups, PodKey, Prober, run_probe};
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

/// Long enough on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);
/// Timeout of requests that are never answered.
const SHORT: Duration = Duration::from_millis(200);
/// Timeout that leaves a server time to fill all buffers.
const FLOODED: Duration = Duration::from_secs(1);

static NAMES: LazyLock<NameLookups> = LazyLock::new(NameLookups::default);

fn asker(timeout: Duration) -> Prober<'static> {
    let pod = PodKey { namespace: "ns", uid: "u" };
    Prober { ip: "127.0.0.1", user_agent: "agent/1", timeout, names: &NAMES, pod }
}

fn http(port: u16, path: &str) -> Handler {
    Handler::Http(HttpGet { port, path: path.into(), ..HttpGet::default() })
}

/// A server that replies to the n-th request with the n-th text and records the requests.
async fn server(answers: Vec<String>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = asked.clone();
    tokio::spawn(async move {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut bytes = vec![0; 4096];
            let mut length = 0;
            while !bytes[..length].windows(4).any(|w| w == b"\r\n\r\n") {
                match stream.read(&mut bytes[length..]).await {
                    Ok(0) | Err(_) => break,
                    Ok(more) => length += more,
                }
            }
            kept.lock().expect("lock").push(String::from_utf8_lossy(&bytes[..length]).into_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, asked)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn the_status_decides() {
    let cases = [
        ("200 OK", ProbeOutcome::Success),
        ("302 Found", ProbeOutcome::Success),
        ("399 Odd", ProbeOutcome::Success),
        ("404 Not Found", ProbeOutcome::Failure("HTTP probe failed with statuscode: 404".into())),
        ("500 Oops", ProbeOutcome::Failure("HTTP probe failed with statuscode: 500".into())),
    ];
    for (status, expect) in cases {
        let (port, asked) = server(vec![answer(status, "", "body")]).await;
        assert_eq!(run_probe(&http(port, "healthz?x=1"), asker(PATIENT)).await, expect, "{status}");
        let asked = asked.lock().expect("lock").join("");
        assert!(asked.starts_with("GET /healthz?x=1 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains(&format!("host: 127.0.0.1:{port}\r\n")), "{asked}");
        assert!(asked.contains("user-agent: agent/1\r\n"), "{asked}");
    }
}

#[tokio::test]
async fn redirects_are_followed_on_the_host_and_not_off_it() {
    let away = "Location: http://example.com/x\r\n";
    let (port, asked) = server(vec![
        answer("302 Found", "Location: /next\r\n", ""),
        answer("301 Moved", away, "go"),
    ])
    .await;
    let expect = "Probe terminated redirects, Response body: go";
    assert_eq!(
        run_probe(&http(port, "/"), asker(PATIENT)).await,
        ProbeOutcome::Warning(expect.into())
    );
    assert!(asked.lock().expect("lock")[1].starts_with("GET /next "));
    let round = vec![answer("302 Found", "Location: /\r\n", ""); 20];
    let (port, asked) = server(round).await;
    let ProbeOutcome::Failure(text) = run_probe(&http(port, "/"), asker(PATIENT)).await else {
        panic!("a loop ends")
    };
    assert!(text.contains("stopped after 10 redirects"), "{text}");
    assert_eq!(asked.lock().expect("lock").len(), 11);
}

#[tokio::test]
async fn an_endless_body_is_not_read_to_its_end() {
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(1 << 20));
    let (port, _) = server(vec![endless]).await;
    assert_eq!(run_probe(&http(port, "/"), asker(PATIENT)).await, ProbeOutcome::Success);
}

#[tokio::test]
async fn closed_ports_and_timeouts_are_probe_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let silent = listener.local_addr().expect("address").port();
    // Nothing listens there, and no socket gets this port by chance.
    let closed = 1;
    let tcp = |port| Handler::Tcp { host: String::new(), port };
    let grpc = |port| Handler::Grpc { port, service: String::new() };
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    let cases = [
        (tcp(silent), PATIENT, None),
        (tcp(closed), PATIENT, Some(refused.clone())),
        (http(closed, "/"), PATIENT, Some(refused)),
        (http(silent, "/"), SHORT, Some("context deadline exceeded".into())),
        (grpc(closed), PATIENT, Some("failed to connect service at".into())),
        (grpc(silent), SHORT, Some("health rpc did not complete within".into())),
    ];
    for (handler, timeout, expect) in cases {
        match (run_probe(&handler, asker(timeout)).await, expect) {
            (ProbeOutcome::Success, None) => {}
            (ProbeOutcome::Failure(text), Some(part)) => assert!(text.contains(&part), "{text}"),
            other => panic!("{handler:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn self_signed_certificates_are_accepted_by_https_probes() {
    let key = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).expect("certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der())
                .expect("key"),
        )
        .expect("config");
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("accept");
        let mut stream = acceptor.accept(stream).await.expect("handshake");
        let mut bytes = [0; 1024];
        let _ = stream.read(&mut bytes).await;
        let _ = stream.write_all(answer("200 OK", "", "ok").as_bytes()).await;
        let _ = stream.flush().await;
    });
    let get = HttpGet { https: true, port, ..HttpGet::default() };
    assert_eq!(run_probe(&Handler::Http(get), asker(PATIENT)).await, ProbeOutcome::Success);
}

/// A health server that replies with this status for the service `up`, and with another for others.
async fn health_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await.expect("body").to_bytes();
                let asked = String::from_utf8_lossy(body.get(7..).unwrap_or_default()).into_owned();
                let mut trailers = http::HeaderMap::new();
                let status = if asked == "none" || path != "/grpc.health.v1.Health/Check" {
                    "12"
                } else {
                    "0"
                };
                trailers.insert("grpc-status", status.parse().expect("value"));
                let value = if asked == "up" || asked.is_empty() { 1 } else { 2 };
                let frame = BytesMut::from(&[0, 0, 0, 0, 2, 8, value][..]).freeze();
                let body = Full::<Bytes>::new(frame).with_trailers(async { Some(Ok(trailers)) });
                Ok::<_, Infallible>(Response::new(body))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

#[tokio::test]
async fn grpc_probes_check_the_health_of_the_named_service() {
    let port = health_server().await;
    let unhealthy = "service unhealthy (responded with \"NOT_SERVING\")";
    let none = "this server does not implement the grpc health protocol (grpc.health.v1.Health): ";
    let cases = [
        ("", ProbeOutcome::Success),
        ("up", ProbeOutcome::Success),
        ("down", ProbeOutcome::Failure(unhealthy.into())),
        ("none", ProbeOutcome::Failure(none.into())),
    ];
    for (service, expect) in cases {
        let handler = Handler::Grpc { port, service: service.into() };
        assert_eq!(run_probe(&handler, asker(PATIENT)).await, expect, "{service:?}");
    }
}

/// An empty SETTINGS frame, which a server sends first.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

#[tokio::test]
async fn a_server_that_floods_and_reads_nothing_keeps_nothing_of_a_probe() {
    let socket = TcpSocket::new_v4().expect("socket");
    // Little room for the replies, so that the client cannot write any more.
    socket.set_recv_buffer_size(4096).expect("buffer");
    socket.bind("127.0.0.1:0".parse().expect("address")).expect("bind");
    let listener = socket.listen(1).expect("listen");
    let port = listener.local_addr().expect("address").port();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("accept");
        let pings = PING.repeat(1000);
        let mut sent = stream.write_all(&SETTINGS).await;
        while sent.is_ok() {
            sent = stream.write_all(&pings).await;
        }
    });
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks(), 1, "the server's");
    let handler = Handler::Grpc { port, service: String::new() };
    let ProbeOutcome::Failure(text) = run_probe(&handler, asker(FLOODED)).await else {
        panic!("no answer is no success")
    };
    assert!(text.contains("did not complete within"), "{text}");
    let closed = tokio::time::timeout(PATIENT, server).await;
    closed.expect("the probe's connection is closed").expect("server");
    while tasks() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_host_may_be_a_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let named = |host: &str| Handler::Tcp { host: host.into(), port };
    assert_eq!(run_probe(&named("localhost"), asker(PATIENT)).await, ProbeOutcome::Success);
    let ProbeOutcome::Failure(text) = run_probe(&named(&"x".repeat(300)), asker(PATIENT)).await
    else {
        panic!("no such name")
    };
    assert!(text.contains("no such host"), "{text}");
}

#[tokio::test]
async fn a_probe_leaves_no_port_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    // Sockets of others may have had this port at the other end.
    let before = closing(port);
    for _ in 0..50 {
        let handler = Handler::Tcp { host: String::new(), port };
        assert_eq!(run_probe(&handler, asker(PATIENT)).await, ProbeOutcome::Success);
    }
    assert!(closing(port) <= before);
}

/// Sockets that wait after they were closed, with this port at the other end.
fn closing(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
    let suffix = format!(":{port:04X}");
    // Columns: slot, local, remote, state; 06 is TIME_WAIT.
    let waiting = table.lines().filter(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.len() > 3 && columns[2].ends_with(&suffix) && columns[3] == "06"
    });
    waiting.count()
}
