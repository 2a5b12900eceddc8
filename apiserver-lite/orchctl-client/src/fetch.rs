//! Texts at URLs that a command line names: redirects are followed, and a server that fails for a moment is asked again.

use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use proto_client::{Client, ClientConfig, userinfo};

use crate::{CommandError, Session, proxies};

/// How many redirects are followed.
const REDIRECTS_MAX: usize = 10;
/// How often a URL is asked for, if its server fails, and the pause between.
const TRIES: usize = 3;
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// The time for each response, unless `--request-timeout` says another.
const DEADLINE: Duration = Duration::from_secs(30);

/// Why a URL cannot be read, as the end of a sentence.
#[derive(Debug, PartialEq, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    Said(String),
    #[error("{0}")]
    Status(StatusCode),
}

impl FetchError {
    fn new(text: impl Into<String>) -> Self {
        Self::Said(text.into())
    }
}

/// What a server said.
enum Page {
    Text(String),
    /// Where to look instead.
    Elsewhere(Uri),
}

/// The text at `url`, of at most `len_max` bytes. A user in a URL is for its server alone, not for others that it redirects to.
///
/// # Errors
/// When it cannot be read, is longer, or is not valid UTF-8; when there are too many redirects, or one leads from https to http.
pub async fn fetch(session: &Session, url: &str, len_max: usize) -> Result<String, CommandError> {
    let deadline = match session.timeout()? {
        Duration::ZERO => DEADLINE,
        timeout => timeout,
    };
    let wrong = |url: &dyn std::fmt::Display, why: FetchError| {
        CommandError::with_text(format!("unable to read URL \"{url}\": {why}"))
    };
    let parsed = url.parse().map_err(|_| wrong(&url, FetchError::new("it is not a URL")));
    let mut address: Uri = parsed?;
    let (shown, _) = userinfo::split(&address);
    let wrong = |why| wrong(&shown, why);
    for _ in 0..=REDIRECTS_MAX {
        match read(session, &address, deadline, len_max).await.map_err(wrong)? {
            Page::Text(text) => return Ok(text),
            Page::Elsewhere(next) => address = next,
        }
    }
    Err(wrong(FetchError::new(format!("stopped after {REDIRECTS_MAX} redirects"))))
}

/// What the server of a URL says, asked again while it fails.
async fn read(
    session: &Session,
    address: &Uri,
    deadline: Duration,
    len_max: usize,
) -> Result<Page, FetchError> {
    let mut tries = TRIES;
    loop {
        let asked = tokio::time::timeout(deadline, read_once(session, address, len_max)).await;
        let late = || FetchError::new(format!("no response within {} s", deadline.as_secs()));
        tries = tries.saturating_sub(1);
        match asked.unwrap_or_else(|_| Err(late())) {
            Err(FetchError::Status(status)) if status.is_server_error() && tries > 0 => {
                tokio::time::sleep(TRY_PAUSE).await;
            }
            asked => return asked,
        }
    }
}

async fn read_once(session: &Session, address: &Uri, len_max: usize) -> Result<Page, FetchError> {
    let said = |error: &(dyn std::error::Error + 'static)| {
        FetchError::new(proto_daemon::exit::chain(error))
    };
    let mut parts = address.clone().into_parts();
    let path = parts.path_and_query.replace(PathAndQuery::from_static("/"));
    let server = Uri::from_parts(parts).map_err(|error| said(&error))?;
    let mut config = ClientConfig::direct(server);
    session.complete_authorities(&mut config.tls);
    let names = <&proto_api::names::Names>::default();
    let proxy = proxies::of_environment(|name| session.variable(name), &config.server);
    let proxy = proxy.map_err(|error| said(&error))?;
    let client = Client::through(proxy.as_ref(), &config, names, "orchctl");
    let client = client.map_err(|error| said(&error))?;
    let path = path.as_ref().map_or("/", PathAndQuery::as_str);
    let mut request = Request::get(path).body(()).map_err(|error| said(&error))?;
    request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static("orchctl"));
    // Not `call`: redirects are errors there, and say no more where they lead.
    let response = client.forward_upgrade(request).await.map_err(|error| said(&error))?;
    let (head, body) = response.into_parts();
    if matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(Page::Elsewhere(redirect(address, &head.headers)?));
    }
    if !head.status.is_success() {
        return Err(FetchError::Status(head.status));
    }
    let body: Bytes = Limited::new(body, len_max)
        .collect()
        .await
        .map_err(|error| said(error.as_ref()))?
        .to_bytes();
    let text = String::from_utf8(body.to_vec());
    text.map(Page::Text).map_err(|_| FetchError::new("it is not valid UTF-8"))
}

