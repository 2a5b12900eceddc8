//! Admission webhooks: what they are asked, what they change and refuse, and what becomes of requests when they fail.

mod conditions;
pub mod hook;
mod requests;

use std::net::IpAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::block_in_place;

use crate::support::{Reply, TestServer};
use hook::{Does, Hook, MUTATING, VALIDATING, configuration, rule};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> String {
    json!({"metadata": {"name": name}, "data": {"x": "y"}}).to_string()
}

/// Configures `webhooks` at the path of one of the two kinds.
async fn configure(server: &TestServer, kind: &str, name: &str, webhooks: &[Value]) {
    server.post(kind, configuration(name, webhooks)).await.expect(201);
}

/// The message of a refusal with this code.
fn message(reply: &Reply, code: u16) -> String {
    reply.expect(code)["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn objects_are_changed_in_turn_and_again_where_it_is_wanted() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|path, review| {
        let data = &review["request"]["object"]["data"];
        let label = if data["second"].is_null() { "unseen" } else { "seen" };
        let patch = match path {
            "/first" => {
                json!([{"op": "add", "path": "/metadata/labels", "value": {"second": label}}])
            }
            "/second" => json!([{"op": "add", "path": "/data/second", "value": "1"}]),
            _ => json!([]),
        };
        Does::patch(review, &patch)
    })
    .await;
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let last = hook.webhook("/last", &again);
    configure(&server, MUTATING, "b", &[last]).await;
    let webhooks = [hook.webhook("/first", &again), hook.webhook("/second", &json!({}))];
    configure(&server, MUTATING, "a", &webhooks).await;
    let made = server.post(MAPS, map("m")).await.expect(201);
    assert_eq!(made["data"], json!({"x": "y", "second": "1"}));
    assert_eq!(made["metadata"]["labels"], json!({"second": "seen"}));
    let calls = hook.take_calls();
    let paths: Vec<&str> = calls.iter().map(|call| call.path.as_str()).collect();
    // The second round changes the object, so the last one is asked about it, too.
    assert_eq!(paths, ["/first", "/second", "/last", "/first", "/last"]);
    let request = calls[0].request();
    let metadata = &request["object"]["metadata"];
    assert_eq!((&metadata["uid"], &metadata["creationTimestamp"]), (&Value::Null, &Value::Null));
    assert_eq!(metadata["managedFields"][0]["operation"], "Update");
    assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
    assert_eq!(request["resource"]["resource"], "configmaps");
    assert_eq!((&request["name"], &request["namespace"]), (&json!("m"), &json!("default")));
    assert_eq!((&request["operation"], &request["dryRun"]), (&json!("CREATE"), &json!(false)));
    assert_eq!(request["options"]["kind"], "CreateOptions");
    assert_eq!(request["options"]["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(request["oldObject"], Value::Null);
    let groups = request["userInfo"]["groups"].as_array().unwrap();
    assert!(groups.contains(&json!("system:authenticated")), "{groups:?}");
    // Nothing is asked once the configurations are gone.
    for name in ["a", "b"] {
        server.delete(&format!("{MUTATING}/{name}")).await.expect(200);
    }
    let plain = server.post(MAPS, map("n")).await.expect(201);
    assert_eq!((&plain["data"], hook.take_paths().len()), (&json!({"x": "y"}), 0));
}

#[tokio::test]
async fn a_denied_request_has_no_effect() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| {
        let object = &review["request"]["object"];
        let old = &review["request"]["oldObject"];
        let allowed = [object, old].iter().all(|o| o["metadata"]["labels"]["deny"].is_null());
        let status = json!({"code": 403, "reason": "Forbidden", "message": "it says so"});
        let response = json!({"allowed": allowed, "status": status, "warnings": ["think twice"]});
        Does::respond(review, response)
    })
    .await;
    let webhook = hook.webhook("/v", &json!({"rules": [rule("configmaps", "*")]}));
    configure(&server, VALIDATING, "v", &[webhook]).await;
    let denied = "admission webhook \"v.example.com\" denied the request: it says so";
    let labelled = |value: Value| json!({"metadata": {"name": "m", "labels": {"deny": value}}});
    let refused = server.post(MAPS, labelled(json!("yes")).to_string()).await;
    assert_eq!(message(&refused, 403), denied);
    assert_eq!(refused.json()["reason"], "Forbidden");
    server.get(&format!("{MAPS}/m")).await.expect(404);
    let made = server.post(MAPS, map("m")).await;
    made.expect(201);
    assert_eq!(made.headers["warning"], "299 - \"think twice\"");
    let one = format!("{MAPS}/m");
    assert_eq!(message(&server.put(&one, &labelled(json!("yes"))).await, 403), denied);
    let patch = labelled(json!("yes")).to_string();
    assert_eq!(message(&server.merge_patch(&one, &patch).await, 403), denied);
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"deny": "yes"}}});
    let path = format!("{one}?fieldManager=f");
    let media_type = "application/apply-patch+yaml";
    let applied = server.call(Method::PATCH, &path, media_type, apply.to_string()).await;
    assert_eq!(message(&applied, 403), denied);
    assert_eq!(server.get(&one).await.json()["metadata"]["labels"], Value::Null);
    // Objects that are deleted are looked at as they are stored.
    server.delete(&format!("{VALIDATING}/v")).await.expect(200);
    server.put(&one, &labelled(json!("yes"))).await.expect(200);
    server.post(MAPS, map("free")).await.expect(201);
    let webhook = hook.webhook("/v", &json!({"rules": [rule("configmaps", "DELETE")]}));
    configure(&server, VALIDATING, "v", &[webhook]).await;
    assert_eq!(message(&server.delete(&one).await, 403), denied);
    assert_eq!(message(&server.delete(MAPS).await, 403), denied);
    server.get(&one).await.expect(200);
    server.get(&format!("{MAPS}/free")).await.expect(404);
}

