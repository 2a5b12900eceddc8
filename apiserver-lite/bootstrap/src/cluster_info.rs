//! The ConfigMap `cluster-info`: how a machine that has a token finds the cluster and its authority, and how it checks both.

use std::path::Path;

use apiserver_signers::bootstrap::CLUSTER_INFO;
use apiserver_signers::bootstrap::tokens::{KUBECONFIG, signature, signature_key};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::core::v1::ConfigMap;
use proto_api::names::Names;
use proto_api::yaml;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::bootstrap_token::BootstrapToken;
use crate::client_config::{AuthInfo, AuthorityAt, ClusterEntry, text};
use crate::error::BootstrapError;

/// Name of the ConfigMap, in the public namespace.
pub const NAME: &str = CLUSTER_INFO;
/// What a pin of a public key begins with.
const PIN_PREFIX: &str = "sha256:";

/// The ConfigMap; the controller `bootstrapsigner` adds the signatures.
pub fn config_map(names: &Names, server: &str, authority: &str) -> Value {
    let cluster = ClusterEntry { name: "", server, authority: AuthorityAt::Embedded(authority) };
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": names.public_namespace()},
        "data": {KUBECONFIG: text(&cluster, "", &AuthInfo::None)},
    })
}

/// A cluster that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCluster {
    /// URL of the API server.
    pub server: String,
    /// Its authority, in PEM.
    pub authority: String,
}

/// The cluster of a ConfigMap whose signature is the token's.
///
/// # Errors
/// It is not signed with the token, or has no cluster.
pub fn verified(info: &ConfigMap, token: &BootstrapToken) -> Result<FoundCluster, BootstrapError> {
    let content = info.data.get(KUBECONFIG).ok_or_else(|| {
        BootstrapError::Invalid(format!("the ConfigMap {NAME} has no {KUBECONFIG}"))
    })?;
    let found = info.data.get(&signature_key(&token.id)).ok_or_else(|| {
        BootstrapError::Invalid(format!(
            "the ConfigMap {NAME} is not signed with the token {}: it may have expired or been deleted; make another with `token create`",
            token.id
        ))
    })?;
    if *found != signature(&token.id, &token.secret, content) {
        return Err(BootstrapError::Invalid(format!(
            "the ConfigMap {NAME} has a wrong signature for the token {}: the token's secret is wrong, or another server responded",
            token.id
        )));
    }
    cluster_of(content)
}

/// The first cluster of a client configuration, which needs no context.
///
/// # Errors
/// It has no cluster with a server and an authority.
pub fn cluster_of(content: &str) -> Result<FoundCluster, BootstrapError> {
    let invalid = |what: &str| BootstrapError::Invalid(format!("the cluster's description {what}"));
    let config =
        yaml::parse(content).map_err(|error| invalid(&format!("is not valid YAML: {error}")))?;
    let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
    let server = text("/clusters/0/cluster/server").ok_or_else(|| invalid("has no server"))?;
    if !server.starts_with("https://") {
        return Err(invalid(&format!("has the server {server:?}: must begin with https://")));
    }
    let data = text("/clusters/0/cluster/certificate-authority-data");
    let data = data.ok_or_else(|| invalid("has no certificate-authority-data"))?;
    let pem = STANDARD.decode(data).ok().and_then(|pem| String::from_utf8(pem).ok());
    let pem = pem.ok_or_else(|| invalid("has a certificate-authority-data that is not PEM"))?;
    Ok(FoundCluster { server: server.to_owned(), authority: pem })
}

/// Checks a pin's form: `sha256:` and 64 hexadecimal digits.
///
/// # Errors
/// It has another.
pub fn parse_pin(pin: &str) -> Result<String, BootstrapError> {
    let digits = pin.strip_prefix(PIN_PREFIX);
    let is_hash = |hex: &&str| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    match digits.filter(is_hash) {
        Some(hex) => Ok(format!("{PIN_PREFIX}{}", hex.to_ascii_lowercase())),
        None => Err(BootstrapError::Invalid(format!(
            "the pin {pin:?} must have the form {PIN_PREFIX}<64 hexadecimal digits>"
        ))),
    }
}

/// The pins of the certificates of a PEM text: hashes of their public keys.
///
/// # Errors
/// It holds no certificate.
pub fn pins(path: &Path, pem: &str) -> Result<Vec<String>, BootstrapError> {
    let mut pins = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let unusable = |error: String| BootstrapError::unusable(path, error);
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate)
            .map_err(|error| unusable(error.to_string()))?;
        pins.push(format!("{PIN_PREFIX}{}", proto_api::sha256_hex(parsed.public_key().raw)));
    }
    if pins.is_empty() {
        return Err(BootstrapError::unusable(path, "holds no certificate"));
    }
    Ok(pins)
}

/// Checks that every authority of a cluster is pinned.
///
/// # Errors
/// One is not.
pub fn check_pins(found: &FoundCluster, allowed: &[String]) -> Result<(), BootstrapError> {
    let own = pins(Path::new("the cluster's authority"), &found.authority)?;
    match own.iter().find(|pin| !allowed.contains(pin)) {
        None => Ok(()),
        Some(pin) => Err(BootstrapError::Invalid(format!(
            "the certificate authority of the cluster has the public key {pin}, which is not in --discovery-token-ca-cert-hash: the hash belongs to another cluster, or another server responded"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use time::OffsetDateTime;

    use super::*;
    use crate::authority::Authority;

    #[test]
    fn cluster_info_is_verified_by_token_signature_and_ca_pin() {
        let dir = tempfile::tempdir().unwrap();
        let authority =
            Authority::ensure(dir.path(), "ca", "a", OffsetDateTime::now_utc()).unwrap();
        let token = BootstrapToken::generate();
        let names = Names::new(Profile::Kubernetes);
        let made = config_map(names, "https://10.0.0.1:6443", authority.certificate());
        assert_eq!(made["metadata"]["namespace"], "kube-public");
        let content = made["data"]["kubeconfig"].as_str().unwrap().to_owned();
        let mut info = ConfigMap::default();
        info.data.insert("kubeconfig".into(), content.clone());
        let error = verified(&info, &token).unwrap_err().to_string();
        assert!(error.contains("not signed"), "{error}");
        let signed = signature(&token.id, &token.secret, &content);
        info.data.insert(signature_key(&token.id), signed);
        let found = verified(&info, &token).unwrap();
        assert_eq!(found.server, "https://10.0.0.1:6443");
        let other = BootstrapToken { secret: "0".repeat(16), ..token.clone() };
        assert!(verified(&info, &other).unwrap_err().to_string().contains("wrong signature"));

        let own = pins(dir.path(), authority.certificate()).unwrap();
        check_pins(&found, &own).unwrap();
        let wrong = parse_pin(&format!("sha256:{}", "A".repeat(64))).unwrap();
        assert!(check_pins(&found, &[wrong]).is_err());
        for bad in ["", "sha256:", "md5:00", "sha256:zz"] {
            assert!(parse_pin(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cluster_info_requires_https_servers() {
        let of = |server: &str| {
            cluster_of(&format!(
                "clusters: [{{cluster: {{server: {server:?}, certificate-authority-data: YQ==}}}}]"
            ))
        };
        assert_eq!(of("https://a:1").unwrap().server, "https://a:1");
        for bad in ["http://a:1", "a:1", ""] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains("must begin with https://"), "{error}");
        }
    }
}
