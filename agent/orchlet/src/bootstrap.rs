//! TLS bootstrap: a new node requests its client certificate with the credential of a bootstrap
//! file, and writes the kubeconfig that everything else uses.

use std::path::Path;
use std::time::Duration;

use agent_config::Settings;
use agent_identity::certificate_spec::{CertificateLifetime, CertificateSpec, Purpose};
use agent_identity::issue::IssueOrder;
use agent_identity::store::Store;
use agent_identity::unix_now;
use proto_api::names::Names;
use proto_client::Client;
use proto_client::config::{ClientConfig, ClientConfigError, Identity, Pem, file};
use proto_daemon::backoff::{Backoff, Retries};
use proto_daemon::exit::{Failure, chain};
use proto_daemon::private_files;
use serde_json::{Value, json};

const RETRY: Backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) };

/// The store of the client certificate.
pub fn client_store(settings: &Settings) -> Store {
    Store::new(settings.cert_dir(), format!("{}-client", settings.names.component("let")))
}

/// The store of the serving certificate.
pub fn server_store(settings: &Settings) -> Store {
    Store::new(settings.cert_dir(), format!("{}-server", settings.names.component("let")))
}

/// Requirements on the client certificate.
pub fn client_wanted(names: &Names, node: &str) -> CertificateSpec {
    CertificateSpec {
        node: node.to_owned(),
        purpose: Purpose::Client,
        signer: names.node_client_signer(),
    }
}

/// Ensures that the kubeconfig exists if the settings name a bootstrap file. Waits until the
/// certificate is signed.
///
/// # Errors
/// The settings or the bootstrap file are not usable. Failures of the API server are retried.
pub async fn ensure(settings: &Settings) -> Result<(), Failure> {
    let flags = &settings.flags;
    let Some(bootstrap) = &flags.bootstrap_kubeconfig else { return Ok(()) };
    let Some(target) = &flags.kubeconfig else {
        return Err(Failure::usage("--bootstrap-kubeconfig needs --kubeconfig, which it writes"));
    };
    match usable(target) {
        // An earlier version may have written it with other permissions.
        Ok(()) => return private_files::make_private(target).map_err(Failure::run),
        Err(why) => {
            tracing::info!(file = %target.display(), why = chain(&why), "no usable kubeconfig; requesting a client certificate")
        }
    }
    let config = file::load(bootstrap, None).map_err(Failure::usage)?;
    let node = settings.node_name();
    let store = client_store(settings);
    let wanted = client_wanted(settings.names, &node);
    let is_there = || {
        store.current().ok().flatten().is_some_and(|pem| wanted.is_met_by(&pem) && is_good(&pem))
    };
    if !is_there() {
        let agent = format!("orchlet/{}", env!("CARGO_PKG_VERSION"));
        let client = Client::new(&config, settings.names, &agent).map_err(Failure::usage)?;
        issue(&IssueOrder { store: &store, wanted: &wanted, authority: &client }).await;
    }
    let text = client_configuration(&config, &store.current_path())?;
    private_files::write_private_atomically(target, text.as_bytes()).map_err(Failure::run)
}

async fn issue(issuing: &IssueOrder<'_>) {
    let mut retries = Retries::new(RETRY);
    while let Err(error) = issuing.issue().await {
        tracing::warn!(error = chain(&error), "cannot get a client certificate; retried");
        tokio::time::sleep(retries.next_delay(rand::random())).await;
    }
}

/// Why a kubeconfig cannot be used and is written again.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] ClientConfigError),
    #[error("cannot read its client certificate")]
    Certificate(#[source] std::io::Error),
    #[error("its client certificate has expired")]
    Expired,
}

/// Whether a kubeconfig is usable; otherwise why not.
fn usable(path: &Path) -> Result<(), Unusable> {
    let config = file::load(path, None)?;
    let Some(identity) = config.tls.identity else { return Ok(()) };
    let pem = pem(&identity.certificate).map_err(Unusable::Certificate)?;
    if is_good(&pem) { Ok(()) } else { Err(Unusable::Expired) }
}

