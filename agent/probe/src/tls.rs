//! TLS connections to pods. Certificates are not verified, as in Kubernetes: a probe has no name or authority to verify against.

use std::sync::{Arc, OnceLock};

use proto_daemon::tls::AnyServer;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A pod that does not speak TLS with the agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    #[error(transparent)]
    Settings(#[from] rustls::Error),
    #[error(transparent)]
    Connection(#[from] std::io::Error),
}

/// Performs the TLS handshake on an open connection.
pub(crate) async fn connect(
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, HandshakeError> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host)?;
    let connector = TlsConnector::from(config()?);
    Ok(connector.connect(name, stream).await?)
}

fn config() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}
