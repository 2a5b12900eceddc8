//! What somebody can do who has come by a credential of the cluster: of a node, of a pod, or none. The cluster runs as `hack/up` makes it.

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{Method, Request, header};
use orch_tests::wait::until;
use proto_api::authentication::v1::TokenRequest;
use proto_api::certificates::v1::CertificateSigningRequest;
use proto_api::core::v1::{Pod, ServiceAccount};
use proto_api::object::to_json_value;
use proto_client::config::file;
use proto_client::{Client, DeleteParams, SharedToken, WriteParams};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::context::{Context, PATIENCE};
use crate::pods::{WAIT, pod};

/// One attempt: method, path, body, and the answer's status.
type Attempt<'a> = (&'a str, String, Value, u16);

/// The answer's status for each attempt is the expected one; all others are reported together.
async fn check(who: &str, client: &Client, attempts: Vec<Attempt<'_>>) -> Result<()> {
    let mut wrong = Vec::new();
    for (method, path, body, expected) in attempts {
        let got = status(client, method, &path, &body).await?;
        if got != expected {
            wrong.push(format!("{method} {path}: {got}, expected {expected}"));
        }
    }
    ensure!(wrong.is_empty(), "as {who}:\n{}", wrong.join("\n"));
    Ok(())
}

async fn status(client: &Client, method: &str, path: &str, body: &Value) -> Result<u16> {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let media = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(Method::from_bytes(method.as_bytes())?)
        .uri(path)
        .header(header::CONTENT_TYPE, media)
        .body(Bytes::from(text))?;
    match client.call(request).await {
        Ok(answer) => Ok(answer.status),
        Err(error) => error.code().with_context(|| format!("{method} {path}: {error}")),
    }
}

/// Two Secrets, each used by a pod of another node. The second node is in the API only.
fn manifests(ns: &str) -> String {
    let secret = |name: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {ns}}}\nstringData: {{k: v}}\n"
        )
    };
    let on = |name: &str, node: &str, secret: &str| {
        let volume = format!("{{name: s, secret: {{secretName: {secret}}}}}");
        pod(ns, name, WAIT) + &format!("  nodeName: {node}\n  volumes: [{volume}]\n")
    };
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: elsewhere}\n".to_owned();
    let pods = [on("here", "node-1", "ours"), on("there", "elsewhere", "theirs")];
    [&[secret("ours"), secret("theirs"), node][..], &pods].concat().join("---\n")
}

pub async fn each_opens_only_what_it_is_for(c: &Context) -> Result<()> {
    let ns = c.namespace("stolen").await?;
    c.apply(&manifests(&ns)).await?;
    c.pod_ready(&ns, "here").await?;
    let done = try_all(c, &ns).await;
    let admin = &c.client;
    status(
        admin,
        "DELETE",
        &format!("/api/v1/namespaces/{ns}/pods/there"),
        &json!({"gracePeriodSeconds": 0}),
    )
    .await?;
    status(admin, "DELETE", "/api/v1/nodes/elsewhere", &Value::Null).await?;
    c.discard(&ns).await?;
    done
}

async fn try_all(c: &Context, ns: &str) -> Result<()> {
    let config = file::load(&c.spec.client_config("orchlet-node-1"), None)?;
    let node = Client::new(&config, c.names, "e2e")?;
    let there = c.client.within::<Pod>(ns).get("there").await?.metadata.uid;
    check("a node", &node, of_node(c, ns, &there)?).await?;
    certificates_of_another_node(c, &node).await?;

    let accounts = c.client.within::<ServiceAccount>(ns);
    let issued: TokenRequest =
        accounts.create_sub("default", "token", &TokenRequest::default()).await?;
    let token = SharedToken::default();
    token.set(&issued.status.token);
    let pod = c.client.anonymous()?.with_token(token);
    check("a pod", &pod, of_pod(c, ns)).await?;

    check("nobody", &c.client.anonymous()?, of_nobody(ns)).await
}

/// Requests for the certificates of another node wait for an administrator. The controllers take requests one by one: when a later one of the node's own is
/// signed, they have seen them.
async fn certificates_of_another_node(c: &Context, node: &Client) -> Result<()> {
    let (client, serving) = (c.names.node_client_signer(), c.names.node_serving_signer());
    let all = [
        ("stolen-client", &client, "elsewhere", "client auth", vec![]),
        ("stolen-serving", &serving, "elsewhere", "server auth", vec!["elsewhere".to_owned()]),
        ("stolen-own", &client, "node-1", "client auth", vec![]),
    ];
    for (name, signer, of, usage, hosts) in &all {
        let subject = (format!("system:node:{of}"), "system:nodes");
        let request = certificate_request(name, signer, (&subject.0, subject.1), usage, hosts)?;
        node.all().create(&request, &WriteParams::default()).await?;
    }
    let requests = c.client.all::<CertificateSigningRequest>();
    until("the node's own certificate is signed", PATIENCE, async || {
        let own = requests.get("stolen-own").await.map_err(|e| e.to_string())?;
        if own.status.certificate.is_empty() { Err(format!("{:?}", own.status)) } else { Ok(()) }
    })
    .await?;
    for name in ["stolen-client", "stolen-serving"] {
        let status = requests.get(name).await?.status;
        let waits = status.conditions.is_empty() && status.certificate.is_empty();
        ensure!(waits, "{name} is answered: {status:?}");
    }
    for (name, ..) in &all {
        requests.delete(name, &DeleteParams::default()).await?;
    }
    Ok(())
}

