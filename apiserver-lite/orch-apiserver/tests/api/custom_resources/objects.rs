//! Reading custom objects: lists, selectors, watches, tables, media types, permissions.

use serde_json::json;

use super::{BACKUPS, DEFINITIONS, backup, backups, define};
use crate::support::TestServer;

async fn with_three(server: &TestServer) {
    define(server, &backups()).await;
    for name in ["a", "b", "c"] {
        let mut object = backup(name);
        object["metadata"]["labels"] = json!({"n": name});
        server.post(BACKUPS, object.to_string()).await.expect(201);
    }
}

#[tokio::test]
async fn lists_have_pages_and_selectors() {
    let server = TestServer::start().await;
    with_three(&server).await;
    let names = |list: &serde_json::Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item["metadata"]["name"].as_str().expect("name").to_owned()).collect()
    };
    let all = server.get("/apis/example.com/v1/backups").await.expect(200);
    assert_eq!(
        (&all["kind"], &all["apiVersion"]),
        (&json!("BackupList"), &json!("example.com/v1"))
    );
    assert_eq!(all["items"][0]["kind"], "Backup", "items of custom lists have their kind");
    assert_eq!(names(&all), ["a", "b", "c"]);
    let first = server.get(&format!("{BACKUPS}?limit=2")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().expect("a token");
    let rest = server.get(&format!("{BACKUPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!((names(&first), names(&rest)), (vec!["a".into(), "b".into()], vec!["c".to_owned()]));
    for (query, wanted) in [
        ("labelSelector=n%3Db", vec!["b"]),
        ("labelSelector=n+in+(a,c)", vec!["a", "c"]),
        ("fieldSelector=metadata.name%3Dc", vec!["c"]),
        ("fieldSelector=metadata.namespace%3Dother", vec![]),
    ] {
        assert_eq!(names(&server.get(&format!("{BACKUPS}?{query}")).await.expect(200)), wanted);
    }
    let refused = server.get(&format!("{BACKUPS}?fieldSelector=spec.source%3Da")).await.expect(400);
    assert_eq!(refused["message"], "field label not supported: spec.source");
    server.get("/apis/example.com/v9/namespaces/default/backups").await.expect(404);
    server.get("/apis/example.com/v1/namespaces/default/backups/a/other").await.expect(404);
    server.delete(BACKUPS).await.expect(200);
    assert_eq!(server.get(BACKUPS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn watches_follow_objects() {
    let server = TestServer::start().await;
    with_three(&server).await;
    let mut events = server.watch(&format!("{BACKUPS}?watch=1&labelSelector=n%3Db")).await;
    assert_eq!(events.next_short().await, "ADDED b");
    let changed =
        server.merge_patch(&format!("{BACKUPS}/b"), r#"{"spec":{"source":"tape"}}"#).await;
    changed.expect(200);
    let event = events.next().await.expect("an event");
    assert_eq!(
        (&event["type"], &event["object"]["spec"]["source"]),
        (&json!("MODIFIED"), &json!("tape"))
    );
    assert_eq!(event["object"]["apiVersion"], "example.com/v1");
    server.delete(&format!("{BACKUPS}/b")).await.expect(200);
    assert_eq!(events.next_short().await, "DELETED b");
    let unserved = r#"[{"op":"replace","path":"/spec/versions/0/served","value":false}]"#;
    let path = format!("{DEFINITIONS}/backups.example.com");
    let media = "application/json-patch+json";
    server.call(http::Method::PATCH, &path, media, unserved).await.expect(200);
    assert!(events.next().await.is_none(), "the stream ends");
    server.get(BACKUPS).await.expect(404);
}

#[tokio::test]
async fn tables_have_the_columns_of_the_definition() {
    let server = TestServer::start().await;
    with_three(&server).await;
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = server.accept(BACKUPS, accept).await.expect(200);
    let columns = table["columnDefinitions"].as_array().expect("columns").iter();
    let columns: Vec<_> = columns.map(|c| (c["name"].clone(), c["priority"].clone())).collect();
    assert_eq!(
        columns,
        [(json!("Name"), json!(0)), (json!("Source"), json!(0)), (json!("Phase"), json!(1))]
    );
    assert_eq!(table["rows"][0]["cells"], json!(["a", "disk", null]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn objects_have_no_protobuf_but_their_metadata_have() {
    let server = TestServer::start().await;
    with_three(&server).await;
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(server.accept(BACKUPS, protobuf).await.code(), 406);
    assert_eq!(server.accept(&format!("{BACKUPS}/a"), protobuf).await.code(), 406);
    let metadata = format!("{protobuf};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let reply = server.accept(BACKUPS, &metadata).await;
    assert_eq!((reply.code(), reply.body.starts_with(b"k8s\0")), (200, true));
    let sent = server.call(http::Method::POST, BACKUPS, protobuf, "k8s\0").await.expect(415);
    assert!(sent["message"].as_str().is_some_and(|text| !text.contains("protobuf")), "{sent}");
    let yaml = "apiVersion: example.com/v1\nkind: Backup\nmetadata: {name: written}\nspec: {source: disk}\n";
    server.call(http::Method::POST, BACKUPS, "application/yaml", yaml).await.expect(201);
    let read = server.accept(&format!("{BACKUPS}/written"), "application/yaml").await;
    assert!(String::from_utf8_lossy(&read.body).contains("source: disk"));
}

#[tokio::test]
async fn quotas_count_objects() {
    let server = TestServer::start().await;
    define(&server, &backups()).await;
    let hard = json!({"count/backups.example.com": "1"});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    let mut made = server.post(quotas, quota.to_string()).await.expect(201);
    made["status"] = json!({"hard": hard, "used": {"count/backups.example.com": "0"}});
    server.put(&format!("{quotas}/q/status"), &made).await.expect(200);
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let refused = server.post(BACKUPS, backup("b").to_string()).await.expect(403);
    let message = refused["message"].as_str().expect("text");
    assert!(message.contains("exceeded quota: q"), "{message}");
}
