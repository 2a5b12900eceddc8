//! Events as they happen, and dumps.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::server::Server;

fn event(name: &str, kind: &str, message: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Event\nmetadata: {{name: {name}, namespace: default}}\ntype: {kind}\nreason: Told\nmessage: \"{message}\"\n\
         involvedObject: {{apiVersion: v1, kind: Pod, namespace: default, name: p}}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_printed_as_they_happen() {
    let server = Server::start().await;
    server.create(&event("a", "Warning", "first")).await;
    let mut command = server.command();
    command.args(["events", "--watch", "--types=Warning"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("run");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next = async || lines.next_line().await.expect("a line").expect("one more line");
    assert!(next().await.starts_with("LAST SEEN"));
    assert!(next().await.ends_with("Pod/p    first"));
    server.create(&event("b", "Normal", "not wanted")).await;
    server.create(&event("c", "Warning", "second \\e[1m")).await;
    let line = next().await;
    assert!(line.ends_with("Pod/p    second ^[[1m"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_has_objects_and_logs_as_files() {
    let server = Server::start().await;
    server.create(&event("a", "Warning", "first")).await;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n";
    server.create(pod).await;
    let directory = server.path().join("dump");
    let directory = directory.display().to_string();
    let said = server.run(&["cluster-info", "dump", "--output-directory", &directory]).await;
    assert_eq!(said, format!("Cluster info dumped to {directory}\n"));
    let read = |file: &str| std::fs::read_to_string(format!("{directory}/{file}")).expect("a file");
    assert!(read("nodes.json").contains("\"kind\": \"NodeList\""));
    assert!(read("default/events.json").contains("first"));
    assert!(read("default/pods.json").contains("\"name\": \"p\""));
    for file in ["daemonsets", "deployments", "replicasets", "services", "replication-controllers"]
    {
        assert!(read(&format!("kube-system/{file}.json")).contains("\"items\": []"), "{file}");
    }
    let log = read("default/p/logs.txt");
    assert!(log.starts_with("==== START logs for container c of pod default/p ====\n"), "{log}");
    assert!(log.ends_with("==== END logs for container c of pod default/p ====\n"), "{log}");
    let all = server.run(&["cluster-info", "dump", "--namespaces=default", "-o", "yaml"]).await;
    assert!(all.contains("kind: NodeList") && all.contains("message: first"), "{all}");
}
