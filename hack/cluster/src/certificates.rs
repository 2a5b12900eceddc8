//! The cluster's certificate authority, everybody's certificates and their client configurations.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result};
use proto_api::names::Names;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::files::{make_dir, write_file};
use crate::spec::Spec;

/// Days that the development certificates last.
const VALID_DAYS: i64 = 3650;

/// The API server towards nodes: its certificate's file, and the last part of its user.
pub const NODE_CLIENT: &str = "apiserver-node-client";

/// Who gets a client configuration: file name, user, groups.
struct Client {
    file: String,
    user: String,
    groups: Vec<String>,
}

/// Writes whatever of the authority, certificates, keys and client configurations is missing.
pub fn ensure(spec: &Spec, names: &Names) -> Result<()> {
    let pki = spec.pki();
    make_dir(&pki)?;
    let authority = ensure_authority(&pki)?;
    if !pki.join("service-account.key").exists() {
        write_key(&pki.join("service-account.key"), &KeyPair::generate()?)?;
    }
    ensure_serving(&pki, "apiserver", &api_server_names(spec, names), &authority)?;
    for node in spec.node_list() {
        let sans = [node.name.clone(), node.address.to_string(), "127.0.0.1".into()];
        ensure_serving(&pki, &node.name, &sans, &authority)?;
    }
    // What it shows to nodes can reach other servers by mistake: it is no administrator's.
    ensure_client_certificate(&pki, NODE_CLIENT, &names.user(NODE_CLIENT), &[], &authority)?;
    for client in clients(spec, names) {
        ensure_client_certificate(&pki, &client.file, &client.user, &client.groups, &authority)?;
        write_client_config(spec, &client.file)?;
    }
    Ok(())
}

fn clients(spec: &Spec, names: &Names) -> Vec<Client> {
    let client = |file: &str, user: String, groups: &[&str]| Client {
        file: file.into(),
        user,
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
    };
    let mut all = vec![
        client("admin", "admin".into(), &["system:masters"]),
        client("controller-manager", names.user("controller-manager"), &[]),
        client("scheduler", names.user("scheduler"), &[]),
        client("proxy", names.user("proxy"), &[]),
    ];
    for node in spec.node_list() {
        let user = format!("system:node:{}", node.name);
        all.push(client(&format!("orchlet-{}", node.name), user, &["system:nodes"]));
    }
    all
}

fn api_server_names(spec: &Spec, names: &Names) -> Vec<String> {
    let service = names.api_service_name();
    let mut all = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        spec.api_address().to_string(),
        Spec::API_SERVICE_ADDRESS.to_string(),
    ];
    for suffix in ["", ".default", ".default.svc", ".default.svc.cluster.local"] {
        all.push(format!("{service}{suffix}"));
    }
    all
}

fn ensure_authority(pki: &Path) -> Result<Issuer<'static, KeyPair>> {
    let (certificate, key) = (pki.join("ca.crt"), pki.join("ca.key"));
    if !certificate.exists() || !key.exists() {
        let pair = KeyPair::generate()?;
        let mut params = named("orch-ca", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        write_key(&key, &pair)?;
        write_file(&certificate, params.self_signed(&pair)?.pem().as_bytes())?;
    }
    let read = |path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
    };
    let pair = KeyPair::from_pem(&read(&key)?).context("the authority's key")?;
    Issuer::from_ca_cert_pem(&read(&certificate)?, pair).context("the authority's certificate")
}

fn ensure_serving(
    pki: &Path,
    name: &str,
    sans: &[String],
    authority: &Issuer<'static, KeyPair>,
) -> Result<()> {
    let mut params = named(name, &[])?;
    for san in sans {
        params.subject_alt_names.push(match san.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(san.as_str().try_into()?),
        });
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    ensure_signed(pki, name, params, authority)
}

fn ensure_client_certificate(
    pki: &Path,
    name: &str,
    user: &str,
    groups: &[String],
    authority: &Issuer<'static, KeyPair>,
) -> Result<()> {
    let mut params = named(user, groups)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    ensure_signed(pki, name, params, authority)
}

fn ensure_signed(
    pki: &Path,
    name: &str,
    params: CertificateParams,
    authority: &Issuer<'static, KeyPair>,
) -> Result<()> {
    let (certificate, key) = (pki.join(format!("{name}.crt")), pki.join(format!("{name}.key")));
    if certificate.exists() && key.exists() {
        return Ok(());
    }
    let pair = KeyPair::generate()?;
    write_key(&key, &pair)?;
    write_file(&certificate, params.signed_by(&pair, authority)?.pem().as_bytes())
}

/// Common name is the user and each organization a group (spec: Authentication, client certificate).
fn named(common_name: &str, organizations: &[String]) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, organization.as_str());
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let now = time::OffsetDateTime::now_utc();
    // An hour back, for clocks that differ.
    params.not_before = now - time::Duration::hours(1);
    params.not_after = now + time::Duration::days(VALID_DAYS);
    Ok(params)
}

fn write_key(path: &Path, key: &KeyPair) -> Result<()> {
    write_file(path, key.serialize_pem().as_bytes())
}

/// JSON is YAML too, so every reader of client configurations takes it.
fn write_client_config(spec: &Spec, name: &str) -> Result<()> {
    let pki = spec.pki();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "orch", "cluster": {
            "server": spec.api_url(),
            "certificate-authority": pki.join("ca.crt"),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate": pki.join(format!("{name}.crt")),
            "client-key": pki.join(format!("{name}.key")),
        }}],
        "contexts": [{"name": "orch", "context": {"cluster": "orch", "user": name}}],
        "current-context": "orch",
    });
    let mut text = serde_json::to_string_pretty(&config)?;
    text.push('\n');
    write_file(&spec.client_config(name), text.as_bytes())
}
