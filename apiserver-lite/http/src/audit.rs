//! The audit log's view of one request: when its record begins, what it says of the request, and which events it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apiserver_audit::{
    AuditAttributes, AuditUserInfo, AuditedResource, OFF, ObjectReference, RequestHead, Stage,
    Trail, is_audit_id, response_status, source_ips,
};
use apiserver_audit_log::AuditLog;
use apiserver_auth::{Authorization, Decision, User};
use apiserver_core::request::{Accepted, Encoding};
use apiserver_core::status::{ApiError, StatusTarget};
use apiserver_core::times::now;
use apiserver_core::verbs::{VerbResponse, about_deleted};
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderMap, USER_AGENT};
use http::{HeaderValue, Request, Response};
use proto_api::meta::v1::Status;
use proto_api::names::Names;
use serde_json::{Value, json};
use uuid::Builder;

use crate::body::{ResponseBody, hold_until_end};
use crate::labels::RequestKind;
use crate::peer::Peer;
use crate::render;
use crate::routes::RequestTarget;
use crate::server::HttpServer;

const AUDIT_ID: &str = "audit-id";

/// The identifier of a request, and its record once there is one.
pub struct RequestAudit {
    id: HeaderValue,
    record: Option<Arc<AuditRecord>>,
    /// Whether the request's credentials were refused, which is one event.
    is_refused: bool,
    is_allowed: bool,
}

/// The record of a request. Its last event is sent when the last holder drops it, unless it was sent before.
pub struct AuditRecord {
    log: Arc<AuditLog>,
    trail: Trail,
    is_complete: AtomicBool,
    has_panicked: AtomicBool,
}

impl RequestAudit {
    /// Takes the client's identifier of the request, or gives it one.
    pub fn new(headers: &HeaderMap) -> Self {
        let named = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok());
        let named = named.filter(|text| is_audit_id(text)).map(str::to_owned);
        let id = named.unwrap_or_else(new_id);
        let id = HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static(""));
        Self { id, record: None, is_refused: false, is_allowed: false }
    }

    /// Begins the record of a request.
    ///
    /// # Errors
    /// 500 if its first event has to be stored and cannot be.
    pub async fn begin<B>(
        &mut self,
        log: Option<&Arc<AuditLog>>,
        request: &Request<B>,
        peer: &Peer,
        of: AuditedRequest<'_>,
    ) -> Result<(), ApiError> {
        let Some(record) = self.new_record(log, request, peer, of) else { return Ok(()) };
        if !record.record(Stage::RequestReceived).await {
            record.log.count_rejected();
            // As in Kubernetes, no further event is recorded.
            record.is_complete.store(true, Ordering::Relaxed);
            return Err(ApiError::internal("failed to store audit event"));
        }
        self.record = Some(record);
        Ok(())
    }

    /// Records a request whose credentials are refused.
    pub fn refuse<B>(
        &mut self,
        log: Option<&Arc<AuditLog>>,
        request: &Request<B>,
        peer: &Peer,
        of: AuditedRequest<'_>,
    ) {
        self.record = self.new_record(log, request, peer, of);
        self.is_refused = true;
        self.trail().set_status_if_none(|| {
            let message = describe_refused_credentials(request.headers(), peer);
            response_status(401, Some(&json!({"message": message})))
        });
    }

    fn new_record<B>(
        &self,
        log: Option<&Arc<AuditLog>>,
        request: &Request<B>,
        peer: &Peer,
        of: AuditedRequest<'_>,
    ) -> Option<Arc<AuditRecord>> {
        let head = || of.head(request, peer, &self.id);
        let trail = log?.begin(&of.attributes(request.uri().path()), head)?;
        let (is_complete, has_panicked) = Default::default();
        Some(Arc::new(AuditRecord { log: log?.clone(), trail, is_complete, has_panicked }))
    }

    /// Records the Status of a failed request.
    pub fn fail(&self, names: &'static Names, error: &ApiError) {
        if !self.is_refused {
            record_failure(self.trail(), names, error);
        }
    }

    /// The request was authorized.
    pub fn allow(&mut self) {
        self.is_allowed = true;
    }

    /// Whether the request was authorized.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// The identifier of the request.
    pub fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// The record, if there is one.
    pub fn record(&self) -> Option<&Arc<AuditRecord>> {
        self.record.as_ref()
    }

    /// What is recorded.
    pub fn trail(&self) -> &Trail {
        trail(self.record.as_ref())
    }

    /// Ends the record with the response: a short one at once, a stream when its body ends.
    pub async fn finish(
        self,
        response: Response<ResponseBody>,
        kind: RequestKind,
    ) -> Response<ResponseBody> {
        let mut response = response;
        response.headers_mut().insert(AUDIT_ID, self.id);
        let Some(record) = self.record else { return response };
        let code = response.status().as_u16();
        record.trail.set_status_if_none(|| response_status(code, None));
        if self.is_refused {
            record.is_complete.store(true, Ordering::Relaxed);
            record.record(Stage::ResponseStarted).await;
            return response;
        }
        if kind == RequestKind::LongRunning {
            record.record(Stage::ResponseStarted).await;
            return response.map(|stream| hold_until_end(stream, record));
        }
        record.complete().await;
        response
    }
}

