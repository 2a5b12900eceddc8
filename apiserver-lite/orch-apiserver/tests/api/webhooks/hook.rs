//! A webhook over TLS, for tests: it answers with what a function makes of the path and the review, and remembers what it was asked.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::tls;

pub const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
pub const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// What a webhook does with a call.
pub enum Does {
    /// Answers with this body and status 200.
    Answer(Vec<u8>),
    /// Answers with this status.
    Fail(u16),
    /// Never answers.
    Wait,
}

impl Does {
    /// Answers the review with this response.
    pub fn respond(review: &Value, mut response: Value) -> Self {
        response["uid"] = review["request"]["uid"].clone();
        let answer = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
        Self::Answer(answer.to_string().into_bytes())
    }

    pub fn allow(review: &Value) -> Self {
        Self::respond(review, json!({"allowed": true}))
    }

    pub fn patch(review: &Value, patch: &Value) -> Self {
        let patch = STANDARD.encode(patch.to_string());
        let response = json!({"allowed": true, "patch": patch, "patchType": "JSONPatch"});
        Self::respond(review, response)
    }
}

/// A call that a webhook has got.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub host: String,
    pub review: Value,
}

impl Asked {
    pub fn request(&self) -> &Value {
        &self.review["request"]
    }
}

/// A running webhook.
pub struct Hook {
    pub address: SocketAddr,
    /// Its certificate, for `caBundle`.
    pub authority: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type Answering = dyn Fn(&str, &Value) -> Does + Send + Sync;

impl Hook {
    /// Serves on loopback.
    pub async fn serve(answer: impl Fn(&str, &Value) -> Does + Send + Sync + 'static) -> Self {
        Self::serve_at(IpAddr::from([127, 0, 0, 1]), answer).await
    }

    pub async fn serve_at(
        ip: IpAddr,
        answer: impl Fn(&str, &Value) -> Does + Send + Sync + 'static,
    ) -> Self {
        let (acceptor, certificate) = tls::self_signed(&["127.0.0.1", "hook.default.svc"], None);
        let listener = TcpListener::bind((ip, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, answer): (Arc<Mutex<Vec<Asked>>>, Arc<Answering>) =
            (Arc::default(), Arc::new(answer));
        let seen = asked.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, seen, answer) = (acceptor.clone(), seen.clone(), answer.clone());
                tokio::spawn(serve_connection(acceptor, socket, seen, answer));
            }
        });
        let authority = STANDARD.encode(certificate);
        Self { address, authority, asked }
    }

    /// A webhook called at `path` about the creation of ConfigMaps, with the fields `more`.
    pub fn webhook(&self, path: &str, more: &Value) -> Value {
        let mut webhook = json!({
            "name": format!("{}.example.com", path.trim_start_matches('/')),
            "clientConfig": {"url": format!("https://{}{path}", self.address), "caBundle": self.authority},
            "rules": [rule("configmaps", "CREATE")],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        });
        for (field, value) in more.as_object().unwrap() {
            webhook[field] = value.clone();
        }
        webhook
    }

    /// What it was asked since the last time.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    /// The paths at which it was called since the last time.
    pub fn take_paths(&self) -> Vec<String> {
        self.take_asked().into_iter().map(|asked| asked.path).collect()
    }
}

/// A rule for a resource of any group.
pub fn rule(resource: &str, operation: &str) -> Value {
    json!({"operations": [operation], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]})
}

pub fn configuration(name: &str, webhooks: &[Value]) -> String {
    json!({"metadata": {"name": name}, "webhooks": webhooks}).to_string()
}

async fn serve_connection(
    acceptor: TlsAcceptor,
    socket: TcpStream,
    seen: Arc<Mutex<Vec<Asked>>>,
    answer: Arc<Answering>,
) {
    let Ok(stream) = acceptor.accept(socket).await else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, answer) = (seen.clone(), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            let path = head.uri.path().to_owned();
            let host = head.headers["host"].to_str().unwrap().to_owned();
            let does = answer(&path, &review);
            seen.lock().unwrap().push(Asked { path, host, review });
            let mut response = Response::new(Full::new(Bytes::new()));
            match does {
                Does::Answer(body) => *response.body_mut() = Full::new(Bytes::from(body)),
                Does::Fail(status) => *response.status_mut() = status.try_into().unwrap(),
                Does::Wait => std::future::pending().await,
            }
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new();
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}
