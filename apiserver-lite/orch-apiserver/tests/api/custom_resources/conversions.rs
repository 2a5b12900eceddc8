//! Conversion webhooks: objects in all versions of their definition, what the webhook is asked, and what becomes of requests when it does not convert.

use std::sync::{Arc, Mutex};

use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::Storage;
use serde_json::{Value, json};

use super::{DEFINITIONS, define, patch, until};
use crate::support::{Reply, TestServer, kubernetes};
use crate::webhooks::hook::{Does, Hook};

const V1: &str = "/apis/example.com/v1/namespaces/default/hosts";
const V2: &str = "/apis/example.com/v2/namespaces/default/hosts";
const DEFINITION: &str = "hosts.example.com";

/// `hosts` with `hostPort` in v1, the storage version, and `host` and `port` in v2.
fn hosts(client: &Value) -> Value {
    let version = |name: &str, fields: Value| {
        json!({
            "name": name, "served": true, "storage": name == "v1", "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
        })
    };
    let status = json!({"type": "object", "properties": {"phase": {"type": "string"}}});
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": DEFINITION},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "hosts", "kind": "Host"},
            "versions": [
                version("v1", json!({"hostPort": text, "status": status})),
                version("v2", json!({"host": text, "port": text, "status": status})),
            ],
            "conversion": {"strategy": "Webhook", "webhook": {
                "clientConfig": client, "conversionReviewVersions": ["v9", "v1", "v1beta1"],
            }},
        },
    })
}

fn client(hook: &Hook) -> Value {
    json!({"url": format!("https://{}/convert", hook.address), "caBundle": hook.authority})
}

/// The object in the wanted version.
fn converted(object: &Value, api_version: &str) -> Value {
    let mut object = object.clone();
    let fields = object.as_object_mut().expect("an object");
    fields.insert("apiVersion".into(), json!(api_version));
    if let (true, Some(both)) = (api_version.ends_with("v2"), fields.remove("hostPort")) {
        let (host, port) = both.as_str().expect("text").split_once(':').expect("two parts");
        fields.insert("host".into(), json!(host));
        fields.insert("port".into(), json!(port));
        fields.insert("unknown".into(), json!("is pruned"));
    } else if let (Some(host), Some(port)) = (fields.remove("host"), fields.remove("port")) {
        let both = format!("{}:{}", host.as_str().expect("text"), port.as_str().expect("text"));
        fields.insert("hostPort".into(), json!(both));
    }
    object
}

fn all_converted(review: &Value) -> Vec<Value> {
    let request = &review["request"];
    let api_version = request["desiredAPIVersion"].as_str().expect("a version");
    let objects = request["objects"].as_array().expect("objects").iter();
    objects.map(|object| converted(object, api_version)).collect()
}

fn answer(review: &Value, converted: &[Value]) -> Value {
    let response = json!({
        "uid": review["request"]["uid"],
        "result": {"status": "Success"},
        "convertedObjects": converted,
    });
    json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response})
}

async fn converting() -> Hook {
    Hook::serve(|_, review| {
        Does::Answer(answer(review, &all_converted(review)).to_string().into_bytes())
    })
    .await
}

fn first(name: &str, host_port: &str) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": name}, "hostPort": host_port})
        .to_string()
}

fn second(name: &str, host: &str, port: &str) -> Value {
    json!({"apiVersion": "example.com/v2", "kind": "Host", "metadata": {"name": name}, "host": host, "port": port})
}

/// The fields of an object that differ between the versions.
fn fields(object: &Value) -> (&str, &str, &str, &str) {
    let text = |name: &str| object[name].as_str().unwrap_or("-");
    assert!(object.get("unknown").is_none(), "{object}");
    (text("apiVersion"), text("hostPort"), text("host"), text("port"))
}

/// The number of objects of each call since the last time, with the wanted version.
fn calls(hook: &Hook) -> Vec<(usize, String)> {
    let of = |call: crate::webhooks::hook::Call| {
        assert_eq!(
            (&call.review["apiVersion"], &*call.path),
            (&json!("apiextensions.k8s.io/v1"), "/convert")
        );
        let request = call.request();
        let wanted = request["desiredAPIVersion"].as_str().expect("a version").to_owned();
        (request["objects"].as_array().expect("objects").len(), wanted)
    };
    hook.take_calls().into_iter().map(of).collect()
}

