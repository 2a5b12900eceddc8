//! Bootstrap objects: namespaces, priority classes, the Service, Endpoints and EndpointSlice of the API server, and with the
//! authorization mode `RBAC` the roles and bindings of `apiserver-rbac`.

mod policy;
mod writes;

use apiserver_core::config::{AuthorizationMode, advertised};
use apiserver_core::server::Server;
use apiserver_core::server_addresses;
use apiserver_core::services::ServiceRange as _;
use futures_util::future::{try_join, try_join_all, try_join3};
use serde_json::{Value, json};

pub use writes::EnsureError;
use writes::{create_if_missing, create_or_replace};

/// The authorities of clients, in PEM, for servers that authenticate as this one does.
pub struct ClientAuthorities {
    /// Of users' certificates.
    pub clients: String,
    /// Of authenticating proxies; empty without any.
    pub proxies: String,
}

/// Creates the missing bootstrap objects, completes the roles of the bootstrap policy, and updates the API server's endpoints.
///
/// # Errors
/// [`EnsureError`] with the object.
pub async fn run(server: &Server) -> Result<(), EnsureError> {
    create_common_objects(server).await?;
    if server.config.authorization.contains(&AuthorizationMode::Rbac) {
        policy::reconcile(server).await?;
    }
    own_service(server).await
}

/// As [`run`], for a server that serves already. Roles and bindings stay as their administrators left them until the next start, as in Kubernetes.
///
/// # Errors
/// [`EnsureError`] with the object.
pub async fn restore(server: &Server) -> Result<(), EnsureError> {
    create_common_objects(server).await?;
    own_service(server).await
}

/// The namespaces and priority classes that every cluster has.
async fn create_common_objects(server: &Server) -> Result<(), EnsureError> {
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
    try_join(try_join_all(namespaces), try_join_all(classes)).await.map(drop)
}

/// Publishes how this server authenticates clients, for servers that delegate it: the ConfigMap that Kubernetes' libraries read.
///
/// # Errors
/// [`EnsureError`] with the object.
pub async fn publish_authentication(
    server: &Server,
    authorities: &ClientAuthorities,
) -> Result<(), EnsureError> {
    let mut data = serde_json::Map::new();
    if !authorities.clients.is_empty() {
        data.insert("client-ca-file".to_owned(), authorities.clients.as_str().into());
    }
    if let Some(proxy) = &server.config.request_headers {
        let list = |names: Vec<&str>| Value::from(json!(names).to_string());
        let named =
            |names: &[http::HeaderName]| list(names.iter().map(http::HeaderName::as_str).collect());
        let texts = |texts: &[String]| list(texts.iter().map(String::as_str).collect());
        let headers = &proxy.headers;
        data.extend([
            ("requestheader-client-ca-file".to_owned(), authorities.proxies.as_str().into()),
            ("requestheader-allowed-names".to_owned(), texts(&headers.allowed_names)),
            ("requestheader-username-headers".to_owned(), named(&headers.username)),
            ("requestheader-group-headers".to_owned(), named(&headers.group)),
            ("requestheader-extra-headers-prefix".to_owned(), texts(&headers.extra_prefix)),
        ]);
    }
    let metadata = json!({
        "name": "extension-apiserver-authentication",
        "namespace": server.names.system_namespace(),
    });
    let object = json!({"metadata": metadata, "data": data});
    create_or_replace(server, "", "configmaps", object, "data").await
}

/// The Service under which pods reach the API server, and its endpoints.
async fn own_service(server: &Server) -> Result<(), EnsureError> {
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
    let announced = Box::pin(server_addresses::announce(server)).await;
    let mut addresses = announced
        .map_err(|source| EnsureError { what: "the apiserver lease".to_owned(), source })?;
    addresses.retain(|other| other.is_ipv6() == address.is_ipv6());
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let ips: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    let ready = |address: &String| json!({"addresses": [address], "conditions": {"ready": true}});
    let ready: Vec<Value> = addresses.iter().map(ready).collect();
    let skip = server.names.sub_label("endpointslice", "skip-mirror");
    let endpoints = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {skip: "true"}},
        "subsets": [{
            "addresses": ips,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    });
    let endpoints = create_or_replace(server, "", "endpoints", endpoints, "subsets");
    let of_service = server.names.label("service-name");
    let slice = json!({
        "metadata": {"name": name, "namespace": "default", "labels": {of_service: name}},
        "addressType": if address.is_ipv6() { "IPv6" } else { "IPv4" },
        "endpoints": ready,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    });
    let slice = create_or_replace(server, "discovery", "endpointslices", slice, "endpoints");
    try_join3(service, endpoints, slice).await.map(drop)
}
