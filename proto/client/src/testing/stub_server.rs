//! A server that answers each request by a function, over HTTP/1.1 with or without TLS.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proto_api::names::{Names, Profile};
use rustls::pki_types::CertificateDer;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::client::Client;
use crate::config::ClientConfig;

/// A request that a [`StubServer`] has received.
#[derive(Debug)]
pub struct StubRequest {
    pub method: Method,
    pub path: String,
    /// Without the question mark; empty if there is none.
    pub query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The address of the server.
    pub server: SocketAddr,
    /// The address of the client, which differs between connections.
    pub client: SocketAddr,
    /// The first certificate of the client, over TLS.
    pub certificate: Option<CertificateDer<'static>>,
}

/// A running server, until the runtime of the test ends. Connections are served side by side, and kept open between requests.
#[derive(Debug)]
pub struct StubServer {
    pub address: SocketAddr,
}

/// Makes the response to a request; a request without one waits for ever.
type Answer = dyn Fn(&StubRequest) -> Option<Response<Bytes>> + Send + Sync;

/// What the connections of a server have in common.
#[derive(Clone)]
struct Shared {
    server: SocketAddr,
    tls: Option<TlsAcceptor>,
    answer: Arc<Answer>,
}

impl StubServer {
    /// Serves plain HTTP on loopback.
    pub async fn start(
        answer: impl Fn(&StubRequest) -> Option<Response<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), None, answer).await
    }

    /// Serves at a free port of this address.
    ///
    /// # Panics
    /// The address cannot be bound.
    pub async fn start_at(
        ip: IpAddr,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&StubRequest) -> Option<Response<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((ip, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Shared { server: address, tls, answer: Arc::new(answer) };
        tokio::spawn(async move {
            while let Ok((socket, client)) = listener.accept().await {
                tokio::spawn(shared.clone().serve(socket, client));
            }
        });
        Self { address }
    }

    /// A client of a server that is started without TLS.
    ///
    /// # Panics
    /// Never: the address is a valid host.
    #[must_use]
    pub fn client(&self) -> Client {
        let url = format!("http://{}", self.address).parse().expect("a URL");
        let names = Names::new(Profile::Kubernetes);
        Client::new(&ClientConfig::direct(url), names, "test/1").expect("a client")
    }
}

impl Shared {
    async fn serve(self, socket: TcpStream, client: SocketAddr) {
        let Some(tls) = &self.tls else {
            return self.serve_http(socket, client, None).await;
        };
        // A client may refuse the certificate, as some tests want it to.
        let Ok(stream) = tls.accept(socket).await else { return };
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.and_then(<[_]>::first).map(|first| first.clone().into_owned());
        self.serve_http(stream, client, certificate).await;
    }

    async fn serve_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        client: SocketAddr,
        certificate: Option<CertificateDer<'static>>,
    ) {
        let shared = self;
        let service = service_fn(move |request: Request<Incoming>| {
            let certificate = certificate.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let request = StubRequest {
                    method: head.method,
                    path: head.uri.path().to_owned(),
                    query: head.uri.query().unwrap_or_default().to_owned(),
                    headers: head.headers,
                    body,
                    server: shared.server,
                    client,
                    certificate,
                };
                match (shared.answer)(&request) {
                    Some(response) => Ok::<_, hyper::Error>(response.map(Full::new)),
                    None => std::future::pending().await,
                }
            }
        });
        let connection = hyper::server::conn::http1::Builder::new();
        let _ = connection.serve_connection(TokioIo::new(stream), service).await;
    }
}

/// A response with a JSON body.
///
/// # Panics
/// The status code is none of HTTP.
#[must_use]
pub fn json_response(code: u16, body: &Value) -> Response<Bytes> {
    let response = Response::builder().status(code).header("content-type", "application/json");
    response.body(Bytes::from(body.to_string())).expect("a status code")
}