/// Its code and reason say nothing about the store: the server neither tries again nor takes the object for gone.
#[tokio::test]
async fn a_denial_reaches_the_client_whatever_its_code() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| {
        let create = review["request"]["operation"] == "CREATE";
        let status = match create {
            true => json!({"code": 409, "reason": "AlreadyExists", "message": "it says so"}),
            false => json!({"code": 404, "reason": "NotFound", "message": "it says so"}),
        };
        Does::respond(review, json!({"allowed": false, "status": status}))
    })
    .await;
    server.post(MAPS, map("m")).await.expect(201);
    let webhook = hook.webhook("/v", &json!({"rules": [rule("configmaps", "*")]}));
    configure(&server, VALIDATING, "v", &[webhook]).await;
    let denied = "admission webhook \"v.example.com\" denied the request: it says so";
    assert_eq!(message(&server.delete(MAPS).await, 404), denied);
    server.get(&format!("{MAPS}/m")).await.expect(200);
    assert_eq!(hook.take_paths().len(), 1);
    let generated = json!({"metadata": {"generateName": "m-"}}).to_string();
    assert_eq!(message(&server.post(MAPS, generated).await, 409), denied);
    assert_eq!(hook.take_paths().len(), 1, "it is asked once");
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}});
    let path = format!("{MAPS}/new?fieldManager=f");
    let media_type = "application/apply-patch+yaml";
    let applied = server.call(Method::PATCH, &path, media_type, apply.to_string()).await;
    assert_eq!(message(&applied, 409), denied);
    assert_eq!(hook.take_paths().len(), 1, "it is asked once");
}

