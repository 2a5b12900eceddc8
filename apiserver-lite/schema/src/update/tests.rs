//! Tests of updates by subresource.

use proto_api::names::{Names, Profile};
use serde_json::{Value as Json, json};

use super::{Subresource, merge_for_update, prepare_for_create};
use crate::{Engine, Format, Object, Strictness};

fn object(json: &Json) -> Object {
    let engine = Engine::new(Names::new(Profile::Kubernetes));
    let body = json.to_string();
    engine.decode_any(Format::Json, body.as_bytes(), Strictness::Strict).expect(&body).object
}

fn deployment(replicas: i64, ready: i64, label: &str) -> Object {
    object(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "x", "namespace": "d", "uid": "u", "generation": 3, "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"l": label}},
        "spec": {"replicas": replicas}, "status": {"readyReplicas": ready}}))
}

fn replicas(object: &Object) -> (Option<i64>, Option<i64>) {
    let spec = object.spec().and_then(|spec| spec.int("replicas"));
    (spec, object.status().and_then(|status| status.int("readyReplicas")))
}

#[test]
fn the_main_resource_writes_everything_but_the_status() {
    let old = deployment(1, 1, "a");
    let new = merge_for_update(&old, &deployment(2, 9, "b"), Subresource::Main);
    assert_eq!(replicas(&new), (Some(2), Some(1)));
    assert_eq!(new.generation(), 4);
    assert_eq!(new.labels()["l"], "b");
}

#[test]
fn the_status_subresource_writes_nothing_but_the_status_and_some_metadata() {
    let old = deployment(1, 1, "a");
    let new = merge_for_update(&old, &deployment(2, 9, "b"), Subresource::Status);
    assert_eq!(replicas(&new), (Some(1), Some(9)));
    assert_eq!(new.generation(), 3);
}

#[test]
fn metadata_alone_does_not_make_a_generation() {
    let new = merge_for_update(&deployment(1, 1, "a"), &deployment(1, 1, "b"), Subresource::Main);
    assert_eq!(new.generation(), 3);
}

#[test]
fn the_server_keeps_its_own_metadata() {
    let mut old = deployment(1, 1, "a");
    old.set_meta_str("deletionTimestamp", "2026-01-02T00:00:00Z");
    let request = object(&json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "x", "generation": 77, "creationTimestamp": "2000-01-01T00:00:00Z"}, "spec": {"replicas": 1}}));
    let new = merge_for_update(&old, &request, Subresource::Main);
    assert_eq!(new.meta_str("creationTimestamp"), "2026-01-01T00:00:00Z");
    assert_eq!(new.deletion_timestamp(), Some("2026-01-02T00:00:00Z"));
    assert_eq!((new.uid(), new.namespace(), new.generation()), ("u", "d", 3));
    assert_eq!(new.resource_version(), "", "an update without a version is unconditional");
}

#[test]
fn an_unchanged_request_gives_an_equal_object() {
    let old = deployment(1, 1, "a");
    assert_eq!(merge_for_update(&old, &old, Subresource::Main), old);
}

#[test]
fn namespaces_are_finalized_apart() {
    let namespace = |finalizers: Json| {
        object(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"},
            "spec": {"finalizers": finalizers}}))
    };
    let old = namespace(json!(["kubernetes"]));
    let main = merge_for_update(&old, &namespace(json!([])), Subresource::Main);
    assert_eq!(main.spec().map(|spec| spec.list("finalizers").len()), Some(1));
    let finalized = merge_for_update(&old, &namespace(json!([])), Subresource::Finalize);
    assert_eq!(finalized.spec().map(|spec| spec.list("finalizers").len()), Some(0));
}

