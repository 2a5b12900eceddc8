//! One request from its head to its response: parse, authenticate, authorize, run the verb, encode, count.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver_audit::Trail;
use apiserver_auth::{AccessTarget, Attributes, Decision, User, is_health};
use apiserver_core::aggregation::ApiService;
use apiserver_core::auth::Anonymous;
use apiserver_core::flow_control::{ClassifiedRequest, HeldSeat};
use apiserver_core::request::{Accepted, Encoding, Query, RequestInfo, Verb};
use apiserver_core::status::{ApiError, StatusTarget};
use apiserver_core::verbs::VerbOutput;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use proto_api::selectors::FieldSelector;
use proto_daemon::connections::OpenRequest;
use proto_daemon::panics::{Panicked, isolate};

use super::audit::{
    AuditRecord, AuditedRequest, RequestAudit, record_authorization, record_outcome,
    record_response, trail,
};
use super::body::{self, ResponseBody};
use super::labels::Labels;
use super::responses::{encode, failure};
use super::routes::{self, RequestTarget};
use super::{
    aggregated_requests, backup, component_statuses, compress, deprecation, dispatch, flow_control,
    indent, negotiate, resource_metrics, saved_states, websocket,
};
use crate::browsers;
use crate::discovery;
use crate::labels::RequestKind;
use crate::overload::{HeldStream, InFlightPermit, RequestPermit, UserPermit};
use crate::peer::Peer;
use crate::requester::{acting_user, authenticate};
use crate::server::HttpServer;
use crate::unsent_bytes::LargeTurn;
use crate::user_shares::{prepare_response, reserve_unsent, wait_for_large_turn};
use crate::warnings::add_warning;
use crate::watch_batching::ConnectionNumber;
use crate::web_page::WebPage;

/// Serves one request. Errors become a Status, a panic becomes a 500.
pub async fn handle(
    server: Arc<HttpServer>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let line = format!("{} {}", request.method(), request.uri().path());
    let served = isolate(serve(server.clone(), peer, request)).await;
    served.unwrap_or_else(|panicked| {
        tracing::error!(request = line, %panicked, "the handler of a request panicked; responding with 500");
        failure(&server, Encoding::Json, false, &ApiError::internal(PANICKED))
    })
}

/// Whether the request changes stored objects. Proxied requests do not: they end when their client disconnects.
fn is_write(method: &Method, target: &RequestTarget) -> bool {
    match target {
        RequestTarget::Resource(resource) => {
            !matches!(*method, Method::GET | Method::HEAD) && !dispatch::is_proxied(resource)
        }
        RequestTarget::NonResource(_) => false,
    }
}

/// Runs `work` to completion even if the returned future is dropped. A panic becomes a 500.
async fn run_to_completion<T: Send + 'static>(
    record: Option<&Arc<AuditRecord>>,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let ended = tokio::spawn(isolate(work)).await;
    let ended = ended.unwrap_or_else(|error| Err(Panicked { message: error.to_string() }));
    ended.unwrap_or_else(|panicked| {
        tracing::error!(%panicked, "the handler of a write panicked; responding with 500, and the write may have been committed");
        record.iter().for_each(|record| record.set_panicked());
        Err(ApiError::internal(PANICKED))
    })
}

/// Message of the 500 after a panic; the words are Kubernetes'.
const PANICKED: &str = "This request caused apiserver to panic. Look in the logs for details.";

async fn serve(
    server: Arc<HttpServer>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<ResponseBody> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let core = &server.core;
    let is_elsewhere =
        |group: &str, version: &str| core.api_services.remote(core.names, group, version).is_some();
    let target = query
        .check_len()
        .and_then(|()| routes::parse(request.method(), request.uri().path(), &query, is_elsewhere));
    serve_with_metrics(server, peer, request, query, target).await
}

