//! Connections to nodes and workloads: TCP with a time limit, TLS where the target asks for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proto_daemon::tls::AnyServer;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::dial_policy::{DialPolicy, NOT_ALLOWED};
use super::target::{ProxyTarget, Scheme, Trust};

/// Longest wait for a connection, TLS handshake included.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Makes connections to nodes and workloads.
pub struct NodeProxy {
    /// For node agents: with this server's client certificate.
    nodes: TlsConnector,
    /// For workloads: without any identity, and without checking theirs, as pods' certificates come from anywhere.
    workloads: TlsConnector,
}

/// Why the TLS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeProxyError {
    /// The library refuses the certificate or key.
    #[error("client certificate for nodes")]
    Certificate(#[source] rustls::Error),
}

/// A connection of either sort.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It took too long.
    #[error("timed out")]
    TimedOut,
    /// TCP or TLS failed.
    #[error("{0}")]
    Io(std::io::Error),
    /// None of the addresses may be dialed.
    #[error("{NOT_ALLOWED}")]
    NotAllowed,
    /// The address is none that TLS can name.
    #[error("{0:?} is no server name")]
    Name(String),
}

impl NodeProxy {
    /// `authority` holds the roots of node agents' certificates; unset means that any is taken.
    ///
    /// # Errors
    /// [`NodeProxyError`] when certificate and key do not fit.
    pub fn new(
        provider: &Arc<CryptoProvider>,
        authority: Option<RootCertStore>,
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<Self, NodeProxyError> {
        let builder = || {
            ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()
                .map_err(NodeProxyError::Certificate)
        };
        let anybody = || Arc::new(AnyServer(provider.clone()));
        let nodes = match authority {
            Some(roots) => builder()?.with_root_certificates(roots),
            None => builder()?.dangerous().with_custom_certificate_verifier(anybody()),
        };
        let nodes = match identity {
            Some((chain, key)) => {
                nodes.with_client_auth_cert(chain, key).map_err(NodeProxyError::Certificate)?
            }
            None => nodes.with_no_client_auth(),
        };
        let workloads = builder()?
            .dangerous()
            .with_custom_certificate_verifier(anybody())
            .with_no_client_auth();
        Ok(Self { nodes: Arc::new(nodes).into(), workloads: Arc::new(workloads).into() })
    }

    /// Connects to a target, if `policy` allows its address. A name is resolved once, and each of its addresses has to be allowed.
    ///
    /// # Errors
    /// `ConnectError`; nothing is tried twice.
    pub async fn connect(
        &self,
        target: &ProxyTarget,
        policy: &DialPolicy,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        tokio::time::timeout(CONNECT_MAX, self.open(target, policy))
            .await
            .map_err(|_| ConnectError::TimedOut)?
    }

    async fn open(
        &self,
        target: &ProxyTarget,
        policy: &DialPolicy,
    ) -> Result<Box<dyn Stream>, ConnectError> {
        let found = tokio::net::lookup_host((target.host.as_str(), target.port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(ConnectError::Io)?.collect();
        if addresses.iter().any(|address| !policy.allows(*address, target.scope)) {
            return Err(ConnectError::NotAllowed);
        }
        let socket = TcpStream::connect(addresses.as_slice()).await.map_err(ConnectError::Io)?;
        socket.set_nodelay(true).map_err(ConnectError::Io)?;
        if target.scheme == Scheme::Http {
            return Ok(Box::new(socket));
        }
        let connector = match target.trust {
            Trust::Kubelet => &self.nodes,
            Trust::Workload => &self.workloads,
        };
        let name = ServerName::try_from(target.host.clone())
            .map_err(|_| ConnectError::Name(target.host.clone()))?;
        Ok(Box::new(connector.connect(name, socket).await.map_err(ConnectError::Io)?))
    }
}
