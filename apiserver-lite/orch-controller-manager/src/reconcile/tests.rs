//! Reconciles against a server whose caches lag: what they show and what the server has are given apart.

mod disruption;
mod failed_nodes;
mod many_claims;
mod mirrored_endpoints;
mod missing_nodes;
mod namespaces;
mod pods_to_claim;

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_controller_io::projections::slim_secret;
use apiserver_controllers::account_token::TokenReference;
use apiserver_token::{Algorithm, SigningKey, jwt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser as _;
use proto_api::Resource;
use proto_api::core::v1::Secret;
use proto_api::names::{Names, Profile};
use proto_client::testing::{StubRequest, StubServer, json_response};
use proto_client::{Change, ClientConfig, ListParams, Reflector, Store};
use proto_daemon::drain::Drain;
use serde_json::{Value, json};

use super::*;
use crate::keys::WatchedKind as _;
use crate::reflectors;
use crate::settings::ControllerManagerFlags;

/// Signs tokens of these tests alone.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg7mgnSFGTZ58Mwd2+
pGziH41gluODZeVE/KGqrNi8N4GhRANCAAQ1CRAJ6ncz/N3nPyXP8nzDH7KHLv4G
0vc+IP8sgpsK1J/xF4f5IJWR/zhimpbB+3VnvaKd5C0od1o0RZd/X2cl
-----END PRIVATE KEY-----
";

/// The collections that are cached: API version, path and kind.
const CACHED: [(&str, &str, &str); 13] = [
    ("v1", "/api/v1/namespaces", "NamespaceList"),
    ("v1", "/api/v1/nodes", "NodeList"),
    ("v1", "/api/v1/serviceaccounts", "ServiceAccountList"),
    ("v1", "/api/v1/secrets", "SecretList"),
    ("v1", "/api/v1/services", "ServiceList"),
    ("v1", "/api/v1/endpoints", "EndpointsList"),
    ("v1", "/api/v1/pods", "PodList"),
    ("v1", "/api/v1/persistentvolumeclaims", "PersistentVolumeClaimList"),
    ("policy/v1", "/apis/policy/v1/poddisruptionbudgets", "PodDisruptionBudgetList"),
    ("apps/v1", "/apis/apps/v1/statefulsets", "StatefulSetList"),
    ("apps/v1", "/apis/apps/v1/controllerrevisions", "ControllerRevisionList"),
    ("batch/v1", "/apis/batch/v1/jobs", "JobList"),
    ("batch/v1", "/apis/batch/v1/cronjobs", "CronJobList"),
];

/// What the server has.
#[derive(Clone, Default)]
struct Server {
    /// The objects that the caches show, one or a list, by plural.
    cached: BTreeMap<&'static str, Value>,
    /// The objects that the server has, by path.
    objects: BTreeMap<String, Value>,
    /// Whether it refuses to read them.
    refuses: bool,
    /// The path of an object that it refuses to write, and with which code.
    unwritable: Option<(&'static str, u16)>,
    /// Method, path and body of each write.
    writes: Arc<Mutex<Vec<(String, Value)>>>,
    /// The path of each object that was read.
    reads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// A cache that shows one object of a collection.
    fn showing(mut self, plural: &'static str, object: Value) -> Self {
        self.cached.insert(plural, object);
        self
    }

    /// A server that has an object.
    fn having(mut self, path: &str, object: Value) -> Self {
        self.objects.insert(path.to_owned(), object);
        self
    }

    /// The answer to a request; watches have none.
    fn answer(&self, request: &StubRequest) -> Option<(u16, Value)> {
        let path = request.path.as_str();
        let content_type = request.headers.get("content-type");
        // Bodies are JSON here.
        if content_type.is_some_and(|of| of.as_bytes().starts_with(b"application/vnd")) {
            return Some((415, json!({"kind": "Status"})));
        }
        if request.method != "GET" {
            let body = serde_json::from_slice(&request.body).unwrap_or_default();
            lock(&self.writes).push((format!("{} {path}", request.method), body));
            if let Some((_, code)) = self.unwritable.filter(|(of, _)| *of == path) {
                let reason = if code == 409 { "Conflict" } else { "" };
                let status =
                    json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code});
                return Some((code, status));
            }
            let object = self.objects.get(path.trim_end_matches("/status"));
            return Some((200, object.cloned().unwrap_or_else(|| json!({"kind": "Status"}))));
        }
        if let Some((version, _, kind)) = CACHED.iter().find(|(_, of, _)| *of == path) {
            if request.query.contains("watch=true") {
                return None;
            }
            let shown = self.cached.get(path.rsplit_once('/')?.1);
            let items: Vec<&Value> = match shown {
                Some(Value::Array(all)) => all.iter().collect(),
                one => one.into_iter().collect(),
            };
            let metadata = json!({"resourceVersion": "9"});
            let list =
                json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items});
            return Some((200, list));
        }
        let failure = |code: u16, reason: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code});
            Some((code, status))
        };
        lock(&self.reads).push(path.to_owned());
        match self.objects.get(path) {
            _ if self.refuses => failure(403, "Forbidden"),
            Some(object) => Some((200, object.clone())),
            None => failure(404, "NotFound"),
        }
    }

    async fn start(&self) -> Client {
        let server = self.clone();
        let answer = move |request: &StubRequest| {
            let (code, body) = server.answer(request)?;
            Some(json_response(code, &body))
        };
        StubServer::start(answer).await.client()
    }

    /// Reconciles a key once, from complete caches. Gives the writes, or nothing if it fails.
    fn reconcile(self, key: ReconcileKey) -> Option<Vec<(String, Value)>> {
        let token_key = SigningKey::from_pem(KEY.as_bytes()).map(Arc::new).expect("a key");
        self.reconcile_with(key, Some(token_key))
    }

    /// The same with the key of tokens that the settings have.
    fn reconcile_with(
        self,
        key: ReconcileKey,
        token_key: Option<Arc<SigningKey>>,
    ) -> Option<Vec<(String, Value)>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(self.run(key, token_key))
    }

    async fn run(
        self,
        key: ReconcileKey,
        token_key: Option<Arc<SigningKey>>,
    ) -> Option<Vec<(String, Value)>> {
        let done = self.reconciler(token_key).await.run(key).await;
        let writes = std::mem::take(&mut *lock(&self.writes));
        if done.is_err() {
            assert_eq!(writes, [], "nothing is written when a read fails");
        }
        done.ok().map(|_| writes)
    }

    /// A reconciler of this server with complete caches.
    async fn reconciler(&self, token_key: Option<Arc<SigningKey>>) -> Reconciler {
        let client = self.start().await;
        let (mut informers, _) = reflectors::make(&client);
        let all = ListParams::default;
        informers.nodes = fill(Reflector::whole(client.all(), all())).await;
        informers.namespaces = fill(Reflector::whole(client.all(), all())).await;
        informers.service_accounts = fill(Reflector::whole(client.all(), all())).await;
        informers.token_secrets =
            fill(Reflector::projected(client.all(), all(), slim_secret)).await;
        informers.services = fill(Reflector::whole(client.all(), all())).await;
        for (key, service) in informers.services.list() {
            let names = informers.names;
            informers.address_users().service_changed(names, &key, Some(&service));
        }
        informers.endpoints = fill(Reflector::whole(client.all(), all())).await;
        informers.pods = fill(Reflector::whole(client.all(), all())).await;
        for (key, pod) in informers.pods.list() {
            informers.index_pod(&key, None, Some(&pod));
        }
        informers.claims = fill(Reflector::whole(client.all(), all())).await;
        informers.budgets = fill(Reflector::whole(client.all(), all())).await;
        informers.stateful_sets = fill(Reflector::whole(client.all(), all())).await;
        let revision = apiserver_workloads::canonical_revision;
        informers.revisions = fill(Reflector::projected(client.all(), all(), revision)).await;
        informers.jobs = fill(Reflector::whole(client.all(), all())).await;
        informers.cron_jobs = fill(Reflector::whole(client.all(), all())).await;
        let ranges = "--service-load-balancer-addresses=192.0.2.1-192.0.2.9";
        let flags = ControllerManagerFlags::try_parse_from(["test", ranges]).expect("flags");
        let settings = Settings { token_key, ..flags.settings().expect("settings") };
        let (accounts, _) = Accounts::new(client, false, []).expect("no TLS");
        let queue_metrics = WorkQueueMetrics::new().expect("metrics");
        let (board, recorders) = (StatusBoard::default(), BTreeMap::new());
        let shown = Observability { board, queue_metrics, recorders };
        Reconciler::new(accounts, informers, settings, shown)
    }
}