#[tokio::test]
async fn objects_are_read_and_written_in_every_version() {
    let server = TestServer::start().await;
    let hook = converting().await;
    define(&server, &hosts(&client(&hook))).await;
    let made = server.post(V1, first("a", "here:80")).await.expect(201);
    assert_eq!(calls(&hook), [], "v1 is the storage version");
    let one = format!("{V2}/a");
    for _ in 0..2 {
        let read = server.get(&one).await.expect(200);
        assert_eq!(fields(&read), ("example.com/v2", "-", "here", "80"));
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
            assert_eq!(read["metadata"][field], made["metadata"][field], "{field}");
        }
    }
    assert_eq!(calls(&hook), [(1, "example.com/v2".to_owned())], "once for all readers");
    // Written in v2, stored in v1, and answered in v2.
    let patched = server.merge_patch(&one, r#"{"port":"81"}"#).await.expect(200);
    assert_eq!(fields(&patched), ("example.com/v2", "-", "here", "81"));
    assert_eq!(patched["metadata"]["generation"], 2);
    assert_eq!(fields(&server.get(&format!("{V1}/a")).await.expect(200)).1, "here:81");
    let mut replaced = patched.clone();
    replaced["host"] = json!("there");
    let replaced = server.put(&one, &replaced).await.expect(200);
    assert_eq!(fields(&replaced), ("example.com/v2", "-", "there", "81"));
    let status = json!({"status": {"phase": "Ready"}}).to_string();
    let ready = server.merge_patch(&format!("{one}/status"), &status).await.expect(200);
    assert_eq!((&ready["status"]["phase"], fields(&ready).2), (&json!("Ready"), "there"));
    let dry = server.merge_patch(&format!("{one}?dryRun=All"), r#"{"port":"9"}"#).await.expect(200);
    assert_eq!(fields(&dry), ("example.com/v2", "-", "there", "9"));
    let stored = server.get(&format!("{V1}/a")).await.expect(200);
    assert_eq!(fields(&stored), ("example.com/v1", "there:81", "-", "-"));
    assert_eq!(stored["status"]["phase"], "Ready");
    // An update that changes nothing writes nothing.
    let same = server.put(&one, &ready).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], ready["metadata"]["resourceVersion"]);
    let made = server.post(V2, second("b", "far", "82").to_string()).await.expect(201);
    assert_eq!(fields(&made), ("example.com/v2", "-", "far", "82"));
    server.delete(&format!("{V2}/b")).await.expect(200);
    server.get(&format!("{V1}/b")).await.expect(404);
}

