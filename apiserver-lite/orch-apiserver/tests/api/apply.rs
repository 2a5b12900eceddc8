//! Server-side apply and the ownership of fields, as clients see them.

use serde_json::{Value, json};

use crate::support::{Reply, TestServer};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

async fn apply(server: &TestServer, path: &str, config: &Value) -> Reply {
    let media = "application/apply-patch+yaml";
    server.call(http::Method::PATCH, path, media, config.to_string()).await
}

fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
}

/// Managers with their operation and the data that they own.
fn owners(object: &Value) -> Vec<(String, String, Vec<String>)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let keys = |entry: &Value| -> Vec<String> {
        let data = entry["fieldsV1"]["f:data"].as_object();
        data.into_iter().flatten().map(|(key, _)| key.clone()).filter(|key| key != ".").collect()
    };
    let row = |entry: &Value| (text(entry, "manager"), text(entry, "operation"), keys(entry));
    entries.iter().map(row).collect()
}

fn row(manager: &str, operation: &str, keys: &[&str]) -> (String, String, Vec<String>) {
    let keys = keys.iter().map(|key| format!("f:{key}")).collect();
    (manager.to_owned(), operation.to_owned(), keys)
}

#[tokio::test]
async fn fields_are_owned_shared_taken_and_given_up() {
    let server = TestServer::start().await;
    let by = |manager: &str| format!("{MAPS}/m?fieldManager={manager}");
    let a = apply(&server, &by("a"), &map(json!({"x": "1", "y": "1"}))).await.expect(201);
    assert_eq!(owners(&a), [row("a", "Apply", &["x", "y"])]);
    // Without a change nothing is written.
    let again = apply(&server, &by("a"), &map(json!({"x": "1", "y": "1"}))).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], a["metadata"]["resourceVersion"]);
    // The same value is shared, another one is a conflict.
    let shared = apply(&server, &by("b"), &map(json!({"x": "1"}))).await.expect(200);
    // As in Kubernetes, an owner that changed nothing has no time and comes first.
    assert_eq!(owners(&shared), [row("b", "Apply", &["x"]), row("a", "Apply", &["x", "y"])]);
    let conflict = apply(&server, &by("b"), &map(json!({"x": "2", "y": "2"}))).await.expect(409);
    assert_eq!(conflict["reason"], "Conflict");
    assert_eq!(
        conflict["message"],
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .data.x\n- .data.y"
    );
    assert_eq!(
        conflict["details"]["causes"][0],
        json!({"reason": "FieldManagerConflict", "message": "conflict with \"a\"", "field": ".data.x"})
    );
    let forced = format!("{}&force=true", by("b"));
    let taken = apply(&server, &forced, &map(json!({"x": "2", "y": "2"}))).await.expect(200);
    assert_eq!(owners(&taken), [row("b", "Apply", &["x", "y"])]);
    assert_eq!(taken["data"], json!({"x": "2", "y": "2"}));
    // What the applier leaves out goes, unless others own it.
    apply(&server, &by("c"), &map(json!({"y": "2"}))).await.expect(200);
    let left = apply(&server, &by("b"), &map(json!({}))).await.expect(200);
    assert_eq!(left["data"], json!({"y": "2"}));
    // An update makes an owner and raises no conflict.
    let path = format!("{MAPS}/m?fieldManager=d");
    let patched = server.merge_patch(&path, r#"{"data":{"y":"3"}}"#).await.expect(200);
    assert!(owners(&patched).contains(&row("d", "Update", &["y"])), "{patched}");
    let lost = apply(&server, &by("c"), &map(json!({"y": "2"}))).await.expect(409);
    let text = lost["message"].as_str().unwrap_or_default();
    assert!(
        text.starts_with("Apply failed with 1 conflict: conflict with \"d\" using v1"),
        "{text}"
    );
    // All owners are forgotten, and what changes with it is the requester's.
    let mut reset = server.get(&format!("{MAPS}/m")).await.expect(200);
    reset["metadata"]["managedFields"] = json!([{}]);
    reset["data"]["z"] = json!("1");
    let reset = server.put(&format!("{MAPS}/m?fieldManager=e"), &reset).await.expect(200);
    assert_eq!(owners(&reset), [row("e", "Update", &["z"])]);
}

/// What does not fit is refused as such, also where other owners wrote another version, to which it cannot be converted.
#[tokio::test]
async fn a_number_that_does_not_fit_is_refused_in_each_version() {
    let server = TestServer::start().await;
    let path = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let autoscaler = |version: &str, max: i64| {
        json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": max, "scaleTargetRef": {"kind": "Deployment", "name": "d"}}})
    };
    server.post(&path("v2"), autoscaler("v2", 3).to_string()).await.expect(201);
    for version in ["v1", "v2", "v2beta2"] {
        let at = format!("{}/h?fieldManager=a&force=true", path(version));
        let reply = apply(&server, &at, &autoscaler(version, i64::MAX)).await.expect(400);
        let message = reply["message"].as_str().unwrap_or_default();
        assert!(message.contains("spec.maxReplicas: expected int32"), "{version}: {message}");
        apply(&server, &at, &autoscaler(version, 4)).await.expect(200);
    }
}

