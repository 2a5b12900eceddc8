//! Proxies: another server passes connections on, asked by `CONNECT` of HTTP or of SOCKS. A proxy of HTTP is sent plain requests whole.

use std::fmt;
use std::sync::Arc;

use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{Either, Full};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::dial::{self, DialError, DialedConnection, Endpoint, OfferedProtocols};
use super::socks::{self, SocksUser};
use super::tls::{ClientTlsError, TlsSource};
use super::{Body, http1_handshake};
use crate::config::TlsSettings;
use crate::userinfo::{self, UrlUser};

/// A server that passes connections on to others: where it is, and what it asks for.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyServer {
    endpoint: Endpoint,
    protocol: ProxyProtocol,
}

/// How a proxy is asked, and what it asks for before it passes anything on.
#[derive(Clone, PartialEq, Eq)]
enum ProxyProtocol {
    Http(Option<HeaderValue>),
    /// HTTP over TLS.
    Https(Option<HeaderValue>),
    Socks(Option<SocksUser>),
}

/// Where proxies of SOCKS listen unless their URL says otherwise.
const SOCKS_PORT: u16 = 1080;

/// Why a text is not the URL of a proxy.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseProxyError {
    /// It is no URL, or has no host. The text is not repeated: it may have a password.
    #[error("it is not the URL of a proxy")]
    Url,
    /// What follows the host's colon is no port. It is not repeated either: of a URL with a slash in its password it is the beginning of that.
    #[error("its port is not a number from 1 to 65535")]
    Port,
    /// Connections can not be passed on in this way.
    #[error("unsupported scheme {0:?}: must be http, https or socks5")]
    Scheme(String),
    /// User or password have what no header may have.
    #[error("its user and password are not valid in a header")]
    User,
    /// SOCKS has a byte for the length of each.
    #[error("its user must have 1 to 255 bytes, its password at most 255")]
    SocksUser,
}

// The password stays out of logs.
impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProxyServer({self})")
    }
}

impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

impl ProxyServer {
    /// The proxy at `http://[USER[:PASSWORD]@]HOST[:PORT]`, `https://` for one that is asked over TLS, or `socks5://`. As with Go's client a proxy of
    /// SOCKS looks the server's name up; `socks5h` is the same.
    ///
    /// # Errors
    /// The text is no such URL.
    pub fn parse(url: &str) -> Result<Self, ParseProxyError> {
        let (scheme, _) = url.split_once("://").ok_or(ParseProxyError::Url)?;
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "http" | "https" | "socks5" | "socks5h" => {}
            other if is_scheme(other) => return Err(ParseProxyError::Scheme(scheme)),
            _ => return Err(ParseProxyError::Url),
        }
        let parsed: Uri = url.parse().map_err(|_| ParseProxyError::Url)?;
        let (parsed, user) = userinfo::split(&parsed);
        let mut endpoint = Endpoint::from_uri(&parsed);
        if endpoint.host.is_empty() {
            return Err(ParseProxyError::Url);
        }
        if !parsed.authority().is_some_and(|authority| has_valid_port(authority.as_str())) {
            return Err(ParseProxyError::Port);
        }
        let header = |user: UrlUser| {
            userinfo::basic_header(&user.username, &user.password).ok_or(ParseProxyError::User)
        };
        let protocol = match scheme.as_str() {
            "http" => ProxyProtocol::Http(user.map(header).transpose()?),
            "https" => ProxyProtocol::Https(user.map(header).transpose()?),
            _ => {
                endpoint.port = parsed.port_u16().unwrap_or(SOCKS_PORT);
                let valid = |user| SocksUser::new(user).ok_or(ParseProxyError::SocksUser);
                ProxyProtocol::Socks(user.map(valid).transpose()?)
            }
        };
        Ok(Self { endpoint, protocol })
    }
}

/// Whether a text may be a scheme (RFC 3986, section 3.1), not a part of a user or of a password.
fn is_scheme(text: &str) -> bool {
    let is_rest = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphabetic()) && text.bytes().all(is_rest)
}

