//! Requests for the group versions of other API servers: they are passed on to a server behind the Service that an APIService names, in the name of the user who
//! was authenticated and authorized here.

pub mod checks;
mod user_headers;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use apiserver_auth::User;
use apiserver_core::aggregation::ApiService;
use apiserver_core::server::Server;
use apiserver_core::service_endpoints::endpoints_of;
use apiserver_core::status::ApiError;
use bytes::Bytes;
use http::header::LOCATION;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use crate::body::{ResponseBody, bytes_response};
use crate::node_proxy::{DialScope, ProxyTarget, Scheme, Trust};
use crate::routes::Target;
use crate::server::HttpServer;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What is known of other API servers besides their APIServices.
#[derive(Default)]
pub struct Aggregation {
    /// Counts requests, so that endpoints take turns.
    turns: AtomicUsize,
    /// The resources of group versions, by name of the APIService.
    resources: RwLock<HashMap<String, Arc<Value>>>,
}

impl Aggregation {
    /// The `APIResourceList` that the other server answered last.
    #[must_use]
    pub fn resources(&self, name: &str) -> Option<Arc<Value>> {
        self.resources.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Where a request for this path goes.
    ///
    /// # Errors
    /// The Service does not exist, or has no endpoint.
    pub fn target(
        &self,
        core: &Server,
        service: &ApiService,
        path: &str,
    ) -> Result<ProxyTarget, ApiError> {
        let no_service = || ApiError::unavailable(UNAVAILABLE.to_owned());
        let backend = service.backend.as_ref().ok_or_else(no_service)?;
        let port = backend.port.to_string();
        let mut endpoints = endpoints_of(core, &backend.namespace, &backend.name, &port)?;
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        let at = turn.checked_rem(endpoints.len()).ok_or_else(no_service)?;
        let (host, port) = endpoints.swap_remove(at);
        Ok(ProxyTarget {
            scheme: Scheme::Https,
            trust: Trust::ApiServer(Box::new(backend.clone())),
            scope: DialScope::Routable,
            host,
            port,
            path: path.to_owned(),
        })
    }
}

/// The words of Kubernetes.
const UNAVAILABLE: &str = "service unavailable";
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
            tracing::warn!(error = %error, api_service = service.name, "another API server has no endpoint; the request gets 503");
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