fn certificate_request(
    name: &str,
    signer: &str,
    (common_name, organization): (&str, &str),
    usage: &str,
    hosts: &[String],
) -> Result<CertificateSigningRequest> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let mut request = CertificateSigningRequest::default();
    request.metadata.name = name.to_owned();
    request.spec.request = params.serialize_request(&KeyPair::generate()?)?.pem()?.into();
    request.spec.signer_name = signer.to_owned();
    request.spec.usages = vec!["digital signature".to_owned(), usage.to_owned()];
    Ok(request)
}

/// A certificate request for the administrators' group.
fn request_for_masters(c: &Context) -> Result<Value> {
    let subject = ("admin", "system:masters");
    let signer = c.names.client_signer();
    let request = certificate_request("masters", &signer, subject, "client auth", &[])?;
    Ok(to_json_value(&request, c.names)?)
}

fn core(rest: &str) -> String {
    format!("/api/v1/{rest}")
}

fn within(ns: &str, rest: &str) -> String {
    format!("/api/v1/namespaces/{ns}/{rest}")
}

fn in_group(c: &Context, group: &str, rest: &str) -> String {
    format!("/apis/{}/v1/{rest}", c.names.group(group))
}

fn labels(key: impl Into<String>) -> Value {
    json!({"metadata": {"labels": {key.into(): "x"}}})
}

fn own_review(c: &Context) -> (String, Value) {
    let attributes = json!({"verb": "get", "resource": "pods"});
    let path = in_group(c, "authorization", "selfsubjectaccessreviews");
    (path, json!({"spec": {"resourceAttributes": attributes}}))
}

/// `there` is the uid of the other node's pod.
fn of_node(c: &Context, ns: &str, there: &str) -> Result<Vec<Attempt<'static>>> {
    let mut all = objects_of_others(c, ns, there);
    all.extend(pods_to_itself(c, ns));
    all.extend(more_rights(c, ns)?);
    Ok(all)
}

/// What a node needs, and what belongs to others.
fn objects_of_others(c: &Context, ns: &str, there: &str) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let by_name = json!({"kind": "Pod", "apiVersion": "v1", "name": "there"});
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "there", "uid": there});
    let to_node = json!({"kind": "Node", "apiVersion": "v1", "name": "elsewhere"});
    let to = |bound: Value| json!({"spec": {"boundObjectRef": bound}});
    let leases = format!("namespaces/{}/leases", c.names.node_lease_namespace());
    vec![
        ("GET", here("secrets/ours"), none(), 200),
        ("GET", core("nodes/node-1"), none(), 200),
        ("GET", core("pods?fieldSelector=spec.nodeName%3Dnode-1"), none(), 200),
        ("GET", here("secrets/theirs"), none(), 403),
        ("GET", here("secrets"), none(), 403),
        ("GET", core("secrets"), none(), 403),
        ("GET", here("secrets?watch=1"), none(), 403),
        ("GET", within(c.names.system_namespace(), "configmaps"), none(), 403),
        ("POST", here("serviceaccounts/default/token"), json!({}), 403),
        ("POST", here("serviceaccounts/default/token"), to(by_name), 403),
        ("POST", here("serviceaccounts/default/token"), to(bound), 403),
        ("POST", here("serviceaccounts/default/token"), to(to_node), 403),
        ("PATCH", core("nodes/elsewhere/status"), json!({"status": {"phase": "x"}}), 403),
        ("PATCH", core("nodes/elsewhere"), labels("a"), 403),
        ("DELETE", core("nodes/elsewhere"), none(), 403),
        ("PATCH", here("pods/there/status"), json!({"status": {"message": "x"}}), 403),
        ("DELETE", here("pods/there"), none(), 403),
        ("POST", here("pods/there/eviction"), json!({"metadata": {"name": "there"}}), 403),
        ("GET", in_group(c, "coordination", &format!("{leases}/elsewhere")), none(), 403),
        ("GET", in_group(c, "storage", "csinodes/elsewhere"), none(), 403),
    ]
}

