//! Which requests webhooks are asked about, and answers that cannot be used.

use apiserver_core::config::{AdmissionPlugin, AdmissionSettings};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use orch_apiserver::Config;
use serde_json::{Value, json};

use super::hook::{Does, Hook, MUTATING, VALIDATING, rule};
use super::{MAPS, configure, map, message};
use crate::support::{TestServer, kubernetes};

#[tokio::test]
async fn selectors_choose_namespaces_and_objects() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| Does::allow(review)).await;
    let selector = |label: &str| json!({"matchLabels": {label: "yes"}});
    let everything = json!([rule("*/*", "*")]);
    let webhooks = [
        hook.webhook("/object", &json!({"objectSelector": selector("o"), "rules": everything})),
        hook.webhook(
            "/namespace",
            &json!({"namespaceSelector": selector("n"), "rules": everything}),
        ),
    ];
    configure(&server, MUTATING, "c", &webhooks).await;
    assert_eq!(hook.take_paths(), [""; 0], "never about configurations");
    let label = json!({"metadata": {"labels": {"o": "yes"}}}).to_string();
    let team = json!({"metadata": {"name": "team", "labels": {"n": "yes"}}});
    server.post("/api/v1/namespaces", team.to_string()).await.expect(201);
    assert_eq!(hook.take_paths(), ["/namespace"], "by its own labels");
    server.post("/api/v1/namespaces/team/configmaps", map("m")).await.expect(201);
    assert_eq!(hook.take_paths(), ["/namespace"]);
    server.post(MAPS, map("m")).await.expect(201);
    assert_eq!(hook.take_paths(), [""; 0]);
    let one = format!("{MAPS}/m");
    server.merge_patch(&one, &label).await.expect(200);
    assert_eq!(hook.take_paths(), ["/object"], "as it will be");
    server.merge_patch(&one, r#"{"metadata":{"labels":null}}"#).await.expect(200);
    assert_eq!(hook.take_paths(), ["/object"], "as it was");
    server.delete(&one).await.expect(200);
    let volume = json!({"metadata": {"name": "s"}, "provisioner": "p"}).to_string();
    server.post("/apis/storage.k8s.io/v1/storageclasses", volume).await.expect(201);
    assert_eq!(hook.take_paths(), ["/namespace"], "what lies in no namespace is not exempt");
}

#[tokio::test]
async fn answers_that_cannot_be_used_are_failures() {
    let server = TestServer::start().await;
    let patch = |patch: Value| STANDARD.encode(patch.to_string());
    let hook = Hook::serve(move |path, review| {
        let patched = |patch: Value| Does::patch(review, &patch);
        let respond = |response: Value| Does::respond(review, response);
        match path {
            "/huge" => Does::Answer(vec![b' '; 8 << 20]),
            "/text" => Does::Answer(b"hello".to_vec()),
            "/uid" => Does::Answer(
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "x"}})
                    .to_string()
                    .into_bytes(),
            ),
            "/untyped" => respond(json!({"allowed": true, "patch": patch(json!([1]))})),
            "/nopatch" => patched(json!([{"op": "jump", "path": "/data"}])),
            "/absent" => patched(json!([{"op": "remove", "path": "/data/none"}])),
            "/broken" => patched(json!([{"op": "replace", "path": "/data", "value": 5}])),
            "/kind" => patched(json!([{"op": "replace", "path": "/kind", "value": "Secret"}])),
            _ => patched(
                json!([{"op": "add", "path": "/metadata/namespace", "value": "elsewhere"}]),
            ),
        }
    })
    .await;
    for (path, code, expected) in [
        ("huge", 500, "failed calling webhook \"huge.example.com\": failed to call webhook: Post"),
        (
            "text",
            500,
            "failed calling webhook \"text.example.com\": failed to call webhook: couldn't get version/kind; json parse error",
        ),
        ("uid", 500, "received invalid webhook response: expected response.uid="),
        ("untyped", 500, "webhook returned response.patch but not response.patchType"),
        ("nopatch", 500, "Internal error occurred: "),
        ("absent", 500, "Internal error occurred: "),
        ("broken", 500, "Internal error occurred: "),
        ("kind", 500, "Internal error occurred: "),
        ("moved", 400, "the namespace of the provided object does not match"),
    ] {
        configure(&server, MUTATING, "c", &[hook.webhook(&format!("/{path}"), &json!({}))]).await;
        let found = message(&server.post(MAPS, map("m")).await, code);
        assert!(found.contains(expected), "{path}: {found}");
        server.get(&format!("{MAPS}/m")).await.expect(404);
        server.delete(&format!("{MUTATING}/c")).await.expect(200);
    }
}