#[test]
fn ephemeral_containers_have_a_path_of_their_own() {
    let pod = |image: &str, ephemeral: Json| {
        object(
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d"},
            "spec": {"containers": [{"name": "c", "image": image}], "ephemeralContainers": ephemeral}}),
        )
    };
    let debug = json!([{"name": "debug", "image": "d"}]);
    let old = pod("i:1", json!([]));
    let new = merge_for_update(&old, &pod("i:2", debug.clone()), Subresource::EphemeralContainers);
    let spec = new.spec().expect("a spec");
    assert_eq!(spec.maps("containers").next().map(|c| c.str("image")), Some("i:1"));
    assert_eq!(spec.list("ephemeralContainers").len(), 1);
    let kept = merge_for_update(&new, &pod("i:2", json!([])), Subresource::Main);
    assert_eq!(kept.spec().map(|spec| spec.list("ephemeralContainers").len()), Some(1));
}

#[test]
fn a_new_object_starts_without_status() {
    let mut new = deployment(1, 1, "a");
    prepare_for_create(&mut new);
    assert_eq!(replicas(&new), (Some(1), None));
    assert_eq!(new.generation(), 1);
    let mut node = object(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"phase": "x"}}),
    );
    prepare_for_create(&mut node);
    assert!(node.status().is_some(), "a node registers itself");
    let mut job = object(
        &json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "uid": "u"},
        "spec": {"template": {"spec": {}}}}),
    );
    prepare_for_create(&mut job);
    assert_eq!(job.str_at(&["spec", "selector", "matchLabels", "controller-uid"]), "u");
    assert_eq!(job.str_at(&["spec", "template", "metadata", "labels", "job-name"]), "j");
}

#[test]
fn writers_of_a_status_or_an_approval_use_metadata_too_but_a_deployments_labels_are_its_own() {
    let request = |annotation: &str, label: &str| {
        object(&json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "x", "annotations": {"a": annotation}, "labels": {"l": label}},
            "spec": {"request": "eA==", "signerName": "a/b", "usages": ["client auth"]}}))
    };
    for subresource in [Subresource::Status, Subresource::Approval] {
        let new = merge_for_update(&request("1", "x"), &request("2", "y"), subresource);
        assert_eq!(new.labels()["l"], "y");
        let annotations = new.metadata().and_then(|m| m.map("annotations"));
        assert_eq!(annotations.map(|a| a.str("a")), Some("2"));
    }
    let new = merge_for_update(&deployment(1, 1, "a"), &deployment(1, 2, "b"), Subresource::Status);
    assert_eq!((new.labels()["l"].as_ref(), replicas(&new).1), ("a", Some(2)));
}

#[test]
fn a_status_update_of_a_definition_leaves_its_metadata() {
    let definition = |label: &str, plural: &str| {
        object(&json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "x", "labels": {"l": label}, "finalizers": [label]},
            "spec": {"group": "e.com", "names": {"plural": plural, "kind": "A"}, "scope": "Cluster", "versions": []},
            "status": {"storedVersions": [label]}}))
    };
    let new = merge_for_update(&definition("a", "as"), &definition("b", "bs"), Subresource::Status);
    assert_eq!((new.labels()["l"].as_ref(), new.finalizers().next()), ("a", Some("a")));
    assert_eq!(new.str_at(&["spec", "names", "plural"]), "as");
    assert_eq!(new.status().unwrap().list("storedVersions"), [crate::Value::from("b")]);
}

/// A driver that may write the status removes no finalizer of another.
#[test]
fn a_status_update_leaves_the_metadata_of_some_kinds() {
    let attachment = |finalizers: Json, attached: bool| {
        object(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "5", "finalizers": finalizers},
            "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": attached}}))
    };
    let old = attachment(json!(["d/attached"]), false);
    let new = merge_for_update(&old, &attachment(json!([]), true), Subresource::Status);
    assert_eq!(new, attachment(json!(["d/attached"]), true));
}

#[test]
fn a_changed_driver_has_a_generation() {
    let driver = |republish: bool| {
        object(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
            "metadata": {"name": "d", "uid": "u", "resourceVersion": "5"}, "spec": {"requiresRepublish": republish}}))
    };
    let update = |to| merge_for_update(&driver(false), &driver(to), Subresource::Main).generation();
    assert_eq!((update(false), update(true)), (0, 1));
}
