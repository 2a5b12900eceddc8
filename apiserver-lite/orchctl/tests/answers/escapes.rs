//! What a server says to people does not act on their terminal.

use std::process::Stdio;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

const STATUS: &str = r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403,
    "message": "no \u001b[2J\u001b]0;title\u0007"}"#;
const CONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
    contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {}}]\n\
    clusters: [{name: k, cluster: {server: 'http://ADDRESS'}}]\n";

/// Answers each request with a warning, and those of one path with a refusal.
async fn answer(mut socket: TcpStream) {
    let mut head = [0; 4096];
    let len = socket.read(&mut head).await.unwrap_or_default();
    let (line, body) = match String::from_utf8_lossy(&head[..len]).contains("/refused") {
        true => ("403 Forbidden", STATUS),
        false => ("200 OK", "{}"),
    };
    let len = body.len();
    // Of the controls, headers may have those from U+0080 on.
    let answer = format!(
        "HTTP/1.1 {line}\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\
         Warning: 299 - \"old \u{9b}31m\"\r\nConnection: close\r\n\r\n{body}"
    );
    let _ = socket.write_all(answer.as_bytes()).await;
}

#[tokio::test]
async fn a_refusal_and_a_warning_do_not_act_on_the_terminal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer(socket));
        }
    });
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
