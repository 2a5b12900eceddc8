//! One request of a proxy: judged, passed on, and its answer passed back. Bodies are streamed; after a switch of protocols bytes are.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, EXPECT, HOST, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use orchctl_client::{CommandError, Session};
use orchctl_plans::proxy_rules::{ProxyRoute, ProxyRules};
use proto_client::ResponseBody;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of the buffer of each direction.
const BUFFER_LEN: usize = 16 << 10;
/// Headers of one connection, not of the request (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

type Answer = Response<Either<Full<Bytes>, ResponseBody>>;

/// Answers a request. Connections that have switched protocols keep `permit`.
pub(super) async fn answer(
    session: &Session,
    rules: &ProxyRules,
    request: Request<Incoming>,
    permit: Arc<OwnedSemaphorePermit>,
) -> Answer {
    let host = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    };
    let path = request.uri().path();
    let target = match rules.route(request.method().as_str(), host, path) {
        ProxyRoute::Passed(path) => path,
        ProxyRoute::Forbidden => return text(StatusCode::FORBIDDEN, "Forbidden"),
        ProxyRoute::NotFound => return text(StatusCode::NOT_FOUND, "404 page not found"),
    };
    let target = match request.uri().query() {
        Some(query) => format!("{target}?{query}"),
        None => target,
    };
    let Ok(target) = target.parse::<PathAndQuery>() else {
        return text(StatusCode::BAD_REQUEST, "the path is not valid below the prefix");
    };
    let passed = match requested_protocol(request.headers()) {
        Some(protocol) => switch(session, request, target, protocol, permit).await,
        None => pass(session, request, target).await,
    };
    passed.unwrap_or_else(|error| text(StatusCode::BAD_GATEWAY, &error.to_string()))
}

async fn pass(
    session: &Session,
    request: Request<Incoming>,
    target: PathAndQuery,
) -> Result<Answer, CommandError> {
    let (head, body) = request.into_parts();
    let mut passed = Request::new(body);
    *passed.method_mut() = head.method;
    *passed.uri_mut() = Uri::from(target);
    *passed.headers_mut() = end_to_end(&head.headers);
    let (head, body) = session.forward(passed).await?.into_parts();
    Ok(answer_of(head.status, end_to_end(&head.headers), Either::Right(body)))
}

/// Passes on a request to switch protocols, and then bytes in both directions.
async fn switch(
    session: &Session,
    mut request: Request<Incoming>,
    target: PathAndQuery,
    protocol: HeaderValue,
    permit: Arc<OwnedSemaphorePermit>,
) -> Result<Answer, CommandError> {
    let client = hyper::upgrade::on(&mut request);
    let mut passed = Request::new(());
    *passed.method_mut() = request.method().clone();
    *passed.uri_mut() = Uri::from(target);
    *passed.headers_mut() = switching(request.headers(), &protocol);
    let mut response = session.forward_upgrade(passed).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (head, body) = response.into_parts();
        return Ok(answer_of(head.status, end_to_end(&head.headers), Either::Right(body)));
    }
    let server = hyper::upgrade::on(&mut response);
    let chosen = response.headers().get(UPGRADE).cloned().unwrap_or(protocol);
    let headers = switching(response.headers(), &chosen);
    tokio::spawn(async move {
        let _permit = permit;
        // What breaks the one connection ends the other: both sides see it.
        if let Ok((client, server)) = tokio::try_join!(client, server) {
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            let copied = tokio::io::copy_bidirectional_with_sizes(
                &mut client,
                &mut server,
                BUFFER_LEN,
                BUFFER_LEN,
            );
            let _ = copied.await;
        }
    });
    Ok(answer_of(StatusCode::SWITCHING_PROTOCOLS, headers, Either::Left(Full::default())))
}

/// Adds the client's address to those that the request was forwarded for, as `kubectl proxy` does: the API server sees that the request came through a
/// proxy, and its audit log has the address.
pub(super) fn add_forwarded_for(headers: &mut HeaderMap, client: IpAddr) {
    let before = headers.get_all(X_FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let mut addresses: Vec<String> = before.map(str::to_owned).collect();
    addresses.push(client.to_string());
    if let Ok(value) = HeaderValue::from_str(&addresses.join(", ")) {
        headers.insert(X_FORWARDED_FOR, value);
    }
}

/// The headers of a request or an answer that switches to `protocol`.
fn switching(headers: &HeaderMap, protocol: &HeaderValue) -> HeaderMap {
    let mut passed = end_to_end(headers);
    passed.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    passed.insert(UPGRADE, protocol.clone());
    passed
}

/// What a request asks to switch to. HTTP/2 does not count: the answer over HTTP/1.1 is as good.
fn requested_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(UPGRADE)?;
    let is_named = connection_words(headers).any(|word| word == "upgrade");
    Some(wanted.clone())
        .filter(|wanted| is_named && !wanted.as_bytes().eq_ignore_ascii_case(b"h2c"))
}

fn connection_words(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|word| word.trim().to_ascii_lowercase())
}

/// Headers without those of the connection.
fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = connection_words(headers).collect();
    let stays_behind = |name: &HeaderName| {
        HOP_BY_HOP.contains(&name.as_str())
            || *name == HOST
            || *name == EXPECT
            || named.iter().any(|other| other == name.as_str())
    };
    let passed = headers.iter().filter(|(name, _)| !stays_behind(name));
    passed.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn answer_of(
    status: StatusCode,
    headers: HeaderMap,
    body: Either<Full<Bytes>, ResponseBody>,
) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

fn text(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(Bytes::from(format!("{text}\n")));
    let headers =
        [(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))];
    answer_of(status, headers.into_iter().collect(), Either::Left(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        list.iter().map(pair).collect()
    }

    #[test]
    fn headers_of_the_connection_stay_behind() {
        let passed = end_to_end(&headers(&[
            ("connection", "Keep-Alive, X-Own"),
            ("keep-alive", "5"),
            ("x-own", "1"),
            ("host", "localhost"),
            ("transfer-encoding", "chunked"),
            ("accept", "a"),
            ("accept", "b"),
        ]));
        assert_eq!(passed, headers(&[("accept", "a"), ("accept", "b")]));
    }

    #[test]
    fn the_client_is_added_to_those_that_were_forwarded_for() {
        let client = IpAddr::from([127, 0, 0, 1]);
        for (before, after) in [
            (headers(&[]), "127.0.0.1"),
            (
                headers(&[("x-forwarded-for", "10.0.0.1"), ("x-forwarded-for", "10.0.0.2")]),
                "10.0.0.1, 10.0.0.2, 127.0.0.1",
            ),
        ] {
            let mut all = before;
            add_forwarded_for(&mut all, client);
            assert_eq!(all, headers(&[("x-forwarded-for", after)]));
        }
    }

    #[test]
    fn switches_are_requested_by_two_headers() {
        let wanted = |list| requested_protocol(&headers(list)).is_some();
        assert!(wanted(&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")]));
        assert!(!wanted(&[("upgrade", "SPDY/3.1")]));
        assert!(!wanted(&[("connection", "upgrade")]));
        assert!(!wanted(&[("connection", "upgrade"), ("upgrade", "h2c")]));
    }
}