async fn serve_with_metrics(
    server: Arc<HttpServer>,
    peer: Peer,
    request: Request<Incoming>,
    query: Query,
    target: Result<RequestTarget, ApiError>,
) -> Response<ResponseBody> {
    let started = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let target = target.and_then(|target| check_browser(&server, &request, target));
    let labels = Labels::new(&server.core, &method, target.as_ref().ok());
    let is_stream = matches!(&target, Ok(RequestTarget::Resource(of)) if of.verb == Verb::Watch);
    let accepted = negotiate::accepted(request.headers(), server.core.names, is_stream);
    let encoding = accepted.map_or(Encoding::Json, |accepted| accepted.encoding);
    let indented = indent::is_wanted(request.headers(), &query);
    let in_flight = server.metrics.started(labels.kind());
    let mut audit = RequestAudit::new(request.headers());
    let mut classified = None;
    let outcome = match &target {
        Ok(target) => {
            let parsed = ParsedRequest {
                target,
                query: &query,
                kind: labels.kind(),
                accepted: accepted.ok(),
            };
            authenticate_and_serve(&server, &peer, request, parsed, &mut audit, &mut classified)
                .await
        }
        Err(error) => Err(begin_unserved(&server, &peer, &request, error, &mut audit).await),
    };
    drop(in_flight);
    let mut response = outcome.unwrap_or_else(|error| {
        audit.fail(server.core.names, &error);
        failure(&server, encoding, indented, &error)
    });
    if let Some((flows, classified)) = server.flow_control.as_ref().zip(classified.as_ref()) {
        flows.add_flow_headers(classified, &mut response);
    }
    if method == Method::HEAD {
        *response.body_mut() = body::full(Bytes::new());
    }
    if let Ok(RequestTarget::Resource(resource)) = &target
        && audit.is_allowed()
    {
        deprecation::report(&server, resource, &labels, &mut response, audit.trail());
    }
    let response = audit.finish(response, labels.kind()).await;
    let took = started.elapsed();
    server.metrics.finished(&labels, response.status(), took);
    tracing::debug!(%method, path, status = response.status().as_u16(), ?took, "answered");
    response
}

/// The target, if no page of another origin asks for it. The web page may be opened from anywhere.
fn check_browser<B>(
    server: &HttpServer,
    request: &Request<B>,
    target: RequestTarget,
) -> Result<RequestTarget, ApiError> {
    let is_page = server.web_page.is_some()
        && matches!(&target, RequestTarget::NonResource(path) if WebPage::is_at(path));
    if !is_page {
        browsers::check_origin(request)?;
    }
    Ok(target)
}

/// The parsed head of a request.
struct ParsedRequest<'a> {
    target: &'a RequestTarget,
    query: &'a Query,
    kind: RequestKind,
    accepted: Option<Accepted>,
}

