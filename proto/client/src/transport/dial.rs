//! From a host name to a plain or encrypted stream for HTTP.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::in_memory::InMemory;
use super::tls::ClientTlsError;

/// For connecting and for the TLS handshake, each.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Unacknowledged data breaks the connection after this long; keep-alive probes detect a dead peer.
const TCP_USER_TIMEOUT_MS: u32 = 30_000;

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn from_uri(server: &Uri) -> Self {
        let usual = if server.scheme_str() == Some("http") { 80 } else { 443 };
        let host = server.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Self { host: host.to_owned(), port: server.port_u16().unwrap_or(usual) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Decides to which addresses connections may go.
#[derive(Clone)]
pub struct AddressRule(Arc<dyn Fn(SocketAddr) -> bool + Send + Sync>);

impl AddressRule {
    /// The rule that `allows` is.
    pub fn new(allows: impl Fn(SocketAddr) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(allows))
    }
}

impl fmt::Debug for AddressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AddressRule")
    }
}

/// Which protocols are offered to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferedProtocols {
    /// HTTP/2, else HTTP/1.1.
    Any,
    /// HTTP/1.1 only, for connections that are to be upgraded.
    Http1,
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name does not resolve, or no server listens.
    #[error("TCP connection failed")]
    Tcp(#[source] io::Error),
    /// An address of the server is one that connections may not go to. The words are Kubernetes'.
    #[error("address not allowed")]
    NotAllowed,
    /// The server in this process has ended.
    #[error("the server in this process accepts no connection")]
    InMemory(#[source] io::Error),
    /// The handshake failed, or the certificate is not trusted.
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    /// A step exceeded its deadline.
    #[error("{_0} took more than {secs} s", secs = STEP_TIMEOUT.as_secs())]
    TooSlow(&'static str),
    /// The client's certificate or the authorities cannot be used.
    #[error("invalid TLS settings")]
    Settings(#[from] ClientTlsError),
    /// The HTTP handshake failed.
    #[error("HTTP handshake failed")]
    Handshake(#[source] hyper::Error),
    /// The proxy on the way to the server cannot be reached.
    #[error("the proxy {proxy} cannot be reached")]
    Proxy {
        /// Host and port.
        proxy: String,
        /// Why.
        #[source]
        cause: Box<DialError>,
    },
    /// The proxy is reached, but the server is not through it.
    #[error("the connection through the proxy {proxy} failed")]
    ThroughProxy {
        /// Host and port.
        proxy: String,
        /// Why.
        #[source]
        cause: Box<DialError>,
    },
    /// The proxy does not speak SOCKS as it should.
    #[error("SOCKS failed")]
    Socks(#[source] io::Error),
    /// The proxy does not pass connections on to the server.
    #[error("the proxy {proxy} refused the connection: {answer}")]
    Refused {
        /// Host and port.
        proxy: String,
        /// What it said.
        answer: String,
    },
}

pub(crate) struct DialedConnection {
    pub(crate) stream: Stream,
    pub(crate) speaks_http2: bool,
}

/// Plain, encrypted, or otherwise.
pub(crate) type Stream = Either<TcpStream, Either<Box<TlsStream<TcpStream>>, OtherStream>>;

/// Within the process, or passed on by a proxy: plain or encrypted.
type OtherStream = Either<DuplexStream, Either<PassedStream, Box<TlsStream<PassedStream>>>>;

/// What a proxy passes on.
type PassedStream = TokioIo<Upgraded>;

pub(crate) async fn dial(
    endpoint: &Endpoint,
    rule: Option<&AddressRule>,
    tls: Option<(TlsConnector, ServerName<'static>)>,
) -> Result<DialedConnection, DialError> {
    over_tcp(dial_tcp(endpoint, rule).await?, tls).await
}

/// A plain connection, to an address that the rule allows.
pub(super) async fn dial_tcp(
    endpoint: &Endpoint,
    rule: Option<&AddressRule>,
) -> Result<TcpStream, DialError> {
    let tcp = within("connecting", connect(endpoint, rule)).await??;
    set_options(&tcp);
    Ok(tcp)
}

/// As [`dial`], over a connection that leads to the server.
pub(super) async fn over_tcp(
    tcp: TcpStream,
    tls: Option<(TlsConnector, ServerName<'static>)>,
) -> Result<DialedConnection, DialError> {
    let Some((connector, name)) = tls else {
        return Ok(DialedConnection { stream: Stream::Left(tcp), speaks_http2: false });
    };
    let (stream, speaks_http2) = encrypt(connector, name, tcp).await?;
    Ok(DialedConnection { stream: Stream::Right(Either::Left(stream)), speaks_http2 })
}

/// As [`dial`], over what a proxy passes on to the server.
pub(crate) async fn over_proxy(
    passed: PassedStream,
    tls: Option<(TlsConnector, ServerName<'static>)>,
) -> Result<DialedConnection, DialError> {
    let (passed, speaks_http2) = match tls {
        None => (Either::Left(passed), false),
        Some((connector, name)) => {
            let (stream, speaks_http2) = encrypt(connector, name, passed).await?;
            (Either::Right(stream), speaks_http2)
        }
    };
    Ok(DialedConnection {
        stream: Stream::Right(Either::Right(Either::Right(passed))),
        speaks_http2,
    })
}

/// The encrypted stream, and whether the server speaks HTTP/2 over it.
async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
    connector: TlsConnector,
    name: ServerName<'static>,
    plain: S,
) -> Result<(Box<TlsStream<S>>, bool), DialError> {
    let stream = within("the TLS handshake", connector.connect(name, plain)).await?;
    let stream = stream.map_err(DialError::Tls)?;
    let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(stream), speaks_http2))
}

/// As [`dial`], to a server in this process. It speaks all that may be offered.
pub(crate) fn dial_in_memory(
    server: &InMemory,
    offer: OfferedProtocols,
) -> Result<DialedConnection, DialError> {
    let stream = server.connect().map_err(DialError::InMemory)?;
    Ok(DialedConnection {
        stream: Stream::Right(Either::Right(Either::Left(stream))),
        speaks_http2: offer == OfferedProtocols::Any,
    })
}

/// Connects. With a rule the name is resolved once, and every address of it must be allowed.
async fn connect(endpoint: &Endpoint, rule: Option<&AddressRule>) -> Result<TcpStream, DialError> {
    let named = (endpoint.host.as_str(), endpoint.port);
    let connected = match rule {
        None => TcpStream::connect(named).await,
        Some(AddressRule(allows)) => {
            let found = tokio::net::lookup_host(named).await.map_err(DialError::Tcp)?;
            let addresses: Vec<SocketAddr> = found.collect();
            if !addresses.iter().all(|address| allows(*address)) {
                return Err(DialError::NotAllowed);
            }
            TcpStream::connect(addresses.as_slice()).await
        }
    };
    connected.map_err(DialError::Tcp)
}

pub(super) async fn within<F: Future>(
    step: &'static str,
    future: F,
) -> Result<F::Output, DialError> {
    tokio::time::timeout(STEP_TIMEOUT, future).await.map_err(|_| DialError::TooSlow(step))
}

/// Best effort: without these options a dead peer is noticed later.
fn set_options(tcp: &TcpStream) {
    let _ = tcp.set_nodelay(true);
    let _ = setsockopt(tcp, sockopt::KeepAlive, &true);
    let _ = setsockopt(tcp, sockopt::TcpKeepIdle, &15);
    let _ = setsockopt(tcp, sockopt::TcpKeepInterval, &5);
    let _ = setsockopt(tcp, sockopt::TcpKeepCount, &3);
    let _ = setsockopt(tcp, sockopt::TcpUserTimeout, &TCP_USER_TIMEOUT_MS);
}
