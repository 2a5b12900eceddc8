//! Versions that requests name, bookmarks, and smaller rules of objects: what the tables of the specification say of single requests.

use std::time::Duration;

use http::Method;
use serde_json::{Value, json};

use crate::support::TestServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn make(server: &TestServer, name: &str) -> u64 {
    let body = json!({"metadata": {"name": name}, "data": {"k": "v"}}).to_string();
    version(&server.post(MAPS, body).await.expect(201))
}

/// The same, when another request has had time to arrive.
async fn make_later(server: &TestServer, name: &str) -> u64 {
    tokio::time::sleep(Duration::from_millis(100)).await;
    make(server, name).await
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap()
}

#[tokio::test]
async fn a_get_at_a_version_is_not_older() {
    let server = TestServer::start().await;
    let made = make(&server, "a").await;
    let path = format!("{MAPS}/a");
    let patched = server.merge_patch(&path, r#"{"data":{"k":"w"}}"#).await.expect(200);
    // Any version will do at 0; the most recent is one.
    for at in [0, made, version(&patched)] {
        let found = server.get(&format!("{path}?resourceVersion={at}")).await.expect(200);
        assert_eq!(found, patched, "{at}");
    }
    server.get(&format!("{path}?resourceVersion=x")).await.expect(400);
    // A version that comes while the request waits is waited for.
    let next = version(&patched) + 1;
    let waiting = format!("{path}?resourceVersion={next}");
    let (found, _) = tokio::join!(server.get(&waiting), make_later(&server, "b"));
    assert_eq!(found.expect(200), patched);
}

#[tokio::test]
async fn a_watch_at_0_begins_with_what_exists() {
    let server = TestServer::start().await;
    let first = make(&server, "b").await;
    make(&server, "a").await;
    let mut events = server.watch(&format!("{MAPS}?watch=1&resourceVersion=0")).await;
    // In the order of their versions, so that a watch from one of them misses none.
    assert_eq!(events.next_short().await, "ADDED b");
    let mut resumed = server.watch(&format!("{MAPS}?watch=1&resourceVersion={first}")).await;
    make(&server, "c").await;
    for expected in ["ADDED a", "ADDED c"] {
        assert_eq!(events.next_short().await, expected);
        assert_eq!(resumed.next_short().await, expected);
    }
}

#[tokio::test]
async fn a_watch_of_a_version_to_come_waits_for_it() {
    let server = TestServer::start().await;
    let last = make(&server, "a").await;
    let path = format!("{MAPS}?watch=1&resourceVersion={}", last + 1);
    // The head of the answer comes once the version is there.
    let (mut events, made) = tokio::join!(server.watch(&path), make_later(&server, "b"));
    assert_eq!(made, last + 1, "nothing else writes here");
    make(&server, "c").await;
    assert_eq!(events.next_short().await, "ADDED c");
}

#[tokio::test]
async fn a_version_that_does_not_come_is_answered_with_when_to_try_again() {
    let server = TestServer::start().await;
    let last = make(&server, "a").await;
    let at = last + 1000;
    let paths = [
        format!("{MAPS}/a?resourceVersion={at}"),
        format!("{MAPS}?resourceVersion={at}"),
        format!("{MAPS}?watch=1&resourceVersion={at}"),
    ];
    let [one, list, watch] = &paths;
    let answers = tokio::join!(server.get(one), server.get(list), server.get(watch));
    for (path, answer) in paths.iter().zip([answers.0, answers.1, answers.2]) {
        assert_eq!(answer.headers["retry-after"], "1", "{path}");
        let status = answer.expect(504);
        assert_eq!(status["reason"], "Timeout", "{path}");
        let words = format!("Too large resource version: {at}, current: {last}");
        assert_eq!(status["message"], words.as_str(), "{path}");
        assert_eq!(status["details"]["retryAfterSeconds"], 1, "{path}");
        let cause =
            json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        assert_eq!(status["details"]["causes"], json!([cause]), "{path}");
    }
}

/// The time between two bookmarks passes on the clock of the test.
#[tokio::test]
async fn a_quiet_watch_gets_bookmarks_if_it_wants_them() {
    let server = TestServer::start().await;
    let last = make(&server, "a").await;
    let from = format!("{MAPS}?watch=1&resourceVersion={last}");
    let mut with = server.watch(&format!("{from}&allowWatchBookmarks=true")).await;
    let mut without = server.watch(&from).await;
    for _ in 0..2 {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
        let mark = with.next().await.expect("a bookmark");
        assert_eq!(mark["type"], "BOOKMARK", "{mark}");
        let object = &mark["object"];
        assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
        assert!(version(object) >= last, "{mark}");
        assert!(object["metadata"].get("name").is_none(), "{mark}");
        assert!(object.get("data").is_none(), "{mark}");
    }
    make(&server, "b").await;
    assert_eq!(with.next_short().await, "ADDED b");
    assert_eq!(without.next_short().await, "ADDED b", "no bookmark came before");
}

#[tokio::test]
async fn an_applied_object_is_an_event() {
    let server = TestServer::start().await;
    let last = make(&server, "a").await;
    let mut events = server.watch(&format!("{MAPS}?watch=1&resourceVersion={last}")).await;
    let apply = async |name: &str, value: &str| {
        let path = format!("{MAPS}/{name}?fieldManager=m&force=true");
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"k": value}});
        server.call(Method::PATCH, &path, "application/apply-patch+yaml", body.to_string()).await
    };
    apply("b", "1").await.expect(201);
    apply("a", "2").await.expect(200);
    assert_eq!(events.next_short().await, "ADDED b");
    assert_eq!(events.next_short().await, "MODIFIED a");
}