async fn authenticate_and_serve(
    server: &Arc<HttpServer>,
    peer: &Peer,
    mut request: Request<Incoming>,
    parsed: ParsedRequest<'_>,
    audit: &mut RequestAudit,
    classified: &mut Option<ClassifiedRequest>,
) -> Result<Response<ResponseBody>, ApiError> {
    let ParsedRequest { target, query, kind, .. } = parsed;
    let method = request.method().as_str().to_ascii_lowercase();
    let selected = match target {
        RequestTarget::Resource(request) => selected_name(request, query),
        RequestTarget::NonResource(_) => None,
    };
    let (log, selected) = (server.audit.as_ref(), selected.as_deref());
    let audited = AuditedRequest { user: None, method: &method, target: Some(target), selected };
    if let RequestTarget::NonResource(path) = target
        && is_open(server, peer, request.headers(), path)
    {
        let user = User::anonymous();
        let audited = AuditedRequest { user: Some(&user), ..audited };
        audit.begin(log, &request, peer, audited).await?;
        return discovery::serve(server, &request, path).await;
    }
    let requester = authenticate(server, peer, &request)
        .await
        .inspect_err(|_| audit.refuse(log, &request, peer, audited))?;
    let audited = AuditedRequest { user: Some(&requester), ..audited };
    audit.begin(log, &request, peer, audited).await?;
    if let Some(named) = &server.core.authenticators.request_headers {
        named.strip(request.headers_mut());
    }
    let authenticated = requester.is_in(apiserver_auth::AUTHENTICATED);
    if authenticated && let Some(request) = &peer.request {
        request.connection().authenticated(server.overload.share_name(&requester.name));
    }
    let user = acting_user(server, requester, &request, audit.trail()).await?;
    let flows = server.flow_control.as_ref();
    *classified = flows.and_then(|flows| flows.classify(kind, target, &user, &method));
    let (overload, open) = (&server.overload, peer.request.as_ref());
    let seat = flow_control::seat(overload, &user, classified.as_ref(), open, query).await?;
    let permit = server.overload.admit(kind, &user, query_len(&request))?;
    authorize(server, &user, &method, target, selected, audit.trail()).await?;
    audit.allow();
    let admitted = Admitted { user, open: peer.request.as_ref(), authenticated, permit, seat };
    serve_authorized(server, admitted, request, parsed, classified.as_ref(), audit).await
}

fn query_len(request: &Request<Incoming>) -> usize {
    request.uri().query().unwrap_or_default().len()
}

/// Whether a path is answered without credentials: health checks, because a kubelet or init system that restarts the server has none, and the web page,
/// because a browser sends no token for a page. Neither contains data of the cluster. Credentials that come with a health check are verified.
fn is_open(server: &HttpServer, peer: &Peer, headers: &HeaderMap, path: &str) -> bool {
    let has_credentials = peer.certificate.is_some() || browsers::has_token(headers);
    server.core.config.anonymous != Anonymous::Refused
        && (is_health(path) && !has_credentials
            || server.web_page.is_some() && WebPage::is_at(path))
}

/// A request that may be served.
struct Admitted<'a> {
    user: User,
    open: Option<&'a OpenRequest>,
    authenticated: bool,
    permit: InFlightPermit,
    /// Held until the response begins: a stream needs its seat only to begin.
    seat: Option<HeldSeat>,
}

impl Admitted<'_> {
    /// Starts the deadline for the client's next step. Clients that are not authenticated must read the response within the first deadline.
    fn note(&self, is_stream: bool) {
        match self.open {
            Some(open) if is_stream => open.stream(),
            Some(open) if self.authenticated => open.authorized(),
            _ => {}
        }
    }
}

