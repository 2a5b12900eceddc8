//! LimitRanges: defaults of new pods, bounds of pods and claims, and what they do not apply to.

use serde_json::{Value, json};

use crate::support::TestServer;

const LIMITS: &str = "/api/v1/namespaces/default/limitranges";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// Creates a LimitRange, which is no longer only stored.
async fn limit(server: &TestServer, name: &str, limit: Value) {
    let body = json!({"metadata": {"name": name}, "spec": {"limits": [limit]}});
    let made = server.post(LIMITS, body.to_string()).await;
    made.expect(201);
    assert!(made.headers.get("warning").is_none(), "{:?}", made.headers);
}

fn pod(name: &str, resources: &Value) -> String {
    let container = json!({"name": "a", "image": "i", "resources": resources});
    json!({"metadata": {"name": name}, "spec": {"containers": [container]}}).to_string()
}

fn claim(name: &str, storage: &str) -> String {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "resources": {"requests": {"storage": storage}}});
    json!({"metadata": {"name": name}, "spec": spec}).to_string()
}

#[tokio::test]
async fn new_pods_get_the_defaults_of_their_namespace_only() {
    let server = TestServer::start().await;
    let elsewhere = "/api/v1/namespaces/elsewhere";
    server.post("/api/v1/namespaces", r#"{"metadata":{"name":"elsewhere"}}"#).await.expect(201);
    let account = format!("{elsewhere}/serviceaccounts");
    server.post(&account, r#"{"metadata":{"name":"default"}}"#).await.expect(201);
    // The maximum is the default limit, the default limit of memory its default request.
    let bounds = json!({"type": "Container", "max": {"cpu": "2"}, "default": {"memory": "1Gi"},
        "defaultRequest": {"cpu": "100m"}});
    limit(&server, "l", bounds).await;
    let all = json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}});
    let said = "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a";
    for path in [format!("{PODS}?dryRun=All"), PODS.to_owned()] {
        let made = server.post(&path, pod("p", &json!({}))).await.expect(201);
        assert_eq!(made["spec"]["containers"][0]["resources"], all, "{made}");
        assert_eq!(made["metadata"]["annotations"]["kubernetes.io/limit-ranger"], said);
        assert_eq!(made["status"]["qosClass"], "Burstable", "decided after the defaults");
    }
    let made = server.post(&format!("{elsewhere}/pods"), pod("p", &json!({}))).await.expect(201);
    assert_eq!(made["spec"]["containers"][0]["resources"], json!({}), "{made}");
    assert_eq!(made["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn pods_outside_the_bounds_are_refused_with_every_reason() {
    let server = TestServer::start().await;
    limit(
        &server,
        "a",
        json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"memory": "1Gi"}}),
    )
    .await;
    limit(&server, "b", json!({"type": "Pod", "max": {"cpu": "1"}})).await;
    let small = json!({"requests": {"cpu": "50m"}, "limits": {"memory": "2Gi"}});
    let refused = server.post(PODS, pod("p", &small)).await.expect(403);
    assert_eq!(refused["reason"], "Forbidden");
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: [minimum cpu usage per Container is 100m, but request is 50m, \
         maximum memory usage per Container is 1Gi, but limit is 2Gi]"
    );
    let unlimited = json!({"requests": {"cpu": "200m"}});
    let refused = server.post(PODS, pod("p", &unlimited)).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: maximum cpu usage per Pod is 1.  No limit is specified"
    );
    server.get(&format!("{PODS}/p")).await.expect(404);
    // What other steps refuse is said first.
    let mut other: Value = serde_json::from_str(&pod("p", &small)).expect("JSON");
    other["spec"]["serviceAccountName"] = json!("nobody");
    let refused = server.post(PODS, other.to_string()).await.expect(403);
    assert!(refused["message"].as_str().is_some_and(|m| m.contains("nobody")), "{refused}");
    let fits = json!({"limits": {"cpu": "1"}});
    server.post(PODS, pod("p", &fits)).await.expect(201);
}

#[tokio::test]
async fn stored_pods_are_not_checked_again() {
    let server = TestServer::start().await;
    let path = format!("{PODS}/p");
    server.post(PODS, pod("p", &json!({"limits": {"cpu": "4"}}))).await.expect(201);
    limit(&server, "l", json!({"type": "Container", "max": {"cpu": "1", "memory": "1Gi"}})).await;
    let changed =
        server.merge_patch(&path, r#"{"metadata":{"labels":{"a":"b"}}}"#).await.expect(200);
    assert_eq!(changed["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "4"}));
    let status = r#"{"status":{"phase":"Running"}}"#;
    server.merge_patch(&format!("{path}/status"), status).await.expect(200);
    server.post(PODS, pod("q", &json!({"limits": {"cpu": "4"}}))).await.expect(403);
    server.delete(&format!("{LIMITS}/l")).await.expect(200);
    server.post(PODS, pod("q", &json!({"limits": {"cpu": "4"}}))).await.expect(201);
}

#[tokio::test]
async fn claims_are_checked_until_they_are_deleted() {
    let server = TestServer::start().await;
    server.post(CLAIMS, claim("c", "2Gi")).await.expect(201);
    let bounds = json!({"type": "PersistentVolumeClaim", "min": {"storage": "100Mi"}, "max": {"storage": "1Gi"}});
    limit(&server, "l", bounds).await;
    let refused = server.post(CLAIMS, claim("d", "1Mi")).await.expect(403);
    assert_eq!(
        refused["message"],
        "persistentvolumeclaims \"d\" is forbidden: minimum storage usage per PersistentVolumeClaim is 100Mi, but request is 1Mi"
    );
    server.post(CLAIMS, claim("d", "1Gi")).await.expect(201);
    let path = format!("{CLAIMS}/c");
    let label = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    let refused = server.merge_patch(&path, label).await.expect(403);
    assert_eq!(
        refused["message"],
        "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi"
    );
    let phase = r#"{"status":{"phase":"Lost"}}"#;
    server.merge_patch(&format!("{path}/status"), phase).await.expect(200);
    server.delete(&path).await.expect(200);
    server.merge_patch(&path, label).await.expect(200);
    server.merge_patch(&path, r#"{"metadata":{"finalizers":null}}"#).await.expect(200);
    server.get(&path).await.expect(404);
}

#[tokio::test]
async fn bounds_that_contradict_each_other_are_refused() {
    let server = TestServer::start().await;
    let bounds = json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}});
    let body = json!({"metadata": {"name": "l"}, "spec": {"limits": [bounds]}});
    let refused = server.post(LIMITS, body.to_string()).await.expect(422);
    assert_eq!(
        refused["message"],
        "LimitRange \"l\" is invalid: spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000"
    );
}