/// Where a redirect of `from` leads.
fn redirect(from: &Uri, headers: &HeaderMap) -> Result<Uri, FetchError> {
    let location = headers.get(header::LOCATION).map(|value| escaped(value.as_bytes()));
    let location = location.ok_or_else(|| FetchError::new("a redirect says not where to"))?;
    let to = joined(from, &location);
    let to =
        to.ok_or_else(|| FetchError::new(format!("a redirect leads to {location:?}, no URL")))?;
    let is_kept = from.scheme() != Some(&Scheme::HTTPS) || to.scheme() == Some(&Scheme::HTTPS);
    if !is_kept {
        return Err(FetchError::new(format!("a redirect leads from https to {to}")));
    }
    Ok(to)
}

/// A reference whose bytes outside of ASCII, spaces and others that no URL has are percent-encoded.
fn escaped(reference: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => format!("%{byte:02X}"),
        b'!'..=b'~' => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    reference.iter().map(escape).collect()
}

/// The URL that a reference of `base` means, whole or without its first parts (RFC 3986, section 5.2).
fn joined(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next()?;
    let (place, query) = match reference.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (reference, None),
    };
    let is_whole = place.split('/').next()?.contains(':');
    let whole: Option<Uri> = match (is_whole, place.starts_with("//")) {
        (true, _) => Some(place.parse().ok()?),
        (false, true) => Some(format!("{}:{place}", base.scheme_str()?).parse().ok()?),
        (false, false) => None,
    };
    let base_path = base.path();
    let (path, query) = match &whole {
        Some(whole) => (whole.path().to_owned(), query),
        None if place.is_empty() => (base_path.to_owned(), query.or(base.query())),
        None if place.starts_with('/') => (place.to_owned(), query),
        None => {
            let directory = base_path.rsplit_once('/').map_or("", |(directory, _)| directory);
            (format!("{directory}/{place}"), query)
        }
    };
    let origin = whole.as_ref().unwrap_or(base);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let (scheme, host) = (origin.scheme_str()?, origin.authority()?);
    let uri: Uri = format!("{scheme}://{host}{}{query}", without_dots(&path)).parse().ok()?;
    let is_web = uri.scheme() == Some(&Scheme::HTTPS) || uri.scheme() == Some(&Scheme::HTTP);
    Some(uri).filter(|uri| is_web && uri.host().is_some_and(|host| !host.is_empty()))
}