async fn fill<T: Resource, U: Send + Sync + 'static>(reflector: Reflector<T, U>) -> Store<U> {
    let store = reflector.store();
    tokio::spawn(reflector.run(Drain::default().watch(), |_| ()));
    store.synced().await;
    store
}

/// Method and path of the writes, or that there are none because a read failed.
fn lines(writes: Option<Vec<(String, Value)>>) -> Vec<String> {
    let Some(writes) = writes else { return vec!["failed".to_owned()] };
    writes.into_iter().map(|(line, _)| line).collect()
}

const ACCOUNT: &str = "/api/v1/namespaces/ns/serviceaccounts/build";
const SECRET: &str = "/api/v1/namespaces/ns/secrets/build-token";

fn account(uid: &str) -> Value {
    let metadata = json!({"name": "build", "namespace": "ns", "uid": uid, "resourceVersion": "7"});
    let references = [
        json!({"name": "build-token"}),
        json!({"kind": "Secret", "name": "build-token-registry", "uid": "r"}),
    ];
    json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": metadata, "secrets": references})
}

fn secret(data: Value, uid: Option<&str>) -> Value {
    let mut annotations = json!({"kubernetes.io/service-account.name": "build"});
    if let Some(uid) = uid {
        annotations["kubernetes.io/service-account.uid"] = json!(uid);
    }
    let metadata = json!({"name": "build-token", "namespace": "ns", "uid": "s", "resourceVersion": "6", "annotations": annotations});
    let type_ = "kubernetes.io/service-account-token";
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "type": type_, "data": data})
}

