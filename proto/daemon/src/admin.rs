//! Health, metrics and status over HTTP: a handler that any server can call first, and a plain-HTTP listener for programs without another server.
//! Answers come from memory and never wait for the program's work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::connections::admission::Bounds;
use crate::connections::{Connections, Limits, OpenRequest};
use crate::drain::DrainWatch;
use crate::health::{Health, Probe};
use crate::metrics::{self, Metrics};
use crate::panics::isolate;
use crate::statusz::StatusBoard;

/// Limits of connections: probes and scrapers have one each. No client authenticates, so half of the connections suffice.
const LIMITS: Limits = Limits {
    bounds: Bounds {
        total: 128,
        unauthenticated: 64,
        unauthenticated_per_peer: 48,
        authenticated_per_peer: 128,
        authenticated_per_user: 128,
    },
    handshake: HEAD_TIMEOUT,
    first_request: HEAD_TIMEOUT,
    unauthorized: Duration::from_secs(30),
    answered: Duration::from_secs(60),
    idle: Duration::from_secs(90),
    streams: 16,
};
/// Longest time until the head of the first request is complete.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers `/healthz`, `/livez`, `/readyz` (and one check below each), `/metrics` and `/statusz`.
#[derive(Clone)]
pub struct AdminPages {
    /// The checks.
    pub health: Health,
    /// The registry.
    pub metrics: Metrics,
    /// The tasks.
    pub status: StatusBoard,
}

impl AdminPages {
    /// The answer to a request; `None` for a path that is not one of these pages.
    pub fn answer<B>(&self, request: &Request<B>) -> Option<Response<Full<Bytes>>> {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        let (page, rest) = match path.trim_start_matches('/').split_once('/') {
            Some((page, rest)) => (page, rest),
            None => (path.trim_start_matches('/'), ""),
        };
        let probe = match page {
            "healthz" => Some(Probe::Health),
            "livez" => Some(Probe::Live),
            "readyz" => Some(Probe::Ready),
            _ => None,
        };
        if probe.is_none() && !matches!(path, "/metrics" | "/statusz") {
            return None;
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return Some(page_of(
                405,
                "text/plain; charset=utf-8",
                "method not allowed\n".to_owned(),
            ));
        }
        Some(match (probe, path) {
            (Some(probe), _) => {
                let answer = self.health.answer(probe, rest, query);
                page_of(answer.status, "text/plain; charset=utf-8", answer.body)
            }
            (None, "/metrics") => page_of(200, metrics::CONTENT_TYPE, self.metrics.text()),
            (None, _) if wants_json(request) => {
                page_of(200, "application/json", self.status.json())
            }
            (None, _) => page_of(200, "text/plain; charset=utf-8", self.status.text()),
        })
    }
}

/// JSON when the client names it, by header or by `?format=json`.
fn wants_json<B>(request: &Request<B>) -> bool {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accepts.is_some_and(|accepts| accepts.contains("application/json"))
        || request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == "format=json"))
}

/// A page of that text.
pub fn page_of(status: u16, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    response
}

/// The pages on a socket of their own.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl AdminServer {
    /// Binds the address; port 0 binds a free one.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Binds the address, if there is one.
    pub async fn bind_if(address: Option<SocketAddr>) -> std::io::Result<Option<Self>> {
        match address {
            Some(address) => Self::bind(address).await.map(Some),
            None => Ok(None),
        }
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the pages until the drain `until` begins.
    pub async fn run(self, pages: AdminPages, until: DrainWatch) {
        let pages = Arc::new(pages);
        let answer = move |request: &Request<Incoming>| {
            pages.answer(request).unwrap_or_else(|| {
                page_of(404, "text/plain; charset=utf-8", "404 page not found\n".to_owned())
            })
        };
        self.serve(answer, until).await;
    }

    /// Answers every request with `answer` until the drain `until` begins; requests in flight are completed.
    pub async fn serve<F>(self, answer: F, until: DrainWatch)
    where
        F: Fn(&Request<Incoming>) -> Response<Full<Bytes>> + Clone + Send + Sync + 'static,
    {
        let connections = Connections::new(LIMITS, None);
        loop {
            // Both arms are cancel safe: a connection not taken stays in the kernel's queue.
            let (socket, place) = tokio::select! {
                () = until.asked() => return,
                taken = connections.accept(&self.listener) => taken,
            };
            let (answer, until) = (answer.clone(), until.clone());
            tokio::spawn(async move {
                let handler = |request: Request<Incoming>, _: OpenRequest| {
                    std::future::ready(answer(&request))
                };
                // A client may disconnect at any time.
                let _ = isolate(place.serve(socket, handler, until.asked())).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::drain::{Drain, DrainOutcome};
    use crate::metrics::BuildInfo;
    use crate::ready::Readiness;

    fn pages() -> AdminPages {
        let build = BuildInfo { version: "1", commit: "c" };
        AdminPages {
            health: Health::new(Readiness::default()),
            metrics: Metrics::new("x", build).expect("valid names"),
            status: StatusBoard::default(),
        }
    }

    #[test]
    fn answers_its_own_pages_only() {
        let pages = pages();
        let status = |method: &str, uri: &str| {
            let request = Request::builder().method(method).uri(uri).body(()).expect("valid");
            pages.answer(&request).map(|response| response.status().as_u16())
        };
        assert_eq!(status("GET", "/healthz"), Some(200));
        assert_eq!(status("HEAD", "/livez/ping?verbose"), Some(200));
        assert_eq!(status("GET", "/readyz/none"), Some(404));
        assert_eq!(status("GET", "/metrics"), Some(200));
        assert_eq!(status("GET", "/statusz?format=json"), Some(200));
        assert_eq!(status("POST", "/healthz"), Some(405));
        assert_eq!(status("GET", "/api"), None);
        assert_eq!(status("GET", "/metrics/resource"), None);
    }

    #[tokio::test]
    async fn the_admin_server_serves_on_its_reported_address() {
        let drain = Drain::default();
        let server = AdminServer::bind(([127, 0, 0, 1], 0).into()).await.expect("bound");
        let address = server.address();
        let running = tokio::spawn(server.run(pages(), drain.watch()));
        let mut socket = TcpStream::connect(address).await.expect("connected");
        let request = b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        socket.write_all(request).await.expect("sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("answered");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\nok"),
            "{answer}"
        );
        assert_eq!(drain.drain(Duration::from_secs(60)).await, DrainOutcome::Finished);
        running.await.expect("ended");
    }
}
