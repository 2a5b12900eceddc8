//! Requests as values: method, path and query, content type, body. Pure; the client adds server, credentials and `Accept`.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use proto_api::uri;

use crate::params::{Conflicts, ListParams, Mode, Patch, WriteParams};

/// `Content-Type` of JSON bodies.
pub const JSON: &str = "application/json";

/// GET of one object or subresource.
pub fn get(path: String) -> Request<Bytes> {
    build(Method::GET, path, &Query::default(), None, Bytes::new())
}

/// GET of a collection.
pub fn list(path: String, params: &ListParams) -> Request<Bytes> {
    build(Method::GET, path, &list_query(params), None, Bytes::new())
}

/// GET of a collection as a watch from `resource_version` on, which the server ends after `timeout_secs`.
pub fn watch(
    path: String,
    params: &ListParams,
    resource_version: &str,
    timeout_secs: u64,
) -> Request<Bytes> {
    let mut query = Query::default();
    query.add_unless_empty("labelSelector", &params.label_selector);
    query.add_unless_empty("fieldSelector", &params.field_selector);
    query.add("watch", "true");
    query.add("allowWatchBookmarks", "true");
    query.add_unless_empty("resourceVersion", resource_version);
    query.add("timeoutSeconds", &timeout_secs.to_string());
    build(Method::GET, path, &query, None, Bytes::new())
}

/// POST to a collection or subresource.
pub fn create(
    path: String,
    params: &WriteParams,
    content_type: &'static str,
    body: Bytes,
) -> Request<Bytes> {
    build(Method::POST, path, &write_query(params), Some(content_type), body)
}

/// PUT of an object or subresource.
pub fn update(
    path: String,
    params: &WriteParams,
    content_type: &'static str,
    body: Bytes,
) -> Request<Bytes> {
    build(Method::PUT, path, &write_query(params), Some(content_type), body)
}

/// PATCH of an object or subresource.
pub fn patch(path: String, params: &WriteParams, patch: &Patch) -> Request<Bytes> {
    let mut query = write_query(params);
    if params.conflicts == Conflicts::TakeOver {
        query.add("force", "true");
    }
    let body = Bytes::from(patch.body().to_string());
    build(Method::PATCH, path, &query, Some(patch.content_type()), body)
}

/// DELETE of an object, or of the objects of a collection that `params` select. `options` is a `DeleteOptions` as JSON.
pub fn delete(path: String, params: &ListParams, options: Bytes) -> Request<Bytes> {
    build(Method::DELETE, path, &list_query(params), Some(JSON), options)
}

fn list_query(params: &ListParams) -> Query {
    let mut query = Query::default();
    query.add_unless_empty("labelSelector", &params.label_selector);
    query.add_unless_empty("fieldSelector", &params.field_selector);
    if let Some(limit) = params.limit {
        query.add("limit", &limit.to_string());
    }
    query.add_unless_empty("continue", params.continue_.as_deref().unwrap_or_default());
    query.add_unless_empty(
        "resourceVersion",
        params.resource_version.as_deref().unwrap_or_default(),
    );
    if let Some(version_match) = params.version_match {
        query.add("resourceVersionMatch", version_match.as_str());
    }
    query
}

fn write_query(params: &WriteParams) -> Query {
    let mut query = Query::default();
    if params.mode == Mode::DryRun {
        query.add("dryRun", "All");
    }
    query.add_unless_empty("fieldManager", params.field_manager.as_deref().unwrap_or_default());
    query.add_unless_empty("fieldValidation", params.field_validation.unwrap_or_default());
    query
}

#[derive(Default)]
struct Query(String);

impl Query {
    fn add(&mut self, key: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(key);
        self.0.push('=');
        self.0.push_str(&uri::encode(value, uri::COMPONENT));
    }

    fn add_unless_empty(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.add(key, value);
        }
    }
}

fn build(
    method: Method,
    path: String,
    query: &Query,
    content_type: Option<&'static str>,
    body: Bytes,
) -> Request<Bytes> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    // All parts are encoded: only a path of several kilobytes could be invalid, which the server refuses as well.
    *request.uri_mut() =
        (path + &query.0).parse().unwrap_or_else(|_| Uri::from_static("/path-too-long"));
    if let Some(content_type) = content_type {
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    request
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto_api::Collection;
    use serde_json::json;

    use super::*;

    fn line(request: &Request<Bytes>) -> String {
        format!("{} {}", request.method(), request.uri())
    }

    #[test]
    fn requests_read_as_they_are_sent() {
        let pods = || "/api/v1/namespaces/a/pods".to_owned();
        let params = ListParams {
            field_selector: "spec.nodeName=n1,status.phase!=Failed".into(),
            limit: Some(500),
            continue_: Some("a+/=".into()),
            resource_version: Some("7".into()),
            version_match: Some(crate::params::VersionMatch::NotOlderThan),
            ..ListParams::labels("app in (a, b)")
        };
        assert_eq!(
            line(&list(pods(), &params)),
            "GET /api/v1/namespaces/a/pods?labelSelector=app%20in%20%28a%2C%20b%29\
             &fieldSelector=spec.nodeName%3Dn1%2Cstatus.phase%21%3DFailed&limit=500&continue=a%2B%2F%3D\
             &resourceVersion=7&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(
            line(&watch(pods(), &ListParams::name("x"), "9", 300)),
            "GET /api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx&watch=true&allowWatchBookmarks=true\
             &resourceVersion=9&timeoutSeconds=300"
        );
        let write = WriteParams {
            mode: Mode::DryRun,
            field_manager: Some("me".into()),
            conflicts: Conflicts::TakeOver,
            ..WriteParams::default()
        };
        let created = create(pods(), &write, JSON, Bytes::new());
        assert_eq!(line(&created), "POST /api/v1/namespaces/a/pods?dryRun=All&fieldManager=me");
        let patched = patch(pods() + "/x/status", &write, &Patch::Apply(json!({"a": 1})));
        assert_eq!(
            line(&patched),
            "PATCH /api/v1/namespaces/a/pods/x/status?dryRun=All&fieldManager=me&force=true"
        );
        assert_eq!(patched.headers()[header::CONTENT_TYPE], "application/apply-patch+yaml");
        assert_eq!(patched.body().as_ref(), br#"{"a":1}"#);
    }

    proptest! {
        #[test]
        fn any_name_makes_a_path(name in ".{1,80}", selector in ".{0,80}") {
            let pods = Collection { group: "g".into(), version: "v1".into(), plural: "pods".into(), namespace: Some(name.clone()) };
            let request = list(pods.item(&name, None), &ListParams::labels(selector));
            prop_assert!(request.uri().path().starts_with("/apis/g/v1/namespaces/"));
            prop_assert_eq!(request.uri().path().matches('/').count(), 7);
        }
    }
}
