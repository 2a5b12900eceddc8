//! Fields and values of built-in kinds with feature gates, which are off by default.

use orch_apiserver::Config;
use orch_apiserver::config::FieldGate;
use serde_json::{Value, json};

use super::support::{Reply, TestServer, kubernetes};

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const AUTOSCALERS: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
const STATEFUL_SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

async fn start(gates: &[FieldGate]) -> TestServer {
    let field_gates = gates.iter().copied().collect();
    let server = TestServer::with(Config { field_gates, ..Config::for_tests(kubernetes()) }).await;
    let account = r#"{"metadata": {"name": "default"}}"#;
    server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    server
}

/// A pod with every gated field.
fn pod_spec() -> Value {
    let spread = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}}, "minDomains": 2, "matchLabelKeys": ["hash"],
        "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"});
    let container =
        json!({"name": "c", "image": "i", "securityContext": {"procMount": "Unmasked"}});
    json!({"hostUsers": true, "topologySpreadConstraints": [spread], "containers": [container]})
}

/// What is said of the fields of [`pod_spec`] that are dropped, at a spec.
fn dropped_of(spec: &str) -> Vec<String> {
    let dropped = |field: &str, gate: &str| {
        format!(r#"299 - "{spec}.{field}: dropped, because the feature gate {gate} is off""#)
    };
    let spread =
        |field: &str, gate: &str| dropped(&format!("topologySpreadConstraints[0].{field}"), gate);
    vec![
        spread("minDomains", "MinDomainsInPodTopologySpread"),
        spread("matchLabelKeys", "MatchLabelKeysInPodTopologySpread"),
        spread("nodeAffinityPolicy", "NodeInclusionPolicyInPodTopologySpread"),
        spread("nodeTaintsPolicy", "NodeInclusionPolicyInPodTopologySpread"),
        dropped("hostUsers", "UserNamespacesStatelessPodsSupport"),
        format!(
            r#"299 - "{spec}.containers[0].securityContext.procMount: set to \"Default\", because the feature gate ProcMountType is off""#
        ),
    ]
}

fn warnings(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok()).collect()
}

/// The values of the gated fields in the spec of a pod.
fn gated(spec: &Value) -> [Value; 6] {
    let spread = &spec["topologySpreadConstraints"][0];
    [
        spread["minDomains"].clone(),
        spread["matchLabelKeys"].clone(),
        spread["nodeAffinityPolicy"].clone(),
        spread["nodeTaintsPolicy"].clone(),
        spec["hostUsers"].clone(),
        spec["containers"][0]["securityContext"]["procMount"].clone(),
    ]
}

