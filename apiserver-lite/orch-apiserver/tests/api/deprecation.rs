//! Deprecated versions, and versions that are switched off.

use apiserver_core::config::RuntimeConfig;
use orch_apiserver::Config;
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, kubernetes};

const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io";

fn warnings(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn requests_to_deprecated_versions_are_answered_with_a_warning_and_counted() {
    let server = TestServer::start().await;
    let gauge = "apiserver_requested_deprecated_apis{group=\"flowcontrol.apiserver.k8s.io\",removed_release=\"1.26\",resource=\"flowschemas\",subresource=\"\",version=\"v1beta1\"} 1";
    let metrics = async || {
        let page = server.get("/metrics").await;
        String::from_utf8_lossy(&page.body).into_owned()
    };
    assert!(!metrics().await.contains(gauge));
    for (path, kind) in [
        (
            format!("{FLOWS}/v1beta1/flowschemas"),
            "flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema is deprecated in v1.23+, unavailable in v1.26+; use flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema",
        ),
        (
            format!("{FLOWS}/v1beta1/flowschemas/none"),
            "flowcontrol.apiserver.k8s.io/v1beta1 FlowSchema is deprecated in v1.23+, unavailable in v1.26+; use flowcontrol.apiserver.k8s.io/v1beta2 FlowSchema",
        ),
        (
            "/apis/storage.k8s.io/v1beta1/csistoragecapacities".to_owned(),
            "storage.k8s.io/v1beta1 CSIStorageCapacity is deprecated in v1.24+, unavailable in v1.27+; use storage.k8s.io/v1 CSIStorageCapacity",
        ),
    ] {
        let expected = format!("299 - \"{kind}\"");
        let reply = server.get(&path).await;
        assert_eq!(warnings(&reply), [expected.as_str()], "{path}");
    }
    assert!(metrics().await.contains(gauge), "{}", metrics().await);
    for path in [
        format!("{FLOWS}/v1beta2/flowschemas"),
        "/apis/storage.k8s.io/v1/csistoragecapacities".to_owned(),
        "/api/v1/pods".to_owned(),
        format!("{FLOWS}/v1beta1"),
        format!("{FLOWS}/v1beta1/nonsense"),
    ] {
        assert_eq!(warnings(&server.get(&path).await), Vec::<&str>::new(), "{path}");
    }
    let refused = server.anonymous(&format!("{FLOWS}/v1beta1/flowschemas")).await;
    assert_eq!((refused.code(), warnings(&refused).len()), (403, 0));
}

#[tokio::test]
async fn groups_and_resources_disabled_by_runtime_config_are_not_served() {
    let switches = "api/beta=false,flowcontrol.apiserver.k8s.io/v1beta2=true,v1/podtemplates=false";
    let runtime_config = switches.parse::<RuntimeConfig>().unwrap().checked(kubernetes()).unwrap();
    let server =
        TestServer::with(Config { runtime_config, ..Config::for_tests(kubernetes()) }).await;
    for (path, code) in [
        ("/apis/storage.k8s.io/v1beta1/csistoragecapacities", 404),
        ("/apis/storage.k8s.io/v1beta1", 404),
        ("/apis/storage.k8s.io/v1/csistoragecapacities", 200),
        ("/apis/flowcontrol.apiserver.k8s.io/v1beta1/flowschemas", 404),
        ("/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas", 200),
        ("/api/v1/podtemplates", 404),
        ("/api/v1/pods", 200),
    ] {
        assert_eq!(server.get(path).await.code(), code, "{path}");
    }
    let group = server.get("/apis/storage.k8s.io").await.expect(200);
    let v1 = json!([{"groupVersion": "storage.k8s.io/v1", "version": "v1"}]);
    assert_eq!(group["versions"], v1);
    let core = server.get("/api/v1").await.expect(200);
    let listed =
        |name: &str| core["resources"].as_array().unwrap().iter().any(|row| row["name"] == name);
    assert!(listed("pods") && !listed("podtemplates"));
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let all = server.accept("/apis", accept).await.expect(200);
    let versions = |group: &str| -> Value {
        let items = all["items"].as_array().unwrap().iter();
        let found = items.clone().find(|item| item["metadata"]["name"] == group).unwrap();
        found["versions"].as_array().unwrap().iter().map(|of| of["version"].clone()).collect()
    };
    assert_eq!(versions("storage.k8s.io"), json!(["v1"]));
    assert_eq!(versions("flowcontrol.apiserver.k8s.io"), json!(["v1beta2"]));
}

#[tokio::test]
async fn versions_that_kubernetes_1_25_has_removed_are_not_served() {
    let server = TestServer::start().await;
    for path in [
        "/apis/extensions/v1beta1/replicasets",
        "/apis/apps/v1beta1/statefulsets",
        "/apis/apps/v1beta2/replicasets",
        "/apis/policy/v1beta1/podsecuritypolicies",
        "/apis/batch/v1beta1/cronjobs",
    ] {
        assert_eq!(server.get(path).await.code(), 404, "{path}");
    }
    for path in ["/apis/storage.k8s.io/v1beta1/csistoragecapacities", "/apis/apps/v1/statefulsets"]
    {
        assert_eq!(server.get(path).await.code(), 200, "{path}");
    }
}