#[tokio::test]
async fn webhooks_may_name_new_objects_and_nothing_else_of_their_identity() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|path, review| {
        let add = |path: &str, value: &str| {
            Does::patch(review, &json!([{"op": "add", "path": path, "value": value}]))
        };
        match path {
            "/name" => add("/metadata/name", "renamed"),
            "/uid" => add("/metadata/uid", "mine"),
            _ => Does::allow(review),
        }
    })
    .await;
    let webhook = |path: &str, operation: &str| {
        hook.webhook(path, &json!({"rules": [rule("configmaps", operation)]}))
    };
    configure(&server, MUTATING, "c", &[webhook("/name", "CREATE"), webhook("/uid", "CREATE")])
        .await;
    let made = server.post(MAPS, map("m")).await.expect(201);
    assert_eq!(made["metadata"]["name"], "renamed");
    assert_ne!(made["metadata"]["uid"], "mine");
    server.get(&format!("{MAPS}/renamed")).await.expect(200);
    server.delete(&format!("{MUTATING}/c")).await.expect(200);
    server.post(MAPS, map("m")).await.expect(201);
    for path in ["/name", "/uid"] {
        configure(&server, MUTATING, "c", &[webhook(path, "UPDATE")]).await;
        let found =
            message(&server.merge_patch(&format!("{MAPS}/m"), r#"{"data":{"a":"b"}}"#).await, 422);
        assert!(found.contains("field is immutable"), "{path}: {found}");
        server.delete(&format!("{MUTATING}/c")).await.expect(200);
    }
    // A generated name is made after mutating webhooks and before validating ones.
    configure(&server, MUTATING, "c", &[webhook("/mutating", "CREATE")]).await;
    configure(&server, VALIDATING, "c", &[webhook("/validating", "CREATE")]).await;
    hook.take_calls();
    let made = server.post(MAPS, r#"{"metadata":{"generateName":"g-"}}"#).await.expect(201);
    let calls = hook.take_calls();
    assert_eq!(calls[0].request()["object"]["metadata"]["name"], Value::Null);
    assert_eq!(calls[0].request()["name"], Value::Null);
    assert_eq!(calls[1].request()["object"]["metadata"], made_before_storage(&made));
    assert_eq!(calls[1].request()["name"], made["metadata"]["name"]);
}

/// The metadata of a created object before it has a revision.
fn made_before_storage(made: &Value) -> Value {
    let mut metadata = made["metadata"].clone();
    metadata.as_object_mut().unwrap().shift_remove("resourceVersion");
    metadata
}

#[tokio::test]
async fn dry_runs_say_so_and_store_nothing() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| {
        Does::patch(review, &json!([{"op": "add", "path": "/data/z", "value": "1"}]))
    })
    .await;
    let webhook = hook.webhook("/m", &json!({"sideEffects": "NoneOnDryRun"}));
    configure(&server, MUTATING, "c", &[webhook]).await;
    let path = format!("{MAPS}?dryRun=All&fieldManager=f");
    let made = server.post(&path, map("m")).await.expect(201);
    assert_eq!(made["data"]["z"], "1");
    let calls = hook.take_calls();
    assert_eq!(calls[0].request()["dryRun"], true);
    let options = json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "dryRun": ["All"], "fieldManager": "f"});
    assert_eq!(calls[0].request()["options"], options);
    server.get(&format!("{MAPS}/m")).await.expect(404);
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// A request, and operation, kind and subresource that a webhook is told of it.
type Told = (Method, String, Value, [&'static str; 3]);

fn requests() -> Vec<Told> {
    let post = |path: String, body: Value, told| (Method::POST, path, body, told);
    let patch = |path: String, body: Value, told| (Method::PATCH, path, body, told);
    let target = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let eviction = json!({"metadata": {"name": "p"}});
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token".to_owned();
    let exec = format!("{PODS}/p/exec?command=a&command=b&stdin=1");
    let message = json!({"status": {"message": "m"}});
    let replicas = json!({"spec": {"replicas": 3}});
    let grace = json!({"gracePeriodSeconds": 3});
    vec![
        post(exec, json!({}), ["CONNECT", "PodExecOptions", "exec"]),
        post(format!("{PODS}/p/proxy/x"), json!({}), ["CONNECT", "PodProxyOptions", "proxy"]),
        post(format!("{PODS}/p/eviction"), eviction, ["CREATE", "Eviction", "eviction"]),
        post(format!("{PODS}/p/binding"), target, ["CREATE", "Binding", "binding"]),
        post(token, json!({}), ["CREATE", "TokenRequest", "token"]),
        patch(format!("{PODS}/p/status"), message, ["UPDATE", "Pod", "status"]),
        patch(format!("{DEPLOYMENTS}/d/scale"), replicas, ["UPDATE", "Scale", "scale"]),
        (Method::DELETE, format!("{PODS}/p"), grace, ["DELETE", "Pod", ""]),
    ]
}

/// Looks at the objects and options of the request that a webhook was asked about.
fn check_objects(request: &Value, operation: &str, kind: &str) {
    match (operation, kind) {
        (_, "PodExecOptions") => {
            assert_eq!(request["object"]["command"], json!(["a", "b"]));
            assert_eq!(request["object"]["stdin"], true);
            assert_eq!(request["options"], Value::Null);
        }
        (_, "PodProxyOptions") => assert_eq!(request["object"]["path"], "/x"),
        (_, "Scale") => {
            assert_eq!(request["object"]["spec"]["replicas"], 3);
            assert_eq!(request["oldObject"]["spec"]["replicas"], 1);
        }
        ("DELETE", _) => {
            assert_eq!(request["object"], Value::Null);
            assert_eq!(request["oldObject"]["kind"], "Pod");
            assert_eq!(request["options"]["gracePeriodSeconds"], 3);
        }
        _ => {}
    }
}

#[tokio::test]
async fn webhooks_are_called_for_subresources_and_connections() {
    let server = TestServer::start().await;
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": containers}});
    server.post(PODS, pod.to_string()).await.expect(201);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let deployment = json!({"metadata": {"name": "d"}, "spec": spec});
    server.post(DEPLOYMENTS, deployment.to_string()).await.expect(201);
    let hook = Hook::serve(|_, review| Does::respond(review, json!({"allowed": false}))).await;
    let webhook = hook.webhook("/v", &json!({"rules": [rule("*/*", "*")]}));
    configure(&server, VALIDATING, "c", &[webhook]).await;
    for (method, path, body, [operation, kind, subresource]) in requests() {
        let media_type = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let refused = server.call(method, &path, media_type, body.to_string()).await;
        let text = "admission webhook \"v.example.com\" denied the request without explanation";
        assert_eq!(message(&refused, 400), text, "{path}");
        let calls = hook.take_calls();
        assert_eq!(calls.len(), 1, "{path}");
        let request = calls[0].request();
        assert_eq!(request["operation"], operation, "{path}");
        assert_eq!(request["kind"]["kind"], kind, "{path}");
        assert_eq!(request["subResource"].as_str().unwrap_or_default(), subresource, "{path}");
        let name = path.split('/').nth(if kind == "Scale" { 7 } else { 6 });
        assert_eq!(request["name"].as_str(), name, "{path}");
        check_objects(request, operation, kind);
    }
    server.get(&format!("{PODS}/p")).await.expect(200);
}

#[tokio::test]
async fn other_versions_are_equivalent_and_get_their_own_form() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| {
        let patch =
            json!([{"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 70}]);
        Does::patch(review, &patch)
    })
    .await;
    let of_v1 = json!({"operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["*"]});
    configure(&server, MUTATING, "c", &[hook.webhook("/m", &json!({"rules": [of_v1]}))]).await;
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let autoscaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 3, "metrics": [metric],
        "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let made = server.post(path, autoscaler.to_string()).await.expect(201);
    let target = &made["spec"]["metrics"][0]["resource"]["target"];
    assert_eq!(target["averageUtilization"], 70);
    let calls = hook.take_calls();
    let request = calls[0].request();
    assert_eq!(
        (&request["kind"]["version"], &request["requestKind"]["version"]),
        (&json!("v1"), &json!("v2"))
    );
    assert_eq!(request["requestResource"]["version"], "v2");
    assert_eq!(request["object"]["apiVersion"], "autoscaling/v1");
}

#[tokio::test]
async fn disabled_webhook_plugins_call_no_webhooks() {
    use AdmissionPlugin::{MutatingAdmissionWebhook, ValidatingAdmissionWebhook};
    for (disabled, paths) in [
        (vec![MutatingAdmissionWebhook], vec!["/v"]),
        (vec![ValidatingAdmissionWebhook], vec!["/m"]),
        (vec![MutatingAdmissionWebhook, ValidatingAdmissionWebhook], Vec::new()),
    ] {
        let admission = AdmissionSettings { disabled, ..AdmissionSettings::default() };
        let server =
            TestServer::with(Config { admission, ..Config::for_tests(kubernetes()) }).await;
        let hook = Hook::serve(|_, review| Does::allow(review)).await;
        configure(&server, MUTATING, "m", &[hook.webhook("/m", &json!({}))]).await;
        configure(&server, VALIDATING, "v", &[hook.webhook("/v", &json!({}))]).await;
        server.post(MAPS, map("m")).await.expect(201);
        assert_eq!(hook.take_paths(), paths);
    }
}
