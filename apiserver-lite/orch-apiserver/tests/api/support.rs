//! A server in the test process and a client with full control of its requests.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use orch_apiserver::Config;
use proto_api::names::{Names, Profile};
use proto_daemon::drain::Drain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;

/// A running server; stops when dropped.
pub struct TestServer {
    pub names: &'static Names,
    api: Api,
    drain: Option<Drain>,
    running: tokio::task::JoinHandle<()>,
}

/// A client of some server.
pub struct Api {
    address: SocketAddr,
    kubeconfig: String,
    anonymous: TlsConnector,
    admin: TlsConnector,
    roots: RootCertStore,
}

impl std::ops::Deref for TestServer {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

/// A complete response.
pub struct Reply {
    pub status: StatusCode,
    pub headers: http::HeaderMap,
    pub body: Bytes,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The JSON body; null for a body that is not JSON.
    pub fn json_or_null(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn code(&self) -> u16 {
        self.status.as_u16()
    }

    /// The JSON body; panics unless the status is `code`.
    pub fn expect(&self, code: u16) -> Value {
        let body = String::from_utf8_lossy(&self.body);
        assert_eq!(self.code(), code, "{body}");
        self.json()
    }
}

pub fn kubernetes() -> &'static Names {
    Names::new(Profile::Kubernetes)
}

pub fn orch() -> &'static Names {
    Names::new(Profile::default())
}

impl TestServer {
    /// A server in memory with Kubernetes' names and a service account `default` in the namespace `default`.
    pub async fn start() -> Self {
        let server = Self::with(Config::for_tests(kubernetes())).await;
        server
            .post(
                "/api/v1/namespaces/default/serviceaccounts",
                r#"{"metadata":{"name":"default"}}"#,
            )
            .await
            .expect(201);
        server
    }

    pub async fn with(config: Config) -> Self {
        let names = config.names;
        let bound = orch_apiserver::build(config).await.expect("built");
        let kubeconfig = bound.kubeconfig().to_owned();
        let drain = Drain::default();
        let api = Api::new(&kubeconfig);
        let running = tokio::spawn(bound.run(drain.watch()));
        Self { names, api, drain: Some(drain), running }
    }

    /// Starts the shutdown of the server.
    pub fn begin_to_stop(&mut self) -> tokio::task::JoinHandle<()> {
        let drain = self.drain.take().expect("running");
        tokio::spawn(async move {
            drain.drain(std::time::Duration::from_secs(7200)).await;
        })
    }

    /// Stops the server and waits until its store is closed.
    pub async fn stop(mut self) {
        let drain = self.drain.take().expect("running");
        drain.drain(std::time::Duration::from_secs(10)).await;
        let running = std::mem::replace(&mut self.running, tokio::spawn(async {}));
        running.await.expect("ended");
    }
}

impl Api {
    /// A client of the server in a kubeconfig, as administrator.
    pub fn new(kubeconfig: &str) -> Self {
        let admin =
            (field(kubeconfig, "client-certificate-data"), field(kubeconfig, "client-key-data"));
        let server =
            kubeconfig.lines().find_map(|line| line.trim().strip_prefix("server: https://"));
        Self {
            address: server.expect("server").parse().expect("address"),
            anonymous: connector(kubeconfig, None),
            admin: connector(kubeconfig, Some(admin)),
            roots: roots(kubeconfig),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    pub async fn connect(&self, as_admin: bool) -> SendRequest<Full<Bytes>> {
        self.connect_by(if as_admin { &self.admin } else { &self.anonymous }).await
    }

    /// A connection, optionally with a client certificate (chain and key in PEM).
    pub async fn connect_as(
        &self,
        identity: Option<&(String, String)>,
    ) -> SendRequest<Full<Bytes>> {
        let pem = identity.map(|(chain, key)| (chain.as_bytes().to_vec(), key.as_bytes().to_vec()));
        self.connect_by(&connector(&self.kubeconfig, pem)).await
    }

    async fn connect_by(&self, connector: &TlsConnector) -> SendRequest<Full<Bytes>> {
        let socket = TcpStream::connect(self.address).await.expect("connected");
        let name = ServerName::try_from("127.0.0.1").expect("valid");
        let stream = connector.connect(name, socket).await.expect("TLS");
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection.with_upgrades());
        sender
    }

    /// Where the server is.
    /// The administrator's client configuration.
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's CA.
    pub fn roots(&self) -> RootCertStore {
        self.roots.clone()
    }

    /// A new TCP connection.
    pub async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    /// A new TLS connection with the administrator's certificate.
    pub async fn tls_http1(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let name = ServerName::try_from("127.0.0.1").expect("valid");
        self.admin.connect(name, self.tcp().await).await.expect("TLS")
    }

    /// A new TLS connection with HTTP/2 negotiated; `None` if the server closes it.
    pub async fn tls_http2(
        &self,
        as_admin: bool,
    ) -> Option<tokio_rustls::client::TlsStream<TcpStream>> {
        let connector = if as_admin { &self.admin } else { &self.anonymous };
        let mut config = ClientConfig::clone(connector.config());
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("127.0.0.1").expect("valid");
        TlsConnector::from(Arc::new(config)).connect(name, self.tcp().await).await.ok()
    }

    /// A new HTTP/2 connection with the administrator's certificate.
    pub async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        self.http2_with_window(1 << 20).await
    }

