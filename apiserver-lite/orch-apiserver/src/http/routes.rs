//! From a path to what is asked of which resource.
//!
//! One parse serves both routing and authorization: the handler acts on exactly the attributes that were authorized.
//! What does not parse here does not exist.

use http::Method;

use crate::request::{Query, RequestInfo, Verb, decode_percent as decode};
use crate::status::ApiError;

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An object, a collection or a subresource.
    Resource(RequestInfo),
    /// Everything else: discovery, health, metrics, OpenAPI.
    NonResource(String),
}

/// Segments of a path that are looked at; only proxied paths are longer.
const SEGMENTS_MAX: usize = 64;

/// Subresources of a namespace itself; any other word in that place is a resource inside the namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

/// Parses method, path and query.
///
/// # Errors
/// 404 for paths of no known shape, 405 for methods that no resource has, 400 for names that cannot be names.
pub fn parse(method: &Method, path: &str, query: &Query) -> Result<Target, ApiError> {
    let mut segments = path.trim_start_matches('/').splitn(SEGMENTS_MAX, '/');
    let root = segments.next().unwrap_or_default();
    let (group, version) = match root {
        "api" => (String::new(), segments.next()),
        "apis" => (decode(segments.next().unwrap_or_default()), segments.next()),
        _ => return Ok(Target::NonResource(path.to_owned())),
    };
    let rest: Vec<&str> = segments.collect();
    let (Some(version), Some(_)) =
        (version.filter(|v| !v.is_empty()), rest.first().filter(|r| !r.is_empty()))
    else {
        return Ok(Target::NonResource(path.to_owned()));
    };
    let parsed = ResourcePath::parse(&rest)?;
    let verb = verb(method, &parsed, query)?;
    Ok(Target::Resource(RequestInfo {
        verb,
        group,
        version: decode(version),
        namespace: parsed.namespace,
        resource: parsed.resource,
        subresource: parsed.subresource,
        name: parsed.name,
        rest: parsed.rest,
    }))
}

#[derive(Default)]
struct ResourcePath {
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
    rest: String,
}

impl ResourcePath {
    fn parse(segments: &[&str]) -> Result<Self, ApiError> {
        let (namespace, tail) = match segments {
            ["namespaces", namespace, resource, ..]
                if !resource.is_empty() && !NAMESPACE_SUBRESOURCES.contains(resource) =>
            {
                (component(namespace)?, segments.get(2..).unwrap_or_default())
            }
            _ => (String::new(), segments),
        };
        let part = |index: usize| tail.get(index).map_or(Ok(String::new()), |text| component(text));
        let mut parsed = Self {
            namespace,
            resource: part(0)?,
            name: part(1)?,
            subresource: part(2)?,
            rest: String::new(),
        };
        if parsed.resource == "namespaces" && parsed.namespace.is_empty() {
            // Requests about a namespace are authorized inside it.
            parsed.namespace.clone_from(&parsed.name);
        }
        let further = tail.get(3..).unwrap_or_default();
        match (parsed.subresource.as_str(), further) {
            ("proxy", further) => {
                parsed.rest = further.iter().map(|text| format!("/{text}")).collect()
            }
            (_, [] | [""]) => {}
            _ => return Err(ApiError::no_such_resource()),
        }
        Ok(parsed)
    }
}

/// One decoded segment. A slash or a dot path hidden in an escape never becomes one.
fn component(text: &str) -> Result<String, ApiError> {
    let text = decode(text);
    if text.contains('/') || text == "." || text == ".." || text.contains('\0') {
        return Err(ApiError::bad_request(format!("invalid path segment {text:?}")));
    }
    Ok(text)
}

