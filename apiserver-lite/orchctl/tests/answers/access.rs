//! `auth reconcile`: what it keeps, and what it loses.

use crate::server::{Answer, Server};

async fn reconcile(server: &Server, role: &str, subject: &str) -> Answer {
    let file = server.path().join("binding.yaml");
    let manifest = format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: b, namespace: default}}\n\
         roleRef: {role}\nsubjects: [{subject}]\n"
    );
    std::fs::write(&file, manifest).expect("a file");
    server.ask(&["auth", "reconcile", "-f", &file.display().to_string()]).await
}

const SUBJECT: &str = "{kind: ServiceAccount, apiGroup: '', name: s, namespace: default}";
const ROLE: &str = "{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}";

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_is_reconciled_once() {
    let server = Server::start().await;
    let first = reconcile(&server, ROLE, SUBJECT).await;
    assert!(first.err.contains("reconciliation required create"), "{}", first.err);
    let second = reconcile(&server, ROLE, SUBJECT).await;
    assert_eq!((second.code, second.err.as_str()), (Some(0), ""));
    let subjects = "jsonpath={.subjects[*].name}";
    assert_eq!(server.run(&["get", "rolebinding/b", "-o", subjects]).await, "s");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_cannot_be_created_again_is_not_deleted() {
    let server = Server::start().await;
    assert_eq!(reconcile(&server, ROLE, SUBJECT).await.code, Some(0));
    let uid = server.uid("rolebinding/b").await;
    let role = "jsonpath={.roleRef.name}";
    let refused = reconcile(&server, "{kind: Node, name: edit}", SUBJECT).await;
    assert_eq!(refused.code, Some(1), "{}", refused.err);
    assert!(refused.err.contains("roleRef.kind"), "{}", refused.err);
    assert_eq!(server.uid("rolebinding/b").await, uid);
    let other = reconcile(&server, &ROLE.replace("view", "edit"), SUBJECT).await;
    assert_eq!(other.code, Some(0), "{}", other.err);
    assert!(other.err.contains("reconciliation required recreate"), "{}", other.err);
    assert_eq!(server.run(&["get", "rolebinding/b", "-o", role]).await, "edit");
}
