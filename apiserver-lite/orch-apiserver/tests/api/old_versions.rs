//! Versions of older releases: autoscaling/v2beta2, and those that `--runtime-config` switches on, for programs of release 1.20.

use apiserver_core::config::RuntimeConfig;
use http::Method;
use orch_apiserver::Config;
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, kubernetes};

const BATCH: &str = "/apis/batch/v1beta1/namespaces/default/cronjobs";
const BUDGETS: &str = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets";
const SLICES: &str = "/apis/discovery.k8s.io/v1beta1/namespaces/default/endpointslices";
const EVENTS: &str = "/apis/events.k8s.io/v1beta1/namespaces/default/events";
const CLASSES: &str = "/apis/node.k8s.io/v1beta1/runtimeclasses";

/// All that can be switched on.
const ALL: &str = "batch/v1beta1,coordination.k8s.io/v1beta1,discovery.k8s.io/v1beta1,events.k8s.io/v1beta1,node.k8s.io/v1beta1,policy/v1beta1,\
    rbac.authorization.k8s.io/v1beta1,scheduling.k8s.io/v1beta1,storage.k8s.io/v1beta1";

async fn server_with(switches: &str) -> TestServer {
    let runtime_config = switches.parse::<RuntimeConfig>().unwrap().checked(kubernetes()).unwrap();
    TestServer::with(Config { runtime_config, ..Config::for_tests(kubernetes()) }).await
}

/// The path of the same object in v1.
fn in_v1(path: &str) -> String {
    path.replace("v1beta1", "v1")
}

fn warning(reply: &Reply) -> &str {
    reply.headers.get("warning").map_or("", |value| value.to_str().unwrap())
}

