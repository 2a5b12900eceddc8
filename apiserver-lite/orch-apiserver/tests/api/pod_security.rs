//! Pod security: labels of namespaces, refusals and warnings.

use serde_json::{Value, json};

use crate::support::TestServer;

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
