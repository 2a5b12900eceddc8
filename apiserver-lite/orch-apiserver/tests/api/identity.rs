//! Authentication: anonymous, client certificate, token, and combinations.

use std::path::Path;

use apiserver_auth::{AuthorizationWebhookSettings, RequestHeaderSettings, ReviewVersion};
use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderName, Request};
use http_body_util::Full;
use orch_apiserver::Config;
use orch_apiserver::config::{Anonymous, AnonymousAccess, AuthorizationMode, RequestHeaderConfig};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use crate::support::{Reply, TestServer, kubernetes, reply};

/// Two CAs, of which the server trusts the first, and a static token of the user `alice`.
struct Fixture {
    dir: tempfile::TempDir,
    trusted: Issuer<'static, KeyPair>,
    other: Issuer<'static, KeyPair>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let trusted = authority("trusted", &dir.path().join("ca.crt"));
        let other = authority("other", &dir.path().join("other.crt"));
        std::fs::write(dir.path().join("tokens"), "secret,alice,u1\n").unwrap();
        Self { dir, trusted, other }
    }

    fn config(&self, anonymous: Anonymous) -> Config {
        Config {
            anonymous,
            client_ca_file: Some(self.dir.path().join("ca.crt")),
            token_auth_file: Some(self.dir.path().join("tokens")),
            ..Config::for_tests(kubernetes())
        }
    }

    async fn server(&self, anonymous: Anonymous) -> TestServer {
        TestServer::with(self.config(anonymous)).await
    }
}

/// An authority, whose certificate is written to a file.
pub fn authority(name: &str, path: &Path) -> Issuer<'static, KeyPair> {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    std::fs::write(path, params.self_signed(&key).unwrap().pem()).unwrap();
    Issuer::new(params, key)
}

/// PEM certificate and key of a user in a group, with this validity from now on.
pub fn client(
    issuer: &Issuer<'static, KeyPair>,
    (user, group): (&str, &str),
    expires: Duration,
) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    params.distinguished_name.push(DnType::OrganizationName, group);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let now = OffsetDateTime::now_utc();
    params.not_before = now - Duration::days(2);
    params.not_after = now + expires;
    (params.signed_by(&key, issuer).unwrap().pem(), key.serialize_pem())
}

pub const DAY: Duration = Duration::days(1);

async fn ask(
    server: &TestServer,
    identity: Option<&(String, String)>,
    token: &str,
    path: &str,
) -> Reply {
    let mut connection = server.connect_as(identity).await;
    let mut request = Request::get(path).header("host", "t");
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    reply(connection.send_request(request.body(Full::default()).unwrap()).await.unwrap()).await
}

