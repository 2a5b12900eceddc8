//! Who approves and signs requests for certificates, and what nobody may request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orch_apiserver::config::AuthorizationMode;
use serde_json::{Value, json};

use crate::rbac::{TOKENS, ask, server};
use crate::rules::pem;
use crate::support::TestServer;

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

async fn create(server: &TestServer, path: &str, body: Value) {
    ask(server, "admin", "POST", path, &body.to_string()).await.expect(201);
}

/// Lets a user write the subresources of requests, and approve and sign for `signer`, if it names one.
async fn grant(server: &TestServer, user: &str, signer: &str) {
    let rbac = "rbac.authorization.k8s.io";
    let write = ["certificatesigningrequests/approval", "certificatesigningrequests/status"];
    let mut rules = vec![json!({"apiGroups": [GROUP], "resources": write, "verbs": ["patch"]})];
    if !signer.is_empty() {
        let verbs = ["approve", "sign"];
        rules.push(json!({"apiGroups": [GROUP], "resources": ["signers"], "resourceNames": [signer], "verbs": verbs}));
    }
    let metadata = json!({"name": user});
    let path = format!("/apis/{rbac}/v1/clusterroles");
    create(server, &path, json!({"metadata": metadata, "rules": rules})).await;
    let subject = json!({"kind": "User", "name": user, "apiGroup": rbac});
    let role = json!({"kind": "ClusterRole", "name": user, "apiGroup": rbac});
    let path = format!("/apis/{rbac}/v1/clusterrolebindings");
    create(server, &path, json!({"metadata": metadata, "subjects": [subject], "roleRef": role}))
        .await;
}

fn request(name: &str, signer: &str, organization: &str) -> Value {
    let request = STANDARD.encode(pem(organization));
    let spec = json!({"signerName": signer, "usages": ["client auth"], "request": request});
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn approving_and_signing_require_permission_for_the_signer() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = server(&dir, TOKENS, vec![AuthorizationMode::Rbac]).await;
    for (user, signer) in [("jane", "example.com/one"), ("joe", "example.com/*"), ("ann", "")] {
        grant(&server, user, signer).await;
    }
    for name in ["one", "two"] {
        create(&server, REQUESTS, request(name, &format!("example.com/{name}"), "team")).await;
    }
    let condition = json!({"type": "Approved", "status": "True", "reason": "Test"});
    let failed = json!({"type": "Failed", "status": "True", "reason": "Test"});
    let approve = json!({"status": {"conditions": [condition]}}).to_string();
    let note = json!({"metadata": {"labels": {"a": "b"}}}).to_string();
    let sign = json!({"status": {"conditions": [condition, failed]}}).to_string();
    for (user, request, part, body, code) in [
        ("ann", "one", "approval", &approve, 403),
        ("jane", "two", "approval", &approve, 403),
        ("jane", "one", "approval", &approve, 200),
        ("joe", "two", "approval", &approve, 200),
        ("ann", "one", "status", &note, 200),
        ("ann", "one", "status", &sign, 403),
        ("jane", "one", "status", &sign, 200),
    ] {
        let path = format!("{REQUESTS}/{request}/{part}");
        let answer = ask(&server, user, "PATCH", &path, body).await.expect(code);
        if code == 403 {
            let verb = if part == "status" { "sign" } else { "approve" };
            let why = format!(
                "user not permitted to {verb} requests with signerName \"example.com/{request}\""
            );
            assert!(
                answer["message"].as_str().is_some_and(|text| text.ends_with(&why)),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn certificate_requests_for_system_masters_are_refused() {
    let server = TestServer::start().await;
    let client = "kubernetes.io/kube-apiserver-client";
    let masters = "system:masters";
    for (signer, organization, code) in
        [(client, masters, 403), (client, "team", 201), ("example.com/own", masters, 201)]
    {
        let body = request(&format!("r{code}-{}", organization.len()), signer, organization);
        let answer = server.post(REQUESTS, body.to_string()).await.expect(code);
        if code == 403 {
            let why = format!("use of {client} signer with {masters} group is not allowed");
            assert!(
                answer["message"].as_str().is_some_and(|text| text.ends_with(&why)),
                "{answer}"
            );
        }
    }
}
