//! What clients do not read, and whom it concerns.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use serde_json::json;

use crate::support::TestServer;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn watch_as(account: &str) -> Request<Full<Bytes>> {
    Request::get("https://test/api/v1/namespaces/default/configmaps?watch=1")
        .header("impersonate-user", account)
        .header("impersonate-group", "system:masters")
        .body(Full::default())
        .expect("valid")
}

/// How long an event that has to come may take, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long no event may come.
const SILENCE: Duration = Duration::from_secs(2);

/// Whether the first event of a watch comes in this time.
async fn has_event(response: &mut Response<Incoming>, within: Duration) -> bool {
    let first = response.body_mut().frame();
    tokio::time::timeout(within, first).await.is_ok_and(|frame| frame.is_some())
}

/// Watches of accounts of the namespace `team` that nothing is read of: more than its share.
async fn leave_unread(stalled: &mut SendRequest<Full<Bytes>>) -> Vec<Response<Incoming>> {
    let mut unread = Vec::new();
    for n in 0..60 {
        let account = format!("system:serviceaccount:team:x{n}");
        let response = stalled.send_request(watch_as(&account)).await.expect("answered");
        assert_eq!(response.status(), 200);
        unread.push(response);
    }
    unread
}

/// A ConfigMap of a MiB that is 6 MiB as JSON.
async fn create_large(server: &TestServer) {
    let text = "<".repeat((1 << 20) - 1);
    let map = json!({"metadata": {"name": "large"}, "data": {"k": text}});
    server.post(CONFIG_MAPS, map.to_string()).await.expect(201);
}

/// Of a ConfigMap of 1 MiB that is 6 MiB as JSON, each watch copied the whole: a few hundred whose client does not read filled the memory.
#[tokio::test]
async fn what_the_accounts_of_a_namespace_do_not_read_has_a_bound_and_concerns_no_other() {
    let server = TestServer::start().await;
    create_large(&server).await;
    let mut stalled = server.http2_with_window(1 << 10).await;
    let unread = leave_unread(&mut stalled).await;
    let mut sender = server.http2().await;
    let mut open =
        async |account: &str| sender.send_request(watch_as(account)).await.expect("answered");
    let mut same = open("system:serviceaccount:team:reader").await;
    assert!(!has_event(&mut same, SILENCE).await, "its namespace has its share");
    let mut other = open("system:serviceaccount:other:reader").await;
    assert!(has_event(&mut other, PATIENCE).await);
    drop((unread, stalled));
    assert!(has_event(&mut same, PATIENCE).await, "what is not wanted any more is free again");
}

/// A client that gets 429 sends its request again: a refused response of a write that is stored made another object.
#[tokio::test]
async fn a_write_that_is_done_is_not_refused_for_what_its_user_has_not_read() {
    let server = TestServer::start().await;
    create_large(&server).await;
    let mut stalled = server.http2_with_window(1 << 10).await;
    let unread = leave_unread(&mut stalled).await;
    // Until all of the share is taken.
    let mut same = stalled.send_request(watch_as("system:serviceaccount:team:y")).await.unwrap();
    assert!(!has_event(&mut same, SILENCE).await);
    let account = "system:serviceaccount:team:z";
    let call = async |method: Method, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path).header("host", "test");
        let request = request.header("content-type", "application/json");
        let request = request.header("impersonate-user", account);
        server.send(request.body(Full::new(Bytes::from(body))).expect("valid")).await
    };
    let map = json!({"metadata": {"generateName": "a-"}, "data": {"k": "x".repeat(8 << 10)}});
    let made = call(Method::POST, CONFIG_MAPS, map.to_string()).await.expect(201);
    let path = format!("{CONFIG_MAPS}/{}", made["metadata"]["name"].as_str().expect("a name"));
    assert_eq!(call(Method::GET, &path, String::new()).await.code(), 429);
    call(Method::DELETE, &path, String::new()).await.expect(200);
    drop((unread, same, stalled));
}

/// Watches, logs and sessions that are not HTTP any more once they have begun had no place, and so no bound.
#[tokio::test]
async fn a_stream_over_websocket_is_in_flight_until_it_ends() {
    let server = TestServer::start().await;
    let in_flight = async || {
        let metrics = server.get("/metrics").await;
        let text = String::from_utf8_lossy(&metrics.body).into_owned();
        let line = text.lines().find(|line| {
            line.starts_with("apiserver_current_inflight_requests") && line.contains("longRunning")
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).unwrap_or(0)
    };
    let before = in_flight().await;
    let path = "/api/v1/namespaces/default/serviceaccounts?watch=1";
    let mut socket = server.websocket(path).await;
    let first = futures_util::StreamExt::next(&mut socket).await.expect("an event");
    assert!(first.expect("a message").is_text());
    assert_eq!(in_flight().await, before + 1);
    drop(socket);
    while in_flight().await > before {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
