//! A server for tests, which give each response explicitly, over plain HTTP/1.1 or over TLS with HTTP/2, behind a relay that can freeze like a network
//! that loses all packets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto_api::names::{Names, Profile};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsAcceptor;

use crate::client::Client;
use crate::config::{ClientConfig, Credential, Pem};

type Body = BoxBody<Bytes, std::io::Error>;
/// A timeout that only a failing test reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn names() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

/// The other end of every connection.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<ReceivedRequest>,
}

/// A request that waits for its response.
pub(crate) struct ReceivedRequest {
    /// `GET /path?query`.
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The client's certificate, over TLS.
    pub(crate) peer: Option<CertificateDer<'static>>,
    answer: oneshot::Sender<Response<Body>>,
}

/// A response whose body the test writes in pieces; it ends when this is dropped.
pub(crate) struct Streaming(mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>);

impl Server {
    pub(crate) async fn plain() -> Self {
        Self::start(None).await
    }

    pub(crate) async fn start(tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let (asked, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (asked, tls) = (asked.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, asked, None).await,
                        Some(config) => {
                            let Ok(stream) = TlsAcceptor::from(config).accept(socket).await else {
                                return;
                            };
                            let peer = stream.get_ref().1.peer_certificates();
                            let peer = peer
                                .and_then(|chain| chain.first())
                                .map(|c| c.clone().into_owned());
                            serve(stream, asked, peer).await;
                        }
                    }
                });
            }
        });
        Self { address, requests }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        ClientConfig::direct(format!("http://{}", self.address).parse().expect("valid"))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.config(), names(), "test/1").expect("valid")
    }

    pub(crate) fn client_with(&self, credential: Credential) -> Client {
        Client::new(&ClientConfig { credential, ..self.config() }, names(), "test/1")
            .expect("valid")
    }

    /// The next request.
    pub(crate) async fn asked(&mut self) -> ReceivedRequest {
        let next = tokio::time::timeout(PATIENCE, self.requests.recv()).await;
        next.expect("a request in time").expect("server runs")
    }
}

impl ReceivedRequest {
    pub(crate) fn reply(self, status: u16, body: &Value) {
        let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed();
        self.respond(status, "application/json", body);
    }

    pub(crate) fn reply_bytes(self, status: u16, content_type: &str, body: Vec<u8>) {
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed();
        self.respond(status, content_type, body);
    }

    /// A `Status` of that code and reason.
    pub(crate) fn refuse(self, code: u16, reason: &str) {
        let status = serde_json::json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": format!("refused: {reason}"),
            "reason": reason, "code": code,
        });
        self.reply(code, &status);
    }

    pub(crate) fn stream(self) -> Streaming {
        let (pieces, mut receiver) = mpsc::unbounded_channel();
        let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
        self.respond(200, "application/json", BodyExt::boxed(StreamBody::new(SyncStream(stream))));
        Streaming(pieces)
    }

    fn respond(self, status: u16, content_type: &str, body: Body) {
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).expect("valid");
        response.headers_mut().insert("content-type", content_type.parse().expect("valid"));
        // The client may have disconnected.
        let _ = self.answer.send(response);
    }
}

impl Streaming {
    pub(crate) fn event(&self, event_type: &str, object: &Value) {
        let line = serde_json::json!({"type": event_type, "object": object}).to_string() + "\n";
        self.0.send(Ok(Frame::data(Bytes::from(line)))).expect("client reads");
    }

    /// Breaks the connection within the body.
    pub(crate) fn break_off(self) {
        let _ = self.0.send(Err(std::io::Error::other("broken by the test")));
    }

    /// Returns once the client has stopped reading.
    pub(crate) async fn closed(&self) {
        tokio::time::timeout(PATIENCE, self.0.closed()).await.expect("client went away");
    }
}

/// Makes a stream `Sync`; only one task polls it.
struct SyncStream<S>(S);

impl<S: futures_util::Stream + Unpin> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        std::pin::Pin::new(&mut self.0).poll_next(cx)
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    asked: mpsc::UnboundedSender<ReceivedRequest>,
    peer: Option<CertificateDer<'static>>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (asked, peer) = (asked.clone(), peer.clone());
        async move {
            let (head, body) = request.into_parts();
            let (answer, answered) = oneshot::channel();
            let path = head.uri.path_and_query().map_or("", |path| path.as_str());
            let line = format!("{} {path}", head.method);
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let _ = asked.send(ReceivedRequest { line, headers: head.headers, body, peer, answer });
            // If a test drops a request without a response, the connection hangs.
            match answered.await {
                Ok(response) => Ok::<_, Infallible>(response),
                Err(_) => std::future::pending().await,
            }
        }
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Forwards bytes until frozen; then it neither reads, writes nor closes.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    frozen: watch::Sender<bool>,
    connections: watch::Receiver<usize>,
}

impl Relay {
    pub(crate) async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let (frozen, thawed) = watch::channel(false);
        let (count, connections) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                count.send_modify(|count| *count += 1);
                let mut frozen = thawed.clone();
                // Frozen connections stay frozen; later ones work.
                frozen.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = frozen.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, frozen, connections }
    }

    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }
}

/// An authority that signs for `127.0.0.1` and for clients.
pub(crate) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pub(crate) pem: String,
}

pub(crate) struct Signed {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = rcgen::KeyPair::generate().expect("key");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("valid");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("signed").pem();
        Self { issuer: rcgen::Issuer::new(params, key), pem }
    }

    pub(crate) fn sign(&self, name: &str) -> Signed {
        let key = rcgen::KeyPair::generate().expect("key");
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned(), name.to_owned()])
            .expect("valid");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Signed { certificate, key: key.serialize_pem() }
    }

    /// A server with HTTP/2 that requests client certificates of this authority.
    pub(crate) fn server_config(&self) -> Arc<rustls::ServerConfig> {
        use rustls::pki_types::pem::PemObject;

        let signed = self.sign("server");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("PEM")).expect("root");
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            roots.into(),
            provider.clone(),
        )
        .allow_unauthenticated()
        .build()
        .expect("verifier");
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(signed.certificate.as_bytes()).expect("PEM")],
                PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).expect("PEM"),
            )
            .expect("certificate");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// A client of `address` that trusts this authority.
    pub(crate) fn client_config(&self, address: SocketAddr) -> ClientConfig {
        let mut config = ClientConfig::direct(format!("https://{address}").parse().expect("valid"));
        config.tls.authority = Some(Pem::Data(self.pem.clone().into_bytes()));
        config
    }
}

/// Advances the clock by which files are checked, without waiting.
pub(crate) async fn skip(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
