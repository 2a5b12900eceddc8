//! Dispatches an authorized resource request to its verb. What the resource's row in the schema does not list is a 404 or 405.

use std::sync::Arc;

use apiserver_audit::Trail;
use apiserver_auth::User;
use apiserver_core::context::RequestContext;
use apiserver_core::options::DeleteOptions;
use apiserver_core::request::{Accepted, Encoding, Query, Representation, RequestInfo, Verb};
use apiserver_core::request_notes::RequestNotes;
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_core::subresources::{binding, connect, eviction, reviews, scale, token};
use apiserver_core::verbs::{self, VerbOutput};
use apiserver_core::versions;
use apiserver_schema::update::Subresource;
use apiserver_schema::{Format, Kind, Map, PatchType, Strictness, actors};
use bytes::Bytes;
use http::Request;
use http::header::USER_AGENT;

use super::negotiate::{self, PatchKind};

/// Whether the request is proxied to a kubelet or a workload.
#[must_use]
pub fn is_proxied(request: &RequestInfo) -> bool {
    let core = request.group.is_empty() && request.version == "v1";
    let pod =
        matches!(request.subresource.as_str(), "log" | "exec" | "attach" | "portforward" | "proxy");
    let other = request.subresource == "proxy";
    core && match request.resource.as_str() {
        "pods" => pod,
        "nodes" | "services" => other,
        _ => false,
    }
}

/// Runs the verb of a resource request and returns its output in the requested version.
///
/// # Errors
/// The error of the verb; 404 and 405 for what is not served.
pub async fn dispatch(
    server: &Server,
    user: &User,
    request: Request<Bytes>,
    resource: &RequestInfo,
    query: &Query,
    accepted: Accepted,
    audit: &Trail,
) -> Result<VerbOutput, ApiError> {
    // Before anything is looked up: also definitions of kinds.
    verbs::be_current(server, resource, query).await?;
    let requested_version = find_served_kind(server, resource)?;
    let user_agent = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok());
    let user_agent = user_agent.unwrap_or_default().to_owned();
    let kind = versions::stored_kind(&server.engine, server.names, &requested_version);
    let notes = RequestNotes::default();
    let call = RequestContext {
        server,
        request: resource,
        kind,
        requested_version,
        user,
        user_agent: &user_agent,
        query,
        accepted,
        notes: Some(&notes),
        audit,
    };
    refuse_create_of_ending(&call)?;
    let served = serve_verb(&call, request).await;
    notes.annotations().into_iter().for_each(|(key, value)| audit.annotate(&key, value));
    let mut outcome = served?;
    outcome.warnings.extend(notes.take_warnings());
    if let Some(text) = call.kind.custom_version().and_then(|version| version.deprecation.clone()) {
        outcome.warnings.insert(0, text);
    }
    // Inserted first, because the number of warnings in a response is bounded.
    if let Some(warning) = stored_only_warning(resource, &call.requested_version) {
        outcome.warnings.insert(0, warning);
    }
    outcome.as_version(call.asker(), &call.kind, &call.requested_version).await
}

