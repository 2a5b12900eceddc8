//! Parses paths into resource requests.
//!
//! Routing and authorization use the same parsed value, so the attributes that were authorized are those that are acted on.
//! A path that does not parse here is a 404.

use apiserver_core::request::{Query, RequestInfo, Verb};
use apiserver_core::status::ApiError;
use http::Method;

use proto_api::uri::decode;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An object, a collection or a subresource.
    Resource(RequestInfo),
    /// Everything else: discovery, health, metrics, OpenAPI.
    NonResource(String),
}

/// Most path segments that are split; only proxied paths are longer.
const SEGMENTS_MAX: usize = 64;

/// Subresources of a namespace itself; any other segment in that position is a resource inside the namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

/// Parses method, path and query of a request.
///
/// # Errors
/// 404 for unknown subpaths, 405 for methods that no resource supports, 400 for invalid path segments.
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
    let parsed = ResourcePath::parse(&rest, !group.is_empty())?;
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
    /// `deeper` paths than a subresource's are those of other API servers: here nothing lies there.
    fn parse(segments: &[&str], deeper: bool) -> Result<Self, ApiError> {
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
            // As in Kubernetes, a request for a namespace is authorized in that namespace.
            parsed.namespace.clone_from(&parsed.name);
        }
        let further = tail.get(3..).unwrap_or_default();
        match (parsed.subresource.as_str(), further) {
            ("proxy", further) => {
                parsed.rest = further.iter().map(|text| format!("/{text}")).collect()
            }
            (_, [] | [""]) => {}
            (subresource, further)
                if deeper && !parsed.name.is_empty() && !subresource.is_empty() =>
            {
                let further = further.iter().map(|text| Ok(format!("/{}", component(text)?)));
                parsed.rest = further.collect::<Result<String, ApiError>>()?;
            }
            _ => return Err(ApiError::no_such_resource()),
        }
        Ok(parsed)
    }
}

/// Decodes one segment. Escaped slashes and dot segments are refused.
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
        // OPTIONS is served for proxied requests only.
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
        check(get(), "/api/v1/namespaces/a/pods/b?watch", "watch /v1 ns=a pods/ name=b rest=");
        check(Method::HEAD, "/api/v1/pods", "list /v1 ns= pods/ name= rest=");
        check(Method::HEAD, "/api/v1/namespaces/a/pods/b", "get /v1 ns=a pods/ name=b rest=");
        check(Method::POST, "/api/v1/namespaces/a/pods", "create /v1 ns=a pods/ name= rest=");
        check(Method::PATCH, "/api/v1/namespaces/a/pods/b", "patch /v1 ns=a pods/ name=b rest=");
        check(Method::DELETE, "/api/v1/namespaces/a/pods/b", "delete /v1 ns=a pods/ name=b rest=");
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
    fn paths_of_other_servers_may_be_deeper() {
        let deep = "/apis/a.com/v1/namespaces/n/things/t/portforward/80";
        check(Method::GET, deep, "get a.com/v1 ns=n things/portforward name=t rest=/80");
        check(Method::GET, &format!("{deep}/%2e%2e"), "error 400");
        check(Method::GET, "/apis/a.com/v1/namespaces/n/things//x/y", "error 404");
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