fn pem(pem: &Pem) -> std::io::Result<Vec<u8>> {
    match pem {
        Pem::File(path) => std::fs::read(path),
        Pem::Data(data) => Ok(data.clone()),
    }
}

fn is_good(pem: &[u8]) -> bool {
    CertificateLifetime::from_pem(pem).is_some_and(|life| life.ends > unix_now())
}

/// A kubeconfig with the bootstrap file's server and the node's certificate, as JSON, which is
/// YAML.
fn client_configuration(bootstrap: &ClientConfig, pair: &Path) -> Result<String, Failure> {
    let mut cluster = json!({"server": bootstrap.server.to_string()});
    let mut put = |name: &str, value: Value| {
        if let Some(fields) = cluster.as_object_mut() {
            fields.insert(name.to_owned(), value);
        }
    };
    match &bootstrap.tls.authority {
        Some(Pem::File(path)) => {
            let path = path.canonicalize().map_err(Failure::run)?;
            put("certificate-authority", json!(path));
        }
        Some(Pem::Data(data)) => put("certificate-authority-data", json!(file::encoded(data))),
        None => {}
    }
    if let Some(name) = &bootstrap.tls.server_name {
        put("tls-server-name", json!(name));
    }
    if bootstrap.tls.verification == proto_client::config::Verification::Skipped {
        put("insecure-skip-tls-verify", json!(true));
    }
    let user = json!({"client-certificate": pair, "client-key": pair});
    let whole = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": user}],
        "contexts": [{"name": "default-context", "context": {
            "cluster": "default-cluster", "user": "default-auth", "namespace": bootstrap.namespace}}],
        "current-context": "default-context",
    });
    serde_json::to_string_pretty(&whole).map_err(Failure::run)
}

/// Replaces the identity of a kubeconfig by the renewed certificate, which starts as a copy of it.
///
/// # Errors
/// The kubeconfig's certificate cannot be read or copied.
pub fn renewed_identity(settings: &Settings, config: &mut ClientConfig) -> std::io::Result<()> {
    let store = client_store(settings);
    if store.current()?.is_none() {
        let Some(identity) = &config.tls.identity else { return Ok(()) };
        let (certificate, key) = (pem(&identity.certificate)?, pem(&identity.key)?);
        let key = String::from_utf8(key).map_err(std::io::Error::other)?;
        store.install(&certificate, &key, unix_now())?;
    }
    let current = || Pem::File(store.current_path());
    config.tls.identity = Some(Identity { certificate: current(), key: current() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_that_is_written_is_read_again() {
        let directory = tempfile::tempdir().expect("tempdir");
        let mut bootstrap = ClientConfig::direct("https://10.0.0.1:6443".parse().expect("valid"));
        bootstrap.tls.authority = Some(Pem::Data(b"authority".to_vec()));
        bootstrap.tls.server_name = Some("api".into());
        let pair = directory.path().join("pair.pem");
        let text = client_configuration(&bootstrap, &pair).expect("text");
        let path = directory.path().join("config");
        private_files::write_private_atomically(&path, text.as_bytes()).expect("written");
        let read = file::load(&path, None).expect("valid");
        let identity =
            Identity { certificate: Pem::File(pair.clone()), key: Pem::File(pair.clone()) };
        assert_eq!(read.tls.identity, Some(identity));
        assert_eq!(
            (read.server, read.tls.authority, read.tls.server_name),
            (bootstrap.server, bootstrap.tls.authority, bootstrap.tls.server_name)
        );
        // The file is missing or invalid: a new certificate is needed.
        assert!(usable(&path).is_err());
        let made = rcgen::generate_simple_self_signed(vec!["n1".into()]).expect("made");
        std::fs::write(&pair, format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()))
            .expect("written");
        usable(&path).expect("usable");
        assert!(usable(&directory.path().join("none")).is_err());
    }
}
