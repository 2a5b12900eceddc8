//! Client configurations (kubeconfig files): as JSON, which is YAML, with certificates inside or by path.

use std::path::{Path, PathBuf};

use proto_api::names::Names;
use proto_client::config::{ClientConfig, Pem, file};
use serde_json::{Value, json};

use crate::authority::{CertificatePair, Issuance, read, write_key};
use crate::certificates::FileChange;
use crate::error::BootstrapError;
use crate::layout::Layout;

/// Who the user is.
pub enum AuthInfo<'a> {
    /// A certificate and key in the file itself.
    Embedded(&'a CertificatePair),
    /// Files, which are read again when they change.
    Files { certificate: PathBuf, key: PathBuf },
    /// A bearer token.
    Token(&'a str),
    /// No credentials: for publication.
    None,
}

/// The server and how it is verified.
pub struct ClusterEntry<'a> {
    /// Name of the cluster in the file.
    pub name: &'a str,
    /// URL.
    pub server: &'a str,
    pub authority: AuthorityAt<'a>,
}

/// Where the authority's certificate is.
pub enum AuthorityAt<'a> {
    /// In the file itself.
    Embedded(&'a str),
    /// In a file of its own.
    File(PathBuf),
}

/// The text of a client configuration.
pub fn text(cluster: &ClusterEntry<'_>, user: &str, identity: &AuthInfo<'_>) -> String {
    let encoded = |pem: &str| file::encoded(pem.as_bytes());
    let mut server = json!({"server": cluster.server});
    match &cluster.authority {
        AuthorityAt::Embedded(pem) => server["certificate-authority-data"] = encoded(pem).into(),
        AuthorityAt::File(path) => server["certificate-authority"] = json!(path),
    }
    let mut config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster.name, "cluster": server}],
    });
    let credentials: Value = match identity {
        AuthInfo::Embedded(pair) => json!({
            "client-certificate-data": encoded(&pair.certificate),
            "client-key-data": encoded(&pair.key),
        }),
        AuthInfo::Files { certificate, key } => {
            json!({"client-certificate": certificate, "client-key": key})
        }
        AuthInfo::Token(token) => json!({"token": token}),
        AuthInfo::None => Value::Null,
    };
    if !credentials.is_null() {
        let context = format!("{user}@{}", cluster.name);
        config["users"] = json!([{"name": user, "user": credentials}]);
        config["contexts"] =
            json!([{"name": context, "context": {"cluster": cluster.name, "user": user}}]);
        config["current-context"] = context.into();
    }
    format!("{config:#}\n")
}

/// Writes a text of [`text`], for the owner alone.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, text: &str) -> Result<(), BootstrapError> {
    write_key(path, text)
}

/// Makes the file of a client with a certificate inside unless it is there; one that is there has to be of this cluster, with a valid certificate.
///
/// # Errors
/// The file cannot be read or written, or is not what it should be.
pub fn ensure(
    path: &Path,
    cluster: &ClusterEntry<'_>,
    issuance: &Issuance<'_>,
) -> Result<FileChange, BootstrapError> {
    if read(path)?.is_none() {
        renew(path, cluster, issuance)?;
        return Ok(FileChange::New);
    }
    let found = load(path)?;
    let problem = |text: String| Err(BootstrapError::unusable(path, text));
    let server = found.server.to_string();
    if server.trim_end_matches('/') != cluster.server.trim_end_matches('/') {
        return problem(format!("is for {server}, expected {}: remove it", cluster.server));
    }
    let same = found
        .tls
        .authority
        .as_ref()
        .and_then(pem_text)
        .is_some_and(|pem| pem.trim() == issuance.authority.certificate().trim());
    if !same {
        return problem("has another certificate authority: remove it".to_owned());
    }
    issuance.check(path, &certificate(path, &found)?)?;
    Ok(FileChange::Kept)
}

/// Makes the file of a client with a new certificate and key inside, in the place of the one that is there.
///
/// # Errors
/// The authority is external, or the file cannot be written.
pub fn renew(
    path: &Path,
    cluster: &ClusterEntry<'_>,
    issuance: &Issuance<'_>,
) -> Result<(), BootstrapError> {
    let pair = issuance.issue()?;
    write(path, &text(cluster, &issuance.leaf.common_name, &AuthInfo::Embedded(&pair)))
}

