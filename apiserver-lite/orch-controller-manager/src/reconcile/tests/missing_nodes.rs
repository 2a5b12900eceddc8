//! Pods whose nodes the caches do not show, and nodes that come and go.

use std::time::Instant;

use apiserver_controllers::pod_gc::QUARANTINE;
use proto_api::core::v1::Node;

use super::*;

const POD: &str = "/api/v1/namespaces/ns/pods/web";

/// The writes for a pod whose node has been missing for long, or that there are none because a read failed.
async fn collect(server: Server) -> Vec<String> {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "web", "namespace": "ns", "uid": "p", "resourceVersion": "5"},
        "spec": {"nodeName": "n1"},
    });
    let server = server.showing("pods", pod.clone()).having(POD, pod);
    let reconciler = server.reconciler(None).await;
    let long_ago = Instant::now().checked_sub(QUARANTINE).expect("the machine runs for longer");
    lock(&reconciler.state.vanished).insert("n1".into(), (), long_ago);
    let done = reconciler.run(ReconcileKey::PodGc(ObjectKey::new("ns", "web"))).await;
    lines(done.ok().map(|_| std::mem::take(&mut *lock(&server.writes))))
}

#[tokio::test]
async fn a_pod_is_forced_off_only_when_the_server_has_no_node() {
    let node = json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "n1", "uid": "n", "resourceVersion": "3"},
    });
    let there = Server::default().having("/api/v1/nodes/n1", node);
    assert_eq!(collect(there).await, Vec::<String>::new());
    assert_eq!(collect(Server::default()).await, [format!("DELETE {POD}")]);
    let refusing = Server { refuses: true, ..Server::default() };
    assert_eq!(collect(refusing).await, ["failed"]);
}

/// A Node that comes or goes, or changes its zone, queues the EndpointSlices of the Services of its pods.
#[tokio::test]
async fn nodes_queue_the_slices_of_their_pods() {
    let service = |name: &str| {
        json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"selector": {"app": name}},
        })
    };
    let pod = |name: &str, app: &str, node: &str| {
        json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "ns", "labels": {"app": app}},
            "spec": {"nodeName": node},
        })
    };
    let pods =
        [pod("web-1", "web", "n1"), pod("web-2", "web", "n1"), pod("other-1", "other", "n2")];
    let server = Server::default()
        .showing("services", json!([service("web"), service("other")]))
        .showing("pods", json!(pods));
    let informers = server.reconciler(None).await.informers;
    for pod in informers.pods.objects() {
        informers.index_pod(&ObjectKey::from_metadata(&pod.metadata), None, Some(&pod));
    }
    let node = |labels: Value| -> Arc<Node> {
        let node = json!({"metadata": {"name": "n1", "labels": labels}});
        Arc::new(serde_json::from_value(node).expect("a node"))
    };
    let slices = |new: Option<&Arc<Node>>, old: Option<&Arc<Node>>| -> Vec<ReconcileKey> {
        let (key, old) = (ObjectKey::new("", "n1"), old.cloned());
        let change = match new.cloned() {
            Some(new) => Change::Applied { key, new, old },
            None => Change::Deleted { key, old: old.expect("one of both") },
        };
        let mut keys = Node::keys(&change, &informers);
        keys.retain(|key| matches!(key, ReconcileKey::Slices(_) | ReconcileKey::Endpoints(_)));
        keys
    };
    let of_web = [ReconcileKey::Slices(ObjectKey::new("ns", "web"))];
    let plain = node(json!({}));
    let labelled = node(json!({"a": "b"}));
    let moved = node(json!({"topology.kubernetes.io/zone": "z"}));
    assert_eq!(slices(Some(&plain), None), of_web);
    assert_eq!(slices(None, Some(&plain)), of_web);
    assert_eq!(slices(Some(&moved), Some(&plain)), of_web);
    assert_eq!(slices(Some(&labelled), Some(&plain)), []);
}
