//! A webhook over TLS, for tests: it answers with what a function makes of the path and the review, and keeps the calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Response;
use proto_client::testing::{StubRequest, StubServer};
use serde_json::{Value, json};

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
pub struct Call {
    pub path: String,
    pub host: String,
    pub review: Value,
}

impl Call {
    pub fn request(&self) -> &Value {
        &self.review["request"]
    }
}

/// A running webhook.
pub struct Hook {
    pub address: SocketAddr,
    /// Its certificate, for `caBundle`.
    pub authority: String,
    calls: Arc<Mutex<Vec<Call>>>,
}

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
        let calls: Arc<Mutex<Vec<Call>>> = Arc::default();
        let seen = calls.clone();
        let answer = move |request: &StubRequest| {
            let review: Value = serde_json::from_slice(&request.body).unwrap();
            let does = answer(&request.path, &review);
            let host = request.headers["host"].to_str().unwrap().to_owned();
            seen.lock().unwrap().push(Call { path: request.path.clone(), host, review });
            let mut response = Response::new(Bytes::new());
            match does {
                Does::Answer(body) => *response.body_mut() = Bytes::from(body),
                Does::Fail(status) => *response.status_mut() = status.try_into().unwrap(),
                Does::Wait => return None,
            }
            Some(response)
        };
        let server = StubServer::start_at(ip, Some(acceptor), answer).await;
        let authority = STANDARD.encode(certificate);
        Self { address: server.address, authority, calls }
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

    /// The calls since the last time.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// The paths at which it was called since the last time.
    pub fn take_paths(&self) -> Vec<String> {
        self.take_calls().into_iter().map(|call| call.path).collect()
    }
}

/// A rule for a resource of any group.
pub fn rule(resource: &str, operation: &str) -> Value {
    json!({"operations": [operation], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [resource]})
}

pub fn configuration(name: &str, webhooks: &[Value]) -> String {
    json!({"metadata": {"name": name}, "webhooks": webhooks}).to_string()
}