/// Starts a patch, changes the object before its webhook allows it, and returns the patch's answer. It needs a runtime of several threads.
async fn patch_a_changing_object(name: &str, kind: &str, patch: impl Fn(&str) -> Value) -> Reply {
    let server = TestServer::start().await;
    let called = Arc::new(Notify::new());
    let (changed, is_changed) = mpsc::channel();
    let (calling, first) = (Arc::clone(&called), Mutex::new(Some(is_changed)));
    let hook = Hook::serve(move |_, review| {
        let is_slow = !review["request"]["object"]["data"]["slow"].is_null();
        let wait = is_slow.then(|| first.lock().unwrap().take()).flatten();
        if let Some(is_changed) = wait {
            calling.notify_one();
            // An error means that the test has failed.
            let _ = block_in_place(|| is_changed.recv());
        }
        Does::allow(review)
    })
    .await;
    let more = json!({"timeoutSeconds": 30, "rules": [rule("configmaps", "UPDATE")]});
    configure(&server, VALIDATING, "v", &[hook.webhook("/v", &more)]).await;
    let made = server.post(MAPS, map(name)).await.expect(201);
    let one = format!("{MAPS}/{name}");
    let body = patch(made["metadata"]["resourceVersion"].as_str().unwrap()).to_string();
    let change = async {
        called.notified().await;
        server.merge_patch(&one, r#"{"data": {"other": "1"}}"#).await.expect(200);
        changed.send(()).unwrap();
    };
    let (reply, ()) = tokio::join!(server.call(Method::PATCH, &one, kind, body), change);
    assert_eq!(server.get(&one).await.json()["data"]["other"], "1");
    reply
}

/// Operators lock optimistically by a JSON patch that tests the resourceVersion, and try again when it is refused as one that does not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patch_is_applied_to_the_object_that_another_write_has_left() {
    let merge = "application/merge-patch+json";
    let plain = json!({"data": {"slow": "resourceVersion"}});
    let patched = patch_a_changing_object("plain", merge, |_| plain.clone()).await.expect(200);
    let data = json!({"x": "y", "slow": "resourceVersion", "other": "1"});
    assert_eq!(patched["data"], data);
    let set =
        |revision: &str| json!({"metadata": {"resourceVersion": revision}, "data": {"slow": "1"}});
    let refused = patch_a_changing_object("set", merge, set).await.expect(409);
    assert_eq!(refused["reason"], "Conflict");
    let tested = |revision: &str| {
        json!([
            {"op": "test", "path": "/metadata/resourceVersion", "value": revision},
            {"op": "add", "path": "/data/slow", "value": "1"},
        ])
    };
    let kind = "application/json-patch+json";
    let refused = patch_a_changing_object("tested", kind, tested).await.expect(422);
    assert_eq!(refused["reason"], "Invalid");
}

#[tokio::test]
async fn no_call_goes_to_the_server_itself_or_to_addresses_of_its_link() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| Does::allow(review)).await;
    for url in [format!("https://{}/x", server.address()), "https://169.254.169.254/x".to_owned()] {
        let fields = json!({"clientConfig": {"url": url}});
        configure(&server, VALIDATING, "c", &[hook.webhook("/x", &fields)]).await;
        let refused = message(&server.post(MAPS, map("m")).await, 500);
        assert!(refused.contains("address not allowed"), "{refused}");
        server.delete(&format!("{VALIDATING}/c")).await.expect(200);
    }
}

#[tokio::test]
async fn the_failure_policy_decides_when_a_webhook_does_not_answer() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|path, _| match path {
        "/wait" => Does::Wait,
        _ => Does::Fail(503),
    })
    .await;
    let stranger = Hook::serve(|_, review| Does::allow(review)).await;
    let calling = |path: &str| {
        format!("failed calling webhook \"{path}.example.com\": failed to call webhook: ")
    };
    let url = |path: &str, secs: u64| {
        format!("Post \"https://{}/{path}?timeout={secs}s\": ", hook.address)
    };
    let unreachable = json!({"url": "https://127.0.0.1:1/gone"});
    let untrusted = json!({"url": format!("https://{}/untrusted", hook.address), "caBundle": stranger.authority});
    for (path, fields, expected) in [
        ("wait", json!({"timeoutSeconds": 1}), url("wait", 1) + "context deadline exceeded"),
        ("fails", json!({}), String::new()),
        (
            "gone",
            json!({"clientConfig": unreachable}),
            "Post \"https://127.0.0.1:1/gone?timeout=10s\": ".to_owned(),
        ),
        ("untrusted", json!({"clientConfig": untrusted}), url("untrusted", 10)),
    ] {
        for (kind, policy) in
            [(MUTATING, "Fail"), (VALIDATING, "Fail"), (MUTATING, "Ignore"), (VALIDATING, "Ignore")]
        {
            let mut fields = fields.clone();
            fields["failurePolicy"] = policy.into();
            configure(&server, kind, "c", &[hook.webhook(&format!("/{path}"), &fields)]).await;
            let made = server.post(MAPS, map(path)).await;
            if policy == "Fail" {
                let text = format!("Internal error occurred: {}{expected}", calling(path));
                let found = message(&made, 500);
                assert!(found.starts_with(&text), "{found}\n{text}");
            } else {
                made.expect(201);
                server.delete(&format!("{MAPS}/{path}")).await.expect(200);
            }
            server.delete(&format!("{kind}/c")).await.expect(200);
        }
    }
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"wait.example.com\",operation=\"CREATE\",rejection_code=\"503\",type=\"admit\"} 1",
        "apiserver_admission_webhook_fail_open_count{name=\"wait.example.com\",type=\"validating\"} 1",
        "apiserver_admission_webhook_admission_duration_seconds_count{name=\"fails.example.com\",operation=\"CREATE\",rejected=\"true\",type=\"validating\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

