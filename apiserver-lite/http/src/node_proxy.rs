//! Requests that are proxied to a kubelet, a workload or another API server: logs, exec, attach, port forwarding, proxy, group versions of others. The target
//! is looked up in stored objects, the connection is passed through; upgraded connections are copied byte for byte. Redirects are not followed.

mod connect;
mod front_proxy;
mod html_rewrite;
mod target;

use std::sync::Arc;
use std::time::Duration;

use apiserver_core::auth::remove_websocket_tokens;
use apiserver_core::dial_policy::DialPolicy;
use apiserver_core::request::{Query, RequestInfo};
use apiserver_core::server::Server;
use apiserver_core::status::ApiError;
use bytes::{Bytes, BytesMut};
use http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE,
    HOST, LOCATION, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use proto_daemon::panics;

pub use apiserver_core::dial_policy::DialScope;
use connect::ConnectError;
pub use connect::{NodeProxy, NodeProxyError};
pub use target::{ProxyTarget, Scheme, Trust};

use super::body::{self, BoxError, ResponseBody};
use super::upgrade;
use crate::overload::HeldStream;

/// Longest wait for the head of the target's response.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time for reading a page or an error text, which are held in memory.
const TEXT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Largest page whose links are rewritten.
const PAGE_LEN_MAX: usize = 1 << 20;
/// Largest page that is rewritten on the async thread; larger ones use a blocking thread.
const PAGE_LEN_AT_ONCE: usize = 64 << 10;

impl NodeProxy {
    /// Forwards a request to its target and returns the target's response.
    ///
    /// # Errors
    /// 404 and 400 for targets that do not exist, 502 when the target cannot be reached or its response is invalid.
    pub async fn proxy(
        &self,
        server: &Arc<Server>,
        request: Request<Incoming>,
        resource: &RequestInfo,
        query: &Query,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let raw_query = request.uri().query().unwrap_or_default().to_owned();
        let Some(target) = target::find(server, resource, query, &raw_query)? else {
            return Ok(no_content());
        };
        let policy = DialPolicy::new(&server.config);
        let proxied = resource.subresource == "proxy";
        if upgrade::is_requested(request.headers()) {
            let headers = forwarded_headers(request.headers());
            return self.proxy_upgrade(&target, &policy, request, headers, proxied).await;
        }
        if matches!(resource.subresource.as_str(), "exec" | "attach" | "portforward") {
            return Err(ApiError::bad_request("Upgrade request required"));
        }
        let (mut parts, incoming) = request.into_parts();
        if proxied {
            // Rewriting links needs an uncompressed body.
            parts.headers.remove(ACCEPT_ENCODING);
        }
        let mut forwarded = Request::new(incoming.map_err(BoxError::from).boxed_unsync());
        *forwarded.method_mut() = parts.method;
        *forwarded.headers_mut() = forwarded_headers(&parts.headers);
        let response = self.send_to(&target, &policy, forwarded).await?;
        if resource.subresource == "log" && !response.status().is_success() {
            return Err(log_error(response).await);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(bad_gateway(&target, &"it switched protocols without an upgrade request"));
        }
        let answer = client_response(response);
        match proxied {
            true => rewrite_links(answer, target::prefix(parts.uri.path(), resource)).await,
            false => Ok(answer),
        }
    }

