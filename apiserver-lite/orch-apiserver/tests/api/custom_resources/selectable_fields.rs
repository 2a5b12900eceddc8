//! Selectable fields of definitions: what field selectors on them find, by each verb and from kubectl.

use serde_json::{Value, json};

use super::{DEFINITIONS, define, patch};
use crate::support::TestServer;

const SHIRTS: &str = "/apis/example.com/v1/namespaces/default/shirts";

/// `shirts`, of which v1 selects by color, size and `on`, and v2 by none of them.
fn shirts() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {
        "type": "object",
        "properties": {
            "color": {"type": "string"}, "size": {"type": "integer"}, "on": {"type": "boolean"},
            "fit": {"type": "string", "default": "wide"}, "parts": {"type": "array", "items": {"type": "string"}},
        },
    }}}});
    let paths = [".spec.color", ".spec.size", ".spec['on']", ".spec.fit"];
    let fields: Vec<Value> = paths.iter().map(|path| json!({"jsonPath": path})).collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "shirts.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "shirts", "kind": "Shirt"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": schema, "selectableFields": fields},
                {"name": "v2", "served": true, "storage": false, "schema": schema},
            ],
        },
    })
}

fn shirt(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn with_four(server: &TestServer) {
    for (name, spec) in [
        ("a", json!({"color": "red", "size": 1, "on": true})),
        ("b", json!({"color": "blue", "size": 2, "on": false})),
        ("c", json!({"color": "red", "fit": "tight"})),
        ("d", json!({})),
    ] {
        server.post(SHIRTS, shirt(name, &spec)).await.expect(201);
    }
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().expect("items").iter();
    items.map(|item| item["metadata"]["name"].as_str().expect("name").to_owned()).collect()
}

fn selecting(selector: &str) -> String {
    let encoded = selector.replace('=', "%3D").replace('[', "%5B").replace(']', "%5D");
    format!("{SHIRTS}?fieldSelector={}", encoded.replace('\'', "%27").replace('!', "%21"))
}

#[tokio::test]
async fn lists_find_objects_by_selectable_fields() {
    let server = TestServer::start().await;
    let made = define(&server, &shirts()).await;
    assert_eq!(
        made["spec"]["versions"][0]["selectableFields"][1],
        json!({"jsonPath": ".spec.size"})
    );
    with_four(&server).await;
    for (selector, wanted) in [
        ("spec.color=red", vec!["a", "c"]),
        ("spec.color!=red", vec!["b", "d"]),
        ("spec.color=", vec!["d"]),
        ("spec.size=2", vec!["b"]),
        ("spec['on']=true", vec!["a"]),
        ("spec.fit=wide", vec!["a", "b", "d"]),
        ("spec.color=red,metadata.name=c", vec!["c"]),
        ("spec.color=red,spec.size=1", vec!["a"]),
        ("metadata.namespace=default,spec.color=blue", vec!["b"]),
        ("metadata.namespace=other,spec.color=blue", vec![]),
        ("metadata.name=d", vec!["d"]),
    ] {
        let list = server.get(&selecting(selector)).await.expect(200);
        assert_eq!(names(&list), wanted, "{selector}");
    }
    let first = server.get(&format!("{}&limit=1", selecting("spec.color=red"))).await.expect(200);
    let token = first["metadata"]["continue"].as_str().expect("more");
    let rest = format!("{}&limit=1&continue={token}", selecting("spec.color=red"));
    assert_eq!(names(&first), ["a"]);
    assert_eq!(names(&server.get(&rest).await.expect(200)), ["c"]);
    let labelled = r#"{"metadata":{"labels":{"on":"sale"}}}"#;
    server.merge_patch(&format!("{SHIRTS}/c"), labelled).await.expect(200);
    let both = format!("{}&labelSelector=on", selecting("spec.color=red"));
    assert_eq!(names(&server.get(&both).await.expect(200)), ["c"]);
    for field in ["spec.parts", "spec.zz", "spec", "status.color"] {
        let refused = server.get(&selecting(&format!("{field}=x"))).await.expect(400);
        assert_eq!(refused["message"], format!("field label not supported: {field}"));
        assert_eq!(refused["reason"], "BadRequest");
    }
    // Each version has its own.
    let second = selecting("spec.color=red").replace("/v1/", "/v2/");
    let refused = server.get(&second).await.expect(400);
    assert_eq!(refused["message"], "field label not supported: spec.color");
    let openapi = server.get("/openapi/v2").await.expect(200);
    let fields = |version: &str| {
        let name = format!("com.example.{version}.Shirt");
        openapi["definitions"][name]["x-kubernetes-selectable-fields"].clone()
    };
    let shown = ["spec.color", "spec.size", "spec['on']", "spec.fit"];
    let shown: Vec<Value> = shown.iter().map(|path| json!({"fieldPath": path})).collect();
    assert_eq!((fields("v1"), fields("v2")), (json!(shown), Value::Null));
}

#[tokio::test]
async fn watches_follow_what_starts_and_stops_to_match() {
    let server = TestServer::start().await;
    define(&server, &shirts()).await;
    with_four(&server).await;
    let mut events = server.watch(&format!("{}&watch=1", selecting("spec.color=red"))).await;
    assert_eq!(events.next_short().await, "ADDED a");
    assert_eq!(events.next_short().await, "ADDED c");
    let paint = |color: &str| json!({"spec": {"color": color}}).to_string();
    for (name, color, event) in
        [("b", "red", "ADDED b"), ("c", "red and white", "DELETED c"), ("d", "red", "ADDED d")]
    {
        server.merge_patch(&format!("{SHIRTS}/{name}"), &paint(color)).await.expect(200);
        assert_eq!(events.next_short().await, event);
    }
    server.merge_patch(&format!("{SHIRTS}/d"), r#"{"spec":{"size":7}}"#).await.expect(200);
    assert_eq!(events.next_short().await, "MODIFIED d");
    server.delete(&format!("{SHIRTS}/c")).await.expect(200);
    server.delete(&format!("{SHIRTS}/a")).await.expect(200);
    assert_eq!(events.next_short().await, "DELETED a", "nothing of c, which did not match");
}

#[tokio::test]
async fn a_collection_is_deleted_as_far_as_it_matches() {
    let server = TestServer::start().await;
    define(&server, &shirts()).await;
    with_four(&server).await;
    server.delete(&selecting("spec.zz=red")).await.expect(400);
    server.delete(&selecting("spec.color=red,spec.size=1")).await.expect(200);
    assert_eq!(names(&server.get(SHIRTS).await.expect(200)), ["b", "c", "d"]);
    server.delete(&selecting("spec.color!=blue")).await.expect(200);
    assert_eq!(names(&server.get(SHIRTS).await.expect(200)), ["b"]);
}

/// Objects that were stored before a field had its default match by it, as they are shown.
#[tokio::test]
async fn a_changed_definition_selects_by_what_is_shown() {
    let server = TestServer::start().await;
    define(&server, &shirts()).await;
    with_four(&server).await;
    let path = format!("{DEFINITIONS}/shirts.example.com");
    let color = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/default";
    let change = json!([
        {"op": "add", "path": color, "value": "white"},
        {"op": "remove", "path": "/spec/versions/0/selectableFields/1"},
    ]);
    patch(&server, &path, "application/json-patch+json", &change).await.expect(200);
    let white = server.get(&selecting("spec.color=white")).await.expect(200);
    assert_eq!(names(&white), ["d"]);
    server.get(&selecting("spec.size=1")).await.expect(400);
}

#[tokio::test]
async fn a_definition_with_wrong_selectable_fields_is_refused() {
    let server = TestServer::start().await;
    let mut wrong = shirts();
    wrong["spec"]["versions"][0]["selectableFields"] =
        json!([{"jsonPath": ".spec.parts"}, {"jsonPath": ".spec.zz"}]);
    let reply =
        server.post(&format!("{DEFINITIONS}?fieldValidation=Strict"), wrong.to_string()).await;
    let refused = reply.expect(422);
    let causes = refused["details"]["causes"].as_array().expect("causes").iter();
    let causes: Vec<&str> = causes.map(|cause| cause["field"].as_str().expect("a field")).collect();
    let place = "spec.versions[0].selectableFields";
    assert_eq!(causes, [format!("{place}[0]"), format!("{place}[1].jsonPath")]);
}

/// What people type, where there is a kubectl on this machine.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_selects_by_fields_of_custom_kinds() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|dir| dir.join("kubectl").exists()) {
        println!("SKIPPED kubectl_selects_by_fields_of_custom_kinds: there is no kubectl here");
        return;
    }
    let server = TestServer::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let config = dir.path().join("config");
    std::fs::write(&config, server.kubeconfig()).expect("written");
    define(&server, &shirts()).await;
    with_four(&server).await;
    let kubectl = |line: &str| {
        let mut command = std::process::Command::new("kubectl");
        command.arg("--kubeconfig").arg(&config).args(line.split(' ')).env("HOME", dir.path());
        let output = command.output().expect("kubectl runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).trim_end().to_owned()
    };
    let run = |line: &str| tokio::task::block_in_place(|| kubectl(line));
    let names = "shirt.example.com/a\nshirt.example.com/c";
    assert_eq!(run("get shirts.v1.example.com --field-selector spec.color=red -o name"), names);
    assert_eq!(
        run("get shirts.v1.example.com --field-selector=spec.color=red,spec.size=1 -o name"),
        "shirt.example.com/a"
    );
    let table = run("get shirts.v1.example.com -A --field-selector spec.color!=red --no-headers");
    let shown: Vec<&str> = table.lines().filter_map(|row| row.split_whitespace().nth(1)).collect();
    assert_eq!(shown, ["b", "d"], "{table}");
    let refused = run("get shirts.v1.example.com --field-selector spec.zz=x");
    assert!(refused.contains("field label not supported: spec.zz"), "{refused}");
    run("delete shirts.v1.example.com --field-selector spec.color=red");
    assert_eq!(self::names(&server.get(SHIRTS).await.expect(200)), ["b", "d"]);
}
