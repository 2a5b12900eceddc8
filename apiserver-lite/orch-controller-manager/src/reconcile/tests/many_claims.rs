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
    pods.push(pod("user", (0..1000).map(|_| "data".to_owned()), 0));
    let server = Server::default().showing("pods", json!(pods));
    let informers = server.reconciler(None).await.informers;
    let data: PersistentVolumeClaim = serde_json::from_value(claim("data")).expect("a claim");
    let (key, new) = (ObjectKey::new("ns", "data"), Arc::new(data));
    let change = Change::Applied { key, new, old: None };
    let mut keys = Vec::new();
    let steps = proto_api::steps::count_during(|| {
        keys = PersistentVolumeClaim::keys(&change, &informers);
    });
    assert!(keys.contains(&ReconcileKey::Attachments("n".into())), "its pod is found");
    assert!(steps <= 10, "{steps}");
}

#[tokio::test]
async fn only_a_change_of_what_a_claim_is_bound_to_concerns_the_nodes_of_its_pods() {
    let server =
        Server::default().showing("pods", json!([pod("p", ["c0".to_owned()].into_iter(), 0)]));
    let informers = server.reconciler(None).await.informers;
    let old: PersistentVolumeClaim = serde_json::from_value(claim("c0")).expect("a claim");
    let concerns = |change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut new = old.clone();
        change(&mut new);
        let (key, old) = (ObjectKey::new("ns", "c0"), Some(Arc::new(old.clone())));
        let keys = PersistentVolumeClaim::keys(
            &Change::Applied { key, new: Arc::new(new), old },
            &informers,
        );
        keys.contains(&ReconcileKey::Attachments("n".into()))
    };
    assert!(!concerns(&|claim| claim.metadata.labels = [("a".into(), "b".into())].into()));
    assert!(concerns(&|claim| claim.spec.volume_name = "v".into()));
    assert!(concerns(&|claim| claim.metadata.uid = "another".into()));
    assert!(concerns(&|claim| claim.metadata.owner_references.push(Default::default())));
}

/// The keys of a pod that names each of `claims` twice, of which `c0` is unbound and `c1` is being deleted.
async fn keys_of_pod_with(claims: usize) -> Vec<ReconcileKey> {
    let mut going = claim("c1");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["spec"] = json!({"volumeName": "v"});
    let named = (0..claims).chain(0..claims).map(|nth| format!("c{nth}"));
    let server = Server::default()
        .showing("pods", json!([pod("p", named, 1)]))
        .showing("persistentvolumeclaims", json!([claim("c0"), going]));
    let informers = server.reconciler(None).await.informers;
    let (key, old) = informers.pods.list().pop().expect("the pod");
    let pending =
        Pod::keys(&Change::Applied { key: key.clone(), new: old.clone(), old: None }, &informers);
    let gone = Pod::keys(&Change::Deleted { key, old }, &informers);
    let protection = ReconcileKey::ClaimProtection(ObjectKey::new("ns", "c1"));
    for keys in [&pending, &gone] {
        let is_claim = |key: &&ReconcileKey| matches!(key, ReconcileKey::ClaimProtection(_));
        let found: Vec<_> = keys.iter().filter(is_claim).collect();
        assert_eq!(found, [&protection], "once, and only what is to be deleted");
    }
    pending
}

#[tokio::test]
async fn a_pod_with_too_many_volumes_only_protects_its_claims() {
    let other = |keys: Vec<ReconcileKey>| {
        let key = |name: &str| ObjectKey::new("ns", name);
        [
            keys.contains(&ReconcileKey::Attachments("n".into())),
            keys.contains(&ReconcileKey::Claim(key("c0"))),
            keys.contains(&ReconcileKey::EphemeralClaims(key("p"))),
        ]
    };
    assert_eq!(other(keys_of_pod_with(500).await), [true; 3]);
    assert_eq!(other(keys_of_pod_with(512).await), [false; 3]);
}

#[tokio::test]
async fn nothing_is_looked_up_for_a_pod_with_too_many_volumes() {
    let claims: Vec<Value> = (0..1025).map(|nth| claim(&format!("c{nth}"))).collect();
    let named = |count: usize| (0..count).map(|nth| format!("c{nth}"));
    let server = Server::default()
        .showing("pods", json!([pod("p", named(1024), 0), pod("q", named(1025), 0)]))
        .showing("persistentvolumeclaims", json!(claims));
    let reconciler = server.reconciler(None).await;
    let steps = |name: &str| {
        let pod = reconciler.informers.pods.get(&ObjectKey::new("ns", name)).expect("the pod");
        proto_api::steps::count_during(|| drop(reconciler.attachables(&pod)))
    };
    assert!((1024..=1100).contains(&steps("p")) && steps("q") == 0);
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
