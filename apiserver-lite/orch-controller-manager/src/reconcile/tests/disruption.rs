//! Budgets whose pods have very many controllers.

use proto_daemon::work_queue::Requeue;

use super::*;

const BUDGET: &str = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets/b";

/// A pod of the budget with a controller that no cache has.
fn pod(nth: usize) -> Value {
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Clone", "name": format!("d{nth}"),
        "uid": format!("u{nth}"), "controller": true});
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {
        "name": format!("p{nth}"), "namespace": "ns", "uid": format!("p{nth}"),
        "resourceVersion": "7", "labels": {"app": "a"}, "ownerReferences": [owner]}})
}

fn budget() -> Value {
    json!({"kind": "PodDisruptionBudget", "apiVersion": "policy/v1",
        "metadata": {"name": "b", "namespace": "ns", "uid": "b", "resourceVersion": "7"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "a"}}}})
}

/// A server with a budget of 250 pods, each with a controller of its own.
fn server() -> Server {
    let pods: Vec<Value> = (0..250).map(pod).collect();
    let kinds = json!({"resources": [
        {"name": "clones", "kind": "Clone"},
        {"name": "clones/scale", "kind": "Scale"},
    ]});
    let mut server = Server::default()
        .showing("pods", json!(pods))
        .showing("poddisruptionbudgets", json!([budget()]))
        .having(BUDGET, budget())
        .having("/apis/example.com/v1", kinds);
    for nth in 0..250 {
        let scale = json!({"metadata": {"uid": format!("u{nth}")}, "spec": {"replicas": 1}});
        let path = format!("/apis/example.com/v1/namespaces/ns/clones/d{nth}/scale");
        server = server.having(&path, scale);
    }
    server
}

#[tokio::test]
async fn scales_of_very_many_controllers_are_read_in_turns() {
    let server = server();
    let reconciler = server.reconciler(None).await;
    let key = || ReconcileKey::Disruption(ObjectKey::new("ns", "b"));
    // Of each turn the reads, one of the kinds among them, and the writes so far.
    for (reads, writes) in [(101, 0), (101, 0), (51, 1)] {
        lock(&server.reads).clear();
        let next = reconciler.run(key()).await.expect("answered");
        assert!(next != Requeue::Never, "it is looked at again");
        let read = lock(&server.reads);
        let scales = read.iter().filter(|path| path.ends_with("/scale")).count();
        assert_eq!((scales + 1, read.len() - scales), (reads, 1), "{:?}", read.last());
        assert_eq!(lock(&server.writes).len(), writes);
    }
    let writes = lock(&server.writes);
    assert_eq!(writes[0].1["status"]["expectedPods"], 250, "of all turns");
}

#[tokio::test]
async fn few_budgets_have_turns_at_a_time() {
    let server = server();
    let reconciler = server.reconciler(None).await;
    let others = (0..16).map(|nth| (ObjectKey::new("other", format!("b{nth}")), BTreeMap::new()));
    lock(&reconciler.state.read_scales).extend(others);
    let key = || ReconcileKey::Disruption(ObjectKey::new("ns", "b"));
    let next = reconciler.run(key()).await.expect("answered");
    assert_eq!(
        (next, lock(&server.reads).len()),
        (Requeue::After(Duration::from_secs(1)), 0),
        "it waits"
    );
    lock(&reconciler.state.read_scales).remove(&ObjectKey::new("other", "b0"));
    for _ in 0..3 {
        assert!(reconciler.run(key()).await.expect("answered") != Requeue::Never);
    }
    assert_eq!(lock(&server.writes).len(), 1);
    assert_eq!(lock(&reconciler.state.read_scales).len(), 15, "what was read is forgotten");
}
