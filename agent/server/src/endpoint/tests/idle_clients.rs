//! Clients that keep connections, sessions and logs open and do nothing with them.

use std::sync::Arc;

use proto_daemon::tls::AnyServer;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::request_permits::{PERMITS_MAX, PERMITS_MAX_PER_NAMESPACE};

/// How long an answer may take before it counts as none: far beyond what it takes.
const NONE: Duration = Duration::from_secs(60);
/// The preface, an empty SETTINGS frame and a PING.
const BEGINNING: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\0\0\0\0\0pingpong";
const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0pingpong";

async fn silent_http2(address: SocketAddr) -> Option<TlsStream<TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = rustls::pki_types::ServerName::from(address.ip());
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, socket);
    // None: replaced by a later one.
    let mut stream = timeout(NONE, connecting).await.ok()?.ok()?;
    stream.write_all(BEGINNING).await.ok()?;
    Some(stream)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_one_peer_do_not_keep_others_out() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(TcpStream::connect(bench.address).await.expect("connected"));
    }
    let mut pinging = Vec::new();
    for _ in 0..300 {
        pinging.extend(silent_http2(bench.address).await);
    }
    assert!(!pinging.is_empty());
    for _ in 0..3 {
        for stream in &mut pinging {
            let _ = stream.write_all(PING).await;
        }
        let healthy = timeout(NONE, bench.get("/healthz")).await.expect("an answer");
        assert_eq!(healthy.as_deref(), Ok("ok"));
        let log = timeout(NONE, bench.get("/containerLogs/a/web/c")).await.expect("an answer");
        assert_eq!(log.as_deref(), Ok("one\ntwo\n"));
    }
    drop((silent, pinging));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_in_one_namespace_leave_logs_and_sessions_to_others() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    bench.agent.running.store(true, Ordering::Relaxed);
    let mut followed = Vec::new();
    for _ in 0..PERMITS_MAX {
        let request = request::get("/containerLogs/a/web/c?follow=true".to_owned());
        followed.extend(timeout(NONE, bench.client.open(request)).await.expect("an answer"));
    }
    assert!(!followed.is_empty());
    let path = "/exec/b/web/c?command=sh&command=-c&command=ls&input=1&output=1";
    let session = timeout(NONE, bench.client.upgrade(exec(path))).await.expect("an answer");
    assert!(session.is_ok(), "{session:?}");
    for path in ["/containerLogs/b/web/c", "/logs/0.log"] {
        let log = timeout(NONE, bench.get(path)).await.expect("an answer");
        assert!(log.as_ref().is_ok_and(|log| log.contains("two")), "{path}: {log:?}");
    }
    drop((followed, session));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_run_are_bounded_in_number() {
    let bench = bench(Anonymous::Allowed, Authorization::AlwaysAllow).await;
    let run = |command: &str| {
        let request = Request::post(format!("/run/a/web/c?cmd={command}"));
        let (client, request) = (bench.client.clone(), request.body(Bytes::new()).expect("valid"));
        async move { client.call(request).await.map_err(|error| error.code()) }
    };
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..=PERMITS_MAX_PER_NAMESPACE {
        waiting.spawn(run("wait"));
    }
    // Commands wait for their end: the first answer is that of the one too many.
    let refused = timeout(NONE, waiting.join_next()).await.expect("an answer");
    let refused = refused.expect("a request").expect("no panic");
    assert_eq!(refused.expect_err("one too many"), Some(429));
    for _ in 0..PERMITS_MAX_PER_NAMESPACE {
        bench.agent.ended.notify_one();
        let done = timeout(NONE, waiting.join_next()).await.expect("an answer");
        assert_eq!(done.expect("a request").expect("no panic").expect("done").body, "wait");
    }
    let after = timeout(NONE, run("ls")).await.expect("an answer");
    assert_eq!(after.expect("a place is free").body, "ls");
}