/// Runs a verb of a resource that is in no store.
///
/// # Errors
/// The error of the verb; 404 and 405 for what is not served.
pub fn with_context(
    (server, user, resource, query, accepted, audit): (
        &Server,
        &User,
        &RequestInfo,
        &Query,
        Accepted,
        &Trail,
    ),
    verb: impl FnOnce(&RequestContext<'_>) -> Result<VerbOutput, ApiError>,
) -> Result<VerbOutput, ApiError> {
    let kind = find_served_kind(server, resource)?;
    verb(&RequestContext {
        server,
        request: resource,
        kind: kind.clone(),
        requested_version: kind,
        user,
        user_agent: "",
        query,
        accepted,
        notes: None,
        audit,
    })
}

/// Calls the webhooks for a proxied request. Requests for logs are reads, for which webhooks are not called.
///
/// # Errors
/// 404 and 405 for what is not served, and what webhooks say.
pub async fn admit_proxied(
    server: &Server,
    user: &User,
    resource: &RequestInfo,
    query: &Query,
    audit: &Trail,
) -> Result<(), ApiError> {
    let requested_version = find_served_kind(server, resource)?;
    if resource.subresource == "log" {
        return Ok(());
    }
    let notes = RequestNotes::default();
    let call = RequestContext {
        server,
        request: resource,
        kind: requested_version.clone(),
        requested_version,
        user,
        user_agent: "",
        query,
        accepted: Accepted { encoding: Encoding::Json, representation: Representation::Object },
        notes: Some(&notes),
        audit,
    };
    let admitted = connect::admit(&call).await;
    notes.annotations().into_iter().for_each(|(key, value)| audit.annotate(&key, value));
    admitted
}

/// Refuses new objects of a definition that is being deleted.
fn refuse_create_of_ending(call: &RequestContext<'_>) -> Result<(), ApiError> {
    let ending = call.kind.custom_version().is_some_and(|version| version.terminating);
    if ending && call.request.verb == Verb::Create {
        return Err(ApiError::definition_ends());
    }
    Ok(())
}

/// The warning for writers of a kind that no program here acts on. Writers of a status act on the kind themselves.
fn stored_only_warning(request: &RequestInfo, kind: &Kind) -> Option<String> {
    let writes = matches!(request.verb, Verb::Create | Verb::Update | Verb::Patch);
    (writes && request.subresource.is_empty()).then(|| actors::stored_only_warning(kind)).flatten()
}

async fn serve_verb(
    call: &RequestContext<'_>,
    request: Request<Bytes>,
) -> Result<VerbOutput, ApiError> {
    let (server, resource, query) = (call.server, call.request, call.query);
    match resource.verb {
        Verb::Get if resource.subresource == "scale" => scale::get(call).await,
        Verb::Get => verbs::get(call).await,
        Verb::List => verbs::list(call).await,
        Verb::Watch => verbs::watch(call).await,
        Verb::Create => {
            let (bytes, format) = object_body(call, request)?;
            create(call, bytes, format).await
        }
        Verb::Update => {
            let (bytes, format) = object_body(call, request)?;
            update(call, bytes, format).await
        }
        Verb::Patch => {
            let kind = patch_type(call, &request)?;
            let bytes = request.into_body();
            record_patch(call, kind, &bytes);
            match kind {
                Some(kind) => patch(call, kind, bytes).await,
                None => apply(call, bytes).await,
            }
        }
        Verb::Delete | Verb::DeleteCollection => {
            let options = delete_options(call, request)?;
            let options = DeleteOptions::new(server.names, &options, query)?;
            match resource.verb {
                Verb::Delete => verbs::delete(call, &options).await,
                _ => verbs::delete_collection(call, &options).await,
            }
        }
    }
}

/// The kind of the request's resource, if the resource's row in the schema has the request's scope, subresource and verb.
///
/// # Errors
/// 404 for an unknown resource, scope or subresource, 405 for a verb that it does not support.
pub fn find_served_kind(server: &Server, request: &RequestInfo) -> Result<Arc<Kind>, ApiError> {
    let kind = server.resource(&request.group, &request.version, &request.resource);
    let kind = kind.ok_or_else(ApiError::no_such_resource)?;
    let switches = &server.config.runtime_config;
    let short = server.names.short_group(&request.group).unwrap_or(&request.group);
    if !switches.serves(short, &request.version, &request.resource) {
        return Err(ApiError::no_such_resource());
    }
    check_served(request, &kind)?;
    Ok(kind)
}

/// Refuses Protobuf of custom objects, which have no descriptor; their metadata have one.
///
/// # Errors
/// 406.
pub fn check_accepted(
    server: &Server,
    request: &RequestInfo,
    accepted: Accepted,
) -> Result<(), ApiError> {
    let whole = accepted.encoding == Encoding::Protobuf
        && accepted.representation == Representation::Object
        && request.subresource != "scale";
    if whole && is_custom(server, request) {
        return Err(ApiError::no_protobuf());
    }
    Ok(())
}

fn is_custom(server: &Server, request: &RequestInfo) -> bool {
    let kind = server.resource(&request.group, &request.version, &request.resource);
    kind.is_some_and(|kind| kind.custom().is_some())
}

fn check_served(request: &RequestInfo, kind: &Kind) -> Result<(), ApiError> {
    if !request.rest.is_empty() && request.subresource != "proxy" {
        return Err(ApiError::no_such_resource());
    }
    let main = kind.verbs("").ok_or_else(ApiError::no_such_resource)?;
    let verbs = kind.verbs(&request.subresource).ok_or_else(ApiError::no_such_resource)?;
    // A request for a namespace is one within it; no namespace lies below another one's path.
    let inside = match request.resource.as_str() {
        "namespaces" if request.group.is_empty() => request.namespace != request.name,
        _ => !request.namespace.is_empty(),
    };
    if inside && !kind.namespaced() {
        return Err(ApiError::no_such_resource());
    }
    let across = kind.namespaced() && request.namespace.is_empty();
    if across && !request.name.is_empty() {
        return Err(ApiError::no_such_resource());
    }
    // Across all namespaces only list and watch are served, except for virtual resources, which have no list.
    let only_read =
        across && main.contains(&"list") && !matches!(request.verb, Verb::List | Verb::Watch);
    if only_read || !verbs.contains(&request.verb.as_str()) {
        return Err(ApiError::method_not_allowed());
    }
    Ok(())
}

async fn create(
    call: &RequestContext<'_>,
    bytes: Bytes,
    format: Format,
) -> Result<VerbOutput, ApiError> {
    match (call.request.resource.as_str(), call.request.subresource.as_str()) {
        // Whatever its name is.
        (_, "") if call.kind.custom().is_some() && call.request.name.is_empty() => {
            verbs::create(call, bytes, format).await
        }
        ("bindings", "") | ("pods", "binding") => binding::create(call, &bytes, format).await,
        ("pods", "eviction") => eviction::create(call, &bytes, format).await,
        ("serviceaccounts", "token") => token::create(call, &bytes, format).await,
        (_, "") if reviews::is_review(&call.kind) => reviews::create(call, &bytes, format).await,
        (_, "") if call.request.name.is_empty() => verbs::create(call, bytes, format).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

async fn update(
    call: &RequestContext<'_>,
    bytes: Bytes,
    format: Format,
) -> Result<VerbOutput, ApiError> {
    match Subresource::from_name(&call.request.subresource) {
        Some(subresource) => verbs::update(call, subresource, bytes, format).await,
        None if call.request.subresource == "scale" => scale::update(call, &bytes, format).await,
        None => Err(ApiError::method_not_allowed()),
    }
}

async fn patch(
    call: &RequestContext<'_>,
    kind: PatchType,
    bytes: Bytes,
) -> Result<VerbOutput, ApiError> {
    match Subresource::from_name(&call.request.subresource) {
        Some(subresource) => verbs::patch(call, subresource, kind, bytes).await,
        None if call.request.subresource == "scale" => scale::patch(call, kind, &bytes).await,
        None => Err(ApiError::method_not_allowed()),
    }
}

async fn apply(call: &RequestContext<'_>, bytes: Bytes) -> Result<VerbOutput, ApiError> {
    match Subresource::from_name(&call.request.subresource) {
        Some(subresource) => verbs::apply(call, subresource, bytes).await,
        None if call.request.subresource == "scale" => scale::apply(call, &bytes).await,
        None => Err(ApiError::method_not_allowed()),
    }
}

/// The body of a request with an object, and its format.
fn object_body(
    call: &RequestContext<'_>,
    request: Request<Bytes>,
) -> Result<(Bytes, Format), ApiError> {
    let server = call.server;
    let encoding = negotiate::body_encoding(request.headers(), server.names);
    let encoding = encoding.ok_or_else(|| unsupported(server))?;
    let whole = call.request.subresource != "scale" && call.kind.custom().is_some();
    if whole && encoding == Encoding::Protobuf {
        return Err(ApiError::unsupported_media_type(&["application/json", "application/yaml"]));
    }
    Ok((request.into_body(), format(encoding)))
}

fn format(encoding: Encoding) -> Format {
    match encoding {
        Encoding::Json => Format::Json,
        Encoding::Yaml => Format::Yaml,
        Encoding::Protobuf => Format::Protobuf,
    }
}

fn unsupported(server: &Server) -> ApiError {
    let protobuf = server.names.protobuf_media_type();
    ApiError::unsupported_media_type(&["application/json", "application/yaml", protobuf])
}

/// The type of a patch; `None` for an apply.
fn patch_type(
    call: &RequestContext<'_>,
    request: &Request<Bytes>,
) -> Result<Option<PatchType>, ApiError> {
    const SERVED: [&str; 4] = [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ];
    // Custom objects have no merge keys.
    if call.kind.custom().is_some()
        && !matches!(
            negotiate::patch_kind(request.headers()),
            Some(PatchKind::Json | PatchKind::Merge | PatchKind::Apply)
        )
    {
        let [json, merge, _, apply] = SERVED;
        return Err(ApiError::unsupported_media_type(&[json, merge, apply]));
    }
    match negotiate::patch_kind(request.headers()) {
        Some(PatchKind::Json) => Ok(Some(PatchType::Json)),
        Some(PatchKind::Merge) => Ok(Some(PatchType::Merge)),
        Some(PatchKind::Strategic) => Ok(Some(PatchType::Strategic)),
        Some(PatchKind::Apply) => Ok(None),
        _ => Err(ApiError::unsupported_media_type(&SERVED)),
    }
}

/// Records a patch as it was sent, and an applied object as JSON.
fn record_patch(call: &RequestContext<'_>, kind: Option<PatchType>, body: &[u8]) {
    if !call.audit.records_requests() {
        return;
    }
    if kind.is_some() {
        return call.audit.set_request_object(body);
    }
    let (engine, ignore) = (&call.server.engine, Strictness::Ignore);
    let kind = match call.request.subresource.as_str() {
        "scale" => engine.kind("autoscaling", "v1", "Scale"),
        _ => Some(&call.requested_version),
    };
    let applied = kind.map(|kind| engine.decode(kind, Format::Yaml, body, ignore));
    if let Some(Ok(applied)) = applied {
        call.audit.set_request_object(&engine.encode_json(&applied.object));
    }
}

/// Reads `DeleteOptions` from the body, in any encoding; empty for an empty body.
fn delete_options(call: &RequestContext<'_>, request: Request<Bytes>) -> Result<Map, ApiError> {
    let server = call.server;
    let encoding = negotiate::body_encoding(request.headers(), server.names);
    let bytes = request.into_body();
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    let format = format(encoding.ok_or_else(|| unsupported(server))?);
    let kind = server.engine.kind("", "v1", "DeleteOptions");
    let kind = kind.ok_or_else(|| apiserver_core::server::missing_kind("DeleteOptions"))?;
    let decoded = server.engine.decode(kind, format, &bytes, Strictness::Ignore);
    let decoded = decoded.map_err(|error| ApiError::bad_request(error.to_string()))?;
    if call.audit.records_requests() {
        call.audit.set_request_object(&server.engine.encode_json(&decoded.object));
    }
    Ok(decoded.object.fields)
}