#[tokio::test]
async fn pods_and_templates_have_gated_fields_with_the_gates_only() {
    let pod = json!({"metadata": {"name": "a"}, "spec": pod_spec()});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let deployment = json!({"metadata": {"name": "a"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    for gates in [&[][..], &FieldGate::ALL] {
        let server = start(gates).await;
        let kept = match gates {
            [] => {
                [Value::Null, Value::Null, Value::Null, Value::Null, Value::Null, json!("Default")]
            }
            _ => gated(&pod_spec()),
        };
        let stored = server.post(PODS, pod.to_string()).await.expect(201);
        assert_eq!(gated(&stored["spec"]), kept);
        let stored = server.post(DEPLOYMENTS, deployment.to_string()).await.expect(201);
        assert_eq!(gated(&stored["spec"]["template"]["spec"]), kept);
        // An update does not bring them in; what is dropped is no change.
        let stored = server.put(&format!("{DEPLOYMENTS}/a"), &deployment).await.expect(200);
        assert_eq!(gated(&stored["spec"]["template"]["spec"]), kept);
        assert_eq!(stored["metadata"]["generation"], 1);
    }
}

#[tokio::test]
async fn each_kind_of_write_says_what_it_dropped() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let path = format!("{DEPLOYMENTS}/a");
    let apply = format!("{path}?fieldManager=team&force=true");
    let media = "application/apply-patch+yaml";
    for gates in [&[][..], &FieldGate::ALL] {
        let server = start(gates).await;
        let wanted = if gates.is_empty() { dropped_of("spec.template.spec") } else { Vec::new() };
        let body = deployment.to_string();
        let dry_run = server.post(&format!("{DEPLOYMENTS}?dryRun=All"), body.clone()).await;
        let created = server.post(DEPLOYMENTS, body.clone()).await;
        let replaced = server.put(&path, &deployment).await;
        let patched = server.merge_patch(&path, &body).await;
        let applied = server.call(http::Method::PATCH, &apply, media, body.clone()).await;
        let again = server.call(http::Method::PATCH, &apply, media, body.clone()).await;
        // The fields are ignored here with the gates, too.
        let status = server.put(&format!("{path}/status"), &deployment).await;
        for (what, reply, code, wanted) in [
            ("dry run", dry_run, 201, &wanted),
            ("create", created, 201, &wanted),
            ("update", replaced, 200, &wanted),
            ("patch", patched, 200, &wanted),
            ("apply", applied, 200, &wanted),
            ("second apply", again, 200, &wanted),
            ("status", status, 200, &Vec::new()),
        ] {
            assert_eq!(
                (reply.code(), warnings(&reply)),
                (code, wanted.iter().map(|text| &**text).collect()),
                "{what}"
            );
        }
        let read = server.get(&path).await;
        let labelled = server.merge_patch(&path, r#"{"metadata": {"labels": {"x": "y"}}}"#).await;
        assert_eq!((warnings(&read), warnings(&labelled)), (Vec::new(), Vec::new()));
    }
}

#[tokio::test]
async fn what_is_dropped_is_not_checked_by_pod_security() {
    let pod = json!({"metadata": {"name": "a"}, "spec": pod_spec()});
    for (gates, code) in [(&[][..], 201), (&[FieldGate::ProcMountType], 403)] {
        let server = start(gates).await;
        let label =
            json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
        server.merge_patch("/api/v1/namespaces/default", &label.to_string()).await.expect(200);
        assert_eq!(server.post(PODS, pod.to_string()).await.code(), code);
    }
}

#[tokio::test]
async fn the_access_mode_for_one_pod_is_refused_without_its_gate() {
    let claim = json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOncePod"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let server = start(&[]).await;
    let refused = server.post(CLAIMS, claim.to_string()).await.expect(422);
    let expected = "PersistentVolumeClaim \"a\" is invalid: spec.accessModes: Unsupported value: \
        \"ReadWriteOncePod\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\"";
    assert_eq!(refused["message"], expected);
    let server = start(&[FieldGate::ReadWriteOncePod]).await;
    server.post(CLAIMS, claim.to_string()).await.expect(201);
}

#[tokio::test]
async fn states_of_failed_expansions_are_kept_with_their_gate_only() {
    let claim = json!({"metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let status = json!({"status": {"resizeStatus": "NodeExpansionFailed", "allocatedResources": {"storage": "2Gi"}}});
    for gates in [&[][..], &[FieldGate::RecoverVolumeExpansionFailure]] {
        let server = start(gates).await;
        server.post(CLAIMS, claim.to_string()).await.expect(201);
        let path = format!("{CLAIMS}/a/status");
        let written = server.merge_patch(&path, &status.to_string()).await;
        let said = if gates.is_empty() { 2 } else { 0 };
        assert_eq!(warnings(&written).len(), said);
        let stored = written.expect(200);
        // It is ignored here whatever the gate says.
        let elsewhere = server.merge_patch(&format!("{CLAIMS}/a"), &status.to_string()).await;
        assert_eq!((elsewhere.code(), warnings(&elsewhere)), (200, Vec::new()));
        for field in ["resizeStatus", "allocatedResources"] {
            let kept = if gates.is_empty() { &Value::Null } else { &status["status"][field] };
            assert_eq!(&stored["status"][field], kept);
        }
    }
}

#[tokio::test]
async fn metrics_of_containers_and_no_replicas_need_their_gates() {
    let scaler = |name: &str, least: i64, metric: Value| {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"});
        json!({"metadata": {"name": name}, "spec": {"scaleTargetRef": target, "minReplicas": least,
            "maxReplicas": 3, "metrics": [metric]}})
    };
    let inner = scaler(
        "inner",
        1,
        json!({"type": "ContainerResource", "containerResource":
        {"name": "cpu", "container": "c", "target": {"type": "Utilization", "averageUtilization": 50}}}),
    );
    let idle = scaler(
        "idle",
        0,
        json!({"type": "External", "external":
        {"metric": {"name": "m"}, "target": {"type": "AverageValue", "averageValue": "1"}}}),
    );
    let server = start(&[]).await;
    for (object, expected) in [
        (
            &inner,
            "spec.metrics[0].containerResource: Required value: must populate information for the given metric source",
        ),
        (&idle, "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1"),
    ] {
        let refused = server.post(AUTOSCALERS, object.to_string()).await.expect(422);
        assert!(refused["message"].as_str().unwrap().ends_with(expected), "{refused}");
    }
    let server = start(&[FieldGate::HpaContainerMetrics, FieldGate::HpaScaleToZero]).await;
    for object in [&inner, &idle] {
        let stored = server.post(AUTOSCALERS, object.to_string()).await.expect(201);
        assert_eq!(stored["spec"]["minReplicas"], object["spec"]["minReplicas"]);
    }
}

/// Objects that were written while the gates were on: what they have stays, whatever else is changed.
#[tokio::test]
async fn stored_fields_outlive_their_gates() {
    let directory = tempfile::tempdir().unwrap();
    let config = |gates: &[FieldGate]| {
        let mut config = Config::for_tests(kubernetes());
        config.storage = orch_apiserver::config::Storage::Directory(directory.path().join("store"));
        config.field_gates = gates.iter().copied().collect();
        config
    };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod_spec()});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOncePod"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let set = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
        "serviceName": "s", "template": template}});
    let server = TestServer::with(config(&FieldGate::ALL)).await;
    server.post(STATEFUL_SETS, set.to_string()).await.expect(201);
    server.post(CLAIMS, claim.to_string()).await.expect(201);
    server.stop().await;
    let server = TestServer::with(config(&[])).await;
    let image = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "j",
        "securityContext": {"procMount": "Unmasked"}}]}}}});
    let path = format!("{STATEFUL_SETS}/a");
    let stored = server.merge_patch(&path, &image.to_string()).await.expect(200);
    let spec = &stored["spec"]["template"]["spec"];
    assert_eq!((gated(spec), &spec["containers"][0]["image"]), (gated(&pod_spec()), &json!("j")));
    let label = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let stored = server.merge_patch(&format!("{CLAIMS}/c"), &label).await.expect(200);
    assert_eq!(stored["spec"]["accessModes"], json!(["ReadWriteOncePod"]));
    server.post(CLAIMS, claim.to_string().replace("\"c\"", "\"d\"")).await.expect(422);
}
