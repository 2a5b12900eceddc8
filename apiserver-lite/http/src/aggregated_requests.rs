//! Requests for the group versions of other API servers: they are passed on to a server behind the Service that an APIService names, in the name of the user
//! who was authenticated and authorized here.

use std::sync::Arc;

use apiserver_auth::User;
use apiserver_core::aggregation::ApiService;
use apiserver_core::server::Server;
use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;

use crate::aggregation::{UNAVAILABLE, user_headers};
use crate::body::{ResponseBody, bytes_response};
use crate::routes::{RequestTarget, canonical_path};
use crate::server::HttpServer;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const AMBIGUOUS_QUERY: &str =
    "the query has a semicolon or an invalid escape: other API servers ignore such parameters";
/// The words of Kubernetes.
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// The APIService of another server that serves `target`, whose path is `path` as it was sent.
#[must_use]
pub fn served_elsewhere(
    core: &Server,
    target: &RequestTarget,
    path: &str,
) -> Option<Arc<ApiService>> {
    let (group, version) = match target {
        RequestTarget::Resource(request) => (request.group.as_str(), request.version.as_str()),
        // Its list of resources.
        RequestTarget::NonResource(_) => {
            let (group, version) = path.strip_prefix("/apis/")?.split_once('/')?;
            (group, version.strip_suffix('/').unwrap_or(version))
        }
    };
    core.api_services.remote(core.names, group, version)
}

/// Passes a request on. It has been authorized.
pub async fn proxy(
    server: &HttpServer,
    service: &ApiService,
    user: &User,
    request: Request<Incoming>,
    audit_id: &HeaderValue,
) -> Response<ResponseBody> {
    if !service.available {
        return text(503, UNAVAILABLE);
    }
    let Some(path) = forwarded_path(request.uri()) else {
        return text(400, AMBIGUOUS_QUERY);
    };
    let target = match server.aggregation.target(&server.core, service, &path) {
        Ok(target) => target,
        Err(error) => {
            tracing::warn!(error = %error, api_service = service.name, "the Service of an APIService has no endpoint; the request is answered 503");
            return text(503, UNAVAILABLE);
        }
    };
    let Some(of_user) = user_headers::user_headers(user) else {
        return text(500, "the user cannot be named in headers");
    };
    let forwarded = server.nodes.forward(&server.core, &target, request, |headers| {
        user_headers::remove(headers);
        headers.insert(AUDIT_ID, audit_id.clone());
        headers.extend(of_user);
    });
    match forwarded.await {
        Ok(answer) if is_redirect(&answer) => text(502, REDIRECTED),
        Ok(mut answer) => {
            // The response has one of its own.
            answer.headers_mut().remove(AUDIT_ID);
            answer
        }
        Err(error) => {
            text(503, &format!("error trying to reach service: {}", error.status().message))
        }
    }
}

/// Path and query that the other server gets. `None` if it would read another query than the one that was authorized: servers in Go drop every parameter
/// with a semicolon or an invalid escape, such as the selector of the one object that the user may list.
fn forwarded_path(uri: &Uri) -> Option<String> {
    let path = canonical_path(uri.path());
    let Some(query) = uri.query() else { return Some(path) };
    let mut escapes = query.split('%').skip(1);
    let is_escape = |text: &str| {
        text.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    (!query.contains(';') && escapes.all(is_escape)).then(|| format!("{path}?{query}"))
}

fn is_redirect(answer: &Response<ResponseBody>) -> bool {
    let moves = answer.headers().get(LOCATION).is_some_and(|to| !to.is_empty());
    answer.status() != StatusCode::NOT_MODIFIED && answer.status().is_redirection() && moves
}

fn text(code: u16, text: &str) -> Response<ResponseBody> {
    bytes_response(code, "text/plain; charset=utf-8", Bytes::from(format!("{text}\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_servers_get_the_path_and_query_that_were_authorized() {
        for (sent, expected) in [
            ("/apis/a.com/v1/things", Some("/apis/a.com/v1/things")),
            (
                "//apis/a.com/v1/n%61mespaces/n/things?x=a%2Fb+c",
                Some("/apis/a.com/v1/namespaces/n/things?x=a%2Fb+c"),
            ),
            ("/apis/a.com/v1/things?fieldSelector=metadata.name%3Da,b%3D%zz", None),
            ("/apis/a.com/v1/things?fieldSelector=metadata.name%3Da,b%3D;", None),
            ("/apis/a.com/v1/things?x=%4", None),
        ] {
            let uri = Uri::try_from(sent).expect("a URI");
            assert_eq!(forwarded_path(&uri).as_deref(), expected, "{sent}");
        }
    }
}