/// Reads a client configuration.
///
/// # Errors
/// It cannot be used.
pub fn load(path: &Path) -> Result<ClientConfig, BootstrapError> {
    file::load(path, None)
        .map_err(|error| BootstrapError::unusable(path, proto_daemon::exit::chain(&error)))
}

/// Writes the client configuration of orch-proxy on the host of `layout`, from that of its node: the same server, and the certificate that the node's
/// agent renews.
///
/// # Errors
/// The node's cannot be read or has no authority, or the proxy's cannot be written.
pub fn write_for_proxy(layout: &Layout, names: &Names, node: &str) -> Result<(), BootstrapError> {
    let config = load(&layout.node)?;
    let authority = config.tls.authority.as_ref().and_then(pem_text);
    let authority = authority
        .ok_or_else(|| BootstrapError::unusable(&layout.node, "it has no certificate authority"))?;
    let server = config.server.to_string();
    let cluster = ClusterEntry {
        name: names.api_service_name(),
        server: server.trim_end_matches('/'),
        authority: AuthorityAt::Embedded(&authority),
    };
    let pair = &layout.node_pair;
    let identity = AuthInfo::Files { certificate: pair.clone(), key: pair.clone() };
    write(&layout.proxy, &text(&cluster, &format!("system:node:{node}"), &identity))
}

/// The client's certificate in a configuration, as PEM.
///
/// # Errors
/// There is none, or its file cannot be read.
pub fn certificate(path: &Path, config: &ClientConfig) -> Result<String, BootstrapError> {
    let pem = config.tls.identity.as_ref().and_then(|identity| pem_text(&identity.certificate));
    pem.ok_or_else(|| BootstrapError::unusable(path, "has no valid client certificate"))
}

/// The text of a PEM of a configuration.
pub fn pem_text(pem: &Pem) -> Option<String> {
    match pem {
        Pem::File(path) => std::fs::read_to_string(path).ok(),
        Pem::Data(data) => String::from_utf8(data.clone()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;
    use crate::authority::{Authority, Leaf};

    #[test]
    fn a_client_configuration_of_this_cluster_is_kept_and_any_other_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let now = OffsetDateTime::now_utc();
        let authority = Authority::ensure(dir.path(), "ca", "a", now).unwrap();
        let other = Authority::ensure(dir.path(), "other", "b", now).unwrap();
        let path = dir.path().join("admin.conf");
        let leaf = Leaf::client("admin", &["system:masters"]);
        let of = |server: &'static str| ClusterEntry {
            name: "c",
            server,
            authority: AuthorityAt::Embedded(authority.certificate()),
        };
        let at = |server, leaf: &Leaf, signer: &Authority, now| {
            let issuance = Issuance { leaf, authority: signer, days: 365, now };
            ensure(&path, &of(server), &issuance).map_err(|e| e.to_string())
        };
        let url = "https://10.0.0.1:6443";
        assert_eq!(at(url, &leaf, &authority, now), Ok(FileChange::New));
        assert_eq!(at(url, &leaf, &authority, now), Ok(FileChange::Kept));
        for (made, what) in [
            (at("https://10.0.0.2:6443", &leaf, &authority, now), "expected https://10.0.0.2"),
            (at(url, &leaf, &other, now), "another certificate authority"),
            (at(url, &Leaf::client("b", &[]), &authority, now), "is for admin"),
            (at(url, &leaf, &authority, now + time::Duration::days(366)), "has expired"),
        ] {
            let error = made.unwrap_err();
            assert!(error.contains(what) && error.contains("admin.conf"), "{error}");
        }
        let before = std::fs::read(&path).unwrap();
        renew(&path, &of(url), &Issuance { leaf: &leaf, authority: &authority, days: 365, now })
            .unwrap();
        assert_ne!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn the_published_cluster_info_has_no_users() {
        let cluster = ClusterEntry {
            name: "",
            server: "https://h:1",
            authority: AuthorityAt::Embedded("pem"),
        };
        let text = text(&cluster, "", &AuthInfo::None);
        assert!(!text.contains("users") && !text.contains("contexts"), "{text}");
    }
}