fn filled() -> Value {
    json!({"token": "eA==", "namespace": "bnM="})
}

#[test]
fn tokens_are_deleted_only_when_the_server_has_no_account() {
    let key = || ReconcileKey::AccountToken(ObjectKey::new("ns", "build"));
    let delete = || vec![format!("DELETE {SECRET}")];
    let none = Vec::<String>::new;
    // What the cache and the server have as the uid of the account.
    for (cached, live, expected) in [
        (None, Some("u1"), none()),
        (Some("u0"), Some("u1"), none()),
        (Some("u1"), Some("u1"), none()),
        (None, None, delete()),
        (None, Some("u2"), delete()),
    ] {
        let mut server = Server::default().showing("secrets", secret(filled(), Some("u1")));
        if let Some(uid) = cached {
            server = server.showing("serviceaccounts", account(uid));
        }
        if let Some(uid) = live {
            server = server.having(ACCOUNT, account(uid));
        }
        assert_eq!(lines(server.reconcile(key())), expected, "{cached:?} {live:?}");
    }
    let server = Server::default().showing("secrets", secret(filled(), Some("u1")));
    let refusing = Server { refuses: true, ..server };
    assert_eq!(lines(refusing.reconcile(key())), ["failed"]);
}

/// The server refuses such names with 400 or 404, a retry does not change it, and the owner of a namespace chooses them.
#[test]
fn a_token_of_an_account_that_cannot_exist_is_deleted_without_a_retry() {
    for name in ["A_b!", "a/b", "..", "a%b"] {
        let mut astray = secret(json!({}), None);
        astray["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": name});
        // The server refuses all that it is asked for.
        let server = || {
            let server = Server::default().showing("secrets", astray.clone());
            Server { refuses: true, ..server }
        };
        let account = ObjectKey::new("ns", name);
        let tokens = server().reconcile(ReconcileKey::AccountToken(account.clone()));
        assert_eq!(lines(tokens), [format!("DELETE {SECRET}")], "{name}");
        let (uid, secret) = (String::new(), "build-token".to_owned());
        let reference = TokenReference { account, uid, secret };
        let reference = server().reconcile(ReconcileKey::TokenReference(reference));
        assert_eq!(reference, Some(Vec::new()), "{name}");
    }
}

/// The token of an account that was deleted would be deleted with the secret that has it.
#[test]
fn a_token_is_that_of_the_account_that_the_server_has() {
    let server = Server::default()
        .showing("serviceaccounts", account("old"))
        .showing("secrets", secret(json!({}), None))
        .having(ACCOUNT, account("new"))
        .having(SECRET, secret(json!({}), None));
    let key = ReconcileKey::AccountToken(ObjectKey::new("ns", "build"));
    let writes = server.reconcile(key).expect("done");
    let [(line, body)] = &writes[..] else { panic!("one write: {writes:?}") };
    assert_eq!(*line, format!("PATCH {SECRET}"));
    let annotations = &body["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/service-account.uid"], "new");
}

