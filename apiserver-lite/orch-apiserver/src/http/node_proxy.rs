//! Requests that end at a node or a workload: logs, exec, attach, port forwarding, proxying. The server finds out where to
//! go, connects, and passes bytes; upgraded connections go through unchanged. Redirects are never followed.

mod connect;
mod place;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

pub use connect::{NodeProxy, NodeProxyError};
use place::Place;

use super::body::{self, BoxError, ResponseBody};
use super::query::Query;
use super::routes::ResourceRequest;
use super::upgrade;
use crate::server::Server;
use crate::status::ApiError;

/// Longest wait for the head of a response.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

impl NodeProxy {
    /// Passes a request on and its answer back.
    ///
    /// # Errors
    /// 404 and 400 for places that are not there, 502 when the other end cannot be reached or answers nonsense.
    pub async fn answer(
        &self,
        server: &Arc<Server>,
        request: Request<Incoming>,
        resource: &ResourceRequest,
        query: &Query,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let raw_query = request.uri().query().unwrap_or_default().to_owned();
        let place = place::find(server, resource, query, &raw_query)?;
        if upgrade::is_asked(request.headers()) {
            return self.switch(&place, request).await;
        }
        if matches!(resource.subresource.as_str(), "exec" | "attach" | "portforward") {
            return Err(ApiError::bad_request("Upgrade request required"));
        }
        let (parts, incoming) = request.into_parts();
        let mut passed = Request::new(incoming.map_err(BoxError::from).boxed_unsync());
        *passed.method_mut() = parts.method;
        *passed.headers_mut() = passed_headers(&parts.headers);
        let response = self.send(&place, passed).await?;
        if resource.subresource == "log" && !response.status().is_success() {
            return Err(no_log(response).await);
        }
        let (parts, incoming) = response.into_parts();
        let mut answer = Response::new(incoming.map_err(BoxError::from).boxed_unsync());
        *answer.status_mut() = parts.status;
        *answer.headers_mut() = upgrade::end_to_end(&parts.headers);
        Ok(answer)
    }

    /// Asks the other end to switch protocols; when it does, the two connections become one.
    async fn switch(
        &self,
        place: &Place,
        mut request: Request<Incoming>,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let asked = request.headers().get(UPGRADE).cloned();
        let client = hyper::upgrade::on(&mut request);
        let mut passed = Request::new(body::full(""));
        *passed.method_mut() = request.method().clone();
        *passed.headers_mut() = passed_headers(request.headers());
        passed.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        asked.into_iter().for_each(|protocol| drop(passed.headers_mut().insert(UPGRADE, protocol)));
        let mut response = self.send(place, passed).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return refused(response).await;
        }
        let node = hyper::upgrade::on(&mut response);
        let mut answer = Response::new(body::full(""));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = upgrade::end_to_end(response.headers());
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(protocol) = response.headers().get(UPGRADE) {
            answer.headers_mut().insert(UPGRADE, protocol.clone());
        }
        tokio::spawn(upgrade::splice(client, node));
        Ok(answer)
    }

    async fn send(
        &self,
        place: &Place,
        mut request: Request<ResponseBody>,
    ) -> Result<Response<Incoming>, ApiError> {
        *request.uri_mut() =
            place.path.parse::<Uri>().map_err(|error| ApiError::bad_request(error.to_string()))?;
        let host = HeaderValue::from_str(&place.authority())
            .map_err(|_| ApiError::bad_request("the address of the other end is no host"))?;
        request.headers_mut().insert(HOST, host);
        let unreachable = |error: &dyn std::fmt::Display| bad_gateway(place, error);
        let stream = self.connect(place).await.map_err(|error| unreachable(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
        // Ends with the response's body, or with the upgraded connection.
        tokio::spawn(connection.with_upgrades());
        let answer = tokio::time::timeout(ANSWER_WAIT_MAX, sender.send_request(request)).await;
        answer.map_err(|_| unreachable(&"no answer in time"))?.map_err(|error| unreachable(&error))
    }
}

/// The client's headers for the other end, without what proves who the client is: that is between it and this server.
fn passed_headers(headers: &HeaderMap) -> HeaderMap {
    let mut passed = upgrade::end_to_end(headers);
    passed.remove(AUTHORIZATION);
    let own: Vec<_> =
        passed.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    own.iter().for_each(|name| drop(passed.remove(name)));
    passed
}

/// An upgrade that the other end did not grant: its answer is passed on, its connection is not.
async fn refused(response: Response<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
    let status = response.status();
    if status.is_redirection() || status.is_success() {
        return Err(ApiError::new(
            502,
            "InternalError",
            format!("unable to upgrade connection: node answered {status}"),
        ));
    }
    let mut answer = Response::new(body::full(text(response).await));
    *answer.status_mut() = status;
    Ok(answer)
}

/// A node says in plain text why there is no log; clients want a Status.
async fn no_log(response: Response<Incoming>) -> ApiError {
    let status = response.status();
    let reason = match status {
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        _ => "InternalError",
    };
    let code = if status.is_redirection() { 502 } else { i32::from(status.as_u16()) };
    let text = text(response).await;
    ApiError::new(code, reason, String::from_utf8_lossy(&text).trim())
}

/// The text of a refusal, as much of it as people read.
async fn text(response: Response<Incoming>) -> Bytes {
    const TEXT_LEN_MAX: usize = 64 << 10;
    let limited = http_body_util::Limited::new(response.into_body(), TEXT_LEN_MAX);
    limited.collect().await.map(|body| body.to_bytes()).unwrap_or_default()
}

fn bad_gateway(place: &Place, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(502, "InternalError", format!("error dialing {}: {error}", place.authority()))
}
