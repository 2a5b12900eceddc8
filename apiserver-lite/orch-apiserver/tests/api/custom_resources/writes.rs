//! Writing custom objects: validation, defaults, pruning, subresources, patches, apply.

use serde_json::json;

use super::{BACKUPS, backup, backups, define, patch, warnings};
use crate::support::TestServer;

const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[tokio::test]
async fn objects_are_defaulted_pruned_and_validated() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let mut object = backup("a");
    object["spec"]["unknown"] = json!(1);
    object["spec"]["free"] = json!({"any": {"thing": null}, "n": 1.5});
    let made = server.post(BACKUPS, object.to_string()).await;
    assert_eq!(warnings(&made), ["299 - \"unknown field \\\"spec.unknown\\\"\""]);
    let made = made.expect(201);
    let spec =
        json!({"source": "disk", "mode": "full", "free": {"any": {"thing": null}, "n": 1.5}});
    assert_eq!(made["spec"], spec);
    assert_eq!(made["metadata"]["generation"], 1);
    object["metadata"]["name"] = json!("b");
    let strict = format!("{BACKUPS}?fieldValidation=Strict");
    let refused = server.post(&strict, object.to_string()).await.expect(400);
    let text = refused["message"].as_str().expect("text");
    assert!(text.contains("unknown field \"spec.unknown\""), "{text}");
    let mut wrong = backup("c");
    wrong["spec"] = json!({"source": "x", "replicas": "many", "mode": "none"});
    let refused = server.post(BACKUPS, wrong.to_string()).await.expect(422);
    let fields: Vec<&str> = refused["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .map(|cause| cause["field"].as_str().expect("a field"))
        .collect();
    for field in ["spec.source", "spec.replicas", "spec.mode"] {
        assert!(fields.contains(&field), "{refused}");
    }
    let text = refused["message"].as_str().expect("text");
    assert!(text.starts_with("Backup.example.com \"c\" is invalid: "), "{text}");
    let refused = server.post(BACKUPS, r#"{"metadata":{"name":"d"},"spec":{}}"#).await.expect(422);
    assert!(refused["message"].as_str().is_some_and(|t| t.contains("spec.source: Required value")));
    let other = backup("e").to_string().replace("Backup", "Restore");
    server.post(BACKUPS, other).await.expect(400);
    let invalid = server.merge_patch(&format!("{BACKUPS}/a"), r#"{"spec":{"replicas":-1}}"#).await;
    invalid.expect(422);
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let mut object = backup("a");
    object["status"] = json!({"phase": "Done"});
    let made = server.post(BACKUPS, object.to_string()).await.expect(201);
    assert!(made.get("status").is_none());
    let one = format!("{BACKUPS}/a");
    let both = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"source": "tape"},
        "status": {"phase": "Done"},
    });
    let status = patch(&server, &format!("{one}/status"), MERGE, &both).await.expect(200);
    assert_eq!(
        (&status["spec"]["source"], &status["status"]),
        (&json!("disk"), &json!({"phase": "Done"}))
    );
    assert!(status["metadata"].get("labels").is_none());
    assert_eq!(status["metadata"]["generation"], 1);
    let other = json!({"spec": {"source": "tape"}, "status": {"phase": "Lost"}});
    let spec = patch(&server, &one, MERGE, &other).await.expect(200);
    assert_eq!(
        (&spec["spec"]["source"], &spec["status"]["phase"]),
        (&json!("tape"), &json!("Done"))
    );
    assert_eq!(spec["metadata"]["generation"], 2);
    let labelled = patch(&server, &one, MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(labelled.expect(200)["metadata"]["generation"], 2);
}

