//! Requests for the group versions of other API servers: they are passed on to a server behind the Service that an APIService names, in the name of the user
//! who was authenticated and authorized here.

use std::sync::Arc;

use apiserver_auth::User;
use apiserver_core::aggregation::ApiService;
use apiserver_core::server::Server;
use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::aggregation::{UNAVAILABLE, user_headers};
use crate::body::{ResponseBody, bytes_response};
use crate::routes::Target;
use crate::server::HttpServer;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The words of Kubernetes.
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// The APIService of another server that serves `target`, whose path is `path` as it was sent.
#[must_use]
pub fn served_elsewhere(core: &Server, target: &Target, path: &str) -> Option<Arc<ApiService>> {
    let (group, version) = match target {
        Target::Resource(request) => (request.group.as_str(), request.version.as_str()),
        // Its list of resources.
        Target::NonResource(_) => {
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
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let target = match server.aggregation.target(&server.core, service, &path) {
        Ok(target) => target,
        Err(error) => {
            tracing::warn!(error = %error, api_service = service.name, "the Service of an APIService has no endpoint; the request is answered 503");
            return text(503, UNAVAILABLE);
        }
    };
    let Some(of_user) = user_headers::of(user) else {
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

fn is_redirect(answer: &Response<ResponseBody>) -> bool {
    let moves = answer.headers().get(LOCATION).is_some_and(|to| !to.is_empty());
    answer.status() != StatusCode::NOT_MODIFIED && answer.status().is_redirection() && moves
}

fn text(code: u16, text: &str) -> Response<ResponseBody> {
    bytes_response(code, "text/plain; charset=utf-8", Bytes::from(format!("{text}\n")))
}
