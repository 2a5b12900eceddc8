//! Tests of the process: killed by SIGKILL, started with invalid flags.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use apiserver_token::{SigningKey, jwt};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use hyper::client::conn::http1::SendRequest;
use serde_json::{Value, json};

use crate::support::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Longest wait for a start, reached only on failure.
const START_MAX: Duration = Duration::from_secs(120);

/// The process; killed when dropped.
pub struct Process(std::process::Child);

impl Process {
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn start(dir: &Path) -> (Process, Api) {
    start_with(dir, &[]).await
}

/// Starts the program with a data directory in `dir`.
pub async fn start_with(dir: &Path, flags: &[&str]) -> (Process, Api) {
    let kubeconfig = dir.join("client-config");
    let _ = std::fs::remove_file(&kubeconfig);
    let child = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0"])
        .args(flags)
        .arg(format!("--data-dir={}", dir.join("data").display()))
        .arg(format!("--write-kubeconfig={}", kubeconfig.display()))
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let process = Process(child);
    let deadline = Instant::now() + START_MAX;
    // The socket exists before the kubeconfig: connections wait in its queue.
    let text = loop {
        match std::fs::read_to_string(&kubeconfig) {
            Ok(text) => break text,
            Err(error) => assert!(Instant::now() < deadline, "no client configuration: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    (process, Api::new(&text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_time_it_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().expect("directory");
    let mut acknowledged: Vec<(String, u64)> = Vec::new();
    for round in 0..3 {
        let (mut process, api) = start(dir.path()).await;
        for (name, revision) in &acknowledged {
            let found = api.get(&format!("{MAPS}/{name}")).await.expect(200);
            assert_eq!(found["metadata"]["resourceVersion"], revision.to_string(), "{name}");
        }
        let written = Arc::new(AtomicUsize::new(0));
        let mut writers = Vec::new();
        let mut connections = Vec::new();
        // All before the first writes: then none connects to a server that is killed.
        for _ in 0..4 {
            connections.push(api.connect(true).await);
        }
        for (writer, connection) in connections.into_iter().enumerate() {
            writers.push(tokio::spawn(write(connection, written.clone(), round, writer)));
        }
        while written.load(Ordering::Relaxed) < 20 + 10 * round {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        process.0.kill().expect("killed");
        let highest = acknowledged.iter().map(|(_, revision)| *revision).max().unwrap_or(0);
        for writer in writers {
            let mut new = writer.await.expect("writer");
            assert!(
                new.iter().all(|(_, revision)| *revision > highest),
                "revisions rise over restarts"
            );
            acknowledged.append(&mut new);
        }
    }
    let (_process, api) = start(dir.path()).await;
    let listed = api.get(MAPS).await.expect(200);
    assert!(listed["items"].as_array().expect("items").len() >= acknowledged.len());
    assert!(acknowledged.len() >= 60);
}

#[test]
fn systemd_is_notified_of_readiness_and_by_watchdog() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("bound");
    socket.set_read_timeout(Some(START_MAX)).expect("set");
    let child = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000")
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let _process = Process(child);
    let mut message = [0; 64];
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let len = socket.recv(&mut message).expect("a message");
        assert_eq!(String::from_utf8_lossy(&message[..len]).trim_end(), expected);
    }
}

/// Creates objects until the server is killed; returns the acknowledged ones.
async fn write(
    mut connection: SendRequest<Full<Bytes>>,
    written: Arc<AtomicUsize>,
    round: usize,
    writer: usize,
) -> Vec<(String, u64)> {
    let mut acknowledged = Vec::new();
    for number in 0..100_000 {
        let name = format!("m-{round}-{writer}-{number}");
        let body = json!({"metadata": {"name": name}}).to_string();
        let request = http::Request::post(MAPS).header("host", "t");
        let request = request.body(Full::from(body)).expect("valid");
        let Ok(response) = connection.send_request(request).await else { break };
        let Some(reply) = crate::support::try_reply(response).await else { break };
        let made = reply.expect(201);
        let revision =
            made["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        acknowledged.push((name, revision.expect("revision")));
        written.fetch_add(1, Ordering::Relaxed);
    }
    acknowledged
}

#[test]
fn bad_usage_ends_with_64_before_anything_happens() {
    let dir = tempfile::tempdir().expect("directory");
    let data = dir.path().join("data");
    for flags in [
        &["--no-such-flag"][..],
        &["--service-cluster-ip-range=everything"],
        &["--token-auth-file=/nonexistent/tokens"],
        &["--service-account-signing-key-file=/nonexistent/key"],
        &["--config=/nonexistent/config.yaml"],
        &["--audit-policy-file=/nonexistent/policy.yaml", "--audit-log-path=-"],
        &["--runtime-config=nonsense/v1=true"],
        &["--feature-gates=Nonsense=true"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
            .args(["--bind-address=127.0.0.1", "--secure-port=0"])
            .arg(format!("--data-dir={}", data.display()))
            .args(flags)
            .output()
            .expect("started");
        assert_eq!(
            output.status.code(),
            Some(64),
            "{flags:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(!data.join("store").exists(), "{flags:?}");
    }
}

/// What signs tokens and cannot be verified is refused at the start, by its flag and its value.
#[test]
fn keys_and_algorithms_that_cannot_be_verified_are_refused_by_name() {
    let curve = |file: &str| format!("{}/../token/testdata/{file}", env!("CARGO_MANIFEST_DIR"));
    let oidc = ["--oidc-issuer-url=https://a.example", "--oidc-client-id=c"];
    let oidc = oidc.map(str::to_owned);
    let (signing, verifying) = ("--service-account-signing-key-file", "--service-account-key-file");
    let issuer = "--service-account-issuer=https://a.example".to_owned();
    for (flag, value, others) in [
        ("--oidc-signing-algs", "EdDSA", &oidc[..]),
        ("--oidc-signing-algs", "none", &oidc),
        (verifying, &curve("k256.pub"), &[]),
        (verifying, &curve("short.pub"), &[]),
        (signing, &curve("k256.key"), std::slice::from_ref(&issuer)),
        (signing, &curve("k256.sec1.key"), std::slice::from_ref(&issuer)),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
            .args(["--bind-address=127.0.0.1", "--secure-port=0"])
            .arg(format!("{flag}={value}"))
            .args(others)
            .output()
            .expect("started");
        let says = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{flag}={value}: {says}");
        let named = says.lines().any(|line| line.contains(flag) && line.contains(value));
        assert!(named, "{flag}={value}: {says}");
    }
}

/// Whether the server knows the user of a token.
async fn is_known(api: &Api, token: &str) -> bool {
    let body = json!({"spec": {"token": token}}).to_string();
    let review = api.post("/apis/authentication.k8s.io/v1/tokenreviews", body).await.expect(201);
    review["status"]["authenticated"] == true
}

/// As the flags of kube-apiserver have it: the key of TLS verifies where no flag names a key of tokens. The server's own key signs and verifies all the same.
#[tokio::test]
async fn the_key_of_tls_verifies_tokens_where_no_flag_names_a_key_of_them() {
    let dir = tempfile::tempdir().expect("directory");
    let naming = "--naming=kubernetes";
    let file = |name: &str| dir.path().join(name);
    let issue = async |api: &Api| {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let made = api.post(path, r#"{"spec":{}}"#).await.expect(201);
        made["status"]["token"].as_str().expect("a token").to_owned()
    };
    // A certificate of the server's own authority, which its client configuration has, with the server's file names of its first start.
    let (first, api) = start_with(dir.path(), &[naming]).await;
    let account = r#"{"metadata":{"name":"default"}}"#;
    api.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    let own = issue(&api).await;
    for (from, to) in [("apiserver.crt", "tls.crt"), ("apiserver.key", "tls.key")] {
        std::fs::copy(file("data/pki").join(from), file(to)).expect("copied");
    }
    drop(first);
    let claims = own.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let claims: Value = serde_json::from_slice(&claims.expect("claims")).expect("JSON");
    let pem = std::fs::read(file("tls.key")).expect("a key");
    let key = SigningKey::from_pem(&pem).expect("a key");
    let of_tls = jwt::sign(&claims, &key).expect("signed");
    assert!(!is_known(&start_with(dir.path(), &[naming]).await.1, &of_tls).await);

    let certificate = format!("--tls-cert-file={}", file("tls.crt").display());
    let serving = format!("--tls-private-key-file={}", file("tls.key").display());
    let known = concat!(env!("CARGO_MANIFEST_DIR"), "/../token/testdata");
    let verifying = format!("--service-account-key-file={known}/rsa.pub");
    let signing = format!("--service-account-signing-key-file={known}/p521.key");
    for (flags, of_tls_counts, of_own_counts, published) in [
        (&[][..], true, true, &["ES256", "ES256"][..]),
        (&[&*verifying], false, true, &["RS256", "ES256"]),
        (&[&*signing], false, false, &["ES512"]),
        (&[&*verifying, &*signing], false, false, &["RS256", "ES512"]),
    ] {
        let all = [&[naming, &*certificate, &*serving], flags].concat();
        let (_process, api) = start_with(dir.path(), &all).await;
        assert_eq!(is_known(&api, &of_tls).await, of_tls_counts, "{flags:?}");
        assert_eq!(is_known(&api, &own).await, of_own_counts, "{flags:?}");
        assert!(is_known(&api, &issue(&api).await).await, "{flags:?}");
        let keys = api.get("/openid/v1/jwks").await.expect(200)["keys"].clone();
        let algorithms: Vec<_> =
            keys.as_array().into_iter().flatten().map(|key| &key["alg"]).collect();
        assert_eq!(algorithms, published, "{flags:?}");
    }
}

/// Workers have a stack of 1 MiB. Bodies as deep as they are read are acted on, deeper ones refused, in each format and by each kind of write.
#[tokio::test]
async fn deep_bodies_end_no_process() {
    let dir = tempfile::tempdir().expect("directory");
    let (mut process, api) = start_with(dir.path(), &["--naming=kubernetes"]).await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |name: &str, levels: usize| {
        let (open, close) = (r#"{"type":"object","properties":{"a":"#, "}}");
        let schema =
            format!("{}{{\"type\":\"string\"}}{}", open.repeat(levels), close.repeat(levels));
        format!(
            r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"{name}s.deep.example"}},
            "spec":{{"group":"deep.example","scope":"Cluster","names":{{"plural":"{name}s","kind":"{name}"}},
            "versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{schema}}}}}]}}}}"#
        )
    };
    let apply = "application/apply-patch+yaml";
    for (name, levels) in [("one", 8), ("two", 40), ("three", 45)] {
        let path = format!("{definitions}/{name}s.deep.example");
        let body = definition(name, levels);
        api.call(Method::PATCH, &format!("{path}?fieldManager=test"), apply, body.clone())
            .await
            .expect(201);
        api.delete(&path).await.expect(200);
        for media_type in ["application/yaml", "application/json"] {
            let made = api
                .call(Method::POST, &format!("{definitions}?dryRun=All"), media_type, body.clone())
                .await;
            assert!(
                [201, 409].contains(&made.code()),
                "{media_type}, {levels} levels: {}",
                made.code()
            );
        }
    }
    for levels in [128, 2_000, 50_000] {
        let body = definition("four", levels);
        let path = format!("{definitions}/fours.deep.example?fieldManager=test");
        api.call(Method::PATCH, &path, apply, body.clone()).await.expect(400);
        for media_type in ["application/yaml", "application/json"] {
            api.call(Method::POST, definitions, media_type, body.clone()).await.expect(400);
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        let patched = api
            .merge_patch("/api/v1/namespaces/default", &format!(r#"{{"metadata":{deep}}}"#))
            .await;
        assert!([400, 422].contains(&patched.code()), "{levels} levels: {}", patched.code());
    }
    assert!(process.0.try_wait().expect("asked").is_none(), "the API server has ended");
}

#[test]
fn surprising_configuration_is_logged_at_start() {
    use std::io::BufRead as _;
    let child = Command::new(env!("CARGO_BIN_EXE_orch-apiserver"))
        .args(["--bind-address=127.0.0.1", "--secure-port=0", "--healthz-bind-address=127.0.0.1"])
        .args(["--anonymous-auth", "--anonymous-access=authorized"])
        .args(["--feature-gates=APIServerTracing=true"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut process = Process(child);
    let lines = std::io::BufReader::new(process.0.stderr.take().expect("piped")).lines();
    let logged: Vec<String> = lines
        .map(|line| line.expect("text"))
        .take_while(|line| !line.contains("serving"))
        .collect();
    for part in [
        "objects are kept in memory only",
        "requests without credentials are allowed everything",
        "flag --healthz-bind-address is accepted for compatibility and has no effect",
        "Feature gate APIServerTracing=true has no effect in this program.",
    ] {
        assert!(logged.iter().any(|line| line.contains(part)), "{part} in {logged:?}");
    }
}
