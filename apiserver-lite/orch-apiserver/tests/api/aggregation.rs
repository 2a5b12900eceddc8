//! Group versions of other API servers: who is asked what in whose name, what becomes of requests when they fail, and how they are listed.

mod backend;
mod controllers;
mod garbage;
mod open_api;

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Request};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use orch_apiserver::Config;
use orch_apiserver::config::{AuthorizationMode, Credentials};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::flow_control::gauge;
use crate::identity::{DAY, authority, client};
use crate::proxy::routed;
use crate::support::{Reply, TestServer, kubernetes};
use backend::Backend;

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const NAME: &str = "v1alpha1.wardle.example.com";
const GROUP: &str = "/apis/wardle.example.com";
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";

/// A server with another one behind the Service `api`.
struct World {
    server: TestServer,
    backend: Backend,
    _dir: tempfile::TempDir,
}

const TOKENS: &str = "admin,admin,u1,system:masters\njane,jane,u2,\"devs,ops\"\njoe,joe,u3\n";

impl World {
    /// `None` where there is only loopback.
    async fn new(test: &str) -> Option<Self> {
        let Some(ip) = routed() else {
            println!("SKIPPED {test}: only loopback here");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let proxies = authority("front-proxy-ca", &at("front-proxy-ca.crt"));
        let (certificate, key) = client(&proxies, ("front-proxy-client", ""), DAY);
        std::fs::write(at("client.crt"), certificate).unwrap();
        std::fs::write(at("client.key"), key).unwrap();
        std::fs::write(at("tokens"), TOKENS).unwrap();
        let believed = std::fs::read_to_string(at("front-proxy-ca.crt")).unwrap();
        let backend = Backend::serve(ip, &believed).await;
        let server = TestServer::with(Config {
            authorization: vec![AuthorizationMode::Rbac],
            token_auth_file: Some(at("tokens")),
            proxy_client: Some(Credentials {
                certificate: at("client.crt"),
                key: at("client.key"),
            }),
            ..Config::for_tests(kubernetes())
        })
        .await;
        let world = Self { server, backend, _dir: dir };
        world.allow_jane().await;
        Some(world)
    }

    /// Lets jane do everything with flunders.
    async fn allow_jane(&self) {
        let group = "rbac.authorization.k8s.io";
        let rules =
            json!([{"apiGroups": ["wardle.example.com"], "resources": ["*"], "verbs": ["*"]}]);
        let role = json!({"metadata": {"name": "wardler"}, "rules": rules});
        let roles = format!("/apis/{group}/v1/clusterroles");
        self.server.post(&roles, role.to_string()).await.expect(201);
        let binding = json!({
            "metadata": {"name": "wardler"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "wardler"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "jane"}],
        });
        let bindings = format!("/apis/{group}/v1/clusterrolebindings");
        self.server.post(&bindings, binding.to_string()).await.expect(201);
    }

    async fn add_service(&self) {
        let port = self.backend.address.port();
        let ports = json!([{"name": "api", "port": 443, "targetPort": port}]);
        let service = json!({"metadata": {"name": "api"}, "spec": {"ports": ports}});
        let services = "/api/v1/namespaces/default/services";
        self.server.post(services, service.to_string()).await.expect(201);
    }

    async fn add_endpoints(&self, ip: IpAddr) {
        let port = self.backend.address.port();
        let subset = json!({"addresses": [{"ip": ip.to_string()}], "ports": [{"name": "api", "port": port}]});
        let endpoints = json!({"metadata": {"name": "api"}, "subsets": [subset]});
        let all = "/api/v1/namespaces/default/endpoints";
        self.server.post(all, endpoints.to_string()).await.expect(201);
    }

