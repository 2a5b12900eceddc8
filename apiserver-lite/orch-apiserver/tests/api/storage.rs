//! Claims, volumes and classes: fields that the server adds, and updates that it refuses.

use serde_json::{Value, json};

use crate::support::TestServer;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn claim(name: &str, class: Option<&str>) -> String {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": class});
    json!({"metadata": {"name": name}, "spec": spec}).to_string()
}

async fn class(server: &TestServer, name: &str, default: &str, grows: bool) {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": default});
    let body = json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "p",
        "allowVolumeExpansion": grows});
    server.post(CLASSES, body.to_string()).await.expect(201);
}

#[tokio::test]
async fn claims_and_volumes_are_kept_while_they_are_used() {
    let server = TestServer::start().await;
    let made = server.post(CLAIMS, claim("c", Some(""))).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let volume = json!({"metadata": {"name": "v", "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}});
    let made = server.post(VOLUMES, volume.to_string()).await.expect(201);
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]), "once");
    server.delete(&format!("{CLAIMS}/c")).await.expect(200);
    let held = server.get(&format!("{CLAIMS}/c")).await.expect(200);
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let path = format!("{CLAIMS}/c");
    server.merge_patch(&path, r#"{"metadata":{"finalizers":null}}"#).await.expect(200);
    server.get(&format!("{CLAIMS}/c")).await.expect(404);
}

#[tokio::test]
async fn a_claim_without_a_class_gets_the_default_one() {
    let server = TestServer::start().await;
    let class_of = async |name: &str, asked: Option<&str>| -> Value {
        let made = server.post(CLAIMS, claim(name, asked)).await.expect(201);
        made["spec"]["storageClassName"].clone()
    };
    assert_eq!(class_of("a", None).await, Value::Null);
    class(&server, "plain", "false", false).await;
    assert_eq!(class_of("b", None).await, Value::Null);
    class(&server, "usual", "true", false).await;
    assert_eq!(class_of("c", None).await, "usual");
    assert_eq!(class_of("d", Some("")).await, "", "none is a choice");
    assert_eq!(class_of("e", Some("plain")).await, "plain");
}

#[tokio::test]
async fn a_claim_grows_where_its_class_lets_it() {
    let server = TestServer::start().await;
    class(&server, "grows", "false", true).await;
    class(&server, "fixed", "false", false).await;
    let more = r#"{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}"#;
    for (name, class, phase, code, why) in [
        ("a", "grows", "Bound", 200, ""),
        ("b", "grows", "Pending", 403, "Only bound persistent volume claims can be expanded"),
        ("c", "fixed", "Bound", 403, "only dynamically provisioned pvc can be resized"),
        ("d", "none", "Bound", 403, "only dynamically provisioned pvc can be resized"),
    ] {
        server.post(CLAIMS, claim(name, Some(class))).await.expect(201);
        let path = format!("{CLAIMS}/{name}");
        let status = json!({"status": {"phase": phase}}).to_string();
        server.merge_patch(&format!("{path}/status"), &status).await.expect(200);
        let answer = server.merge_patch(&path, more).await.expect(code);
        assert!(why.is_empty() || answer["message"].as_str().is_some_and(|m| m.contains(why)));
    }
}
