//! Flags of the pages that are served over HTTPS, as Kubernetes' control plane has them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use proto_api::names::Names;
use proto_daemon::flags::FlagError;
use proto_daemon::go_duration;

use super::access::{AccessRules, Anonymous, Authorization, Tokens};
use super::tls::{self, ServerTls, Serving, ServingTlsError, Terms, TermsError, TlsFiles};
use super::{ReviewClients, SecureServer};
use crate::config::file;
use crate::{Client, ClientConfig};

/// Flatten this into a program's flags: `#[command(flatten)] serving: ServingFlags`.
#[derive(Args, Clone, Debug)]
pub struct ServingFlags {
    /// Certificate chain of the HTTPS server; without it a self-signed certificate is made.
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,

    /// Its key.
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,

    /// Versions and cipher suites of TLS.
    #[command(flatten)]
    pub tls_terms: TlsTermsFlags,

    /// Authorities of client certificates; without it clients authenticate by tokens only.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// Client configuration for token reviews; the default is that of --kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// Client configuration for subject access reviews; the default is that of --kubeconfig.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// Paths without authorization; a * at the end matches any rest.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "/healthz,/readyz,/livez"
    )]
    pub authorization_always_allow_paths: Vec<String>,

    /// How long token reviews are cached.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = go_duration::parse)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// How long allowing access reviews are cached.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = go_duration::parse)]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long denying access reviews are cached.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = go_duration::parse)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

/// Flags of the versions and cipher suites of TLS.
#[derive(Args, Clone, Debug)]
pub struct TlsTermsFlags {
    /// Oldest version of TLS: VersionTLS12 or VersionTLS13.
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub tls_min_version: String,

    /// Cipher suites of TLS 1.2; all secure ones by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
}

impl TlsTermsFlags {
    /// What the flags say, unchecked.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let (min_version, suites) = (self.tls_min_version.clone(), self.tls_cipher_suites.clone());
        Terms { min_version, suites }
    }

    /// What the flags say.
    ///
    /// # Errors
    /// A name that is not known, with its flag.
    pub fn checked(&self) -> Result<Terms, FlagError> {
        let of = |flag: &'static str| {
            move |error: TermsError| FlagError::new(format!("{flag}: {error}"))
        };
        tls::versions(&self.tls_min_version).map_err(of("--tls-min-version"))?;
        tls::suites(&self.tls_cipher_suites).map_err(of("--tls-cipher-suites"))?;
        Ok(self.terms())
    }
}

/// Why there is no HTTPS server.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// The certificates cannot be used.
    #[error("cannot set up TLS of the health and metrics server")]
    Tls(#[source] ServingTlsError),
    /// A client configuration cannot be used.
    #[error("{flag}: cannot use {path}")]
    Kubeconfig {
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address cannot be bound.
    #[error("cannot listen at {address}")]
    Listen {
        address: SocketAddr,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
}

impl ServingFlags {
    /// The server on `address`; `own` is the program's client, `agent` its user agent.
    ///
    /// # Errors
    /// A file cannot be used, or the address cannot be bound.
    pub async fn bind(
        &self,
        address: SocketAddr,
        own: &Client,
        names: &'static Names,
        agent: &str,
    ) -> Result<SecureServer, ServingError> {
        let client = |flag: &'static str, path: &Option<PathBuf>| match path {
            None => Ok(own.clone()),
            Some(path) => read(path, names, agent).map_err(|cause| ServingError::Kubeconfig {
                flag,
                path: path.clone(),
                cause,
            }),
        };
        let asked = ReviewClients {
            tokens: client("--authentication-kubeconfig", &self.authentication_kubeconfig)?,
            access: client("--authorization-kubeconfig", &self.authorization_kubeconfig)?,
        };
        let tls = self.tls(address).map_err(ServingError::Tls)?;
        let open = self.authorization_always_allow_paths.clone();
        SecureServer::bind(address, tls, self.rules(), Box::new(asked), open)
            .await
            .map_err(|cause| ServingError::Listen { address, cause })
    }

    fn rules(&self) -> AccessRules {
        AccessRules {
            // The API server authorizes anonymous requests as well.
            anonymous: Anonymous::Allowed,
            tokens: Tokens::Reviewed(self.authentication_token_webhook_cache_ttl),
            authorization: Authorization::Webhook {
                allowed_for: self.authorization_webhook_cache_authorized_ttl,
                denied_for: self.authorization_webhook_cache_unauthorized_ttl,
            },
        }
    }

    fn tls(&self, address: SocketAddr) -> Result<ServerTls, ServingTlsError> {
        let files = self.tls_cert_file.clone().zip(self.tls_private_key_file.clone());
        let identity = files.map_or(Serving::SelfSigned, |(chain, key)| Serving::Named(chain, key));
        let terms = self.tls_terms.terms();
        let files = TlsFiles { identity, client_authority: self.client_ca_file.clone(), terms };
        ServerTls::new(&files, &["localhost".to_owned(), address.ip().to_string()])
    }
}

fn read(
    path: &std::path::Path,
    names: &'static Names,
    agent: &str,
) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
    let config: ClientConfig = file::load(path, None)?;
    Ok(Client::new(&config, names, agent)?)
}
