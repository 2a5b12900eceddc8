//! A Node that is removed takes along what its kubelet keeps beside it.

use std::path::Path;
use std::time::Duration;

use apiserver_garbage::Garbage;
use proto_client::Client;
use proto_client::config::file;
use proto_daemon::drain::Drain;
use proto_daemon::statusz::StatusBoard;
use proto_daemon::work_queue::WorkQueueMetrics;
use serde_json::{Value, json};

use crate::support::TestServer;

const NODES: &str = "/api/v1/nodes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const DRIVER_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

/// Adds a Node with its Lease and its CSINode, as kubelets do.
async fn add_node(server: &TestServer, name: &str) {
    let node = json!({"metadata": {"name": name}}).to_string();
    let node = server.post(NODES, node).await.expect(201);
    let uid = &node["metadata"]["uid"];
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
    let metadata = json!({"name": name, "ownerReferences": [owner]});
    let lease = json!({"metadata": metadata, "spec": {"holderIdentity": name}});
    server.post(LEASES, lease.to_string()).await.expect(201);
    let drivers = json!({"metadata": metadata, "spec": {"drivers": []}});
    server.post(DRIVER_NODES, drivers.to_string()).await.expect(201);
}

async fn list_names(server: &TestServer, path: &str) -> Vec<String> {
    let list = server.get(path).await.expect(200);
    let items = list["items"].as_array().into_iter().flatten();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items.map(name).collect()
}

#[tokio::test]
async fn the_lease_and_the_csi_node_of_a_deleted_node_are_collected() {
    let server = TestServer::start().await;
    for name in ["n1", "n2", "n3"] {
        add_node(&server, name).await;
    }
    // While no collector runs, and while one does.
    server.delete(&format!("{NODES}/n1")).await.expect(200);
    let drain = Drain::default();
    let config = file::parse(Path::new("config"), server.kubeconfig(), None).expect("a kubeconfig");
    let collector = Garbage {
        client: Client::new(&config, server.names, "controllers").expect("a client"),
        workers: 4,
        metrics: WorkQueueMetrics::new().unwrap(),
        page: StatusBoard::default().task("test"),
    };
    let running = tokio::spawn(collector.run(drain.watch()));
    for left in [&["n2", "n3"][..], &["n3"]] {
        let mut found = Vec::new();
        for _ in 0..600 {
            found =
                vec![list_names(&server, LEASES).await, list_names(&server, DRIVER_NODES).await];
            if found.iter().all(|names| names == left) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(found, [left, left], "after a minute");
        if left.len() == 2 {
            server.delete(&format!("{NODES}/n2")).await.expect(200);
        }
    }
    running.abort();
}
