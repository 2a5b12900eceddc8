//! From a path to what is asked of which resource.
//!
//! One parse serves both routing and authorization: the handler acts on exactly the attributes that were authorized.
//! What does not parse here does not exist.

use http::Method;

use super::query::{Query, decode};
use crate::auth::Subject;
use crate::status::{About, ApiError};

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An object, a collection or a subresource.
    Resource(ResourceRequest),
    /// Everything else: discovery, health, metrics, OpenAPI.
    NonResource(String),
}

/// A request to a resource, as authorizers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// What is to be done.
    pub verb: Verb,
    /// API group as it stands in the path; empty for the core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace; empty for cluster-scoped resources and collections of all namespaces.
    pub namespace: String,
    /// Resource in the plural.
    pub resource: String,
    /// Subresource; empty for none.
    pub subresource: String,
    /// Object name; empty for collections.
    pub name: String,
    /// What follows the subresource `proxy`, with its leading slash as far as there is one.
    pub rest: String,
}

impl ResourceRequest {
    /// What authorizers decide about.
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        Subject::Resource {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }

    /// What statuses name.
    #[must_use]
    pub fn about(&self) -> About<'_> {
        About { group: &self.group, kind: &self.resource, name: &self.name }
    }
}

/// Verbs of resource requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read a collection.
    List,
    /// Follow a collection.
    Watch,
    /// Make an object, or use a subresource that acts.
    Create,
    /// Replace an object.
    Update,
    /// Change an object.
    Patch,
    /// Remove an object.
    Delete,
    /// Remove a collection's objects.
    DeleteCollection,
}

impl Verb {
    /// As authorizers and discovery spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
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
    let place = Place::parse(&rest)?;
    let verb = verb(method, &place, query)?;
    Ok(Target::Resource(ResourceRequest {
        verb,
        group,
        version: decode(version),
        namespace: place.namespace,
        resource: place.resource,
        subresource: place.subresource,
        name: place.name,
        rest: place.rest,
    }))
}

#[derive(Default)]
struct Place {
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
    rest: String,
}

impl Place {
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
        let mut place = Self {
            namespace,
            resource: part(0)?,
            name: part(1)?,
            subresource: part(2)?,
            rest: String::new(),
        };
        if place.resource == "namespaces" && place.namespace.is_empty() {
            // Requests about a namespace are authorized inside it.
            place.namespace.clone_from(&place.name);
        }
        let further = tail.get(3..).unwrap_or_default();
        match (place.subresource.as_str(), further) {
            ("proxy", further) => {
                place.rest = further.iter().map(|text| format!("/{text}")).collect()
            }
            (_, [] | [""]) => {}
            _ => return Err(ApiError::no_such_resource()),
        }
        Ok(place)
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

fn verb(method: &Method, place: &Place, query: &Query) -> Result<Verb, ApiError> {
    let collection = place.name.is_empty();
    Ok(match *method {
        Method::GET | Method::HEAD if place.subresource.is_empty() && query.flag("watch") => {
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
        Method::OPTIONS if place.subresource == "proxy" => Verb::Get,
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
