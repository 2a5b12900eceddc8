//! Pods of nodes that have failed, without the taint manager.

use proto_daemon::work_queue::Requeue;

use super::*;

#[tokio::test]
async fn without_the_taint_manager_pods_of_a_failed_node_are_deleted_after_the_timeout() {
    let since = |secs: i64| {
        let now = apiserver_clock::now().unix().expect("a time");
        serde_json::to_value(proto_api::Time::from_unix(now - secs)).expect("a time")
    };
    let taint = |secs| {
        let key = "node.kubernetes.io/unreachable";
        json!([{"key": key, "effect": "NoExecute", "timeAdded": since(secs)}])
    };
    let path = "/api/v1/namespaces/ns/pods/web";
    for (taints, deleted) in [(json!([]), false), (taint(10), false), (taint(61), true)] {
        let node = json!({"metadata": {"name": "n1", "uid": "n"}, "spec": {"taints": taints}});
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "p"},
            "spec": {"nodeName": "n1", "tolerations": [{"operator": "Exists"}]},
        });
        let server = Server::default().showing("nodes", node).showing("pods", pod);
        let mut reconciler = server.reconciler(None).await;
        reconciler.settings.eviction_timeout = Some(Duration::from_secs(60));
        reconciler.settings.adds_disruption_targets = true;
        let key = || ReconcileKey::TaintEviction(ObjectKey::new("ns", "web"));
        let again = reconciler.run(key()).await.expect("a plan");
        let lines: Vec<String> = lock(&server.writes).drain(..).map(|(line, _)| line).collect();
        let expected = Vec::from_iter(deleted.then(|| format!("DELETE {path}")));
        assert_eq!(lines, expected, "{taints}");
        let waits = taints != json!([]) && !deleted;
        assert_eq!(again != Requeue::Never, waits, "{taints}: {again:?}");
    }
}