/// The key of `--service-account-private-key-file`, and no other.
#[test]
fn tokens_are_signed_with_the_key_of_the_flag() {
    let file = std::env::temp_dir().join(format!("private-key-{}.pem", std::process::id()));
    std::fs::write(&file, KEY).expect("written");
    let flag = format!("--service-account-private-key-file={}", file.display());
    let flags = ControllerManagerFlags::try_parse_from(["test", &flag]).expect("flags");
    let signing = flags.settings().expect("settings").token_key.expect("a key");
    std::fs::remove_file(&file).expect("removed");
    let own = SigningKey::from_pem(KEY.as_bytes()).expect("a key");
    assert_eq!(signing.public(), own.public());
    let server = Server::default()
        .showing("serviceaccounts", account("u1"))
        .showing("secrets", secret(json!({}), None))
        .having(ACCOUNT, account("u1"))
        .having(SECRET, secret(json!({}), None));
    let key = ReconcileKey::AccountToken(ObjectKey::new("ns", "build"));
    let writes = server.reconcile_with(key, Some(signing)).expect("done");
    let [(_, body)] = &writes[..] else { panic!("one write: {writes:?}") };
    let token = STANDARD.decode(body["data"]["token"].as_str().expect("a token")).expect("base64");
    let token = String::from_utf8(token).expect("text");
    let verify = |key| jwt::verify::<Value>(&token, &[key], &Algorithm::ALL);
    let claims = verify(own.public().clone()).expect("signed by the key");
    assert_eq!(claims["sub"], "system:serviceaccount:ns:build");
    let other = SigningKey::from_pem(include_bytes!("../../../token/testdata/ec.key"));
    let other = other.expect("a key").public().clone();
    assert!(verify(other).is_err());
}

#[test]
fn a_secret_reference_is_removed_only_when_the_server_has_no_secret() {
    let reference = || {
        let (uid, secret) = ("u1".to_owned(), "build-token".to_owned());
        let account = ObjectKey::new("ns", "build");
        ReconcileKey::TokenReference(TokenReference { account, uid, secret })
    };
    // The cache has no account yet.
    let server = || Server::default().having(ACCOUNT, account("u1"));
    let writes = server().reconcile(reference()).expect("done");
    let [(line, body)] = &writes[..] else { panic!("one write: {writes:?}") };
    assert_eq!(*line, format!("PATCH {ACCOUNT}"));
    assert_eq!(body["secrets"], json!([account("u1")["secrets"][1]]), "the other one, whole");
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    let again = server().having(SECRET, secret(filled(), None));
    assert_eq!(again.reconcile(reference()), Some(Vec::new()), "it exists again");
    let other = Server::default().having(ACCOUNT, account("u2"));
    assert_eq!(other.reconcile(reference()), Some(Vec::new()));
    assert_eq!(Server::default().reconcile(reference()), Some(Vec::new()));
    let refusing = Server { refuses: true, ..server() };
    assert_eq!(refusing.reconcile(reference()), None);
}

#[test]
fn a_deleted_token_secret_queues_its_account_and_the_reference_to_it() {
    let config = ClientConfig::direct("http://127.0.0.1:1".parse().expect("a URL"));
    let client = Client::new(&config, Names::new(Profile::Kubernetes), "test").expect("a client");
    let (informers, _) = reflectors::make(&client);
    let secret: Secret = serde_json::from_value(secret(filled(), Some("u1"))).expect("a secret");
    let (key, account) = (
        ObjectKey::new("ns", "build-token"),
        ReconcileKey::AccountToken(ObjectKey::new("ns", "build")),
    );
    let (old, uid) = (Arc::new(secret), "u1".to_owned());
    let applied = Change::Applied { key: key.clone(), new: old.clone(), old: None };
    assert_eq!(Secret::keys(&applied, &informers), std::slice::from_ref(&account));
    let reference =
        TokenReference { account: ObjectKey::new("ns", "build"), uid, secret: key.name.clone() };
    let expected = [account, ReconcileKey::TokenReference(reference)];
    assert_eq!(Secret::keys(&Change::Deleted { key, old }, &informers), expected);
}

/// Nothing of an account says which of its references are to deleted token secrets.
#[test]
fn a_change_of_an_account_removes_no_reference() {
    let server =
        Server::default().showing("serviceaccounts", account("u1")).having(ACCOUNT, account("u1"));
    let key = ReconcileKey::AccountToken(ObjectKey::new("ns", "build"));
    assert_eq!(server.reconcile(key), Some(Vec::new()));
}