    async fn add_api_service(&self, more: Value) {
        let mut spec = json!({"group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 2000, "versionPriority": 200,
            "service": {"namespace": "default", "name": "api"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let object = json!({"metadata": {"name": NAME}, "spec": spec});
        self.server.post(API_SERVICES, object.to_string()).await.expect(201);
    }

    /// All of it, until the other server is available.
    async fn ready(&self) {
        self.add_service().await;
        self.add_endpoints(self.backend.address.ip()).await;
        self.add_api_service(json!({"caBundle": self.backend.authority})).await;
        wait_for(&self.server, NAME, "Passed").await;
    }

    async fn as_jane(&self, method: Method, path: &str, body: &str) -> Reply {
        let headers = [
            ("authorization", "Bearer jane"),
            ("content-type", "application/json"),
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-scopes", "all"),
        ];
        self.server.without_certificate(method, path, &headers, body).await
    }
}

/// Waits until the condition `Available` has this reason. Gives the condition.
async fn wait_for(server: &TestServer, name: &str, reason: &str) -> Value {
    for _ in 0..2400 {
        let found = server.get(&format!("{API_SERVICES}/{name}")).await.json_or_null();
        let condition = found["status"]["conditions"][0].clone();
        if condition["reason"] == reason {
            return condition;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{name} did not become {reason}");
}

fn text(reply: &Reply) -> (u16, String) {
    (reply.code(), String::from_utf8_lossy(&reply.body).into_owned())
}

#[tokio::test]
async fn requests_are_passed_on_in_the_name_of_the_authorized_user() {
    let Some(world) = World::new("requests_are_passed_on").await else { return };
    world.ready().await;
    world.backend.take();
    let flunder = json!({"kind": "Flunder", "metadata": {"name": "f"}}).to_string();
    let made =
        world.as_jane(Method::POST, &format!("{FLUNDERS}?dryRun=All&x=a%2Fb"), &flunder).await;
    assert_eq!(made.expect(201)["metadata"]["name"], "f");
    let got = world.backend.take();
    let [got] = got.as_slice() else { panic!("{got:?}") };
    assert_eq!(got.line, format!("POST {FLUNDERS}?dryRun=All&x=a%2Fb"));
    assert_eq!((got.body.as_ref(), got.certified), (flunder.as_bytes(), true));
    assert_eq!(got.header("x-remote-user"), ["jane"]);
    assert_eq!(got.header("x-remote-group"), ["devs", "ops", "system:authenticated"]);
    for gone in ["authorization", "x-remote-extra-scopes"] {
        assert!(got.header(gone).is_empty(), "{gone}");
    }
    // One identifier for both logs.
    assert_eq!(got.header("audit-id"), [made.headers["audit-id"].to_str().unwrap()]);
    // Who may do nothing here is not heard there.
    let headers = [("authorization", "Bearer joe")];
    let refused = world.server.without_certificate(Method::GET, FLUNDERS, &headers, "").await;
    let message = refused.expect(403)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot list resource \"flunders\" in API group"), "{message}");
    assert!(world.backend.take().is_empty());
    // The user that acts is the one that is named.
    let headers = [("authorization", "Bearer admin"), ("impersonate-user", "jane")];
    let listed = world.server.without_certificate(Method::GET, FLUNDERS, &headers, "").await;
    listed.expect(200);
    let got = world.backend.take();
    assert_eq!(got[0].header("x-remote-user"), ["jane"]);
    assert!(got[0].header("impersonate-user").is_empty());
    world.as_jane(Method::DELETE, FLUNDERS, "").await.expect(200);
    let missing = world.as_jane(Method::GET, &format!("{FLUNDERS}/x/sub/deeper/path"), "").await;
    assert_eq!(missing.expect(404)["message"], "no flunder");
    let lines: Vec<String> = world.backend.take().into_iter().map(|got| got.line).collect();
    assert_eq!(lines, [format!("DELETE {FLUNDERS}"), format!("GET {FLUNDERS}/x/sub/deeper/path")]);
    let moved = world.as_jane(Method::GET, &format!("{FLUNDERS}/moved"), "").await;
    let refused = "the backend attempted to redirect this request, which is not permitted\n";
    assert_eq!(text(&moved), (502, refused.to_owned()));
}

/// Servers in Go decode a path before they split it.
#[tokio::test]
async fn a_path_is_authorized_as_the_other_server_reads_it() {
    let test = "a_path_is_authorized_as_the_other_server_reads_it";
    let Some(world) = World::new(test).await else { return };
    world.ready().await;
    let group = "rbac.authorization.k8s.io";
    // Of a resource that is not there.
    let rule = json!({"apiGroups": ["wardle.example.com"], "resources": ["namespaces/flunders", "watch", "watch/default"],
        "verbs": ["*"]});
    let role = json!({"metadata": {"name": "joe"}, "rules": [rule]});
    let roles = format!("/apis/{group}/v1/clusterroles");
    world.server.post(&roles, role.to_string()).await.expect(201);
    let binding = json!({
        "metadata": {"name": "joe"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "joe"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "joe"}],
    });
    let bindings = format!("/apis/{group}/v1/clusterrolebindings");
    world.server.post(&bindings, binding.to_string()).await.expect(201);
    world.backend.take();
    let escaped = FLUNDERS.replace("namespaces", "n%61mespaces");
    let prefixed = FLUNDERS.replace("namespaces", "watch/namespaces");
    let joe = [("authorization", "Bearer joe")];
    for (method, path) in
        [(Method::DELETE, &escaped), (Method::GET, &escaped), (Method::GET, &prefixed)]
    {
        let refused = world.server.without_certificate(method, path, &joe, "").await.expect(403);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("in the namespace \"default\""), "{path}: {message}");
    }
    let separated = FLUNDERS.replace("/flunders", "%2Fflunders");
    world.as_jane(Method::GET, &separated, "").await.expect(400);
    let dropped = format!("{FLUNDERS}?fieldSelector=metadata.name%3Da,b%3D;");
    assert_eq!(world.as_jane(Method::GET, &dropped, "").await.code(), 400);
    assert!(world.backend.take().is_empty());
    world.as_jane(Method::DELETE, &escaped, "").await.expect(200);
    let lines: Vec<String> = world.backend.take().into_iter().map(|got| got.line).collect();
    assert_eq!(lines, [format!("DELETE {FLUNDERS}")]);
}

#[tokio::test]
async fn watches_and_upgrades_are_streams() {
    let Some(world) = World::new("watches_and_upgrades_are_streams").await else { return };
    world.ready().await;
    let mut events = world.server.watch(&format!("{FLUNDERS}?watch=true")).await;
    for name in ["a", "b"] {
        let event = json!({"type": "ADDED", "object": {"metadata": {"name": name}}});
        world.backend.events.send(format!("{event}\n").into()).await.unwrap();
        assert_eq!(events.next_short().await, format!("ADDED {name}"));
    }
    let request = Request::get(format!("{FLUNDERS}/f/stream"))
        .header("host", "test")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    let response = world.server.open(request.body(Full::default()).unwrap()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["upgrade"]),
        (101, &"SPDY/3.1".parse().unwrap())
    );
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.write_all(b"ping").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "PING");
}

