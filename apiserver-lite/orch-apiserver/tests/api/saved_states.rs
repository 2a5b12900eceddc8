//! States of an ephemeral server that are saved and put back: what its clients see.

use http::Method;
use orch_apiserver::Config;
use serde_json::{Value, json};

use crate::custom_resources::{BACKUPS, DEFINITIONS, backup, backups, define};
use crate::support::{Reply, TestServer, kubernetes};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";

async fn ephemeral() -> TestServer {
    TestServer::with(Config { ephemeral: true, ..Config::for_tests(kubernetes()) }).await
}

async fn create(server: &TestServer, name: &str) -> Value {
    let body = json!({"metadata": {"name": name}, "data": {"a": "b"}}).to_string();
    server.post(MAPS, body).await.expect(201)
}

async fn names(server: &TestServer, path: &str) -> Vec<String> {
    let list = server.get(path).await.expect(200);
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

fn version(of: &Value) -> &str {
    of["metadata"]["resourceVersion"].as_str().unwrap()
}

#[tokio::test]
async fn a_state_is_put_back_and_clients_read_again() {
    let server = ephemeral().await;
    let kept = create(&server, "kept").await;
    let saved = server.post("/store/save", "").await.expect(201);
    assert_eq!(saved["name"], "start");
    server.post("/api/v1/namespaces", r#"{"metadata":{"name":"more"}}"#).await.expect(201);
    let changed = server.merge_patch(&format!("{MAPS}/kept"), r#"{"data":{"a":"c"}}"#).await;
    let changed = changed.expect(200);
    let last = create(&server, "gone").await;
    let mut watch =
        server.watch(&format!("{MAPS}?watch=true&resourceVersion={}", version(&last))).await;
    let restored = server.post("/store/restore", "").await.expect(201);
    assert_eq!(restored["objects"], saved["objects"]);

    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(watch.next().await, None, "the watch has ended");
    assert_eq!(server.get(&format!("{MAPS}/kept")).await.expect(200), kept);
    assert_eq!(names(&server, MAPS).await, ["kept"]);
    server.get("/api/v1/namespaces/more").await.expect(404);
    let old = format!("{MAPS}?watch=true&resourceVersion={}", version(&changed));
    let event = server.watch(&old).await.next().await.expect("an event");
    assert_eq!(event["object"]["code"], 410, "{event}");
    // What was read before the restore is not written over what is there now.
    let stale = server.put(&format!("{MAPS}/kept"), &changed).await;
    stale.expect(409);
    let next = create(&server, "next").await;
    let number = |text: &str| text.parse::<u64>().unwrap();
    let now = number(restored["resourceVersion"].as_str().unwrap());
    assert!(number(version(&last)) < now && now < number(version(&next)));
    server.post("/store/restore", "").await.expect(201);
    assert_eq!(names(&server, MAPS).await, ["kept"]);
    server.stop().await;
}

#[tokio::test]
async fn definitions_and_their_objects_come_and_go_with_states() {
    let server = ephemeral().await;
    server.post("/store/save?name=empty", "").await.expect(201);
    define(&server, &backups()).await;
    server.post(BACKUPS, backup("a").to_string()).await.expect(201);
    let made = server.get(&format!("{BACKUPS}/a")).await.expect(200);
    server.post("/store/save?name=defined", "").await.expect(201);
    for _ in 0..3 {
        server.post("/store/restore?name=empty", "").await.expect(201);
        server.get(BACKUPS).await.expect(404);
        assert_eq!(names(&server, DEFINITIONS).await, [""; 0]);
        server.post("/store/restore?name=defined", "").await.expect(201);
        assert_eq!(server.get(&format!("{BACKUPS}/a")).await.expect(200), made);
        server.post(BACKUPS, backup("b").to_string()).await.expect(201);
        let short = json!({"metadata": {"name": "c"}, "spec": {"source": "x"}}).to_string();
        server.post(BACKUPS, short).await.expect(422);
        assert_eq!(names(&server, BACKUPS).await, ["a", "b"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn addresses_are_free_or_taken_as_in_the_state() {
    let server = ephemeral().await;
    let service = |name: &str, address: &str| {
        let spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
        json!({"metadata": {"name": name}, "spec": spec}).to_string()
    };
    server.post(SERVICES, service("a", "10.96.0.50")).await.expect(201);
    server.post("/store/save", "").await.expect(201);
    server.delete(&format!("{SERVICES}/a")).await.expect(200);
    server.post(SERVICES, service("b", "10.96.0.50")).await.expect(201);
    server.post(SERVICES, service("c", "10.96.0.51")).await.expect(201);
    server.post("/store/restore", "").await.expect(201);
    server.post(SERVICES, service("d", "10.96.0.50")).await.expect(422);
    server.post(SERVICES, service("e", "10.96.0.51")).await.expect(201);
    server.stop().await;
}

#[tokio::test]
async fn only_administrators_put_back_the_state_of_ephemeral_servers() {
    let server = ephemeral().await;
    server.post("/store/save", "").await.expect(201);
    for path in ["/store/save", "/store/restore", "/store/forget"] {
        // AlwaysAllow lets every user who is known do everything else.
        let request = http::Request::post(path)
            .header("host", "test")
            .header("impersonate-user", "jane")
            .body(http_body_util::Full::default());
        let refused = server.send(request.unwrap()).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains("system:masters"), "{refused}");
        server.without_certificate(Method::POST, path, &[], "").await.expect(403);
        server.get(path).await.expect(405);
    }
    server.post("/store/restore?name=other", "").await.expect(404);
    for nth in 1..16 {
        server.post(&format!("/store/save?name=s{nth}"), "").await.expect(201);
    }
    let full = server.post("/store/save?name=other", "").await;
    full.expect(409);
    assert!(!full.headers.contains_key("retry-after"), "no client tries again by itself");
    server.post("/store/forget?name=s1", "").await.expect(201);
    server.post("/store/forget?name=s1", "").await.expect(404);
    server.post("/store/save?name=other", "").await.expect(201);
    server.stop().await;
    let server = TestServer::with(Config::for_tests(kubernetes())).await;
    let refused = server.post("/store/restore", "").await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("--ephemeral"), "{refused}");
    server.stop().await;
}

fn count(list: &Reply) -> usize {
    list.json_or_null()["items"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_definition_that_is_deleted_takes_nothing_of_a_state_with_it() {
    const COUNT: usize = 500;
    let server = ephemeral().await;
    define(&server, &backups()).await;
    for nth in 0..COUNT {
        server.post(BACKUPS, backup(&format!("b{nth}")).to_string()).await.expect(201);
    }
    server.post("/store/save", "").await.expect(201);
    for _ in 0..10 {
        let name = backups()["metadata"]["name"].as_str().unwrap().to_owned();
        // It is answered at once; the objects go one after the other.
        server.delete(&format!("{DEFINITIONS}/{name}")).await.expect(200);
        while count(&server.get(BACKUPS).await) == COUNT {}
        server.post("/store/restore", "").await.expect(201);
        assert_eq!(names(&server, BACKUPS).await.len(), COUNT);
    }
    server.stop().await;
}
