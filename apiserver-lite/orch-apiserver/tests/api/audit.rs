//! The audit log: what it says of requests, by level, and where it goes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apiserver_audit::{AuditSettings, BatchSettings, LogPath, LogSettings, Mode, WebhookSettings};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{Anonymous, AuthorizationMode};
use proto_client::testing::{StubServer, json_response};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::{Reply, TestServer, kubernetes};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// A server that writes an audit log, and the log.
struct Audited {
    server: TestServer,
    dir: tempfile::TempDir,
}

impl Audited {
    async fn start(rules: Value) -> Self {
        Self::with(rules, Config::for_tests(kubernetes())).await
    }

    async fn with(rules: Value, config: Config) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let audit = Some(settings(dir.path(), &json!({"rules": rules})));
        let server = TestServer::with(Config { audit, ..config }).await;
        Self { server, dir }
    }

    /// The whole lines: the server may be writing another.
    fn text(&self) -> String {
        let mut text = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap();
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        text
    }

    /// The events of the request with this identifier.
    fn events(&self, id: &str) -> Vec<Value> {
        let events = self.text();
        let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["auditID"] == id).collect()
    }

    /// The last event of a request that is sent with this identifier as a header, and others.
    async fn last_event(
        &self,
        id: &str,
        (method, path): (Method, &str),
        headers: &[(&str, &str)],
        body: &str,
    ) -> (Reply, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("host", "t").header("audit-id", id);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
        let reply = self.server.send(request).await;
        let event = self.events(id).pop().unwrap_or_default();
        (reply, event)
    }
}