    /// The same, for a client that takes this many bytes of each response.
    pub async fn http2_with_window(
        &self,
        window: u32,
    ) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
        let stream = self.tls_http2(true).await.expect("TLS");
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(window)
            .handshake(TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }

    /// GET without credentials.
    pub async fn anonymous(&self, path: &str) -> Reply {
        let request = Request::get(path).header("host", "test").body(Full::default());
        let mut sender = self.connect(false).await;
        reply(sender.send_request(request.expect("valid")).await.expect("answered")).await
    }

    /// A request without a client certificate.
    pub async fn without_certificate(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("valid");
        let mut sender = self.connect(false).await;
        reply(sender.send_request(request).await.expect("answered")).await
    }

    /// A stream over WebSocket.
    pub async fn websocket(
        &self,
        path: &str,
    ) -> WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>> {
        let socket = TcpStream::connect(self.address).await.expect("connected");
        let name = ServerName::try_from("127.0.0.1").expect("valid");
        let stream = self.admin.connect(name, socket).await.expect("TLS");
        let url = format!("wss://127.0.0.1{path}");
        tokio_tungstenite::client_async(url, stream).await.expect("switched").0
    }

    /// Sends a request and returns the response head.
    pub async fn open(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.connect(true).await.send_request(request).await.expect("answered")
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        reply(self.open(request).await).await
    }

    pub async fn call(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "test")
            .header("content-type", media_type)
            .body(Full::new(body.into()))
            .expect("valid");
        self.send(request).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.accept(path, "application/json").await
    }

    pub async fn accept(&self, path: &str, accept: &str) -> Reply {
        let request = Request::get(path).header("host", "test").header("accept", accept);
        self.send(request.body(Full::default()).expect("valid")).await
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        self.call(Method::POST, path, "application/json", body).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Reply {
        self.call(Method::PUT, path, "application/json", body.to_string()).await
    }

    pub async fn merge_patch(&self, path: &str, body: &str) -> Reply {
        self.call(Method::PATCH, path, "application/merge-patch+json", body.to_owned()).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.call(Method::DELETE, path, "application/json", "").await
    }

    /// Starts a watch; events are read with [`Events::next`].
    pub async fn watch(&self, path: &str) -> Events {
        let request =
            Request::get(path).header("host", "test").body(Full::default()).expect("valid");
        let response = self.open(request).await;
        assert_eq!(response.status(), 200);
        Events { body: response.into_body(), buffer: Vec::new() }
    }
}

/// The events of a watch.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event is JSON"));
            }
            let frame = self.body.frame().await?.expect("stream goes on");
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    /// `TYPE name` of the next event.
    pub async fn next_short(&mut self) -> String {
        let event = self.next().await.expect("one more event");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap_or_default())
    }
}

pub async fn reply(response: Response<Incoming>) -> Reply {
    try_reply(response).await.expect("body")
}

/// `None` if the connection is closed inside the body.
pub async fn try_reply(response: Response<Incoming>) -> Option<Reply> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    Some(Reply { status: parts.status, headers: parts.headers, body })
}

fn field(kubeconfig: &str, name: &str) -> Vec<u8> {
    use base64::Engine as _;
    let line = kubeconfig.lines().find_map(|line| line.trim().strip_prefix(name)).expect("field");
    base64::engine::general_purpose::STANDARD
        .decode(line.trim_start_matches(':').trim())
        .expect("base64")
}

fn roots(kubeconfig: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let ca = field(kubeconfig, "certificate-authority-data");
    for certificate in CertificateDer::pem_slice_iter(&ca) {
        roots.add(certificate.expect("PEM")).expect("CA");
    }
    roots
}

/// Presents the client certificate `identity` (chain and key in PEM), whichever CAs the server names.
fn connector(kubeconfig: &str, identity: Option<(Vec<u8>, Vec<u8>)>) -> TlsConnector {
    let roots = roots(kubeconfig);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = if let Some((chain, key)) = identity {
        let chain =
            CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>().expect("PEM");
        let key = PrivateKeyDer::from_pem_slice(&key).expect("key");
        builder.with_client_auth_cert(chain, key).expect("identity")
    } else {
        builder.with_no_client_auth()
    };
    TlsConnector::from(Arc::new(config))
}
