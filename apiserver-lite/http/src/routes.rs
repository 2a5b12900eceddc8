//! Parses paths into resource requests.
//!
//! Routing and authorization use the same parsed value, so the attributes that were authorized are those that are acted on.
//! A path that does not parse here is a 404.
//!
//! Each segment is decoded once, before it is looked at. Other API servers decode the whole path and split it then: a path that would be split otherwise
//! there is refused, and they get the one that [`canonical_path`] makes.

use apiserver_core::request::{Query, RequestInfo, Verb};
use apiserver_core::status::ApiError;
use http::Method;

use proto_api::uri::{COMPONENT, decode, encode};

/// What the path of a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// An object, a collection or a subresource.
    Resource(RequestInfo),
    /// Everything else: discovery, health, metrics, OpenAPI.
    NonResource(String),
}

/// Most path segments that are split; only proxied paths are longer.
const SEGMENTS_MAX: usize = 64;

/// Subresources of a namespace itself; any other segment in that position is a resource inside the namespace.
const NAMESPACE_SUBRESOURCES: [&str; 2] = ["status", "finalize"];

/// Parses method, path and query of a request. `is_elsewhere` says whether another API server serves a group and version.
///
/// # Errors
/// 404 for unknown subpaths, 405 for methods that no resource supports, 400 for invalid path segments.
pub fn parse(
    method: &Method,
    path: &str,
    query: &Query,
    is_elsewhere: impl FnOnce(&str, &str) -> bool,
) -> Result<RequestTarget, ApiError> {
    let non_resource = || Ok(RequestTarget::NonResource(path.to_owned()));
    let mut segments = path.trim_start_matches('/').splitn(SEGMENTS_MAX, '/');
    let (group, version) = match &*decode(segments.next().unwrap_or_default()) {
        "api" => (None, segments.next()),
        "apis" => (segments.next(), segments.next()),
        _ => return non_resource(),
    };
    let rest: Vec<&str> = segments.collect();
    let (Some(version), Some(_)) =
        (version.filter(|v| !v.is_empty()), rest.first().filter(|r| !r.is_empty()))
    else {
        return non_resource();
    };
    if group.is_some_and(str::is_empty) {
        return non_resource();
    }
    let group = group.map_or(Ok(String::new()), component)?;
    let version = component(version)?;
    let has_group = !group.is_empty();
    let parsed = ResourcePath::parse(&rest, has_group)?;
    let verb = verb(method, &parsed, query, has_group && is_elsewhere(&group, &version))?;
    Ok(RequestTarget::Resource(RequestInfo {
        verb,
        group,
        version,
        namespace: parsed.namespace,
        resource: parsed.resource,
        subresource: parsed.subresource,
        name: parsed.name,
        rest: parsed.rest,
    }))
}

/// The path of a request that was parsed, with its segments escaped in one way: whatever server reads it finds those that were authorized.
#[must_use]
pub fn canonical_path(path: &str) -> String {
    let path = path.trim_start_matches('/');
    if !path.contains('%') {
        return format!("/{path}");
    }
    let segments = path.split('/').map(|segment| encode(&decode(segment), COMPONENT));
    segments.map(|segment| format!("/{segment}")).collect()
}

/// What follows the version in a path.
#[derive(Default)]
struct ResourcePath {
    /// Whether it begins with `watch`, the older way to ask for a watch.
    is_watch: bool,
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
    rest: String,
}

