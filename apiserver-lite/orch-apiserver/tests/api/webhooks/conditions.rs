//! Match conditions: which requests webhooks are not called about, and what becomes of requests when conditions fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use orch_apiserver::Config;
use orch_apiserver::config::AuthorizationMode;
use serde_json::{Value, json};

use super::hook::{Does, Hook, MUTATING, VALIDATING, configuration, rule};
use super::{MAPS, configure, map, message};
use crate::custom_resources::define;
use crate::support::{TestServer, kubernetes};

/// The fields of a webhook with these conditions.
fn when(expressions: &[&str]) -> Value {
    let condition = |(at, text): (usize, &&str)| json!({"name": format!("example.com/c{at}"), "expression": text});
    let all: Vec<Value> = expressions.iter().enumerate().map(condition).collect();
    json!({"matchConditions": all, "rules": [rule("configmaps", "*")]})
}

async fn hook() -> Hook {
    Hook::serve(|path, review| {
        let patch = json!([{"op": "add", "path": "/data/seen", "value": path}]);
        let deletes = review["request"]["operation"] == "DELETE";
        if path == "/m" && !deletes { Does::patch(review, &patch) } else { Does::allow(review) }
    })
    .await
}

#[tokio::test]
async fn webhooks_of_both_kinds_are_called_where_all_conditions_hold() {
    let server = TestServer::start().await;
    let hook = hook().await;
    let conditions = [
        "request.operation == 'DELETE' ? oldObject.metadata.name != 'free' : object.metadata.name != 'free'",
        "!request.userInfo.username.startsWith('system:serviceaccount:') && request.namespace == 'default'",
        "request.resource.resource == 'configmaps' && request.kind.kind == 'ConfigMap' && !request.dryRun",
    ];
    configure(&server, MUTATING, "m", &[hook.webhook("/m", &when(&conditions))]).await;
    configure(&server, VALIDATING, "v", &[hook.webhook("/v", &when(&conditions))]).await;
    // Written and read as it is.
    let stored = server.get(&format!("{MUTATING}/m")).await.expect(200);
    assert_eq!(stored["webhooks"][0]["matchConditions"], when(&conditions)["matchConditions"]);
    let made = server.post(MAPS, map("m")).await.expect(201);
    assert_eq!(
        (&made["data"]["seen"], hook.take_paths()),
        (&json!("/m"), vec!["/m".into(), "/v".into()])
    );
    let made = server.post(MAPS, map("free")).await.expect(201);
    assert_eq!((&made["data"]["seen"], hook.take_paths().len()), (&Value::Null, 0));
    server.post(&format!("{MAPS}?dryRun=All"), map("dry")).await.expect(201);
    server.merge_patch(&format!("{MAPS}/free"), r#"{"data":{"x":"z"}}"#).await.expect(200);
    server.delete(&format!("{MAPS}/free")).await.expect(200);
    assert_eq!(hook.take_paths().len(), 0);
    server.delete(&format!("{MAPS}/m")).await.expect(200);
    assert_eq!(hook.take_paths(), ["/m", "/v"]);
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let line = |kind: &str| {
        format!(
            "apiserver_admission_match_condition_exclusions_total{{kind=\"webhook\",name=\"{}.example.com\",operation=\"DELETE\",type=\"{kind}\"}} 1",
            &kind.replace("admit", "m").replace("validating", "v")
        )
    };
    for kind in ["admit", "validating"] {
        assert!(metrics.contains(&line(kind)), "{}", line(kind));
    }
}

#[tokio::test]
async fn conditions_of_equivalent_resources_see_the_version_of_the_webhook() {
    let server = TestServer::start().await;
    let hook = hook().await;
    let condition = "object.apiVersion == 'autoscaling/v1' && request.kind.version == 'v1' && request.requestKind.version == 'v2' \
                     && object.spec.targetCPUUtilizationPercentage == 50";
    let only = json!([{"operations": ["CREATE"], "apiGroups": ["autoscaling"], "apiVersions": ["v1"], "resources": ["horizontalpodautoscalers"]}]);
    let mut fields = when(&[condition]);
    fields["rules"] = only;
    configure(&server, VALIDATING, "v", &[hook.webhook("/v", &fields)]).await;
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
    let metric = |percent: i64| json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}}]);
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    for (name, percent, calls) in [("a", 50, 1), ("b", 60, 0)] {
        let body = json!({"metadata": {"name": name},
            "spec": {"scaleTargetRef": target, "maxReplicas": 3, "metrics": metric(percent)}});
        server.post(path, body.to_string()).await.expect(201);
        assert_eq!(hook.take_paths().len(), calls, "{name}");
    }
}

