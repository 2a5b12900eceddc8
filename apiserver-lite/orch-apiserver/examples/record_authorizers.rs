//! Records the answers of Kubernetes' own server to the requests of `tests/api/authorizers/*.tsv`: `record_authorizers KUBE_APISERVER ETCD [TABLE...]`. It
//! starts the server once for each table, on loopback, and writes codes and messages into the table.
#![allow(clippy::expect_used, clippy::panic, reason = "a recorder that cannot go on has failed")]

#[path = "../tests/api/authorizers/fixture.rs"]
mod fixture;

use std::path::{Path, PathBuf};
use std::time::Duration;

use kubernetes_server::api_server::{KubernetesServer, Wanted, log_of};
use kubernetes_server::etcd::Durability;
use kubernetes_server::ports::free_port;
use serde_json::Value;

use fixture::{CLIENT, World};

/// The tables, each with the modules of its server.
const TABLES: [(&str, &str); 10] = [
    ("always-allow.tsv", "AlwaysAllow"),
    ("always-deny.tsv", "AlwaysDeny"),
    ("abac.tsv", "ABAC"),
    ("abac-rbac.tsv", "ABAC,RBAC"),
    ("webhook.tsv", "Webhook"),
    ("webhook-rbac.tsv", "Webhook,RBAC"),
    ("node-rbac.tsv", "Node,RBAC"),
    ("rbac-node.tsv", "RBAC,Node"),
    ("node-as-roles.tsv", "RBAC"),
    ("node-always-allow.tsv", "AlwaysAllow"),
];

#[tokio::main]
async fn main() {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(server), Some(etcd)) = (args.next(), args.next()) else {
        panic!("usage: record_authorizers KUBE_APISERVER ETCD [TABLE...]");
    };
    let chosen: Vec<PathBuf> = args.collect();
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/authorizers");
    for (table, modes) in TABLES {
        if chosen.is_empty() || chosen.iter().any(|one| one == Path::new(table)) {
            let world = World::start().await;
            record(&world, &tables.join(table), modes, (&server, &etcd)).await;
        }
    }
}

async fn record(world: &World, table: &Path, modes: &str, (server, etcd): (&Path, &Path)) {
    let port = free_port().expect("a port");
    let flag = |name: &str, value: &str| format!("--{name}={value}");
    let file = |name: &str| world.file(name).display().to_string();
    std::fs::write(world.file("sa.key"), include_str!("../../token/testdata/rsa.key"))
        .expect("written");
    let mut flags = vec![
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
        flag("authorization-mode", modes),
        // The server that is compared has it, and it restricts kubelets only.
        flag("enable-admission-plugins", "NodeRestriction"),
    ];
    let has = |module: &str| modes.split(',').any(|one| one == module);
    if has("ABAC") {
        flags.push(flag("authorization-policy-file", &file("policies.jsonl")));
    }
    if has("Webhook") {
        flags.push(flag("authorization-webhook-config-file", &file("webhook.conf")));
        flags.push(flag("authorization-webhook-version", "v1"));
    }
    let directory = world.dir.path();
    let wanted = Wanted {
        kube_apiserver: server,
        etcd,
        directory,
        logs: directory,
        durability: Durability::Unsynced,
        flags,
    };
    let running = KubernetesServer::start(&wanted).expect("started");
    wait_until_ready(port, &log_of(directory)).await;
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
    running.stop().await.expect("stopped");
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
    let [who, method, path, body, ref rest @ ..] = columns[..] else {
        panic!("four columns: {row}")
    };
    // Behind the recorded answer stands what the compared server answers otherwise, and why.
    let explained: String = rest.iter().skip(2).map(|column| format!("\t{column}")).collect();
    let (name, impersonated) = who.split_once(" as ").unwrap_or((who, ""));
    let token = world.bearer(name);
    let token = if impersonated.is_empty() { token } else { format!("{token} as {impersonated}") };
    let (code, answer) = curl(port, &token, method, path, body).await;
    if method != "GET" && code < 300 {
        // What nodes may read follows the objects by watches of the server's own.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let answer = if code >= 400 {
        answer["message"].as_str().unwrap_or_default().replace('\n', "\\n")
    } else if answer["status"].is_object() && path.contains("reviews") {
        answer["status"].to_string()
    } else {
        String::new()
    };
    format!("{who}\t{method}\t{path}\t{body}\t{code}\t{answer}{explained}")
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