/// The user named in the denial of a server that denies everything, or the code and message of its response.
async fn user(server: &TestServer, identity: Option<&(String, String)>, token: &str) -> String {
    let answer = ask(server, identity, token, "/api/v1/pods").await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    match answer.code() {
        403 => message.split('"').nth(1).unwrap().to_owned(),
        code => format!("{code} {message}"),
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_valid_leaves_the_token_to_be_tried() {
    let world = Fixture::new();
    for anonymous in [Anonymous::Refused, Anonymous::Served(AnonymousAccess::Public)] {
        let config = Config {
            authorization: vec![AuthorizationMode::AlwaysDeny],
            ..world.config(anonymous)
        };
        let server = TestServer::with(config).await;
        assert_eq!(user(&server, None, "secret").await, "alice");
        let unknown = client(&world.other, ("admin", "system:masters"), DAY);
        let expired = client(&world.trusted, ("bob", "dev"), -DAY);
        let good = client(&world.trusted, ("bob", "dev"), DAY);
        assert_eq!(user(&server, Some(&unknown), "secret").await, "alice");
        assert_eq!(user(&server, Some(&expired), "secret").await, "alice");
        assert_eq!(user(&server, Some(&good), "").await, "bob");
        // Why is not said.
        assert_eq!(user(&server, Some(&unknown), "").await, "401 Unauthorized");
        assert_eq!(user(&server, Some(&expired), "").await, "401 Unauthorized");
        assert_eq!(user(&server, Some(&unknown), "wrong").await, "401 Unauthorized");
        // The first authenticator that succeeds decides, as in Kubernetes.
        assert_eq!(user(&server, Some(&good), "wrong").await, "bob");
    }
}

#[tokio::test]
async fn anonymous_requests_get_health_and_version_only() {
    let world = Fixture::new();
    let server = world.server(Anonymous::Served(AnonymousAccess::Public)).await;
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(ask(&server, None, "", path).await.code(), 200, "{path}");
    }
    let version = ask(&server, None, "", "/version").await.expect(200);
    assert!(version["goVersion"].as_str().unwrap().starts_with("rustc1."), "{version}");
    assert_eq!(version["gitTreeState"], option_env!("ORCH_TREE_STATE").unwrap_or_default());
    for path in ["/api", "/apis/apps/v1", "/metrics", "/openapi/v2", "/api/v1/secrets"] {
        let refused = ask(&server, None, "", path).await.expect(403);
        assert!(refused["message"].as_str().unwrap().contains("system:anonymous"), "{path}");
    }
    for path in ["/healthz", "/readyz/ping", "/version"] {
        assert_eq!(ask(&server, None, "wrong", path).await.code(), 401, "{path}");
        assert_eq!(ask(&server, None, "secret", path).await.code(), 200, "{path}");
        let other = client(&world.other, ("admin", "system:masters"), DAY);
        assert_eq!(ask(&server, Some(&other), "", path).await.code(), 401, "{path}");
    }

    let health = world.server(Anonymous::HealthOnly).await;
    assert_eq!(ask(&health, None, "", "/readyz").await.code(), 200);
    let closed = world.server(Anonymous::Refused).await;
    assert_eq!(ask(&closed, None, "", "/readyz").await.code(), 401);
    assert_eq!(closed.get("/readyz/ping").await.code(), 200, "with credentials");
    for path in ["/version", "/api", "/api/v1/secrets"] {
        assert_eq!(ask(&health, None, "", path).await.code(), 401, "{path}");
        assert_eq!(ask(&closed, None, "", path).await.code(), 401, "{path}");
    }
    let open = world.server(Anonymous::Served(AnonymousAccess::Authorized)).await;
    assert_eq!(ask(&open, None, "", "/api/v1/secrets").await.code(), 200);
}

#[tokio::test]
async fn access_reviews_deny_node_subresources_to_anonymous_users_and_nodes() {
    let server = TestServer::start().await;
    let review = async |user: &str, groups: &[&str], verb: &str, subresource: &str| {
        let attributes =
            json!({"verb": verb, "resource": "nodes", "subresource": subresource, "name": "n1"});
        let body =
            json!({"spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let made = server.post(path, body.to_string()).await.expect(201);
        made["status"]["allowed"] == true
    };
    let authenticated = "system:authenticated";
    for subresource in ["proxy", "log", "metrics", "stats", "spec"] {
        assert!(!review("system:anonymous", &["system:unauthenticated"], "get", subresource).await);
        assert!(
            !review("system:node:n2", &["system:nodes", authenticated], "create", subresource)
                .await
        );
        assert!(review("orch-apiserver", &[authenticated], "create", subresource).await);
        assert!(review("admin", &["system:masters"], "create", subresource).await);
    }
    assert!(review("system:node:n2", &["system:nodes", authenticated], "get", "").await);
    let nobody = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "nodes"}}});
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let answer = server.post(path, nobody.to_string()).await.expect(422);
    let message = answer["message"].as_str().unwrap();
    assert!(message.contains("at least one of user or group must be specified"), "{message}");
}

