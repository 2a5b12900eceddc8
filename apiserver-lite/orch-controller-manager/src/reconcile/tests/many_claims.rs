//! Pods that name very many claims.

use proto_api::core::v1::{PersistentVolumeClaim, Pod};

use super::*;

/// A pod that names each of the claims `c0`, `c1` and so on, then those of its own `v0`, `v1` and so on.
fn pod(name: &str, claims: impl Iterator<Item = String>, own: usize) -> Value {
    let named = claims
        .enumerate()
        .map(|(nth, claim)| json!({"name": format!("n{nth}"), "persistentVolumeClaim": {"claimName": claim}}));
    let own = (0..own).map(|nth| json!({"name": format!("v{nth}"), "ephemeral": {}}));
    let volumes: Vec<Value> = named.chain(own).collect();
    json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"},
        "spec": {"nodeName": "n", "volumes": volumes}})
}

fn claim(name: &str) -> Value {
    json!({"kind": "PersistentVolumeClaim", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"}})
}

#[tokio::test]
async fn a_change_of_a_claim_looks_at_the_pods_that_use_it() {
    let named = |count: usize| (0..count).map(|nth| format!("c{nth}"));
    let mut pods: Vec<Value> = (0..5).map(|nth| pod(&format!("p{nth}"), named(2000), 0)).collect();
    pods.push(pod("user", (0..2000).map(|_| "data".to_owned()), 0));
    let server = Server::default().showing("pods", json!(pods));
    let informers = server.reconciler(None).await.informers;
    let data: PersistentVolumeClaim = serde_json::from_value(claim("data")).expect("a claim");
    let (key, new) = (ObjectKey::new("ns", "data"), Arc::new(data));
    let change = Change::Applied { key, new: new.clone(), old: Some(new) };
    let mut keys = Vec::new();
    let steps = proto_api::steps::count_during(|| {
        keys = PersistentVolumeClaim::keys(&change, &informers);
    });
    assert!(keys.contains(&ReconcileKey::Attachments("n".into())), "its pod is found");
    assert!(steps <= 10, "{steps}");
    // A claim that a pod names often is one.
    let pods = informers.pods.list();
    let (key, new) = pods.iter().find(|(key, _)| key.name == "user").expect("the pod").clone();
    let queued = Pod::keys(&Change::Applied { key, new, old: None }, &informers);
    let is_claim = |key: &&ReconcileKey| matches!(key, ReconcileKey::ClaimProtection(_));
    assert_eq!(queued.iter().filter(is_claim).count(), 1);
}

#[tokio::test]
async fn claims_of_a_pod_are_looked_up_among_its_own_in_a_step_each() {
    let claims: Vec<Value> = (0..500).map(|nth| claim(&format!("c{nth}"))).collect();
    let named = (0..500).map(|nth| format!("c{nth}"));
    let server = Server::default()
        .showing("pods", json!([pod("p", named, 300)]))
        .showing("persistentvolumeclaims", json!(claims));
    let reconciler = server.reconciler(None).await;
    let pod = reconciler.informers.pods.get(&ObjectKey::new("ns", "p")).expect("the pod");
    let steps = proto_api::steps::count_during(|| drop(reconciler.attachables(&pod)));
    assert!((500..=800).contains(&steps), "{steps}");
}
