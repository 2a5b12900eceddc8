//! Priority and fairness: built-in objects, which schema takes a request, and who waits for whom.

use std::time::{Duration, Instant};

use http::Request;
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{RequestLimits, RequestSharing};
use proto_api::names::Names;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;

use crate::support::{Reply, TestServer, kubernetes, orch};
use crate::webhooks::hook::MUTATING;

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1beta2/prioritylevelconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Longest wait for a change, reached only on failure.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A server with so few seats that each level has one.
async fn small_server(names: &'static Names) -> TestServer {
    let sharing = RequestSharing::Fair;
    let request_limits = RequestLimits { reading: 0, mutating: 1, sharing };
    TestServer::with(Config { request_limits, ..Config::for_tests(names) }).await
}

/// A level whose requests wait, one in each queue; a flow has two of 64.
fn level(name: &str) -> Value {
    let queuing = json!({"queues": 64, "handSize": 2, "queueLengthLimit": 1});
    let response = json!({"type": "Queue", "queuing": queuing});
    let limited = json!({"assuredConcurrencyShares": 30, "limitResponse": response});
    json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": limited}})
}

/// A schema that takes all requests of these users, each being a flow.
fn schema(name: &str, level: &str, users: &[&str]) -> Value {
    let subjects: Vec<Value> =
        users.iter().map(|user| json!({"kind": "User", "user": {"name": user}})).collect();
    let resources = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]);
    let paths = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    let rules =
        json!([{"subjects": subjects, "resourceRules": resources, "nonResourceRules": paths}]);
    let spec = json!({"priorityLevelConfiguration": {"name": level}, "matchingPrecedence": 50,
        "distinguisherMethod": {"type": "ByUser"}, "rules": rules});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn get_as(server: &TestServer, user: &str, path: &str) -> Reply {
    let request = Request::get(path).header("host", "test").header("impersonate-user", user);
    server.send(request.body(Full::default()).expect("a request")).await
}

async fn uid(server: &TestServer, path: &str) -> String {
    server.get(path).await.expect(200)["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

/// The identities of the flow schema and the level that took a request.
fn taken_by(reply: &Reply) -> [&str; 2] {
    ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"]
        .map(|name| reply.headers.get(name).map_or("", |value| value.to_str().expect("text")))
}

/// Waits until a line is in the metrics.
async fn measured(server: &TestServer, line: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = server.get("/metrics").await;
        if String::from_utf8_lossy(&page.body).lines().any(|found| found == line) {
            return;
        }
        assert!(Instant::now() < deadline, "{line} is not measured");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits until an object is as wanted.
async fn becomes(server: &TestServer, path: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = server.get(path).await;
        if reply.code() == 200 && is_wanted(&reply.json()) {
            return reply.json();
        }
        assert!(Instant::now() < deadline, "{path} is not as wanted: {}", reply.json_or_null());
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A line of a metric of a flow schema.
pub fn gauge(what: &str, schema: &str, level: &str, value: usize) -> String {
    format!(
        "apiserver_flowcontrol_{what}{{flow_schema=\"{schema}\",priority_level=\"{level}\"}} {value}"
    )
}

/// A webhook for new ConfigMaps that is reached and does not answer until it is dropped; then they are written without it.
async fn silent_webhook(server: &TestServer) -> TcpListener {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}/", listener.local_addr().expect("bound"));
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]});
    let webhook = json!({"name": "a.b.c", "clientConfig": {"url": url}, "rules": [rule], "failurePolicy": "Ignore",
        "timeoutSeconds": 30, "sideEffects": "None", "admissionReviewVersions": ["v1"]});
    let object = json!({"metadata": {"name": "silent"}, "webhooks": [webhook]});
    server.post(MUTATING, object.to_string()).await.expect(201);
    listener
}

