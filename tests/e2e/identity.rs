//! A node's certificates: bootstrap and renewal.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cluster::access::join_group;
use cluster::directory::ClusterDirectory;
use cluster::progress::Progress;
use cluster::spec::Spec;
use cluster::up;
use orch_tests::wait::until;
use proto_api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use proto_client::{ListParams, WriteParams, request};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair,
};

use crate::context::{Context, PATIENCE};

const AGENT: &str = "orchlet-node-1";
const TOKEN: (&str, &str) = ("e2etok", "0123456789abcdef");

pub async fn a_node_joins_by_token_and_renews_its_certificates(c: &Context) -> Result<()> {
    let own = c.spec.node_dir("node-1").join("identity");
    std::fs::create_dir_all(&own)?;
    c.apply(&token_secret(c)).await?;
    std::fs::write(own.join("bootstrap.conf"), bootstrap_config(&c.spec))?;
    let file = |name: &str| own.join(name).display().to_string();
    let flags = [
        format!("--bootstrap-kubeconfig={}", file("bootstrap.conf")),
        format!("--kubeconfig={}", file("joined.conf")),
        format!("--cert-dir={}", own.display()),
        "--rotate-certificates=true".to_owned(),
        "--rotate-server-certificates=true".to_owned(),
        "--tls-cert-file=".to_owned(),
        "--tls-private-key-file=".to_owned(),
    ];
    restart_with(c, &flags).await?;
    let done = joined(c, &own).await;
    // The cases after this one want the node as it was.
    restart_with(c, &["--rotate-certificates=false".to_owned()]).await?;
    answers(c).await?;
    done
}

/// Waits until the endpoint has a certificate that the API server believes.
async fn answers(c: &Context) -> Result<()> {
    until("the endpoint answers", PATIENCE, async || {
        page(c, "healthz").await.map(drop).map_err(|e| format!("{e:#}"))
    })
    .await
}