async fn serve_authorized(
    server: &Arc<HttpServer>,
    admitted: Admitted<'_>,
    mut request: Request<Incoming>,
    parsed: ParsedRequest<'_>,
    classified: Option<&ClassifiedRequest>,
    audit: &RequestAudit,
) -> Result<Response<ResponseBody>, ApiError> {
    let ParsedRequest { target, query, kind, accepted } = parsed;
    let elsewhere =
        aggregated_requests::served_elsewhere(&server.core, target, request.uri().path());
    // What another server answers may be a stream, whatever was asked: it counts as one before the request is sent. A backup takes as long as it is large.
    let is_backup = matches!(target, RequestTarget::NonResource(path) if path == backup::PATH);
    let is_stream = kind == RequestKind::LongRunning || elsewhere.is_some() || is_backup;
    admitted.note(is_stream);
    let Admitted { user, open, mut permit, seat, .. } = admitted;
    if let Some(open) = open.filter(|_| is_stream) {
        request.extensions_mut().insert(ConnectionNumber(open.connection().number()));
    }
    let short = match is_stream && kind != RequestKind::LongRunning {
        true => {
            let len = query_len(&request);
            let stream = server.overload.admit(RequestKind::LongRunning, &user, len)?;
            Some(std::mem::replace(&mut permit, stream))
        }
        false => None,
    };
    let (place, share) = permit.split();
    let share = Arc::new(share);
    if is_stream {
        let counted = server.metrics.started(RequestKind::LongRunning);
        let held = HeldStream::new(place, share, counted);
        request.extensions_mut().insert(held.clone());
        // A stream has its permit, and is in flight, until its body ends.
        let served = serve_read(server, &user, request, parsed, elsewhere, audit).await;
        drop((short, seat));
        return Ok(served?.map(|stream| body::hold_until_end(stream, held)));
    }
    if let Some(open) = open {
        open.keep(share.clone());
    }
    if let RequestTarget::Resource(resource) = target
        && is_write(request.method(), target)
    {
        let held = (place, seat);
        let again = async || {
            let seat = flow_control::seat(&server.overload, &user, classified, open, query).await?;
            Ok((server.overload.place_for_change(&user)?, seat))
        };
        let (request, held) = read_body(request, held, again).await?;
        // Nothing is written yet: it may be refused, and ends with its client.
        let turn = wait_for_large_turn(server, &user, resource, request.body().len()).await?;
        let write = (resource.clone(), query.clone());
        let held = (held, share, turn);
        return serve_write(server, user, request, write, accepted, held, audit.record()).await;
    }
    // The response to a request that may have changed something is never refused.
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let response = serve_read(server, &user, request, parsed, elsewhere, audit).await;
    drop((place, seat));
    if is_read { reserve_unsent(server, &user, response?) } else { response }
}

/// Serves what changes no object of this server. In a box, as its type would be a part of that of each connection's task, too deep for the compiler.
fn serve_read<'a>(
    server: &'a Arc<HttpServer>,
    user: &'a User,
    request: Request<Incoming>,
    parsed: ParsedRequest<'a>,
    elsewhere: Option<Arc<ApiService>>,
    audit: &'a RequestAudit,
) -> Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, ApiError>> + Send + 'a>> {
    Box::pin(dispatch_read(server, user, request, parsed, elsewhere, audit))
}

async fn dispatch_read(
    server: &Arc<HttpServer>,
    user: &User,
    request: Request<Incoming>,
    ParsedRequest { target, query, accepted, .. }: ParsedRequest<'_>,
    elsewhere: Option<Arc<ApiService>>,
    audit: &RequestAudit,
) -> Result<Response<ResponseBody>, ApiError> {
    Ok(match (elsewhere, target) {
        (Some(service), _) => {
            aggregated_requests::proxy(server, &service, user, request, audit.id()).await
        }
        (None, RequestTarget::NonResource(path)) if path == backup::PATH => {
            backup::serve(&server.core, request.method()).await?
        }
        (None, RequestTarget::NonResource(path)) if saved_states::is_path(path) => {
            saved_states::serve(&server.core, user, request.method(), path, query).await?
        }
        (None, RequestTarget::NonResource(path)) => {
            discovery::serve(server, &request, path).await?
        }
        (None, RequestTarget::Resource(resource)) => {
            let is_page = server.web_page.is_some()
                && resource.subresource == "proxy"
                && browsers::is_direct(request.headers());
            let trail = audit.trail();
            let response =
                serve_resource(server, user, request, resource, query, accepted, trail).await?;
            if is_page { browsers::isolate(response) } else { response }
        }
    })
}

/// What a write holds while it is served: its place among all requests, and its seat.
type Seated = (RequestPermit, Option<HeldSeat>);

/// Longest time for which a request keeps place and seat while its body arrives.
const SEATED_READ_MAX: Duration = Duration::from_millis(50);

/// The request with its body. A client that is slow to send it keeps neither place nor seat meanwhile: `again` gives them when it is here.
async fn read_body(
    request: Request<Incoming>,
    held: Seated,
    again: impl AsyncFnOnce() -> Result<Seated, ApiError>,
) -> Result<(Request<Bytes>, Seated), ApiError> {
    let (head, body) = request.into_parts();
    let mut reading = pin!(body::read(body));
    if let Ok(read) = tokio::time::timeout(SEATED_READ_MAX, reading.as_mut()).await {
        return Ok((Request::from_parts(head, read?), held));
    }
    drop(held);
    let read = reading.await?;
    Ok((Request::from_parts(head, read), again().await?))
}

