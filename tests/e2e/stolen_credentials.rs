//! What somebody can do who has come by a credential of the cluster: of a node, of a pod, or none. The cluster runs as `hack/up` makes it.

mod node;
mod resources;

use anyhow::{Result, ensure};
use orch_tests::wait::until;
use proto_api::certificates::v1::CertificateSigningRequest;
use proto_api::core::v1::{Node, Pod};
use proto_api::object::to_json_value;
use proto_client::config::file;
use proto_client::{Client, DeleteParams, WriteParams};
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
        let got = Context::status(client, method, &path, &body).await?;
        if got != expected {
            wrong.push(format!("{method} {path}: {got}, expected {expected}"));
        }
    }
    ensure!(wrong.is_empty(), "as {who}:\n{}", wrong.join("\n"));
    Ok(())
}

/// The PersistentVolume of the other node's pod.
const DISK: &str = "stolen-disk";

/// Secrets that the other node's pod refers to, each in its own way; `debugged` in an ephemeral container, `disk` in its PersistentVolume.
const SECRETS: [&str; 6] = ["theirs", "projected", "variable", "pulled", "debugged", "disk"];

/// Secrets, used by a pod of each node. The second node is in the API only.
fn manifests(ns: &str) -> String {
    let object = |kind: &str, name: &str, rest: &str| {
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {ns}}}\n{rest}")
    };
    let secret = |name: &str| object("Secret", name, "stringData: {k: v}\n");
    let here = pod(ns, "here", WAIT)
        + "  nodeName: node-1\n  volumes: [{name: s, secret: {secretName: ours}}]\n";
    let volumes = "[{name: s, secret: {secretName: theirs}}, {name: p, projected: {sources: [{secret: {name: projected}}]}}, \
        {name: c, configMap: {name: theirs}}, {name: d, persistentVolumeClaim: {claimName: data}}]";
    let variable = "{name: A, valueFrom: {secretKeyRef: {name: variable, key: k}}}";
    let there = pod(ns, "there", WAIT)
        + &format!("    env: [{variable}]\n  nodeName: elsewhere\n  volumes: {volumes}\n")
        + "  imagePullSecrets: [{name: pulled}]\n";
    let size = "{storage: 1Gi}";
    let volume = format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {DISK}}}\nspec:\n  capacity: {size}\n  accessModes: [ReadWriteOnce]\n  \
         claimRef: {{namespace: {ns}, name: data}}\n  \
         csi: {{driver: a.example, volumeHandle: a, nodePublishSecretRef: {{namespace: {ns}, name: disk}}}}\n"
    );
    let claim = format!(
        "spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {size}}}, volumeName: {DISK}, storageClassName: \"\"}}\n"
    );
    let mut all: Vec<String> = SECRETS.into_iter().map(secret).collect();
    all.extend([
        secret("ours"),
        object("ConfigMap", "theirs", "data: {k: v}\n"),
        object("ServiceAccount", "other", ""),
        volume,
        object("PersistentVolumeClaim", "data", &claim),
        "apiVersion: v1\nkind: Node\nmetadata: {name: elsewhere}\n".to_owned(),
        here,
        there,
    ]);
    all.join("---\n")
}

pub async fn each_opens_only_what_it_is_for(c: &Context) -> Result<()> {
    let ns = c.namespace("stolen").await?;
    c.apply(&manifests(&ns)).await?;
    c.pod_ready(&ns, "here").await?;
    let done = try_all(c, &ns).await;
    let admin = &c.client;
    let now = json!({"gracePeriodSeconds": 0});
    Context::status(admin, "DELETE", &within(&ns, "pods/there"), &now).await?;
    Context::status(admin, "DELETE", &core("nodes/elsewhere"), &Value::Null).await?;
    Context::status(admin, "DELETE", &core(&format!("persistentvolumes/{DISK}")), &Value::Null)
        .await?;
    c.discard(&ns).await?;
    done
}

async fn try_all(c: &Context, ns: &str) -> Result<()> {
    let config = file::load(&c.spec.client_config("orchlet-node-1"), None)?;
    let node = Client::new(&config, c.names, "e2e")?;
    let debugger = json!({"spec": {"ephemeralContainers": [{
        "name": "d", "image": "i", "envFrom": [{"secretRef": {"name": "debugged"}}],
    }]}});
    let ephemeral = within(ns, "pods/there/ephemeralcontainers");
    ensure!(
        Context::status(&c.client, "PATCH", &ephemeral, &debugger).await? == 200,
        "no debugger"
    );
    let there = c.client.within::<Pod>(ns).get("there").await?.metadata.uid;
    let uid = c.client.all::<Node>().get("node-1").await?.metadata.uid;
    check("a node", &node, node::attempts(c, ns, (&uid, &there))?).await?;
    certificates_of_another_node(c, &node).await?;
    let all = resources::served(&c.client).await?;
    check("a node, of all resources", &node, resources::attempts(ns, &all, node::has)).await?;

    let pod = c.account(ns, "default").await?;
    check("a pod", &pod, of_pod(c, ns)).await?;
    let own = |resource: &str, _: &str| is_review_of_oneself(resource);
    check("a pod, of all resources", &pod, resources::attempts(ns, &all, own)).await?;

    let nobody = c.client.anonymous()?;
    check("nobody", &nobody, of_nobody(ns)).await?;
    check("nobody, of all resources", &nobody, resources::attempts(ns, &all, |_, _| false)).await?;
    check("nobody, of all paths", &nobody, resources::paths(&c.client).await?).await
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

/// Reviews of one's own rights are for everybody who is known.
fn is_review_of_oneself(resource: &str) -> bool {
    resource.starts_with("authorization/selfsubject")
        || resource.starts_with("authentication/selfsubject")
}

fn own_review(c: &Context) -> (String, Value) {
    let attributes = json!({"verb": "get", "resource": "pods"});
    let path = in_group(c, "authorization", "selfsubjectaccessreviews");
    (path, json!({"spec": {"resourceAttributes": attributes}}))
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
