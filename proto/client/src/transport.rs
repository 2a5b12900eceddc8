//! The connection to the API server: HTTP/2 if the server supports it, shared by as many requests and watches as the server allows on one, else HTTP/1.1
//! connections, one per request in flight. A dead connection is noticed by pings within 25 seconds. A request that may have reached the server is not sent
//! twice; one that certainly has not is sent on a new connection.

mod dial;
mod http2;
mod in_memory;
mod proxy;
mod socks;
mod tls;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Mutex as AsyncMutex;

use crate::config::{ClientConfig, TlsSettings};
pub use dial::{AddressRule, DialError};
use dial::{DialedConnection, Endpoint};
pub(crate) use http2::Pings;
pub use http2::ResponseBody;
use http2::{Http2Connections, Http2Sender, NewHttp2Connection};
pub(crate) use in_memory::InMemory;
pub use in_memory::{Caller, InMemoryServer};
use proto_daemon::panics;
use proxy::ProxyRoute;
pub use proxy::{ParseProxyError, ProxyServer};
pub use tls::ClientTlsError;
use tls::{Generation, TlsSource};

/// A request's body: most are whole, that of a request that is passed on comes piece by piece.
pub(crate) type Body = Either<Full<Bytes>, Incoming>;

/// Idle HTTP/1.1 connections kept for the next request.
const IDLE_MAX: usize = 4;
/// Why a request got no response.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// No connection could be made.
    #[error("cannot connect to {server}")]
    Connect {
        /// Host and port.
        server: String,
        /// The failed step and its cause; shared by all requests that waited for the connection.
        #[source]
        cause: Arc<DialError>,
    },
    /// The connection broke before the head of the response.
    #[error("connection to {server} failed")]
    Broken {
        /// Host and port, and the proxy on the way.
        server: String,
        /// What broke it.
        #[source]
        cause: hyper::Error,
    },
}

/// Connections to one server.
#[derive(Debug)]
pub(crate) struct Transport {
    /// What requests and certificates name.
    endpoint: Endpoint,
    /// Where connections go.
    dialed: Destination,
    tls: Option<TlsSource>,
    pings: Pings,
    /// Locked while a connection is made, so that all waiting requests get the same one.
    state: AsyncMutex<State>,
    /// Number of failed attempts; outside the lock, for requests that wait for it.
    failures: AtomicU64,
    idle: Arc<Mutex<Idle>>,
}

/// Where connections go.
#[derive(Clone, Debug)]
enum Destination {
    /// Over TCP, to addresses that the rule allows; it is unset for a server that the program's own settings name.
    Host(Endpoint, Option<AddressRule>),
    /// Through a proxy.
    Proxy(ProxyRoute),
    /// To a server in this process.
    InMemory(InMemory),
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Requests, which a proxy may also take whole.
    Requests,
    /// Another protocol after the first request.
    Upgrade,
}

/// Idle HTTP/1.1 connections, with the certificates that they were made with.
type Idle = Vec<(Generation, http1::SendRequest<Body>)>;

#[derive(Debug, Default)]
struct State {
    protocol: Protocol,
    /// Why the last attempt to connect failed.
    failed: Option<Arc<DialError>>,
}

#[derive(Debug, Default)]
enum Protocol {
    /// There is no connection yet.
    #[default]
    Unknown,
    Http2(Http2Connections),
    Http1,
}

enum Sender {
    Http2(Http2Sender),
    Http1(Generation, http1::SendRequest<Body>),
}

/// A new connection.
enum Negotiated {
    Http2(NewHttp2Connection),
    Http1(http1::SendRequest<Body>),
}

impl Transport {
    pub(crate) fn new(config: &ClientConfig, pings: Pings) -> Result<Self, ClientTlsError> {
        let endpoint = Endpoint::from_uri(&config.server);
        let tls = match config.server.scheme_str() {
            Some("https") => Some(TlsSource::new(&config.tls, &endpoint.host)?),
            _ => None,
        };
        let (state, failures, idle) = Default::default();
        let dialed = Destination::Host(endpoint.clone(), None);
        Ok(Self { endpoint, dialed, tls, pings, state, failures, idle })
    }

    /// With connections to this host and port instead of those in the URL, and only to addresses that the rule allows.
    pub(crate) fn dialing(mut self, address: Option<(&str, u16)>, rule: AddressRule) -> Self {
        let named = |(host, port): (&str, u16)| Endpoint { host: host.to_owned(), port };
        let host = address.map_or_else(|| self.endpoint.clone(), named);
        self.dialed = Destination::Host(host, Some(rule));
        self
    }

    /// With connections through this proxy.
    pub(crate) fn through(
        mut self,
        proxy: &ProxyServer,
        settings: &TlsSettings,
    ) -> Result<Self, ClientTlsError> {
        self.dialed = Destination::Proxy(ProxyRoute::new(proxy, settings)?);
        Ok(self)
    }

