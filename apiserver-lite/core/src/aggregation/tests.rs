//! Tests of APIServices: conditions by Service and endpoints, those that the server makes, and which group versions are another server's.

use std::sync::Arc;

use apiserver_schema::{Format, Strictness};
use apiserver_store::{Write, WriteCondition};
use proto_api::names::Profile;
use serde_json::{Value as Json, json};

use super::*;
use crate::api_service_lifecycle;
use crate::key;
use crate::record::Draft;
use crate::server::Server;

fn server() -> Server {
    Server::for_tests(Names::new(Profile::Kubernetes))
}

fn object(server: &Server, json: &Json) -> Object {
    let strict = Strictness::Strict;
    let text = json.to_string();
    server.engine.decode_any(Format::Json, text.as_bytes(), strict).expect("valid").object
}

fn api_service(name: &str, spec: &Json) -> Json {
    let (version, group) = name.split_once('.').expect("a name");
    let mut object = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {"group": group, "version": version, "groupPriorityMinimum": 1000, "versionPriority": 15}});
    let more = spec.as_object().expect("an object").clone();
    object["spec"].as_object_mut().expect("an object").extend(more);
    object
}

async fn put(server: &Server, json: &Json) {
    let object = object(server, json);
    let key = key::object(&object.kind, "", object.name());
    let draft = Draft::new(&server.engine, object);
    server
        .store
        .write(Write::Put { key, expect: WriteCondition::Anything, draft })
        .await
        .expect("written");
}

fn stored(server: &Server, name: &str) -> Option<Arc<StoredObject>> {
    server.find_in(GROUP, RESOURCE, "", name)
}

fn shown(condition: &crate::definitions::strategy::DefinitionCondition) -> String {
    format!("{} {}: {}", condition.status, condition.reason, condition.message)
}

#[test]
fn conditions_follow_the_service_and_its_endpoints() {
    let server = server();
    let spec = json!({"service": {"namespace": "n", "name": "s", "port": 8443}});
    let of = ApiService::from_object(&object(&server, &api_service("v1.a.com", &spec)));
    let backend = of.backend.expect("another server");
    assert_eq!((backend.server_name().as_str(), backend.port), ("s.n.svc", 8443));
    let service = |kind: &str, port: u16| {
        let ports = json!([{"name": "x", "port": 1}, {"name": "api", "port": port}]);
        object(
            &server,
            &json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"type": kind, "ports": ports}}),
        )
    };
    let endpoints = |field: &str, port: &str| {
        let subset = json!({field: [{"ip": "10.0.0.1"}], "ports": [{"name": port, "port": 443}]});
        object(
            &server,
            &json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "s"}, "subsets": [subset]}),
        )
    };
    let found = |service: Option<&Object>, endpoints: Option<&Object>| {
        availability::without_server(&backend, service, endpoints).as_ref().map(shown)
    };
    let (right, wrong) = (service("ClusterIP", 8443), service("ClusterIP", 443));
    let ready = endpoints("addresses", "api");
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(found(None, None), text("False ServiceNotFound: service/s in \"n\" is not present"));
    assert_eq!(
        found(Some(&wrong), Some(&ready)),
        text("False ServicePortError: service/s in \"n\" is not listening on port 8443")
    );
    assert_eq!(
        found(Some(&right), None),
        text("False EndpointsNotFound: cannot find endpoints for service/s in \"n\"")
    );
    let missing = text(
        "False MissingEndpoints: endpoints for service/s in \"n\" have no addresses with port name \"api\"",
    );
    assert_eq!(found(Some(&right), Some(&endpoints("notReadyAddresses", "api"))), missing);
    assert_eq!(found(Some(&right), Some(&endpoints("addresses", "x"))), missing);
    assert_eq!(found(Some(&right), Some(&ready)), None);
    assert_eq!(
        found(Some(&service("NodePort", 443)), None),
        None,
        "only cluster IPs are looked at"
    );
}

#[tokio::test]
async fn group_versions_of_other_servers_are_found_unless_they_are_built_in() {
    let server = server();
    let spec = json!({"service": {"namespace": "n", "name": "s"}, "insecureSkipTLSVerify": true});
    for name in ["v1.a.com", "v1.apps", "v1beta1.metrics.k8s.io", "v1.autoscaling.k8s.io"] {
        put(&server, &api_service(name, &spec)).await;
    }
    put(&server, &api_service("v2.a.com", &json!({}))).await;
    let find = |group: &str, version: &str| {
        let found = server.api_services.remote(server.names, group, version);
        found.map(|service| service.name.clone())
    };
    assert_eq!(find("a.com", "v1").as_deref(), Some("v1.a.com"));
    assert_eq!((find("a.com", "v2"), find("apps", "v1"), find("b.com", "v1")), (None, None, None));
    assert_eq!(find("com", "v1.a"), None, "the same name, another group");
    let metrics = find("metrics.k8s.io", "v1beta1");
    assert_eq!(metrics.as_deref(), Some("v1beta1.metrics.k8s.io"), "metrics-server's");
    let custom = find("autoscaling.k8s.io", "v1");
    assert_eq!(custom.as_deref(), Some("v1.autoscaling.k8s.io"), "not the group autoscaling");
    let all = server.api_services.all_remote(server.names);
    assert_eq!(all.len(), 3, "all but the built-in one");
}

#[tokio::test]
async fn local_ones_are_made_corrected_and_deleted() {
    let server = server();
    api_service_lifecycle::reconcile(&server).await.expect("reconciled");
    let label = "kube-aggregator.kubernetes.io/automanaged";
    let apps = stored(&server, "v1.apps").expect("made");
    assert_eq!(apps.object().labels().get(label).map(String::as_str), Some("onstart"));
    let condition = apps.object().status().expect("a status").maps("conditions").next().cloned();
    assert_eq!(condition.expect("a condition").str("reason"), "Local");
    assert!(
        stored(&server, "v1.").is_some() && stored(&server, "v1.apiregistration.k8s.io").is_none()
    );
    assert!(stored(&server, "v1beta1.metrics.k8s.io").is_none(), "left to metrics-server");
    let revision = server.store.revision();
    api_service_lifecycle::reconcile(&server).await.expect("reconciled");
    assert_eq!(server.store.revision(), revision, "nothing to do");
    // A built-in one that somebody has changed, one of a definition that is gone, and one of a user.
    let mut changed = api_service("v1.apps", &json!({"service": {"namespace": "n", "name": "s"}}));
    changed["metadata"]["labels"] = json!({label: "onstart"});
    let mut gone = api_service("v1.gone.com", &json!({}));
    gone["metadata"]["labels"] = json!({label: "true"});
    for one in [changed, gone, api_service("v1.own.com", &json!({}))] {
        put(&server, &one).await;
    }
    api_service_lifecycle::reconcile(&server).await.expect("reconciled");
    let apps = stored(&server, "v1.apps").expect("there");
    let spec = apps.object().spec().expect("a spec");
    assert_eq!((spec.int("groupPriorityMinimum"), spec.map("service")), (Some(17_800), None));
    assert!(stored(&server, "v1.gone.com").is_none());
    let own = stored(&server, "v1.own.com").expect("left alone");
    assert_eq!(own.object().spec().expect("a spec").int("groupPriorityMinimum"), Some(1000));
    assert!(
        crate::definitions::is_true(own.object(), availability::AVAILABLE),
        "local all the same"
    );
}
