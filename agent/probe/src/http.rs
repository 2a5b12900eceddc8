//! HTTP GET requests of probes and hooks.

use agent_pod::handler::HttpGet;
use agent_pod::probe::ProbeOutcome;
use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Request, Uri, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::prober::{ANSWER_BYTES, Prober};
use crate::{tcp, tls};

/// What is encoded in a path, as the kubelet does; `%` is not, so escapes that are there stay.
const NOT_IN_PATHS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// What is encoded in a query, since `http` takes no URI with it.
const NOT_IN_REQUEST_LINES: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>');
/// Most redirects followed.
const REDIRECTS: usize = 10;

/// Status and the beginning of the body of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// The first [`crate::ANSWER_BYTES`] of the body.
    pub body: String,
    /// Whether it redirects to another host, which is not followed.
    pub leaves: bool,
}

/// Why there was no response.
#[derive(Debug, thiserror::Error)]
#[error("Get {url:?}: {fault}")]
pub struct GetError {
    /// URL of the request.
    url: String,
    /// What went wrong.
    fault: GetFault,
}

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
enum GetFault {
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Deadline,
    #[error("stopped after {REDIRECTS} redirects")]
    Redirects,
    #[error("bad header name {0:?}")]
    HeaderName(String),
    #[error("bad value of {0}")]
    HeaderValue(HeaderName),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Connect(#[from] tcp::ConnectError),
    #[error(transparent)]
    Handshake(#[from] tls::HandshakeError),
    #[error(transparent)]
    Exchange(#[from] hyper::Error),
}

pub(crate) async fn probe(request: &HttpGet, asker: Prober<'_>) -> ProbeOutcome {
    match get(request, asker).await {
        Err(error) => ProbeOutcome::Failure(error.to_string()),
        Ok(reply) if reply.leaves => ProbeOutcome::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            reply.body
        )),
        Ok(reply) if (200..400).contains(&reply.status) => ProbeOutcome::Success,
        Ok(reply) => {
            ProbeOutcome::Failure(format!("HTTP probe failed with statuscode: {}", reply.status))
        }
    }
}

/// Sends a GET request and reads the response; redirects are followed on the same host.
///
/// # Errors
/// No complete response arrived before the timeout.
pub async fn get(request: &HttpGet, asker: Prober<'_>) -> Result<Reply, GetError> {
    let host = if request.host.is_empty() { asker.ip } else { &request.host };
    let first = Target {
        https: request.https,
        host: host.to_owned(),
        port: request.port,
        path: absolute_path(&request.path),
    };
    let url = first.url();
    let headers = &request.headers;
    let followed = tokio::time::timeout(asker.timeout, follow(first, headers, asker));
    let fault = match followed.await {
        Ok(Ok(reply)) => return Ok(reply),
        Ok(Err(fault)) => fault,
        Err(_) => GetFault::Deadline,
    };
    Err(GetError { url, fault })
}

/// Destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    https: bool,
    host: String,
    port: u16,
    path: PathAndQuery,
}

impl Target {
    fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        format!("{scheme}://{}{}", tcp::authority(&self.host, self.port), self.path)
    }

    /// Destination of a redirect; `Err` if it is on another host.
    fn resolve_redirect(&self, location: &str) -> Result<Self, ()> {
        if !location.contains("://") && !location.starts_with("//") {
            let path = match location.starts_with('/') {
                true => absolute_path(location),
                // Relative to the directory of the request's path.
                false => {
                    let (directory, _) = self.path.path().rsplit_once('/').unwrap_or_default();
                    absolute_path(&format!("{directory}/{location}"))
                }
            };
            return Ok(Self { path, ..self.clone() });
        }
        let uri: Uri = location.parse().map_err(|_| ())?;
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let host = uri.host().ok_or(())?;
        let bare = |host: &str| host.trim_matches(['[', ']']).to_ascii_lowercase();
        if bare(host) != bare(&self.host) {
            return Err(());
        }
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => self.https,
        };
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Ok(Self { https, host: self.host.clone(), port, path: absolute_path(path) })
    }
}