#[tokio::test]
async fn an_apply_needs_a_manager_and_an_object_of_the_path() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/m?fieldManager=a");
    for (path, config, code, text) in [
        (
            format!("{MAPS}/m"),
            map(json!({})),
            422,
            "PatchOptions \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v2", "kind": "ConfigMap"}),
            400,
            "Incorrect version specified in apply patch",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "Secret"}),
            400,
            "the kind of the applied configuration (\"Secret\")",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}}),
            400,
            "the name of the object (n)",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "nothing": 1}),
            400,
            "nothing",
        ),
        (
            path.clone(),
            json!([]),
            400,
            "the applied configuration is of type array, it must be an object",
        ),
        (
            path.clone(),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "u"}}),
            409,
            "uid mismatch: the provided object specified uid u",
        ),
    ] {
        let refused = apply(&server, &path, &config).await.expect(code);
        assert!(
            refused["message"].as_str().is_some_and(|said| said.contains(text)),
            "{config}: {refused}"
        );
    }
    let twice =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {k: a}\ndata: {k: b}\n";
    let media = "application/apply-patch+yaml";
    let strict = format!("{path}&fieldValidation=Strict");
    let refused =
        server.call(http::Method::PATCH, &strict, media, twice.to_owned()).await.expect(400);
    assert!(
        refused["message"].as_str().is_some_and(|text| text.contains("duplicate field \"data\"")),
        "{refused}"
    );
    let warned = server.call(http::Method::PATCH, &path, media, twice.to_owned()).await;
    assert_eq!((warned.code(), warned.headers.contains_key("warning")), (201, true));
    let forced = server.merge_patch(&format!("{MAPS}/m?force=true"), "{}").await.expect(422);
    assert!(
        forced["message"].as_str().is_some_and(|text| text.contains("non-apply patch")),
        "{forced}"
    );
}

/// As a patch of another type, an apply may not change what the server sets, and none makes an object nameless.
#[tokio::test]
async fn an_apply_keeps_name_uid_and_deletion() {
    let server = TestServer::start().await;
    let path = format!("{MAPS}/m?fieldManager=a");
    let config =
        |metadata: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    let nameless = apply(&server, &path, &config(json!({}))).await.expect(400);
    let text = "the name of the object (m based on URL) was undeterminable: name must be provided";
    assert_eq!(nameless["message"], text);
    let made = apply(&server, &path, &config(json!({"name": "m"}))).await.expect(201);
    // What is there has its name already.
    apply(&server, &path, &config(json!({}))).await.expect(200);
    for name in [Value::Null, json!("")] {
        let refused = apply(&server, &path, &config(json!({"name": name}))).await.expect(400);
        assert_eq!(refused["message"], text);
    }
    for (field, value) in [("uid", "other"), ("deletionTimestamp", "2020-01-01T00:00:00Z")] {
        let changed = config(json!({"name": "m", field: value}));
        let refused = apply(&server, &path, &changed).await.expect(422);
        assert_eq!(refused["details"]["causes"][0]["field"], format!("metadata.{field}"));
    }
    let same = config(json!({"name": "m", "uid": made["metadata"]["uid"]}));
    apply(&server, &path, &same).await.expect(200);
}

/// As in Kubernetes the namespace of an object that lies in none is ignored.
#[tokio::test]
async fn the_namespace_of_an_object_that_has_none_is_ignored() {
    let server = TestServer::start().await;
    let path = "/api/v1/nodes/r?fieldManager=a";
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "r", "namespace": "n"}});
    for code in [201, 200] {
        let applied = apply(&server, path, &node).await.expect(code);
        assert_eq!(applied["metadata"]["namespace"], Value::Null);
    }
}

#[tokio::test]
async fn writers_of_status_and_scale_own_what_they_write() {
    let server = TestServer::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let path = format!("{DEPLOYMENTS}/d");
    apply(&server, &format!("{path}?fieldManager=team"), &config).await.expect(201);
    let status = r#"{"status":{"replicas":1}}"#;
    let managed =
        server.merge_patch(&format!("{path}/status?fieldManager=loop"), status).await.expect(200);
    let of = |object: &Value, manager: &str| {
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        entries.into_iter().find(|entry| entry["manager"] == manager).unwrap_or_default()
    };
    let entry = of(&managed, "loop");
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
    let scale = r#"{"spec":{"replicas":3}}"#;
    server.merge_patch(&format!("{path}/scale?fieldManager=autoscaler"), scale).await.expect(200);
    let conflict = apply(&server, &format!("{path}?fieldManager=team"), &config).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"autoscaler\" with subresource \"scale\" using apps/v1: .spec.replicas"
    );
    // Without the field in its configuration the team leaves it to the autoscaler.
    let mut config = config;
    config["spec"].as_object_mut().expect("an object").remove("replicas");
    let left = apply(&server, &format!("{path}?fieldManager=team"), &config).await.expect(200);
    assert_eq!(left["spec"]["replicas"], 3);
    assert_eq!(of(&left, "team")["operation"], "Apply");
}

