//! What a browser does with a user's client certificate: it adds the certificate to every request to this server, whichever page made it.
//!
//! Requests that a page of another origin made are refused, and what a proxied workload serves is not a page of this server's origin where people are
//! invited to open this server in a browser.

use std::net::IpAddr;

use apiserver_core::auth::has_websocket_token;
use apiserver_core::status::ApiError;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Request, Response};

use crate::body::ResponseBody;

/// Fetch metadata (W3C): `same-origin`, `same-site`, `cross-site`, or `none` for what a person opened.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Set by `kubectl proxy` and by load balancers, which change the host. A page of another origin cannot set it without asking this server first.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Refuses a request that a browser sent for a page of another origin. One that brings its own token is not refused: a page that knows it needs no browser.
/// Of a WebSocket any page can name one, and so its certificate does not count then.
///
/// # Errors
/// 403.
pub fn check_origin<B>(request: &Request<B>) -> Result<(), ApiError> {
    let host = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let host = host.or_else(|| text(request.headers(), &header::HOST).map(str::to_owned));
    if has_token(request.headers()) || !is_foreign(request.headers(), host.as_deref()) {
        return Ok(());
    }
    let message = "a browser sent this request for a page of another origin: it is refused, because the browser adds the user's certificate to it";
    Err(ApiError::new(403, "Forbidden", message))
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("invalid"))
}

/// Whether a request carries a token, in the header `Authorization` or as a protocol of WebSocket.
pub fn has_token(headers: &HeaderMap) -> bool {
    // A browser sends Basic for a page that names a user in an address.
    let is_bearer = |value: &str| value.trim_start().to_ascii_lowercase().starts_with("bearer ");
    text(headers, &header::AUTHORIZATION).is_some_and(is_bearer) || has_websocket_token(headers)
}

fn is_foreign(headers: &HeaderMap, host: Option<&str>) -> bool {
    if let Some(site) = text(headers, &SEC_FETCH_SITE) {
        return !matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text(headers, &header::ORIGIN) else { return false };
    if headers.contains_key(X_FORWARDED_FOR) {
        return false;
    }
    let of = origin.split_once("://").map(|(_, of)| of);
    if of.is_some_and(is_this_machine) {
        return false;
    }
    of.is_none() || !of.zip(host).is_some_and(|(of, host)| of.eq_ignore_ascii_case(host))
}

/// Whether an origin is the client's own machine: WebSocket clients that are no browsers say `http://localhost`, as Kubernetes' own tests do. A browser
/// that is recent enough to run pages of this machine says `Sec-Fetch-Site` as well.
fn is_this_machine(authority: &str) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Makes what a workload answered a document of no origin: its scripts run, but cannot ask this server in the user's name, nor stay.
pub fn isolate(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    let headers = response.headers_mut();
    let sandbox = HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups");
    // Beside the workload's own policy, not in its place: the browser keeps to both.
    headers.append(header::CONTENT_SECURITY_POLICY, sandbox);
    headers.remove(header::SET_COOKIE);
    headers.remove("service-worker-allowed");
    response
}

/// Whether the answer to a request for a workload goes to a browser as it is.
pub fn is_direct(headers: &HeaderMap) -> bool {
    !headers.contains_key(X_FORWARDED_FOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values of headers.
    type Lines<'a> = &'a [(&'a str, &'a str)];

    fn check(lines: Lines<'_>) -> Result<(), u16> {
        let mut request =
            Request::post("/api/v1/namespaces").header("host", "api.example.com:6443");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check_origin(&request.body(()).unwrap()).map_err(|error| error.code())
    }

    #[test]
    fn requests_for_pages_of_other_origins_are_refused() {
        let own = ("origin", "https://api.example.com:6443");
        let other = ("origin", "https://evil.example.com");
        let table: &[(Lines<'_>, Result<(), u16>)] = &[
            // Clients that are no browsers.
            (&[], Ok(())),
            (&[own], Ok(())),
            (&[("origin", "HTTPS://API.EXAMPLE.COM:6443")], Ok(())),
            // What a person opened, and what this server's page asks.
            (&[("sec-fetch-site", "none")], Ok(())),
            (&[("sec-fetch-site", "same-origin"), own], Ok(())),
            (&[("sec-fetch-site", "cross-site"), other], Err(403)),
            (&[("sec-fetch-site", "same-site"), other], Err(403)),
            (&[("sec-fetch-site", "cross-site")], Err(403)),
            (&[("sec-fetch-site", "\u{e9}")], Err(403)),
            // Older browsers.
            (&[other], Err(403)),
            (&[("origin", "null")], Err(403)),
            (&[("origin", "https://api.example.com")], Err(403)),
            (&[("origin", "https://api.example.com:6443.evil.example.com")], Err(403)),
            // kubectl proxy changes the host, and the browser says what the page is to kubectl.
            (&[("origin", "http://127.0.0.1:8001"), ("x-forwarded-for", "127.0.0.1")], Ok(())),
            (&[("sec-fetch-site", "cross-site"), ("x-forwarded-for", "127.0.0.1")], Err(403)),
            // WebSocket clients that are no browsers, and pages that look like them.
            (&[("origin", "http://localhost")], Ok(())),
            (&[("origin", "http://127.0.0.1:3000")], Ok(())),
            (&[("origin", "http://[::1]:3000")], Ok(())),
            (&[("origin", "http://localhost:3000"), ("sec-fetch-site", "cross-site")], Err(403)),
            (&[("origin", "http://localhost.evil.example.com")], Err(403)),
            (&[("origin", "http://localhost@evil.example.com")], Err(403)),
            // The page has a token.
            (&[other, ("authorization", "Bearer x")], Ok(())),
            (&[other, ("authorization", "Basic eDp5")], Err(403)),
            (
                &[
                    other,
                    (
                        "sec-websocket-protocol",
                        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.eA",
                    ),
                ],
                Ok(()),
            ),
            (&[other, ("sec-websocket-protocol", "v4.channel.k8s.io")], Err(403)),
        ];
        for (lines, expected) in table {
            assert_eq!(check(lines), *expected, "{lines:?}");
        }
    }

    #[test]
    fn the_host_of_http_2_is_that_of_the_target() {
        let request = Request::post("https://api.example.com:6443/api")
            .header("origin", "https://api.example.com:6443");
        assert_eq!(check_origin(&request.body(()).unwrap()), Ok(()));
    }
}
