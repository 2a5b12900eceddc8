//! Another API server over TLS, for tests: it serves one group version, asks clients for the certificate of an authenticating proxy, and remembers what
//! reaches it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::tls;

type Answer = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// A request that has reached it.
#[derive(Clone, Debug)]
pub struct Got {
    /// Method, path and query.
    pub line: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// Whether its client has shown a certificate of the authority.
    pub certified: bool,
}

impl Got {
    /// The values of a header.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

/// A running server.
pub struct Backend {
    pub address: SocketAddr,
    /// Its certificate, for `caBundle`.
    pub authority: String,
    got: Arc<Mutex<Vec<Got>>>,
    /// What the one watch of it shows, or the one request that follows something.
    pub events: mpsc::Sender<Bytes>,
    /// Whether its OpenAPI documents never come.
    pub documents_hang: Arc<AtomicBool>,
    /// Whether they are answered 503.
    pub documents_fail: Arc<AtomicBool>,
    /// Requests for them.
    pub documents: Arc<AtomicUsize>,
    /// Its objects, which a deletion removes.
    pub flunders: Arc<Mutex<Vec<Value>>>,
}

#[derive(Clone)]
struct Shared {
    got: Arc<Mutex<Vec<Got>>>,
    events: Arc<Mutex<Option<mpsc::Receiver<Bytes>>>>,
    documents_hang: Arc<AtomicBool>,
    documents_fail: Arc<AtomicBool>,
    documents: Arc<AtomicUsize>,
    flunders: Arc<Mutex<Vec<Value>>>,
}

impl Backend {
    /// Serves at `ip` for the Service `api` in `default`; believes clients with certificates of `proxies`, in PEM.
    pub async fn serve(ip: IpAddr, proxies: &str) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(proxies.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let (acceptor, certificate) = tls::self_signed(&["api.default.svc"], Some(roots));
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (events, receiver) = mpsc::channel(4);
        let got = Arc::default();
        let documents_hang = Arc::<AtomicBool>::default();
        let (documents_fail, documents, flunders) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicUsize>::default(),
            Arc::<Mutex<Vec<Value>>>::default(),
        );
        let shared = Shared {
            got: Arc::clone(&got),
            events: Arc::new(Mutex::new(Some(receiver))),
            documents_hang: Arc::clone(&documents_hang),
            documents_fail: Arc::clone(&documents_fail),
            documents: Arc::clone(&documents),
            flunders: Arc::clone(&flunders),
        };
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve_connection(acceptor.clone(), socket, shared.clone()));
            }
        });
        let authority = STANDARD.encode(certificate);
        Self {
            address,
            authority,
            got,
            events,
            documents_hang,
            documents_fail,
            documents,
            flunders,
        }
    }

    /// The requests since the last time, but for those of checks.
    pub fn take(&self) -> Vec<Got> {
        let all = std::mem::take(&mut *self.got.lock().unwrap());
        let is_check = |got: &Got| got.header("x-remote-user") == ["system:kube-aggregator"];
        all.into_iter().filter(|got| !is_check(got)).collect()
    }
}

async fn serve_connection(acceptor: TlsAcceptor, socket: TcpStream, shared: Shared) {
    let Ok(stream) = acceptor.accept(socket).await else { return };
    let certified = stream.get_ref().1.peer_certificates().is_some();
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(shared, request, certified).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new();
    let _ = connection.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
}