#[tokio::test]
async fn a_condition_that_fails_refuses_or_skips_as_the_policy_says() {
    let server = TestServer::start().await;
    let hook = hook().await;
    let fails = "object.data.zz == 'y'";
    for (kind, path) in [(MUTATING, "/m"), (VALIDATING, "/v")] {
        configure(&server, kind, "c", &[hook.webhook(path, &when(&["true", fails]))]).await;
        let refused = server.post(MAPS, map("a")).await;
        let words = format!(
            "configmaps \"a\" is forbidden: expression '{fails}' resulted in error: no such key: zz"
        );
        assert_eq!(message(&refused, 403), words);
        assert_eq!(refused.json()["reason"], "Forbidden");
        server.get(&format!("{MAPS}/a")).await.expect(404);
        // One that does not hold decides, whatever the others do.
        let mut webhook = hook.webhook(path, &when(&[fails, "false"]));
        replace(&server, kind, &webhook).await;
        server.post(MAPS, map("a")).await.expect(201);
        webhook = hook.webhook(path, &when(&[fails]));
        webhook["failurePolicy"] = json!("Ignore");
        replace(&server, kind, &webhook).await;
        server.post(MAPS, map("b")).await.expect(201);
        assert_eq!(hook.take_paths().len(), 0, "it is never called");
        server.delete(&format!("{kind}/c")).await.expect(200);
        server.delete(MAPS).await.expect(200);
    }
}

/// Replaces the webhook of the configuration `c`.
async fn replace(server: &TestServer, kind: &str, webhook: &Value) {
    let body = json!({"webhooks": [webhook]}).to_string();
    server.merge_patch(&format!("{kind}/c"), &body).await.expect(200);
}

#[tokio::test]
async fn conditions_that_run_too_long_fail() {
    let server = TestServer::start().await;
    let hook = hook().await;
    let list = "[1,2,3,4,5,6,7,8,9,10]";
    let long = (0..6).fold("true".to_owned(), |text, at| format!("{list}.all(x{at}, {text})"));
    configure(&server, VALIDATING, "v", &[hook.webhook("/v", &when(&[&long]))]).await;
    let refused = message(&server.post(MAPS, map("a")).await, 403);
    assert!(refused.ends_with("operation cancelled: actual cost limit exceeded"), "{refused}");
    assert_eq!(hook.take_paths().len(), 0);
}

