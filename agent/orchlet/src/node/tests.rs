//! The registration of a node, and its heartbeat beside everything that hangs.

use std::net::SocketAddr;

use agent_runtime::fake::FakeRuntime;
use agent_workers::test_support::plain_context;
use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode};
use proto_client::testing::{StubRequest, StubServer, json_response};
use proto_daemon::drain::Drain;
use proto_daemon::statusz::StatusBoard;
use tokio::sync::mpsc;

use super::*;

/// Long enough for a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// The shortest lease: renewed every second.
const LASTS_SECS: u16 = 4;

/// Method and path of a request, and the client's end of its connection.
type Received = (Method, String, SocketAddr);

/// A server that answers requests for leases, each with what it was sent, and no others, ever.
async fn server() -> (StubServer, mpsc::UnboundedReceiver<Received>) {
    let (sender, received) = mpsc::unbounded_channel();
    let answer = move |request: &StubRequest| {
        let _ = sender.send((request.method.clone(), request.path.clone(), request.client));
        request.path.contains("/leases").then(|| answer_lease(request))
    };
    (StubServer::start(answer).await, received)
}

/// There is no lease yet; one that is written is returned.
fn answer_lease(request: &StubRequest) -> Response<Bytes> {
    if request.method == Method::GET {
        let missing = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "reason": "NotFound", "code": 404,
        });
        return json_response(404, &missing);
    }
    let mut response = Response::new(request.body.clone());
    *response.status_mut() = match request.method {
        Method::POST => StatusCode::CREATED,
        _ => StatusCode::OK,
    };
    let content_type = request.headers.get("content-type").cloned();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/json"));
    response.headers_mut().insert("content-type", content_type);
    response
}

#[tokio::test]
async fn the_lease_is_renewed_while_everything_else_hangs() {
    let (server, mut received) = server().await;
    let client = server.client();
    let reading = client.clone();
    let hangs = tokio::spawn(async move { reading.all::<Node>().get("n").await.map(|_| ()) });
    let (_, path, of_others) = received.recv().await.expect("a request");
    assert!(path.ends_with("/nodes/n"), "{path}");

    let (_keep, node) = watch::channel(Some(Arc::new(Node::default())));
    let (drain, board) = (Drain::default(), StatusBoard::default());
    let own = client.separate().expect("client");
    let lease = ("n".to_owned(), LASTS_SECS);
    tokio::spawn(renew(own, lease, node, board.task("lease"), drain.watch()));
    let mut renewals = 0;
    while renewals < 3 {
        let next = tokio::time::timeout(PATIENCE, received.recv()).await;
        let (method, path, peer) = next.expect("in time").expect("the server runs");
        assert!(path.contains("/leases"), "{path}");
        assert_ne!(peer, of_others, "over a connection of its own");
        renewals += usize::from(method == Method::PUT);
    }
    assert!(!hangs.is_finished(), "it hangs all the while");
}

/// A server without the Node, which takes what is written. Gives the bodies of events.
async fn empty_server() -> (StubServer, mpsc::UnboundedReceiver<String>) {
    let (sender, events) = mpsc::unbounded_channel();
    let answer = move |request: &StubRequest| {
        if request.path.ends_with("/events") {
            let _ = sender.send(String::from_utf8_lossy(&request.body).into_owned());
        }
        Some(answer_lease(request))
    };
    (StubServer::start(answer).await, events)
}

#[tokio::test]
async fn a_new_node_has_events_of_its_first_conditions() {
    let (server, mut events) = empty_server().await;
    let (client, drain) = (server.client(), Drain::default());
    let (recorder, writer) = proto_client::events::recorder(client.clone(), "orchlet", "n");
    tokio::spawn(writer.run(drain.watch()));
    let directory = tempfile::tempdir().expect("tempdir");
    let task = NodeTask {
        client,
        machine: MachineInfo { name: "n".into(), ..MachineInfo::default() },
        shared: plain_context(Arc::new(FakeRuntime::new().0), directory.path()),
        register: true,
        check_every: Duration::from_secs(10),
        report_every: Duration::from_secs(300),
        images_max: 50,
        events: NodeEvents::new(Some(recorder), "n"),
        node: watch::Sender::default(),
    };
    task.register_node().await.expect("registered");
    for reason in ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
        let next = tokio::time::timeout(PATIENCE, events.recv()).await;
        let event = next.expect("in time").expect("the server runs");
        let message = format!("Node n status is now: {reason}");
        assert!(event.contains(&message), "{event}");
    }
}