/// What is recorded; nothing without a record.
pub fn trail(record: Option<&Arc<AuditRecord>>) -> &Trail {
    record.map_or(&OFF, |record| &record.trail)
}

impl AuditRecord {
    /// The work for the request has panicked.
    pub fn set_panicked(&self) {
        self.has_panicked.store(true, Ordering::Relaxed);
    }

    async fn record(&self, stage: Stage) -> bool {
        self.log.record(&self.trail, stage, micros()).await
    }

    async fn complete(&self) {
        if !self.is_complete.swap(true, Ordering::Relaxed) {
            self.record(self.last_stage()).await;
        }
    }

    fn last_stage(&self) -> Stage {
        match self.has_panicked.load(Ordering::Relaxed) {
            true => Stage::Panic,
            false => Stage::ResponseComplete,
        }
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        if self.is_complete.load(Ordering::Relaxed) {
            return;
        }
        if std::thread::panicking() {
            self.set_panicked();
        }
        if self.last_stage() == Stage::Panic {
            let status = json!({"status": "Failure", "reason": "InternalError", "message": "APIServer panic'd"});
            self.trail.set_status(response_status(500, Some(&status)));
        }
        let early = json!({"status": "Success", "message": "Connection closed early"});
        self.trail.set_status_if_none(|| response_status(200, Some(&early)));
        self.log.submit(&self.trail, self.last_stage(), micros());
    }
}

/// What the log says of a request and its user.
#[derive(Clone, Copy)]
pub struct AuditedRequest<'a> {
    /// The user, if one is known.
    pub user: Option<&'a User>,
    /// The method in lower case.
    pub method: &'a str,
    /// The target; `None` for a request that asks for nothing that is served.
    pub target: Option<&'a RequestTarget>,
    /// The only object that a collection's selector matches.
    pub selected: Option<&'a str>,
}

impl AuditedRequest<'_> {
    fn attributes<'a>(&'a self, path: &'a str) -> AuditAttributes<'a> {
        let resource = match self.target {
            Some(RequestTarget::Resource(r)) => Some(AuditedResource {
                group: &r.group,
                resource: &r.resource,
                subresource: &r.subresource,
                namespace: &r.namespace,
                name: self.selected.unwrap_or(&r.name),
            }),
            _ => None,
        };
        AuditAttributes {
            user: self.user.map(|user| user.name.as_str()),
            groups: self.user.map_or(&[][..], |user| user.groups.as_slice()),
            verb: self.verb(),
            resource,
            path,
        }
    }

    fn verb(&self) -> &str {
        match self.target {
            Some(RequestTarget::Resource(r)) => r.verb.as_str(),
            _ => self.method,
        }
    }

    fn head<B>(&self, request: &Request<B>, peer: &Peer, id: &HeaderValue) -> RequestHead {
        let headers = request.headers();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let address = peer.request.as_ref().map(|request| request.address().ip());
        let uri = request.uri();
        let object = match self.target {
            Some(RequestTarget::Resource(r)) => Some(ObjectReference {
                resource: r.resource.clone(),
                namespace: r.namespace.clone(),
                name: self.selected.unwrap_or(&r.name).to_owned(),
                api_group: r.group.clone(),
                api_version: r.version.clone(),
                subresource: r.subresource.clone(),
                ..ObjectReference::default()
            }),
            _ => None,
        };
        RequestHead {
            api_version: String::new(),
            audit_id: id.to_str().unwrap_or_default().to_owned(),
            request_uri: uri.path_and_query().map_or("/", |uri| uri.as_str()).to_owned(),
            verb: self.verb().to_owned(),
            user: self.user.map(user_info).unwrap_or_default(),
            source_ips: source_ips(text("x-forwarded-for"), text("x-real-ip"), address),
            user_agent: text(USER_AGENT.as_str()).unwrap_or_default().to_owned(),
            object,
            received_micros: micros(),
        }
    }
}