impl ResourcePath {
    /// `deeper` paths than a subresource's are those of other API servers: here nothing lies there.
    fn parse(segments: &[&str], deeper: bool) -> Result<Self, ApiError> {
        let (is_watch, segments) = match &*component_at(segments, 0)? {
            "watch" => (true, segments.get(1..).unwrap_or_default()),
            // A verb of its own for authorizers, which no server serves any more.
            "proxy" => return Err(ApiError::no_such_resource()),
            _ => (false, segments),
        };
        let third = component_at(segments, 2)?;
        let is_inside = component_at(segments, 0)? == "namespaces"
            && !third.is_empty()
            && !NAMESPACE_SUBRESOURCES.contains(&&*third);
        let (namespace, tail) = match is_inside {
            true => (component_at(segments, 1)?, segments.get(2..).unwrap_or_default()),
            false => (String::new(), segments),
        };
        let mut parsed = Self {
            is_watch,
            namespace,
            resource: component_at(tail, 0)?,
            name: component_at(tail, 1)?,
            subresource: component_at(tail, 2)?,
            rest: String::new(),
        };
        if parsed.resource == "namespaces" && !is_inside {
            // As in Kubernetes, a request for a namespace is authorized in that namespace.
            parsed.namespace.clone_from(&parsed.name);
        }
        let is_whole = !parsed.resource.is_empty();
        let has_subresource = !parsed.subresource.is_empty();
        if !is_whole || has_subresource && (parsed.name.is_empty() || is_watch) {
            return Err(ApiError::no_such_resource());
        }
        parsed.rest = match (parsed.subresource.as_str(), tail.get(3..).unwrap_or_default()) {
            ("proxy", further) => join_segments(further, deeper)?,
            (_, [] | [""]) => String::new(),
            (_, further) if deeper && has_subresource => join_segments(further, deeper)?,
            _ => return Err(ApiError::no_such_resource()),
        };
        Ok(parsed)
    }
}

/// Decodes the segment at `index`; empty if there is none.
fn component_at(segments: &[&str], index: usize) -> Result<String, ApiError> {
    segments.get(index).map_or(Ok(String::new()), |text| component(text))
}

/// Decodes one segment. Dot segments are refused, and what means something else where a path is decoded as a whole or twice.
fn component(text: &str) -> Result<String, ApiError> {
    let decoded = decode(text);
    if is_dot_segment(&decoded) || decoded.contains(['/', '%', '\0', char::REPLACEMENT_CHARACTER]) {
        return Err(ApiError::bad_request(format!("invalid path segment {decoded:?}")));
    }
    Ok(decoded)
}

/// The path behind a subresource as it was sent. Where it may be that of another API server, segments that lead out of it are refused.
fn join_segments(further: &[&str], is_checked: bool) -> Result<String, ApiError> {
    let rest: String = further.iter().map(|text| format!("/{text}")).collect();
    let decoded = decode(&rest);
    let is_invalid = decoded.split('/').any(is_dot_segment)
        || decoded.contains(['\0', char::REPLACEMENT_CHARACTER]);
    if is_checked && is_invalid {
        return Err(ApiError::bad_request(format!("invalid path {decoded:?}")));
    }
    Ok(rest)
}

fn is_dot_segment(text: &str) -> bool {
    matches!(text, "." | "..")
}