/// Whether an authority without a user has a port, or none.
fn has_valid_port(authority: &str) -> bool {
    let after_address = authority.rsplit_once(']').map_or(authority, |(_, after)| after);
    let port = after_address.split_once(':').map_or("", |(_, port)| port);
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    port.is_empty() || is_number && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// The way to a server through a proxy.
#[derive(Clone, Debug)]
pub(super) struct ProxyRoute {
    proxy: ProxyServer,
    tls: Option<Arc<TlsSource>>,
}

impl ProxyRoute {
    /// Through a proxy whose certificate, if it has one, is verified as that of the server. The client's own is for the server alone.
    pub(super) fn new(proxy: &ProxyServer, server: &TlsSettings) -> Result<Self, ClientTlsError> {
        let settings = TlsSettings { identity: None, server_name: None, ..server.clone() };
        let tls = match proxy.protocol {
            ProxyProtocol::Https(_) => {
                Some(Arc::new(TlsSource::new(&settings, &proxy.endpoint.host)?))
            }
            ProxyProtocol::Http(_) | ProxyProtocol::Socks(_) => None,
        };
        Ok(Self { proxy: proxy.clone(), tls })
    }

    /// What errors are to name.
    pub(super) fn proxy(&self) -> &ProxyServer {
        &self.proxy
    }

    /// Whether plain requests are sent to the proxy whole, with absolute URLs.
    pub(super) fn takes_requests(&self) -> bool {
        !matches!(self.proxy.protocol, ProxyProtocol::Socks(_))
    }

    /// A connection to the proxy itself.
    pub(super) async fn reach(&self) -> Result<DialedConnection, DialError> {
        let tls = self.tls.as_ref();
        let tls = tls.map(|tls| tls.connector(OfferedProtocols::Http1)).transpose()?;
        let reached = dial::dial(&self.proxy.endpoint, None, tls).await;
        reached.map_err(|cause| self.unreached(cause))
    }

    fn unreached(&self, cause: DialError) -> DialError {
        DialError::Proxy { proxy: self.proxy.to_string(), cause: Box::new(cause) }
    }

    /// A connection to `server`, which the proxy passes on.
    pub(super) async fn dial(
        &self,
        server: &Endpoint,
        tls: Option<(TlsConnector, ServerName<'static>)>,
    ) -> Result<DialedConnection, DialError> {
        let dialed = async {
            if let ProxyProtocol::Socks(user) = &self.proxy.protocol {
                let reached = dial::dial_tcp(&self.proxy.endpoint, None).await;
                let mut tcp = reached.map_err(|cause| self.unreached(cause))?;
                let asked = socks::connect(&mut tcp, user.as_ref(), server);
                let answer = dial::within("its answer", asked).await?;
                answer.map_err(|error| error.of_proxy(self.proxy.to_string()))?;
                return dial::over_tcp(tcp, tls).await;
            }
            let passed = dial::within("its answer", self.connect(server)).await??;
            dial::over_proxy(passed, tls).await
        };
        dialed.await.map_err(|error| match error {
            DialError::Proxy { .. } | DialError::Refused { .. } => error,
            cause => {
                let (proxy, cause) = (self.proxy.to_string(), Box::new(cause));
                DialError::ThroughProxy { proxy, cause }
            }
        })
    }

    async fn connect(&self, server: &Endpoint) -> Result<TokioIo<Upgraded>, DialError> {
        let mut sender = http1_handshake(self.reach().await?).await?;
        let refused = |answer: String| DialError::Refused { proxy: self.proxy.to_string(), answer };
        let authority = server.to_string();
        let request = Request::connect(&authority).header(header::HOST, &authority);
        let request = request.body(Either::Left(Full::default()));
        let mut request = request.map_err(|error| refused(error.to_string()))?;
        self.authorize(&mut request);
        let response = sender.send_request(request).await.map_err(DialError::Handshake)?;
        if response.status() != StatusCode::OK {
            return Err(refused(response.status().to_string()));
        }
        hyper::upgrade::on(response).await.map(TokioIo::new).map_err(DialError::Handshake)
    }

    /// Adds what the proxy asks for.
    pub(super) fn authorize(&self, request: &mut Request<Body>) {
        if let ProxyProtocol::Http(Some(authorization))
        | ProxyProtocol::Https(Some(authorization)) = &self.proxy.protocol
        {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, authorization.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_a_url() {
        let read = |text: &str| {
            let proxy = ProxyServer::parse(text)?;
            let shown = |header: &Option<HeaderValue>| {
                let header = header.as_ref().and_then(|value| value.to_str().ok());
                header.unwrap_or("-").to_owned()
            };
            let (scheme, asked) = match &proxy.protocol {
                ProxyProtocol::Http(header) => ("http", shown(header)),
                ProxyProtocol::Https(header) => ("https", shown(header)),
                ProxyProtocol::Socks(None) => ("socks", "-".to_owned()),
                ProxyProtocol::Socks(Some(user)) => {
                    ("socks", format!("{} {}", user.username(), user.password()))
                }
            };
            Ok::<_, ParseProxyError>(format!("{scheme} {proxy} {asked}"))
        };
        for (text, wanted) in [
            ("http://p", "http p:80 -"),
            ("HTTP://p:3128/", "http p:3128 -"),
            ("https://p", "https p:443 -"),
            ("http://[fd00::1]:1", "http [fd00::1]:1 -"),
            ("http://u:p%40w@p:1", "http p:1 Basic dTpwQHc="),
            ("http://u@p:1", "http p:1 Basic dTo="),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted), "{text}");
        }
        assert_eq!(read("http://p:"), Ok("http p:80 -".to_owned()));
        for (text, wanted) in [
            ("socks5://p", "socks p:1080 -"),
            ("SOCKS5H://p:1/", "socks p:1 -"),
            ("socks5://u:p%40w@[fd00::1]", "socks [fd00::1]:1080 u p@w"),
            ("socks5://u@p", "socks p:1080 u "),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted), "{text}");
        }
        let long = format!("socks5://u:{}@p", "x".repeat(256));
        for wrong in ["socks5://:p@p", &long] {
            assert_eq!(read(wrong), Err(ParseProxyError::SocksUser), "{wrong}");
        }
        assert_eq!(read("socks4://p:1"), Err(ParseProxyError::Scheme("socks4".to_owned())));
        for wrong in ["", "p:1", "http://", "http://:1", "http://a b", "user:pa://ss@p", "://p"] {
            assert_eq!(read(wrong), Err(ParseProxyError::Url), "{wrong}");
        }
        for port in ["3128x", "99999", "65536", "+80", "0", "1:2"] {
            let read = read(&format!("http://u:p@p:{port}"));
            assert!(matches!(read, Err(ParseProxyError::Port | ParseProxyError::Url)), "{read:?}");
        }
        assert_eq!(read("https://[fd00::1]:99999"), Err(ParseProxyError::Port));
        let proxy = ProxyServer::parse("http://user:secret@p:1").expect("a proxy");
        assert_eq!(format!("{proxy:?}"), "ProxyServer(p:1)");
    }
}
