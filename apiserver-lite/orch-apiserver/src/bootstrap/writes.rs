//! Writes of bootstrap objects by the server's own user.

use apiserver_auth::User;
use apiserver_core::context::RequestContext;
use apiserver_core::options::Effects;
use apiserver_core::request::{Accepted, Encoding, Query, Representation, RequestInfo, Verb};
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use apiserver_core::verbs;
use apiserver_schema::{Format, Strictness};
use serde_json::Value;

/// A bootstrap object cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write bootstrap object {what}")]
pub struct EnsureError {
    /// Resource and name of the object.
    pub what: String,
    /// The API error of the write.
    pub source: ApiError,
}

/// Creates an object unless it exists. `object` is its JSON without `apiVersion` and `kind`.
///
/// # Errors
/// It is not there and cannot be created.
pub async fn create_if_missing(
    server: &Server,
    group: &str,
    resource: &str,
    object: Value,
) -> Result<(), EnsureError> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    let exists = || server.find_in(group, resource, text("namespace"), text("name")).is_some();
    if exists() {
        return Ok(());
    }
    let Err(source) = create(server, group, resource, &object).await else { return Ok(()) };
    // A server that starts at the same time may have created it: then the name is refused, or before that the address of its Service.
    if server.store.sync().await.is_ok() && exists() {
        return Ok(());
    }
    Err(EnsureError { what: format!("{resource} {}", text("name")), source })
}

/// Creates an object, or replaces it when `ports`, `addressType` or `field` differ.
pub async fn create_or_replace(
    server: &Server,
    group: &str,
    resource: &str,
    object: Value,
    field: &str,
) -> Result<(), EnsureError> {
    let (namespace, name) = (&object["metadata"]["namespace"], &object["metadata"]["name"]);
    let found = server.find_in(
        group,
        resource,
        namespace.as_str().unwrap_or_default(),
        name.as_str().unwrap_or_default(),
    );
    let Some(found) = found else {
        return create_if_missing(server, group, resource, object).await;
    };
    let current: Value = serde_json::from_slice(found.json(&server.engine)).unwrap_or_default();
    let differs =
        ["addressType", "ports", field].iter().any(|field| object.get(field) != current.get(field));
    if !differs {
        return Ok(());
    }
    let what = format!("{resource} {name}");
    let failed = |source| EnsureError { what: what.clone(), source };
    let (request, query) =
        (request(server, group, resource, &object, Verb::Update), Query::default());
    let call = call(server, &request, &query).map_err(failed)?;
    let body = bytes::Bytes::from(object.to_string());
    let main = apiserver_schema::update::Subresource::Main;
    verbs::update(&call, main, body, Format::Json).await.map(drop).map_err(failed)
}

pub async fn create(
    server: &Server,
    group: &str,
    resource: &str,
    object: &Value,
) -> Result<(), ApiError> {
    let (request, query) =
        (request(server, group, resource, object, Verb::Create), Query::default());
    let call = call(server, &request, &query)?;
    let text = object.to_string();
    let decoded =
        server.engine.decode(&call.kind, Format::Json, text.as_bytes(), Strictness::Strict);
    let decoded = decoded.map_err(ApiError::internal)?;
    verbs::create_object(&call, decoded.object, Effects::Real).await.map(drop)
}

pub fn request(
    server: &Server,
    group: &str,
    resource: &str,
    object: &Value,
    verb: Verb,
) -> RequestInfo {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    RequestInfo {
        verb,
        group: server.names.group(group),
        version: "v1".to_owned(),
        namespace: text("namespace"),
        resource: resource.to_owned(),
        subresource: String::new(),
        name: if verb == Verb::Create { String::new() } else { text("name") },
        rest: String::new(),
    }
}

pub fn call<'a>(
    server: &'a Server,
    request: &'a RequestInfo,
    query: &'a Query,
) -> Result<RequestContext<'a>, ApiError> {
    let kind = server.engine.resource(&request.group, &request.version, &request.resource);
    let kind =
        kind.cloned().ok_or_else(|| apiserver_core::server::missing_kind(&request.resource))?;
    let accepted = Accepted { encoding: Encoding::Json, representation: Representation::Object };
    Ok(RequestContext {
        server,
        request,
        requested_version: kind.clone(),
        kind,
        user: server_user(),
        user_agent: "orch-apiserver",
        query,
        accepted,
        notes: None,
        audit: &apiserver_audit::OFF,
    })
}

/// The user of the server's own writes.
fn server_user() -> &'static User {
    static USER: std::sync::OnceLock<User> = std::sync::OnceLock::new();
    USER.get_or_init(User::server)
}
