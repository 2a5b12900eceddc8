//! Pages of the metrics server: those of every program, the effective configuration, and the proxy mode.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use proto_daemon::admin::{AdminPages, page_of};

use crate::config::Config;

const TEXT: &str = "text/plain; charset=utf-8";

/// Pages of the metrics server. Cheap to clone.
#[derive(Clone)]
pub struct MetricsPage {
    pages: AdminPages,
    configz: Bytes,
    mode: &'static str,
}

impl MetricsPage {
    /// `mode` is a name of `--proxy-mode`.
    pub fn new(pages: AdminPages, config: &Config, mode: &'static str) -> Self {
        Self { pages, configz: Bytes::from(config.configz.clone()), mode }
    }

    /// Answers a request.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if let Some(answer) = self.pages.answer(request) {
            return answer;
        }
        let page = match request.uri().path() {
            "/configz" => Some(("application/json", self.configz.clone())),
            "/proxyMode" => Some((TEXT, Bytes::from_static(self.mode.as_bytes()))),
            _ => None,
        };
        match (page, request.method()) {
            (None, _) => page_of(404, TEXT, "404 page not found\n".to_owned()),
            (Some((kind, body)), &Method::GET | &Method::HEAD) => {
                let mut response = page_of(200, kind, String::new());
                *response.body_mut() = Full::new(body);
                response
            }
            (Some(_), _) => page_of(405, TEXT, "method not allowed\n".to_owned()),
        }
    }
}
