//! Connections that are opened and never used.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use crate::support::TestServer;

/// How long an answer may take before it counts as none: far beyond what it takes.
const NONE: Duration = Duration::from_secs(60);
/// The preface, an empty SETTINGS frame and a PING.
const BEGINNING: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\0\0\0\0\0pingpong";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_of_one_peer_do_not_keep_others_out() {
    let server = TestServer::start().await;
    // An authenticated watch that was there before stays.
    let mut watch = server.watch("/api/v1/configmaps?watch=1").await;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(server.tcp().await);
    }
    let mut pinging = Vec::new();
    for _ in 0..300 {
        if let Ok(Some(mut stream)) = timeout(NONE, server.tls_http2()).await
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
