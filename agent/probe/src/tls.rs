//! TLS connections to pods. Certificates are not verified, as in Kubernetes: a probe has no name or authority to verify against.

use std::sync::{Arc, OnceLock};

use proto_daemon::tls::AnyServer;
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Performs the TLS handshake on an open connection.
pub(crate) async fn connect(host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(config()?);
    connector.connect(name, stream).await.map_err(|error| error.to_string())
}

fn config() -> Result<Arc<ClientConfig>, String> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
        .with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}