/// Path and query with a leading slash. As in the kubelet the query is sent as it is, except for
/// what a request line cannot carry; in the path everything is escaped that a URI does not have.
fn absolute_path(path: &str) -> PathAndQuery {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut escaped = format!("{slash}{}", utf8_percent_encode(path, NOT_IN_PATHS));
    if let Some(query) = query {
        escaped.push('?');
        escaped.extend(utf8_percent_encode(query, NOT_IN_REQUEST_LINES));
    }
    escaped.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

async fn follow(
    first: Target,
    headers: &[(String, String)],
    asker: Prober<'_>,
) -> Result<Reply, GetFault> {
    let mut target = first;
    for _ in 0..=REDIRECTS {
        let (reply, location) = once(&target, headers, asker).await?;
        let Some(location) = location.filter(|_| is_redirect(reply.status)) else {
            return Ok(reply);
        };
        match target.resolve_redirect(&location) {
            Ok(next) => target = next,
            Err(()) => return Ok(Reply { leaves: true, ..reply }),
        }
    }
    Err(GetFault::Redirects)
}

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Sends one request on a connection of its own; returns the response and the destination of a redirect.
async fn once(
    target: &Target,
    headers: &[(String, String)],
    asker: Prober<'_>,
) -> Result<(Reply, Option<String>), GetFault> {
    let request = request(target, headers, asker.user_agent)?;
    let stream = tcp::connect(&target.host, target.port, asker).await?;
    if target.https {
        exchange(TokioIo::new(tls::connect(&target.host, stream).await?), request).await
    } else {
        exchange(TokioIo::new(stream), request).await
    }
}

fn request(
    target: &Target,
    headers: &[(String, String)],
    user_agent: &str,
) -> Result<Request<Empty<Bytes>>, GetFault> {
    let mut request = Request::get(Uri::from(target.path.clone())).body(Empty::new())?;
    let map = request.headers_mut();
    let mut set = |name: HeaderName, value: &str| {
        let value =
            HeaderValue::from_str(value).map_err(|_| GetFault::HeaderValue(name.clone()))?;
        map.insert(name, value);
        Ok::<(), GetFault>(())
    };
    set(header::HOST, &tcp::authority(&target.host, target.port))?;
    set(header::USER_AGENT, user_agent)?;
    set(header::ACCEPT, "*/*")?;
    set(header::CONNECTION, "close")?;
    let own = [header::HOST, header::USER_AGENT, header::ACCEPT];
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| GetFault::HeaderName(name.clone()))?;
        let value =
            HeaderValue::from_str(value).map_err(|_| GetFault::HeaderValue(name.clone()))?;
        // Configured headers replace the default ones, or remove them if empty; other headers may repeat.
        if !own.contains(&name) {
            map.append(name, value);
        } else if value.is_empty() && name != header::HOST {
            map.remove(name);
        } else {
            map.insert(name, value);
        }
    }
    Ok(request)
}

async fn exchange(
    io: impl Read + Write + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<(Reply, Option<String>), GetFault> {
    let (mut sender, connection) = http1::handshake(io).await?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let location = response.headers().get(header::LOCATION);
        let location = location.and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let body = read_beginning(response.into_body()).await;
        Ok::<_, GetFault>((Reply { status, body, leaves: false }, location))
    };
    tokio::pin!(connection, answer);
    // The connection has no task of its own: it lives as long as the request.
    tokio::select! {
        answer = &mut answer => answer,
        // It ends first only if nothing more arrives; received data is still available.
        _ = &mut connection => answer.await,
    }
}

/// The start of a body. A body that breaks off is treated like one that ends.
async fn read_beginning(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Some(data) = frame.data_ref() {
            let room = ANSWER_BYTES.saturating_sub(bytes.len());
            bytes.extend(data.iter().take(room));
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, path: &str) -> Target {
        Target { https: false, host: host.into(), port: 8080, path: absolute_path(path) }
    }

    #[test]
    fn redirects_stay_on_their_host() {
        let from = target("10.0.0.1", "/a/b?x=1");
        let cases = [
            ("/c?y=2", Some("http://10.0.0.1:8080/c?y=2")),
            ("c", Some("http://10.0.0.1:8080/a/c")),
            ("http://10.0.0.1/c", Some("http://10.0.0.1:80/c")),
            ("https://10.0.0.1:8443", Some("https://10.0.0.1:8443/")),
            ("http://10.0.0.2:8080/c", None),
            ("http://example.com/", None),
            ("http://[bad", None),
        ];
        for (location, expect) in cases {
            let got = from.resolve_redirect(location).ok().map(|target| target.url());
            assert_eq!(got.as_deref(), expect, "{location}");
        }
        let six = target("fd00::1", "/");
        assert_eq!(six.url(), "http://[fd00::1]:8080/");
        let to = six.resolve_redirect("http://[fd00::1]:81/x").map(|target| target.url());
        assert_eq!(to, Ok("http://[fd00::1]:81/x".to_owned()));
    }

    #[test]
    fn a_path_is_rooted_and_escaped() {
        let cases = [
            ("", "/"),
            ("healthz", "/healthz"),
            ("/a?b=c", "/a?b=c"),
            ("/a b", "/a%20b"),
            ("/ü", "/%C3%BC"),
            ("/a|b%7C", "/a%7Cb%7C"),
            ("/a?b=x|y", "/a?b=x|y"),
            ("a|b?c={\"d\": <e>}&f=^`\\?|", "/a%7Cb?c={%22d%22:%20%3Ce%3E}&f=^`\\?|"),
            ("?a|b", "/?a|b"),
        ];
        for (written, expect) in cases {
            assert_eq!(absolute_path(written), expect, "{written}");
        }
    }

    #[test]
    fn own_headers_replace_the_usual_ones() {
        let own = [
            ("Host".to_owned(), "example.com".to_owned()),
            ("User-Agent".to_owned(), String::new()),
            ("X-A".to_owned(), "1".to_owned()),
            ("X-A".to_owned(), "2".to_owned()),
        ];
        let request = request(&target("h", "/"), &own, "agent/1").expect("request");
        let headers = request.headers();
        assert_eq!(headers[header::HOST], "example.com");
        assert!(!headers.contains_key(header::USER_AGENT));
        assert_eq!(headers[header::ACCEPT], "*/*");
        assert_eq!(headers.get_all("x-a").iter().count(), 2);
    }
}