/// A user as events name it.
pub fn user_info(user: &User) -> AuditUserInfo {
    AuditUserInfo {
        username: user.name.clone(),
        uid: user.uid.clone(),
        groups: user.groups.clone(),
        extra: user.extra.clone(),
    }
}

/// Records the Status of a failed request.
fn record_failure(trail: &Trail, names: &'static Names, error: &ApiError) {
    if trail.is_on() {
        let json = render::status(names, Encoding::Json, error.status());
        let status: Value = serde_json::from_slice(&json).unwrap_or_default();
        let code = u16::try_from(error.status().code).unwrap_or(500);
        trail.set_status(response_status(code, Some(&status)));
        trail.set_response_object(&json);
    }
}

/// The annotations of a decision, as kube-apiserver makes them.
pub fn record_authorization(server: &HttpServer, authorization: &Authorization, trail: &Trail) {
    if !trail.is_on() {
        return;
    }
    let group = server.core.names.group("authorization");
    let (decision, reason) = match authorization.decision {
        Decision::Allow => (Some("allow"), authorization.reason.as_str()),
        _ if !authorization.error.is_empty() => (None, "internal error"),
        _ => (Some("forbid"), authorization.reason.as_str()),
    };
    decision.iter().for_each(|decision| trail.annotate(&format!("{group}/decision"), *decision));
    trail.annotate(&format!("{group}/reason"), reason);
}

/// Records the object of a response, and the Status that a response is.
pub fn record_response(
    server: &HttpServer,
    accepted: Accepted,
    response: &VerbResponse,
    trail: &Trail,
) {
    if !trail.is_on() {
        return;
    }
    let (core, names) = (&server.core, server.core.names);
    let accepted = Accepted { encoding: Encoding::Json, ..accepted };
    if let Some((code, status)) = success(response) {
        let json = render::status(names, Encoding::Json, &status);
        let tree = serde_json::from_slice(&json).ok();
        trail.set_status(response_status(code, tree.as_ref()));
        return trail.set_response_object(&json);
    }
    if !trail.records_responses() {
        return;
    }
    let json = match response {
        VerbResponse::Stored { record, .. } => render::stored(core, accepted, record, true).ok(),
        VerbResponse::Object { object, .. } => render::object(core, accepted, object).ok(),
        VerbResponse::List { kind, meta, items } => {
            let parts = render::collection(core, accepted, kind, meta, items).ok();
            parts.map(|parts| Bytes::from(parts.concat()))
        }
        _ => None,
    };
    json.iter().for_each(|json| trail.set_response_object(json));
}

/// The code and Status of a response that has one.
pub fn success(response: &VerbResponse) -> Option<(u16, Status)> {
    match response {
        VerbResponse::Deleted { record } => {
            let about = about_deleted(record.object());
            Some((200, apiserver_core::status::success(200, about, record.object().uid())))
        }
        VerbResponse::Success { code } => {
            Some((*code, apiserver_core::status::success(*code, StatusTarget::default(), "")))
        }
        _ => None,
    }
}

/// Records the status of a response, or of the failure in its place.
pub fn record_outcome(
    trail: &Trail,
    names: &'static Names,
    outcome: &Result<Response<ResponseBody>, ApiError>,
) {
    match outcome {
        Ok(response) => {
            trail.set_status_if_none(|| response_status(response.status().as_u16(), None));
        }
        Err(error) => record_failure(trail, names, error),
    }
}

/// The message of a request whose credentials are refused, in Kubernetes' words. It names the kinds of credentials, never one of them.
fn describe_refused_credentials(headers: &HeaderMap, peer: &Peer) -> String {
    let scheme = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let scheme = scheme.and_then(|value| value.trim().split_once(' ')).map(|(scheme, _)| scheme);
    let is = |name: &str| scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(name));
    let has_certificate = peer.certificate.is_some() || peer.proxy.is_some();
    let tried: Vec<&str> =
        [(is("basic"), "basic"), (is("bearer"), "bearer"), (has_certificate, "x509")]
            .into_iter()
            .filter_map(|(tried, name)| tried.then_some(name))
            .collect();
    match tried.as_slice() {
        [] => "Authentication failed, no credentials provided".to_owned(),
        tried => format!("Authentication failed, attempted: {}", tried.join(", ")),
    }
}

/// A random UUID; of this thread's generator, because every request has one.
fn new_id() -> String {
    Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

/// Microseconds since the Unix epoch.
fn micros() -> i64 {
    i64::try_from(now().unix_timestamp_nanos() / 1000).unwrap_or(i64::MAX)
}
