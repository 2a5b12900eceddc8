//! Pods whose nodes the caches do not show.

use std::time::Instant;

use apiserver_controllers::pod_gc::QUARANTINE;

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
