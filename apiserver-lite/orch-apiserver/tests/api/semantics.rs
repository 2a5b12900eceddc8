//! Behaviour over several requests: paged lists, watches, concurrent updates, two-phase deletion, restarts.

use std::sync::Arc;

use crate::support::{TestServer, kubernetes};
use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::Storage;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

async fn make(server: &TestServer, name: &str) -> Value {
    let body = json!({"metadata": {"name": name, "labels": {"name": name}}, "data": {"k": "v"}});
    server.post(MAPS, body.to_string()).await.expect(201)
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["metadata"]["name"].as_str().expect("name").to_owned()).collect()
}

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().expect("resourceVersion")
}

#[tokio::test]
async fn pages_show_one_revision() {
    let server = TestServer::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        make(&server, name).await;
    }
    let first = server.get(&format!("{MAPS}?limit=2")).await.expect(200);
    assert_eq!(names(&first), ["a", "b"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    // Writes in between are not visible in later pages.
    server.delete(&format!("{MAPS}/d")).await.expect(200);
    make(&server, "cc").await;
    let token = first["metadata"]["continue"].as_str().expect("token").to_owned();
    let second = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&second), ["c", "d"]);
    assert_eq!(revision(&second), revision(&first));
    let token = second["metadata"]["continue"].as_str().expect("token");
    let last = server.get(&format!("{MAPS}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(names(&last), ["e"]);
    assert!(last["metadata"].get("continue").is_none());
    let exact = format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion={}", revision(&first));
    assert_eq!(names(&server.get(&exact).await.expect(200)), ["a", "b", "c", "d", "e"]);
    let selected =
        server.get(&format!("{MAPS}?labelSelector=name%20in%20(a,e)&limit=1")).await.expect(200);
    assert_eq!(names(&selected), ["a"]);
    assert!(selected["metadata"].get("remainingItemCount").is_none());
    let token = selected["metadata"]["continue"].as_str().expect("token");
    let rest = format!("{MAPS}?labelSelector=name%20in%20(a,e)&limit=1&continue={token}");
    assert_eq!(names(&server.get(&rest).await.expect(200)), ["e"]);
    let by_name = server.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dc")).await.expect(200);
    assert_eq!(names(&by_name), ["c"]);
}

#[tokio::test]
async fn watches_start_at_the_requested_resource_version() {
    let server = TestServer::start().await;
    let first = make(&server, "a").await;
    make(&server, "b").await;
    let mut all = server.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(all.next_short().await, "ADDED a");
    assert_eq!(all.next_short().await, "ADDED b");
    let mut later =
        server.watch(&format!("{MAPS}?watch=1&resourceVersion={}", revision(&first))).await;
    assert_eq!(later.next_short().await, "ADDED b");
    let mut one = server.watch(&format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Da")).await;
    assert_eq!(one.next_short().await, "ADDED a");
    server.merge_patch(&format!("{MAPS}/a"), r#"{"data":{"k":"w"}}"#).await.expect(200);
    server.delete(&format!("{MAPS}/b")).await.expect(200);
    for events in [&mut all, &mut later] {
        assert_eq!(events.next_short().await, "MODIFIED a");
        let deleted = events.next().await.expect("deleted");
        assert_eq!(
            (deleted["type"].as_str(), deleted["object"]["data"]["k"].as_str()),
            (Some("DELETED"), Some("v"))
        );
        assert!(
            revision(&deleted["object"]).parse::<u64>().unwrap()
                > revision(&first).parse().unwrap()
        );
    }
    assert_eq!(one.next_short().await, "MODIFIED a");
}

#[tokio::test]
async fn leaving_a_selection_is_a_deletion() {
    let server = TestServer::start().await;
    let mut events = server.watch(&format!("{MAPS}?watch=1&labelSelector=name%3Da")).await;
    make(&server, "a").await;
    make(&server, "b").await;
    server
        .merge_patch(&format!("{MAPS}/a"), r#"{"metadata":{"labels":{"name":"z"}}}"#)
        .await
        .expect(200);
    server
        .merge_patch(&format!("{MAPS}/b"), r#"{"metadata":{"labels":{"name":"a"}}}"#)
        .await
        .expect(200);
    server.merge_patch(&format!("{MAPS}/b"), r#"{"data":{"x":"y"}}"#).await.expect(200);
    let seen = [
        events.next_short().await,
        events.next_short().await,
        events.next_short().await,
        events.next_short().await,
    ];
    assert_eq!(seen, ["ADDED a", "DELETED a", "ADDED b", "MODIFIED b"]);
}

#[tokio::test]
async fn initial_events_end_with_a_bookmark() {
    let server = TestServer::start().await;
    make(&server, "a").await;
    let ask =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = server.watch(&format!("{MAPS}?{ask}")).await;
    assert_eq!(events.next_short().await, "ADDED a");
    let mark = events.next().await.expect("bookmark");
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    server.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await.expect(422);
    let mut short = server
        .watch(&format!(
            "{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={}",
            revision(&mark["object"])
        ))
        .await;
    assert_eq!(short.next().await, None);
}

#[tokio::test]
async fn old_revisions_cannot_be_overwritten() {
    let server = TestServer::start().await;
    let old = make(&server, "a").await;
    let path = format!("{MAPS}/a");
    server.merge_patch(&path, r#"{"data":{"k":"w"}}"#).await.expect(200);
    let status = server.put(&path, &old).await.expect(409);
    assert_eq!(status["reason"], "Conflict");
    let mut fresh = old.clone();
    fresh["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    server.put(&path, &fresh).await.expect(200);
    fresh["metadata"]["uid"] = json!("other");
    server.put(&path, &fresh).await.expect(409);
    let unchanged = server.get(&path).await.expect(200);
    let same = server.put(&path, &unchanged).await.expect(200);
    assert_eq!(revision(&same), revision(&unchanged), "an update that changes nothing is no write");
    let insisting =
        format!(r#"{{"metadata":{{"resourceVersion":"{}"}},"data":{{"x":"y"}}}}"#, revision(&old));
    server.merge_patch(&path, &insisting).await.expect(409);
}

#[tokio::test]
async fn leases_and_classes_are_updated_by_their_version_only() {
    let server = TestServer::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}});
    let created = server.put(&format!("{leases}/l"), &lease).await.expect(201);
    for version in ["", "0"] {
        let mut blind = lease.clone();
        blind["metadata"]["resourceVersion"] = version.into();
        let refused = server.put(&format!("{leases}/l"), &blind).await.expect(422);
        let cause = &refused["details"]["causes"][0];
        assert_eq!(cause["field"], "metadata.resourceVersion", "{refused}");
    }
    server.put(&format!("{leases}/l"), &created).await.expect(200);
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    let class = json!({"metadata": {"name": "c"}, "provisioner": "p"});
    server.post(classes, class.to_string()).await.expect(201);
    server.put(&format!("{classes}/c"), &class).await.expect(200);
}

#[tokio::test]
async fn writes_change_neither_identity_nor_deletion() {
    let server = TestServer::start().await;
    let made = make(&server, "a").await;
    let path = format!("{MAPS}/a");
    let mut nameless = made.clone();
    nameless["metadata"].as_object_mut().unwrap().remove("name");
    let status = server.put(&path, &nameless).await.expect(400);
    assert!(status["message"].as_str().unwrap().ends_with("name must be provided"), "{status}");
    for (field, value) in [
        ("deletionTimestamp", json!("2020-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(5)),
    ] {
        let mut going = made.clone();
        going["metadata"][field] = value.clone();
        let status = server.put(&path, &going).await.expect(422);
        assert_eq!(status["details"]["causes"][0]["field"], format!("metadata.{field}"));
        let patch = json!({"metadata": {field: value}}).to_string();
        server.merge_patch(&path, &patch).await.expect(422);
    }
    let status = server.merge_patch(&path, r#"{"metadata":{"uid":"other"}}"#).await.expect(422);
    assert_eq!(status["details"]["causes"][0]["field"], "metadata.uid");
    let set = json!({"metadata": {"name": "s"}, "spec": {
        "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    server.post(sets, set.to_string()).await.expect(201);
    let scale_path = format!("{sets}/s/scale");
    let scale = server.get(&scale_path).await.expect(200);
    for (field, code) in [("name", 400), ("namespace", 400), ("uid", 409)] {
        let mut other = scale.clone();
        other["metadata"][field] = json!("other");
        server.put(&scale_path, &other).await.expect(code);
    }
    let kept = server.merge_patch(&path, r#"{"metadata":{"namespace":null}}"#).await.expect(200);
    assert_eq!(kept["metadata"]["namespace"], "default");
}

#[tokio::test]
async fn concurrent_patches_all_arrive() {
    let server = Arc::new(TestServer::start().await);
    make(&server, "a").await;
    let patches = (0..16).map(|n| {
        let server = server.clone();
        tokio::spawn(async move {
            let patch = format!(r#"{{"data":{{"k{n}":"v"}}}}"#);
            server.merge_patch(&format!("{MAPS}/a"), &patch).await.expect(200);
        })
    });
    for patch in patches.collect::<Vec<_>>() {
        patch.await.expect("patched");
    }
    let found = server.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(found["data"].as_object().unwrap().len(), 17);
}

#[tokio::test]
async fn finalizers_hold_a_deleted_object() {
    let server = TestServer::start().await;
    let body = json!({"metadata": {"name": "a", "finalizers": ["example.org/hold"]}});
    server.post(MAPS, body.to_string()).await.expect(201);
    let path = format!("{MAPS}/a");
    let marked = server.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    let again = server.delete(&path).await.expect(200);
    assert_eq!(revision(&again), revision(&marked), "a second request changes nothing");
    server.merge_patch(&path, r#"{"metadata":{"finalizers":null}}"#).await.expect(200);
    server.get(&path).await.expect(404);
}

#[tokio::test]
async fn pods_on_nodes_end_in_two_steps() {
    let server = TestServer::start().await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.post(PODS, pod.to_string()).await.expect(201);
    let binding =
        json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}).to_string();
    server.post(&format!("{PODS}/p/binding"), binding.clone()).await.expect(201);
    server.post(&format!("{PODS}/p/binding"), binding).await.expect(409);
    let bound = server.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(
        (bound["spec"]["nodeName"].as_str(), bound["status"]["conditions"][0]["type"].as_str()),
        (Some("n"), Some("PodScheduled"))
    );
    let marked = server.delete(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let shorter = server.delete(&format!("{PODS}/p?gracePeriodSeconds=5")).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    let other = r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"other"}}"#;
    server.call(Method::DELETE, &format!("{PODS}/p"), "application/json", other).await.expect(409);
    let now = r#"{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}"#;
    server.call(Method::DELETE, &format!("{PODS}/p"), "application/json", now).await.expect(200);
    server.get(&format!("{PODS}/p")).await.expect(404);
}

#[tokio::test]
async fn namespaces_go_when_they_are_finalized() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/team";
    let made =
        server.post("/api/v1/namespaces", r#"{"metadata":{"name":"team"}}"#).await.expect(201);
    assert_eq!(made["spec"]["finalizers"], json!(["kubernetes"]));
    let mut going = server.delete(path).await.expect(200);
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = server
        .post(&format!("{path}/configmaps"), r#"{"metadata":{"name":"a"}}"#)
        .await
        .expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    going["spec"]["finalizers"] = json!([]);
    server.put(&format!("{path}/finalize"), &going).await.expect(200);
    server.get(path).await.expect(404);
}

#[tokio::test]
async fn status_and_spec_do_not_mix() {
    let server = TestServer::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let body = json!({"metadata": {"name": "d"}, "spec": spec, "status": {"replicas": 9}});
    let made = server.post(path, body.to_string()).await.expect(201);
    assert_eq!(
        (made["metadata"]["generation"].as_i64(), made["status"].get("replicas")),
        (Some(1), None)
    );
    let mut status = made.clone();
    status["status"] = json!({"replicas": 1, "readyReplicas": 1});
    status["spec"]["replicas"] = json!(7);
    let reported = server.put(&format!("{path}/d/status"), &status).await.expect(200);
    assert_eq!(
        (reported["spec"]["replicas"].as_i64(), reported["status"]["replicas"].as_i64()),
        (Some(1), Some(1))
    );
    assert_eq!(reported["metadata"]["generation"], 1);
    let scale = server.get(&format!("{path}/d/scale")).await.expect(200);
    assert_eq!(
        (scale["kind"].as_str(), scale["status"]["selector"].as_str()),
        (Some("Scale"), Some("a=b"))
    );
    let scaled = server
        .merge_patch(&format!("{path}/d/scale"), r#"{"spec":{"replicas":3}}"#)
        .await
        .expect(200);
    assert_eq!(scaled["spec"]["replicas"], 3);
    let after = server.get(&format!("{path}/d")).await.expect(200);
    assert_eq!(
        (after["spec"]["replicas"].as_i64(), after["metadata"]["generation"].as_i64()),
        (Some(3), Some(2))
    );
    assert_eq!(after["status"]["replicas"], 1);
}

#[tokio::test]
async fn dry_runs_leave_no_trace() {
    let server = TestServer::start().await;
    let before = server.get(MAPS).await.expect(200);
    let body = r#"{"metadata":{"generateName":"a-"}}"#;
    let shown = server.post(&format!("{MAPS}?dryRun=All"), body).await.expect(201);
    assert!(shown["metadata"]["name"].as_str().unwrap().starts_with("a-"));
    assert!(shown["metadata"].get("resourceVersion").is_none());
    let service =
        r#"{"metadata":{"name":"s"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}"#;
    let services = "/api/v1/namespaces/default/services";
    server.post(&format!("{services}?dryRun=All"), service).await.expect(201);
    server.post(&format!("{services}?dryRun=All"), service).await.expect(201);
    let after = server.get(MAPS).await.expect(200);
    assert_eq!(before, after);
    server.post(services, service).await.expect(201);
}

#[tokio::test]
async fn collections_are_deleted_by_selection() {
    let server = TestServer::start().await;
    for name in ["a", "b", "c"] {
        make(&server, name).await;
    }
    let path = format!("{MAPS}?labelSelector=name%21%3Db");
    let status = server.delete(&path).await.expect(200);
    assert_eq!(
        (status["kind"].as_str(), status["status"].as_str()),
        (Some("Status"), Some("Success"))
    );
    assert_eq!(names(&server.get(MAPS).await.expect(200)), ["b"]);
}

#[tokio::test]
async fn a_restart_forgets_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let config = || Config {
        storage: Storage::Directory(dir.path().join("data")),
        cert_dir: Some(dir.path().join("pki")),
        ..Config::for_tests(kubernetes())
    };
    let server = TestServer::with(config()).await;
    let made = make(&server, "a").await;
    let service =
        r#"{"metadata":{"name":"s"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}"#;
    let services = "/api/v1/namespaces/default/services";
    server.post(services, service).await.expect(201);
    let before = server.get(&format!("{MAPS}/a")).await.expect(200);
    server.stop().await;
    let server = TestServer::with(config()).await;
    let after = server.get(&format!("{MAPS}/a")).await.expect(200);
    assert_eq!(before, after);
    assert_eq!(revision(&made), revision(&after));
    let other =
        r#"{"metadata":{"name":"t"},"spec":{"clusterIP":"10.96.0.77","ports":[{"port":80}]}}"#;
    server.post(services, other).await.expect(422);
    let next = make(&server, "b").await;
    assert!(revision(&next).parse::<u64>().unwrap() > revision(&made).parse().unwrap());
    server.stop().await;
    let orch = Config { names: crate::support::orch(), ..config() };
    let refused = orch_apiserver::build(orch).await.err().expect("refused");
    assert!(matches!(refused, orch_apiserver::BuildError::Store(_)), "{refused}");
}

#[tokio::test]
async fn a_refused_token_file_leaves_no_files() {
    let dir = tempfile::tempdir().expect("directory");
    let refused = async |tokens: std::path::PathBuf| {
        let config = Config {
            storage: Storage::Directory(dir.path().join("data")),
            cert_dir: Some(dir.path().join("pki")),
            token_auth_file: Some(tokens),
            ..Config::for_tests(kubernetes())
        };
        let refused = orch_apiserver::build(config).await.err().expect("refused");
        assert!(refused.is_usage(), "{refused}");
        let written = ["data", "pki"].map(|name| dir.path().join(name).exists());
        assert_eq!(written, [false, false], "{refused}");
    };
    refused(dir.path().join("missing")).await;
    let broken = dir.path().join("tokens");
    std::fs::write(&broken, "one-column\n").expect("written");
    refused(broken).await;
}

#[tokio::test]
async fn every_form_of_watch_carries_the_same_events() {
    let server = TestServer::start().await;
    make(&server, "a").await;
    let ask = |accept: &str| {
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1");
        let request = http::Request::get(path).header("host", "t").header("accept", accept);
        request.body(http_body_util::Full::default()).unwrap()
    };
    let table = server.send(ask("application/json;as=Table;v=v1;g=meta.k8s.io")).await;
    let events: Vec<Value> = table
        .body
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["object"]["rows"][0]["cells"][0], "a");
    assert!(events[0]["object"]["columnDefinitions"].is_array());
    let media_type = "application/vnd.kubernetes.protobuf;stream=watch";
    let frames = server.send(ask(media_type)).await;
    assert_eq!(frames.headers["content-type"], media_type);
    let (length, frame) = frames.body.split_at(4);
    let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
    assert_eq!(frame.len(), length, "one frame, as long as it says");
    assert_eq!(frame[..7], *b"\x0a\x05ADDED");
    assert!(frame.windows(4).any(|window| window == b"k8s\0"));
}

#[tokio::test]
async fn versions_of_a_kind_show_the_same_objects() {
    let server = TestServer::start().await;
    let core = "/api/v1/namespaces/default/events";
    let own = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut events = server.watch(&format!("{core}?watch=1")).await;
    let event = json!({
        "metadata": {"name": "e"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c", "reportingInstance": "i", "action": "a", "reason": "Tested", "type": "Normal",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
        "note": "n",
    });
    let made = server.post(own, event.to_string()).await.expect(201);
    assert_eq!(
        (made["apiVersion"].as_str(), made["note"].as_str()),
        (Some("events.k8s.io/v1"), Some("n"))
    );
    let seen = events.next().await.expect("event");
    assert_eq!(
        (seen["object"]["kind"].as_str(), seen["object"]["message"].as_str()),
        (Some("Event"), Some("n"))
    );
    let selected =
        server.get(&format!("{core}?fieldSelector=involvedObject.name%3Dp")).await.expect(200);
    assert_eq!(names(&selected), ["e"]);
    let selected = server
        .get(&format!("{own}?fieldSelector=regarding.name%3Dp,reason%3DTested"))
        .await
        .expect(200);
    assert_eq!(selected["items"][0]["regarding"]["name"], "p");
    let patched = server.merge_patch(&format!("{own}/e"), r#"{"note":"m"}"#).await.expect(200);
    assert_eq!(patched["note"], "m");
    assert_eq!(server.get(&format!("{core}/e")).await.expect(200)["message"], "m");
}

#[tokio::test]
async fn a_crowd_sees_every_event_once_and_in_order() {
    const WATCHERS: usize = 70;
    const WRITES: usize = 15;
    let server = TestServer::start().await;
    let mut watches = Vec::new();
    for _ in 0..WATCHERS {
        watches.push(server.watch(&format!("{MAPS}?watch=1")).await);
    }
    let expected: Vec<String> = (0..WRITES).map(|n| format!("ADDED m{n}")).collect();
    for n in 0..WRITES {
        make(&server, &format!("m{n}")).await;
    }
    for watch in &mut watches {
        let mut seen = Vec::new();
        for _ in 0..WRITES {
            seen.push(watch.next_short().await);
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn a_service_that_becomes_an_external_name_lets_its_address_go() {
    let server = TestServer::start().await;
    let path = "/api/v1/namespaces/default/services";
    let body = r#"{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80}]}}"#;
    let mut service = server.post(path, body).await.expect(201);
    assert_ne!(service["spec"]["clusterIP"], Value::Null);
    service["spec"]["type"] = "ExternalName".into();
    service["spec"]["externalName"] = "elsewhere.example".into();
    let changed = server.put(&format!("{path}/s"), &service).await.expect(200);
    for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
        assert_eq!(changed["spec"][field], Value::Null, "{field}");
    }
    assert_eq!(changed["spec"]["ports"][0]["nodePort"], Value::Null);
    server.stop().await;
}

#[tokio::test]
async fn a_review_has_no_table() {
    let server = TestServer::start().await;
    let review = |accept: &str| {
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
        http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header("host", "t")
            .header("accept", accept)
            .header("content-type", "application/json")
            .body(http_body_util::Full::from(body.to_string()))
            .unwrap()
    };
    assert_eq!(server.send(review("application/json")).await.status, 201);
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    assert_eq!(server.send(review(table)).await.status, 406);
}

#[tokio::test]
async fn a_page_of_large_objects_ends_before_its_limit() {
    let server = TestServer::start().await;
    let payload = "x".repeat(1 << 20);
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("m{n:02}")}, "data": {"a": payload}});
        server.post(MAPS, map.to_string()).await.expect(201);
    }
    let (mut token, mut names, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = server.get(&format!("{MAPS}?limit=500&continue={token}")).await.expect(200);
        let len = page.to_string().len();
        assert!(len < 10 << 20, "{len} bytes");
        for item in page["items"].as_array().unwrap() {
            names.push(item["metadata"]["name"].as_str().unwrap().to_owned());
        }
        pages += 1;
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => break,
        }
    }
    let expected: Vec<String> = (0..20).map(|n| format!("m{n:02}")).collect();
    assert_eq!((names, pages), (expected, 3));
    // Without a limit it is one list.
    let all = server.get(MAPS).await.expect(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 20);
}
