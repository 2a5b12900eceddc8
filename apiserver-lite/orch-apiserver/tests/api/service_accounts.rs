//! Service accounts that limit what their pods may refer to.

use serde_json::{Value, json};

use crate::support::TestServer;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str, spec: &Value) -> String {
    let mut pod = json!({
        "metadata": {"name": name},
        "spec": {"serviceAccountName": "limited", "containers": [{"name": "c", "image": "i"}]},
    });
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod.to_string()
}

#[tokio::test]
async fn an_account_limits_its_pods_to_its_secrets() {
    let server = TestServer::start().await;
    let account = json!({
        "metadata": {"name": "limited", "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
        "secrets": [{"name": "own"}],
        "imagePullSecrets": [{"name": "pull"}],
    });
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.post(accounts, account.to_string()).await.expect(201);
    let volume =
        |secret: &str| json!({"volumes": [{"name": "v", "secret": {"secretName": secret}}]});
    let refused = server.post(PODS, pod("p", &volume("other"))).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: volume with secret.secretName=\"other\" is not allowed because service account limited does not reference that secret"
    );
    let pull = json!({"imagePullSecrets": [{"name": "other"}]});
    let refused = server.post(PODS, pod("p", &pull)).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: imagePullSecrets[0].name=\"other\" is not allowed because service account limited does not reference that imagePullSecret"
    );
    // Those that the account brings are its own.
    let made = server.post(PODS, pod("p", &volume("own"))).await.expect(201);
    assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));

    let ephemeral = |secret: &str| {
        let from = json!([{"secretRef": {"name": secret}}]);
        let container = json!({"name": "debug", "image": "i", "envFrom": from});
        json!({"spec": {"ephemeralContainers": [container]}}).to_string()
    };
    let path = format!("{PODS}/p/ephemeralcontainers");
    let refused = server.merge_patch(&path, &ephemeral("other")).await.expect(403);
    assert_eq!(
        refused["message"],
        "pods \"p\" is forbidden: ephemeral container debug with envFrom referencing secret.secretName=\"other\" is not allowed because service account limited does not reference that secret"
    );
    server.merge_patch(&path, &ephemeral("own")).await.expect(200);
}

#[tokio::test]
async fn a_mirror_pod_has_no_identity() {
    let server = TestServer::start().await;
    let token = json!({"serviceAccountToken": {"path": "token"}});
    for (spec, refused) in [
        (json!({"serviceAccountName": "default"}), "may not reference service accounts"),
        (json!({"imagePullSecrets": [{"name": "s"}]}), "may not reference secrets"),
        (
            json!({"volumes": [{"name": "v", "projected": {"sources": [token]}}]}),
            "may not use ServiceAccountToken volume projections",
        ),
        (json!({}), ""),
    ] {
        let mut mirror: Value = serde_json::from_str(&pod("m", &spec)).unwrap();
        mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
        if spec.get("serviceAccountName").is_none() {
            mirror["spec"]["serviceAccountName"] = Value::Null;
        }
        let answer = server.post(PODS, mirror.to_string()).await;
        if refused.is_empty() {
            answer.expect(201);
            continue;
        }
        let message = answer.expect(403)["message"].clone();
        assert_eq!(message, format!("pods \"m\" is forbidden: a mirror pod {refused}"));
    }
}
