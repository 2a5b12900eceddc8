//! Connections to kubelets, workloads and other API servers: TCP with a timeout, and TLS for HTTPS targets.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use apiserver_core::dial_policy::{DialPolicy, NOT_ALLOWED};
use proto_daemon::tls::AnyServer;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, WantsVerifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::front_proxy::{CaBundleError, FrontProxy};
use super::target::{ProxyTarget, Scheme, Trust};

/// Longest wait for a connection, TLS handshake included.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Connects to kubelets and workloads, and proxies requests to them.
pub struct NodeProxy {
    provider: Arc<CryptoProvider>,
    /// For kubelets: presents this server's client certificate.
    nodes: RwLock<TlsConnector>,
    /// For workloads: no client certificate, and server certificates are not verified, as in Kubernetes.
    workloads: TlsConnector,
    /// For other API servers.
    pub(super) front_proxy: FrontProxy,
}

/// Why the TLS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeProxyError {
    /// rustls refuses the certificate or key.
    #[error("cannot use the client certificate for kubelets")]
    Certificate(#[source] rustls::Error),
    /// rustls refuses the certificate or key of authenticating proxies.
    #[error("cannot use the client certificate for other API servers")]
    FrontProxy(#[source] rustls::Error),
}

/// A plain or TLS connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Error of connecting to a target.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection was not made within [`CONNECT_MAX`].
    #[error("timed out")]
    TimedOut,
    /// TCP or TLS failed.
    #[error("{0}")]
    Io(std::io::Error),
    /// An address of the target may not be dialed.
    #[error("{NOT_ALLOWED}")]
    NotAllowed,
    /// The host is not a valid TLS server name.
    #[error("{0:?} is not a valid server name")]
    Name(String),
    /// The authorities of another API server cannot be used.
    #[error("{0}")]
    Authority(#[from] CaBundleError),
}

/// The client certificate for kubelets, the leaf first, with its key.
pub type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn builder(
    provider: &Arc<CryptoProvider>,
) -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, NodeProxyError> {
    ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(NodeProxyError::Certificate)
}

fn for_nodes(
    provider: &Arc<CryptoProvider>,
    authority: Option<RootCertStore>,
    identity: Option<ChainAndKey>,
) -> Result<TlsConnector, NodeProxyError> {
    let builder = builder(provider)?;
    let nodes = match authority {
        Some(roots) => builder.with_root_certificates(roots),
        None => {
            let any_server = Arc::new(AnyServer(provider.clone()));
            builder.dangerous().with_custom_certificate_verifier(any_server)
        }
    };
    let nodes = match identity {
        Some((chain, key)) => {
            nodes.with_client_auth_cert(chain, key).map_err(NodeProxyError::Certificate)?
        }
        None => nodes.with_no_client_auth(),
    };
    Ok(Arc::new(nodes).into())
}

impl NodeProxy {
    /// A proxy whose connections to kubelets present `identity` and verify against `authority`; without it certificates of kubelets
    /// are not verified.
    ///
    /// # Errors
    /// [`NodeProxyError`] when certificate and key do not match.
    pub fn new(
        provider: &Arc<CryptoProvider>,
        authority: Option<RootCertStore>,
        identity: Option<ChainAndKey>,
    ) -> Result<Self, NodeProxyError> {
        let any_server = Arc::new(AnyServer(provider.clone()));
        let workloads = builder(provider)?
            .dangerous()
            .with_custom_certificate_verifier(any_server)
            .with_no_client_auth();
        Ok(Self {
            provider: provider.clone(),
            nodes: RwLock::new(for_nodes(provider, authority, identity)?),
            workloads: Arc::new(workloads).into(),
            front_proxy: FrontProxy::new(provider),
        })
    }

    /// Has the next connections to kubelets present another identity and verify against another authority.
    ///
    /// # Errors
    /// As [`NodeProxy::new`]; the old ones stay.
    pub fn replace(
        &self,
        authority: Option<RootCertStore>,
        identity: Option<ChainAndKey>,
    ) -> Result<(), NodeProxyError> {
        let made = for_nodes(&self.provider, authority, identity)?;
        *self.nodes.write().unwrap_or_else(PoisonError::into_inner) = made;
        Ok(())
    }

    /// Has the next connections to other API servers present this identity; `None` for none.
    ///
    /// # Errors
    /// [`NodeProxyError`] when certificate and key do not match; the old one stays.
    pub fn replace_front_proxy(&self, identity: Option<ChainAndKey>) -> Result<(), NodeProxyError> {
        self.front_proxy.replace(identity).map_err(NodeProxyError::FrontProxy)
    }

    /// Connects to `target`. A name is resolved once, and `policy` must allow every one of its addresses.
    ///
    /// # Errors
    /// [`ConnectError`]; there is no retry.
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
        let (connector, name) = match &target.trust {
            Trust::Kubelet => {
                let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone();
                (nodes, target.host.clone())
            }
            Trust::Workload => (self.workloads.clone(), target.host.clone()),
            Trust::ApiServer(backend) => {
                (self.front_proxy.connector(backend)?, backend.server_name())
            }
        };
        let name = ServerName::try_from(name.clone()).map_err(|_| ConnectError::Name(name))?;
        Ok(Box::new(connector.connect(name, socket).await.map_err(ConnectError::Io)?))
    }
}