/// Sends a request of the kubelet of `n1`; gives the answer's code.
async fn send_as_node(server: &TestServer, method: &str, path: &str, body: Value) -> u16 {
    let patch = method == "PATCH";
    let kind = if patch { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "test")
        .header("content-type", kind)
        .header("impersonate-user", "system:node:n1")
        .header("impersonate-group", "system:nodes");
    let body = Full::new(Bytes::from(body.to_string()));
    server.send(request.body(body).unwrap()).await.code()
}

/// A kubelet writes only its node's objects, whatever the authorizer allows.
#[tokio::test]
async fn a_node_writes_only_what_is_its_own() {
    let server = TestServer::start().await;
    let node = |name: &str| json!({"metadata": {"name": name}});
    let pod = |name: &str, node: &str, annotations: Value| {
        let container = json!({"name": "c", "image": "i"});
        json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"nodeName": node, "containers": [container], "automountServiceAccountToken": false},
        })
    };
    let pods = "/api/v1/namespaces/default/pods";
    server.post("/api/v1/nodes", node("n2").to_string()).await.expect(201);
    server.post(pods, pod("mine", "n1", json!({})).to_string()).await.expect(201);
    server.post(pods, pod("other", "n2", json!({})).to_string()).await.expect(201);
    let post_node = |name| send_as_node(&server, "POST", "/api/v1/nodes", node(name));
    assert_eq!([post_node("n3").await, post_node("n1").await], [403, 201]);
    let mirror = || json!({server.names.label("config.mirror"): "x"});
    let uid = server.get("/api/v1/nodes/n1").await.expect(200)["metadata"]["uid"].clone();
    let owner = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true,
    });
    let owned_by = |owners: Value| {
        let mut pod = pod("a", "n1", mirror());
        pod["metadata"]["ownerReferences"] = owners;
        pod
    };
    let but = |field: &str, value: Value| {
        let mut owner = owner.clone();
        owner[field] = value;
        owned_by(json!([owner]))
    };
    let secret = json!({
        "metadata": {"name": "t", "annotations": {server.names.label("service-account.name"): "default"}},
        "type": server.names.label("service-account-token"),
    });
    let status = json!({"status": {"message": "m"}});
    let address =
        json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}});
    for (method, path, body, code) in [
        ("PATCH", "/api/v1/nodes/n1/status", address.clone(), 200),
        ("PATCH", "/api/v1/nodes/n2/status", address, 403),
        ("DELETE", "/api/v1/nodes/n2", json!({}), 403),
        ("POST", "/api/v1/namespaces/default/secrets", secret, 403),
        ("POST", pods, pod("a", "n1", json!({})), 403),
        ("POST", pods, pod("a", "n2", mirror()), 403),
        ("POST", pods, pod("a", "n1", mirror()), 403),
        ("POST", pods, owned_by(json!([])), 403),
        (
            "POST",
            pods,
            owned_by(json!([owner, {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}])),
            403,
        ),
        ("POST", pods, but("apiVersion", json!("apps/v1")), 403),
        ("POST", pods, but("kind", json!("ReplicaSet")), 403),
        ("POST", pods, but("name", json!("n2")), 403),
        ("POST", pods, but("uid", json!("another")), 403),
        ("POST", pods, but("controller", json!(false)), 403),
        ("POST", pods, but("controller", Value::Null), 403),
        ("POST", pods, but("blockOwnerDeletion", json!(true)), 403),
        ("POST", pods, owned_by(json!([owner])), 201),
        ("PATCH", "/api/v1/namespaces/default/pods/mine/status", status.clone(), 200),
        ("PATCH", "/api/v1/namespaces/default/pods/other/status", status, 403),
        ("PATCH", "/api/v1/namespaces/default/pods/mine/ephemeralcontainers", json!({}), 403),
        ("DELETE", "/api/v1/namespaces/default/pods/other", json!({}), 403),
        ("DELETE", "/api/v1/namespaces/default/pods/mine", json!({}), 200),
    ] {
        assert_eq!(send_as_node(&server, method, path, body).await, code, "{method} {path}");
    }
}