#[tokio::test]
async fn a_user_that_floods_waits_and_is_refused_while_others_are_served() {
    let server = &small_server(kubernetes()).await;
    server.post(LEVELS, level("slow").to_string()).await.expect(201);
    server.post(SCHEMAS, schema("users", "slow", &["jane", "joe"]).to_string()).await.expect(201);
    let slow = [
        uid(server, &format!("{SCHEMAS}/users")).await,
        uid(server, &format!("{LEVELS}/slow")).await,
    ];
    // A webhook that does not answer holds her write, and with it the seat of the level.
    let webhook = silent_webhook(server).await;
    let first = async {
        let request = Request::post(MAPS).header("host", "test").header("impersonate-user", "jane");
        let request = request.header("content-type", "application/json");
        let body = Full::from(r#"{"metadata":{"name":"janes"}}"#);
        server.send(request.body(body).expect("a request")).await
    };
    let executing = gauge("current_executing_requests", "users", "slow", 1);
    let waiting = async {
        tokio::join!(
            first,
            async {
                measured(server, &executing).await;
                get_as(server, "jane", MAPS).await
            },
            async {
                measured(server, &gauge("current_inqueue_requests", "users", "slow", 1)).await;
                get_as(server, "jane", MAPS).await
            },
            async {
                measured(server, &gauge("current_inqueue_requests", "users", "slow", 2)).await;
                // Both of her queues are full.
                let refused = get_as(server, "jane", MAPS).await;
                assert_eq!(taken_by(&refused), slow);
                assert_eq!(refused.headers.get("retry-after").expect("a time"), "1");
                let status = refused.expect(429);
                assert_eq!(status["reason"], "TooManyRequests");
                assert_eq!(status["message"], "Too many requests, please try again later.");
                get_as(server, "joe", MAPS).await
            },
            async {
                measured(server, &gauge("current_inqueue_requests", "users", "slow", 3)).await;
                // Administrators, and users of other levels, do not wait.
                let admin = server.get(MAPS).await;
                admin.expect(200);
                assert_eq!(taken_by(&admin)[0], uid(server, &format!("{SCHEMAS}/exempt")).await);
                let other = get_as(server, "mary", MAPS).await;
                other.expect(200);
                assert_eq!(
                    taken_by(&other)[0],
                    uid(server, &format!("{SCHEMAS}/global-default")).await
                );
                drop(webhook);
            },
        )
    };
    let (first, second, third, joes, ()) = waiting.await;
    assert_eq!((first.code(), taken_by(&first)), (201, slow.each_ref().map(String::as_str)));
    for served in [second, third, joes] {
        served.expect(200);
        assert_eq!(taken_by(&served), slow);
    }
    measured(server, &gauge("dispatched_requests_total", "users", "slow", 4)).await;
    measured(server, "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"users\",priority_level=\"slow\",reason=\"queue-full\"} 1").await;
    measured(server, "apiserver_flowcontrol_request_concurrency_limit{priority_level=\"slow\"} 1")
        .await;
}

#[tokio::test]
async fn a_user_has_a_quarter_of_all_writes_whatever_seats_there_are() {
    let sharing = RequestSharing::Fair;
    let request_limits = RequestLimits { reading: 400, mutating: 4, sharing };
    let server =
        &TestServer::with(Config { request_limits, ..Config::for_tests(kubernetes()) }).await;
    let _first = post_without_body(server, "jane", 1).await;
    let executing =
        |count| gauge("current_executing_requests", "global-default", "global-default", count);
    measured(server, &executing(0)).await;
    let refused = post_as(server, "jane").await;
    assert_eq!(refused.headers.get("retry-after").expect("a time"), "1");
    refused.expect(429);
    assert!(!taken_by(&refused)[0].is_empty(), "it had a seat");
    get_as(server, "jane", MAPS).await.expect(200);
    post_as(server, "joe").await.expect(201);
}

#[tokio::test]
async fn a_body_that_is_late_takes_no_seat() {
    let sharing = RequestSharing::Fair;
    // One seat in the level, and two requests of a user.
    let request_limits = RequestLimits { reading: 0, mutating: 8, sharing };
    let server =
        &TestServer::with(Config { request_limits, ..Config::for_tests(kubernetes()) }).await;
    measured(
        server,
        "apiserver_flowcontrol_request_concurrency_limit{priority_level=\"global-default\"} 1",
    )
    .await;
    let mut late = post_without_body(server, "jane", 1).await;
    post_as(server, "joe").await.expect(201);
    late.write_all(b"{\"metadata\":{\"generateName\":\"b-\"}}").await.expect("written");
    let mut begin = [0; 12];
    late.read_exact(&mut begin).await.expect("answered");
    assert_eq!(String::from_utf8_lossy(&begin), "HTTP/1.1 201");
    // Nor do the users who have them keep others out: each of four has its quarter of the eight places.
    let mut held = Vec::new();
    for (at, user) in ["a", "b", "c", "d"].iter().cycle().take(8).enumerate() {
        held.push(post_without_body(server, user, at + 4).await);
    }
    post_as(server, "a").await.expect(429);
    post_as(server, "joe").await.expect(201);
}

async fn post_as(server: &TestServer, user: &str) -> Reply {
    let request = Request::post(MAPS).header("host", "test").header("impersonate-user", user);
    let body = json!({"metadata": {"generateName": "a-"}}).to_string();
    let request = request.header("content-type", "application/json");
    server.send(request.body(Full::from(body)).expect("a request")).await
}

/// A request that has had its seat, as one of this many, and whose 34 bytes of body do not come.
async fn post_without_body(
    server: &TestServer,
    user: &str,
    dispatched: usize,
) -> TlsStream<TcpStream> {
    let mut stream = server.tls_http1().await;
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nhost: a\r\nimpersonate-user: {user}\r\ncontent-type: application/json\r\ncontent-length: 34\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("written");
    let served = gauge("dispatched_requests_total", "global-default", "global-default", dispatched);
    measured(server, &served).await;
    stream
}

#[tokio::test]
async fn a_watch_needs_a_seat_only_to_begin() {
    let server = small_server(kubernetes()).await;
    server.post(LEVELS, level("slow").to_string()).await.expect(201);
    server.post(SCHEMAS, schema("users", "slow", &["jane"]).to_string()).await.expect(201);
    let watch = Request::get(format!("{MAPS}?watch=1"))
        .header("host", "test")
        .header("impersonate-user", "jane");
    let opened = server.open(watch.body(Full::default()).expect("a request")).await;
    let wanted = uid(&server, &format!("{SCHEMAS}/users")).await;
    assert_eq!(opened.headers()["x-kubernetes-pf-flowschema-uid"], wanted);
    get_as(&server, "jane", MAPS).await.expect(200);
    measured(&server, &gauge("current_executing_requests", "users", "slow", 0)).await;
    drop(opened);
    // A log is a stream without a seat, whoever asks.
    let log = get_as(&server, "jane", "/api/v1/namespaces/default/pods/none/log").await;
    assert_eq!((log.code(), taken_by(&log)), (404, ["", ""]));
}

#[tokio::test]
async fn a_schema_counts_from_its_creation_to_its_deletion() {
    let server = TestServer::start().await;
    let default = [
        uid(&server, &format!("{SCHEMAS}/global-default")).await,
        uid(&server, &format!("{LEVELS}/global-default")).await,
    ];
    assert_eq!(taken_by(&get_as(&server, "jane", MAPS).await), default);
    let made = server.post(SCHEMAS, schema("janes", "workload-high", &["jane"]).to_string()).await;
    let high = uid(&server, &format!("{LEVELS}/workload-high")).await;
    let own = made.expect(201)["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let taken = get_as(&server, "jane", "/version").await;
    assert_eq!(taken_by(&taken), [own.as_str(), high.as_str()]);
    assert_eq!(taken_by(&get_as(&server, "joe", MAPS).await), default);
    // A change of its level counts as well.
    let path = format!("{SCHEMAS}/janes");
    let changed = r#"{"spec":{"priorityLevelConfiguration":{"name":"none"}}}"#;
    server.merge_patch(&path, changed).await.expect(200);
    assert_eq!(taken_by(&get_as(&server, "jane", MAPS).await), default, "its level is missing");
    let dangling = |status: &'static str| {
        move |object: &Value| object["status"]["conditions"][0]["status"] == status
    };
    let object = becomes(&server, &path, dangling("True")).await;
    assert_eq!(
        object["status"]["conditions"][0]["message"],
        "This FlowSchema references the PriorityLevelConfiguration object named \"none\" but there is no such object"
    );
    server.post(LEVELS, level("none").to_string()).await.expect(201);
    becomes(&server, &path, dangling("False")).await;
    assert_eq!(taken_by(&get_as(&server, "jane", MAPS).await)[0], own);
    server.delete(&path).await.expect(200);
    assert_eq!(taken_by(&get_as(&server, "jane", MAPS).await), default);
    // Refused requests are named, too.
    let missing = get_as(&server, "jane", &format!("{MAPS}/none")).await;
    assert_eq!((missing.code(), taken_by(&missing)), (404, default.each_ref().map(String::as_str)));
}

#[tokio::test]
async fn built_in_objects_come_back_and_suggested_ones_may_be_taken_over() {
    let server = TestServer::start().await;
    for (list, count) in [(SCHEMAS, 12), (LEVELS, 8)] {
        let items = server.get(list).await.expect(200)["items"].clone();
        let items = items.as_array().expect("a list");
        assert_eq!(items.len(), count);
        for item in items {
            let said = &item["metadata"]["annotations"]["apf.kubernetes.io/autoupdate-spec"];
            assert_eq!(said, "true", "{item}");
            let is_found = item["status"]["conditions"][0]["reason"] == "Found";
            assert!(is_found || list == LEVELS, "{item}");
        }
    }
    for path in [
        format!("{SCHEMAS}/exempt"),
        format!("{SCHEMAS}/catch-all"),
        format!("{LEVELS}/exempt"),
        format!("{LEVELS}/catch-all"),
    ] {
        let before = uid(&server, &path).await;
        server.delete(&path).await.expect(200);
        server.get(MAPS).await.expect(200);
        becomes(&server, &path, |object| object["metadata"]["uid"] != before.as_str()).await;
    }
    let six = r#"{"spec":{"limited":{"assuredConcurrencyShares":6}}}"#;
    let refused = server.merge_patch(&format!("{LEVELS}/catch-all"), six).await;
    let message = refused.expect(422)["message"].to_string();
    assert!(message.contains("spec of 'catch-all' must equal the fixed value"), "{message}");
    // The spec of a suggested one is kept, until its annotation says that it is an administrator's.
    let low = format!("{LEVELS}/workload-low");
    let shares = |wanted: i64| {
        move |object: &Value| object["spec"]["limited"]["assuredConcurrencyShares"] == wanted
    };
    let seven = json!({"spec": {"limited": {"assuredConcurrencyShares": 7}}});
    server.merge_patch(&low, &seven.to_string()).await.expect(200);
    becomes(&server, &low, shares(100)).await;
    let mut own = seven;
    own["metadata"] = json!({"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}});
    server.merge_patch(&low, &own.to_string()).await.expect(200);
    let probes = format!("{SCHEMAS}/probes");
    server.delete(&probes).await.expect(200);
    becomes(&server, &probes, |_| true).await;
    assert!(shares(7)(&server.get(&low).await.expect(200)));
    // What an earlier version had and this one has not goes.
    let old = json!({"metadata": {"name": "old", "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}}, "spec": level("old")["spec"]});
    server.post(LEVELS, old.to_string()).await.expect(201);
    while server.get(&format!("{LEVELS}/old")).await.code() != 404 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn another_profile_has_headers_of_its_own() {
    let server = TestServer::with(Config::for_tests(orch())).await;
    let list = SCHEMAS.replace("k8s.io", "orch.io");
    let reply = server.get(&list).await;
    let exempt = uid(&server, &format!("{list}/exempt")).await;
    assert_eq!(reply.headers["x-orch-pf-flowschema-uid"], exempt);
    assert!(reply.headers.get("x-kubernetes-pf-flowschema-uid").is_none());
    let manager = server.get(&format!("{list}/orch-controller-manager")).await.expect(200);
    assert_eq!(
        manager["spec"]["rules"][0]["subjects"][0]["user"]["name"],
        "system:orch-controller-manager"
    );
}

#[tokio::test]
async fn without_fairness_objects_are_only_stored() {
    let sharing = RequestSharing::Plain;
    let request_limits = RequestLimits { reading: 400, mutating: 200, sharing };
    let server =
        TestServer::with(Config { request_limits, ..Config::for_tests(kubernetes()) }).await;
    let reply = server.get(SCHEMAS).await;
    assert_eq!(reply.expect(200)["items"], json!([]));
    assert_eq!(taken_by(&reply), ["", ""]);
    server.post(SCHEMAS, schema("s", "none", &["jane"]).to_string()).await.expect(201);
    assert_eq!(taken_by(&get_as(&server, "jane", MAPS).await), ["", ""]);
}

#[tokio::test]
async fn tables_show_what_kubectl_prints() {
    let server = TestServer::start().await;
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let cells = async |path: String| {
        let mut row = server.accept(&path, table).await.expect(200)["rows"][0]["cells"].clone();
        row.as_array_mut().expect("cells").retain(|cell| {
            !cell.as_str().is_some_and(|text| text.ends_with('s') && text.len() < 4)
        });
        row
    };
    assert_eq!(
        cells(format!("{SCHEMAS}/system-nodes")).await,
        json!(["system-nodes", "system", 500, "ByUser", "False"])
    );
    assert_eq!(
        cells(format!("{LEVELS}/workload-high")).await,
        json!(["workload-high", "Limited", 40, 128, 6, 50])
    );
    assert_eq!(
        cells(format!("{LEVELS}/exempt")).await,
        json!(["exempt", "Exempt", "<none>", "<none>", "<none>", "<none>"])
    );
}
