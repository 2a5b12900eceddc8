//! Logs, exec and port forwarding through the server, against a node agent that records what it is requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use orch_apiserver::Config;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::server::TlsStream;

use crate::support::{TestServer, kubernetes, reply};
use crate::tls;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A kubelet: answers logs with text, accepts upgrades to `echo`, refuses those to `other`, redirects `lost`.
struct Node {
    address: SocketAddr,
    /// Request lines in order.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Node {
    async fn start() -> Self {
        let (acceptor, _) = tls::self_signed(&["127.0.0.1"], None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = requests.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), log.clone());
                tokio::spawn(async move {
                    let stream = acceptor.accept(socket).await.unwrap();
                    serve(stream, &log).await;
                });
            }
        });
        Self { address, requests }
    }

    fn last(&self) -> String {
        self.requests.lock().unwrap().last().cloned().unwrap_or_default()
    }
}

async fn serve(mut stream: TlsStream<tokio::net::TcpStream>, log: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(!head.to_lowercase().contains("authorization:"), "credentials stay with the server");
    let line = head.lines().next().unwrap().to_owned();
    log.lock().unwrap().push(line.clone());
    let answer = if line.contains("previous=true") {
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 8\r\n\r\nno such\n"
    } else if line.contains("containerLogs") {
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nline 1"
    } else if line.contains("command=lost") {
        "HTTP/1.1 302 Found\r\nlocation: https://elsewhere/\r\ncontent-length: 0\r\n\r\n"
    } else if line.contains("command=other") {
        "HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nno!"
    } else {
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\r\n"
    };
    stream.write_all(answer.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut buffer = [0; 64];
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        let text = buffer[..len].to_ascii_uppercase();
        stream.write_all(&text).await.unwrap();
        stream.flush().await.unwrap();
    }
}

/// A server with one node and the bound pod `p` with the containers `a` and `b`.
async fn cluster() -> (TestServer, Node) {
    let node = Node::start().await;
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens.csv");
    std::fs::write(&tokens, "tested,alice,1").unwrap();
    let config = Config { token_auth_file: Some(tokens), ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    server
        .post("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"default"}}"#)
        .await
        .expect(201);
    let object = json!({
        "metadata": {"name": "n"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": node.address.ip()}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": node.address.port()}},
        },
    });
    server.post("/api/v1/nodes", object.to_string()).await.expect(201);
    let containers = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": containers, "nodeName": "n"}});
    server.post(PODS, pod.to_string()).await.expect(201);
    (server, node)
}

fn upgrade(path: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("host", "test")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("authorization", "Bearer tested")
        .body(Full::default())
        .unwrap()
}

#[tokio::test]
async fn logs_come_from_the_node() {
    let (server, node) = cluster().await;
    let logs =
        server.get(&format!("{PODS}/p/log?container=b&follow=true&tailLines=3&evil=1")).await;
    assert_eq!((logs.code(), logs.body.as_ref()), (200, b"line 1".as_ref()));
    assert_eq!(node.last(), "GET /containerLogs/default/p/b?follow=true&tailLines=3 HTTP/1.1");
    let which = server.get(&format!("{PODS}/p/log")).await.expect(400);
    assert_eq!(
        which["message"],
        "a container name must be specified for pod p, choose one of: [a b]"
    );
    let previous = server.get(&format!("{PODS}/p/log?container=a&previous=true")).await.expect(400);
    assert_eq!(
        (&previous["reason"], &previous["message"]),
        (&json!("BadRequest"), &json!("no such"))
    );
    let none = server.get(&format!("{PODS}/p/log?container=c")).await.expect(400);
    assert_eq!(none["message"], "container c is not valid for pod p");
    server.get(&format!("{PODS}/q/log")).await.expect(404);
    server.post(&format!("{PODS}/p/log?container=a"), "{}").await.expect(405);
}

#[tokio::test]
async fn a_pod_without_a_node_has_no_logs_yet() {
    let (server, _node) = cluster().await;
    let pod =
        json!({"metadata": {"name": "q"}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    server.post(PODS, pod.to_string()).await.expect(201);
    for query in ["", "?follow=true", "?container=a"] {
        let logs = server.get(&format!("{PODS}/q/log{query}")).await;
        assert_eq!((logs.code(), logs.body.len()), (204, 0), "{query}");
    }
    server.get(&format!("{PODS}/q/log?container=none")).await.expect(400);
    let shell = reply(server.open(upgrade(&format!("{PODS}/q/exec?command=sh"))).await).await;
    assert_eq!(shell.expect(400)["message"], "pod q does not have a host assigned");
}

#[tokio::test]
async fn upgraded_bytes_pass_both_ways() {
    let (server, node) = cluster().await;
    let path = format!(
        "{PODS}/p/exec?container=a&command=echo&command=a%20b&stdin=true&stdout=true&tty=false"
    );
    let response = server.open(upgrade(&path)).await;
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(
        node.last(),
        "POST /exec/default/p/a?command=echo&command=a%20b&input=1&output=1 HTTP/1.1"
    );
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    let mut stream = hyper_util::rt::TokioIo::new(upgraded);
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"HELLO");
    let forward = server.open(upgrade(&format!("{PODS}/p/portforward?ports=80"))).await;
    assert_eq!(forward.status(), 101);
    assert_eq!(node.last(), "POST /portForward/default/p?port=80 HTTP/1.1");
}

#[tokio::test]
async fn refusals_never_become_connections() {
    let (server, _node) = cluster().await;
    let refused =
        reply(server.open(upgrade(&format!("{PODS}/p/exec?container=a&command=other"))).await)
            .await;
    assert_eq!((refused.code(), refused.body.as_ref()), (403, b"no!".as_ref()));
    let lost =
        reply(server.open(upgrade(&format!("{PODS}/p/exec?container=a&command=lost"))).await).await;
    assert_eq!(lost.code(), 502);
    assert!(!lost.headers.contains_key("location"));
    let plain = server.get(&format!("{PODS}/p/exec?container=a&command=x")).await.expect(400);
    assert_eq!(plain["message"], "Upgrade request required");
}
