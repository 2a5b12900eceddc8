//! TLS configuration: the listener with optional client certificates, and the client side towards kubelets. All of it comes from PEM files that may be
//! replaced while the server runs: `certificate_files.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use apiserver_http::{NodeProxy, NodeProxyError, ServingTls};
use proto_client::serving::tls::{ServingTlsError, Terms};
use proto_daemon::tls::{self, ClientTrust};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::VerifierBuilderError;
use tokio_rustls::TlsAcceptor;

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
    /// A protocol version or cipher suite is not known.
    #[error(transparent)]
    Terms(#[from] ServingTlsError),
    /// No serving certificate is configured, and there is no CA to issue one.
    #[error("no serving certificate: expected --tls-cert-file, or a generated certificate")]
    NoCertificate,
}

/// The content of a PEM file, with its name for errors.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The file.
    pub path: PathBuf,
    pub content: Arc<[u8]>,
}

/// Contents of the files of a certificate with its chain and of its key.
pub struct IdentityPem {
    /// The chain.
    pub certificate: Pem,
    pub key: Pem,
}

/// Contents of the files of the listener.
pub struct ListenerPem {
    /// What the server shows.
    pub identity: IdentityPem,
    /// Authorities of clients.
    pub clients: Vec<Pem>,
    /// Authorities of authenticating proxies, if there are any.
    pub proxies: Option<Pem>,
    /// Whether every certificate of these authorities is a proxy's.
    pub any_proxy: bool,
}

/// The TLS of the listener, with the verifiers of client certificates.
///
/// # Errors
/// [`TlsError`] naming the file, certificate or setting.
pub fn serving(terms: &Terms, pem: &ListenerPem) -> Result<ServingTls, TlsError> {
    let (provider, builder) = terms.server()?;
    let (chain, key) = identity(&pem.identity)?;
    let mut roots = RootCertStore::empty();
    for file in &pem.clients {
        add_roots(&mut roots, file)?;
    }
    let mut proxy_roots = RootCertStore::empty();
    if let Some(file) = &pem.proxies {
        add_roots(&mut proxy_roots, file)?;
        let shared = proxy_roots.roots.iter().any(|root| roots.roots.contains(root));
        if shared && pem.any_proxy {
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
    let builder = match trust(all)? {
        None => builder.with_no_client_auth(),
        Some(trust) => builder.with_client_cert_verifier(trust),
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(certificate)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    Ok(ServingTls { acceptor, clients: trust(roots)?, proxies: trust(proxy_roots)? })
}

/// What connections to kubelets present, and the authorities of kubelets; without them their certificates are not verified.
pub type NodeTls = (Option<RootCertStore>, Option<ChainAndKey>);
pub type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The client side of connections to kubelets, from the contents of its files.
///
/// # Errors
/// [`TlsError`] naming the file or certificate.
pub fn nodes(
    authority: Option<&Pem>,
    identity_pem: Option<&IdentityPem>,
) -> Result<NodeTls, TlsError> {
    let roots = authority.map(|file| {
        let mut roots = RootCertStore::empty();
        add_roots(&mut roots, file).map(|()| roots)
    });
    Ok((roots.transpose()?, identity_pem.map(identity).transpose()?))
}

/// The client for connections to kubelets.
///
/// # Errors
/// [`TlsError`] when certificate and key do not match.
pub fn node_proxy((authority, identity): NodeTls) -> Result<NodeProxy, TlsError> {
    if authority.is_none() {
        tracing::warn!(
            "--kubelet-certificate-authority is not set: certificates of kubelets are not verified"
        );
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(NodeProxy::new(&provider, authority, identity)?)
}

/// A chain and its key, from the contents of their files.
///
/// # Errors
/// [`TlsError`] naming the file.
pub fn identity(pem: &IdentityPem) -> Result<ChainAndKey, TlsError> {
    let key = tls::key(&pem.key.content);
    Ok((certificates(&pem.certificate)?, key.map_err(|source| unreadable(&pem.key, source))?))
}

fn certificates(file: &Pem) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    tls::certificates(&file.content).map_err(|source| unreadable(file, source))
}

fn unreadable(file: &Pem, source: rustls::pki_types::pem::Error) -> TlsError {
    TlsError::File { path: file.path.clone(), source }
}

fn add_roots(roots: &mut RootCertStore, file: &Pem) -> Result<(), TlsError> {
    for certificate in certificates(file)? {
        let added = roots.add(certificate);
        added
            .map_err(|source| TlsError::Certificate { what: "a certificate authority", source })?;
    }
    Ok(())
}