    /// With connections to a server in this process.
    pub(crate) fn within(mut self, server: InMemory) -> Self {
        self.dialed = Destination::InMemory(server);
        self
    }

    /// Another transport to the same destination, for `config`, which may have another identity.
    pub(crate) fn another(&self, config: &ClientConfig) -> Result<Self, ClientTlsError> {
        Ok(Self { dialed: self.dialed.clone(), ..Self::new(config, self.pings)? })
    }

    /// Without the user of a connection within the process.
    pub(crate) fn anonymous(mut self) -> Self {
        if let Destination::InMemory(server) = &mut self.dialed {
            server.caller = Caller::Anonymous;
        }
        self
    }

    /// Sends a request with an absolute URI. The caller sets deadlines.
    pub(crate) async fn send(
        &self,
        mut request: Request<Body>,
    ) -> Result<Response<ResponseBody>, TransportError> {
        let mut tries_left = http2::CONNECTIONS_MAX;
        loop {
            let mut unsent = match self.sender().await? {
                Sender::Http2(sender) => match sender.try_send_request(request).await {
                    Ok(response) => return Ok(response),
                    Err(error) => error,
                },
                Sender::Http1(generation, mut sender) => {
                    match sender.try_send_request(self.wire_form(request)).await {
                        Ok(response) => {
                            self.keep(generation, sender);
                            return Ok(response.map(ResponseBody::from));
                        }
                        Err(error) => error,
                    }
                }
            };
            match unsent.take_message() {
                // It was not written, as the connection was closing: it is sent on another one, each of which may be closing too.
                Some(back) if tries_left > 0 => {
                    tries_left -= 1;
                    request = self.absolute_form(back);
                }
                _ => {
                    return Err(self.broken_error(unsent.into_error()));
                }
            }
        }
    }

