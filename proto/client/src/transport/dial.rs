//! From a host name to a stream on which HTTP can be spoken.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use nix::sys::socket::{setsockopt, sockopt};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::tls::TlsError;

/// For connecting and for the TLS handshake, each.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Unacknowledged data breaks the connection after this long; keep-alive probes find a peer that
/// went away in silence.
const TCP_USER_TIMEOUT_MS: u32 = 30_000;

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    pub(crate) fn of(server: &Uri) -> Self {
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

/// Which protocols are offered to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// HTTP/2, else HTTP/1.1.
    Any,
    /// HTTP/1.1 only, for connections that are to be upgraded.
    Http1,
}

/// Why no connection could be made.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name does not resolve, or nothing listens.
    #[error("TCP connection failed")]
    Tcp(#[source] io::Error),
    /// Nobody agreed on keys, or the certificate is not one to trust.
    #[error("TLS handshake failed")]
    Tls(#[source] io::Error),
    /// A step took too long.
    #[error("{_0} took more than {secs} s", secs = STEP_TIMEOUT.as_secs())]
    TooSlow(&'static str),
    /// Own certificates or the authorities cannot be used.
    #[error("TLS settings are no use")]
    Settings(#[from] TlsError),
    /// HTTP did not begin.
    #[error("HTTP handshake failed")]
    Handshake(#[source] hyper::Error),
}

pub(crate) struct Dialed {
    pub(crate) stream: Stream,
    pub(crate) speaks_http2: bool,
}

/// Plain or encrypted.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

pub(crate) async fn dial(
    endpoint: &Endpoint,
    tls: Option<(TlsConnector, ServerName<'static>)>,
) -> Result<Dialed, DialError> {
    let connecting = TcpStream::connect((endpoint.host.as_str(), endpoint.port));
    let tcp = within("connecting", connecting).await?.map_err(DialError::Tcp)?;
    set_options(&tcp);
    let Some((connector, name)) = tls else {
        return Ok(Dialed { stream: Stream::Plain(tcp), speaks_http2: false });
    };
    let stream = within("the TLS handshake", connector.connect(name, tcp)).await?;
    let stream = stream.map_err(DialError::Tls)?;
    let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok(Dialed { stream: Stream::Tls(Box::new(stream)), speaks_http2 })
}

async fn within<F: Future>(step: &'static str, future: F) -> Result<F::Output, DialError> {
    tokio::time::timeout(STEP_TIMEOUT, future).await.map_err(|_| DialError::TooSlow(step))
}

/// Best effort: a socket without these still works, only slower to notice a dead peer.
fn set_options(tcp: &TcpStream) {
    let _ = tcp.set_nodelay(true);
    let _ = setsockopt(tcp, sockopt::KeepAlive, &true);
    let _ = setsockopt(tcp, sockopt::TcpKeepIdle, &15);
    let _ = setsockopt(tcp, sockopt::TcpKeepInterval, &5);
    let _ = setsockopt(tcp, sockopt::TcpKeepCount, &3);
    let _ = setsockopt(tcp, sockopt::TcpUserTimeout, &TCP_USER_TIMEOUT_MS);
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