#[tokio::test]
async fn a_streaming_response_holds_no_seat() {
    let Some(world) = World::new("a_streaming_response_holds_no_seat").await else { return };
    world.ready().await;
    let as_jane = |path: String| {
        let request = Request::get(path).header("host", "test").header("impersonate-user", "jane");
        world.server.open(request.body(Full::default()).unwrap())
    };
    let begun = as_jane(format!("{FLUNDERS}/f?follow=true")).await;
    assert_eq!(begun.status(), 200);
    assert!(begun.headers().contains_key("x-kubernetes-pf-flowschema-uid"), "it had one");
    let page = world.server.get("/metrics").await;
    let page = String::from_utf8_lossy(&page.body).into_owned();
    assert!(
        page.contains(&gauge("current_executing_requests", "global-default", "global-default", 0)),
        "{page}"
    );
    drop(begun);
    // What lasts is known by its path, though this server does not know the resource.
    let log = as_jane(format!("{FLUNDERS}/f/log")).await;
    assert_eq!(log.status(), 404);
    assert!(!log.headers().contains_key("x-kubernetes-pf-flowschema-uid"));
}

#[tokio::test]
async fn availability_follows_the_service() {
    let Some(world) = World::new("availability_follows_the_service").await else { return };
    let server = &world.server;
    world.add_api_service(json!({"caBundle": world.backend.authority})).await;
    let condition = wait_for(server, NAME, "ServiceNotFound").await;
    assert_eq!(condition["message"], "service/api in \"default\" is not present");
    let unavailable = (503, "service unavailable\n".to_owned());
    assert_eq!(text(&server.get(FLUNDERS).await), unavailable);
    world.add_service().await;
    wait_for(server, NAME, "EndpointsNotFound").await;
    // An address that only this server reaches.
    world.add_endpoints("10.96.0.1".parse().unwrap()).await;
    let condition = wait_for(server, NAME, "FailedDiscoveryCheck").await;
    let message = condition["message"].as_str().unwrap();
    assert!(message.ends_with("address not allowed"), "{message}");
    server.delete("/api/v1/namespaces/default/endpoints/api").await.expect(200);
    world.add_endpoints(world.backend.address.ip()).await;
    let condition = wait_for(server, NAME, "Passed").await;
    assert_eq!(
        (&condition["status"], &condition["message"]),
        (&json!("True"), &json!("all checks passed"))
    );
    server.get(FLUNDERS).await.expect(200);
    // The certificate is not of this authority any more, which requests and checks see.
    let other = rcgen::generate_simple_self_signed(vec!["api.default.svc".to_owned()]).unwrap();
    let bundle =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, other.cert.pem());
    let path = format!("{API_SERVICES}/{NAME}");
    server.merge_patch(&path, &json!({"spec": {"caBundle": bundle}}).to_string()).await.expect(200);
    wait_for(server, NAME, "FailedDiscoveryCheck").await;
    assert_eq!(server.get(FLUNDERS).await.code(), 503);
    let skipped = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    server.merge_patch(&path, &skipped.to_string()).await.expect(200);
    wait_for(server, NAME, "Passed").await;
    server.get(FLUNDERS).await.expect(200);
    server.delete("/api/v1/namespaces/default/endpoints/api").await.expect(200);
    wait_for(server, NAME, "EndpointsNotFound").await;
    assert_eq!(text(&server.get(FLUNDERS).await), unavailable);
    server.delete(&path).await.expect(200);
    server.get(FLUNDERS).await.expect(404);
}

