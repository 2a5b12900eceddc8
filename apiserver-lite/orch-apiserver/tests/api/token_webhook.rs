//! A service that knows tokens, beside the other authenticators of a whole server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver_auth::{ReviewVersion, TokenWebhookSettings};
use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::AuthorizationMode;
use proto_client::testing::{StubServer, json_response};
use serde_json::{Value, json};

use crate::support::{TestServer, kubernetes};

/// The files of a server, with the static token `secret` of `alice`.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokens"), "secret,alice,u1\n").unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A server that denies everything but administrators, and asks the service at `url` about tokens.
    async fn server(&self, url: &str) -> TestServer {
        let config = json!({
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        });
        std::fs::write(self.path("webhook.conf"), config.to_string()).unwrap();
        let server = TestServer::with(Config {
            authorization: vec![AuthorizationMode::AlwaysDeny],
            token_auth_file: Some(self.path("tokens")),
            token_webhook: Some(TokenWebhookSettings {
                config_file: self.path("webhook.conf"),
                version: ReviewVersion::V1,
                cache_ttl: Duration::from_secs(120),
            }),
            ..Config::for_tests(kubernetes())
        })
        .await;
        let account = r#"{"metadata":{"name":"default"}}"#;
        server.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
        server
    }
}

/// A token of the service account `default`.
async fn account_token(server: &TestServer) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let made = server.post(path, "{}").await.expect(201);
    made["status"]["token"].as_str().unwrap().to_owned()
}

/// The user in the denial of a request with this token, or the whole 401.
async fn user(server: &TestServer, token: &str) -> Result<String, Value> {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let answer = server.without_certificate(Method::GET, "/api/v1/pods", &headers, "").await;
    match answer.code() {
        403 => Ok(answer.json()["message"].as_str().unwrap().split('"').nth(1).unwrap().to_owned()),
        _ => Err(answer.expect(401)),
    }
}

async fn review(server: &TestServer, token: &str) -> Value {
    let body = json!({"spec": {"token": token}}).to_string();
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    server.post(path, body).await.expect(201)["status"].clone()
}

/// The answer for every token that is no good, whatever was wrong with it.
fn unauthorized() -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    })
}

#[tokio::test]
async fn the_service_is_asked_about_tokens_that_no_other_authenticator_knows() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let service = StubServer::start(move |request| {
        let review: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
        let status = match token.as_str() {
            "known" => json!({
                "authenticated": true,
                "user": {"username": "wendy", "uid": "w1", "groups": ["ops"]},
            }),
            "broken" => json!({"error": "the directory is down"}),
            "unknown" => json!({"authenticated": false}),
            // It would take the others' tokens for its own.
            _ => json!({"authenticated": true, "user": {"username": "mallory"}}),
        };
        seen.lock().unwrap().push(token);
        let kind = (&review["apiVersion"], &review["kind"]);
        Some(json_response(200, &json!({"apiVersion": kind.0, "kind": kind.1, "status": status})))
    })
    .await;
    let files = Files::new();
    let server = files.server(&format!("http://{}/tokens", service.address)).await;
    let account = account_token(&server).await;
    assert_eq!(user(&server, "secret").await.unwrap(), "alice");
    let name = "system:serviceaccount:default:default";
    assert_eq!(user(&server, &account).await.unwrap(), name);
    assert_eq!(asked.lock().unwrap().len(), 0, "others' tokens are not shown to the service");
    assert_eq!(user(&server, "known").await.unwrap(), "wendy");
    assert_eq!(user(&server, "known").await.unwrap(), "wendy");
    for token in ["unknown", "broken"] {
        assert_eq!(user(&server, token).await, Err(unauthorized()), "{token}");
        assert_ne!(review(&server, token).await["authenticated"], true, "{token}");
    }
    let known = review(&server, "known").await;
    assert_eq!(known["user"]["username"], "wendy");
    assert_eq!(known["user"]["groups"], json!(["ops", "system:authenticated"]));
    // A failure is no answer that could be remembered.
    assert_eq!(*asked.lock().unwrap(), ["known", "unknown", "broken", "broken"]);
}

#[tokio::test]
async fn a_dead_service_leaves_good_tokens_good_and_says_nothing() {
    let files = Files::new();
    let server = files.server("http://127.0.0.1:1/").await;
    let account = account_token(&server).await;
    assert_eq!(user(&server, "secret").await.unwrap(), "alice");
    let name = "system:serviceaccount:default:default";
    assert_eq!(user(&server, &account).await.unwrap(), name);
    assert_eq!(user(&server, "other").await, Err(unauthorized()));
    assert_eq!(review(&server, "other").await["authenticated"], Value::Null);
    assert_eq!(review(&server, "secret").await["authenticated"], true);
    assert_eq!(server.get("/api/v1/namespaces/default").await.code(), 200, "by certificate");
}