#[tokio::test]
async fn lists_and_watches_are_converted_in_one_call() {
    let server = TestServer::start().await;
    let hook = converting().await;
    define(&server, &hosts(&client(&hook))).await;
    for name in ["a", "b", "c"] {
        server.post(V1, first(name, "here:80")).await.expect(201);
    }
    let list = server.get(V2).await.expect(200);
    let items = list["items"].as_array().expect("items");
    let shown: Vec<_> = items.iter().map(fields).collect();
    assert_eq!(shown, [("example.com/v2", "-", "here", "80"); 3]);
    let call = |count: usize| (count, "example.com/v2".to_owned());
    assert_eq!(calls(&hook), [call(3)]);
    let mut events = server.watch(&format!("{V2}?watch=1")).await;
    for _ in 0..3 {
        let event = events.next().await.expect("an event");
        assert_eq!((&event["type"], fields(&event["object"]).2), (&json!("ADDED"), "here"));
    }
    assert_eq!(calls(&hook), [], "they are kept");
    server.merge_patch(&format!("{V1}/b"), r#"{"hostPort":"there:81"}"#).await.expect(200);
    let event = events.next().await.expect("an event");
    assert_eq!(event["type"], "MODIFIED");
    assert_eq!(fields(&event["object"]), ("example.com/v2", "-", "there", "81"));
    assert_eq!(calls(&hook), [call(1)]);
    server.delete(&format!("{V1}/c")).await.expect(200);
    let event = events.next().await.expect("an event");
    assert_eq!((&event["type"], fields(&event["object"]).2), (&json!("DELETED"), "here"));
    // A definition that changes may have another webhook: what was converted is forgotten.
    calls(&hook);
    let labelled = r#"{"spec":{"names":{"shortNames":["ho"]}}}"#;
    server.merge_patch(&format!("{DEFINITIONS}/{DEFINITION}"), labelled).await.expect(200);
    server.get(V2).await.expect(200);
    assert_eq!(calls(&hook), [call(2)]);
    let deleted = server.delete(V2).await.expect(200);
    assert_eq!(deleted["items"].as_array().map_or(0, Vec::len), 0);
    assert_eq!(server.get(V1).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn a_long_list_takes_several_calls() {
    let server = TestServer::start().await;
    // The second call fails the first time.
    let fails = Arc::new(Mutex::new(true));
    let hook = Hook::serve(move |_, review| {
        let objects = all_converted(review);
        if objects.len() == 1 && std::mem::take(&mut *fails.lock().expect("not poisoned")) {
            return Does::Fail(500);
        }
        Does::Answer(answer(review, &objects).to_string().into_bytes())
    })
    .await;
    define(&server, &hosts(&client(&hook))).await;
    for nth in 0..501 {
        server.post(V1, first(&format!("h{nth}"), &format!("here:{nth}"))).await.expect(201);
    }
    server.get(V2).await.expect(500);
    let call = |count: usize| (count, "example.com/v2".to_owned());
    assert_eq!(calls(&hook), [call(500), call(1)]);
    let list = server.get(V2).await.expect(200);
    let items = list["items"].as_array().expect("items");
    let is_right = |item: &Value| {
        let name = item["metadata"]["name"].as_str().expect("a name");
        fields(item) == ("example.com/v2", "-", "here", name.trim_start_matches('h'))
    };
    assert_eq!((items.len(), items.iter().all(is_right)), (501, true));
    assert_eq!(calls(&hook), [call(1)], "what the first list got is kept");
}

/// The storage version changes while objects of the earlier one are stored, and the server restarts.
#[tokio::test]
async fn a_list_of_mixed_versions_is_converted() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = || Config {
        storage: Storage::Directory(dir.path().join("data")),
        cert_dir: Some(dir.path().join("pki")),
        ..Config::for_tests(kubernetes())
    };
    let server = TestServer::with(config()).await;
    let hook = converting().await;
    define(&server, &hosts(&client(&hook))).await;
    server.post(V1, first("old", "here:80")).await.expect(201);
    let path = format!("{DEFINITIONS}/{DEFINITION}");
    let mut definition = server.get(&path).await.expect(200);
    for (at, storage) in [(0, false), (1, true)] {
        definition["spec"]["versions"][at]["storage"] = json!(storage);
    }
    server.put(&path, &definition).await.expect(200);
    server.post(V1, first("new", "there:81")).await.expect(201);
    calls(&hook);
    let check = async |server: &TestServer| {
        for (path, expect) in [
            (
                V1,
                [("example.com/v1", "there:81", "-", "-"), ("example.com/v1", "here:80", "-", "-")],
            ),
            (V2, [("example.com/v2", "-", "there", "81"), ("example.com/v2", "-", "here", "80")]),
        ] {
            let list = server.get(path).await.expect(200);
            let items = list["items"].as_array().expect("items");
            assert_eq!(items.iter().map(fields).collect::<Vec<_>>(), expect);
        }
        calls(&hook)
    };
    let one_each = [(1, "example.com/v1".to_owned()), (1, "example.com/v2".to_owned())];
    assert_eq!(check(&server).await[..], one_each[1..], "the other was converted by its creation");
    server.stop().await;
    let server = TestServer::with(config()).await;
    until(&server, V1, |list| list["kind"] == "HostList").await;
    check(&server).await;
    // An update that changes nothing brings an object into the new storage version.
    let old = server.get(&format!("{V1}/old")).await.expect(200);
    let moved = server.put(&format!("{V1}/old"), &old).await.expect(200);
    assert_ne!(moved["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"]);
    let again = server.put(&format!("{V1}/old"), &moved).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], moved["metadata"]["resourceVersion"]);
    check(&server).await;
}

async fn apply(server: &TestServer, path: &str, manager: &str, object: &Value) -> Reply {
    let path = format!("{path}?fieldManager={manager}");
    patch(server, &path, "application/apply-patch+yaml", object).await
}

