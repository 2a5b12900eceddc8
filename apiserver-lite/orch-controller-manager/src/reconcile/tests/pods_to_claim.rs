//! The pods that plans of controllers are made from.

use apiserver_controllers::api_writes::{EffectState, ObjectKind};
use proto_api::core::v1::Pod;
use proto_api::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};

use super::*;

/// A pod with labels and the uid of its controller, or without one.
fn pod(name: &str, labels: Value, controller: &str) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web",
        "uid": controller, "controller": true});
    let owners = if controller.is_empty() { json!([]) } else { json!([owner]) };
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name, "namespace": "ns",
        "uid": name, "resourceVersion": "5", "labels": labels, "ownerReferences": owners}})
}

fn set() -> Value {
    let labels = json!({"app": "web"});
    json!({"kind": "StatefulSet", "apiVersion": "apps/v1",
        "metadata": {"name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7"},
        "spec": {"replicas": 1, "serviceName": "web", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}}})
}

#[tokio::test]
async fn they_are_those_of_the_controller_and_the_orphans_that_it_selects() {
    let web = || json!({"app": "web"});
    let pods = json!([
        pod("controlled", json!({"app": "other"}), "u"),
        pod("of-another", json!({"app": "other"}), "v"),
        pod("orphan", web(), ""),
        pod("own", web(), "u"),
        pod("unrelated", json!({}), ""),
    ]);
    let server = Server::default().showing("pods", pods);
    let informers = server.reconciler(None).await.informers;
    let controller =
        ObjectMeta { namespace: "ns".into(), uid: "u".into(), ..ObjectMeta::default() };
    let found = |selector: Option<&LabelSelector>| -> Vec<String> {
        let found = informers.pods_to_claim(&controller, selector);
        found.iter().map(|pod| pod.metadata.name.clone()).collect()
    };
    let mut selector = LabelSelector::default();
    let requirement = LabelSelectorRequirement {
        key: "app".into(),
        operator: "Exists".into(),
        ..LabelSelectorRequirement::default()
    };
    selector.match_expressions.push(requirement);
    // Expressions may select any pod.
    assert_eq!(found(Some(&selector)).len(), 5);
    assert_eq!(found(None).len(), 5);
    selector.match_labels.insert("app".into(), "web".into());
    assert_eq!(found(Some(&selector)), ["controlled", "orphan", "own"]);
}

/// The writes of the second plan of a set: the first makes its revision.
async fn second_plan(pods: Value) -> Vec<String> {
    let key = || ReconcileKey::StatefulSet(ObjectKey::new("ns", "web"));
    let server = || {
        let (apps, pod) = ("/apis/apps/v1/namespaces/ns", pod("web-0", json!({}), ""));
        let revision = json!({"kind": "ControllerRevision", "apiVersion": "apps/v1"});
        Server::default()
            .showing("statefulsets", set())
            .showing("pods", pods.clone())
            .having(&format!("{apps}/controllerrevisions"), revision)
            .having(&format!("{apps}/statefulsets/web"), set())
            .having("/api/v1/namespaces/ns/pods", pod)
    };
    let first = server().run(key(), None).await.expect("planned");
    let [(line, revision)] = &first[..] else { panic!("one write: {first:?}") };
    assert_eq!(line, "POST /apis/apps/v1/namespaces/ns/controllerrevisions");
    let mut revision = revision.clone();
    revision["metadata"]["uid"] = json!("r");
    revision["metadata"]["resourceVersion"] = json!("6");
    let second = server().showing("controllerrevisions", revision).run(key(), None).await;
    lines(second)
}

#[tokio::test]
async fn a_set_does_not_create_a_pod_whose_name_another_has() {
    let status = "PUT /apis/apps/v1/namespaces/ns/statefulsets/web/status";
    let create = "POST /api/v1/namespaces/ns/pods";
    assert_eq!(second_plan(json!([])).await, [create, status]);
    let elsewhere = pod("web-1", json!({}), "");
    assert_eq!(second_plan(json!([elsewhere])).await, [create, status]);
    assert_eq!(second_plan(json!([pod("web-0", json!({}), "")])).await, [status]);
}

/// Otherwise the next plan would create the pod again.
#[tokio::test]
async fn a_created_pod_is_shown_once_it_is_found_by_its_controller() {
    let shown = pod("web-0", json!({"app": "web"}), "u");
    let client = Server::default().showing("pods", shown).start().await;
    let (mut informers, _) = reflectors::make(&client);
    informers.pods = fill(Reflector::<Pod, Pod>::whole(client.all(), ListParams::default())).await;
    let (key, pod) = informers.pods.list().pop().expect("the pod");
    let effect = Effect { kind: ObjectKind::Pod, key: key.clone(), state: EffectState::Version(5) };
    assert!(!informers.shows(&effect));
    informers.index_pod(&key, None, Some(&pod));
    assert!(informers.shows(&effect));
}