async fn joined(c: &Context, own: &Path) -> Result<()> {
    let agent = c.names.component("let");
    let current = |purpose: &str| own.join(format!("{agent}-{purpose}-current.pem"));

    let by_token = format!("system:bootstrap:{}", TOKEN.0);
    requested(c, &by_token, &c.names.node_client_signer()).await?;
    until("the client certificate is there", PATIENCE, async || there(&current("client"))).await?;
    // It is written once there is a certificate to name in it.
    until("the client configuration is there", PATIENCE, async || there(&own.join("joined.conf")))
        .await?;

    // Only an operator can approve its names and addresses.
    let asked = pending(c, &c.names.node_serving_signer()).await?;
    ensure!(asked.spec.username == "system:node:node-1", "asked by {}", asked.spec.username);
    approve(c, asked).await?;
    until("the serving certificate is there", PATIENCE, async || there(&current("server"))).await?;
    answers(c).await?;

    ending_soon(&c.spec, &current("client"))?;
    let before = std::fs::read(current("client"))?;
    c.kill(AGENT).await?;
    requested(c, "system:node:node-1", &c.names.node_client_signer()).await?;
    until("the renewed certificate is in force", PATIENCE, async || {
        match std::fs::read(current("client")) {
            Ok(now) if now != before => Ok(()),
            Ok(_) => Err("the old one is".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    })
    .await?;
    until("the metric says how long it lasts", PATIENCE, async || {
        let metrics = page(c, "metrics").await.map_err(|e| format!("{e:#}"))?;
        let name = format!("{agent}_certificate_manager_client_ttl_seconds ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("missing");
        // The one that was replaced ended within minutes.
        let lasts = line.parse::<f64>().is_ok_and(|secs| secs.is_finite() && secs > 3600.0);
        if lasts { Ok(()) } else { Err(line.to_owned()) }
    })
    .await
}

/// Has the first node's agent run with these flags in the place of its own of the same names.
async fn restart_with(c: &Context, flags: &[String]) -> Result<()> {
    let flags = up::Flags {
        place: ClusterDirectory { dir: c.spec.dir.clone() },
        no_demo: true,
        bin_dir: Some(c.spec.bin_dir.clone()),
        agent_flags: flags.to_vec(),
        ..up::Flags::default()
    };
    up::up(&flags, &Progress::new()).await?;
    c.kill(AGENT).await
}

async fn page(c: &Context, path: &str) -> Result<String> {
    let path = format!("/api/v1/nodes/node-1/proxy/{path}");
    let answer = c.client.call(request::get(path.clone())).await.with_context(|| path.clone())?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

fn there(path: &Path) -> Result<(), String> {
    if path.exists() { Ok(()) } else { Err(format!("no {}", path.display())) }
}

async fn requests(c: &Context, signer: &str) -> Result<Vec<CertificateSigningRequest>, String> {
    let all = c.client.all::<CertificateSigningRequest>().list(&ListParams::default()).await;
    let all = all.map_err(|e| e.to_string())?.items;
    Ok(all.into_iter().filter(|request| request.spec.signer_name == signer).collect())
}

/// Waits for an issued certificate request of that signer.
async fn requested(c: &Context, user: &str, signer: &str) -> Result<()> {
    until(&format!("{user} gets a certificate"), PATIENCE, async || {
        let all = requests(c, signer).await?;
        let got = |request: &&CertificateSigningRequest| {
            request.spec.username == user && !request.status.certificate.is_empty()
        };
        match all.iter().find(got) {
            Some(_) => Ok(()),
            None => Err(format!("{:?}", all.iter().map(|r| &r.spec.username).collect::<Vec<_>>())),
        }
    })
    .await
}

/// Waits for a pending certificate request.
async fn pending(c: &Context, signer: &str) -> Result<CertificateSigningRequest> {
    until("a request waits for approval", PATIENCE, async || {
        let mut all = requests(c, signer).await?;
        all.retain(|request| request.status.conditions.is_empty());
        all.pop().ok_or("none").map_err(str::to_owned)
    })
    .await
}

async fn approve(c: &Context, mut request: CertificateSigningRequest) -> Result<()> {
    request.status.conditions.push(CertificateSigningRequestCondition {
        type_: "Approved".into(),
        status: "True".into(),
        reason: "Test".into(),
        message: "its names and addresses are the node's".into(),
        ..CertificateSigningRequestCondition::default()
    });
    let api = c.client.all::<CertificateSigningRequest>();
    api.update_approval(&request, &WriteParams::default()).await?;
    Ok(())
}

/// A certificate of the node's that was made an hour ago and ends in minutes takes the place of the one in force.
fn ending_soon(spec: &Spec, current: &Path) -> Result<()> {
    let pki: PathBuf = spec.pki();
    let key = KeyPair::from_pem(&std::fs::read_to_string(pki.join("ca.key"))?)?;
    let issuer = Issuer::from_ca_cert_pem(&std::fs::read_to_string(pki.join("ca.crt"))?, key)?;
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "system:nodes");
    name.push(DnType::CommonName, "system:node:node-1");
    params.distinguished_name = name;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let now = std::time::SystemTime::now();
    params.not_before = (now - std::time::Duration::from_secs(3600)).into();
    params.not_after = (now + std::time::Duration::from_secs(300)).into();
    let own = KeyPair::generate()?;
    let certificate = params.signed_by(&own, &issuer)?;
    std::fs::write(current, format!("{}{}", certificate.pem(), own.serialize_pem()))?;
    Ok(())
}

fn token_secret(c: &Context) -> String {
    let (namespace, domain) = (c.names.system_namespace(), c.names.label_domain());
    let ((id, secret), group) = (TOKEN, join_group(c.names));
    format!(
        "apiVersion: v1
kind: Secret
metadata:
  name: bootstrap-token-{id}
  namespace: {namespace}
type: bootstrap.{domain}/token
stringData:
  token-id: {id}
  token-secret: \"{secret}\"
  usage-bootstrap-authentication: \"true\"
  auth-extra-groups: {group}
"
    )
}

/// What an operator gives to a machine that is to join. JSON, which is YAML.
fn bootstrap_config(spec: &Spec) -> String {
    let server = format!("https://{}:{}", spec.api_address(), Spec::API_PORT);
    let (id, secret) = TOKEN;
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": server, "certificate-authority": spec.pki().join("ca.crt")}}],
        "users": [{"name": "u", "user": {"token": format!("{id}.{secret}")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    })
    .to_string()
}