#[tokio::test]
async fn the_scale_subresource_uses_the_paths_of_the_definition() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let one = format!("{BACKUPS}/a");
    let scale = format!("{one}/scale");
    let none = server.get(&scale).await.expect(500);
    assert!(
        none["message"].as_str().is_some_and(|text| {
            text.contains("the spec replicas field \".spec.replicas\" does not exist")
        }),
        "{none}"
    );
    patch(&server, &one, MERGE, &json!({"spec": {"replicas": 1}})).await.expect(200);
    let status = json!({"status": {"replicas": 3, "selector": "a=b"}});
    patch(&server, &format!("{one}/status"), MERGE, &status).await.expect(200);
    let mut read = server.get(&scale).await.expect(200);
    assert_eq!((&read["kind"], &read["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!(read["spec"], json!({"replicas": 1}));
    assert_eq!(read["status"], json!({"replicas": 3, "selector": "a=b"}));
    read["spec"]["replicas"] = json!(5);
    server.put(&scale, &read).await.expect(200);
    let scaled = server.get(&one).await.expect(200);
    assert_eq!(
        (&scaled["spec"]["replicas"], &scaled["spec"]["source"]),
        (&json!(5), &json!("disk"))
    );
    assert_eq!(scaled["metadata"]["generation"], 3);
    patch(&server, &scale, MERGE, &json!({"spec": {"replicas": -1}})).await.expect(422);
}

/// `kubectl scale` patches the scale without reading it.
#[tokio::test]
async fn a_scale_sets_replicas_that_were_never_set() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    for name in ["a", "b"] {
        server.post(BACKUPS, backup(name).to_string()).await.expect(201);
    }
    let (one, two) = (format!("{BACKUPS}/a"), format!("{BACKUPS}/b"));
    let empty = patch(&server, &format!("{one}/scale"), MERGE, &json!({"spec": {}})).await;
    let why = "the spec replicas field \".spec.replicas\" cannot be empty";
    assert_eq!(empty.expect(400)["message"], why);
    let wanted = json!({"spec": {"replicas": 3}});
    let scaled = patch(&server, &format!("{one}/scale"), MERGE, &wanted).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    assert_eq!(server.get(&one).await.expect(200)["spec"]["replicas"], 3);
    let scale = json!({"metadata": {"name": "b"}, "spec": {"replicas": 2}});
    server.put(&format!("{two}/scale"), &scale).await.expect(200);
    assert_eq!(server.get(&two).await.expect(200)["spec"]["replicas"], 2);
    let none = json!({"spec": {"replicas": 0}});
    patch(&server, &format!("{two}/scale"), MERGE, &none).await.expect(200);
    assert_eq!(server.get(&two).await.expect(200)["spec"]["replicas"], 0);
}

#[tokio::test]
async fn an_applied_scale_owns_the_replicas_of_a_custom_object() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let one = format!("{BACKUPS}/a");
    let path = format!("{one}/scale?fieldManager=scaler");
    let mut scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "a"}, "spec": {"replicas": 4}});
    let scaled = patch(&server, &path, APPLY, &scale).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 4);
    let object = server.get(&one).await.expect(200);
    assert_eq!(
        (&object["spec"]["replicas"], &object["spec"]["source"]),
        (&json!(4), &json!("disk"))
    );
    let entries = object["metadata"]["managedFields"].as_array().expect("entries");
    let owner = entries.iter().find(|entry| entry["manager"] == "scaler").expect("an owner");
    assert_eq!(
        (&owner["subresource"], &owner["fieldsV1"]),
        (&json!("scale"), &json!({"f:spec": {"f:replicas": {}}}))
    );
    assert_eq!(owner["apiVersion"], object["apiVersion"]);
    scale["spec"] = json!({});
    server.post(BACKUPS, backup("b").to_string()).await.expect(201);
    scale["metadata"]["name"] = json!("b");
    let path = format!("{BACKUPS}/b/scale?fieldManager=scaler");
    let empty = patch(&server, &path, APPLY, &scale).await.expect(400);
    let why = "the spec replicas field \".spec.replicas\" cannot be empty";
    assert_eq!(empty["message"], why);
}

#[tokio::test]
async fn patches_are_json_or_merge_patches() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let one = format!("{BACKUPS}/a");
    let added = json!([{"op": "add", "path": "/spec/replicas", "value": 2}]);
    assert_eq!(patch(&server, &one, JSON, &added).await.expect(200)["spec"]["replicas"], 2);
    let removed = json!({"spec": {"replicas": null}});
    assert!(
        patch(&server, &one, MERGE, &removed).await.expect(200)["spec"].get("replicas").is_none()
    );
    let strategic = "application/strategic-merge-patch+json";
    let refused = patch(&server, &one, strategic, &removed).await.expect(415);
    assert_eq!(
        refused["message"],
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    );
}

#[tokio::test]
async fn applied_lists_are_owned_by_item() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let one = |manager: &str| format!("{BACKUPS}/a?fieldManager={manager}");
    let days = |days: serde_json::Value| {
        let mut object = backup("a");
        object["spec"]["days"] = days;
        object
    };
    let first = days(json!([{"name": "mon", "hour": 1}]));
    let made = patch(&server, &one("x"), APPLY, &first).await.expect(201);
    let entry = &made["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("x"), &json!("Apply")));
    assert_eq!(entry["fieldsV1"]["f:spec"]["f:days"]["k:{\"name\":\"mon\"}"]["f:hour"], json!({}));
    let second = days(json!([{"name": "tue", "hour": 2}]));
    let both = patch(&server, &one("y"), APPLY, &second).await.expect(200);
    assert_eq!(
        both["spec"]["days"],
        json!([{"name": "mon", "hour": 1}, {"name": "tue", "hour": 2}])
    );
    let taken = days(json!([{"name": "mon", "hour": 9}]));
    let conflict = patch(&server, &one("y"), APPLY, &taken).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["field"], ".spec.days[name=\"mon\"].hour");
    let status = json!({
        "apiVersion": "example.com/v1", "kind": "Backup", "metadata": {"name": "a"},
        "status": {"phase": "Done"},
    });
    let path = format!("{BACKUPS}/a/status?fieldManager=z");
    let applied = patch(&server, &path, APPLY, &status).await.expect(200);
    let entries = applied["metadata"]["managedFields"].as_array().expect("entries");
    let own = entries.iter().find(|entry| entry["manager"] == "z").expect("an entry");
    assert_eq!(own["subresource"], "status");
    assert_eq!(own["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}
