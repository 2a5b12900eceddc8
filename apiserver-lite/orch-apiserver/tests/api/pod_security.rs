//! Pod security: labels of namespaces, refusals and warnings.

use std::path::Path;

use orch_apiserver::Config;
use orch_apiserver::config::{AdmissionPlugin, AdmissionSettings};
use serde_json::{Value, json};

use crate::support::{TestServer, kubernetes};

const REFUSED: &str =
    "violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)";

fn namespace(name: &str, mode: &str, level: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {format!("pod-security.kubernetes.io/{mode}"): level}}})
}

fn pod(name: &str) -> Value {
    let container = json!({"name": "c", "image": "i"});
    json!({
        "metadata": {"name": name},
        "spec": {"hostNetwork": true, "containers": [container], "automountServiceAccountToken": false},
    })
}

fn warning(reply: &crate::support::Reply) -> String {
    let value = reply.headers.get("warning");
    value.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

async fn account(server: &TestServer, namespace: &str) {
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    server.post(&path, r#"{"metadata": {"name": "default"}}"#).await.expect(201);
}

#[tokio::test]
async fn an_enforced_level_refuses_pods_and_leaves_templates() {
    let server = TestServer::start().await;
    let made = namespace("strict", "enforce", "baseline");
    server.post("/api/v1/namespaces", made.to_string()).await.expect(201);
    account(&server, "strict").await;
    let pods = "/api/v1/namespaces/strict/pods";
    let refused = server.post(pods, pod("a").to_string()).await.expect(403);
    assert_eq!(refused["message"], format!("pods \"a\" is forbidden: {REFUSED}"));
    let mut plain = pod("a");
    plain["spec"]["hostNetwork"] = false.into();
    server.post(pods, plain.to_string()).await.expect(201);
    let path = format!("{pods}/a");
    server.merge_patch(&path, r#"{"metadata": {"labels": {"a": "b"}}}"#).await.expect(200);
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]});
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template});
    let deployment = json!({"metadata": {"name": "d"}, "spec": spec});
    let path = "/apis/apps/v1/namespaces/strict/deployments";
    let created = server.post(path, deployment.to_string()).await;
    assert_eq!((created.code(), warning(&created).as_str()), (201, ""));
}

#[tokio::test]
async fn a_warned_level_answers_with_a_warning() {
    let server = TestServer::start().await;
    let made = namespace("warned", "warn", "baseline");
    server.post("/api/v1/namespaces", made.to_string()).await.expect(201);
    account(&server, "warned").await;
    let created = server.post("/api/v1/namespaces/warned/pods", pod("a").to_string()).await;
    assert_eq!(created.code(), 201);
    assert!(warning(&created).contains("would violate PodSecurity"), "{}", warning(&created));
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]});
    let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "template": template});
    let deployment = json!({"metadata": {"name": "d"}, "spec": spec});
    let path = "/apis/apps/v1/namespaces/warned/deployments";
    let created = server.post(path, deployment.to_string()).await;
    assert!(warning(&created).contains("would violate PodSecurity"), "{}", warning(&created));
    // A level that is enforced from now on is compared with what runs already.
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    let changed = server.merge_patch("/api/v1/namespaces/warned", &label.to_string()).await;
    assert_eq!(changed.code(), 200);
    assert!(warning(&changed).contains("existing pods in namespace"), "{}", warning(&changed));
}

#[tokio::test]
async fn a_label_that_is_no_level_is_refused() {
    let server = TestServer::start().await;
    let made = namespace("odd", "enforce", "strict");
    let refused = server.post("/api/v1/namespaces", made.to_string()).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("must be one of privileged, baseline, restricted"), "{message}");
}

/// A server with this PodSecurityConfiguration, and a namespace `team` without labels.
async fn configured(dir: &Path, configuration: &Value) -> TestServer {
    let mut configuration = configuration.clone();
    configuration["apiVersion"] = "pod-security.admission.config.k8s.io/v1".into();
    configuration["kind"] = "PodSecurityConfiguration".into();
    let file = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": configuration}],
    });
    let path = dir.join("admission.json");
    std::fs::write(&path, file.to_string()).unwrap();
    let admission = AdmissionSettings { config_file: Some(path), ..AdmissionSettings::default() };
    let server = TestServer::with(Config { admission, ..Config::for_tests(kubernetes()) }).await;
    for name in ["team", "free"] {
        let made = json!({"metadata": {"name": name}}).to_string();
        server.post("/api/v1/namespaces", made).await.expect(201);
        account(&server, name).await;
    }
    server
}

