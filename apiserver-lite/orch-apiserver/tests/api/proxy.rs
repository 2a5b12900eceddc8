//! Proxying to nodes, pods and Services: which targets get the client certificate, and which addresses are refused.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use orch_apiserver::Config;
use proto_client::testing::{StubRequest, StubServer};
use serde_json::json;

use crate::support::{TestServer, kubernetes};
use crate::tls;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// An address of this machine other than loopback. Connecting a UDP socket sends no packet.
pub fn routed() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// Answers every request with `certificate` or `none`, by whether the client presented one.
async fn asks_for_certificates(server: &TestServer, ip: IpAddr) -> SocketAddr {
    let (acceptor, _) = tls::self_signed(&[&ip.to_string()], Some(server.roots()));
    let answer = |request: &StubRequest| {
        let headers = &request.headers;
        assert!(!headers.contains_key("upgrade"), "{headers:?}");
        assert!(!headers.contains_key("http2-settings"), "{headers:?}");
        let connection = headers.get_all("connection").iter().map(|value| value.to_str().unwrap());
        let mut connection = connection.map(str::to_lowercase);
        assert!(connection.all(|value| !value.contains("upgrade") && !value.contains("http2")));
        let text = if request.certificate.is_some() { "certificate" } else { "none" };
        let response = Response::builder().header("connection", "close");
        Some(response.body(Bytes::from(text)).unwrap())
    };
    StubServer::start_at(ip, Some(acceptor), answer).await.address
}

/// Makes a Node with this address and port of its agent.
pub async fn node(server: &TestServer, name: &str, kind: &str, address: &str, port: u16) {
    let object = json!({
        "metadata": {"name": name},
        "status": {
            "addresses": [{"type": kind, "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    });
    server.post("/api/v1/nodes", object.to_string()).await.expect(201);
}

#[tokio::test]
async fn only_the_port_of_a_node_s_agent_gets_the_certificate() {
    let Some(ip) = routed() else {
        println!(
            "SKIPPED only_the_port_of_a_node_s_agent_gets_the_certificate: only loopback here"
        );
        return;
    };
    let server = TestServer::start().await;
    let agent = asks_for_certificates(&server, ip).await;
    let other = asks_for_certificates(&server, ip).await;
    node(&server, "n", "InternalIP", &ip.to_string(), agent.port()).await;
    let shown = async |target: String| {
        let answer = server.get(&format!("/api/v1/nodes/{target}/proxy/x")).await;
        String::from_utf8_lossy(&answer.body).into_owned()
    };
    assert_eq!(shown("n".to_owned()).await, "certificate");
    assert_eq!(shown(format!("n:{}", agent.port())).await, "certificate");
    assert_eq!(shown(format!("https:n:{}", other.port())).await, "none");
    // An upgrade to h2c may be ignored.
    let request = Request::get("/api/v1/nodes/n/proxy/x")
        .header("host", "test")
        .header("connection", "Upgrade, HTTP2-Settings")
        .header("upgrade", "h2c")
        .header("http2-settings", "AAMAAABkAAQAAP__")
        .body(Full::default())
        .unwrap();
    let answer = server.send(request).await;
    assert_eq!((answer.code(), answer.body.as_ref()), (200, b"certificate".as_ref()));
}

#[tokio::test]
async fn addresses_that_lead_back_are_refused() {
    // The server itself, by an address other than loopback.
    let bind = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), 0);
    let server = TestServer::with(Config { bind, ..Config::for_tests(kubernetes()) }).await;
    server
        .post("/api/v1/namespaces/default/serviceaccounts", r#"{"metadata":{"name":"default"}}"#)
        .await
        .expect(201);
    let own = server.address();
    let mut nodes = vec![
        ("InternalIP", "127.0.0.1".to_owned(), 1),
        // Validation refuses these as addresses, but not as names.
        ("Hostname", "169.254.169.254".to_owned(), 1),
        ("InternalIP", "::1".to_owned(), 1),
        ("Hostname", "0.0.0.0".to_owned(), 1),
        ("Hostname", "localhost".to_owned(), 1),
        ("InternalIP", "10.96.0.1".to_owned(), 443),
    ];
    nodes.extend(routed().map(|ip| ("InternalIP", ip.to_string(), own.port())));
    for (number, (kind, address, port)) in nodes.into_iter().enumerate() {
        let name = format!("n{number}");
        node(&server, &name, kind, &address, port).await;
        for target in [name.clone(), format!("{name}:{}", own.port())] {
            let refused = server.get(&format!("/api/v1/nodes/{target}/proxy/x")).await.expect(400);
            assert_eq!(refused["message"], "address not allowed", "{address} {target}");
        }
    }
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    server.post(PODS, pod.to_string()).await.expect(201);
    let status = |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}}).to_string();
    let path = format!("{PODS}/p/status");
    server.merge_patch(&path, &status("127.0.0.1")).await.expect(422);
    if let Some(ip) = routed() {
        server.merge_patch(&path, &status(&ip.to_string())).await.expect(200);
        let target = format!("https:p:{}", own.port());
        let refused = server.get(&format!("{PODS}/{target}/proxy/x")).await.expect(400);
        assert_eq!(refused["message"], "address not allowed", "{target}");
    }
}

#[tokio::test]
async fn a_port_that_is_none_is_an_error() {
    let server = TestServer::start().await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    server.post(PODS, pod.to_string()).await.expect(201);
    for port in ["99999", "0", "-1", "web"] {
        let refused = server.get(&format!("{PODS}/p:{port}/proxy/")).await.expect(400);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(port) && message.contains("port"), "{message}");
    }
    node(&server, "n", "InternalIP", "192.0.2.1", 1).await;
    server.get("/api/v1/nodes/n:99999/proxy/").await.expect(400);
}