#[tokio::test]
async fn no_kind_is_called_list() {
    let server = TestServer::start().await;
    for path in ["/api/v1", "/apis/apps/v1"] {
        let listed = server.get(path).await.expect(200);
        let resources = listed["resources"].as_array().unwrap();
        assert!(resources.iter().all(|resource| resource["kind"] != "List"), "{path}");
    }
    assert_eq!(server.get(MAPS).await.expect(200)["kind"], "ConfigMapList");
    // A client's file of several objects is no object.
    let list = json!({"kind": "List", "apiVersion": "v1", "items": []}).to_string();
    for path in [MAPS, "/api/v1/namespaces"] {
        server.post(path, list.clone()).await.expect(400);
    }
    server.get("/api/v1/lists").await.expect(404);
}

#[tokio::test]
async fn uids_are_random_and_finalizers_have_any_order() {
    let server = TestServer::start().await;
    let body = |name: &str| {
        json!({"metadata": {"name": name, "finalizers": ["a.io/x", "b.io/y"]}}).to_string()
    };
    let one = server.post(MAPS, body("a")).await.expect(201);
    let other = server.post(MAPS, body("b")).await.expect(201);
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    for object in [&one, &other] {
        // A random one says so in its version and variant.
        let bytes: Vec<char> = uid(object).chars().collect();
        assert_eq!((bytes.len(), bytes[14]), (36, '4'));
        assert!(matches!(bytes[19], '8' | '9' | 'a' | 'b'));
    }
    assert_ne!(uid(&one), uid(&other));
    let mut turned = one.clone();
    turned["metadata"]["finalizers"] = json!(["b.io/y", "a.io/x"]);
    let turned = server.put(&format!("{MAPS}/a"), &turned).await.expect(200);
    assert_eq!(turned["metadata"]["finalizers"], json!(["b.io/y", "a.io/x"]));
}

#[tokio::test]
async fn a_namespace_keeps_the_label_with_its_name() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default";
    let label = "kubernetes.io/metadata.name";
    let patch = json!({"metadata": {"labels": {label: "other", "team": "a"}}}).to_string();
    for patch in [patch, json!({"metadata": {"labels": {label: null}}}).to_string()] {
        server.merge_patch(path, &patch).await;
        let found = server.get(path).await.expect(200);
        assert_eq!(found["metadata"]["labels"][label], "default", "{patch}");
    }
}

#[tokio::test]
async fn conditions_of_a_claim_are_merged_by_type() {
    let server = TestServer::start().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    server.post(claims, claim.to_string()).await.expect(201);
    let patch = async |conditions: Value| {
        let body = json!({"status": {"conditions": conditions}}).to_string();
        let kind = "application/strategic-merge-patch+json";
        server.call(Method::PATCH, &format!("{claims}/c/status"), kind, body).await.expect(200)
    };
    patch(json!([{"type": "Resizing", "status": "True"}])).await;
    patch(json!([{"type": "FileSystemResizePending", "status": "True"}])).await;
    let last = patch(json!([{"type": "Resizing", "status": "False", "reason": "r"}])).await;
    let conditions = last["status"]["conditions"].as_array().unwrap();
    let status = |kind: &str| {
        let mut of_type = conditions.iter().filter(|one| one["type"] == kind);
        let found = of_type.next().unwrap();
        assert!(of_type.next().is_none(), "{kind} once");
        found["status"].as_str().unwrap()
    };
    assert_eq!((status("Resizing"), status("FileSystemResizePending")), ("False", "True"));
}

#[tokio::test]
async fn text_that_is_not_unicode_is_refused() {
    let server = TestServer::start().await;
    for value in [&b"\xff"[..], b"a\xc3(", b"\xed\xa0\x80"] {
        let head: &[u8] = br#"{"metadata":{"name":"a"},"data":{"k":""#;
        let body = [head, value, br#""}}"#].concat();
        server.call(Method::POST, MAPS, "application/json", body).await.expect(400);
    }
    server.get(&format!("{MAPS}/a")).await.expect(404);
}