    /// Forwards a request to another API server, whatever it is. `change` makes the headers that the other server gets of those that a proxy forwards.
    ///
    /// # Errors
    /// 502 and 400 when the server cannot be reached or its response is invalid.
    pub async fn forward(
        &self,
        server: &Server,
        target: &ProxyTarget,
        request: Request<Incoming>,
        change: impl FnOnce(&mut HeaderMap),
    ) -> Result<Response<ResponseBody>, ApiError> {
        let policy = DialPolicy::new(&server.config);
        let mut headers = forwarded_headers(request.headers());
        change(&mut headers);
        if upgrade::is_requested(request.headers()) {
            return self.proxy_upgrade(target, &policy, request, headers, true).await;
        }
        let (parts, incoming) = request.into_parts();
        let mut forwarded = Request::new(incoming.map_err(BoxError::from).boxed_unsync());
        *forwarded.method_mut() = parts.method;
        *forwarded.headers_mut() = headers;
        let response = self.send_to(target, &policy, forwarded).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(bad_gateway(target, &"it switched protocols without an upgrade request"));
        }
        Ok(client_response(response))
    }

    /// Gets a document of at most `len_max` bytes from a target.
    ///
    /// # Errors
    /// The target cannot be reached, or the document is larger, or cut off.
    pub async fn get(
        &self,
        server: &Server,
        target: &ProxyTarget,
        headers: HeaderMap,
        len_max: usize,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        let (head, body) = self.fetch(server, target, headers, len_max).await?.into_parts();
        Ok((head.status, body))
    }

    /// As [`Self::get`], with the headers of the answer.
    ///
    /// # Errors
    /// As there.
    pub async fn fetch(
        &self,
        server: &Server,
        target: &ProxyTarget,
        headers: HeaderMap,
        len_max: usize,
    ) -> Result<Response<Bytes>, ApiError> {
        let mut request = Request::new(body::full(""));
        *request.headers_mut() = headers;
        let response = self.send_to(target, &DialPolicy::new(&server.config), request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut answer = Response::new(collect_at_most(target, response, len_max).await?);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }

    /// Forwards an upgrade; when the target switches protocols, the two connections are joined. A workload behind a proxy path
    /// may answer without upgrading (RFC 9110 section 7.8).
    async fn proxy_upgrade(
        &self,
        target: &ProxyTarget,
        policy: &DialPolicy,
        mut request: Request<Incoming>,
        headers: HeaderMap,
        proxied: bool,
    ) -> Result<Response<ResponseBody>, ApiError> {
        // The one that was looked at, and not another of the client's headers.
        let protocol = upgrade::requested_protocol(request.headers())
            .and_then(|protocol| HeaderValue::from_str(protocol).ok());
        let client = hyper::upgrade::on(&mut request);
        let mut forwarded = Request::new(body::full(""));
        *forwarded.method_mut() = request.method().clone();
        *forwarded.headers_mut() = headers;
        forwarded.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        // The body stays here.
        forwarded.headers_mut().remove(CONTENT_LENGTH);
        protocol
            .into_iter()
            .for_each(|protocol| drop(forwarded.headers_mut().insert(UPGRADE, protocol)));
        let mut response = self.send_to(target, policy, forwarded).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS && proxied {
            return Ok(client_response(response));
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return refused_upgrade(response).await;
        }
        let node = hyper::upgrade::on(&mut response);
        let mut answer = Response::new(body::full(""));
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *answer.headers_mut() = upgrade::end_to_end(response.headers());
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(protocol) = response.headers().get(UPGRADE) {
            answer.headers_mut().insert(UPGRADE, protocol.clone());
        }
        let held: Option<HeldStream> = request.extensions().get().cloned();
        panics::spawn(async move {
            let _held = held;
            upgrade::splice(client, node).await;
        });
        Ok(answer)
    }

    /// The page of a node's agent at `path`, of at most `len_max` bytes.
    ///
    /// # Errors
    /// 404 and 503 for a node that does not exist or has no address, 502 when it cannot be reached, answers with an error, or with a longer page.
    pub async fn page(
        &self,
        server: &Arc<Server>,
        node: &str,
        path: &str,
        len_max: usize,
    ) -> Result<Bytes, ApiError> {
        let target = ProxyTarget { path: path.to_owned(), ..target::kubelet_of(server, node)? };
        let policy = DialPolicy::new(&server.config);
        let response = self.send_to(&target, &policy, Request::new(body::full(""))).await?;
        if !response.status().is_success() {
            return Err(bad_gateway(&target, &format!("it answered {}", response.status())));
        }
        collect_at_most(&target, response, len_max).await
    }

    async fn send_to(
        &self,
        target: &ProxyTarget,
        policy: &DialPolicy,
        mut request: Request<ResponseBody>,
    ) -> Result<Response<Incoming>, ApiError> {
        *request.uri_mut() =
            target.path.parse::<Uri>().map_err(|error| ApiError::bad_request(error.to_string()))?;
        let host = HeaderValue::from_str(&target.authority()).map_err(|_| {
            ApiError::bad_request("the address of the upstream server is not a valid host")
        })?;
        request.headers_mut().insert(HOST, host);
        let unreachable = |error: &dyn std::fmt::Display| bad_gateway(target, error);
        let stream = self.connect(target, policy).await.map_err(|error| match error {
            ConnectError::NotAllowed => ApiError::bad_request(error.to_string()),
            error => unreachable(&error),
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
        // The task ends with the response's body or the upgraded connection.
        panics::spawn(connection.with_upgrades());
        let answer = tokio::time::timeout(RESPONSE_WAIT_MAX, sender.send_request(request)).await;
        answer
            .map_err(|_| unreachable(&"no response before the deadline"))?
            .map_err(|error| unreachable(&error))
    }
}

/// The answer to a request for what is not there yet.
fn no_content() -> Response<ResponseBody> {
    let mut answer = Response::new(body::full(""));
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

/// The request's end-to-end headers without credentials and impersonation, which are meant for this server only.
fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = upgrade::end_to_end(headers);
    forwarded.remove(AUTHORIZATION);
    remove_websocket_tokens(&mut forwarded);
    let own: Vec<_> = forwarded
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    own.iter().for_each(|name| drop(forwarded.remove(name)));
    forwarded
}

/// The whole body, of at most `len_max` bytes.
async fn collect_at_most(
    target: &ProxyTarget,
    response: Response<Incoming>,
    len_max: usize,
) -> Result<Bytes, ApiError> {
    let limited = http_body_util::Limited::new(response.into_body(), len_max);
    let collected = limited.collect().await.map_err(|error| bad_gateway(target, &error))?;
    Ok(collected.to_bytes())
}

/// The target's response with its end-to-end headers.
fn client_response(response: Response<Incoming>) -> Response<ResponseBody> {
    let (head, incoming) = response.into_parts();
    let mut answer = Response::new(incoming.map_err(BoxError::from).boxed_unsync());
    *answer.status_mut() = head.status;
    *answer.headers_mut() = upgrade::end_to_end(&head.headers);
    answer
}

/// The response to a refused upgrade: the target's status and text, but not its connection.
async fn refused_upgrade(response: Response<Incoming>) -> Result<Response<ResponseBody>, ApiError> {
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

/// Rewrites links of an HTML page, and the location of a redirect, to start at the proxy path.
async fn rewrite_links(
    mut answer: Response<ResponseBody>,
    prefix: &str,
) -> Result<Response<ResponseBody>, ApiError> {
    if let Some(moved) = text_of(answer.headers(), LOCATION)
        .and_then(|location| html_rewrite::under_prefix(location, prefix))
        && let Ok(moved) = HeaderValue::from_str(&moved)
    {
        answer.headers_mut().insert(LOCATION, moved);
        return Ok(answer);
    }
    let (mut head, mut body) = answer.into_parts();
    let is_page = text_of(&head.headers, CONTENT_TYPE)
        .is_some_and(|kind| kind.trim().starts_with("text/html"));
    if !is_page || head.headers.contains_key(CONTENT_ENCODING) {
        return Ok(Response::from_parts(head, body));
    }
    let mut page = BytesMut::new();
    let deadline = tokio::time::Instant::now() + TEXT_WAIT_MAX;
    loop {
        let frame = tokio::time::timeout_at(deadline, body.frame()).await;
        let late = |_| ApiError::new(504, "Timeout", "the page did not arrive in time".to_owned());
        let Some(frame) = frame.map_err(late)? else { break };
        let broken =
            |e| ApiError::new(502, "InternalError", format!("the response was cut off: {e}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        page.extend_from_slice(&data);
        if page.len() > PAGE_LEN_MAX {
            // Too large to rewrite: the page is passed through unchanged.
            let rest = body.into_data_stream();
            let begun = futures_util::stream::iter([Ok(page.freeze())]);
            let whole = futures_util::StreamExt::chain(begun, rest);
            let frames = futures_util::TryStreamExt::map_ok(whole, http_body::Frame::data);
            let body = http_body_util::StreamBody::new(frames).boxed_unsync();
            return Ok(Response::from_parts(head, body));
        }
    }
    let page = page.freeze();
    let page = if page.len() <= PAGE_LEN_AT_ONCE {
        rewrite_page(page, prefix)
    } else {
        let (whole, prefix) = (page.clone(), prefix.to_owned());
        panics::spawn_blocking(move || rewrite_page(whole, &prefix)).await.unwrap_or(page)
    };
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, body::full(page)))
}

fn rewrite_page(page: Bytes, prefix: &str) -> Bytes {
    match std::str::from_utf8(&page) {
        Ok(text) => Bytes::from(html_rewrite::rewrite(text, prefix)),
        Err(_) => page,
    }
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Converts the kubelet's plain-text error for a log request into a Status.
async fn log_error(response: Response<Incoming>) -> ApiError {
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

/// The text of an error response, up to 64 KiB; empty when it does not end within [`TEXT_WAIT_MAX`].
async fn text<B>(response: Response<B>) -> Bytes
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    const TEXT_LEN_MAX: usize = 64 << 10;
    let limited = http_body_util::Limited::new(response.into_body(), TEXT_LEN_MAX);
    let collected = tokio::time::timeout(TEXT_WAIT_MAX, Box::pin(limited).collect()).await;
    collected.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
}

fn bad_gateway(target: &ProxyTarget, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(502, "InternalError", format!("error dialing {}: {error}", target.authority()))
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::Instant;

    use super::*;

    /// A page whose start arrives and whose end never does.
    fn stalled(kind: &'static str) -> Response<ResponseBody> {
        let begun = Ok(Frame::data(Bytes::from_static(b"<a href=\"/x\">")));
        let frames = stream::iter([begun]).chain(stream::pending::<Result<_, BoxError>>());
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    #[test]
    fn credentials_of_clients_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer x"),
            ("impersonate-user", "jane"),
            (
                "sec-websocket-protocol",
                "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.eA",
            ),
            ("x-own", "1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let passed = forwarded_headers(&headers);
        assert_eq!(passed["sec-websocket-protocol"], "v4.channel.k8s.io");
        assert_eq!((passed.len(), passed.contains_key("x-own")), (2, true), "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_does_not_end_is_kept_for_ten_seconds() {
        let began = Instant::now();
        let error = rewrite_links(stalled("text/html"), "/prefix").await.expect_err("too late");
        assert_eq!((error.status().code, began.elapsed()), (504, TEXT_WAIT_MAX));
        // A body that is not rewritten is streamed without a time limit.
        let began = Instant::now();
        let answer = rewrite_links(stalled("text/plain"), "/prefix").await.expect("passed on");
        assert_eq!((answer.status(), began.elapsed()), (StatusCode::OK, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_that_does_not_end_is_empty_after_ten_seconds() {
        let began = Instant::now();
        assert_eq!(text(stalled("text/plain")).await, Bytes::new());
        assert_eq!(began.elapsed(), TEXT_WAIT_MAX);
    }
}