#[test]
fn endpoints_are_deleted_only_when_the_server_has_no_service() {
    const SERVICE: &str = "/api/v1/namespaces/ns/services/db";
    let object = |kind: &str| {
        let metadata = json!({"name": "db", "namespace": "ns", "uid": "e", "resourceVersion": "5"});
        json!({"kind": kind, "apiVersion": "v1", "metadata": metadata})
    };
    let key = || ReconcileKey::Endpoints(ObjectKey::new("ns", "db"));
    let server = || Server::default().showing("endpoints", object("Endpoints"));
    // It has no selector: the Endpoints are a user's.
    let having = server().having(SERVICE, object("Service"));
    assert_eq!(having.reconcile(key()), Some(Vec::new()));
    let gone = lines(server().reconcile(key()));
    assert_eq!(gone, ["DELETE /api/v1/namespaces/ns/endpoints/db"]);
    let refusing = Server { refuses: true, ..server() };
    assert_eq!(refusing.reconcile(key()), None);
}

const JOB: &str = "/apis/batch/v1/namespaces/ns/jobs/work";

fn job(ttl: i64) -> Value {
    let metadata = json!({"name": "work", "namespace": "ns", "uid": "j", "resourceVersion": "5"});
    let condition =
        json!({"type": "Complete", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"});
    json!({
        "kind": "Job", "apiVersion": "batch/v1", "metadata": metadata,
        "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
        "status": {"conditions": [condition]},
    })
}

#[test]
fn a_pod_is_let_go_only_when_the_server_has_no_job() {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "work", "uid": "j", "controller": true});
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": "work-1", "namespace": "ns", "uid": "p", "resourceVersion": "5",
            "ownerReferences": [owner], "finalizers": ["batch.kubernetes.io/job-tracking"],
        },
    });
    let path = "/api/v1/namespaces/ns/pods/work-1";
    let server = || Server::default().showing("pods", pod.clone()).having(path, pod.clone());
    let key = || ReconcileKey::JobOrphan(ObjectKey::new("ns", "work-1"));
    assert_eq!(server().having(JOB, job(0)).reconcile(key()), Some(Vec::new()));
    assert_eq!(lines(server().reconcile(key())), [format!("PATCH {path}")]);
    let refusing = Server { refuses: true, ..server() };
    assert_eq!(refusing.reconcile(key()), None);
}

#[test]
fn a_job_whose_time_to_live_is_extended_stays() {
    let key = || ReconcileKey::JobExpiry(ObjectKey::new("ns", "work"));
    let server = || Server::default().showing("jobs", job(0));
    let decades = 2_000_000_000;
    assert_eq!(server().having(JOB, job(decades)).reconcile(key()), Some(Vec::new()));
    let over = server().having(JOB, job(0));
    assert_eq!(lines(over.reconcile(key())), [format!("DELETE {JOB}")]);
    let refusing = Server { refuses: true, ..server() };
    assert_eq!(refusing.reconcile(key()), None);
}

#[test]
fn an_active_job_is_forgotten_only_when_the_server_has_it_not() {
    let path = "/apis/batch/v1/namespaces/ns/cronjobs/tick";
    let active = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "tick-1", "namespace": "ns", "uid": "j"});
    let cron_job = json!({
        "kind": "CronJob", "apiVersion": "batch/v1",
        "metadata": {"name": "tick", "namespace": "ns", "uid": "c", "resourceVersion": "5"},
        "spec": {"schedule": "* * * * *", "suspend": true, "jobTemplate": {"spec": {"template": {}}}},
        "status": {"active": [active], "lastScheduleTime": "2020-01-01T00:00:00Z"},
    });
    let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "c", "controller": true});
    let running = json!({
        "metadata": {"name": "tick-1", "namespace": "ns", "uid": "j", "ownerReferences": [owner]},
        "spec": {"template": {}},
    });
    let list = |items: &[Value]| json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": {}, "items": items});
    let jobs = "/apis/batch/v1/namespaces/ns/jobs";
    let server =
        || Server::default().showing("cronjobs", cron_job.clone()).having(path, cron_job.clone());
    let key = || ReconcileKey::CronJob(ObjectKey::new("ns", "tick"));
    let having = server().having(jobs, list(&[running]));
    assert_eq!(having.reconcile(key()), Some(Vec::new()));
    let gone = server().having(jobs, list(&[])).reconcile(key()).expect("done");
    let [(line, body)] = &gone[..] else { panic!("one write: {gone:?}") };
    assert_eq!(*line, format!("PUT {path}/status"));
    assert_eq!(body["status"].get("active"), None);
    let refusing = Server { refuses: true, ..server() };
    assert_eq!(refusing.reconcile(key()), None);
}