/// Creates a ConfigMap as another user.
async fn create_as(server: &TestServer, user: &str, name: &str) -> Reply {
    let request = Request::post(MAPS).header("host", "test").header("impersonate-user", user);
    let request = request.header("content-type", "application/json");
    server.send(request.body(Full::new(map(name).into())).unwrap()).await
}

#[tokio::test]
async fn a_user_who_makes_a_webhook_slow_neither_gets_past_it_nor_stops_others() {
    let server = TestServer::start().await;
    let hook = Hook::serve(|_, review| match review["request"]["userInfo"]["username"].as_str() {
        Some("a") => Does::Wait,
        _ => Does::allow(review),
    })
    .await;
    let fields = json!({"failurePolicy": "Ignore", "timeoutSeconds": 30});
    configure(&server, VALIDATING, "c", &[hook.webhook("/slow", &fields)]).await;
    // One more than a user has turns.
    let names: Vec<String> = (0..17).map(|nth| format!("a-{nth}")).collect();
    let creating = names.iter().map(|name| create_as(&server, "a", name));
    let mut creating: FuturesUnordered<_> = creating.collect();
    let first = creating.next().await.unwrap();
    let text = message(&first, 429);
    assert!(text.contains("for requests of this user have not ended"), "{text}");
    create_as(&server, "b", "b").await.expect(201);
    let mut paths = hook.take_paths();
    // Each call began before the seventeenth was refused, but the webhook may not have received all yet.
    for _ in 0..1000 {
        if paths.len() >= 17 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        paths.append(&mut hook.take_paths());
    }
    assert_eq!(paths.len(), 17, "sixteen of one user, one of the other");
}

/// An address of this machine other than loopback, which no endpoint may have. Connecting a UDP socket sends no packet.
fn routed() -> Option<IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

#[tokio::test]
async fn a_service_is_found_by_its_endpoints() {
    let Some(ip) = routed() else {
        println!("SKIPPED a_service_is_found_by_its_endpoints: only loopback here");
        return;
    };
    let server = TestServer::start().await;
    let hook = Hook::serve_at(ip, |_, review| Does::allow(review)).await;
    let client = |name: &str| {
        let service = json!({"namespace": "default", "name": name, "path": "/x", "port": 8443});
        json!({"clientConfig": {"service": service, "caBundle": hook.authority}})
    };
    configure(&server, VALIDATING, "c", &[hook.webhook("/x", &client("hook"))]).await;
    let call = "failed calling webhook \"x.example.com\": failed to call webhook";
    let post = "Post \"https://hook.default.svc:8443/x?timeout=10s\"";
    let refused = |why: &str| format!("Internal error occurred: {call}: {post}: {why}");
    let missing = message(&server.post(MAPS, map("m")).await, 500);
    assert_eq!(missing, refused("service \"hook\" not found"));
    let service =
        json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "tls", "port": 8443}]}});
    server.post("/api/v1/namespaces/default/services", service.to_string()).await.expect(201);
    let empty = message(&server.post(MAPS, map("m")).await, 500);
    assert_eq!(empty, refused("no endpoints available for service \"hook\""));
    let subset = json!({"addresses": [{"ip": ip.to_string()}], "ports": [{"name": "tls", "port": hook.address.port()}]});
    let endpoints = json!({"metadata": {"name": "hook"}, "subsets": [subset]});
    server.post("/api/v1/namespaces/default/endpoints", endpoints.to_string()).await.expect(201);
    server.post(MAPS, map("m")).await.expect(201);
    let calls = hook.take_calls();
    assert_eq!((calls.len(), calls[0].path.as_str()), (1, "/x"));
    assert_eq!(calls[0].host, "hook.default.svc:8443");
}
