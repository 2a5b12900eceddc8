//! Records the answers of Kubernetes' own server to the requests of `tests/api/authorizers/*.tsv`: `record_authorizers KUBE_APISERVER ETCD`. It starts the
//! server once for each table, on loopback, and writes codes and messages into the table.
#![allow(clippy::expect_used, clippy::panic, reason = "a recorder that cannot go on has failed")]

#[path = "../tests/api/authorizers/fixture.rs"]
mod fixture;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use fixture::{CLIENT, World};

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(program: &Path, log: &Path, args: Vec<String>) -> Running {
    let log = std::fs::File::create(log).expect("a log");
    let child = Command::new(program)
        .args(args)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
    Running(child)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[tokio::main]
async fn main() {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(server), Some(etcd)) = (args.next(), args.next()) else {
        panic!("usage: record_authorizers KUBE_APISERVER ETCD");
    };
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/authorizers");
    for (table, mode) in [("abac.tsv", "ABAC"), ("webhook.tsv", "Webhook")] {
        let world = World::start().await;
        record(&world, &tables.join(table), mode, (&server, &etcd)).await;
    }
}

async fn record(world: &World, table: &Path, mode: &str, (server, etcd): (&Path, &Path)) {
    let (port, store, peers) = (free_port(), free_port(), free_port());
    let store = format!("http://127.0.0.1:{store}");
    let peers = format!("http://127.0.0.1:{peers}");
    let flag = |name: &str, value: &str| format!("--{name}={value}");
    let file = |name: &str| world.file(name).display().to_string();
    let _etcd = start(
        etcd,
        &world.file("etcd.log"),
        vec![
            flag("data-dir", &file("etcd")),
            flag("listen-client-urls", &store),
            flag("advertise-client-urls", &store),
            flag("listen-peer-urls", &peers),
            flag("initial-advertise-peer-urls", &peers),
            flag("initial-cluster", &format!("default={peers}")),
        ],
    );
    std::fs::write(world.file("sa.key"), include_str!("../../token/testdata/rsa.key"))
        .expect("written");
    let mut flags = vec![
        flag("etcd-servers", &store),
        flag("bind-address", "127.0.0.1"),
        flag("advertise-address", "127.0.0.1"),
        flag("secure-port", &port.to_string()),
        flag("cert-dir", &file("certs")),
        flag("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
        flag("service-account-key-file", &file("sa.key")),
        flag("service-account-signing-key-file", &file("sa.key")),
        flag("token-auth-file", &file("tokens.csv")),
        flag("oidc-issuer-url", &world.issuer),
        flag("oidc-client-id", CLIENT),
        flag("oidc-username-prefix", "oidc:"),
        flag("oidc-groups-claim", "groups"),
        flag("oidc-groups-prefix", "oidc:"),
        flag("oidc-ca-file", &file("oidc.crt")),
        flag("authorization-mode", mode),
    ];
    flags.extend(match mode {
        "ABAC" => vec![flag("authorization-policy-file", &file("policies.jsonl"))],
        _ => vec![
            flag("authorization-webhook-config-file", &file("webhook.conf")),
            flag("authorization-webhook-version", "v1"),
        ],
    });
    let log = world.file("server.log");
    let _server = start(server, &log, flags);
    wait_until_ready(port, &log).await;
    // The identity provider is asked for its keys some time after the start.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let text = std::fs::read_to_string(table).expect("a table");
    let mut recorded = String::new();
    for line in text.lines() {
        recorded.push_str(&match line.starts_with('#') {
            true => line.to_owned(),
            false => answered(world, port, line).await,
        });
        recorded.push('\n');
    }
    std::fs::write(table, recorded).expect("written");
}

async fn wait_until_ready(port: u16, log: &Path) {
    for _ in 0..240 {
        // Anonymous clients may not read /readyz: any answer will do.
        if matches!(curl(port, "jane", "GET", "/version", "").await, (200 | 403, _)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    panic!("the server is not ready:\n{}", std::fs::read_to_string(log).unwrap_or_default());
}

/// A row with its answer.
async fn answered(world: &World, port: u16, row: &str) -> String {
    let columns: Vec<&str> = row.split('\t').collect();
    let [who, method, path, body, ..] = columns[..] else { panic!("four columns: {row}") };
    let (name, impersonated) = who.split_once(" as ").unwrap_or((who, ""));
    let token = world.bearer(name);
    let token = if impersonated.is_empty() { token } else { format!("{token} as {impersonated}") };
    let (code, answer) = curl(port, &token, method, path, body).await;
    let answer = if code >= 400 {
        answer["message"].as_str().unwrap_or_default().replace('\n', "\\n")
    } else if answer["status"].is_object() && path.contains("reviews") {
        answer["status"].to_string()
    } else {
        String::new()
    };
    format!("{who}\t{method}\t{path}\t{body}\t{code}\t{answer}")
}

/// Code and body of an answer.
async fn curl(port: u16, who: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (token, impersonated) = who.split_once(" as ").unwrap_or((who, ""));
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut command = tokio::process::Command::new("curl");
    command.args(["-sk", "-m", "60", "-w", "\n%{http_code}", "-X", method]);
    command.args(["-H", &format!("Content-Type: {media}")]);
    if token != "-" {
        command.args(["-H", &format!("Authorization: Bearer {token}")]);
    }
    if !impersonated.is_empty() {
        command.args(["-H", &format!("Impersonate-User: {impersonated}")]);
    }
    if !body.is_empty() {
        command.args(["-d", body]);
    }
    command.arg(format!("https://127.0.0.1:{port}{path}"));
    let output = command.output().await.expect("curl");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap_or(("", "0"));
    (code.parse().unwrap_or(0), serde_json::from_str(body).unwrap_or_default())
}