/// Steering of pods: labels, taints, pods of its own making.
fn pods_to_itself(c: &Context, ns: &str) -> Vec<Attempt<'static>> {
    let here = |rest: &str| within(ns, rest);
    let taint = json!({"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}});
    let absent = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"});
    let owner = json!({"metadata": {"ownerReferences": [absent]}});
    let pod = |node: &str, mirror: bool, volumes: Value| {
        let annotations =
            if mirror { json!({c.names.label("config.mirror"): "x"}) } else { json!({}) };
        let container = json!({"name": "c", "image": "i"});
        json!({
            "metadata": {"name": "made", "annotations": annotations},
            "spec": {
                "nodeName": node, "containers": [container], "volumes": volumes,
                "automountServiceAccountToken": false, "enableServiceLinks": false,
            },
        })
    };
    let secret_volume = json!([{"name": "s", "secret": {"secretName": "theirs"}}]);
    let restricted = c.names.sub_label("node-restriction", "secure");
    let role = c.names.sub_label("node-role", "control-plane");
    vec![
        ("PATCH", core("nodes/node-1"), labels(restricted), 403),
        ("PATCH", core("nodes/node-1"), labels(role), 403),
        ("PATCH", core("nodes/node-1"), taint, 403),
        ("PATCH", core("nodes/node-1"), owner, 403),
        ("DELETE", core("nodes/node-1"), Value::Null, 403),
        ("PATCH", here("pods/here/status"), labels("app"), 403),
        ("PATCH", here("pods/here"), labels("app"), 403),
        ("POST", here("pods"), pod("node-1", false, json!([])), 403),
        ("POST", here("pods"), pod("elsewhere", true, json!([])), 403),
        ("POST", here("pods"), pod("node-1", true, secret_volume), 403),
        // A mirror that its Node does not own would be counted by a controller.
        ("POST", here("pods"), pod("node-1", true, json!([])), 403),
        ("POST", here("pods/here/binding"), json!({"target": {"name": "node-1"}}), 403),
        ("PATCH", here("pods/here/ephemeralcontainers"), json!({"spec": {}}), 403),
    ]
}

/// Roles, accounts, certificates, and ways into pods and nodes.
fn more_rights(c: &Context, ns: &str) -> Result<Vec<Attempt<'static>>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let rbac = c.names.group("rbac.authorization");
    let role = json!({"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": rbac});
    let subject = json!({"kind": "Group", "name": "system:nodes", "apiGroup": rbac});
    let binding = json!({"metadata": {"name": "more"}, "roleRef": role, "subjects": [subject]});
    let requests =
        |rest: &str| in_group(c, "certificates", &format!("certificatesigningrequests{rest}"));
    let (review, attributes) = own_review(c);
    Ok(vec![
        ("POST", in_group(c, "rbac.authorization", "clusterrolebindings"), binding, 403),
        ("POST", here("serviceaccounts"), json!({"metadata": {"name": "mine"}}), 403),
        // Nobody may ask to be an administrator.
        ("POST", requests(""), request_for_masters(c)?, 403),
        ("PUT", requests("/masters/approval"), json!({}), 403),
        ("PUT", requests("/masters/status"), json!({}), 403),
        ("DELETE", requests("/masters"), none(), 403),
        ("GET", core("nodes/elsewhere/proxy/pods"), none(), 403),
        ("GET", core("nodes/node-1/proxy/pods"), none(), 403),
        ("GET", here("pods/here/log"), none(), 403),
        ("POST", here("pods/here/exec?command=id"), none(), 403),
        ("POST", here("pods/here/portforward"), none(), 403),
        ("GET", here("pods/here/proxy/"), none(), 403),
        ("GET", here("services/a/proxy/"), none(), 403),
        ("POST", review, attributes, 201),
    ])
}

/// Discovery, and nothing beyond.
fn of_pod(c: &Context, ns: &str) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let here = |rest: &str| within(ns, rest);
    let (review, attributes) = own_review(c);
    let others = in_group(c, "authorization", "subjectaccessreviews");
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
        ("GET", core("nodes/node-1/proxy/pods"), none(), 403),
        ("GET", core("namespaces"), none(), 403),
        ("POST", here("pods"), json!({"metadata": {"name": "a"}}), 403),
        ("POST", here("pods/here/exec?command=id"), none(), 403),
        ("POST", here("serviceaccounts/default/token"), json!({}), 403),
        ("GET", here("serviceaccounts/default"), none(), 403),
        ("POST", in_group(c, "rbac.authorization", "clusterrolebindings"), json!({}), 403),
        ("POST", in_group(c, "certificates", "certificatesigningrequests"), json!({}), 403),
        ("DELETE", core(&format!("namespaces/{ns}")), none(), 403),
    ]
}

/// Health and version, and nothing beyond.
fn of_nobody(ns: &str) -> Vec<Attempt<'static>> {
    let none = || Value::Null;
    let public = ["/healthz", "/livez", "/readyz", "/version"];
    let closed = [
        "/".to_owned(),
        "/api".to_owned(),
        "/apis".to_owned(),
        "/openapi/v2".to_owned(),
        "/metrics".to_owned(),
        "/.well-known/openid-configuration".to_owned(),
        core("namespaces"),
        within(ns, "secrets"),
        core("nodes/node-1/proxy/pods"),
    ];
    let public = public.into_iter().map(|path| ("GET", path.to_owned(), none(), 200));
    let closed = closed.into_iter().map(|path| ("GET", path, none(), 403));
    public.chain(closed).collect()
}
