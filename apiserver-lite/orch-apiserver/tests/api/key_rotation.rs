//! Keys of service account tokens are replaced while the server runs and clients use their tokens; what is published of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Request;
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{ServiceAccounts, TokenExtension, TokenLookup};
use rcgen::KeyPair;
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, kubernetes, reply};

const RSA: &str = include_str!("../../../token/testdata/rsa.key");
const RSA_PUBLIC: &str = include_str!("../../../token/testdata/rsa.pub");
const RSA_ID: &str = "onxEb40ntZ4MJ9klzZaxDv1bYIn_myv0AyNjcWsM2UA";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
/// Longest wait for a file to be noticed, reached only on failure.
pub const NOTICED_MAX: Duration = Duration::from_secs(60);

/// Replaces a file in one step.
pub fn replace(path: &Path, content: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, content).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn server_with(change: impl FnOnce(&mut ServiceAccounts)) -> TestServer {
    let mut config = Config::for_tests(kubernetes());
    change(&mut config.service_accounts);
    let server = TestServer::with(config).await;
    server.post(ACCOUNTS, r#"{"metadata":{"name":"default"}}"#).await.expect(201);
    server
}

/// Requests a token with this spec; gives the answer.
async fn request_token(server: &TestServer, spec: Value) -> Reply {
    let body = json!({"spec": spec}).to_string();
    server.post(&format!("{ACCOUNTS}/default/token"), body).await
}

async fn token(server: &TestServer) -> String {
    let made = request_token(server, json!({})).await.expect(201);
    made["status"]["token"].as_str().unwrap().to_owned()
}

/// Header (0) or claims (1) of a token.
fn part(token: &str, nth: usize) -> Value {
    let part = URL_SAFE_NO_PAD.decode(token.split('.').nth(nth).unwrap()).unwrap();
    serde_json::from_slice(&part).unwrap()
}

async fn code(server: &TestServer, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let path = "/api/v1/namespaces/default";
    server.without_certificate(http::Method::GET, path, &headers, "").await.code()
}

async fn published(server: &TestServer) -> Vec<String> {
    let set = server.get("/openid/v1/jwks").await.expect(200);
    let keys = set["keys"].as_array().unwrap().clone();
    keys.iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// Waits until these keys are published.
async fn wait_for(server: &TestServer, expected: &[&str]) {
    let deadline = Instant::now() + NOTICED_MAX;
    loop {
        let found = published(server).await;
        if found == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{found:?}, expected {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Clients that use one token without a pause and count the answers that are not 200 until the token's key is removed.
struct Load {
    removed: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<Vec<u16>>>,
}

impl Load {
    async fn start(server: &TestServer, token: &str) -> Self {
        let (removed, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut connection = server.connect(false).await;
            let (removed, served) = (removed.clone(), served.clone());
            let bearer = format!("Bearer {token}");
            clients.push(tokio::spawn(async move {
                let mut refused = Vec::new();
                while !removed.load(Ordering::SeqCst) {
                    let request = Request::get("/api/v1/namespaces/default")
                        .header("host", "t")
                        .header("authorization", &bearer)
                        .body(Full::default())
                        .unwrap();
                    connection.ready().await.unwrap();
                    let code = reply(connection.send_request(request).await.unwrap()).await.code();
                    served.fetch_add(1, Ordering::SeqCst);
                    if code != 200 {
                        refused.push(code);
                    }
                }
                refused
            }));
        }
        Self { removed, served, clients }
    }

    /// Waits until this many more requests were answered.
    async fn some(&self) {
        let until = self.served.load(Ordering::SeqCst) + 100;
        while self.served.load(Ordering::SeqCst) < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(self) {
        self.removed.store(true, Ordering::SeqCst);
        for client in self.clients {
            assert_eq!(client.await.unwrap(), [0_u16; 0], "answers before the key was removed");
        }
    }
}

/// From an RSA key to an ECDSA key, with nothing refused until the last step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_replaced_under_load_without_a_refused_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    let (signing, first, second) = (path("sign.key"), path("a.pub"), path("b.pub"));
    let new = KeyPair::generate().unwrap();
    std::fs::write(&signing, RSA).unwrap();
    for file in [&first, &second] {
        std::fs::write(file, RSA_PUBLIC).unwrap();
    }
    let key_files = vec![first.clone(), second.clone()];
    let server = server_with(|of| {
        of.signing_key_file = Some(signing.clone());
        of.key_files = key_files;
    })
    .await;
    assert_eq!(published(&server).await, [RSA_ID], "a key in several files counts once");
    let old_token = token(&server).await;
    assert_eq!(part(&old_token, 0), json!({"alg": "RS256", "kid": RSA_ID}));
    let load = Load::start(&server, &old_token).await;
    load.some().await;

    // The new key verifies, and is published, before it signs.
    replace(&second, &new.public_key_pem());
    let new_id = key_id(&new);
    wait_for(&server, &[RSA_ID, &new_id]).await;
    assert_eq!(part(&token(&server).await, 0)["kid"], RSA_ID);
    load.some().await;

    replace(&signing, &new.serialize_pem());
    let deadline = Instant::now() + NOTICED_MAX;
    let new_token = loop {
        let made = token(&server).await;
        assert_eq!(code(&server, &made).await, 200, "each new token is good at once");
        if part(&made, 0)["kid"] == new_id.as_str() {
            break made;
        }
        assert!(Instant::now() < deadline, "the old key signs still");
    };
    assert_eq!(part(&new_token, 0)["alg"], "ES256");
    load.some().await;

    load.end().await;
    replace(&first, &new.public_key_pem());
    wait_for(&server, &[&new_id]).await;
    assert_eq!(code(&server, &old_token).await, 401);
    assert_eq!(code(&server, &new_token).await, 200);
}

/// The id that Kubernetes computes: SHA-256 of the public key's DER, base64url.
fn key_id(key: &KeyPair) -> String {
    use rcgen::PublicKeyData as _;
    let digest = ring::digest::digest(&ring::digest::SHA256, &key.subject_public_key_info());
    URL_SAFE_NO_PAD.encode(digest)
}

#[tokio::test]
async fn discovery_shows_the_first_issuer_and_all_keys_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rsa.pub");
    std::fs::write(&file, RSA_PUBLIC).unwrap();
    let server = server_with(|of| {
        of.key_files = vec![file];
        of.issuers = vec!["https://new.example".to_owned(), "old".to_owned()];
        of.jwks_uri = Some("https://keys.example/all".to_owned());
    })
    .await;
    let answer = server.get("/.well-known/openid-configuration").await;
    assert_eq!(answer.headers["cache-control"], "public, max-age=3600");
    assert_eq!(
        answer.expect(200),
        json!({
            "issuer": "https://new.example",
            "jwks_uri": "https://keys.example/all",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256", "RS256"],
        })
    );
    let answer = server.get("/openid/v1/jwks").await;
    assert_eq!(answer.headers["content-type"], "application/jwk-set+json");
    let keys = answer.expect(200)["keys"].clone();
    assert_eq!(keys.as_array().map(Vec::len), Some(2), "{keys}");
    assert_eq!((&keys[0]["kty"], &keys[0]["kid"]), (&json!("RSA"), &json!(RSA_ID)));
    assert_eq!(keys[1]["kty"], "EC");
    assert!(!keys.to_string().contains("\"d\""), "{keys}");

    // An issuer that is no URL has no place for a document.
    let plain = server_with(|of| of.issuers = vec!["api".to_owned()]).await;
    assert_eq!(plain.get("/openid/v1/jwks").await.code(), 404);
    assert_eq!(plain.get("/.well-known/openid-configuration").await.code(), 404);
}

/// A new issuer is written into tokens as soon as it is first; tokens of the old one are good as long as it is named.
#[tokio::test]
async fn tokens_of_every_named_issuer_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("sign.key");
    std::fs::write(&key, RSA).unwrap();
    let with = async |issuers: &[&str]| {
        server_with(|of| {
            of.signing_key_file = Some(key.clone());
            of.issuers = issuers.iter().map(|issuer| (*issuer).to_owned()).collect();
            of.audiences = vec!["api".to_owned()];
            // The accounts of the servers differ by uid only.
            of.lookup = orch_apiserver::config::TokenLookup::Skipped;
        })
        .await
    };
    let before = with(&["https://old"]).await;
    let old = token(&before).await;
    let both = with(&["https://new", "https://old"]).await;
    let new = token(&both).await;
    assert_eq!(part(&new, 1)["iss"], "https://new");
    let after = with(&["https://new"]).await;
    for (server, token, expected) in [
        (&before, &new, 401),
        (&both, &old, 200),
        (&both, &new, 200),
        (&after, &old, 401),
        (&after, &new, 200),
    ] {
        assert_eq!(code(server, token).await, expected, "{}", part(token, 1));
    }
    let issuers = vec!["https://a".to_owned(), "https://a".to_owned()];
    let mut config = Config::for_tests(kubernetes());
    config.service_accounts.issuers = issuers;
    let refused = orch_apiserver::build(config).await.map(|_| ()).unwrap_err();
    assert!(refused.is_usage());
    assert_eq!(refused.to_string(), r#"--service-account-issuer "https://a" is already specified"#);
}

#[tokio::test]
async fn audiences_of_this_server_are_those_of_the_flag() {
    let server = server_with(|of| of.audiences = vec!["api".to_owned(), "internal".to_owned()]);
    let server = server.await;
    let made = request_token(&server, json!({})).await.expect(201);
    assert_eq!(made["spec"]["audiences"], json!(["api", "internal"]));
    assert_eq!(code(&server, made["status"]["token"].as_str().unwrap()).await, 200);
    for (audiences, expected) in [
        (json!(["internal"]), 200),
        (json!(["vault", "api"]), 200),
        (json!(["vault"]), 401),
        (json!(["https://kubernetes.default.svc.cluster.local"]), 401),
    ] {
        let made = request_token(&server, json!({"audiences": audiences})).await.expect(201);
        let token = made["status"]["token"].as_str().unwrap();
        assert_eq!(code(&server, token).await, expected, "{audiences}");
    }
}

#[tokio::test]
async fn token_lifetimes_are_bounded_with_a_warning() {
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let server = server_with(|of| of.expiration_max = Some(hours(2))).await;
    let asked = request_token(&server, json!({"expirationSeconds": 86_400})).await;
    let warning = asked.headers["warning"].to_str().unwrap().to_owned();
    assert!(
        warning.contains("requested expiration of 86400 seconds shortened to 7200 seconds"),
        "{warning}"
    );
    let made = asked.expect(201);
    assert_eq!(made["spec"]["expirationSeconds"], 7200);
    let claims = part(made["status"]["token"].as_str().unwrap(), 1);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7200);
    let short = request_token(&server, json!({"expirationSeconds": 3600})).await;
    assert!(short.headers.get("warning").is_none());
    request_token(&server, json!({"expirationSeconds": 599})).await.expect(422);
}

const YEAR: i64 = 365 * 24 * 60 * 60;

/// As Kubernetes: only a token as a pod's volume asks for it, and only for this server. The client is told of the hour.
#[tokio::test]
async fn only_a_pod_s_token_for_this_server_is_extended() {
    for (extension, extended) in [(TokenExtension::Extended, YEAR), (TokenExtension::AsAsked, 3607)]
    {
        let server = server_with(|of| {
            of.extension = extension;
            of.expiration_max = Some(Duration::from_secs(7200));
        })
        .await;
        let container = json!({"name": "c", "image": "i"});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}});
        server.post("/api/v1/namespaces/default/pods", pod.to_string()).await.expect(201);
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "p"});
        for (spec, lifetime) in [
            (json!({"expirationSeconds": 3607, "boundObjectRef": bound}), extended),
            (json!({"expirationSeconds": 3608, "boundObjectRef": bound}), 3608),
            (json!({"expirationSeconds": 3607}), 3607),
            (
                json!({"expirationSeconds": 3607, "boundObjectRef": bound, "audiences": ["vault"]}),
                3607,
            ),
        ] {
            let made = request_token(&server, spec.clone()).await.expect(201);
            let claims = part(made["status"]["token"].as_str().unwrap(), 1);
            let issued = claims["iat"].as_i64().unwrap();
            assert_eq!(claims["exp"].as_i64().unwrap() - issued, lifetime, "{spec}");
            let warned = &claims["kubernetes.io"]["warnafter"];
            let expected = if lifetime == YEAR { json!(issued + 3607) } else { Value::Null };
            assert_eq!(*warned, expected, "{spec}");
            assert_eq!(made["spec"]["expirationSeconds"], spec["expirationSeconds"]);
        }
    }
}

#[tokio::test]
async fn a_token_outlives_its_account_only_where_accounts_are_not_looked_up() {
    for (lookup, expected) in [(TokenLookup::Checked, 401), (TokenLookup::Skipped, 200)] {
        let server = server_with(|accounts| accounts.lookup = lookup).await;
        let token = token(&server).await;
        assert_eq!(code(&server, &token).await, 200);
        server.delete(&format!("{ACCOUNTS}/default")).await.expect(200);
        assert_eq!(code(&server, &token).await, expected, "{lookup:?}");
    }
}
