//! Servers that share an etcd: what one has answered every other shows, watches go on across them, and what etcd does not answer is an error.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use orch_apiserver::Config;
use orch_apiserver::config::{EncryptionSettings, EtcdSettings, Storage};
use serde_json::{Value, json};

use crate::encryption::{configure, replace_by_itself};
use crate::support::{Api, TestServer, kubernetes};

#[path = "../../../store-etcd/tests/etcd/etcd_process.rs"]
#[allow(dead_code, reason = "the tests of the store use the rest")]
pub mod etcd_process;

use etcd_process::EtcdProcess;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn config(etcd: &EtcdProcess) -> Config {
    config_of(std::slice::from_ref(etcd))
}

fn config_of(members: &[EtcdProcess]) -> Config {
    let mut config = Config::for_tests(kubernetes());
    config.storage = Storage::Etcd(EtcdSettings {
        servers: members.iter().map(EtcdProcess::url).collect(),
        prefix: "/registry".to_owned(),
        authority: None,
        client: None,
        user: None,
        compaction_interval: Duration::from_secs(300),
    });
    config
}

/// Two servers that start at the same time.
async fn two(etcd: &EtcdProcess) -> [TestServer; 2] {
    let (one, other) = tokio::join!(TestServer::with(config(etcd)), TestServer::with(config(etcd)));
    [one, other]
}

fn map(name: &str, value: &str) -> String {
    json!({"metadata": {"name": name}, "data": {"a": value}}).to_string()
}