/// An absolute path without `.` and `..`.
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            segment => {
                kept.push(segment);
                continue;
            }
        }
        // What ends in dots is a directory.
        if segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use proto_client::testing::StubServer;

    use super::*;

    #[test]
    fn redirects_lead_to_whole_and_relative_urls_but_never_from_https_to_http() {
        for (from, location, wanted) in [
            ("https://a/x/y.yaml", "https://b:1/z?q=1#part", Some("https://b:1/z?q=1")),
            ("https://a/x/y.yaml", "//b/z", Some("https://b/z")),
            ("https://a:2/x/y.yaml", "/z", Some("https://a:2/z")),
            ("https://a/x/y.yaml?q", "z.yaml", Some("https://a/x/z.yaml")),
            ("http://a", "z", Some("http://a/z")),
            ("http://a/x?q=1", "?q=2", Some("http://a/x?q=2")),
            ("http://a/x", "https://b/z", Some("https://b/z")),
            ("http://a/x/y/z?q=1", "../w", Some("http://a/x/w")),
            ("http://a/x/y/z", "../../../w", Some("http://a/w")),
            ("http://a/x/y/z", "./w/../v/.", Some("http://a/x/y/v/")),
            ("http://a/x/y/z", "..", Some("http://a/x/")),
            ("http://a/x/y/z", "/w/./../v?p=../q", Some("http://a/v?p=../q")),
            ("http://a/x/y/z", "//b:1/w/../v?q", Some("http://b:1/v?q")),
            ("http://a/x", "https://b/w/../z?a:b", Some("https://b/z?a:b")),
            ("http://a/x/y?q=1", "", Some("http://a/x/y?q=1")),
            ("http://a/x/y?q=1", "#part", Some("http://a/x/y?q=1")),
            ("http://a/x/y", "?p=a/../b:c", Some("http://a/x/y?p=a/../b:c")),
            ("http://a/x/y", "z?p=1:2", Some("http://a/x/z?p=1:2")),
            ("http://a/x/y", "./z:w", Some("http://a/x/z:w")),
            ("http://a/x/y", "%2e%2e/z", Some("http://a/x/%2e%2e/z")),
            ("http://a/x", "HTTP://b/z", Some("http://b/z")),
            (
                "http://a/x",
                "/ü y.yaml?q=é <z>#ö",
                Some("http://a/%C3%BC%20y.yaml?q=%C3%A9%20%3Cz%3E"),
            ),
            ("http://a/x", "https://b/%20ü", Some("https://b/%20%C3%BC")),
            ("http://u:p@a/x", "y", Some("http://u:p@a/y")),
            ("http://u:p@a/x", "http://a/y", Some("http://a/y")),
            ("http://a/x", "http://b c/y", None),
            ("https://a/x", "http://a/x", None),
            ("https://a/x", "HTTP://a/x", None),
            ("https://a/x", "file:///etc/passwd", None),
            ("https://a/x", "javascript:x", None),
            ("https://a/x", "https:///x", None),
        ] {
            let mut headers = HeaderMap::new();
            let location = HeaderValue::from_bytes(location.as_bytes()).expect("a header");
            headers.insert(header::LOCATION, location.clone());
            let from: Uri = from.parse().expect("a URL");
            let to = redirect(&from, &headers).map(|to| to.to_string());
            assert_eq!(to.as_deref().ok(), wanted, "{from} {location:?}: {to:?}");
        }
        let from = Uri::from_static("https://a/");
        assert!(redirect(&from, &HeaderMap::new()).is_err());
    }

    /// A server that says who asked it, and leads from `/to/REST` to what `leads` makes of `REST`.
    async fn server(leads: impl Fn(&str) -> String + Send + Sync + 'static) -> String {
        let server = StubServer::start(move |request| {
            if let Some(rest) = request.path.strip_prefix("/to/") {
                let response = http::Response::builder().status(302);
                let response = response.header(header::LOCATION, leads(rest));
                return response.body(Bytes::new()).ok();
            }
            let who = request.headers.get(header::AUTHORIZATION);
            let who = who.map_or("-", |who| who.to_str().expect("a text"));
            let host = request.headers[header::HOST].to_str().expect("a text");
            Some(http::Response::new(Bytes::from(format!("{host}{} {who}", request.path))))
        });
        server.await.address.to_string()
    }

    #[tokio::test]
    async fn a_user_of_a_url_is_for_its_server_alone() {
        let environment: crate::session::Environment = std::sync::Arc::new(|_| None);
        let flags = crate::GlobalFlags { request_timeout: "0".into(), ..Default::default() };
        let session = Session::new(flags, environment, Box::new(std::io::sink()));
        let other = server(|_| String::new()).await;
        let place = other.clone();
        let first = server(move |rest| match rest {
            "other" => format!("http://{place}/x"),
            "other-user" => format!("http://v:q@{place}/x"),
            _ => "/x".to_owned(),
        })
        .await;
        for (path, wanted) in [
            ("x", format!("{first}/x Basic dTpw")),
            ("to/same", format!("{first}/x Basic dTpw")),
            ("to/other", format!("{other}/x -")),
            ("to/other-user", format!("{other}/x Basic djpx")),
        ] {
            let url = format!("http://u:p@{first}/{path}");
            let text = fetch(&session, &url, 1000).await.expect("a text");
            assert_eq!(text, wanted, "{path}");
        }
        let error = fetch(&session, &format!("http://u:p@{first}/x"), 1).await.expect_err("long");
        assert!(error.to_string().contains(&format!("\"http://{first}/x\"")), "{error}");
    }
}
