//! Authorization by roles, bindings and the pods of a node, compared with the answers of Kubernetes' own server.

use http::Method;
use orch_apiserver::Config;
use orch_apiserver::config::{AuthorizationMode, Storage};
use serde_json::{Value, json};

use crate::support::{Reply, TestServer, kubernetes, orch};

const NODE_TOKENS: &str = "admin,admin,u1,system:masters\nn1,system:node:n1,u2,system:nodes\nn2,system:node:n2,u3,system:nodes\nfake,system:node:n1,u4\n";

pub const TOKENS: &str = "admin,admin,u1,system:masters\njane,jane,u2,devs\njoe,joe,u3\nann,ann,u4,\"ops,auditors\"\nowner,owner,u5\n";

pub async fn server(
    dir: &tempfile::TempDir,
    tokens: &str,
    authorization: Vec<AuthorizationMode>,
) -> TestServer {
    let path = dir.path().join("tokens.csv");
    std::fs::write(&path, tokens).expect("written");
    let config =
        Config { authorization, token_auth_file: Some(path), ..Config::for_tests(kubernetes()) };
    TestServer::with(config).await
}

pub async fn ask(server: &TestServer, who: &str, method: &str, path: &str, body: &str) -> Reply {
    let method: Method = method.parse().expect("a method");
    let (token, impersonated) = who.split_once(" as ").unwrap_or((who, ""));
    let mut headers = Vec::new();
    let bearer = format!("Bearer {token}");
    if token != "-" {
        headers.push(("authorization", bearer.as_str()));
    }
    if !impersonated.is_empty() {
        headers.push(("impersonate-user", impersonated));
    }
    let patch = method == Method::PATCH;
    let media = if patch { "application/merge-patch+json" } else { "application/json" };
    headers.push(("content-type", media));
    server.without_certificate(method, path, &headers, body).await
}

/// The status of a review with its lists sorted: their order is that of the bindings.
fn sorted(mut status: Value) -> Value {
    for field in ["resourceRules", "nonResourceRules"] {
        if let Some(rules) = status.get_mut(field).and_then(Value::as_array_mut) {
            rules.sort_by_key(|rule| format!("{}{}", rule["resources"], rule["nonResourceURLs"]));
        }
    }
    status
}

#[tokio::test]
async fn every_request_is_decided_by_roles_as_by_kubernetes() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(&dir, TOKENS, vec![AuthorizationMode::Rbac]).await;
    compare(&server, include_str!("rbac.tsv"), str::to_owned).await;
}

#[tokio::test]
async fn every_request_of_a_kubelet_is_decided_as_by_kubernetes() {
    let dir = tempfile::tempdir().expect("a directory");
    let modes = vec![AuthorizationMode::Node, AuthorizationMode::Rbac];
    let server = server(&dir, NODE_TOKENS, modes).await;
    compare(&server, include_str!("node_authorizer.tsv"), str::to_owned).await;
}

#[tokio::test]
async fn a_mirror_pod_gives_its_kubelet_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    for modes in [
        vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
        vec![AuthorizationMode::AlwaysAllow],
    ] {
        let server = server(&dir, NODE_TOKENS, modes).await;
        let ask = |method: &'static str, path: &'static str, body: String| {
            let server = &server;
            async move { ask(server, "n1", method, path, &body).await }
        };
        let secrets = "/api/v1/namespaces/default/secrets";
        server.post(secrets, r#"{"metadata":{"name":"s"}}"#).await.expect(201);
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        server.post(accounts, r#"{"metadata":{"name":"default"}}"#).await.expect(201);
        let node = server.post("/api/v1/nodes", r#"{"metadata":{"name":"n1"}}"#).await.expect(201);
        let owners = json!([{
            "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"], "controller": true,
        }]);
        let pod = |spec: &str| {
            let annotations = r#"{"kubernetes.io/config.mirror":"x"}"#;
            format!(
                r#"{{"metadata":{{"name":"m","annotations":{annotations},"ownerReferences":{owners}}},"spec":{{"nodeName":"n1","containers":[{{"name":"c","image":"i"}}]{spec}}}}}"#
            )
        };
        let pods = "/api/v1/namespaces/default/pods";
        for spec in [
            r#","volumes":[{"name":"v","secret":{"secretName":"s"}}]"#,
            r#","volumes":[{"name":"v","projected":{"sources":[{"secret":{"name":"s"}}]}}]"#,
            r#","volumes":[{"name":"v","configMap":{"name":"s"}}]"#,
            r#","volumes":[{"name":"v","persistentVolumeClaim":{"claimName":"s"}}]"#,
            r#","imagePullSecrets":[{"name":"s"}]"#,
            r#","serviceAccountName":"default""#,
        ] {
            let refused = ask("POST", pods, pod(spec)).await.expect(403);
            let message = refused["message"].as_str().unwrap_or_default();
            assert!(message.contains("can not create pods that reference"), "{message}");
        }
        ask("POST", pods, pod("")).await.expect(201);
        let without = r#"{"metadata":{"annotations":{"kubernetes.io/config.mirror":null}}}"#;
        let path = "/api/v1/namespaces/default/pods/m/status";
        let refused = ask("PATCH", path, without.to_owned()).await.expect(422);
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains("may not remove or update mirror pod annotation"), "{message}");
        let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let bound = r#"{"spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"m"}}}"#;
        assert!(ask("POST", token, bound.to_owned()).await.code() >= 400);
    }
}