fn revision(of: &Value) -> String {
    of["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned()
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_one_server_are_visible_at_the_other_at_once() {
    let name = "writes_of_one_server_are_visible_at_the_other_at_once";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let [one, other] = two(&etcd).await;
    for round in 0..30 {
        let (name, path) = (format!("m{round}"), format!("{MAPS}/m{round}"));
        let made = one.post(MAPS, map(&name, "1")).await.expect(201);
        let listed = other.get(MAPS).await.expect(200);
        assert!(names(&listed).contains(&name.as_str()));
        assert!(revision(&listed).parse::<u64>().unwrap() >= revision(&made).parse().unwrap());
        // Each write is decided on what the other server has written before.
        other.post(MAPS, map(&name, "2")).await.expect(409);
        let mut read = other.get(&path).await.expect(200);
        assert_eq!(read, made);
        read["data"]["a"] = json!("3");
        let written = other.put(&path, &read).await.expect(200);
        one.put(&path, &read).await.expect(409);
        let patched = one.merge_patch(&path, r#"{"data":{"b":"4"}}"#).await.expect(200);
        assert_eq!(patched["data"], json!({"a": "3", "b": "4"}));
        assert_ne!(revision(&patched), revision(&written));
        let at = format!("{path}?resourceVersion={}", revision(&patched));
        assert_eq!(other.get(&at).await.expect(200), patched);
        other.delete(&path).await.expect(200);
        one.get(&path).await.expect(404);
        other.get(&path).await.expect(404);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_and_watches_go_on_at_another_server() {
    let Some(etcd) = EtcdProcess::start("lists_and_watches_go_on_at_another_server") else {
        return;
    };
    let [one, other] = two(&etcd).await;
    for nth in 0..6 {
        one.post(MAPS, map(&format!("m{nth}"), "1")).await.expect(201);
    }
    // The pages of a list at alternating servers are of one revision.
    let first = one.get(&format!("{MAPS}?limit=4&labelSelector=")).await.expect(200);
    one.delete(&format!("{MAPS}/m5")).await.expect(200);
    let next = first["metadata"]["continue"].as_str().expect("more");
    let rest = other.get(&format!("{MAPS}?limit=4&continue={next}")).await.expect(200);
    assert_eq!(revision(&first), revision(&rest));
    assert_eq!([names(&first), names(&rest)].concat(), ["m0", "m1", "m2", "m3", "m4", "m5"]);

    let from = |revision: &str| format!("{MAPS}?watch=true&resourceVersion={revision}");
    let mut watch = other.watch(&from(&revision(&first))).await;
    assert_eq!(watch.next_short().await, "DELETED m5");
    one.merge_patch(&format!("{MAPS}/m0"), r#"{"data":{"a":"2"}}"#).await.expect(200);
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["data"]["a"]), (&json!("MODIFIED"), &json!("2")));
    drop(watch);
    // As kubectl and informers resume: from the last event, wherever they connect to.
    let last = revision(&event["object"]);
    other.post(MAPS, map("after", "1")).await.expect(201);
    for server in [&one, &other] {
        let mut watch = server.watch(&from(&last)).await;
        assert_eq!(watch.next_short().await, "ADDED after");
    }
    // A watch without a revision begins with all that was answered.
    other.post(MAPS, map("newest", "1")).await.expect(201);
    let mut watch = one.watch(&format!("{MAPS}?watch=true")).await;
    let mut seen = HashSet::new();
    while !seen.contains("ADDED newest") {
        seen.insert(watch.next_short().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_at_the_same_time_all_start() {
    let name = "servers_that_start_at_the_same_time_all_start";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    // Each wants to create the Service of the API servers, whose address only one gets.
    let servers = join_all((0..8).map(|_| TestServer::with(config(&etcd)))).await;
    let services: Vec<Value> =
        join_all(servers.iter().map(async |server| server.get(SERVICES).await.expect(200))).await;
    for list in &services {
        assert_eq!(names(list), ["kubernetes"]);
        assert_eq!(list["items"], services[0]["items"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_address_or_port_is_given_out_twice() {
    let Some(etcd) = EtcdProcess::start("no_address_or_port_is_given_out_twice") else { return };
    let servers = two(&etcd).await;
    let service = |name: &str, more: Value| {
        let mut spec = json!({"type": "NodePort", "ports": [{"port": 80}]});
        for (key, value) in more.as_object().expect("fields") {
            spec[key] = value.clone();
        }
        json!({"metadata": {"name": name}, "spec": spec}).to_string()
    };
    // Both ask for the same address at the same time.
    for round in 0..10 {
        let address = format!("10.96.200.{}", 10 + round);
        let asked = json!({"clusterIP": address});
        let bodies =
            [service(&format!("a{round}"), asked.clone()), service(&format!("b{round}"), asked)];
        let [one, other] = &servers;
        let [first, second] = bodies;
        let (first, second) = tokio::join!(one.post(SERVICES, first), other.post(SERVICES, second));
        let mut codes = [first.code(), second.code()];
        codes.sort_unstable();
        assert!(matches!(codes, [201, 422 | 429]), "{codes:?}");
        let again = service(&format!("c{round}"), json!({"clusterIP": address}));
        for server in &servers {
            server.post(SERVICES, again.clone()).await.expect(422);
        }
        let made = if first.code() == 201 { "a" } else { "b" };
        other.delete(&format!("{SERVICES}/{made}{round}")).await.expect(200);
        one.post(SERVICES, again).await.expect(201);
    }
    let (mut addresses, mut ports) = (HashSet::new(), HashSet::new());
    let list = servers[0].get(SERVICES).await.expect(200);
    for item in list["items"].as_array().expect("items") {
        assert!(addresses.insert(item["spec"]["clusterIP"].to_string()));
        for port in item["spec"]["ports"].as_array().expect("ports") {
            if let Some(port) = port["nodePort"].as_u64() {
                assert!(ports.insert(port));
            }
        }
    }
    assert_eq!(addresses.len(), 11, "with the server's own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_made_at_one_server_is_served_by_the_other() {
    let name = "a_definition_made_at_one_server_is_served_by_the_other";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let [one, other] = two(&etcd).await;
    let definition = json!({
        "metadata": {"name": "tables.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "tables", "singular": "table", "kind": "Table"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true,
            }}}],
        },
    });
    one.post(DEFINITIONS, definition.to_string()).await.expect(201);
    let path = format!("{DEFINITIONS}/tables.example.com");
    let established = async |server: &TestServer| {
        let read = server.get(&path).await.expect(200);
        let conditions = read["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
    };
    while !established(&other).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let tables = "/apis/example.com/v1/namespaces/default/tables";
    let table =
        r#"{"apiVersion":"example.com/v1","kind":"Table","metadata":{"name":"t"},"legs":4}"#;
    other.post(tables, table).await.expect(201);
    assert_eq!(one.get(&format!("{tables}/t")).await.expect(200)["legs"], 4);
    one.delete(&path).await.expect(200);
    while other.get(&path).await.code() == 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.get(&format!("{tables}/t")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_hold_across_servers() {
    let Some(etcd) = EtcdProcess::start("quotas_hold_across_servers") else { return };
    let servers = two(&etcd).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for name in ["q1", "q2"] {
        let quota =
            json!({"metadata": {"name": name}, "spec": {"hard": {"count/configmaps": "5"}}});
        servers[0].post(quotas, quota.to_string()).await.expect(201);
        let status = json!({"status": {"hard": {"count/configmaps": "5"}, "used": {"count/configmaps": "0"}}});
        let path = format!("{quotas}/{name}/status");
        servers[0].merge_patch(&path, &status.to_string()).await.expect(200);
    }
    let listed = servers[1].get(quotas).await.expect(200);
    let creations = (0..16).map(|nth| {
        let server = &servers[nth % 2];
        async move { server.post(MAPS, map(&format!("m{nth}"), "1")).await.code() }
    });
    let codes = futures_util::future::join_all(creations).await;
    let made = codes.iter().filter(|code| **code == 201).count();
    assert!(codes.iter().all(|code| [201, 403, 409].contains(code)), "{codes:?}");
    assert!((1..=5).contains(&made), "{codes:?}");
    for name in ["q1", "q2"] {
        let quota = servers[1].get(&format!("{quotas}/{name}")).await.expect(200);
        assert_eq!(quota["status"]["used"]["count/configmaps"], made.to_string(), "{name}");
    }
    // Both quotas change in one transaction: a client that has seen the first of the two events continues after it and gets the second.
    let from = revision(&listed);
    let mut watch = servers[1].watch(&format!("{quotas}?watch=true&resourceVersion={from}")).await;
    let first = watch.next().await.expect("an event");
    drop(watch);
    let from = revision(&first["object"]);
    let mut watch = servers[0].watch(&format!("{quotas}?watch=true&resourceVersion={from}")).await;
    let mut seen = HashSet::new();
    while seen.len() < 2 {
        let event = watch.next().await.expect("an event");
        if revision(&event["object"]) == from {
            seen.insert(event["object"]["metadata"]["name"].to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_etcd_writes_and_consistent_reads_fail_and_come_back() {
    let name = "without_etcd_writes_and_consistent_reads_fail_and_come_back";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let server = TestServer::with(config(&etcd)).await;
    server.post(MAPS, map("a", "1")).await.expect(201);
    assert!(server.anonymous("/readyz").await.code() == 200);
    let mut watch = server.watch(&format!("{MAPS}?watch=true")).await;
    while watch.next_short().await != "ADDED a" {}
    etcd.kill();
    while server.get("/readyz").await.code() == 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let check = server.get("/readyz/etcd").await;
    assert_eq!(check.code(), 500);
    let refused = server.post(MAPS, map("b", "1")).await.expect(503);
    assert!(refused["message"].as_str().unwrap_or_default().contains("etcd"), "{refused}");
    server.get(MAPS).await.expect(503);
    server.get(&format!("{MAPS}/a")).await.expect(503);
    server.delete(&format!("{MAPS}/a")).await.expect(503);
    // What may be old is read from memory.
    let cached = server.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
    assert!(names(&cached).contains(&"a"));
    assert_eq!(server.get("/livez").await.code(), 200, "a restart would not help");
    etcd.restart();
    while server.get("/readyz").await.code() != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.get(&format!("{MAPS}/b")).await.expect(404);
    server.post(MAPS, map("b", "1")).await.expect(201);
    assert_eq!(watch.next_short().await, "ADDED b", "the watch has missed nothing");
}

/// Waits until a server says that it is ready, or that it is not.
async fn until_ready(server: &TestServer, ready: bool) {
    while (server.get("/readyz").await.code() == 200) != ready {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_written_and_nothing_old_is_read() {
    let name = "without_a_quorum_nothing_is_written_and_nothing_old_is_read";
    // On a busy machine too they keep their leader.
    let flags = &["--heartbeat-interval=300", "--election-timeout=3000"];
    let Some(mut members) = EtcdProcess::start_members(name, 3, None, flags) else { return };
    let start = || TestServer::with(config_of(&members));
    let servers = [start().await, start().await];
    let [one, other] = &servers;
    let made = one.post(MAPS, map("a", "1")).await.expect(201);
    let from = format!("{MAPS}?watch=true&resourceVersion={}", revision(&made));
    let mut watches = [one.watch(&from).await, other.watch(&from).await];
    members.iter_mut().take(2).for_each(EtcdProcess::kill);
    // Before the servers have noticed it and afterwards.
    for _ in 0..2 {
        for server in &servers {
            let refused = server.post(MAPS, map("refused", "1")).await;
            assert!(matches!(refused.code(), 500 | 503 | 504), "{}", refused.code());
            server.get(&format!("{MAPS}/a")).await.expect(503);
            until_ready(server, false).await;
        }
    }
    members.iter_mut().take(2).for_each(EtcdProcess::restart);
    for server in &servers {
        until_ready(server, true).await;
        assert_eq!(server.get(&format!("{MAPS}/a")).await.expect(200), made);
    }
    let last = one.post(MAPS, map("last", "1")).await.expect(201);
    for watch in &mut watches {
        // A refused write may have been done, once.
        let mut seen = vec![watch.next_short().await];
        while seen.last().is_some_and(|event| event != "ADDED last") {
            seen.push(watch.next_short().await);
        }
        assert!(seen.len() <= 2, "{seen:?}");
    }
    assert_eq!(other.get(&format!("{MAPS}/last")).await.expect(200), last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_etcd_ends_watches_with_410_and_no_revision_comes_twice() {
    let name = "a_restored_etcd_ends_watches_with_410_and_no_revision_comes_twice";
    let Some(mut etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("snapshot");
    let server = TestServer::with(config(&etcd)).await;
    let kept = server.post(MAPS, map("kept", "1")).await.expect(201);
    etcd.save(&file);
    let lost = server.post(MAPS, map("lost", "1")).await.expect(201);
    let from = format!("{MAPS}?watch=true&resourceVersion={}", revision(&lost));
    let mut watch = server.watch(&from).await;
    etcd.restore(&file);
    until_ready(&server, false).await;
    etcd.restart();
    until_ready(&server, true).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(server.get(&format!("{MAPS}/kept")).await.expect(200), kept);
    server.get(&format!("{MAPS}/lost")).await.expect(404);
    let exact = format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion={}", revision(&lost));
    server.get(&exact).await.expect(410);
    let again = server.post(MAPS, map("lost", "2")).await.expect(201);
    let number = |of: &Value| revision(of).parse::<u64>().expect("a number");
    assert!(number(&again) > number(&lost));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_encrypted_in_etcd() {
    let Some(etcd) = EtcdProcess::start("secrets_are_encrypted_in_etcd") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("encryption.yaml");
    configure(&file, "secrets", "one,identity");
    let encrypting = || {
        let encryption = Some(EncryptionSettings { file: file.clone(), reload: false });
        TestServer::with(Config { encryption, ..config(&etcd) })
    };
    let (one, other) = (encrypting().await, encrypting().await);
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "a-known-text"}});
    one.post(SECRETS, secret.to_string()).await.expect(201);
    let read = other.get(&format!("{SECRETS}/s")).await.expect(200);
    assert_eq!(read["data"]["a"], "YS1rbm93bi10ZXh0");
    one.post(MAPS, map("m", "a-known-text")).await.expect(201);
    assert!(stored(&etcd, "/registry/core/configmaps/default/m").contains("a-known-text"));
    let secret = stored(&etcd, "/registry/core/secrets/default/s");
    assert!(secret.starts_with("k8s:enc:aesgcm:v1:one:") && !secret.contains("a-known-text"));
    one.stop().await;
    // A server without the keys knows of the object, and serves all others.
    let plain = TestServer::with(config(&etcd)).await;
    plain.get(&format!("{SECRETS}/s")).await.expect(500);
    plain.get(&format!("{MAPS}/m")).await.expect(200);
    other.stop().await;
}

/// The value of a key in etcd.
fn stored(etcd: &EtcdProcess, key: &str) -> String {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--dial-timeout=60s", "--command-timeout=60s"])
        .args([&format!("--endpoints={}", etcd.url()), "get", "--print-value-only", key])
        .output()
        .expect("etcdctl");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl get {key}: {err}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One server after the other is restarted with the next file, as an administrator rotates keys: at each step both read and write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_rotated_in_etcd_while_two_servers_use_it() {
    let name = "keys_are_rotated_in_etcd_while_two_servers_use_it";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().expect("directory");
    let files = [directory.path().join("one.yaml"), directory.path().join("other.yaml")];
    let start = async |nth: usize, providers: &str| {
        configure(&files[nth], "secrets", providers);
        let encryption = Some(EncryptionSettings { file: files[nth].clone(), reload: false });
        TestServer::with(Config { encryption, ..config(&etcd) }).await
    };
    let mut servers = [start(0, "identity").await, start(1, "identity").await];
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"a": "a-known-text"}});
    servers[0].post(SECRETS, secret.to_string()).await.expect(201);
    // Each server reads the next key before one of them writes with it.
    for (providers, begins, is_stale) in [
        ("identity,one", "k8s\0", false),
        ("one,identity", "k8s:enc:aesgcm:v1:one:", true),
        ("one,two", "k8s:enc:aesgcm:v1:one:", false),
        ("two,one", "k8s:enc:aesgcm:v1:two:", true),
        ("two", "k8s:enc:aesgcm:v1:two:", false),
    ] {
        for nth in [0, 1] {
            let next = start(nth, providers).await;
            std::mem::replace(&mut servers[nth], next).stop().await;
            for server in &servers {
                let read = server.get(&format!("{SECRETS}/s")).await.expect(200);
                assert_eq!(read["data"]["a"], "YS1rbm93bi10ZXh0", "{providers} at {nth}");
            }
        }
        // What an administrator does at the end of a step rewrites what the first key did not write, once, at any of the servers.
        assert_eq!(replace_by_itself(&servers[1], "s").await, is_stale, "{providers}");
        assert!(!replace_by_itself(&servers[0], "s").await, "{providers}");
        let now = stored(&etcd, "/registry/core/secrets/default/s");
        assert!(now.starts_with(begins), "{providers}: {}", now.escape_debug());
        assert_eq!(now.contains("a-known-text"), begins == "k8s\0", "{providers}");
    }
    for server in servers {
        server.stop().await;
    }
}

/// A process; killed when dropped.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program on etcd, with the certificates in `directory`.
async fn start(directory: &Path, etcd: &EtcdProcess, nth: usize) -> (Process, Api) {
    let kubeconfig = directory.join(format!("kubeconfig-{nth}"));
    let child = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0", "--naming=kubernetes"])
        .arg(format!("--etcd-servers={}", etcd.url()))
        .arg(format!("--cert-dir={}", directory.join("pki").display()))
        .arg(format!("--write-kubeconfig={}", kubeconfig.display()))
        .stderr(Stdio::null())
        .spawn();
    let mut process = Process(child.expect("started"));
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(&kubeconfig) {
            break text;
        }
        assert_eq!(process.0.try_wait().expect("a state"), None, "it has ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    (process, Api::new(&text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_processes_one_is_killed_and_the_other_has_all() {
    let name = "of_two_processes_one_is_killed_and_the_other_has_all";
    let Some(etcd) = EtcdProcess::start(name) else { return };
    let directory = tempfile::tempdir().expect("directory");
    let (first, one) = start(directory.path(), &etcd, 1).await;
    let (_second, other) = start(directory.path(), &etcd, 2).await;
    let mut watch = other.watch(&format!("{MAPS}?watch=true&resourceVersion=0")).await;
    for nth in 0..20 {
        one.post(MAPS, map(&format!("m{nth}"), "1")).await.expect(201);
        let listed = other.get(MAPS).await.expect(200);
        assert!(names(&listed).contains(&format!("m{nth}").as_str()));
    }
    drop(first);
    other.post(MAPS, map("last", "1")).await.expect(201);
    let (_third, again) = start(directory.path(), &etcd, 3).await;
    assert_eq!(
        names(&again.get(MAPS).await.expect(200)).len(),
        names(&other.get(MAPS).await.expect(200)).len()
    );
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last: &String| last != "ADDED last") {
        seen.push(watch.next_short().await);
    }
    seen.retain(|event| event.starts_with("ADDED m") || event == "ADDED last");
    assert_eq!(seen.len(), 21, "each once, in order: {seen:?}");
    assert!(seen.iter().take(20).enumerate().all(|(nth, event)| *event == format!("ADDED m{nth}")));
}
