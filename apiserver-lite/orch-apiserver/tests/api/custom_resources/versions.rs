//! Several versions of a definition, and what outlasts a restart.

use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::Storage;
use serde_json::{Value, json};

use super::{BACKUPS, DEFINITIONS, backup, backups, condition, define, until};
use crate::support::{TestServer, kubernetes};

const V2: &str = "/apis/example.com/v2/namespaces/default/backups";

/// `backups` with a second version, which has another default.
fn two_versions() -> Value {
    let mut definition = backups();
    let versions = definition["spec"]["versions"].as_array_mut().expect("versions");
    let mut second = versions[0].clone();
    second["name"] = json!("v2");
    second["storage"] = json!(false);
    let properties = "/schema/openAPIV3Schema/properties/spec/properties";
    let properties = second.pointer_mut(properties).expect("properties");
    properties["level"] = json!({"type": "integer", "default": 3});
    versions.push(second);
    definition
}

/// Makes v2 the storage version.
async fn store_in_v2(server: &TestServer) {
    let path = format!("{DEFINITIONS}/backups.example.com");
    let mut definition = server.get(&path).await.expect(200);
    definition["spec"]["versions"][0]["storage"] = json!(false);
    definition["spec"]["versions"][1]["storage"] = json!(true);
    let changed = server.put(&path, &definition).await.expect(200);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[tokio::test]
async fn an_object_is_served_in_all_versions() {
    let server = TestServer::start().await;
    define(&server, &two_versions()).await;
    let made = server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    assert!(made["spec"].get("level").is_none());
    let second = server.get(&format!("{V2}/a")).await.expect(200);
    assert_eq!(
        (&second["apiVersion"], &second["spec"]["level"]),
        (&json!("example.com/v2"), &json!(3))
    );
    assert_eq!(second["metadata"]["uid"], made["metadata"]["uid"]);
    let mut events = server.watch(&format!("{V2}?watch=1")).await;
    let event = events.next().await.expect("an event");
    assert_eq!(event["object"]["apiVersion"], "example.com/v2");
    let patched =
        server.merge_patch(&format!("{V2}/a"), r#"{"spec":{"level":5}}"#).await.expect(200);
    assert_eq!(
        (&patched["apiVersion"], &patched["spec"]["level"]),
        (&json!("example.com/v2"), &json!(3)),
        "v1, in which it is stored, has no such field: the next reader sees the default"
    );
    let first = server.get(&format!("{BACKUPS}/a")).await.expect(200);
    assert!(first["spec"].get("level").is_none(), "v1 has no such field");
    assert_eq!(first["metadata"]["generation"], 2);
    let groups = server.get("/apis/example.com").await.expect(200);
    assert_eq!(groups["preferredVersion"]["version"], "v2");
    store_in_v2(&server).await;
    let before = server.get(&format!("{BACKUPS}/a")).await.expect(200);
    let level = server.get(&format!("{V2}/a")).await.expect(200)["spec"]["level"].clone();
    assert_eq!(level, 3, "not stored in v1");
    // An update that changes nothing brings the object into the new storage version, and the next one does nothing.
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let moved = server.put(&format!("{BACKUPS}/a"), &before).await.expect(200);
    assert_ne!(version(&moved), version(&before));
    let again = server.put(&format!("{BACKUPS}/a"), &moved).await.expect(200);
    assert_eq!(version(&again), version(&moved));
    let patched =
        server.merge_patch(&format!("{V2}/a"), r#"{"spec":{"level":5}}"#).await.expect(200);
    assert_eq!(patched["spec"]["level"], 5, "the storage version has the field");
}

#[tokio::test]
async fn a_restart_keeps_definitions_and_objects() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = || Config {
        storage: Storage::Directory(dir.path().join("data")),
        cert_dir: Some(dir.path().join("pki")),
        ..Config::for_tests(kubernetes())
    };
    let server = TestServer::with(config()).await;
    define(&server, &two_versions()).await;
    let made = server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let mut held = backup("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(BACKUPS, held.to_string()).await.expect(201);
    server.stop().await;
    let server = TestServer::with(config()).await;
    assert_eq!(server.get(&format!("{BACKUPS}/a")).await.expect(200), made, "at once");
    assert_eq!(server.get(&format!("{V2}/a")).await.expect(200)["spec"]["level"], 3);
    let revision = &made["metadata"]["resourceVersion"];
    let revision = revision.as_str().expect("a version");
    let mut events = server.watch(&format!("{BACKUPS}?watch=1&resourceVersion={revision}")).await;
    assert_eq!(events.next_short().await, "ADDED held", "the history goes on");
    // A deletion goes on where it was.
    let path = format!("{DEFINITIONS}/backups.example.com");
    server.delete(&path).await.expect(200);
    until(&server, &path, |it| {
        condition(it, "Terminating")["reason"] == "InstanceDeletionInProgress"
    })
    .await;
    server.stop().await;
    let server = TestServer::with(config()).await;
    let freed = r#"{"metadata":{"finalizers":null}}"#;
    server.merge_patch(&format!("{BACKUPS}/held"), freed).await.expect(200);
    until(&server, &path, |it| it["code"] == 404).await;
}

/// What was accepted can be read again: a document is parsed at most 127 levels deep.
#[tokio::test]
async fn no_patch_makes_an_object_that_cannot_be_read_again() {
    let dir = tempfile::tempdir().expect("directory");
    let config = || Config {
        storage: Storage::Directory(dir.path().join("data")),
        cert_dir: Some(dir.path().join("pki")),
        ..Config::for_tests(kubernetes())
    };
    let server = TestServer::with(config()).await;
    let mut definition = backups();
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let spec = definition.pointer_mut(schema).expect("the schema");
    spec["x-kubernetes-preserve-unknown-fields"] = json!(true);
    define(&server, &definition).await;
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let mut accepted = 0;
    let mut path = "/spec".to_owned();
    for depth in 1..130 {
        path.push_str("/d");
        let patch = json!([{"op": "add", "path": path, "value": {}}]).to_string();
        let path = format!("{BACKUPS}/a");
        let answer = server.call(Method::PATCH, &path, "application/json-patch+json", patch).await;
        if answer.code() == 200 {
            accepted = depth;
        }
    }
    assert!(accepted > 100, "{accepted}");
    server.stop().await;
    let server = TestServer::with(config()).await;
    server.get(&format!("{BACKUPS}/a")).await.expect(200);
}
