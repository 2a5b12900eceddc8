//! TLS settings for rustls, rebuilt when one of their files has changed.

use std::sync::{Arc, Mutex, PoisonError};

use proto_daemon::tls::{self, AnyServer, FileFault, ServerTrust};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::dial::OfferedProtocols;
use crate::config::{TlsSettings, Verification};
use crate::reloading_file::{Changed, ReloadingFile};

/// The system's authorities on Debian and its derivatives.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Counts the sets of certificates used so far: connections of an older one get no new requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// Why certificates or authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientTlsError {
    /// One of their files cannot be used.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The server's name is neither a DNS name nor an address.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    Name(String),
}

/// The files of the settings, and the settings that were last built.
#[derive(Debug)]
pub(crate) struct TlsSource {
    name: ServerName<'static>,
    verification: Verification,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    authority: Option<ReloadingFile>,
    identity: Option<(ReloadingFile, ReloadingFile)>,
    made: Option<Made>,
}

#[derive(Clone, Debug)]
struct Made {
    generation: Generation,
    any: Arc<rustls::ClientConfig>,
    http1: Arc<rustls::ClientConfig>,
}

impl TlsSource {
    /// Reads no file yet, so that a daemon may start before its certificates are written.
    pub(crate) fn new(settings: &TlsSettings, host: &str) -> Result<Self, ClientTlsError> {
        let name = settings.server_name.as_deref().unwrap_or(host).to_owned();
        let identity = settings.identity.as_ref();
        Ok(Self {
            name: ServerName::try_from(name.clone()).map_err(|_| ClientTlsError::Name(name))?,
            verification: settings.verification,
            state: Mutex::new(State {
                authority: settings.authority.as_ref().map(ReloadingFile::pem),
                identity: identity
                    .map(|id| (ReloadingFile::pem(&id.certificate), ReloadingFile::pem(&id.key))),
                made: None,
            }),
        })
    }

    pub(crate) fn connector(
        &self,
        offer: OfferedProtocols,
    ) -> Result<(TlsConnector, ServerName<'static>), ClientTlsError> {
        let made = self.load()?;
        let config = match offer {
            OfferedProtocols::Any => made.any,
            OfferedProtocols::Http1 => made.http1,
        };
        Ok((TlsConnector::from(config), self.name.clone()))
    }

    pub(crate) fn generation(&self) -> Result<Generation, ClientTlsError> {
        self.load().map(|made| made.generation)
    }

    fn load(&self) -> Result<Made, ClientTlsError> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, changed) = state.files(now)?;
        if let (Changed::No, Some(made)) = (changed, &state.made) {
            return Ok(made.clone());
        }
        let generation = Generation(state.made.as_ref().map_or(0, |made| made.generation.0 + 1));
        match self.make(generation, &files) {
            Ok(made) => {
                state.made = Some(made.clone());
                Ok(made)
            }
            Err(error) => match &state.made {
                // Most likely half of a pair has been renewed: the old pair is used until the other half follows.
                Some(made) => {
                    tracing::warn!(
                        error = proto_daemon::exit::chain(&error),
                        "cannot use the changed certificate files; the old ones stay in use"
                    );
                    Ok(made.clone())
                }
                None => Err(error),
            },
        }
    }

    fn make(&self, generation: Generation, files: &Files) -> Result<Made, ClientTlsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(FileFault::unusable("protocol version"))?;
        let builder = match (self.verification, &files.authority) {
            (Verification::Skipped, _) => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            }
            (Verification::Full, Some(pem)) => {
                let trust = ServerTrust::new(provider, "authority", pem)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(trust))
            }
            (Verification::Full, None) => builder.with_root_certificates(system_authorities()?),
        };
        let mut config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let whats = ("client certificate", "client key");
                let (chain, key) = tls::identity(whats, (certificate, key))?;
                builder.with_client_auth_cert(chain, key).map_err(FileFault::unusable(whats.0))?
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Made { generation, any: Arc::new(config), http1 })
    }
}

type Content = Arc<[u8]>;

struct Files {
    authority: Option<Content>,
    /// Chain and key.
    identity: Option<(Content, Content)>,
}

impl State {
    fn files(&mut self, now: Instant) -> Result<(Files, Changed), FileFault> {
        let mut changed = Changed::No;
        let mut read = |what, file: &mut ReloadingFile| {
            let (content, new) =
                file.current(now).map_err(|cause| FileFault::Read { what, cause })?;
            if new == Changed::Yes {
                changed = Changed::Yes;
            }
            Ok(content)
        };
        let authority = self.authority.as_mut().map(|file| read("authority", file)).transpose()?;
        let identity = match &mut self.identity {
            None => None,
            Some((certificate, key)) => {
                Some((read("client certificate", certificate)?, read("client key", key)?))
            }
        };
        Ok((Files { authority, identity }, changed))
    }
}

fn system_authorities() -> Result<RootCertStore, FileFault> {
    let what = "authority";
    let pem = std::fs::read(SYSTEM_AUTHORITIES);
    let pem = pem.map_err(|cause| FileFault::Read { what, cause })?;
    let all = tls::certificates(&pem).map_err(|cause| FileFault::Pem { what, cause })?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(all);
    Ok(roots)
}
