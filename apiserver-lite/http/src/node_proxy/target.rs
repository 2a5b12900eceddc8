//! Finds the target of a proxied request: host, port and path. They come from stored objects, except for the path of `proxy`.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::fmt::Write as _;

use apiserver_core::aggregation::Backend;
use apiserver_core::dial_policy::DialScope;
use apiserver_core::registry::pods;
use apiserver_core::request::{Query, RequestInfo};
use apiserver_core::server::Server;
use apiserver_core::service_endpoints::endpoints_of;
use apiserver_core::status::{ApiError, StatusTarget};
use apiserver_core::subresources::logs;
use apiserver_schema::Object;
use proto_api::uri;

/// The target of a proxied request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTarget {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// Which credentials it gets.
    pub trust: Trust,
    /// Which addresses may be dialed.
    pub scope: DialScope,
    /// IP address or host name.
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
}

/// Scheme of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Plain TCP.
    Http,
    /// TLS.
    Https,
}

/// Kind of server at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A kubelet, which gets this server's client certificate.
    Kubelet,
    /// A pod, or another port of a node, which gets no credentials.
    Workload,
    /// Another API server, which gets the client certificate of authenticating proxies.
    ApiServer(Box<Backend>),
}

/// Port of kubelets whose node does not report one.
const KUBELET_PORT: u16 = 10250;

impl ProxyTarget {
    /// `host:port`, brackets around an IPv6 address.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Finds the target of a request; `None` for logs of a pod without a node, which has none yet. `raw_query` is forwarded unchanged to workloads and kubelet
/// pages.
///
/// # Errors
/// 404 for missing objects, 400 for pods without a node and unknown containers, 503 for nodes and pods without an address and
/// Services without endpoints.
pub fn find(
    server: &Server,
    request: &RequestInfo,
    query: &Query,
    raw_query: &str,
) -> Result<Option<ProxyTarget>, ApiError> {
    match (request.resource.as_str(), request.subresource.as_str()) {
        ("nodes", _) => node_proxy(server, request, raw_query).map(Some),
        ("pods", "proxy") => pod_proxy(server, request, raw_query).map(Some),
        ("services", _) => service_proxy(server, request, raw_query).map(Some),
        ("pods", action) => pod_action(server, request, action, query),
        _ => Err(ApiError::no_such_resource()),
    }
}

fn node_proxy(
    server: &Server,
    request: &RequestInfo,
    raw_query: &str,
) -> Result<ProxyTarget, ApiError> {
    let (scheme, name, port) = parse_target(&request.name)?;
    let kubelet = kubelet_of(server, name)?;
    let path = with_query(proxy_path(request), raw_query);
    let port = if port.is_empty() { kubelet.port } else { number("node", request, port)? };
    if port == kubelet.port {
        return Ok(ProxyTarget { scope: DialScope::Routable, path, ..kubelet });
    }
    let trust = Trust::Workload;
    Ok(ProxyTarget { scheme, trust, scope: DialScope::Routable, host: kubelet.host, port, path })
}

/// The kubelet of the node `name`.
///
/// # Errors
/// 404 for a missing node, 503 for one without an address.
pub fn kubelet_of(server: &Server, name: &str) -> Result<ProxyTarget, ApiError> {
    let about = StatusTarget { group: "", kind: "nodes", name };
    let found = server.find_in("", "nodes", "", name).ok_or_else(|| ApiError::not_found(about))?;
    let object = found.object();
    let status = object.status().cloned().unwrap_or_default();
    let address = |kind: &str| {
        let mut of_kind = status.maps("addresses").filter(|address| address.str("type") == kind);
        of_kind.next().map(|address| address.str("address").to_owned())
    };
    let host = ["InternalIP", "ExternalIP", "Hostname"].iter().find_map(|kind| address(kind));
    let host =
        host.ok_or_else(|| ApiError::unavailable(format!("node {name:?} has no address")))?;
    let port = object.fields.at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]);
    let port =
        port.and_then(apiserver_schema::Value::as_int).and_then(|port| u16::try_from(port).ok());
    let port = port.filter(|port| *port != 0).unwrap_or(KUBELET_PORT);
    Ok(ProxyTarget {
        scheme: Scheme::Https,
        trust: Trust::Kubelet,
        scope: DialScope::Kubelet,
        host,
        port,
        path: String::new(),
    })
}