    /// Sends a request over a separate connection, which one with `Upgrade` may have for itself (101 Switching Protocols).
    pub(crate) async fn send_for_upgrade(
        &self,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, TransportError> {
        let purpose = match request.headers().contains_key(header::UPGRADE) {
            true => Purpose::Upgrade,
            false => Purpose::Requests,
        };
        let dialed = self
            .dial(dial::OfferedProtocols::Http1, purpose)
            .await
            .map_err(|cause| self.connect_error(cause.into()))?;
        let mut sender =
            http1_handshake(dialed).await.map_err(|cause| self.connect_error(cause.into()))?;
        let request = match purpose {
            Purpose::Upgrade => origin_form(request),
            Purpose::Requests => self.wire_form(request),
        };
        let sent = sender.send_request(request).await;
        let response = sent.map_err(|cause| self.broken_error(cause))?;
        Ok(response.map(ResponseBody::from))
    }

    /// Makes the next request use a new connection; requests on the old one may complete.
    pub(crate) fn forget(&self) {
        // If it is locked, a new connection is being made already.
        if let Ok(mut state) = self.state.try_lock() {
            state.protocol = Protocol::Unknown;
        }
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn sender(&self) -> Result<Sender, TransportError> {
        let generation = self.generation()?;
        let failures_before = self.failures.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        if let Some(sender) = self.ready_sender(&mut state.protocol, generation) {
            return Ok(sender);
        }
        if let Some(cause) = &state.failed
            && self.failures.load(Ordering::Relaxed) != failures_before
        {
            // An attempt failed while this request waited for it: the error is shared.
            return Err(self.connect_error(cause.clone()));
        }
        if matches!(state.protocol, Protocol::Http1) {
            // Such connections are independent: no other request waits for this one.
            drop(state);
            return match self.negotiate(generation).await {
                Ok(Negotiated::Http1(sender)) => Ok(Sender::Http1(generation, sender)),
                Ok(Negotiated::Http2(new)) => {
                    let mut connections = Http2Connections::default();
                    Ok(Sender::Http2(connections.add(new)))
                }
                Err(cause) => Err(self.connect_error(cause.into())),
            };
        }
        match self.negotiate(generation).await {
            Ok(Negotiated::Http2(new)) => match &mut state.protocol {
                Protocol::Http2(connections) => Ok(Sender::Http2(connections.add(new))),
                protocol => {
                    let mut connections = Http2Connections::default();
                    let sender = connections.add(new);
                    *protocol = Protocol::Http2(connections);
                    Ok(Sender::Http2(sender))
                }
            },
            Ok(Negotiated::Http1(sender)) => {
                state.protocol = Protocol::Http1;
                Ok(Sender::Http1(generation, sender))
            }
            Err(cause) => {
                // The request waits for a stream of a connection that there is.
                if let Protocol::Http2(connections) = &state.protocol
                    && let Some(sender) = connections.sender_of_any(generation)
                {
                    return Ok(Sender::Http2(sender));
                }
                let cause = Arc::new(cause);
                state.failed = Some(cause.clone());
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(self.connect_error(cause))
            }
        }
    }

    fn ready_sender(&self, protocol: &mut Protocol, generation: Generation) -> Option<Sender> {
        match protocol {
            Protocol::Http2(connections) => connections.sender(generation).map(Sender::Http2),
            Protocol::Http1 => {
                let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
                idle.retain(|(made, sender)| *made == generation && !sender.is_closed());
                idle.pop().map(|(made, sender)| Sender::Http1(made, sender))
            }
            Protocol::Unknown => None,
        }
    }

    /// In a box, as its type would be a part of that of each task with a request, too deep for the compiler.
    fn negotiate(
        &self,
        generation: Generation,
    ) -> Pin<Box<dyn Future<Output = Result<Negotiated, DialError>> + Send + '_>> {
        Box::pin(async move {
            let dialed = self.dial(dial::OfferedProtocols::Any, Purpose::Requests).await?;
            if dialed.speaks_http2 {
                let new = Http2Connections::handshake(dialed, self.pings, generation).await;
                new.map(Negotiated::Http2)
            } else {
                http1_handshake(dialed).await.map(Negotiated::Http1)
            }
        })
    }

    async fn dial(
        &self,
        offer: dial::OfferedProtocols,
        purpose: Purpose,
    ) -> Result<DialedConnection, DialError> {
        let tls = || self.tls.as_ref().map(|tls| tls.connector(offer)).transpose();
        match &self.dialed {
            Destination::Host(host, rule) => dial::dial(host, rule.as_ref(), tls()?).await,
            Destination::Proxy(proxy)
                if self.tls.is_none() && purpose == Purpose::Requests && proxy.takes_requests() =>
            {
                proxy.reach().await
            }
            Destination::Proxy(proxy) => proxy.dial(&self.endpoint, tls()?).await,
            Destination::InMemory(server) => dial::dial_in_memory(server, offer),
        }
    }

    /// The form of a request over HTTP/1.1: what a proxy takes whole names the server.
    fn wire_form(&self, request: Request<Body>) -> Request<Body> {
        let Destination::Proxy(proxy) = &self.dialed else { return origin_form(request) };
        if self.tls.is_some() || !proxy.takes_requests() {
            return origin_form(request);
        }
        let whole = request.uri().clone();
        let mut request = origin_form(request);
        *request.uri_mut() = whole;
        proxy.authorize(&mut request);
        request
    }

    fn generation(&self) -> Result<Generation, TransportError> {
        match &self.tls {
            None => Ok(Generation::default()),
            Some(tls) => {
                tls.generation().map_err(|cause| self.connect_error(Arc::new(cause.into())))
            }
        }
    }

    /// Puts the connection back once the response's body has been read to its end.
    fn keep(&self, generation: Generation, mut sender: http1::SendRequest<Body>) {
        let idle = self.idle.clone();
        tokio::spawn(async move {
            if sender.ready().await.is_ok() {
                let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
                if idle.len() < IDLE_MAX {
                    idle.push((generation, sender));
                }
            }
        });
    }

    fn connect_error(&self, cause: Arc<DialError>) -> TransportError {
        TransportError::Connect { server: self.server(), cause }
    }

    fn broken_error(&self, cause: hyper::Error) -> TransportError {
        let server = match &self.dialed {
            Destination::Proxy(proxy) => {
                format!("{} through the proxy {}", self.endpoint, proxy.proxy())
            }
            _ => self.server(),
        };
        TransportError::Broken { server, cause }
    }

    fn server(&self) -> String {
        self.endpoint.to_string()
    }

    /// Undoes [`origin_form`].
    fn absolute_form(&self, mut request: Request<Body>) -> Request<Body> {
        if request.uri().authority().is_none() {
            let path = request.uri().path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
            let scheme = if self.tls.is_some() { "https" } else { "http" };
            if let Ok(uri) = format!("{scheme}://{}{path}", self.endpoint).parse() {
                *request.uri_mut() = uri;
            }
            request.headers_mut().remove(header::HOST);
        }
        request
    }
}

/// HTTP/1.1 wants the path in the request line and the host in a header.
fn origin_form(mut request: Request<Body>) -> Request<Body> {
    if let Some(authority) = request.uri().authority().cloned() {
        let path = request.uri().path_and_query().cloned();
        let path = path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        *request.uri_mut() = Uri::from(path);
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            request.headers_mut().insert(header::HOST, host);
        }
    }
    request
}

async fn http1_handshake(dialed: DialedConnection) -> Result<http1::SendRequest<Body>, DialError> {
    let (sender, connection) = http1::Builder::new()
        .max_buf_size(64 << 10)
        .handshake(TokioIo::new(dialed.stream))
        .await
        .map_err(DialError::Handshake)?;
    panics::spawn(connection.with_upgrades());
    Ok(sender)
}

#[cfg(test)]
mod tests;
