//! `timeline` and `why` with a node that says what it did, and with one that does not.

use std::process::Stdio;

use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::{Value, json};
use tokio::process::Command;

/// An API server with one pod, whose node answers so.
async fn start(node: (u16, Value)) -> StubServer {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "False", "reason": "X", "lastTransitionTime": "2026-01-01T00:00:02Z"}],
            "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}}}]}});
    StubServer::start(move |request: &StubRequest| {
        let body = match request.path.as_str() {
            "/api" => json!({"versions": ["v1"]}),
            "/api/v1" => json!({"resources": [{"name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["get", "list"]}]}),
            "/api/v1/namespaces/default/pods/p" => pod.clone(),
            "/api/v1/nodes/n1/proxy/debug/pods/default/p" if request.query == "format=json" => {
                return Some(json_response(node.0, &node.1));
            }
            _ => json!({"groups": [], "items": []}),
        };
        Some(json_response(200, &body))
    })
    .await
}

/// Output and errors of the program.
async fn ask(server: &StubServer, arguments: &[&str]) -> (String, String) {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_orchctl"));
    command.args(["--server", &format!("http://{}", server.address)]).args(arguments);
    command.env_remove("KUBECONFIG").env("HOME", home.path()).stdin(Stdio::null());
    let output = command.output().await.expect("run");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn the_node_tells_its_steps_to_the_millisecond() {
    let step = json!({"step": "StartContainer { container: \"c\", id: \"i\", hook: false }",
        "began": "2026-01-01T00:00:01.200Z", "seconds": 0.0341, "outcome": "done", "why": "", "times": 1});
    let page = json!({"pod": null, "timelines": [{"uid": "u", "leftOut": 0, "steps": [step]}]});
    let server = start((200, page)).await;
    let (table, said) = ask(&server, &["timeline", "pod/p"]).await;
    assert_eq!(said, "");
    assert!(
        table.contains(
            "00:00:01.200   1.200s   1.200s   node, container c: StartContainer took 0.034s\n"
        ),
        "{table}"
    );
    assert!(table.contains("00:00:01.234   1.234s   0.034s   container c: started\n"), "{table}");
    let (trace, _) = ask(&server, &["timeline", "pod/p", "-o", "perfetto"]).await;
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    let entries = trace["traceEvents"].as_array().expect("a list");
    let is_step = |entry: &&Value| entry["pid"] == 2 && entry["ph"] == "X";
    let span = entries.iter().find(is_step).expect("a span");
    assert_eq!((&span["ts"], &span["dur"]), (&json!(1_200_000), &json!(34_100)));
    let (reasons, _) = ask(&server, &["why", "pod/p"]).await;
    let (_, start) = reasons.split_once("\n\nHow pod p started:\n").expect("a timeline");
    assert_eq!(start, table);
}

#[tokio::test]
async fn a_node_that_does_not_tell_is_named() {
    let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
        "message": "no \u{1b}[2J proxy"});
    let server = start((403, refusal)).await;
    let why = "only whole seconds are known: Error from server (Forbidden): no ^[[2J proxy";
    let (table, said) = ask(&server, &["timeline", "pod/p"]).await;
    assert_eq!(said, format!("{why}\n"));
    assert!(table.contains("00:00:01   1s      1s     container c: started\n"), "{table}");
    let (reasons, _) = ask(&server, &["why", "pod/p"]).await;
    assert!(reasons.contains(&format!("How pod p started ({why}):\n")), "{reasons}");

    let other = json!({"timelines": [{"uid": "another", "steps": []}]});
    let server = start((200, other)).await;
    let (_, said) = ask(&server, &["timeline", "pod/p"]).await;
    assert_eq!(
        said,
        "only whole seconds are known: node n1 does not know what it did for the pod\n"
    );
}