/// What roles give a kubelet beyond its own is still no way to other nodes' pods and objects.
#[tokio::test]
async fn a_kubelet_with_every_right_is_restricted() {
    let dir = tempfile::tempdir().expect("a directory");
    let modes = vec![AuthorizationMode::Node, AuthorizationMode::Rbac];
    let tokens = format!("{NODE_TOKENS}nameless,system:node:,u5,system:nodes\n");
    let server = server(&dir, &tokens, modes).await;
    let binding = json!({
        "metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    server.post(bindings, binding.to_string()).await.expect(201);
    let space = "/api/v1/namespaces/default";
    let accounts = format!("{space}/serviceaccounts");
    server.post(&accounts, r#"{"metadata":{"name":"default"}}"#).await.expect(201);
    let spec = r#"{"nodeName":"n1","automountServiceAccountToken":false,"containers":[{"name":"c","image":"i"}]}"#;
    let pod = format!(r#"{{"metadata":{{"name":"p"}},"spec":{spec}}}"#);
    server.post(&format!("{space}/pods"), pod.clone()).await.expect(201);
    let claim = r#"{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}"#;
    server.post(&format!("{space}/persistentvolumeclaims"), claim).await.expect(201);
    let label = r#"{"metadata":{"labels":{"a":"b"}}}"#;
    let lease = r#"{"metadata":{"name":"n1"}}"#;
    let token = |bound: &str| format!(r#"{{"spec":{{"boundObjectRef":{bound}}}}}"#);
    let by_name = token(r#"{"apiVersion":"v1","kind":"Pod","name":"p"}"#);
    let of_secret = token(r#"{"apiVersion":"v1","kind":"Secret","name":"p","uid":"x"}"#);
    let of_node = token(r#"{"apiVersion":"v1","kind":"Node","name":"n2","uid":"x"}"#);
    let unexpected = |subresource: &str| {
        format!(
            "unexpected pod subresource \"{subresource}\", only 'status' and 'eviction' are allowed"
        )
    };
    let only_mirrors = "node \"n1\" can only create and delete mirror pods";
    let only_mirrors = format!("unexpected operation \"UPDATE\", {only_mirrors}");
    let not_annotated = "pod does not have \"kubernetes.io/config.mirror\" annotation".to_owned();
    let claim_status = "may only update PVC status".to_owned();
    let leases = "can only access leases in the \"kube-node-lease\" system namespace".to_owned();
    let unbound = "node requested token not bound to a pod".to_owned();
    let no_uid = "node requested token with a pod binding without a uid".to_owned();
    let nameless = "could not determine node from user \"system:node:\"".to_owned();
    let target = r#"{"metadata":{"name":"p"},"target":{"name":"n1"}}"#;
    for (who, method, path, body, why) in [
        ("n1", "PATCH", "/pods/p", label, only_mirrors),
        ("n1", "PATCH", "/pods/p/ephemeralcontainers", "{}", unexpected("ephemeralcontainers")),
        ("n1", "POST", "/pods/p/binding", target, unexpected("binding")),
        ("n1", "POST", "/pods", &pod, not_annotated),
        ("n1", "POST", "/persistentvolumeclaims", claim, claim_status.clone()),
        ("n1", "PATCH", "/persistentvolumeclaims/c", label, claim_status.clone()),
        ("n1", "DELETE", "/persistentvolumeclaims/c", "", claim_status),
        ("n1", "POST", "/leases", lease, leases),
        ("n1", "POST", "/serviceaccounts/default/token", r#"{"spec":{}}"#, unbound.clone()),
        ("n1", "POST", "/serviceaccounts/default/token", &of_secret, unbound.clone()),
        ("n1", "POST", "/serviceaccounts/default/token", &of_node, unbound),
        ("n1", "POST", "/serviceaccounts/default/token", &by_name, no_uid),
        ("nameless", "POST", "/configmaps", lease, nameless.clone()),
        ("nameless", "DELETE", "/serviceaccounts/default", "", nameless),
    ] {
        let path = match path {
            "/leases" => "/apis/coordination.k8s.io/v1/namespaces/default/leases".to_owned(),
            path => format!("{space}{path}"),
        };
        let refused = ask(&server, who, method, &path, body).await.expect(403);
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains(&why), "{who} {method} {path}: {message}");
    }
}

/// Administrators with a kubelet's name or its group alone are no kubelets: they change what every administrator does, whichever modules decide.
#[tokio::test]
async fn an_administrator_that_is_half_a_kubelet_is_not_restricted() {
    let dir = tempfile::tempdir().expect("a directory");
    let tokens = "named,system:node:n2,u1,system:masters\ngrouped,boss,u2,\"system:masters,system:nodes\"\nchief,system:node:n2,u3,\"system:nodes,system:masters\"\n";
    for modes in [
        vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
        vec![AuthorizationMode::AlwaysAllow],
    ] {
        let server = server(&dir, tokens, modes).await;
        let space = "/api/v1/namespaces/default";
        let account = r#"{"metadata":{"name":"default"}}"#;
        server.post(&format!("{space}/serviceaccounts"), account).await.expect(201);
        server.post("/api/v1/nodes", r#"{"metadata":{"name":"n1"}}"#).await.expect(201);
        let container = r#"{"name":"c","image":"i"}"#;
        let pod = |name: &str| {
            format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"nodeName":"n1","containers":[{container}]}}}}"#
            )
        };
        server.post(&format!("{space}/pods"), pod("p")).await.expect(201);
        let taint = r#"{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}"#;
        let label = r#"{"metadata":{"labels":{"a":"b"}}}"#;
        let role = r#"{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}"#;
        let dry = "dryRun=All";
        for (method, path, body, code) in [
            ("PATCH", format!("/api/v1/nodes/n1?{dry}"), taint, 200),
            ("PATCH", format!("/api/v1/nodes/n1?{dry}"), role, 200),
            ("DELETE", format!("/api/v1/nodes/n1?{dry}"), "", 200),
            ("POST", format!("{space}/pods?{dry}"), &pod("new"), 201),
            ("PATCH", format!("{space}/pods/p?{dry}"), label, 200),
            ("DELETE", format!("{space}/pods/p?{dry}"), "", 200),
            ("POST", format!("{space}/serviceaccounts/default/token"), r#"{"spec":{}}"#, 201),
        ] {
            for who in ["named", "grouped"] {
                ask(&server, who, method, &path, body).await.expect(code);
            }
            ask(&server, "chief", method, &path, body).await.expect(403);
        }
    }
}

/// A kubelet with the right to request any token gets those of its own pods, each of the pod's own account.
#[tokio::test]
async fn a_kubelet_gets_tokens_of_the_pods_of_its_node() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(&dir, NODE_TOKENS, vec![AuthorizationMode::AlwaysAllow]).await;
    let space = "/api/v1/namespaces/default";
    for name in ["default", "other"] {
        let account = json!({"metadata": {"name": name}}).to_string();
        server.post(&format!("{space}/serviceaccounts"), account).await.expect(201);
    }
    let create = async |name: &str, node: &str, account: &str| {
        let container = json!({"name": "c", "image": "i"});
        let spec =
            json!({"nodeName": node, "serviceAccountName": account, "containers": [container]});
        let pod = json!({"metadata": {"name": name}, "spec": spec}).to_string();
        server.post(&format!("{space}/pods"), pod).await.expect(201)["metadata"]["uid"].clone()
    };
    let (here, there) =
        (create("here", "n1", "default").await, create("there", "n2", "other").await);
    let waiting = create("waiting", "", "default").await;
    let node = "node requested token not bound to a pod scheduled on this node";
    let other_account = "to pod running with different serviceaccount name";
    for (who, account, pod, uid, code, why) in [
        ("n1", "default", "here", &here, 201, ""),
        ("n2", "other", "there", &there, 201, ""),
        ("n1", "other", "there", &there, 403, node),
        ("n2", "default", "here", &here, 403, node),
        ("n1", "default", "waiting", &waiting, 403, node),
        // The uid of a pod of its own with the name of another.
        ("n1", "other", "there", &here, 409, "does not match the UID in record"),
        ("n1", "other", "here", &here, 400, other_account),
        ("admin", "other", "there", &there, 201, ""),
    ] {
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
        let body = json!({"spec": {"boundObjectRef": bound}}).to_string();
        let path = format!("{space}/serviceaccounts/{account}/token");
        let answer = ask(&server, who, "POST", &path, &body).await.expect(code);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains(why), "{who} {account} {pod}: {message}");
    }
}

/// Makes the requests of a table, with the token that `bearer` makes of who asks, and compares code, message and status of reviews.
pub async fn compare(server: &TestServer, table: &str, bearer: impl Fn(&str) -> String) {
    let (mut rows, mut different) = (0, Vec::new());
    for row in table.lines().filter(|line| !line.starts_with('#')) {
        let [who, method, path, body, code, answer] = row.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("a row of six columns: {row}");
        };
        let (name, impersonated) = who.split_once(" as ").unwrap_or((who, ""));
        let token = match (bearer(name), impersonated) {
            (token, "") => token,
            (token, other) => format!("{token} as {other}"),
        };
        let reply = ask(server, &token, method, path, body).await;
        let own = match reply.json_or_null() {
            json if reply.code() >= 400 => {
                json["message"].as_str().unwrap_or_default().replace('\n', "\\n").into()
            }
            json => sorted(json["status"].clone()),
        };
        let expected = serde_json::from_str(answer).map_or_else(|_| answer.into(), sorted);
        // An empty answer is not compared: a page, a list, an object.
        if reply.code().to_string() != code || !(answer.is_empty() || expected == own) {
            different.push(format!(
                "{who} {method} {path} {body}\n- {code} {expected}\n+ {} {own}",
                reply.code()
            ));
        }
        rows += 1;
    }
    assert!(rows > 100);
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[tokio::test]
async fn roles_of_the_bootstrap_policy_get_back_what_they_lack() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = || Config {
        authorization: vec![AuthorizationMode::Rbac],
        storage: Storage::Directory(dir.path().join("data")),
        cert_dir: Some(dir.path().join("pki")),
        ..Config::for_tests(orch())
    };
    let server = TestServer::with(config()).await;
    let group = server.names.group("rbac.authorization");
    let path = |resource: &str, name: &str| format!("/apis/{group}/v1/{resource}/{name}");
    let annotation = server.names.sub_label("rbac.authorization", "autoupdate");
    let proxier = path("clusterroles", "system:node-proxier");
    let scheduler = path("clusterrolebindings", "system:orch-scheduler");
    let monitoring = path("clusterroles", "system:monitoring");
    let discovery = path("clusterrolebindings", "system:discovery");
    let whole = server.get(&proxier).await.expect(200);
    let revision = whole["metadata"]["resourceVersion"].clone();
    let own = r#"{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}"#;
    server.merge_patch(&proxier, own).await.expect(200);
    server.merge_patch(&scheduler, r#"{"subjects":[]}"#).await.expect(200);
    let kept = format!(r#"{{"metadata":{{"annotations":{{"{annotation}":"false"}}}},"rules":[]}}"#);
    server.merge_patch(&monitoring, &kept).await.expect(200);
    server.delete(&discovery).await.expect(200);
    server.stop().await;

    let server = TestServer::with(config()).await;
    let mended = server.get(&proxier).await.expect(200);
    let rules = mended["rules"].as_array().expect("rules");
    assert!(rules.len() > 4 && rules[0]["resources"][0] == "pods", "{rules:?}");
    let binding = server.get(&scheduler).await.expect(200);
    assert_eq!(binding["subjects"][0]["name"], "system:orch-scheduler");
    assert_eq!(
        server.get(&monitoring).await.expect(200)["rules"].as_array().map_or(0, Vec::len),
        0
    );
    server.get(&discovery).await.expect(200);
    let changed = mended["metadata"]["resourceVersion"].clone();
    assert_ne!(changed, revision);
    server.stop().await;

    let server = TestServer::with(config()).await;
    let unchanged = server.get(&proxier).await.expect(200);
    assert_eq!(unchanged["metadata"]["resourceVersion"], changed);
}