async fn versions(server: &TestServer, group: &str) -> Vec<String> {
    let group = server.get(&format!("/apis/{group}")).await.expect(200);
    let versions = group["versions"].as_array().unwrap().iter();
    versions.map(|version| version["version"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn autoscalers_are_served_in_v2beta2() {
    let server = TestServer::start().await;
    assert_eq!(versions(&server, "autoscaling").await, ["v2", "v1", "v2beta2"]);
    let list = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let metric = json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "3"}}});
    let object = json!({"apiVersion": "autoscaling/v2beta2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"}, "spec": {
        "maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}, "metrics": [metric],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 7}}}});
    let reply = server.post(&list("v2beta2"), object.to_string()).await;
    assert_eq!(
        warning(&reply),
        "299 - \"autoscaling/v2beta2 HorizontalPodAutoscaler is deprecated in v1.23+, unavailable in v1.26+; use autoscaling/v2 HorizontalPodAutoscaler\""
    );
    let made = reply.expect(201);
    assert_eq!(made["apiVersion"], "autoscaling/v2beta2");
    let v2 = server.get(&format!("{}/h", list("v2"))).await.expect(200);
    assert_eq!(v2["apiVersion"], "autoscaling/v2");
    assert_eq!((&v2["spec"], &v2["metadata"]["uid"]), (&made["spec"], &made["metadata"]["uid"]));
    assert_eq!(v2["spec"]["metrics"], json!([metric]));
    let v1 = server.get(&format!("{}/h", list("v1"))).await.expect(200);
    let annotations = &v1["metadata"]["annotations"];
    assert!(annotations["autoscaling.alpha.kubernetes.io/behavior"].is_string(), "{annotations}");
    // What a client of v1 writes keeps what only the others have.
    let more = r#"{"spec":{"maxReplicas":9}}"#;
    server.merge_patch(&format!("{}/h", list("v1")), more).await.expect(200);
    let status = r#"{"status":{"desiredReplicas":2,"currentReplicas":1}}"#;
    server.merge_patch(&format!("{}/h/status", list("v2beta2")), status).await.expect(200);
    let all = server.get(&list("v2beta2")).await.expect(200);
    assert_eq!(all["apiVersion"], "autoscaling/v2beta2");
    let one = &all["items"][0];
    assert_eq!(
        (&one["spec"]["maxReplicas"], &one["spec"]["metrics"]),
        (&json!(9), &json!([metric]))
    );
    assert_eq!(one["status"]["desiredReplicas"], 2);
    let mut events = server.watch(&format!("{}?watch=1&resourceVersion=0", list("v2beta2"))).await;
    let event = events.next().await.unwrap();
    assert_eq!(event["object"]["apiVersion"], "autoscaling/v2beta2");
    // One owner of fields in each version, without conflicts with itself.
    let applied = json!({"apiVersion": "autoscaling/v2beta2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"behavior": {"scaleDown": {"stabilizationWindowSeconds": 8}}}});
    let path = |version: &str| format!("{}/h?fieldManager=team&force=true", list(version));
    let media = "application/apply-patch+yaml";
    server.call(Method::PATCH, &path("v2beta2"), media, applied.to_string()).await.expect(200);
    let mut applied = applied;
    applied["apiVersion"] = json!("autoscaling/v2");
    let v2 = server.call(Method::PATCH, &path("v2"), media, applied.to_string()).await.expect(200);
    let entries = v2["metadata"]["managedFields"].as_array().unwrap().iter();
    let applies: Vec<&Value> = entries.filter(|entry| entry["operation"] == "Apply").collect();
    assert_eq!((applies.len(), &applies[0]["apiVersion"]), (1, &json!("autoscaling/v2")));
}

#[tokio::test]
async fn older_betas_are_served_only_if_they_are_named() {
    for switches in ["", "api/beta=true,api/all=true"] {
        let server = server_with(switches).await;
        for path in [BATCH, BUDGETS, SLICES, EVENTS, CLASSES] {
            assert_eq!(server.get(path).await.code(), 404, "{switches} {path}");
        }
        assert_eq!(versions(&server, "policy").await, ["v1"]);
        let document = server.get("/openapi/v2").await.expect(200);
        let definitions = document["definitions"].as_object().unwrap();
        assert!(!definitions.keys().any(|name| name.contains("policy.v1beta1")));
        assert_eq!(server.get("/openapi/v3/apis/policy/v1beta1").await.code(), 404);
    }
    let server = server_with(ALL).await;
    for path in [BATCH, BUDGETS, SLICES, EVENTS, CLASSES] {
        let reply = server.get(path).await;
        assert!(warning(&reply).contains("v1beta1"), "{path}: {}", warning(&reply));
        let list = reply.expect(200);
        assert!(list["apiVersion"].as_str().unwrap().ends_with("/v1beta1"), "{path}");
        assert_eq!(server.get(&in_v1(path)).await.code(), 200);
    }
    for group in ["batch", "policy", "discovery.k8s.io", "events.k8s.io", "node.k8s.io"] {
        assert_eq!(versions(&server, group).await, ["v1", "v1beta1"]);
        let resources = server.get(&format!("/apis/{group}/v1beta1")).await.expect(200);
        assert!(!resources["resources"].as_array().unwrap().is_empty(), "{group}");
        let service = format!("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{group}");
        server.get(&service).await.expect(200);
    }
    let document = server.get("/openapi/v3/apis/policy/v1beta1").await.expect(200);
    assert!(
        document["components"]["schemas"]["io.k8s.api.policy.v1beta1.PodDisruptionBudget"]
            .is_object()
    );
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let table = server.accept(BUDGETS, accept).await.expect(200);
    assert_eq!(table["columnDefinitions"][3]["name"], "Allowed Disruptions");
    // One resource of a version.
    let server = server_with("storage.k8s.io/v1beta1/csinodes=true").await;
    for (resource, code) in [("csinodes", 200), ("csidrivers", 404), ("csistoragecapacities", 200)]
    {
        let path = format!("/apis/storage.k8s.io/v1beta1/{resource}");
        assert_eq!(server.get(&path).await.code(), code, "{resource}");
    }
}

#[tokio::test]
async fn budgets_mean_the_same_in_both_versions() {
    let server = server_with("policy/v1beta1").await;
    let label = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match";
    let requirement =
        |operator: &str| json!({"matchExpressions": [{"key": label, "operator": operator}]});
    let budget = |name: &str, selector: &Value| {
        json!({"metadata": {"name": name}, "spec": {"maxUnavailable": 1, "selector": selector}})
            .to_string()
    };
    let (empty, some) = (json!({}), json!({"matchLabels": {"a": "b"}}));
    for (name, beta, v1) in [
        ("none", &empty, &requirement("Exists")),
        ("all", &requirement("DoesNotExist"), &empty),
        ("some", &some, &some),
    ] {
        let made = server.post(BUDGETS, budget(name, beta)).await.expect(201);
        assert_eq!(made["spec"]["selector"], *beta);
        let path = format!("{BUDGETS}/{name}");
        let stored = server.get(&in_v1(&path)).await.expect(200);
        assert_eq!(stored["spec"]["selector"], *v1, "{name}");
        server.delete(&path).await.expect(200);
        server.post(&in_v1(BUDGETS), budget(name, v1)).await.expect(201);
        let shown = server.get(&path).await.expect(200);
        assert_eq!(
            (&shown["apiVersion"], &shown["spec"]["selector"]),
            (&json!("policy/v1beta1"), beta)
        );
        let status = r#"{"status":{"disruptionsAllowed":1,"currentHealthy":2,"desiredHealthy":1,"expectedPods":2}}"#;
        server.merge_patch(&format!("{path}/status"), status).await.expect(200);
        let after = server.get(&in_v1(&path)).await.expect(200);
        assert_eq!(after["status"]["disruptionsAllowed"], 1);
        assert_eq!(after["spec"]["selector"], *v1, "{name}");
    }
}

#[tokio::test]
async fn slices_of_older_controllers_have_nodes_and_zones() {
    let server = server_with("discovery.k8s.io/v1beta1").await;
    let topology =
        json!({"kubernetes.io/hostname": "n", "topology.kubernetes.io/zone": "z", "rack": "7"});
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "topology": topology}]});
    let made = server.post(SLICES, slice.to_string()).await.expect(201);
    assert_eq!(made["endpoints"][0]["topology"], topology);
    let path = format!("{SLICES}/s");
    let v1 = server.get(&in_v1(&path)).await.expect(200);
    let endpoint = &v1["endpoints"][0];
    assert_eq!((&endpoint["nodeName"], &endpoint["zone"]), (&json!("n"), &json!("z")));
    assert_eq!(endpoint["deprecatedTopology"], json!({"rack": "7"}));
    assert!(endpoint.get("topology").is_none());
    let mut changed = v1.clone();
    changed["endpoints"][0]["zone"] = json!("y");
    server.put(&in_v1(&path), &changed).await.expect(200);
    let shown = server.get(&path).await.expect(200);
    assert_eq!(shown["endpoints"][0]["topology"]["topology.kubernetes.io/zone"], "y");
    assert_eq!(shown["endpoints"][0]["nodeName"], "n");
}

