//! The endpoint's certificate, and who a client's certificate says it is.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use proto_api::authentication::v1::UserInfo;
use proto_client::rotating::{Changed, Rotating};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::time::Instant;

/// Where the certificate comes from and whose clients are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain and key (`--tls-cert-file`, `--tls-private-key-file`); a certificate
    /// signed by itself when not set.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Authorities of client certificates (`--client-ca-file`); none are asked for when not set.
    pub client_authority: Option<PathBuf>,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the {what}")]
    Read {
        /// Which.
        what: &'static str,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// It is no PEM, or holds none of what it should.
    #[error("the {what} is no valid PEM")]
    Pem {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        cause: rustls::pki_types::pem::Error,
    },
    /// It cannot be used, for example a key that does not fit its certificate.
    #[error("the {what} cannot be used")]
    Unusable {
        /// Which.
        what: &'static str,
        /// Why.
        #[source]
        cause: rustls::Error,
    },
    /// The authorities of clients cannot be used.
    #[error("the client authority cannot be used")]
    Authority(#[source] rustls::server::VerifierBuilderError),
    /// No certificate could be made.
    #[error("cannot make a certificate")]
    Make(#[source] rcgen::Error),
}

/// Makes the TLS settings, and makes them again when a file has changed.
#[derive(Debug)]
pub struct ServerTls(Mutex<State>);

#[derive(Debug)]
struct State {
    certificate: Rotating,
    key: Rotating,
    authority: Option<Rotating>,
    made: Option<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Reads the files, or makes a certificate for `names`.
    pub fn new(files: &TlsFiles, names: &[String]) -> Result<Self, TlsError> {
        let (certificate, key) = match &files.identity {
            Some((certificate, key)) => {
                (Rotating::file(certificate.clone()), Rotating::file(key.clone()))
            }
            None => {
                let made =
                    rcgen::generate_simple_self_signed(names.to_vec()).map_err(TlsError::Make)?;
                let certificate = made.cert.pem().into_bytes();
                let key = made.signing_key.serialize_pem().into_bytes();
                (Rotating::fixed(certificate), Rotating::fixed(key))
            }
        };
        let authority = files.client_authority.clone().map(Rotating::file);
        let tls = Self(Mutex::new(State { certificate, key, authority, made: None }));
        tls.config()?;
        Ok(tls)
    }

    /// The settings for a new connection. While new files are no use, the last good ones.
    pub fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (state.remake(Instant::now()), &state.made) {
            (Ok(Some(config)), _) => {
                state.made = Some(config.clone());
                Ok(config)
            }
            (Ok(None), Some(made)) => Ok(made.clone()),
            (Err(error), Some(made)) => {
                tracing::warn!(
                    error = proto_daemon::exit::chain(&error),
                    "new certificates are no use yet"
                );
                Ok(made.clone())
            }
            (Err(error), None) => Err(error),
            // Cannot be: the first read is always a change. Asking again is what heals whatever it
            // was.
            (Ok(None), None) => Err(TlsError::Pem {
                what: "certificate",
                cause: rustls::pki_types::pem::Error::NoItemsFound,
            }),
        }
    }
}

impl State {
    /// New settings when a file has changed since the last call.
    fn remake(&mut self, now: Instant) -> Result<Option<Arc<ServerConfig>>, TlsError> {
        let mut any = Changed::No;
        let mut read = |what, file: &mut Rotating| {
            let (content, changed) =
                file.current(now).map_err(|cause| TlsError::Read { what, cause })?;
            if changed == Changed::Yes {
                any = Changed::Yes;
            }
            Ok(content)
        };
        let certificate = read("certificate", &mut self.certificate)?;
        let key = read("key", &mut self.key)?;
        let authority =
            self.authority.as_mut().map(|file| read("client authority", file)).transpose()?;
        match any {
            Changed::No => Ok(None),
            Changed::Yes => make(&certificate, &key, authority.as_deref()).map(Some),
        }
    }
}

fn make(
    certificate: &[u8],
    key: &[u8],
    authority: Option<&[u8]>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|cause| TlsError::Unusable { what: "protocol version", cause })?;
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for root in chain("client authority", pem)? {
                roots
                    .add(root)
                    .map_err(|cause| TlsError::Unusable { what: "client authority", cause })?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .allow_unauthenticated()
                .build()
                .map_err(TlsError::Authority)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|cause| TlsError::Pem { what: "key", cause })?;
    let mut config = builder
        .with_single_cert(chain("certificate", certificate)?, key)
        .map_err(|cause| TlsError::Unusable { what: "certificate", cause })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn chain(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|cause| TlsError::Pem { what, cause })
}

/// Who a verified client certificate says its owner is: the common name is the user, each
/// organization a group.
pub fn certified_user(certificate: &CertificateDer<'_>) -> Option<UserInfo> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let subject = parsed.subject();
    let username = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject
        .iter_organization()
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect();
    (!username.is_empty()).then(|| UserInfo { username, groups, ..UserInfo::default() })
}