/// A write completes even if its client disconnects, so that what follows it (commit or release of allocations) runs too. What comes before it ends with the
/// client: it may wait for other servers.
async fn serve_write(
    server: &Arc<HttpServer>,
    user: User,
    request: Request<Bytes>,
    (resource, query): (RequestInfo, Query),
    accepted: Option<Accepted>,
    held: (Seated, Arc<Option<UserPermit>>, Option<LargeTurn>),
    record: Option<&Arc<AuditRecord>>,
) -> Result<Response<ResponseBody>, ApiError> {
    let (server, shared) = (server.clone(), record.cloned());
    run_to_completion(record, async move {
        let _held = held;
        let trail = trail(shared.as_ref());
        let served = serve_verb(&server, &user, request, &resource, &query, accepted, trail);
        let served = served.await;
        // The client may have disconnected, so that no other code records the outcome.
        record_outcome(trail, server.core.names, &served);
        served
    })
    .await
}

/// Records a request that is rejected before it is served. Returns the error for the response.
async fn begin_unserved(
    server: &HttpServer,
    peer: &Peer,
    request: &Request<Incoming>,
    error: &ApiError,
    audit: &mut RequestAudit,
) -> ApiError {
    let method = request.method().as_str().to_ascii_lowercase();
    let of = AuditedRequest { user: None, method: &method, target: None, selected: None };
    let begun = audit.begin(server.audit.as_ref(), request, peer, of).await;
    begun.err().unwrap_or_else(|| error.clone())
}

async fn authorize(
    server: &HttpServer,
    user: &User,
    method: &str,
    target: &RequestTarget,
    selected: Option<&str>,
    trail: &Trail,
) -> Result<(), ApiError> {
    let (verb, subject) = match target {
        RequestTarget::NonResource(path) => (method, AccessTarget::Path(path)),
        RequestTarget::Resource(r) => (r.verb.as_str(), r.subject_named(selected)),
    };
    let attributes = Attributes { user, verb, subject };
    let authorization = server.core.authorizer.authorize(&attributes).await;
    record_authorization(server, &authorization, trail);
    if authorization.decision == Decision::Allow {
        return Ok(());
    }
    if !authorization.error.is_empty() {
        return Err(ApiError::internal(authorization.error));
    }
    let text = attributes.denial(&authorization.reason);
    Err(match target {
        RequestTarget::NonResource(_) => ApiError::forbidden(StatusTarget::default(), &text),
        RequestTarget::Resource(r) => {
            let name = selected.unwrap_or(&r.name);
            ApiError::forbidden(StatusTarget { name, ..r.about() }, &text)
        }
    })
}

/// The only object that a list or watch selects: access to it is access to the object, as in Kubernetes.
fn selected_name(request: &RequestInfo, query: &Query) -> Option<String> {
    let collection = matches!(request.verb, Verb::List | Verb::Watch);
    if !collection || !request.name.is_empty() {
        return None;
    }
    let selector = FieldSelector::parse(query.text("fieldSelector")?).ok()?;
    let name = selector.exact("metadata.name")?;
    let is_segment = !name.contains(['/', '%']) && name != "." && name != "..";
    is_segment.then(|| name.to_owned())
}

async fn serve_resource(
    server: &Arc<HttpServer>,
    user: &User,
    mut request: Request<Incoming>,
    resource: &RequestInfo,
    query: &Query,
    accepted: Option<Accepted>,
    trail: &Trail,
) -> Result<Response<ResponseBody>, ApiError> {
    if !websocket::is_stream_upgrade(request.headers(), resource) {
        return serve_resource_plain(server, user, request, resource, query, accepted, trail).await;
    }
    let upgrade = websocket::take_upgrade(&mut request, resource);
    let response =
        serve_resource_plain(server, user, request, resource, query, accepted, trail).await?;
    Ok(upgrade.accept(response))
}

