//! What the token of a pod without rights is tried for, and what without any credentials.

use serde_json::{Value, json};

use super::target::Target;
use super::{Attempt, core, in_group, own_review, within};

/// Discovery, and nothing beyond.
pub fn of_pod(t: &Target) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let here = |rest: &str| within(&t.ns, rest);
    let (review, attributes) = own_review(t.names);
    let others = in_group(t.names, "authorization", "subjectaccessreviews");
    vec![
        ("GET", "/api".into(), none(), 200),
        ("GET", "/apis".into(), none(), 200),
        ("GET", "/openapi/v2".into(), none(), 200),
        ("GET", "/version".into(), none(), 200),
        ("GET", "/.well-known/openid-configuration".into(), none(), 200),
        ("POST", review, attributes.clone(), 201),
        ("POST", others, attributes, 403),
        ("GET", "/metrics".into(), none(), 403),
        ("GET", here("pods"), none(), 403),
        ("GET", here("secrets/ours"), none(), 403),
        ("GET", here("configmaps"), none(), 403),
        ("GET", core("nodes"), none(), 403),
        ("GET", core(&t.named("nodes/OWN/proxy/pods")), none(), 403),
        ("GET", core("namespaces"), none(), 403),
        ("POST", here("pods"), json!({"metadata": {"name": "a"}}), 403),
        ("POST", here("pods/here/exec?command=id"), none(), 403),
        ("POST", here("serviceaccounts/default/token"), json!({}), 403),
        ("GET", here("serviceaccounts/default"), none(), 403),
        ("POST", in_group(t.names, "rbac.authorization", "clusterrolebindings"), json!({}), 403),
        ("POST", in_group(t.names, "certificates", "certificatesigningrequests"), json!({}), 403),
        ("DELETE", core(&format!("namespaces/{}", t.ns)), none(), 403),
    ]
}

/// Health and version, and nothing beyond.
pub fn of_nobody(t: &Target) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let public = ["/healthz", "/livez", "/readyz", "/version"];
    let info = || within(t.names.public_namespace(), "configmaps/cluster-info");
    // Where hosts join they find the cluster by it: its address, its authority, and signatures.
    let found = if t.join_token.is_some() { 200 } else { 403 };
    let closed = [
        "/".to_owned(),
        "/api".to_owned(),
        "/apis".to_owned(),
        "/openapi/v2".to_owned(),
        "/metrics".to_owned(),
        "/.well-known/openid-configuration".to_owned(),
        core("namespaces"),
        within(&t.ns, "secrets"),
        core(&t.named("nodes/OWN/proxy/pods")),
    ];
    let public = public.into_iter().map(|path| ("GET", path.to_owned(), none(), 200));
    let closed = closed.into_iter().map(|path| ("GET", path, none(), 403));
    let of_info = [
        ("GET", info(), none(), found),
        ("PATCH", info(), json!({"data": {"kubeconfig": "{}"}}), 403),
        ("GET", within(t.names.public_namespace(), "configmaps"), none(), 403),
    ];
    public.chain(closed).chain(of_info).collect()
}