#[tokio::test]
async fn a_zone_has_its_turn_again_when_a_taint_is_refused() {
    let node = |name: &str, ready: &str| {
        let condition = |kind: &str| json!({"type": kind, "status": ready});
        let conditions = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(condition);
        json!({"kind": "Node", "apiVersion": "v1",
            "metadata": {"name": name, "uid": name, "resourceVersion": "7"},
            "status": {"conditions": conditions}})
    };
    let nodes = json!([node("a", "Unknown"), node("b", "Unknown"), node("c", "True")]);
    // What a server that fails has written is not known: the turn is used up.
    for (code, evicts) in [(200, false), (422, true), (409, true), (500, false)] {
        let server = Server {
            unwritable: (code != 200).then_some(("/api/v1/nodes/a", code)),
            ..Server::default()
                .showing("nodes", nodes.clone())
                .having("/api/v1/nodes/a", nodes[0].clone())
                .having("/api/v1/nodes/b", nodes[1].clone())
        };
        let reconciler = server.reconciler(None).await;
        let first = reconciler.run(ReconcileKey::NodeLifecycle("a".into())).await;
        assert_eq!(first.is_err(), matches!(code, 422 | 500), "{first:?}");
        let second = reconciler.run(ReconcileKey::NodeLifecycle("b".into())).await;
        assert!(second.is_ok(), "{second:?}");
        let writes = lock(&server.writes);
        let lines: Vec<&str> = writes.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(lines, ["PATCH /api/v1/nodes/a", "PATCH /api/v1/nodes/b"]);
        let taints = |at: usize| writes[at].1["spec"]["taints"].to_string();
        assert!(taints(0).contains("NoExecute"), "{}", taints(0));
        assert_eq!(taints(1).contains("NoExecute"), evicts, "{code}: {}", taints(1));
    }
}

/// A webhook may answer each write so.
#[tokio::test]
async fn conflicts_without_end_are_a_failure() {
    let conditions = [json!({"type": "Ready", "status": "Unknown"})];
    let node = json!({"kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "a", "uid": "a", "resourceVersion": "7"},
        "status": {"conditions": conditions}});
    let server = Server {
        unwritable: Some(("/api/v1/nodes/a", 409)),
        ..Server::default().showing("nodes", node)
    };
    let reconciler = server.reconciler(None).await;
    let mut waits = Vec::new();
    for _ in 0..7 {
        match reconciler.run(ReconcileKey::NodeLifecycle("a".into())).await {
            Ok(Requeue::After(wait)) => waits.push(wait),
            Ok(next) => panic!("{next:?}"),
            Err(_) => break,
        }
    }
    assert_eq!(waits.len(), 6, "{waits:?}");
    assert!(waits[5] >= Duration::from_millis(800) && waits[0] <= REQUEUE, "{waits:?}");
    assert_eq!(lock(&server.writes).len(), 7);
}

#[test]
fn two_load_balancers_get_different_addresses_before_the_caches_show_the_first() {
    let service = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "7"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"]}})
    };
    let mut server = Server::default().showing("services", json!([service("a"), service("b")]));
    for name in ["a", "b"] {
        server = server.having(&format!("/api/v1/namespaces/ns/services/{name}"), service(name));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let reconciler = server.reconciler(None).await;
        for name in ["a", "b"] {
            let key = ReconcileKey::LoadBalancer(ObjectKey::new("ns", name));
            reconciler.run(key).await.expect("the write succeeds");
        }
    });
    let writes = std::mem::take(&mut *lock(&server.writes));
    let written: Vec<String> = writes
        .iter()
        .map(|(line, body)| format!("{line} {}", body["status"]["loadBalancer"]["ingress"]))
        .collect();
    let line = |name: &str, address: &str| {
        format!("PATCH /api/v1/namespaces/ns/services/{name}/status [{{\"ip\":\"{address}\"}}]")
    };
    assert_eq!(written, [line("a", "192.0.2.1"), line("b", "192.0.2.2")]);
    assert_eq!(writes[0].1["metadata"]["resourceVersion"], "7");
}