#[tokio::test]
async fn fields_are_owned_across_versions() {
    let server = TestServer::start().await;
    let hook = converting().await;
    define(&server, &hosts(&client(&hook))).await;
    let one: Value = serde_json::from_str(&first("a", "here:80")).expect("JSON");
    apply(&server, &format!("{V1}/a"), "one", &one).await.expect(201);
    let path = format!("{V2}/a");
    let refused = apply(&server, &path, "two", &second("a", "there", "80")).await.expect(409);
    assert!(refused["message"].as_str().expect("text").contains(".hostPort"), "{refused}");
    let owners = |object: &Value| {
        let entries = object["metadata"]["managedFields"].as_array().expect("entries").clone();
        let mut owners: Vec<String> = entries
            .iter()
            .map(|entry| format!("{} {}", entry["manager"].as_str().unwrap(), entry["fieldsV1"]))
            .collect();
        owners.sort_unstable();
        owners
    };
    let same = apply(&server, &path, "two", &second("a", "here", "80")).await.expect(200);
    assert_eq!(owners(&same), [r#"one {"f:hostPort":{}}"#, r#"two {"f:host":{},"f:port":{}}"#]);
    let forced = format!("{path}?fieldManager=two&force=true");
    let body = second("a", "there", "80").to_string();
    let forced = server.call(Method::PATCH, &forced, "application/apply-patch+yaml", body).await;
    assert_eq!(owners(&forced.expect(200)), [r#"two {"f:host":{},"f:port":{}}"#]);
    let stored = server.get(&format!("{V1}/a")).await.expect(200);
    assert_eq!(fields(&stored).1, "there:80");
}

type Change = fn(&Value) -> Does;

fn changed(review: &Value, change: impl FnOnce(&mut Value)) -> Does {
    let mut answer = answer(review, &all_converted(review));
    change(&mut answer);
    Does::Answer(answer.to_string().into_bytes())
}

/// Answers that are not accepted, and why.
const REFUSED: [(Change, &str); 9] = [
    (|_| Does::Fail(500), "failed: "),
    (|_| Does::Answer(b"{".to_vec()), "failed: "),
    (
        |review| changed(review, |answer| answer["kind"] = json!("Other")),
        "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got ",
    ),
    (
        |review| changed(review, |answer| answer["response"]["uid"] = json!("x")),
        "failed: expected response.uid=",
    ),
    (
        |review| {
            changed(review, |answer| {
                answer["response"]["result"] = json!({"status": "Failure", "message": "not today"});
            })
        },
        "failed: not today",
    ),
    (
        |review| changed(review, |answer| answer["response"]["convertedObjects"] = json!([])),
        "returned 0 objects, expected 1",
    ),
    (
        |review| {
            changed(review, |answer| {
                answer["response"]["convertedObjects"][0]["metadata"]["name"] = json!("b");
            })
        },
        "returned invalid converted object at index 0: must have the same name: a != b",
    ),
    (
        |review| {
            changed(review, |answer| {
                answer["response"]["convertedObjects"][0]["apiVersion"] = json!("example.com/v3");
            })
        },
        "returned invalid converted object at index 0: invalid groupVersion",
    ),
    (
        |review| {
            changed(review, |answer| {
                answer["response"]["convertedObjects"][0]["metadata"]["labels"] = json!([1]);
            })
        },
        "returned invalid converted object at index 0: invalid metadata.labels of type",
    ),
];

/// A webhook whose answers a test chooses.
async fn changing(answers: &Arc<Mutex<Change>>) -> Hook {
    let answers = answers.clone();
    Hook::serve(move |_, review| {
        let change = *answers.lock().expect("a lock");
        change(review)
    })
    .await
}

#[tokio::test]
async fn failed_conversions_are_errors() {
    let server = TestServer::start().await;
    let answers: Arc<Mutex<Change>> = Arc::new(Mutex::new(|_| Does::Fail(500)));
    let hook = changing(&answers).await;
    define(&server, &hosts(&client(&hook))).await;
    server.post(V1, first("a", "here:80")).await.expect(201);
    for (change, why) in REFUSED {
        *answers.lock().expect("a lock") = change;
        let expect = format!("conversion webhook for example.com/v1, Kind=Host {why}");
        for path in [format!("{V2}/a"), V2.to_owned()] {
            let status = server.get(&path).await.expect(500);
            let message = status["message"].as_str().expect("text");
            assert!(message.starts_with(&expect), "{message}");
            assert_eq!(status["reason"], "InternalError");
        }
    }
    let of_new = server.post(V2, second("b", "far", "82").to_string()).await.expect(500);
    let message = of_new["message"].as_str().expect("text");
    assert!(message.starts_with("conversion webhook for example.com/v2, Kind=Host "), "{message}");
    server.get(&format!("{V1}/b")).await.expect(404);
    let mut events = server.watch(&format!("{V2}?watch=1")).await;
    let event = events.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
    assert_eq!(events.next().await, None, "the stream ends");
    // The storage version needs no webhook.
    server.get(&format!("{V1}/a")).await.expect(200);
    server.merge_patch(&format!("{V1}/a"), r#"{"hostPort":"here:81"}"#).await.expect(200);
}

/// Labels and annotations are the webhook's, other metadata are not.
#[tokio::test]
async fn a_webhook_changes_labels_and_no_other_metadata() {
    let server = TestServer::start().await;
    let answers: Arc<Mutex<Change>> = Arc::new(Mutex::new(|review| {
        changed(review, |answer| {
            let metadata = &mut answer["response"]["convertedObjects"][0]["metadata"];
            metadata["labels"] = json!({"its": "own"});
            metadata["finalizers"] = json!(["example.com/hold"]);
        })
    }));
    let hook = changing(&answers).await;
    define(&server, &hosts(&client(&hook))).await;
    server.post(V1, first("a", "here:80")).await.expect(201);
    let read = server.get(&format!("{V2}/a")).await.expect(200);
    assert_eq!(read["metadata"]["labels"], json!({"its": "own"}));
    assert!(read["metadata"].get("finalizers").is_none());
    server.post(V2, second("b", "far", "82").to_string()).await.expect(201);
    let written = server.get(&format!("{V1}/b")).await.expect(200);
    assert_eq!(written["metadata"]["labels"], json!({"its": "own"}));
    assert!(written["metadata"].get("finalizers").is_none());
}

#[tokio::test]
async fn a_definition_is_deleted_although_its_webhook_is_unreachable() {
    let server = TestServer::start().await;
    let mut definition = hosts(&json!({"url": "https://127.0.0.1:1/convert"}));
    definition["spec"]["versions"].as_array_mut().expect("versions").reverse();
    define(&server, &definition).await;
    server.post(V1, first("a", "here:80")).await.expect(201);
    let status = server.get(&format!("{V2}/a")).await.expect(500);
    let call = "failed: Post \"https://127.0.0.1:1/convert?timeout=30s\": ";
    let message = status["message"].as_str().expect("text");
    assert!(message.contains(call), "{message}");
    // Also of objects that are in an earlier storage version and wait for a finalizer.
    let mut held: Value = serde_json::from_str(&first("held", "here:81")).expect("JSON");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(V1, held.to_string()).await.expect(201);
    let path = format!("{DEFINITIONS}/{DEFINITION}");
    let mut definition = server.get(&path).await.expect(200);
    for (at, storage) in [(0, true), (1, false)] {
        definition["spec"]["versions"][at]["storage"] = json!(storage);
    }
    server.put(&path, &definition).await.expect(200);
    server.delete(&path).await.expect(200);
    let held = format!("{V1}/held");
    until(&server, &held, |it| it["metadata"]["deletionTimestamp"].is_string()).await;
    server.merge_patch(&held, r#"{"metadata":{"finalizers":null}}"#).await.expect(200);
    until(&server, &path, |it| it["code"] == 404).await;
}

/// Fields that only one version has are compared as the webhook makes them.
#[tokio::test]
async fn selectable_fields_are_those_of_the_requested_version() {
    let server = TestServer::start().await;
    let hook = converting().await;
    let mut definition = hosts(&client(&hook));
    definition["spec"]["versions"][1]["selectableFields"] = json!([{"jsonPath": ".host"}]);
    define(&server, &definition).await;
    for (name, place) in [("a", "here:80"), ("b", "there:80"), ("c", "here:81")] {
        server.post(V1, first(name, place)).await.expect(201);
    }
    let here = format!("{V2}?fieldSelector=host%3Dhere");
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().expect("items").iter();
        items.map(|item| item["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&server.get(&here).await.expect(200)), ["a", "c"]);
    server.get(&format!("{V1}?fieldSelector=host%3Dhere")).await.expect(400);
    let mut events = server.watch(&format!("{here}&watch=1")).await;
    assert_eq!(events.next_short().await, "ADDED a");
    assert_eq!(events.next_short().await, "ADDED c");
    server.merge_patch(&format!("{V1}/b"), r#"{"hostPort":"here:82"}"#).await.expect(200);
    assert_eq!(events.next_short().await, "ADDED b");
    server.merge_patch(&format!("{V2}/a"), r#"{"host":"there"}"#).await.expect(200);
    assert_eq!(events.next_short().await, "DELETED a");
    server.delete(&here).await.expect(200);
    assert_eq!(names(&server.get(V2).await.expect(200)), ["a"]);
}
