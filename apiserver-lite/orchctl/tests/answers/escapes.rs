//! What a server says to people does not act on their terminal.

use std::process::Stdio;

use proto_client::testing::{StubRequest, StubServer, json_response};
use serde_json::json;
use tokio::process::Command;

const CONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
    contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n\
    clusters: [{name: k, cluster: {server: 'http://ADDRESS'}}]\n";

/// Each request has a warning, and those of one path are refused.
async fn start() -> StubServer {
    let refusal = || {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "no \u{1b}[2J\u{1b}]0;title\u{7}"})
    };
    StubServer::start(move |request: &StubRequest| {
        let mut response = match request.path.contains("/refused") {
            true => json_response(403, &refusal()),
            false => json_response(200, &json!({})),
        };
        // Of the controls, headers may have those from U+0080 on.
        let warning = "299 - \"old \u{9b}31m\"".as_bytes();
        response.headers_mut().insert("warning", warning.try_into().expect("a value"));
        Some(response)
    })
    .await
}

#[tokio::test]
async fn a_refusal_and_a_warning_do_not_act_on_the_terminal() {
    let address = start().await.address.to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("config");
    std::fs::write(&config, CONFIG.replace("ADDRESS", &address)).expect("a file");
    for (path, expected) in
        [("/warned", "Warning: old \\u{9b}31m"), ("/refused", "no ^[[2J^[]0;title\\u{7}")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_orchctl"));
        command.arg("--kubeconfig").arg(&config).args(["get", "--raw", path]);
        let output = command.stdin(Stdio::null()).output().await.expect("run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected), "{said:?}");
        assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
    }
}
