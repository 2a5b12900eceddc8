//! Probes against servers on real sockets: results, and the sockets left behind.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_pod::handler::{Handler, HttpGet};
use agent_pod::probe::ProbeOutcome;
use agent_probe::{Prober, run_probe};
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Long enough on a busy machine.
const PATIENT: Duration = Duration::from_secs(20);
/// Timeout of requests that are never answered.
const SHORT: Duration = Duration::from_millis(200);

fn asker(timeout: Duration) -> Prober<'static> {
    Prober { ip: "127.0.0.1", user_agent: "agent/1", timeout }
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
async fn nobody_and_silence_are_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let silent = listener.local_addr().expect("address").port();
    let closed = {
        let gone = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        gone.local_addr().expect("address").port()
    };
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
async fn a_certificate_that_nobody_signed_will_do() {
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
async fn grpc_health_is_asked_by_service() {
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

#[tokio::test]
async fn a_probe_leaves_no_port_behind() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    for _ in 0..50 {
        let handler = Handler::Tcp { host: String::new(), port };
        assert_eq!(run_probe(&handler, asker(PATIENT)).await, ProbeOutcome::Success);
    }
    let table = std::fs::read_to_string("/proc/net/tcp").expect("sockets");
    let suffix = format!(":{port:04X}");
    // Columns: slot, local, remote, state; 06 is TIME_WAIT.
    let waiting = table.lines().filter(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.len() > 3 && columns[2].ends_with(&suffix) && columns[3] == "06"
    });
    assert_eq!(waiting.count(), 0);
}
