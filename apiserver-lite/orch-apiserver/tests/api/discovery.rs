//! Discovery in the encodings that clients prefer, and what OpenAPI describes of it.

use apiserver_schema::{Engine, Format, Strictness};
use orch_apiserver::Config;
use orch_apiserver::config::RuntimeConfig;
use serde_json::Value;

use crate::support::{TestServer, kubernetes};

#[tokio::test]
async fn discovery_is_served_in_the_preferred_encoding() {
    let server = TestServer::start().await;
    let engine = Engine::new(kubernetes());
    for (path, kind) in [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/apps", "APIGroup"),
        ("/api/v1", "APIResourceList"),
        ("/apis/apps/v1", "APIResourceList"),
    ] {
        let json = server.get(path).await.expect(200);
        let protobuf = "application/vnd.kubernetes.protobuf";
        let reply = server.accept(path, &format!("{protobuf};q=0.9,application/json;q=0.5")).await;
        assert_eq!(
            (reply.code(), &reply.headers["content-type"]),
            (200, &protobuf.parse().unwrap())
        );
        let decoded = engine.decode_any(Format::Protobuf, &reply.body, Strictness::Ignore).unwrap();
        let mut same: Value = serde_json::from_slice(&engine.encode_json(&decoded.object)).unwrap();
        assert_eq!(same["kind"], kind, "{path}");
        let mut expected = json;
        for document in [&mut same, &mut expected] {
            document.as_object_mut().unwrap().remove("apiVersion");
        }
        assert_eq!(same, expected, "{path}");
        let reply = server.accept(path, "application/yaml").await;
        assert_eq!(&reply.headers["content-type"], "application/yaml", "{path}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(text.lines().any(|line| line == format!("kind: {kind}")), "{text}");
    }
    // These are no objects.
    for path in ["/", "/version"] {
        let reply = server.accept(path, "application/vnd.kubernetes.protobuf").await;
        assert_eq!(&reply.headers["content-type"], "application/json", "{path}");
    }
}

#[tokio::test]
async fn open_api_describes_what_is_served() {
    let switches = "storage.k8s.io/v1beta1=false,v1/podtemplates=false";
    let runtime_config = switches.parse::<RuntimeConfig>().unwrap().checked(kubernetes()).unwrap();
    let config = Config { runtime_config, ..Config::for_tests(kubernetes()) };
    let server = TestServer::with(config).await;
    let index = server.get("/openapi/v3").await.expect(200);
    assert!(index["paths"].get("apis/storage.k8s.io/v1beta1").is_none());
    assert!(index["paths"]["apis/storage.k8s.io/v1"].is_object());
    server.get("/openapi/v3/apis/storage.k8s.io/v1beta1").await.expect(404);
    let core = server.get("/openapi/v3/api/v1").await.expect(200);
    assert!(core["paths"].get("/api/v1/podtemplates").is_none());
    assert!(core["paths"]["/api/v1/pods"].is_object());
    let older = server.get("/openapi/v2").await.expect(200);
    assert!(older["paths"].get("/api/v1/podtemplates").is_none());
    let definition = |version: &str| {
        older["definitions"]
            .get(format!("io.k8s.api.storage.{version}.CSIStorageCapacity"))
            .cloned()
    };
    assert!(definition("v1beta1").is_none() && definition("v1").is_some());
}