fn settings(dir: &Path, policy: &Value) -> AuditSettings {
    let mut policy = policy.clone();
    policy["apiVersion"] = "audit.k8s.io/v1".into();
    policy["kind"] = "Policy".into();
    let policy_file = dir.join("policy.json");
    std::fs::write(&policy_file, policy.to_string()).unwrap();
    let log = LogSettings {
        path: LogPath::File(dir.join("audit.log")),
        max_age_days: 0,
        max_backups: 0,
        max_size_mib: 0,
        mode: Mode::Blocking,
    };
    AuditSettings { policy_file, log: Some(log), webhook: None }
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn levels_say_what_is_recorded() {
    let audited = Audited::start(json!([
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "Request", "verbs": ["patch", "delete"]},
        {"level": "RequestResponse", "resources": [{"group": "", "resources": ["configmaps"]}],
         "omitManagedFields": true, "omitStages": ["RequestReceived"]},
    ]))
    .await;
    let secret = r#"{"metadata": {"name": "s"}, "stringData": {"p": "hidden-word"}}"#;
    let (_, event) = audited.last_event("s", (Method::POST, SECRETS), &[JSON], secret).await;
    let reference =
        json!({"resource": "secrets", "namespace": "default", "name": "s", "apiVersion": "v1"});
    assert_eq!((&event["level"], &event["objectRef"]), (&json!("Metadata"), &reference));
    assert_eq!(event["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!((&event["requestObject"], &event["responseObject"]), (&Value::Null, &Value::Null));
    let stages: Vec<Value> = audited.events("s").iter().map(|e| e["stage"].clone()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    audited.last_event("l", (Method::GET, SECRETS), &[], "").await;
    assert!(!audited.text().contains("hidden-word") && !audited.text().contains("aGlkZGVu"));

    let map = r#"{"metadata": {"name": "m"}, "data": {"k": "v"}}"#;
    let (made, event) = audited.last_event("m", (Method::POST, MAPS), &[JSON], map).await;
    assert_eq!(event["requestObject"]["data"], json!({"k": "v"}));
    assert_eq!(event["requestObject"]["kind"], "ConfigMap");
    assert_eq!(event["responseObject"]["metadata"]["uid"], made.json()["metadata"]["uid"]);
    assert_eq!(event["responseObject"]["metadata"]["managedFields"], Value::Null);
    assert!(made.json()["metadata"]["managedFields"].is_array());
    assert_eq!(audited.events("m").len(), 1, "the first stage is omitted");
    let (_, event) = audited.last_event("ml", (Method::GET, MAPS), &[], "").await;
    assert_eq!(event["responseObject"]["items"][0]["data"], json!({"k": "v"}));
    let path = format!("{MAPS}/m");
    let merge = ("content-type", "application/merge-patch+json");
    let patch = r#"{"data":{"k":"w"}}"#;
    let (_, event) = audited.last_event("p", (Method::PATCH, path.as_str()), &[merge], patch).await;
    assert_eq!(
        (&event["requestObject"], event["responseObject"].is_null()),
        (&json!({"data": {"k": "w"}}), true)
    );
    let options = r#"{"gracePeriodSeconds": 0}"#;
    let (_, event) =
        audited.last_event("d", (Method::DELETE, path.as_str()), &[JSON], options).await;
    assert_eq!(event["requestObject"]["gracePeriodSeconds"], 0);
    assert_eq!(event["requestObject"]["kind"], "DeleteOptions");
    assert_eq!(event["responseStatus"]["status"], "Success");
    assert_eq!(event["responseStatus"]["details"]["name"], "m");
    // No rule matches.
    audited.last_event("n", (Method::GET, "/api/v1/nodes"), &[], "").await;
    assert_eq!(audited.events("n"), Vec::<Value>::new());
}

#[tokio::test]
async fn an_applied_object_is_recorded_as_json() {
    let audited = Audited::start(json!([{"level": "Request"}])).await;
    let apply = ("content-type", "application/apply-patch+yaml");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {k: v}\n";
    let path = format!("{MAPS}/m?fieldManager=me");
    let (_, event) = audited.last_event("a", (Method::PATCH, path.as_str()), &[apply], yaml).await;
    assert_eq!(event["requestObject"]["data"], json!({"k": "v"}));
    assert_eq!(event["requestURI"], path);
    let (_, event) = audited.last_event("x", (Method::POST, MAPS), &[JSON], "{").await;
    assert_eq!(
        (&event["requestObject"], &event["responseStatus"]["code"]),
        (&Value::Null, &json!(400))
    );
    assert_eq!(event["responseStatus"]["reason"], "BadRequest");
}

#[tokio::test]
async fn an_audit_event_has_the_users_and_the_decision() {
    let config =
        Config { authorization: vec![AuthorizationMode::Rbac], ..Config::for_tests(kubernetes()) };
    let audited = Audited::with(json!([{"level": "Metadata"}]), config).await;
    let headers = [
        ("user-agent", "test/1"),
        ("x-forwarded-for", "10.1.1.1, nonsense, 10.1.1.2"),
        ("impersonate-user", "jane"),
        ("impersonate-group", "dev"),
    ];
    let path = format!("{MAPS}?fieldSelector=metadata.name%3Dm");
    let (reply, event) = audited.last_event("f", (Method::GET, path.as_str()), &headers, "").await;
    assert_eq!(reply.code(), 403);
    assert!(event["user"]["groups"].as_array().unwrap().contains(&json!("system:masters")));
    assert_eq!(event["impersonatedUser"]["username"], "jane");
    assert_eq!(event["impersonatedUser"]["groups"], json!(["dev", "system:authenticated"]));
    assert_eq!(event["sourceIPs"], json!(["10.1.1.1", "10.1.1.2", "127.0.0.1"]));
    assert_eq!((&event["userAgent"], &event["verb"]), (&json!("test/1"), &json!("list")));
    assert_eq!(event["objectRef"]["name"], "m", "the only one that is selected");
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(event["responseStatus"]["message"], reply.json()["message"]);
    let (_, event) = audited.last_event("v", (Method::GET, "/version"), &[], "").await;
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!((&event["verb"], &event["objectRef"]), (&json!("get"), &Value::Null));
    let (_, event) = audited.last_event("h", (Method::GET, "/readyz"), &[], "").await;
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    let (reply, event) = audited.last_event("u", (Method::PUT, MAPS), &[], "").await;
    assert_eq!((reply.code(), &event["responseStatus"]["code"]), (405, &json!(405)));
}

#[tokio::test]
async fn refused_credentials_are_one_event_without_them() {
    let config = Config { anonymous: Anonymous::Refused, ..Config::for_tests(kubernetes()) };
    let audited = Audited::with(json!([{"level": "RequestResponse"}]), config).await;
    for (id, authorization, message) in [
        ("a", "Bearer hidden-word", "Authentication failed, attempted: bearer"),
        ("b", "Basic hidden-word", "Authentication failed, attempted: basic"),
        ("c", "", "Authentication failed, no credentials provided"),
    ] {
        let mut headers = vec![("audit-id", id)];
        headers.extend((!authorization.is_empty()).then_some(("authorization", authorization)));
        let refused = audited.server.without_certificate(Method::GET, MAPS, &headers, "").await;
        assert_eq!(refused.code(), 401);
        let events = audited.events(id);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["stage"], "ResponseStarted");
        assert_eq!(events[0]["user"], json!({}));
        let status = json!({"metadata": {}, "message": message, "code": 401});
        assert_eq!(events[0]["responseStatus"], status);
    }
    assert!(!audited.text().contains("hidden-word"));
}

#[tokio::test]
async fn a_watch_is_three_events() {
    let mut audited = Audited::start(json!([{"level": "RequestResponse"}])).await;
    let request = Request::get(format!("{MAPS}?watch=1")).header("host", "t");
    let request = request.header("audit-id", "w").body(Full::default()).unwrap();
    let response = audited.server.open(request).await;
    let stages = |audited: &Audited| -> Vec<String> {
        let events = audited.events("w");
        events.iter().map(|event| event["stage"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(stages(&audited), ["RequestReceived", "ResponseStarted"]);
    drop(response);
    // The server writes the last event at the latest when it stops.
    audited.server.begin_to_stop().await.unwrap();
    let ended = async {
        while stages(&audited).len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the last event");
    assert_eq!(stages(&audited)[2], "ResponseComplete");
    let events = audited.events("w");
    assert_eq!(events[2]["responseStatus"], json!({"metadata": {}, "code": 200}));
    assert_eq!(events[2]["responseObject"], Value::Null);
    assert_eq!(events[0]["requestReceivedTimestamp"], events[2]["requestReceivedTimestamp"]);
}

#[tokio::test]
async fn a_request_has_the_identifier_of_its_client_or_a_new_one() {
    let server = TestServer::start().await;
    let id = async |given: Option<&str>| {
        let mut request = Request::get("/version").header("host", "t");
        if let Some(given) = given {
            request = request.header("audit-id", given);
        }
        let reply = server.send(request.body(Full::default()).unwrap()).await;
        reply.headers["audit-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(id(Some("mine")).await, "mine");
    let long = "a".repeat(65);
    for refused in [None, Some(""), Some(long.as_str()), Some("a b")] {
        let new = id(refused).await;
        assert_eq!((new.len(), new.matches('-').count()), (36, 4), "{refused:?}: {new}");
    }
    assert_ne!(id(None).await, id(None).await);
}

#[tokio::test]
async fn pod_security_notes_what_it_audits() {
    let audited = Audited::start(json!([{"level": "Metadata"}])).await;
    let labels = json!({"pod-security.kubernetes.io/audit": "baseline"});
    let namespace = json!({"metadata": {"name": "noted", "labels": labels}});
    audited.server.post("/api/v1/namespaces", namespace.to_string()).await.expect(201);
    let account = r#"{"metadata": {"name": "default"}}"#;
    audited.server.post("/api/v1/namespaces/noted/serviceaccounts", account).await.expect(201);
    let spec = json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"metadata": {"name": "p"}, "spec": spec}).to_string();
    let path = "/api/v1/namespaces/noted/pods";
    let (made, event) = audited.last_event("p", (Method::POST, path), &[JSON], &pod).await;
    assert_eq!((made.code(), made.headers.get("warning")), (201, None));
    let annotations = &event["annotations"];
    assert_eq!(annotations["pod-security.kubernetes.io/enforce-policy"], "privileged:latest");
    assert_eq!(
        annotations["pod-security.kubernetes.io/audit-violations"],
        "would violate PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
    );
}

#[tokio::test]
async fn deprecated_versions_are_noted() {
    let audited = Audited::start(json!([{"level": "Metadata"}])).await;
    for (id, path, noted, removed) in [
        ("a", "/apis/storage.k8s.io/v1beta1/csistoragecapacities", json!("true"), json!("1.27")),
        ("b", "/apis/storage.k8s.io/v1/csistoragecapacities", Value::Null, Value::Null),
    ] {
        let (_, event) = audited.last_event(id, (Method::GET, path), &[], "").await;
        let annotations = &event["annotations"];
        assert_eq!(annotations["k8s.io/deprecated"], noted, "{path}");
        assert_eq!(annotations["k8s.io/removed-release"], removed, "{path}");
    }
}

#[tokio::test]
async fn a_faulty_policy_keeps_the_server_from_starting() {
    for (policy, told) in [
        (json!({"rules": [{"level": "All"}]}), "rules[0].level: Unsupported value: \"All\""),
        (json!({"rules": []}), "rules: Required value"),
        (json!({"rules": [{"level": "None", "user": ["a"]}]}), "rules[0].user: unknown field"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let audit = Some(settings(dir.path(), &policy));
        let config = Config { audit, ..Config::for_tests(kubernetes()) };
        let error = orch_apiserver::build(config).await.map(drop).unwrap_err();
        assert!(error.is_usage(), "{error}");
        let chain = proto_daemon::exit::chain(&error);
        assert!(chain.contains(told), "{chain}");
        assert!(!dir.path().join("audit.log").exists());
    }
}

/// A service that takes lists of events and gives them to the test; it fails the first one.
async fn webhook(dir: &Path) -> (PathBuf, mpsc::UnboundedReceiver<Value>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let has_failed = AtomicBool::new(false);
    let server = StubServer::start(move |request| {
        if !has_failed.swap(true, Ordering::Relaxed) {
            return Some(json_response(500, &json!({})));
        }
        let _ = sender.send(serde_json::from_slice(&request.body).unwrap());
        Some(json_response(200, &json!({})))
    });
    let url = format!("http://{}/events", server.await.address);
    (webhook_file(dir, &url), receiver)
}

/// The client configuration of a webhook at this URL.
fn webhook_file(dir: &Path, server: &str) -> PathBuf {
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    });
    let path = dir.join("webhook.conf");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Nothing is done that the log does not know of.
#[tokio::test]
async fn a_request_whose_first_event_is_not_stored_is_refused_if_the_mode_says_so() {
    for (mode, code) in [(Mode::BlockingStrict, 500), (Mode::Blocking, 201)] {
        let dir = tempfile::tempdir().unwrap();
        // Nobody listens there.
        let config_file = webhook_file(dir.path(), "http://127.0.0.1:1/");
        let initial_backoff = Duration::from_millis(1);
        let webhook = Some(WebhookSettings { config_file, initial_backoff, mode });
        let policy = json!({"rules": [{"level": "Metadata", "verbs": ["create"]}]});
        let audit = AuditSettings { log: None, webhook, ..settings(dir.path(), &policy) };
        let config = Config { audit: Some(audit), ..Config::for_tests(kubernetes()) };
        let server = TestServer::with(config).await;
        let made = server.post(MAPS, r#"{"metadata": {"name": "m"}}"#).await.expect(code);
        let refused = made["message"].as_str().unwrap_or_default();
        assert_eq!(refused.contains("failed to store audit event"), code == 500, "{made}");
        let found = server.get(&format!("{MAPS}/m")).await.code();
        assert_eq!(found, if code == 500 { 404 } else { 200 });
        let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
        let rejected = format!("apiserver_audit_requests_rejected_total {}", u8::from(code == 500));
        assert!(metrics.contains(&rejected), "{rejected}");
        server.stop().await;
    }
}

#[tokio::test]
async fn a_webhook_gets_lists_of_events_again_until_it_takes_them() {
    for batch in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (config_file, mut lists) = webhook(dir.path()).await;
        let max_wait = Duration::from_millis(1);
        let settings_of =
            BatchSettings { buffer_size: 100, max_size: 10, max_wait, throttle: None };
        let mode = if batch { Mode::Batch(settings_of) } else { Mode::BlockingStrict };
        let initial_backoff = Duration::from_millis(1);
        let webhook = Some(WebhookSettings { config_file, initial_backoff, mode });
        let policy = json!({"rules": [{"level": "Metadata", "verbs": ["create"]}]});
        let audit = AuditSettings { log: None, webhook, ..settings(dir.path(), &policy) };
        let config = Config { audit: Some(audit), ..Config::for_tests(kubernetes()) };
        let server = TestServer::with(config).await;
        server.post(MAPS, r#"{"metadata": {"name": "m"}}"#).await.expect(201);
        let mut stages = Vec::new();
        while stages.len() < 2 {
            let list = lists.recv().await.unwrap();
            assert_eq!(
                (&list["kind"], &list["apiVersion"]),
                (&json!("EventList"), &json!("audit.k8s.io/v1"))
            );
            let items = list["items"].as_array().unwrap();
            stages.extend(items.iter().map(|event| event["stage"].clone()));
        }
        assert_eq!(stages, ["RequestReceived", "ResponseComplete"], "batch: {batch}");
    }
}