#[tokio::test]
async fn discovery_lists_other_servers() {
    let Some(world) = World::new("discovery_lists_other_servers").await else { return };
    let server = &world.server;
    world.ready().await;
    let groups = server.get("/apis").await.expect(200);
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| group["name"].as_str().unwrap())
        .collect();
    assert_eq!((names[0], names[1]), ("apiregistration.k8s.io", "apps"));
    assert_eq!(names.last(), Some(&"wardle.example.com"));
    let group = server.get(GROUP).await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], "wardle.example.com/v1alpha1");
    let list = server.get(&format!("{GROUP}/v1alpha1")).await.expect(200);
    assert_eq!(list["resources"][0]["name"], "flunders");
    let paths = server.get("/").await.expect(200)["paths"].clone();
    assert!(paths.as_array().unwrap().contains(&json!(format!("{GROUP}/v1alpha1"))));
    let wanted = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let aggregated = async || {
        let document = server.accept("/apis", wanted).await.expect(200);
        let items = document["items"].as_array().unwrap().clone();
        let of_group =
            items.into_iter().find(|item| item["metadata"]["name"] == "wardle.example.com");
        of_group.unwrap()["versions"][0].clone()
    };
    let shown = aggregated().await;
    assert_eq!(
        (&shown["freshness"], &shown["resources"][0]["resource"]),
        (&json!("Current"), &json!("flunders"))
    );
    // A server that is gone is still listed, and said to be.
    server.delete("/api/v1/namespaces/default/endpoints/api").await.expect(200);
    wait_for(server, NAME, "EndpointsNotFound").await;
    assert_eq!(aggregated().await["freshness"], "Stale");
    assert_eq!(server.get(&format!("{GROUP}/v1alpha1")).await.code(), 503);
    server.get(GROUP).await.expect(200);
}

#[tokio::test]
async fn built_in_groups_stay_this_server_s() {
    let server = TestServer::start().await;
    let condition = wait_for(&server, "v1.apps", "Local").await;
    assert_eq!(condition["message"], "Local APIServices are always available");
    let service = json!({"spec": {"service": {"namespace": "default", "name": "api"}, "insecureSkipTLSVerify": true}});
    let path = format!("{API_SERVICES}/v1.apps");
    let refused = server.merge_patch(&path, &service.to_string()).await.expect(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("its group is built in, and only this server serves it"), "{message}");
    // What somebody changes or deletes comes back.
    let changed = json!({"spec": {"groupPriorityMinimum": 7}}).to_string();
    server.merge_patch(&path, &changed).await.expect(200);
    server.delete(&format!("{API_SERVICES}/v1.batch")).await.expect(200);
    wait_for(&server, "v1.batch", "Local").await;
    for _ in 0..2400 {
        let found = server.get(&path).await.expect(200);
        if found["spec"]["groupPriorityMinimum"] == 17800 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the priority did not come back");
}

#[tokio::test]
async fn a_local_api_service_is_available_once_it_is_created() {
    let server = TestServer::start().await;
    let spec = |service: Value| {
        let spec = json!({"group": "local.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 1, "service": service,
            "insecureSkipTLSVerify": !service.is_null()});
        json!({"metadata": {"name": "v1.local.example.com"}, "spec": spec}).to_string()
    };
    let created = server.post(API_SERVICES, spec(Value::Null)).await.expect(201);
    assert_eq!(created["status"]["conditions"][0]["reason"], "Local");
    server.delete(&format!("{API_SERVICES}/v1.local.example.com")).await.expect(200);
    let remote = spec(json!({"namespace": "default", "name": "api"}));
    let created = server.post(API_SERVICES, remote).await.expect(201);
    assert_eq!(created["status"]["conditions"], Value::Null, "another server is checked first");
}

#[tokio::test]
async fn every_built_in_resource_is_listed_once() {
    let server = TestServer::start().await;
    let wanted = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let mut listed = 0;
    for path in ["/api", "/apis"] {
        let document = server.accept(path, wanted).await.expect(200);
        let groups = document["items"].as_array().unwrap();
        let versions = groups.iter().flat_map(|group| group["versions"].as_array().unwrap());
        listed += versions.map(|of| of["resources"].as_array().unwrap().len()).sum::<usize>();
    }
    assert_eq!(listed, proto_api::schema::resources().len());
}