#[tokio::test]
async fn conditions_that_are_none_are_refused() {
    let server = TestServer::start().await;
    let hook = hook().await;
    let many: Vec<String> = (0..65).map(|_| "true".to_owned()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for kind in [MUTATING, VALIDATING] {
        for (expressions, expected) in [
            (
                vec!["object.spec.n"],
                "webhooks[0].matchConditions[0].expression: Invalid value: \"object.spec.n\": must evaluate to bool",
            ),
            (
                vec!["true", "object."],
                "webhooks[0].matchConditions[1].expression: Invalid value: \"object.\": compilation failed",
            ),
            (vec!["request.zz == 'a'"], "undefined field 'zz'"),
            (vec!["authorizer.path('/x').check('get')"], "must evaluate to bool"),
            (vec!["authorizer.path('/x').allowed()"], "found no matching overload for 'allowed'"),
            (vec![" "], "webhooks[0].matchConditions[0].expression: Required value"),
            (many.clone(), "webhooks[0].matchConditions: Too many: 65: must have at most 64 items"),
        ] {
            let webhook = hook.webhook("/w", &when(&expressions));
            let refused = server.post(kind, configuration("c", &[webhook])).await;
            let message = message(&refused, 422);
            assert!(message.contains(expected), "{message}");
        }
        let mut twice = hook.webhook("/w", &when(&["true", "true"]));
        twice["matchConditions"][1]["name"] = json!("example.com/c0");
        let refused = message(&server.post(kind, configuration("c", &[twice])).await, 422);
        assert!(
            refused.contains("matchConditions[1].name: Duplicate value: \"example.com/c0\""),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn conditions_ask_the_authorizers_of_the_server() {
    let server = TestServer::with(Config {
        authorization: vec![AuthorizationMode::Rbac],
        ..Config::for_tests(kubernetes())
    })
    .await;
    let account = json!({"metadata": {"name": "reader"}}).to_string();
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let role = json!({"metadata": {"name": "reader"}, "rules": rules}).to_string();
    server.post(&format!("{roles}/roles"), role).await.expect(201);
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]});
    server.post(&format!("{roles}/rolebindings"), binding.to_string()).await.expect(201);
    let hook = hook().await;
    let of_reader = "authorizer.serviceAccount('default', 'reader').group('').resource('configmaps').namespace('default')";
    // The administrator may do everything, the account may read in its namespace.
    for (expression, holds) in [
        ("authorizer.requestResource.check('breakglass').allowed()".to_owned(), true),
        ("authorizer.path('/healthz').check('get').allowed()".to_owned(), true),
        (format!("{of_reader}.check('get').allowed()"), true),
        (format!("{of_reader}.name('m').check('get').allowed()"), true),
        (format!("{of_reader}.check('create').allowed()"), false),
        (format!("{of_reader}.subresource('x').check('get').allowed()"), false),
        (of_reader.replace(".namespace('default')", ".check('get').allowed()"), false),
        (
            "authorizer.serviceAccount('default', 'other').requestResource.check('get').allowed()"
                .to_owned(),
            false,
        ),
        (format!("{of_reader}.check('create').errored()"), false),
    ] {
        configure(&server, VALIDATING, "c", &[hook.webhook("/v", &when(&[&expression]))]).await;
        server.post(&format!("{MAPS}?dryRun=All"), map("m")).await.expect(201);
        assert_eq!(hook.take_paths().len(), usize::from(holds), "{expression}");
        server.delete(&format!("{VALIDATING}/c")).await.expect(200);
    }
}

/// Each condition needs the object in the version of its webhook, which a conversion webhook makes: it waits until both are asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn conditions_of_validating_webhooks_are_judged_at_one_time() {
    let server = TestServer::start().await;
    let (waiting, most) =
        (Arc::new((Mutex::new(0_usize), Condvar::new())), Arc::new(AtomicUsize::new(0)));
    let most_of_hook = Arc::clone(&most);
    let hook = Hook::serve(move |path, review| {
        if path != "/convert" {
            return Does::allow(review);
        }
        let (count, more) = &*waiting;
        let mut count = count.lock().unwrap();
        *count += 1;
        more.notify_all();
        let both = more.wait_timeout_while(count, Duration::from_secs(10), |count| *count < 2);
        let (mut count, _) = both.unwrap();
        most_of_hook.fetch_max(*count, Ordering::Relaxed);
        more.notify_all();
        *count = count.saturating_sub(usize::from(*count == 1));
        let request = &review["request"];
        let mut objects = request["objects"].clone();
        for object in objects.as_array_mut().unwrap() {
            object["apiVersion"] = request["desiredAPIVersion"].clone();
        }
        let response = json!({"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects});
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response});
        Does::Answer(answer.to_string().into_bytes())
    })
    .await;
    let version = |name: &str| {
        json!({"name": name, "served": true, "storage": name == "v1",
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
    };
    let client =
        json!({"url": format!("https://{}/convert", hook.address), "caBundle": hook.authority});
    let definition = json!({"metadata": {"name": "hosts.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced", "names": {"plural": "hosts", "kind": "Host"},
        "versions": [version("v1"), version("v2")],
        "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}}}});
    define(&server, &definition).await;
    let mut fields = when(&["object.apiVersion == 'example.com/v2'"]);
    fields["rules"] = json!([{"operations": ["CREATE"], "apiGroups": ["example.com"], "apiVersions": ["v2"], "resources": ["hosts"]}]);
    let webhooks = ["/a", "/b"].map(|path| hook.webhook(path, &fields));
    configure(&server, VALIDATING, "v", &webhooks).await;
    let host = json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": "h"}});
    server
        .post("/apis/example.com/v1/namespaces/default/hosts", host.to_string())
        .await
        .expect(201);
    assert!(most.load(Ordering::Relaxed) >= 2, "one after the other");
    let mut called = hook.take_paths();
    called.retain(|path| path != "/convert");
    called.sort();
    assert_eq!(called, ["/a", "/b"]);
}