/// Parses a port number given by the client.
fn number(what: &str, request: &RequestInfo, port: &str) -> Result<u16, ApiError> {
    let parsed = port.parse().ok().filter(|number: &u16| *number != 0);
    parsed.ok_or_else(|| {
        ApiError::bad_request(format!(
            "invalid {what} request {:?}: port {port:?} is not a number between 1 and 65535",
            request.name
        ))
    })
}

fn pod(server: &Server, namespace: &str, name: &str) -> Result<Object, ApiError> {
    let about = StatusTarget { group: "", kind: "pods", name };
    let found =
        server.find_in("", "pods", namespace, name).ok_or_else(|| ApiError::not_found(about))?;
    Ok(found.object().clone())
}

fn pod_action(
    server: &Server,
    request: &RequestInfo,
    action: &str,
    query: &Query,
) -> Result<Option<ProxyTarget>, ApiError> {
    let pod = pod(server, &request.namespace, &request.name)?;
    let (namespace, name) = (&request.namespace, &request.name);
    if action == "log" {
        logs::check(query, name)?;
    }
    let container = match action {
        "portforward" => String::new(),
        _ => container(&pod, query)?,
    };
    let node_name = pod.str_at(&["spec", "nodeName"]);
    if node_name.is_empty() {
        if action == "log" {
            return Ok(None);
        }
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let mut kubelet = kubelet_of(server, node_name)?;
    kubelet.path = match action {
        "log" => {
            with_query(format!("/containerLogs/{namespace}/{name}/{container}"), &log_query(query))
        }
        "exec" => with_query(format!("/exec/{namespace}/{name}/{container}"), &stream_query(query)),
        "attach" => {
            with_query(format!("/attach/{namespace}/{name}/{container}"), &stream_query(query))
        }
        _ => with_query(format!("/portForward/{namespace}/{name}"), &port_query(query)),
    };
    Ok(Some(kubelet))
}

/// The requested container: the one named in the query, or the only one.
fn container(pod: &Object, query: &Query) -> Result<String, ApiError> {
    let name = pod.name();
    if let Some(container) = query.text("container") {
        if !pods::has_container(pod, container) {
            return Err(ApiError::bad_request(format!(
                "container {container} is not valid for pod {name}"
            )));
        }
        return Ok(container.to_owned());
    }
    let names = |list: &str| -> Vec<String> {
        let containers =
            pod.spec().map(|spec| spec.maps(list).map(|map| map.str("name").to_owned()).collect());
        containers.unwrap_or_default()
    };
    let (init, main) = (names("initContainers"), names("containers"));
    match main.as_slice() {
        [only] => Ok(only.clone()),
        many => {
            let mut text = format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                many.join(" ")
            );
            if !init.is_empty() {
                let _ = write!(text, " or one of the init containers: [{}]", init.join(" "));
            }
            Err(ApiError::bad_request(text))
        }
    }
}

/// Query of a log request to the kubelet; the parameters have the same names.
fn log_query(query: &Query) -> String {
    const PASSED: [&str; 7] = [
        "follow",
        "previous",
        "sinceSeconds",
        "sinceTime",
        "timestamps",
        "tailLines",
        "limitBytes",
    ];
    let pairs =
        PASSED.iter().filter_map(|name| query.text(name).map(|value| (*name, value.to_owned())));
    join(pairs)
}

/// Query of exec and attach; the kubelet has other names for the streams.
fn stream_query(query: &Query) -> String {
    let streams = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
    let flags = streams
        .iter()
        .filter(|(client, _)| query.flag(client))
        .map(|(_, kubelet)| (*kubelet, "1".to_owned()));
    join(query.all("command").map(|word| ("command", word.to_owned())).chain(flags))
}

fn port_query(query: &Query) -> String {
    let ports = query.all("ports").chain(query.all("port")).flat_map(|value| value.split(','));
    join(ports.map(|port| ("port", port.to_owned())))
}

fn join<'a>(pairs: impl Iterator<Item = (&'a str, String)>) -> String {
    let pairs: Vec<String> = pairs
        .map(|(name, value)| format!("{name}={}", uri::encode(&value, uri::COMPONENT)))
        .collect();
    pairs.join("&")
}

