//! Bootstrap objects: namespaces, priority classes, and the Service, Endpoints and EndpointSlice of the API server.

use apiserver_core::auth::User;
use apiserver_core::config::advertised;
use apiserver_core::context::RequestContext;
use apiserver_core::options::Effects;
use apiserver_core::request::{Accepted, Encoding, Query, Representation, RequestInfo, Verb};
use apiserver_core::server::Server;
use apiserver_core::services::ServiceRange as _;
use apiserver_core::status::ApiError;
use apiserver_core::verbs;
use apiserver_schema::{Format, Strictness};
use futures_util::future::{try_join, try_join_all, try_join3};
use serde_json::{Value, json};

/// A bootstrap object cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write bootstrap object {what}")]
pub struct BootstrapError {
    /// Resource and name of the object.
    what: String,
    /// The API error of the write.
    source: ApiError,
}

/// Creates the missing bootstrap objects and updates the API server's endpoints.
///
/// # Errors
/// [`BootstrapError`] with the object.
pub async fn run(server: &Server) -> Result<(), BootstrapError> {
    let names = server.names;
    let namespaces = [
        "default",
        names.system_namespace(),
        names.public_namespace(),
        names.node_lease_namespace(),
    ];
    let namespaces = namespaces.map(|name| json!({"metadata": {"name": name}}));
    let namespaces = namespaces.map(|object| create_if_missing(server, "", "namespaces", object));
    let classes = [
        (
            "system-cluster-critical",
            2_000_000_000,
            "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
        ),
        (
            "system-node-critical",
            2_000_001_000,
            "Used for system critical pods that must not be moved from their current node.",
        ),
    ];
    let classes = classes.map(|(name, value, description)| {
        let object =
            json!({"metadata": {"name": name}, "value": value, "description": description});
        create_if_missing(server, "scheduling", "priorityclasses", object)
    });
    // Concurrent writes share one sync of the log.
    try_join(try_join_all(namespaces), try_join_all(classes)).await?;
    own_service(server).await
}

/// The Service under which pods reach the API server, and its endpoints.
async fn own_service(server: &Server) -> Result<(), BootstrapError> {
    let name = server.names.api_service_name();
    let labels = json!({"component": "apiserver", "provider": name});
    let Some(range) = server.config.service_ranges.first() else { return Ok(()) };
    let service = json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": range.first_usable().to_string(),
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": server.config.bind.port()}],
        },
    });
    let service = create_if_missing(server, "", "services", service);
    let (address, port) = (advertised(&server.config), server.config.bind.port());
    if address.is_loopback() {
        // Pods cannot reach a loopback address: no endpoints.
        return service.await;
    }
    let skip = server.names.sub_label("endpointslice", "skip-mirror");
    let endpoints = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {skip: "true"}},
        "subsets": [{
            "addresses": [{"ip": address.to_string()}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    });
    let endpoints = create_or_replace(server, "", "endpoints", endpoints, "subsets");
    let of_service = server.names.label("service-name");
    let slice = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {of_service: name}},
        "addressType": if address.is_ipv6() { "IPv6" } else { "IPv4" },
        "endpoints": [{"addresses": [address.to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    let slice = create_or_replace(server, "discovery", "endpointslices", slice, "endpoints");
    try_join3(service, endpoints, slice).await.map(drop)
}

/// Creates an object unless it exists. `object` is its JSON without `apiVersion` and `kind`.
async fn create_if_missing(
    server: &Server,
    group: &str,
    resource: &str,
    object: Value,
) -> Result<(), BootstrapError> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    if server.find_in(group, resource, text("namespace"), text("name")).is_some() {
        return Ok(());
    }
    let what = format!("{resource} {}", text("name"));
    match create(server, group, resource, &object).await {
        Err(error) if error.code() != 409 => Err(BootstrapError { what, source: error }),
        _ => Ok(()),
    }
}

/// Creates an object, or replaces it when `ports`, `addressType` or `field` differ.
async fn create_or_replace(
    server: &Server,
    group: &str,
    resource: &str,
    object: Value,
    field: &str,
) -> Result<(), BootstrapError> {
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
    let failed = |source| BootstrapError { what: what.clone(), source };
    let (request, query) =
        (request(server, group, resource, &object, Verb::Update), Query::default());
    let call = call(server, &request, &query).map_err(failed)?;
    let body = bytes::Bytes::from(object.to_string());
    let main = apiserver_schema::update::Subresource::Main;
    verbs::update(&call, main, body, Format::Json).await.map(drop).map_err(failed)
}

async fn create(
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

fn request(
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

fn call<'a>(
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
        query,
        accepted,
    })
}

/// The user of the server's own writes.
fn server_user() -> &'static User {
    static USER: std::sync::OnceLock<User> = std::sync::OnceLock::new();
    USER.get_or_init(User::server)
}
