//! io: the pages of a program over HTTPS, as kube-controller-manager and kube-scheduler do: health without authorization, metrics and task status
//! with the API server's authorization.

pub mod access;
pub mod flags;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use proto_api::authentication::v1::TokenReviewStatus;
use proto_api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use proto_daemon::admin::{AdminPages, page_of};
use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, Connections, Limits, OpenRequest};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::panics::isolate;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::{Client, ClientError};
use access::{Access, Question, Refused, Reviews};
use tls::{Certified, ConnectionTls, ServerTls};

/// Limits of connections: probes and scrapers have one each.
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
/// For the TLS handshake, and for the head of the first request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Who is known by a token, as far as connections are counted: there is no bound for a user here.
const BY_TOKEN: &str = "";
const TEXT: &str = "text/plain; charset=utf-8";

/// A page or the checks below one. Paths that are not in the table do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Page {
    verb: &'static str,
    path: &'static str,
}

/// The pages; a single check has a path below its page.
const PAGES: [(&str, &str); 5] = [
    ("/healthz", "/healthz/*"),
    ("/livez", "/livez/*"),
    ("/readyz", "/readyz/*"),
    ("/metrics", ""),
    ("/statusz", ""),
];

impl Page {
    fn from_request<B>(request: &Request<B>) -> Option<Self> {
        let verb = if *request.method() == Method::HEAD { "head" } else { "get" };
        let asked = request.uri().path();
        let path = PAGES.iter().find_map(|(page, below)| match asked.strip_prefix(page)? {
            "" => Some(*page),
            rest if rest.starts_with('/') && !below.is_empty() => Some(*below),
            _ => None,
        });
        path.map(|path| Self { verb, path })
    }
}

impl Question for Page {
    fn attributes(&self) -> SubjectAccessReviewSpec {
        let (path, verb) = (self.path.to_owned(), self.verb.to_owned());
        SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes { path, verb }),
            ..SubjectAccessReviewSpec::default()
        }
    }

    fn denial(&self, user: &str) -> String {
        format!("forbidden: User {user:?} cannot {} path {:?}", self.verb, self.path)
    }
}

/// The clients for token reviews and for access reviews.
pub struct ReviewClients {
    /// For token reviews.
    pub tokens: Client,
    /// For subject access reviews.
    pub access: Client,
}

impl Reviews for ReviewClients {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ClientError>> {
        self.tokens.token(token)
    }

    fn access<'a>(
        &'a self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'a, Result<SubjectAccessReviewStatus, ClientError>> {
        Reviews::access(&self.access, spec)
    }
}

/// The pages on a socket of their own, over HTTPS.
pub struct SecureServer {
    listener: TcpListener,
    address: SocketAddr,
    tls: ServerTls,
    guard: Guard,
}

/// Authentication and authorization.
struct Guard {
    access: Access<Page>,
    /// Paths without authorization; a `*` at the end matches any rest.
    open: Vec<String>,
}

impl SecureServer {
    /// Binds the address; port 0 binds a free one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn bind(
        address: SocketAddr,
        tls: ServerTls,
        rules: access::AccessRules,
        reviews: Box<dyn Reviews>,
        open: Vec<String>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let guard = Guard { access: Access::new(rules, reviews), open };
        Ok(Self { address: listener.local_addr()?, listener, tls, guard })
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the pages until the drain `until` begins; requests in flight are completed.
    pub async fn run(self, pages: AdminPages, until: DrainWatch) {
        let service = Arc::new(Service { guard: self.guard, pages });
        let connections = Connections::new(LIMITS, None);
        loop {
            // Both arms are cancel safe: a connection not taken stays in the kernel's queue.
            let (socket, place) = tokio::select! {
                () = until.asked() => return,
                taken = connections.accept(&self.listener) => taken,
            };
            match self.tls.config() {
                Ok(agreed) => {
                    let serving = service.clone().connection(agreed, socket, place, until.clone());
                    tokio::spawn(isolate(serving));
                }
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot load the serving certificate; the connection is closed"
                    );
                }
            }
        }
    }
}

struct Service {
    guard: Guard,
    pages: AdminPages,
}

impl Service {
    async fn connection(
        self: Arc<Self>,
        agreed: Arc<ConnectionTls>,
        socket: TcpStream,
        place: Connection,
        until: DrainWatch,
    ) {
        let acceptor = TlsAcceptor::from(agreed.config.clone());
        let Some(stream) = place.handshake(acceptor.accept(socket)).await else { return };
        let certified = agreed.certified(stream.get_ref().1.peer_certificates());
        match &certified {
            Some(Ok(user)) => place.authenticated(&user.username),
            Some(Err(reason)) => {
                tracing::info!(%reason, "a client certificate is not valid; the client is treated as anonymous or by its token")
            }
            None => {}
        }
        let certified = Arc::new(certified);
        let handler = move |request: Request<Incoming>, open: OpenRequest| {
            let (service, certified) = (self.clone(), certified.clone());
            async move {
                let answer = isolate(service.answer(&request, &certified, &open)).await;
                answer.unwrap_or_else(|panicked| page_of(500, TEXT, panicked.to_string()))
            }
        };
        // A client may disconnect at any time.
        let _ = place.serve(stream, handler, until.asked()).await;
    }

    async fn answer<B>(
        &self,
        request: &Request<B>,
        certified: &Certified,
        open: &OpenRequest,
    ) -> Response<Full<Bytes>> {
        let missing = || page_of(404, TEXT, "404 page not found\n".to_owned());
        let Some(page) = Page::from_request(request) else { return missing() };
        let authorization =
            request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match self.guard.check(request.uri().path(), page, certified, authorization).await {
            Ok(Seen::ByAll) => {}
            Ok(Seen::ByKnown) if self.guard.access.knows_by_token(authorization) => {
                open.connection().authenticated(BY_TOKEN);
            }
            Ok(Seen::ByKnown) => {}
            Err(Refused::Unknown) => return page_of(401, TEXT, "Unauthorized\n".to_owned()),
            Err(Refused::Forbidden(why)) => return page_of(403, TEXT, format!("{why}\n")),
            Err(Refused::CannotTell(why)) => return page_of(500, TEXT, format!("{why}\n")),
        }
        self.pages.answer(request).unwrap_or_else(missing)
    }
}

/// Who may read a page.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    ByAll,
    ByKnown,
}

impl Guard {
    async fn check(
        &self,
        path: &str,
        page: Page,
        certified: &Certified,
        authorization: Option<&str>,
    ) -> Result<Seen, Refused> {
        let fits = |open: &String| match open.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => path == open,
        };
        if self.open.iter().any(fits) {
            return Ok(Seen::ByAll);
        }
        self.access.check(certified, authorization, &page).await.map(|()| Seen::ByKnown)
    }
}

#[cfg(test)]
mod tests;
