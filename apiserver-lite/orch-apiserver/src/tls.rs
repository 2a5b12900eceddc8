//! TLS configuration: the listener with optional client certificates, and the client side towards kubelets.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apiserver_core::config::{Config, Credentials};
use apiserver_http::{NodeProxy, NodeProxyError, ServingTls};
use proto_daemon::tls::{self, ClientTrust};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::VerifierBuilderError;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::pki::{CertificatePem, Pki};

/// Error of setting up TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("cannot read PEM file {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the PEM parser.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// rustls refuses a certificate.
    #[error("cannot use the certificate of {what}")]
    Certificate {
        /// Owner of the certificate.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The CA of client certificates cannot be used.
    #[error("cannot use the CA of client certificates")]
    Authority(#[source] VerifierBuilderError),
    /// Every client could name any user.
    #[error(
        "--requestheader-client-ca-file and the authorities of clients share a certificate: expected --requestheader-allowed-names"
    )]
    SharedAuthority,
    /// The client certificate for kubelets cannot be used.
    #[error(transparent)]
    Nodes(#[from] NodeProxyError),
    /// No serving certificate is configured, and there is no CA to issue one.
    #[error("no serving certificate: expected --tls-cert-file, or a generated certificate")]
    NoCertificate,
}

type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The crypto provider of the process.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The TLS of the listener, with the verifiers of client certificates that are configured or generated.
///
/// # Errors
/// [`TlsError`] naming the file or certificate.
pub fn serving(
    provider: &Arc<CryptoProvider>,
    config: &Config,
    pki: Option<&Pki>,
) -> Result<ServingTls, TlsError> {
    let (chain, key) = match (&config.serving, pki) {
        (Some(files), _) => from_files(files)?,
        (None, Some(pki)) => from_text(&pki.serving)?,
        (None, None) => return Err(TlsError::NoCertificate),
    };
    let mut roots = RootCertStore::empty();
    if let Some(path) = &config.client_ca_file {
        add_roots(&mut roots, path)?;
    }
    if let Some(pki) = pki {
        add_text_roots(&mut roots, &pki.ca)?;
    }
    let mut proxy_roots = RootCertStore::empty();
    if let Some(proxies) = &config.request_headers {
        add_roots(&mut proxy_roots, &proxies.ca_file)?;
        let shared = proxy_roots.roots.iter().any(|root| roots.roots.contains(root));
        if shared && proxies.headers.allowed_names.is_empty() {
            return Err(TlsError::SharedAuthority);
        }
    }
    // The handshake names all authorities: a client may have certificates of several.
    let mut all = roots.clone();
    all.extend(proxy_roots.roots.iter().cloned());
    let trust = |roots: RootCertStore| -> Result<Option<Arc<ClientTrust>>, TlsError> {
        if roots.is_empty() {
            return Ok(None);
        }
        let trust = ClientTrust::new(provider.clone(), roots).map_err(TlsError::Authority)?;
        Ok(Some(Arc::new(trust)))
    };
    let certificate = |source| TlsError::Certificate { what: "the server", source };
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(certificate)?;
    let builder = match trust(all)? {
        None => builder.with_no_client_auth(),
        Some(trust) => builder.with_client_cert_verifier(trust),
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(certificate)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    Ok(ServingTls { acceptor, clients: trust(roots)?, proxies: trust(proxy_roots)? })
}

/// The client for connections to kubelets: with the configured client certificate, else the administrator's.
///
/// # Errors
/// [`TlsError`] naming the file or certificate.
pub fn node_proxy(
    provider: &Arc<CryptoProvider>,
    config: &Config,
    pki: Option<&Pki>,
) -> Result<NodeProxy, TlsError> {
    let identity = match (&config.node_client.credentials, pki) {
        (Some(files), _) => Some(from_files(files)?),
        (None, Some(pki)) => Some(from_text(&pki.admin)?),
        (None, None) => None,
    };
    let authority = match &config.node_client.authority {
        Some(path) => {
            let mut roots = RootCertStore::empty();
            add_roots(&mut roots, path)?;
            Some(roots)
        }
        None => {
            tracing::warn!(
                "--kubelet-certificate-authority is not set: certificates of kubelets are not verified"
            );
            None
        }
    };
    Ok(NodeProxy::new(provider, authority, identity)?)
}

fn from_files(files: &Credentials) -> Result<ChainAndKey, TlsError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    let chain =
        CertificateDer::pem_file_iter(&files.certificate).map_err(file(&files.certificate))?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(file(&files.key))?;
    Ok((chain.map_err(file(&files.certificate))?, key))
}

fn from_text(pair: &CertificatePem) -> Result<ChainAndKey, TlsError> {
    let made = |source| TlsError::File { path: PathBuf::from("(generated)"), source };
    let chain = tls::certificates(pair.certificate.as_bytes()).map_err(made)?;
    Ok((chain, tls::key(pair.key.as_bytes()).map_err(made)?))
}

fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsError> {
    let file = |source| TlsError::File { path: path.to_owned(), source };
    for certificate in CertificateDer::pem_file_iter(path).map_err(file)? {
        let added = roots.add(certificate.map_err(file)?);
        added.map_err(|source| TlsError::Certificate { what: "an authority", source })?;
    }
    Ok(())
}

fn add_text_roots(roots: &mut RootCertStore, text: &str) -> Result<(), TlsError> {
    let made = |source| TlsError::File { path: PathBuf::from("(generated)"), source };
    for certificate in tls::certificates(text.as_bytes()).map_err(made)? {
        let added = roots.add(certificate);
        added.map_err(|source| TlsError::Certificate { what: "an authority", source })?;
    }
    Ok(())
}