fn verb(method: &Method, path: &ResourcePath, query: &Query) -> Result<Verb, ApiError> {
    let collection = path.name.is_empty();
    Ok(match *method {
        Method::GET | Method::HEAD if path.subresource.is_empty() && query.flag("watch") => {
            Verb::Watch
        }
        Method::GET | Method::HEAD if collection => Verb::List,
        Method::GET | Method::HEAD => Verb::Get,
        Method::POST => Verb::Create,
        Method::PUT | Method::PATCH if collection => return Err(ApiError::method_not_allowed()),
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if collection => Verb::DeleteCollection,
        Method::DELETE => Verb::Delete,
        // Proxied requests may use any method; the others are served nowhere.
        Method::OPTIONS if path.subresource == "proxy" => Verb::Get,
        _ => return Err(ApiError::method_not_allowed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(method: Method, uri: &str, expect: &str) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let shown = match parse(&method, path, &Query::parse(query)) {
            Ok(Target::Resource(r)) => format!(
                "{} {}/{} ns={} {}/{} name={} rest={}",
                r.verb.as_str(),
                r.group,
                r.version,
                r.namespace,
                r.resource,
                r.subresource,
                r.name,
                r.rest
            ),
            Ok(Target::NonResource(path)) => format!("path {path}"),
            Err(error) => format!("error {}", error.code()),
        };
        assert_eq!(shown, expect, "{method} {uri}");
    }

    #[test]
    fn resources() {
        let get = || Method::GET;
        check(get(), "/api/v1/pods", "list /v1 ns= pods/ name= rest=");
        check(get(), "/api/v1/pods?watch=1", "watch /v1 ns= pods/ name= rest=");
        check(get(), "/api/v1/pods?watch=false", "list /v1 ns= pods/ name= rest=");
        check(get(), "/api/v1/namespaces/a/pods/b", "get /v1 ns=a pods/ name=b rest=");
        check(get(), "/api/v1/namespaces/a/pods/b/log", "get /v1 ns=a pods/log name=b rest=");
        check(get(), "/api/v1/namespaces/a", "get /v1 ns=a namespaces/ name=a rest=");
        check(get(), "/api/v1/namespaces/a/status", "get /v1 ns=a namespaces/status name=a rest=");
        check(get(), "/api/v1/namespaces", "list /v1 ns= namespaces/ name= rest=");
        check(get(), "/apis/apps/v1/deployments", "list apps/v1 ns= deployments/ name= rest=");
        check(
            Method::PUT,
            "/api/v1/namespaces/a/finalize",
            "update /v1 ns=a namespaces/finalize name=a rest=",
        );
        check(
            Method::DELETE,
            "/api/v1/namespaces/a/pods",
            "deletecollection /v1 ns=a pods/ name= rest=",
        );
        check(
            Method::POST,
            "/api/v1/namespaces/a/pods/b/exec",
            "create /v1 ns=a pods/exec name=b rest=",
        );
        check(
            get(),
            "/api/v1/nodes/n/proxy/stats/summary",
            "get /v1 ns= nodes/proxy name=n rest=/stats/summary",
        );
        check(
            get(),
            "/api/v1/namespaces/a/services/https:web:443/proxy/",
            "get /v1 ns=a services/proxy name=https:web:443 rest=/",
        );
    }

    #[test]
    fn everything_else() {
        check(Method::GET, "/healthz", "path /healthz");
        check(Method::GET, "/apis", "path /apis");
        check(Method::GET, "/apis/apps", "path /apis/apps");
        check(Method::GET, "/apis/apps/v1", "path /apis/apps/v1");
        check(Method::GET, "/api/v1/", "path /api/v1/");
        check(Method::GET, "/api/v1/namespaces/a/pods/..%2fb", "error 400");
        check(Method::GET, "/api/v1/namespaces/../pods", "error 400");
        check(Method::GET, "/api/v1/namespaces/a/pods/b/log/c", "error 404");
        check(Method::TRACE, "/api/v1/pods", "error 405");
    }

    proptest! {
        #[test]
        fn names_never_hold_a_path(path in "/(api|apis/a)/v1(/(namespaces|pods|[a-z%./\\\\0-9A-F]{0,6})){0,6}") {
            if let Ok(Target::Resource(request)) = parse(&Method::GET, &path, &Query::default()) {
                for part in [&request.namespace, &request.name, &request.resource, &request.subresource] {
                    prop_assert!(!part.contains('/') && part != "..", "{part}");
                }
            }
        }

        #[test]
        fn any_path_is_answered(path in ".{0,80}", query in ".{0,80}") {
            let _ = parse(&Method::POST, &path, &Query::parse(&query));
        }
    }
}
