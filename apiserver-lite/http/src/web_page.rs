//! The web page: nodes, pods, events and logs in a browser, read-only. It is one constant document without data of the cluster; its script asks the API with
//! the user's own credentials: a client certificate of the browser, or a bearer token that is typed in and kept in the page's memory.
//!
//! It is served where a flag says so. A browser cannot send a token with the request for a page, so it needs no credentials, as health checks do; where
//! anonymous requests are refused it needs a certificate and the right to `get` its path.

use std::sync::Arc;

use apiserver_core::status::ApiError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Method, Response};
use proto_api::names::Names;
use ring::digest::{SHA256, digest};

use crate::body::{ResponseBody, bytes_response};

/// Where it is served.
pub const PATH: &str = "/ui/";

const PAGE: &str = include_str!("web_page/page.html");

/// The page is not shown in frames, is not cached, and sends no referrer.
fn fixed_headers() -> [(HeaderName, &'static str); 6] {
    [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ]
}

/// The page as this server serves it.
#[derive(Clone, Debug)]
pub struct WebPage(Arc<RenderedPage>);

#[derive(Debug)]
struct RenderedPage {
    document: Bytes,
    policy: HeaderValue,
}

impl WebPage {
    /// With the names of this server.
    pub fn new(names: &Names) -> Self {
        let document = PAGE.replacen("META_GROUP", &names.group("meta"), 1);
        let policy = policy(&document);
        Self(Arc::new(RenderedPage { document: Bytes::from(document), policy }))
    }

    /// Whether it lies at a path.
    pub fn is_at(path: &str) -> bool {
        path == PATH || path == PATH.trim_end_matches('/')
    }

    /// The page.
    ///
    /// # Errors
    /// 405 for methods other than GET and HEAD.
    pub fn serve(&self, method: &Method) -> Result<Response<ResponseBody>, ApiError> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return Err(ApiError::method_not_allowed());
        }
        let mut response = bytes_response(200, "text/html; charset=utf-8", self.0.document.clone());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.0.policy.clone());
        for (name, value) in fixed_headers() {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Ok(response)
    }
}

/// What the browser may do for this page: run its one script, use its one style, ask this server.
fn policy(document: &str) -> HeaderValue {
    let hash = |tag: &str| {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        let text = document.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
        let text = text.map_or("", |(text, _)| text);
        format!("'sha256-{}'", STANDARD.encode(digest(&SHA256, text.as_bytes())))
    };
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash("script"),
        hash("style")
    );
    // Letters, digits and signs of ASCII.
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    #[test]
    fn the_browser_runs_its_one_script_and_nothing_else() {
        for profile in [Profile::Kubernetes, Profile::default()] {
            let names = Names::new(profile);
            let page = WebPage::new(names);
            let document = std::str::from_utf8(&page.0.document).expect("text");
            assert!(document.contains(&format!("data-meta-group=\"{}\"", names.group("meta"))));
            assert_eq!(document.matches("<script").count(), 1);
            assert_eq!(document.matches("<style").count(), 1);
            let policy = page.0.policy.to_str().expect("text");
            assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
            assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
    }

    #[test]
    fn text_never_becomes_markup_and_nothing_is_loaded_or_kept() {
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "setTimeout(\"",
            "localStorage",
            "sessionStorage",
            "indexedDB",
            "cookie",
            "http://",
            "https://",
            "src=",
            "import(",
            "import ",
            "style=",
            "onclick=",
            "onload=",
            "onerror=",
        ] {
            assert!(!PAGE.contains(word), "the page has {word}");
        }
    }

    #[test]
    fn only_its_path_and_only_reads_are_answered() {
        let page = WebPage::new(Names::new(Profile::Kubernetes));
        let response = page.serve(&Method::GET).expect("the page");
        assert_eq!(response.headers()[header::X_FRAME_OPTIONS], "DENY");
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(page.serve(&Method::POST).expect_err("refused").code(), 405);
        for path in ["/ui/", "/ui"] {
            assert!(WebPage::is_at(path), "{path}");
        }
        for path in ["/", "/uix", "/ui/x", "/ui//", "/UI/", "/ui/../metrics"] {
            assert!(!WebPage::is_at(path), "{path}");
        }
    }
}
