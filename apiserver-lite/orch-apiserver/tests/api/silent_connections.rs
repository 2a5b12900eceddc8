//! Unused connections, requests that are too long, and a server that is shutting down.

use std::time::Duration;

use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use orch_apiserver::Config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::{TestServer, kubernetes};

/// Time without a response after which a test fails, far above the normal time.
const NONE: Duration = Duration::from_secs(60);
/// The preface, an empty SETTINGS frame and a PING.
const BEGINNING: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\0\0\0\0\0pingpong";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_one_peer_do_not_keep_others_out() {
    let server = TestServer::start().await;
    // An authenticated watch from before continues.
    let mut watch = server.watch("/api/v1/namespaces/default/configmaps?watch=1").await;
    let mut silent = Vec::new();
    // More than one peer may have, without those that send something: however slow these are, the oldest are replaced.
    for _ in 0..1100 {
        silent.push(server.tcp().await);
    }
    let mut pinging = Vec::new();
    for _ in 0..300 {
        if let Ok(Some(mut stream)) = timeout(NONE, server.tls_http2(false)).await
            && stream.write_all(BEGINNING).await.is_ok()
        {
            pinging.push(stream);
        }
    }
    assert_eq!(pinging.len(), 300);
    for round in 0..3 {
        for stream in &mut pinging {
            let _ = stream.write_all(&BEGINNING[33..]).await;
        }
        let healthy = timeout(NONE, server.anonymous("/healthz")).await.expect("an answer");
        assert_eq!(healthy.code(), 200);
        let list = timeout(NONE, server.get("/api/v1/namespaces")).await.expect("an answer");
        list.expect(200);
        let body = format!(r#"{{"metadata":{{"name":"m{round}"}}}}"#);
        server.post("/api/v1/namespaces/default/configmaps", body).await.expect(201);
        let event = timeout(NONE, watch.next()).await.expect("in time").expect("an event");
        assert_eq!(event["object"]["metadata"]["name"], format!("m{round}"));
    }
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains(r#"apiserver_connections_closed_total{reason="replaced"}"#));
    drop((silent, pinging));
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// More than the body limit, by more than all buffers on the way hold.
const LONG: usize = 16 << 20;

#[tokio::test]
async fn a_client_that_sends_everything_first_sees_why_it_was_too_much() {
    let server = TestServer::start().await;
    // HTTP/1.1 with a length and in chunks: the whole body is sent before the response is read.
    for head in ["content-length: 16777216", "transfer-encoding: chunked"] {
        let mut stream = server.tls_http1().await;
        let head = format!(
            "POST {MAPS} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        let chunked = head.contains("chunked");
        if chunked {
            stream.write_all(b"1000000\r\n").await.expect("written");
        }
        for _ in 0..LONG >> 16 {
            stream.write_all(&[b' '; 1 << 16]).await.expect("taken to the end");
        }
        if chunked {
            stream.write_all(b"\r\n0\r\n\r\n").await.expect("written");
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
        assert!(answer.contains("RequestEntityTooLarge"), "{answer}");
    }
    let stream = server.tls_http2(true).await.expect("TLS");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("https://a{MAPS}"))
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(vec![b' '; LONG])))
        .expect("valid");
    let answer = sender.send_request(request).await.expect("an answer and no reset");
    assert_eq!(answer.status(), 413);
    let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("RequestEntityTooLarge"));
}

#[tokio::test]
async fn readyz_fails_before_the_listener_closes() {
    let shutdown_delay = Duration::from_secs(3600);
    let config = Config { shutdown_delay, ..Config::for_tests(kubernetes()) };
    let mut server = TestServer::with(config).await;
    assert_eq!(server.anonymous("/readyz").await.code(), 200);
    let watch = server.watch("/api/v1/namespaces?watch=1").await;
    let stopping = server.begin_to_stop();
    let failing = async {
        // A new connection each time shows that the listener is still open.
        while server.anonymous("/readyz").await.code() == 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(NONE, failing).await.expect("readyz fails");
    assert_eq!(server.anonymous("/livez").await.code(), 200);
    server.get("/api/v1/namespaces").await.expect(200);
    drop(watch);
    stopping.abort();
}