async fn answer(
    shared: Shared,
    mut request: Request<Incoming>,
    certified: bool,
) -> Response<Answer> {
    let path = request.uri().path().to_owned();
    let line = format!("{} {}", request.method(), request.uri());
    let upgrade = path.ends_with("/stream").then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let follows = |query: &str| query.contains("watch=true") || query.contains("follow=true");
    let is_watch = head.uri.query().is_some_and(follows);
    let accepted = head.headers.get("accept").and_then(|accepted| accepted.to_str().ok());
    let wants_metadata = accepted.is_some_and(|it| it.contains("as=PartialObjectMetadata;"));
    shared.got.lock().unwrap().push(Got {
        line,
        headers: head.headers,
        body: body.clone(),
        certified,
    });
    if let Some(upgrade) = upgrade {
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut asked = [0; 4];
            stream.read_exact(&mut asked).await.unwrap();
            stream.write_all(&asked.map(|byte| byte.to_ascii_uppercase())).await.unwrap();
            stream.shutdown().await.unwrap();
        });
        let switched = Response::builder().status(101).header("connection", "Upgrade");
        return switched.header("upgrade", "SPDY/3.1").body(full(Bytes::new())).unwrap();
    }
    if is_watch {
        let receiver = shared.events.lock().unwrap().take().expect("one watch");
        let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
            let event = receiver.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(event)), receiver))
        });
        return Response::new(StreamBody::new(frames).boxed_unsync());
    }
    if path.starts_with("/openapi/") {
        shared.documents.fetch_add(1, Ordering::Relaxed);
    }
    if path.starts_with("/openapi/") && shared.documents_hang.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    let (code, body) = match (head.method.as_str(), path.rsplit('/').next().unwrap_or_default()) {
        ("GET", _) if path.starts_with("/openapi/") => {
            match shared.documents_fail.load(Ordering::Relaxed) {
                true => (503, json!({})),
                false => open_api(&path),
            }
        }
        ("GET", "v1alpha1") => (200, resources()),
        ("GET" | "DELETE", "flunders") => flunders(&shared, &head.method, &path, ""),
        ("POST", "flunders") => (201, serde_json::from_slice(&body).unwrap()),
        ("GET" | "DELETE", name) if path.contains("/flunders/") && name != "moved" => {
            flunders(&shared, &head.method, &path, name)
        }
        ("GET", "moved") => (302, json!({})),
        _ => (404, json!({"kind": "Status", "reason": "NotFound", "message": "no flunder"})),
    };
    let body = match wants_metadata && code == 200 && body["kind"] == "Flunder" {
        true => partial(&body),
        false => body,
    };
    let response = Response::builder().status(code).header("content-type", "application/json");
    let response = response.header("location", "https://127.0.0.1/").header("audit-id", "its-own");
    response.body(full(Bytes::from(body.to_string()))).unwrap()
}

/// Reads or removes objects: that of a name, or those of a namespace, or all.
fn flunders(shared: &Shared, method: &http::Method, path: &str, name: &str) -> (u16, Value) {
    let mut all = shared.flunders.lock().unwrap();
    let is_meant = |object: &Value| {
        let metadata = &object["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let is_within = path.contains(&format!("/namespaces/{namespace}/"));
        let is_named = name.is_empty() || metadata["name"] == name;
        is_named && (is_within || !path.contains("/namespaces/"))
    };
    let (meant, others): (Vec<Value>, Vec<Value>) = all.drain(..).partition(is_meant);
    let found = meant.clone();
    *all = if method == http::Method::DELETE { others } else { [others, meant].concat() };
    match (name, found.first()) {
        ("", _) if method == http::Method::DELETE => {
            (200, json!({"kind": "Status", "status": "Success"}))
        }
        ("", _) => (
            200,
            json!({"kind": "FlunderList", "apiVersion": "wardle.example.com/v1alpha1",
                "metadata": {"resourceVersion": "1"}, "items": found}),
        ),
        (_, Some(object)) => (200, object.clone()),
        (name, None) => (
            404,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": "no flunder", "details": {"name": name, "group": "wardle.example.com", "kind": "flunders"}}),
        ),
    }
}

/// The metadata of an object, as servers made with Kubernetes' library answer it.
pub fn partial(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn full(bytes: Bytes) -> Answer {
    Full::new(bytes).boxed_unsync()
}

fn resources() -> Value {
    let verbs = json!(["create", "delete", "deletecollection", "get", "list", "patch", "watch"]);
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "wardle.example.com/v1alpha1", "resources": [
        {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": verbs}]})
}

/// Its OpenAPI documents.
fn open_api(path: &str) -> (u16, Value) {
    let reference = json!({"$ref": "#/definitions/com.example.wardle.Flunder"});
    let list = json!({"get": {"operationId": "listFlunder", "responses": {"200": {"description": "OK", "schema": reference}}}});
    let metadata = json!({"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"});
    let kind = json!({"group": "wardle.example.com", "version": "v1alpha1", "kind": "Flunder"});
    match path {
        "/openapi/v2" => (
            200,
            json!({
                "swagger": "2.0",
                "paths": {"/apis/wardle.example.com/v1alpha1/flunders": list, "/version/": {"get": {}}},
                "definitions": {
                    "com.example.wardle.Flunder": {"type": "object", "description": "A bird.", "properties": {"metadata": metadata},
                        "x-kubernetes-group-version-kind": [kind]},
                    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {"type": "object", "description": "of another release"},
                },
            }),
        ),
        "/openapi/v3" => {
            let address = "/openapi/v3/apis/wardle.example.com/v1alpha1?hash=C0FFEE";
            let shown = json!({"serverRelativeURL": address});
            (
                200,
                json!({"paths": {"apis/wardle.example.com/v1alpha1": shown, "version": {"serverRelativeURL": "/x?hash=1"}}}),
            )
        }
        "/openapi/v3/apis/wardle.example.com/v1alpha1" => {
            (200, json!({"openapi": "3.0.0", "paths": {"theirs": {}}}))
        }
        _ => (404, json!({})),
    }
}
