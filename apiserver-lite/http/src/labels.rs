//! Metric labels of a request. All values come from closed sets, so that clients cannot create new time series.

use apiserver_core::request::{RequestInfo, Verb};
use apiserver_core::server::Server;
use http::Method;

use super::routes::RequestTarget;

/// Class of a request for the in-flight limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    ReadOnly,
    /// It changes something.
    Mutating,
    /// It streams.
    LongRunning,
}

impl RequestKind {
    /// The name in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "readOnly",
            Self::Mutating => "mutating",
            Self::LongRunning => "longRunning",
        }
    }
}

/// Labels of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Verb in upper case.
    pub verb: &'static str,
    /// Group of the resource; like the next three, empty for a resource that is not served.
    pub group: String,
    /// Version of the resource.
    pub version: String,
    /// Plural name of the resource.
    pub resource: String,
    pub subresource: String,
    /// `namespace`, `cluster` or `resource`.
    pub scope: &'static str,
    /// Whether the response is a stream, by path and query.
    pub is_stream: bool,
}

impl Labels {
    /// Labels of a request to `target`; `None` for one that could not be parsed.
    #[must_use]
    pub fn new(server: &Server, method: &Method, target: Option<&RequestTarget>) -> Self {
        let Some(RequestTarget::Resource(r)) = target else {
            return Self { verb: method_label(method), ..Self::default() };
        };
        let (verb, is_stream) = (verb_label(r.verb), is_stream(r));
        let kind = server.resource(&r.group, &r.version, &r.resource);
        let Some(kind) = kind else { return Self { verb, is_stream, ..Self::default() } };
        let scope = match (r.name.is_empty(), r.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        Self {
            verb,
            group: r.group.clone(),
            version: r.version.clone(),
            resource: r.resource.clone(),
            subresource: kind
                .verbs(&r.subresource)
                .map_or("", |_| r.subresource.as_str())
                .to_owned(),
            scope,
            is_stream,
        }
    }

    /// Class of the request for the in-flight limits.
    #[must_use]
    pub fn kind(&self) -> RequestKind {
        match self.verb {
            _ if self.is_stream => RequestKind::LongRunning,
            "GET" | "LIST" => RequestKind::ReadOnly,
            _ => RequestKind::Mutating,
        }
    }
}

/// Whether a request may last: the watches and subresources that Kubernetes calls long-running, of whatever group.
fn is_stream(request: &RequestInfo) -> bool {
    let of = request.subresource.as_str();
    request.verb == Verb::Watch || matches!(of, "proxy" | "exec" | "attach" | "portforward" | "log")
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}

fn verb_label(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create => "POST",
        Verb::Update => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
    }
}