fn entry(object: &Value, manager: &str) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries.into_iter().find(|entry| entry["manager"] == manager).unwrap_or_default()
}

#[tokio::test]
async fn an_applied_scale_owns_the_replicas_of_its_object() {
    let server = TestServer::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let path = format!("{DEPLOYMENTS}/d");
    apply(&server, &format!("{path}?fieldManager=team"), &config).await.expect(201);
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": replicas}});
    let at = |query: &str| format!("{path}/scale?fieldManager=scaler{query}");
    let conflict = apply(&server, &at(""), &scale(3)).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"team\": .spec.replicas"
    );
    // The same value is shared.
    let shared = apply(&server, &at(""), &scale(1)).await.expect(200);
    assert_eq!((&shared["kind"], &shared["spec"]["replicas"]), (&json!("Scale"), &json!(1)));
    assert!(shared["metadata"].get("managedFields").is_none());
    let dry = apply(&server, &at("&force=true&dryRun=All"), &scale(3)).await.expect(200);
    assert_eq!(dry["spec"]["replicas"], 3);
    let taken = apply(&server, &at("&force=true"), &scale(3)).await.expect(200);
    assert_eq!(taken["spec"]["replicas"], 3);
    let object = server.get(&path).await.expect(200);
    assert_eq!(
        (&object["spec"]["replicas"], &object["metadata"]["generation"]),
        (&json!(3), &json!(2))
    );
    let owner = entry(&object, "scaler");
    assert_eq!(
        (&owner["operation"], &owner["apiVersion"], &owner["subresource"], &owner["fieldsV1"]),
        (
            &json!("Apply"),
            &json!("apps/v1"),
            &json!("scale"),
            &json!({"f:spec": {"f:replicas": {}}})
        )
    );
    let team = entry(&object, "team");
    assert!(team["fieldsV1"]["f:spec"].get("f:replicas").is_none(), "{team}");
    assert!(team["fieldsV1"]["f:spec"]["f:template"].is_object(), "{team}");
    // Without a change nothing is written.
    let again = apply(&server, &at(""), &scale(3)).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);
    let conflict = apply(&server, &format!("{path}?fieldManager=team"), &config).await.expect(409);
    assert_eq!(
        conflict["message"],
        "Apply failed with 1 conflict: conflict with \"scaler\" with subresource \"scale\": .spec.replicas"
    );
}

#[tokio::test]
async fn what_is_no_scale_of_the_object_is_not_applied() {
    let server = TestServer::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 2}});
    let at = format!("{path}/scale?fieldManager=scaler");
    apply(&server, &at, &scale).await.expect(404);
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let made = json!({"metadata": {"name": "d"}, "spec": spec});
    server.post(DEPLOYMENTS, made.to_string()).await.expect(201);
    apply(&server, &format!("{path}/scale"), &scale).await.expect(422);
    for (field, value) in [
        ("/apiVersion", json!("apps/v1")),
        ("/kind", json!("Deployment")),
        ("/metadata/name", json!("other")),
        ("/spec/replicas", json!("many")),
    ] {
        let mut wrong = scale.clone();
        *wrong.pointer_mut(field).unwrap() = value;
        apply(&server, &at, &wrong).await.expect(400);
    }
    let mut negative = scale.clone();
    negative["spec"]["replicas"] = json!(-1);
    apply(&server, &format!("{at}&force=true"), &negative).await.expect(422);
    apply(&server, &format!("{at}&force=true"), &scale).await.expect(200);
}

#[tokio::test]
async fn writes_of_scales_check_their_fields_as_others_do() {
    let server = TestServer::start().await;
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let made = json!({"metadata": {"name": "d"}, "spec": spec});
    server.post(DEPLOYMENTS, made.to_string()).await.expect(201);
    let path = format!("{DEPLOYMENTS}/d/scale?fieldValidation=");
    let scale = json!({"metadata": {"name": "d"}, "spec": {"replicas": 2, "size": 1}});
    let merge = r#"{"spec":{"replicas":2,"size":1}}"#;
    let warned = ["299 - \"unknown field \\\"spec.size\\\"\""];
    for (validation, codes, warnings) in [
        ("Strict", [400, 422], &[][..]),
        ("Warn", [200, 200], &warned[..]),
        ("Ignore", [200, 200], &[][..]),
    ] {
        let path = format!("{path}{validation}");
        let replies = [server.put(&path, &scale).await, server.merge_patch(&path, merge).await];
        for (reply, code) in replies.into_iter().zip(codes) {
            let found: Vec<&str> = reply
                .headers
                .get_all("warning")
                .iter()
                .map(|value| value.to_str().expect("text"))
                .collect();
            assert_eq!(found, warnings, "{validation}");
            let text = reply.expect(code)["message"].as_str().unwrap_or_default().to_owned();
            let refused = text.contains("strict decoding error: unknown field \"spec.size\"");
            assert_eq!(refused, code != 200, "{text}");
        }
    }
    server.put(&format!("{path}Sometimes"), &scale).await.expect(422);
    server.merge_patch(&format!("{path}Sometimes"), merge).await.expect(422);
}