/// Labels and taints of its Node decide which pods a node gets, a claim's phase what its pods may use: they are not the kubelet's.
#[tokio::test]
async fn a_node_does_not_steer_pods_to_itself() {
    let server = TestServer::start().await;
    server.post("/api/v1/nodes", r#"{"metadata": {"name": "n1"}}"#).await.expect(201);
    let labels = |key: String| json!({"metadata": {"labels": {key: "x"}}});
    let role = server.names.sub_label("node-role", "control-plane");
    let secure = server.names.sub_label("node-restriction", "secure");
    let taint = json!({"key": "a", "effect": "NoSchedule"});
    let taints = json!({"spec": {"taints": [taint]}});
    let absent = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"});
    let owners = json!({"metadata": {"name": "n1", "ownerReferences": [absent]}});
    let source = json!({"configMap": {
        "namespace": "a", "name": "b", "kubeletConfigKey": "c", "uid": "", "resourceVersion": "",
    }});
    let source = json!({"metadata": {"name": "n1"}, "spec": {"configSource": source}});
    let claim = "/api/v1/namespaces/default/persistentvolumeclaims/data";
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let data = json!({"metadata": {"name": "data"}, "spec": spec});
    server.post(claim.trim_end_matches("/data"), data.to_string()).await.expect(201);
    let capacity = json!({"status": {"capacity": {"storage": "2Gi"}}});
    for (method, path, body, code) in [
        ("PATCH", "/api/v1/nodes/n1", labels(server.names.sub_label("topology", "zone")), 200),
        ("PATCH", "/api/v1/nodes/n1", labels("example.com/disk".to_owned()), 200),
        ("PATCH", "/api/v1/nodes/n1", labels(role.clone()), 403),
        ("PATCH", "/api/v1/nodes/n1", labels(secure.clone()), 403),
        ("PATCH", "/api/v1/nodes/n1/status", labels(secure), 403),
        ("PATCH", "/api/v1/nodes/n1", taints, 403),
        ("PATCH", "/api/v1/nodes/n1", owners.clone(), 403),
        ("POST", "/api/v1/nodes", owners, 403),
        ("PATCH", "/api/v1/nodes/n1", source.clone(), 403),
        ("POST", "/api/v1/nodes", source, 403),
        ("DELETE", "/api/v1/nodes/n1", json!({}), 403),
        ("POST", "/api/v1/nodes", json!({"metadata": {"name": "n1", "labels": {role: ""}}}), 403),
        ("PATCH", &format!("{claim}/status"), capacity, 200),
        ("PATCH", &format!("{claim}/status"), json!({"status": {"phase": "Lost"}}), 403),
        ("PATCH", &format!("{claim}/status"), labels("a".to_owned()), 403),
    ] {
        assert_eq!(send_as_node(&server, method, path, body).await, code, "{method} {path}");
    }
}

/// A proxy with a certificate of its own authority names users; other clients do not.
#[tokio::test]
async fn an_authenticating_proxy_names_users_in_headers() {
    let world = Fixture::new();
    let headers = RequestHeaderSettings {
        allowed_names: vec!["front".to_owned()],
        username: vec![HeaderName::from_static("x-remote-user")],
        group: vec![HeaderName::from_static("x-remote-group")],
        extra_prefix: vec!["x-remote-extra-".to_owned()],
    };
    let ca_file = world.dir.path().join("other.crt");
    let server = TestServer::with(Config {
        authorization: vec![AuthorizationMode::AlwaysDeny],
        request_headers: Some(RequestHeaderConfig { ca_file, headers }),
        ..world.config(Anonymous::Refused)
    })
    .await;
    let user = async |identity: &(String, String), name: &str| {
        let mut connection = server.connect_as(Some(identity)).await;
        let request =
            Request::get("/api/v1/pods").header("host", "t").header("x-remote-user", name);
        let request = request.body(Full::default()).unwrap();
        let answer = reply(connection.send_request(request).await.unwrap()).await;
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        match answer.code() {
            403 => message.split('"').nth(1).unwrap().to_owned(),
            code => code.to_string(),
        }
    };
    let proxy = client(&world.other, ("front", ""), DAY);
    assert_eq!(user(&proxy, "jane").await, "jane");
    assert_eq!(user(&proxy, "").await, "401", "the proxy itself is no user");
    assert_eq!(user(&client(&world.other, ("back", ""), DAY), "jane").await, "401");
    assert_eq!(user(&client(&world.other, ("front", ""), -DAY), "jane").await, "401");
    assert_eq!(user(&client(&world.trusted, ("front", ""), DAY), "jane").await, "front");
    // Servers that delegate authentication learn whom to believe.
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let data = server.get(path).await.expect(200)["data"].clone();
    assert_eq!(data["requestheader-allowed-names"], r#"["front"]"#);
    assert_eq!(data["requestheader-username-headers"], r#"["x-remote-user"]"#);
    let file = |name: &str| std::fs::read_to_string(world.dir.path().join(name)).unwrap();
    assert_eq!(data["requestheader-client-ca-file"], file("other.crt"));
    assert!(data["client-ca-file"].as_str().unwrap().starts_with(&file("ca.crt")));
}

#[tokio::test]
async fn abac_policies_allow_the_requests_that_they_match() {
    let world = Fixture::new();
    let policy_file = world.dir.path().join("policies");
    let policy = r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"*","resource":"pods","readonly":true}}"#;
    std::fs::write(&policy_file, policy).unwrap();
    let server = TestServer::with(Config {
        authorization: vec![AuthorizationMode::Abac],
        policy_file: Some(policy_file),
        ..world.config(Anonymous::Refused)
    })
    .await;
    assert_eq!(ask(&server, None, "secret", "/api/v1/pods").await.code(), 200);
    let denied = ask(&server, None, "secret", "/api/v1/secrets").await.expect(403);
    let message = denied["message"].as_str().unwrap();
    assert!(message.ends_with("at the cluster scope: No policy matched."), "{message}");
}

#[tokio::test]
async fn a_module_without_its_file_keeps_the_server_from_starting() {
    for mode in [AuthorizationMode::Abac, AuthorizationMode::Webhook] {
        let config = Config { authorization: vec![mode], ..Config::for_tests(kubernetes()) };
        let error = orch_apiserver::build(config).await.map(|_| ()).unwrap_err().to_string();
        assert!(
            error.starts_with("--authorization-mode=") && error.contains(" needs --"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_file_without_its_module_and_a_module_twice_keep_the_server_from_starting() {
    let world = Fixture::new();
    let refused = async |config: Config| {
        proto_daemon::exit::chain(&orch_apiserver::build(config).await.map(|_| ()).unwrap_err())
    };
    let policy_file = Some(world.dir.path().join("tokens"));
    let unused = refused(Config { policy_file, ..Config::for_tests(kubernetes()) }).await;
    assert!(unused.starts_with("--authorization-policy-file is given"), "{unused}");
    let authorization = vec![AuthorizationMode::Rbac, AuthorizationMode::Rbac];
    let twice = refused(Config { authorization, ..Config::for_tests(kubernetes()) }).await;
    assert!(twice.ends_with("twice"), "{twice}");
    let headers = RequestHeaderSettings::default();
    let ca_file = world.dir.path().join("ca.crt");
    let request_headers = Some(RequestHeaderConfig { ca_file, headers });
    let shared = Config { request_headers, ..world.config(Anonymous::Refused) };
    let shared = refused(shared).await;
    assert!(shared.contains("--requestheader-allowed-names"), "{shared}");
}

/// A token that names no audience is meant for this server only.
#[tokio::test]
async fn a_review_for_another_audience_knows_no_token_of_this_server() {
    let world = Fixture::new();
    let server = world.server(Anonymous::Refused).await;
    let review = async |audiences: Value| {
        let body = json!({"spec": {"token": "secret", "audiences": audiences}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        server.post(path, body.to_string()).await.expect(201)["status"].clone()
    };
    let own = "https://kubernetes.default.svc.cluster.local";
    assert_eq!(review(json!([])).await["authenticated"], true);
    assert_eq!(review(json!(["vault", own])).await["audiences"], json!([own]));
    assert_eq!(review(json!(["vault"])).await["authenticated"], Value::Null);
}

/// A service that cannot be asked fails the request, and is not a denial.
#[tokio::test]
async fn an_authorization_webhook_that_does_not_answer_is_an_error() {
    let world = Fixture::new();
    let config_file = world.dir.path().join("webhook.conf");
    let config = json!({
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "current-context": "c",
    });
    std::fs::write(&config_file, config.to_string()).unwrap();
    let settings = AuthorizationWebhookSettings {
        config_file,
        version: ReviewVersion::V1,
        authorized_ttl: std::time::Duration::from_secs(60),
        unauthorized_ttl: std::time::Duration::from_secs(60),
    };
    let modes = |last| vec![AuthorizationMode::Webhook, last];
    let with = |authorization| Config {
        authorization,
        authorization_webhook: Some(settings.clone()),
        ..world.config(Anonymous::Refused)
    };
    let server = TestServer::with(with(modes(AuthorizationMode::AlwaysDeny))).await;
    let failed = ask(&server, None, "secret", "/api/v1/pods").await.expect(500);
    assert!(failed["message"].as_str().unwrap().contains("webhook"), "{failed}");
    let server = TestServer::with(with(modes(AuthorizationMode::AlwaysAllow))).await;
    assert_eq!(ask(&server, None, "secret", "/api/v1/pods").await.code(), 200);
}

/// A dry run and the form of a review that names a namespace are decided like the real requests.
#[tokio::test]
async fn dry_runs_and_local_reviews_are_decided_as_what_they_stand_for() {
    let world = Fixture::new();
    let policy_file = world.dir.path().join("policies");
    let line = |spec: &str| {
        format!(
            r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{spec}}}"#
        )
    };
    let policies = [
        line(r#"{"user":"alice","namespace":"default","resource":"configmaps","readonly":true}"#),
        line(
            r#"{"user":"alice","namespace":"*","resource":"*","apiGroup":"authorization.k8s.io"}"#,
        ),
    ];
    std::fs::write(&policy_file, policies.join("\n")).unwrap();
    let server = TestServer::with(Config {
        authorization: vec![AuthorizationMode::Abac],
        policy_file: Some(policy_file),
        ..world.config(Anonymous::Refused)
    })
    .await;
    let headers = [("authorization", "Bearer secret"), ("content-type", "application/json")];
    let post = async |path: &str, body: Value| {
        let method = http::Method::POST;
        server.without_certificate(method, path, &headers, &body.to_string()).await
    };
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(ask(&server, None, "secret", maps).await.code(), 200);
    let map = json!({"metadata": {"name": "a"}});
    for query in ["", "?dryRun=All"] {
        assert_eq!(post(&format!("{maps}{query}"), map.clone()).await.code(), 403, "{query}");
    }
    let reviews = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let review = |verb: &str, namespace: &str| {
        let attributes = json!({"verb": verb, "resource": "configmaps", "namespace": namespace});
        json!({"metadata": {"namespace": namespace}, "spec": {"user": "alice", "resourceAttributes": attributes}})
    };
    let allowed = post(reviews, review("list", "default")).await.expect(201);
    assert_eq!(allowed["status"]["allowed"], true, "{allowed}");
    let denied = post(reviews, review("create", "default")).await.expect(201);
    assert_eq!(denied["status"]["allowed"], false, "{denied}");
    post(reviews, review("list", "other")).await.expect(422);
}

#[tokio::test]
async fn users_groups_uids_and_extra_are_impersonated_by_rights_of_their_own() {
    let world = Fixture::new();
    let authorization = vec![AuthorizationMode::Rbac];
    let config = Config { authorization, ..world.config(Anonymous::Refused) };
    let server = TestServer::with(config).await;
    let allow = async |name: &str, group: &str, resource: &str, of: &str| {
        let api = "rbac.authorization.k8s.io";
        let role = json!({
            "metadata": {"name": name},
            "rules": [{"apiGroups": [group], "resources": [resource], "resourceNames": [of], "verbs": ["impersonate"]}],
        });
        server.post(&format!("/apis/{api}/v1/clusterroles"), role.to_string()).await.expect(201);
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": api, "kind": "User", "name": "alice"}],
        });
        let path = format!("/apis/{api}/v1/clusterrolebindings");
        server.post(&path, binding.to_string()).await.expect(201);
    };
    let denied = async |headers: &[(&str, &str)]| {
        let all = [&[("authorization", "Bearer secret")][..], headers].concat();
        let path = "/api/v1/nodes";
        let answer = server.without_certificate(http::Method::GET, path, &all, "").await;
        answer.expect(403)["message"].as_str().unwrap().to_owned()
    };
    let (bob, dev) = (("impersonate-user", "bob"), ("impersonate-group", "dev"));
    let extra = ("impersonate-extra-scopes", "view");
    allow("bob", "", "users", "bob").await;
    assert!(denied(&[bob]).await.contains("User \"bob\" cannot list"));
    let other = denied(&[("impersonate-user", "eve")]).await;
    assert!(other.contains("User \"alice\" cannot impersonate resource \"users\""), "{other}");
    let group = denied(&[bob, dev]).await;
    assert!(group.contains("cannot impersonate resource \"groups\""), "{group}");
    allow("dev", "", "groups", "dev").await;
    assert!(denied(&[bob, dev]).await.contains("User \"bob\" cannot list"));
    let scopes = denied(&[bob, extra]).await;
    assert!(scopes.contains("cannot impersonate resource \"userextras"), "{scopes}");
    allow("scopes", "authentication.k8s.io", "userextras/scopes", "view").await;
    assert!(denied(&[bob, dev, extra]).await.contains("User \"bob\" cannot list"));
    let uid = ("impersonate-uid", "b1");
    let uids = denied(&[bob, uid]).await;
    let why = "cannot impersonate resource \"uids\" in API group \"authentication.k8s.io\"";
    assert!(uids.contains(why), "{uids}");
    allow("uid", "authentication.k8s.io", "uids", "b1").await;
    assert!(denied(&[bob, dev, extra, uid]).await.contains("User \"bob\" cannot list"));
    let other = denied(&[bob, ("impersonate-uid", "b2")]).await;
    assert!(other.contains(why), "{other}");
    let headers = [("authorization", "Bearer secret"), uid];
    let nameless = server.without_certificate(http::Method::GET, "/api", &headers, "").await;
    assert_eq!(nameless.code(), 400, "a uid without a user");
}

/// What the server writes down of a requester is what the headers say.
#[tokio::test]
async fn a_request_has_the_uid_that_is_impersonated() {
    let server = TestServer::start().await;
    let request = base64::engine::general_purpose::STANDARD.encode(crate::rules::pem("team"));
    let spec =
        json!({"signerName": "example.com/a", "usages": ["client auth"], "request": request});
    let body = json!({"metadata": {"name": "a"}, "spec": spec}).to_string();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = Request::post(path)
        .header("host", "test")
        .header("content-type", "application/json")
        .header("impersonate-user", "bob")
        .header("impersonate-uid", "b1")
        .header("impersonate-group", "system:masters");
    let made = server.send(request.body(Full::new(Bytes::from(body))).unwrap()).await.expect(201);
    assert_eq!((&made["spec"]["username"], &made["spec"]["uid"]), (&json!("bob"), &json!("b1")));
}