async fn serve_resource_plain(
    server: &Arc<HttpServer>,
    user: &User,
    request: Request<Incoming>,
    resource: &RequestInfo,
    query: &Query,
    accepted: Option<Accepted>,
    trail: &Trail,
) -> Result<Response<ResponseBody>, ApiError> {
    if dispatch::is_proxied(resource) {
        dispatch::admit_proxied(&server.core, user, resource, query, trail).await?;
        return server.nodes.proxy(&server.core, request, resource, query).await;
    }
    let request = request.map(|_| Bytes::new());
    serve_verb(server, user, request, resource, query, accepted, trail).await
}

/// Serves a request whose body has been read; reads have none.
async fn serve_verb(
    server: &Arc<HttpServer>,
    user: &User,
    request: Request<Bytes>,
    resource: &RequestInfo,
    query: &Query,
    accepted: Option<Accepted>,
    trail: &Trail,
) -> Result<Response<ResponseBody>, ApiError> {
    let accepted = accepted
        .ok_or_else(|| ApiError::not_acceptable(server.core.names.protobuf_media_type()))?;
    let accepted = accepted.with_include(query)?;
    dispatch::check_accepted(&server.core, resource, accepted)?;
    let indented = indent::is_wanted(request.headers(), query);
    let packed = compress::is_accepted(request.headers());
    let connection = request.extensions().get::<ConnectionNumber>().copied();
    let outcome = if resource_metrics::is_about(&server.core, resource) {
        let calls = (&*server.core, user, resource, query, accepted, trail);
        dispatch::with_context(calls, |call| server.resource_metrics.serve(call))?
    } else if component_statuses::is_about(resource) {
        // Before the components are dialled.
        dispatch::find_served_kind(&server.core, resource)?;
        let checked = component_statuses::check_all(server, resource).await;
        let calls = (&*server.core, user, resource, query, accepted, trail);
        dispatch::with_context(calls, |call| component_statuses::serve(call, checked))?
    } else {
        dispatch::dispatch(&server.core, user, request, resource, query, accepted, trail).await?
    };
    let VerbOutput { response, warnings } = outcome;
    record_response(server, accepted, &response, trail);
    let _prepared = match resource.verb {
        Verb::Get | Verb::List => prepare_response(server, user, accepted, &response).await?,
        _ => None,
    };
    let mut response = encode(server, accepted, response, indented, packed, connection).await?;
    for warning in warnings.iter().take(WARNINGS_MAX) {
        add_warning(&mut response, warning);
    }
    Ok(response)
}

/// Most warnings in one response, because headers are bounded.
const WARNINGS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_outlive_their_client() {
        let pod = "/api/v1/namespaces/a/pods/b";
        for (method, path, expected) in [
            (Method::POST, "/api/v1/namespaces/a/pods", true),
            (Method::PATCH, pod, true),
            (Method::DELETE, pod, true),
            (Method::POST, "/api/v1/namespaces/a/pods/b/eviction", true),
            (Method::GET, pod, false),
            (Method::POST, "/api/v1/namespaces/a/pods/b:80/proxy/x", false),
            (Method::POST, "/api/v1/namespaces/a/pods/b/exec", false),
            (Method::PUT, "/api/v1/namespaces/a/services/b/proxy/x", false),
            (Method::POST, "/api/v1/nodes/b/proxy/run/a/b/c", false),
            (Method::POST, "/openapi/v2", false),
        ] {
            let query = Query::parse("");
            let target = routes::parse(&method, path, &query, |_, _| false).expect("a target");
            assert_eq!(is_write(&method, &target), expected, "{method} {path}");
        }
    }
}