fn with_query(path: String, query: &str) -> String {
    if query.is_empty() { path } else { format!("{path}?{query}") }
}

/// The path behind the subresource `proxy`, at least `/`.
fn proxy_path(request: &RequestInfo) -> String {
    if request.rest.is_empty() { "/".to_owned() } else { request.rest.clone() }
}

/// The request path up to and including the subresource `proxy`: the target's root for the client.
pub fn prefix<'a>(path: &'a str, request: &RequestInfo) -> &'a str {
    // `/api/v1/namespaces/NS/pods/NAME/proxy`, or `/api/v1/nodes/NAME/proxy`.
    let slashes_before = if request.namespace.is_empty() { 5 } else { 7 };
    let end = path.match_indices('/').nth(slashes_before).map_or(path.len(), |(at, _)| at);
    path.get(..end).unwrap_or(path)
}

/// `name`, `name:port` or `scheme:name:port`.
fn parse_target(text: &str) -> Result<(Scheme, &str, &str), ApiError> {
    let bad = || ApiError::bad_request(format!("invalid proxy target {text:?}"));
    match *text.split(':').collect::<Vec<_>>().as_slice() {
        [name] => Ok((Scheme::Http, name, "")),
        [name, port] => Ok((Scheme::Http, name, port)),
        ["http" | "", name, port] => Ok((Scheme::Http, name, port)),
        ["https", name, port] => Ok((Scheme::Https, name, port)),
        _ => Err(bad()),
    }
}

fn pod_proxy(
    server: &Server,
    request: &RequestInfo,
    raw_query: &str,
) -> Result<ProxyTarget, ApiError> {
    let (scheme, name, port) = parse_target(&request.name)?;
    let pod = pod(server, &request.namespace, name)?;
    let named = || {
        let spec = pod.spec()?;
        let ports = spec.maps("containers").flat_map(|container| container.maps("ports"));
        let mut ports = ports.filter(|row| port.is_empty() || row.str("name") == port);
        ports.next()?.int("containerPort").and_then(|port| u16::try_from(port).ok())
    };
    let port = match named() {
        Some(port) => port,
        None if port.is_empty() && scheme == Scheme::Https => 443,
        None if port.is_empty() => 80,
        None => number("pod", request, port)?,
    };
    let host = pod.str_at(&["status", "podIP"]).to_owned();
    if host.is_empty() {
        return Err(ApiError::unavailable(format!("pod {name:?} has no address")));
    }
    Ok(ProxyTarget {
        scheme,
        trust: Trust::Workload,
        scope: DialScope::Routable,
        host,
        port,
        path: with_query(proxy_path(request), raw_query),
    })
}

fn service_proxy(
    server: &Server,
    request: &RequestInfo,
    raw_query: &str,
) -> Result<ProxyTarget, ApiError> {
    let (scheme, name, port) = parse_target(&request.name)?;
    let mut endpoints = endpoints_of(server, &request.namespace, name, port)?.into_iter();
    let none = || ApiError::unavailable(format!("no endpoints available for service {name:?}"));
    let (host, port) = endpoints.next().ok_or_else(none)?;
    let path = with_query(proxy_path(request), raw_query);
    let trust = Trust::Workload;
    Ok(ProxyTarget { scheme, trust, scope: DialScope::Routable, host, port, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_parameters_are_renamed() {
        let query = Query::parse(
            "command=sh&command=-c&command=echo+a%26b&stdin=true&stdout=1&stderr=false&tty=true",
        );
        assert_eq!(
            stream_query(&query),
            "command=sh&command=-c&command=echo%20a%26b&input=1&output=1&tty=1"
        );
        assert_eq!(
            log_query(&Query::parse("container=c&follow=true&tailLines=5&x=y")),
            "follow=true&tailLines=5"
        );
        assert_eq!(port_query(&Query::parse("ports=80,443")), "port=80&port=443");
    }

    #[test]
    fn targets() {
        assert_eq!(parse_target("web").unwrap(), (Scheme::Http, "web", ""));
        assert_eq!(parse_target("web:80").unwrap(), (Scheme::Http, "web", "80"));
        assert_eq!(parse_target("https:web:443").unwrap(), (Scheme::Https, "web", "443"));
        assert!(parse_target("ftp:web:21").is_err());
        assert!(parse_target("a:b:c:d").is_err());
    }
}