/// `is_elsewhere`: Kubernetes' servers take a request for one object for a get, whatever its query says.
fn verb(
    method: &Method,
    path: &ResourcePath,
    query: &Query,
    is_elsewhere: bool,
) -> Result<Verb, ApiError> {
    let collection = path.name.is_empty();
    let may_watch = path.subresource.is_empty() && (collection || !is_elsewhere);
    Ok(match *method {
        Method::GET | Method::HEAD if path.is_watch => Verb::Watch,
        _ if path.is_watch => return Err(ApiError::method_not_allowed()),
        Method::GET | Method::HEAD if may_watch && query.flag("watch") => Verb::Watch,
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
    use proptest::sample::select;

    fn is_elsewhere(group: &str, _version: &str) -> bool {
        group == "a.com"
    }

    fn check(method: Method, uri: &str, expect: &str) {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let shown = match parse(&method, path, &Query::parse(query), is_elsewhere) {
            Ok(RequestTarget::Resource(r)) => format!(
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
            Ok(RequestTarget::NonResource(path)) => format!("path {path}"),
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
        check(Method::GET, "/apis//v1/pods", "path /apis//v1/pods");
        // Nothing but a resource is looked for in decoded segments.
        check(Method::GET, "/%68ealthz", "path /%68ealthz");
        check(Method::GET, "/apis/a.com/v1%2fthings", "path /apis/a.com/v1%2fthings");
    }

    #[test]
    fn segments_are_decoded_before_they_are_looked_at() {
        let team = "/apis/a.com/v1/namespaces/team/things";
        for (method, uri, expect) in [
            (
                Method::DELETE,
                "/apis/a.com/v1/n%61mespaces/team/things",
                "deletecollection a.com/v1 ns=team things/ name= rest=",
            ),
            (
                Method::DELETE,
                "/apis/a.com/v1/%6eamespaces/t%65am/things/t/",
                "delete a.com/v1 ns=team things/ name=t rest=",
            ),
            (
                Method::PUT,
                "/apis/a.com/v1/namespaces/team/st%61tus",
                "update a.com/v1 ns=team namespaces/status name=team rest=",
            ),
            (
                Method::GET,
                "//%61pis/a%2Ecom/%76%31/thin%67s",
                "list a.com/v1 ns= things/ name= rest=",
            ),
            (
                Method::DELETE,
                "/%61pi/v1/n%61mespaces/team/pods",
                "deletecollection /v1 ns=team pods/ name= rest=",
            ),
            (
                Method::GET,
                "/api/v1/namespaces/a/pods/b/pr%6fxy/x%2fy",
                "get /v1 ns=a pods/proxy name=b rest=/x%2fy",
            ),
            // The older way to watch.
            (
                Method::GET,
                "/apis/a.com/v1/w%61tch/namespaces/team/things",
                "watch a.com/v1 ns=team things/ name= rest=",
            ),
            (Method::GET, "/api/v1/watch/namespaces/a/pods/b", "watch /v1 ns=a pods/ name=b rest="),
            (Method::DELETE, "/apis/a.com/v1/watch/things", "error 405"),
            (Method::GET, "/apis/a.com/v1/watch/namespaces/team/things/t/log", "error 404"),
            (Method::GET, "/apis/a.com/v1/watch", "error 404"),
            (Method::GET, "/apis/a.com/v1/watch/", "error 404"),
            (Method::GET, "/apis/a.com/v1/proxy/things/t", "error 404"),
            // What is ambiguous.
            (Method::GET, "/apis/a.com/v1/namespaces%2fteam/things", "error 400"),
            (Method::GET, "/apis/a.com/v1/namespaces/team%2Fthings", "error 400"),
            (Method::GET, "/apis/a%2fcom/v1/things", "error 400"),
            (Method::GET, "/apis/a.com/v1%2f/things", "error 400"),
            (Method::GET, "/apis/a.com/v1/namespaces/%2E%2e/things", "error 400"),
            (Method::GET, "/apis/a.com/v1/namespaces/./things", "error 400"),
            (Method::GET, "/apis/a.com/v1/things/%2561", "error 400"),
            (Method::GET, "/apis/a.com/v1/things/%zz", "error 400"),
            (Method::GET, "/apis/a.com/v1/things/%ff", "error 400"),
            (Method::GET, "/apis/a.com/v1/things/%00", "error 400"),
            (Method::GET, "/apis/a.com/v1/things//x", "error 404"),
        ] {
            check(method, uri, expect);
        }
        for (below, expect) in [
            ("?watch=f", "watch a.com/v1 ns=team things/ name= rest="),
            ("?watch=fAlse", "list a.com/v1 ns=team things/ name= rest="),
            ("?watch=0&watch=1", "list a.com/v1 ns=team things/ name= rest="),
            ("/t?watch=1", "get a.com/v1 ns=team things/ name=t rest="),
            ("/t/proxy/a%2fb/", "get a.com/v1 ns=team things/proxy name=t rest=/a%2fb/"),
            ("/t/proxy/..%2fb", "error 400"),
            ("/t/proxy/a%2f%2e%2e/b", "error 400"),
            ("/t/log/a/./b", "error 400"),
        ] {
            check(Method::GET, &format!("{team}{below}"), expect);
        }
    }

    #[test]
    fn a_path_that_is_passed_on_is_escaped_in_one_way() {
        for (path, expect) in [
            ("/apis/a.com/v1/things/a:b", "/apis/a.com/v1/things/a:b"),
            ("//apis/a.com/v1/things/", "/apis/a.com/v1/things/"),
            ("/apis/a.com/v1/n%61mespaces/team/things", "/apis/a.com/v1/namespaces/team/things"),
            ("/apis/a.com/v1/things/t/log/a%2fb%20c", "/apis/a.com/v1/things/t/log/a%2Fb%20c"),
        ] {
            assert_eq!(canonical_path(path), expect);
        }
    }

    /// Verb, group, version, namespace, resource, subresource and name.
    type Attributes = [String; 7];

    /// What Kubernetes 1.25 makes of a path that was decoded as a whole, and of the values of `watch`: what other API servers act on.
    fn reference(method: &Method, path: &str, watch: &[&str]) -> Option<Attributes> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, mut parts) = match parts.as_slice() {
            ["api", version, parts @ ..] => ("", *version, parts),
            ["apis", group, version, parts @ ..] => (*group, *version, parts),
            _ => return None,
        };
        let mut verb = match method.as_str() {
            "POST" => "create",
            "GET" | "HEAD" => "get",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => return None,
        };
        if let [special @ ("watch" | "proxy"), further @ ..] = parts {
            (verb, parts) = (*special, further);
        }
        let mut namespace = "";
        if let ["namespaces", inside, further @ ..] = parts {
            namespace = *inside;
            if further.first().is_some_and(|next| !["status", "finalize"].contains(next)) {
                parts = further;
            }
        }
        let part = |index: usize| parts.get(index).copied().unwrap_or_default();
        let resource = *parts.first()?;
        if part(1).is_empty() && verb == "get" {
            let is_false = |value: &&str| *value == "0" || value.eq_ignore_ascii_case("false");
            verb = if watch.first().is_none_or(is_false) { "list" } else { "watch" };
        }
        if part(1).is_empty() && verb == "delete" {
            verb = "deletecollection";
        }
        Some([verb, group, version, namespace, resource, part(2), part(1)].map(str::to_owned))
    }

    fn attributes(request: &RequestInfo) -> Attributes {
        let r = request;
        [r.verb.as_str(), &r.group, &r.version, &r.namespace, &r.resource, &r.subresource, &r.name]
            .map(str::to_owned)
    }

    const TEXTS: &[&str] = &[
        "namespaces",
        "watch",
        "proxy",
        "status",
        "finalize",
        "things",
        "team",
        "log",
        "",
        "a/b",
        ".",
        "..",
        "%61",
        "t",
    ];
    const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    const BEGINNINGS: &[&str] = &["/apis/a.com/v1", "//%61pis/a%2Ecom/v%31"];
    /// Values of `watch` in a query.
    const WATCHES: &[&[&str]] = &[&[], &[""], &["0"], &["False"], &["f"], &["1", "0"], &["0", "1"]];

    /// A segment, some characters of which are escaped.
    fn segment() -> impl Strategy<Value = String> {
        (select(TEXTS), any::<u16>(), any::<bool>()).prop_map(|(text, escaped, lower)| {
            let escape = |(nth, byte): (usize, u8)| match escaped >> (nth % 16) & 3 {
                0 if lower => format!("%{byte:02x}"),
                0 => format!("%{byte:02X}"),
                _ => char::from(byte).to_string(),
            };
            text.bytes().enumerate().map(escape).collect()
        })
    }

    proptest! {
        #[test]
        fn names_never_hold_a_path(path in "/(api|apis/a)/v1(/(namespaces|pods|[a-z%./\\\\0-9A-F]{0,6})){0,6}") {
            if let Ok(RequestTarget::Resource(request)) = parse(&Method::GET, &path, &Query::default(), is_elsewhere) {
                for part in [&request.namespace, &request.name, &request.resource, &request.subresource] {
                    prop_assert!(!part.contains('/') && part != "..", "{part}");
                }
            }
        }

        /// Whatever is authorized here is what is acted on where the path is decoded as a whole.
        #[test]
        fn other_servers_read_the_same(
            method in select(METHODS),
            begin in select(BEGINNINGS),
            segments in proptest::collection::vec(segment(), 0..7),
            watch in select(WATCHES),
        ) {
            let method: Method = method.parse().expect("a method");
            let path = segments.iter().fold(begin.to_owned(), |path, next| format!("{path}/{next}"));
            let query: Vec<String> = watch.iter().map(|value| format!("watch={value}")).collect();
            let query = Query::parse(&query.join("&"));
            if let Ok(RequestTarget::Resource(request)) = parse(&method, &path, &query, is_elsewhere) {
                let passed_on = canonical_path(&path);
                for path in [&path, &passed_on] {
                    let read = reference(&method, &decode(path), watch);
                    prop_assert_eq!(read, Some(attributes(&request)), "{}", path);
                }
                prop_assert_eq!(decode(&passed_on), format!("/{}", decode(&path).trim_start_matches('/')));
            }
        }

        #[test]
        fn any_path_is_answered(path in ".{0,80}", query in ".{0,80}") {
            let _ = parse(&Method::POST, &path, &Query::parse(&query), is_elsewhere);
        }
    }
}
