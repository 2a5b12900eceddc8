//! `get cs`: the health of controller manager, scheduler and store, looked up by each request.

use std::net::{Ipv4Addr, SocketAddr};

use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orch_apiserver::Config;
use orch_apiserver::config::ComponentAddresses;
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};

use crate::support::{TestServer, kubernetes};
use crate::tls;

const STATUSES: &str = "/api/v1/componentstatuses";

/// A program whose health page answers this.
async fn program(code: StatusCode, text: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (acceptor, _) = tls::self_signed(&["localhost"], None);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(socket).await else { continue };
            let answer = service_fn(move |request: http::Request<Incoming>| async move {
                let found = request.uri().path() == "/healthz" && request.method() == "GET";
                let code = if found { code } else { StatusCode::NOT_FOUND };
                let body = Full::new(Bytes::from_static(text.as_bytes()));
                Response::builder().status(code).body(body)
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), answer));
        }
    });
    address
}

async fn server(controller_manager: SocketAddr, scheduler: SocketAddr) -> TestServer {
    let component_addresses = ComponentAddresses { controller_manager, scheduler };
    TestServer::with(Config { component_addresses, ..Config::for_tests(kubernetes()) }).await
}

fn rows(table: &Value) -> Vec<Vec<&str>> {
    let rows = table["rows"].as_array().expect("rows");
    rows.iter()
        .map(|row| {
            let cells = row["cells"].as_array().expect("cells");
            cells.iter().map(|cell| cell.as_str().unwrap_or_default()).collect()
        })
        .collect()
}

#[tokio::test]
async fn component_statuses_are_the_health_of_the_programs() {
    let healthy = program(StatusCode::OK, "ok").await;
    let sick = program(StatusCode::INTERNAL_SERVER_ERROR, "leader election: failed").await;
    let server = server(healthy, sick).await;
    let reply = server.accept(STATUSES, "application/json;as=Table;g=meta.k8s.io;v=v1").await;
    let table = reply.expect(200);
    let expected: [[&str; 4]; 3] = [
        ["controller-manager", "Healthy", "ok", ""],
        ["etcd-0", "Healthy", "{\"health\":\"true\",\"reason\":\"\"}", ""],
        ["scheduler", "Unhealthy", "HTTP probe failed with statuscode: 500", ""],
    ];
    assert_eq!(rows(&table), expected);
    let warning = reply.headers["warning"].to_str().unwrap();
    assert!(warning.contains("v1 ComponentStatus is deprecated in v1.19+"), "{warning}");

    let one = server.get(&format!("{STATUSES}/scheduler")).await.expect(200);
    assert_eq!(one["conditions"][0]["type"], "Healthy");
    assert_eq!(one["conditions"][0]["status"], "False");
    server.get(&format!("{STATUSES}/kubelet")).await.expect(404);
    let selected = format!("{STATUSES}?fieldSelector=metadata.name%3Detcd-0");
    let selected = server.get(&selected).await.expect(200);
    assert_eq!(selected["kind"], "ComponentStatusList");
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(selected["items"][0]["conditions"][0]["status"], "True");
    server.delete(&format!("{STATUSES}/scheduler")).await.expect(405);
}

#[tokio::test]
async fn programs_that_do_not_answer_are_unhealthy_in_bounded_time() {
    // A port that nothing listens at, which the socket keeps from others, and one that takes connections and says nothing.
    let nothing = TcpSocket::new_v4().unwrap();
    nothing.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let refused = nothing.local_addr().unwrap();
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let server = server(refused, silent.local_addr().unwrap()).await;
    let list = server.get(STATUSES).await.expect(200);
    let message = |nth: usize| list["items"][nth]["conditions"][0]["message"].as_str().unwrap();
    let status = |nth: usize| list["items"][nth]["conditions"][0]["status"].as_str().unwrap();
    assert_eq!((status(0), status(1), status(2)), ("False", "True", "False"));
    let (one, other) = (message(0), message(2));
    assert!(one.starts_with(&format!("Get \"https://{refused}/healthz\": ")), "{one}");
    assert!(one.to_lowercase().contains("connection refused"), "{one}");
    assert!(other.contains("no response within"), "{other}");
}