#[tokio::test]
async fn a_configuration_applies_where_a_namespace_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let defaults = json!({"enforce": "baseline", "warn": "restricted", "warn-version": "v1.24"});
    let server = configured(dir.path(), &json!({"defaults": defaults})).await;
    let pods = "/api/v1/namespaces/team/pods";
    let refused = server.post(pods, pod("a").to_string()).await.expect(403);
    assert_eq!(refused["message"], format!("pods \"a\" is forbidden: {REFUSED}"));
    let mut plain = pod("a");
    plain["spec"]["hostNetwork"] = false.into();
    let warned = server.post(pods, plain.to_string()).await;
    assert_eq!(warned.code(), 201);
    let text = warning(&warned);
    assert!(text.contains("would violate PodSecurity \\\"restricted:v1.24\\\""), "{text}");
    // A label is more than a default.
    let label =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}});
    server.merge_patch("/api/v1/namespaces/team", &label.to_string()).await.expect(200);
    server.post(pods, pod("b").to_string()).await.expect(201);
}

#[tokio::test]
async fn users_classes_and_namespaces_are_exempt() {
    let dir = tempfile::tempdir().unwrap();
    let exemptions =
        json!({"usernames": ["jane"], "runtimeClasses": ["kata"], "namespaces": ["free"]});
    let configuration =
        json!({"defaults": {"enforce": "baseline", "warn": "baseline"}, "exemptions": exemptions});
    let server = configured(dir.path(), &configuration).await;
    let class = json!({"metadata": {"name": "kata"}, "handler": "kata"});
    server.post("/apis/node.k8s.io/v1/runtimeclasses", class.to_string()).await.expect(201);
    let create = async |user: &str, namespace: &str, class: Value| {
        let mut pod = pod(&format!("p-{user}"));
        pod["spec"]["runtimeClassName"] = class;
        let request =
            http::Request::post(format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"))
                .header("host", "t")
                .header("content-type", "application/json")
                .header("impersonate-user", user);
        let body = http_body_util::Full::new(bytes::Bytes::from(pod.to_string()));
        let answer = server.send(request.body(body).unwrap()).await;
        (answer.code(), warning(&answer))
    };
    let admitted = (201, String::new());
    assert_eq!(create("joe", "team", Value::Null).await.0, 403);
    assert_eq!(create("jane", "team", Value::Null).await, admitted);
    assert_eq!(create("joe", "free", Value::Null).await, admitted);
    assert_eq!(create("joe", "team", "kata".into()).await, admitted);

    let label =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let changed = server.merge_patch("/api/v1/namespaces/free", &label.to_string()).await;
    assert_eq!(changed.code(), 200);
    let text = warning(&changed);
    assert!(
        text.contains("is exempt from Pod Security, and the policy (enforce=restricted:latest, warn=baseline:latest) will be ignored"),
        "{text}"
    );
}

#[tokio::test]
async fn a_faulty_configuration_keeps_the_server_from_starting() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admission.yaml");
    std::fs::write(&path, "kind: Pod\n").unwrap();
    let refused = async |admission: AdmissionSettings| {
        let config = Config { admission, ..Config::for_tests(kubernetes()) };
        let error = orch_apiserver::build(config).await.map(|_| ()).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    let file = AdmissionSettings { config_file: Some(path), ..AdmissionSettings::default() };
    let told = refused(file).await;
    assert!(told.contains("expected apiVersion \"apiserver.config.k8s.io/v1\""), "{told}");
    let both = AdmissionSettings {
        enabled: vec![AdmissionPlugin::Priority],
        disabled: vec![AdmissionPlugin::Priority],
        ..AdmissionSettings::default()
    };
    let told = refused(both).await;
    assert!(told.ends_with("both name Priority"), "{told}");
}

#[tokio::test]
async fn a_disabled_plugin_does_nothing() {
    use AdmissionPlugin::{
        DefaultTolerationSeconds, LimitRanger, PodSecurity, Priority, RuntimeClass, ServiceAccount,
        StorageObjectInUseProtection,
    };
    let disabled = vec![
        DefaultTolerationSeconds,
        LimitRanger,
        PodSecurity,
        Priority,
        RuntimeClass,
        ServiceAccount,
        StorageObjectInUseProtection,
    ];
    let admission = AdmissionSettings { disabled, ..AdmissionSettings::default() };
    let server = TestServer::with(Config { admission, ..Config::for_tests(kubernetes()) }).await;
    let made = namespace("strict", "enforce", "baseline");
    server.post("/api/v1/namespaces", made.to_string()).await.expect(201);
    let bounds = json!({"limits": [{"type": "Container", "default": {"cpu": "1"}}]});
    let limits = json!({"metadata": {"name": "l"}, "spec": bounds}).to_string();
    server.post("/api/v1/namespaces/strict/limitranges", limits).await.expect(201);
    let mut pod = pod("a");
    pod["spec"]["runtimeClassName"] = "none".into();
    // The account does not exist, the class does not exist, the namespace forbids the pod.
    let made = server.post("/api/v1/namespaces/strict/pods", pod.to_string()).await.expect(201);
    for field in ["tolerations", "priority", "serviceAccountName"] {
        assert_eq!(made["spec"][field], Value::Null, "{field}");
    }
    assert_eq!(made["spec"]["containers"][0]["resources"], json!({}));
    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let path = "/api/v1/namespaces/strict/persistentvolumeclaims";
    let made = server.post(path, claim.to_string()).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], Value::Null);
}
