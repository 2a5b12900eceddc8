//! The client side of connections to other API servers: this server is an authenticating proxy towards them, and shows the certificate of one.

use std::sync::{Arc, PoisonError, RwLock};

use apiserver_core::aggregation::{Backend, Verification};
use proto_daemon::tls::{AnyServer, FileFault, ServerTrust};
use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use tokio_rustls::TlsConnector;

use super::connect::ChainAndKey;

/// What connections to other API servers present.
pub struct FrontProxy {
    provider: Arc<CryptoProvider>,
    identity: RwLock<Option<ChainAndKey>>,
}

/// Why the certificate of another API server cannot be verified.
#[derive(Debug, thiserror::Error)]
pub enum CaBundleError {
    /// The APIService has no caBundle.
    #[error(
        "spec.caBundle is empty: expected the authority of the server, or insecureSkipTLSVerify"
    )]
    Missing,
    /// The authorities are none.
    #[error("spec.caBundle cannot be used: {0}")]
    File(#[from] FileFault),
    /// TLS does not accept the identity.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

impl FrontProxy {
    pub(super) fn new(provider: &Arc<CryptoProvider>) -> Self {
        Self { provider: provider.clone(), identity: RwLock::default() }
    }

    pub(super) fn replace(&self, identity: Option<ChainAndKey>) -> Result<(), rustls::Error> {
        if let Some((chain, key)) = &identity {
            let any_server = Arc::new(AnyServer(self.provider.clone()));
            let builder = ClientConfig::builder_with_provider(self.provider.clone());
            let builder = builder.with_safe_default_protocol_versions()?.dangerous();
            let builder = builder.with_custom_certificate_verifier(any_server);
            builder.with_client_auth_cert(chain.clone(), key.clone_key())?;
        }
        *self.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
        Ok(())
    }

    /// TLS to the server of an APIService.
    ///
    /// # Errors
    /// Its authorities cannot be used.
    pub fn connector(&self, backend: &Backend) -> Result<TlsConnector, CaBundleError> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_safe_default_protocol_versions()?;
        let builder = match backend.verification {
            Verification::Skipped => {
                let any_server = Arc::new(AnyServer(self.provider.clone()));
                builder.dangerous().with_custom_certificate_verifier(any_server)
            }
            Verification::Full if backend.authority.is_empty() => {
                return Err(CaBundleError::Missing);
            }
            Verification::Full => {
                let trust =
                    ServerTrust::new(self.provider.clone(), "authority", &backend.authority)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(trust))
            }
        };
        let identity = self.identity.read().unwrap_or_else(PoisonError::into_inner);
        let config = match identity.as_ref() {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key())?,
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config).into())
    }
}