#[tokio::test]
async fn other_objects_of_older_betas_are_those_of_v1() {
    let server = server_with(ALL).await;
    let template = json!({"spec": {"template": {"spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}}}});
    let event = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "r", "action": "a",
        "reportingController": "c", "reportingInstance": "i", "note": "words",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    let (rbac, storage) =
        ("/apis/rbac.authorization.k8s.io/v1beta1", "/apis/storage.k8s.io/v1beta1");
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"});
    for (list, object) in [
        (
            BATCH.to_owned(),
            json!({"metadata": {"name": "o"}, "spec": {"schedule": "* * * * *", "jobTemplate": template}}),
        ),
        (EVENTS.to_owned(), event),
        (CLASSES.to_owned(), json!({"metadata": {"name": "o"}, "handler": "h"})),
        (
            "/apis/coordination.k8s.io/v1beta1/namespaces/default/leases".to_owned(),
            json!({"metadata": {"name": "o"}, "spec": {"holderIdentity": "me"}}),
        ),
        (
            format!("{rbac}/clusterroles"),
            json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}),
        ),
        (
            format!("{rbac}/clusterrolebindings"),
            json!({"metadata": {"name": "o"}, "roleRef": role, "subjects": [{"kind": "User", "name": "u"}]}),
        ),
        (
            "/apis/scheduling.k8s.io/v1beta1/priorityclasses".to_owned(),
            json!({"metadata": {"name": "o"}, "value": 7}),
        ),
        (
            format!("{storage}/storageclasses"),
            json!({"metadata": {"name": "o"}, "provisioner": "p"}),
        ),
        (format!("{storage}/csidrivers"), json!({"metadata": {"name": "o"}, "spec": {}})),
    ] {
        let made = server.post(&list, object.to_string()).await.expect(201);
        let path = format!("{list}/{}", made["metadata"]["name"].as_str().unwrap());
        let v1 = server.get(&in_v1(&path)).await.expect(200);
        assert!(v1["apiVersion"].as_str().unwrap().ends_with("/v1"), "{path}");
        let same = |object: &Value| {
            let mut object = object.clone();
            object.as_object_mut().unwrap().remove("apiVersion");
            object["metadata"].as_object_mut().unwrap().remove("managedFields");
            object
        };
        assert_eq!(same(&v1), same(&made), "{path}");
        // The stored object with a label, from v1 and back.
        let label = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        server.merge_patch(&in_v1(&path), label).await.expect(200);
        let shown = server.get(&path).await.expect(200);
        assert_eq!(shown["metadata"]["labels"]["a"], "b");
        server.delete(&path).await.expect(200);
        assert_eq!(server.get(&in_v1(&path)).await.code(), 404, "{path}");
    }
}
