//! The endpoint: takes connections, and serves their requests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response, header};
use hyper::body::Incoming;
use prometheus::IntGauge;
use proto_client::serving::tls::{Certified, ConnectionTls, ServerTls};
use proto_daemon::connections::admission::Bounds;
use proto_daemon::connections::{Connection, Connections, Limits, OpenRequest};
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::panics::isolate;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::access::Refused;
use crate::pages::text;
use crate::routes::{self, NoRoute, Switch};
use crate::service::{Body, Service};
use crate::view::ViewError;

/// Limits of connections. The API server opens one per log and session, with a client certificate;
/// scrapers open one each. A connection takes some 50 KiB. The idle timeout is that of Kubernetes'
/// API server.
const LIMITS: Limits = Limits {
    // Of the authenticated ones most are the API server's: sessions, and metrics.
    bounds: Bounds {
        total: 512,
        unauthenticated: 256,
        unauthenticated_per_peer: 128,
        authenticated_per_peer: 512,
        authenticated_per_user: 512,
    },
    handshake: HEAD_TIMEOUT,
    first_request: HEAD_TIMEOUT,
    unauthorized: Duration::from_secs(30),
    answered: Duration::from_secs(60),
    idle: Duration::from_secs(90),
    streams: 128,
};
/// Time limit of the TLS handshake and of the first request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Who is known by a token, as far as connections are counted: there is no bound for a user here.
const BY_TOKEN: &str = "";

/// The endpoint, bound to its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: ServerTls,
    service: Arc<Service>,
}

impl Server {
    /// Binds the address; port 0 selects a free port.
    pub async fn bind(address: SocketAddr, tls: ServerTls, service: Service) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener, tls, service: Arc::new(service) })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until drained. Open sessions end with the process.
    pub async fn run(self, drain: DrainWatch) {
        let closed = self.service.metrics.http_connections_closed.clone();
        let connections = Connections::new(LIMITS, Some(closed));
        loop {
            // Both arms are cancel safe: a connection that was not accepted stays in the kernel's
            // queue.
            let (socket, place) = tokio::select! {
                () = drain.asked() => return,
                taken = connections.accept(&self.listener) => taken,
            };
            match self.tls.config() {
                Ok(config) => {
                    tokio::spawn(isolate(connection(self.service.clone(), config, socket, place)));
                }
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "no serving certificate; the connection is closed"
                    );
                }
            }
        }
    }
}

async fn connection(
    service: Arc<Service>,
    agreed: Arc<ConnectionTls>,
    socket: TcpStream,
    place: Connection,
) {
    let acceptor = TlsAcceptor::from(agreed.config.clone());
    let Some(stream) = place.handshake(acceptor.accept(socket)).await else { return };
    let certified = agreed.certified(stream.get_ref().1.peer_certificates());
    match &certified {
        Some(Ok(user)) => place.authenticated(&user.username),
        Some(Err(reason)) => tracing::info!(
            %reason,
            "client certificate is not valid; the client is treated as anonymous or by its token"
        ),
        None => {}
    }
    let certified = Arc::new(certified);
    let handler = move |mut request: Request<Incoming>, open: OpenRequest| {
        request.extensions_mut().insert(open.address());
        let (service, peer) = (service.clone(), Peer { certified: certified.clone(), open });
        async move {
            let answer = isolate(service.serve(request, &peer)).await;
            answer.unwrap_or_else(|panicked| text(500, &panicked.to_string()))
        }
    };
    // Errors of the connection are the client's; open requests end with the process.
    let _ = place.serve(stream, handler, std::future::pending()).await;
}

/// The client of a request.
struct Peer {
    /// What the client certificate proves.
    certified: Arc<Certified>,
    open: OpenRequest,
}

impl Service {
    /// Serves one request and counts it.
    async fn serve(&self, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
        let page = routes::page_name(request.uri().path());
        let long = matches!(page, "exec" | "attach" | "portForward" | "containerLogs" | "logs");
        let method = routes::method_name(request.method());
        let labels = [method, page, "readwrite", if long { "true" } else { "false" }];
        self.metrics.http_requests.with_label_values(&labels).inc();
        let in_flight = InFlight::new(self.metrics.http_inflight.with_label_values(&labels));
        let began = Instant::now();
        let response = self.respond(request, peer, long).await;
        drop(in_flight);
        let took = began.elapsed().as_secs_f64();
        self.metrics.http_seconds.with_label_values(&labels).observe(took);
        response
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        is_stream: bool,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let permission = routes::permission(request.method(), &path);
        let authorization =
            request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Err(refused) = self.access.check(&peer.certified, authorization, permission).await {
            return match refused {
                Refused::Unknown => text(401, "Unauthorized"),
                Refused::Forbidden(why) => text(403, &why),
                Refused::CannotTell(why) => text(500, &why),
            };
        }
        match is_stream {
            true => peer.open.stream(),
            false => peer.open.authorized(),
        }
        if self.access.knows_by_token(authorization) {
            peer.open.connection().authenticated(BY_TOKEN);
        }
        match routes::route(request.method(), &path, |switch| self.switches.is_on(switch)) {
            Err(NoRoute::NotFound | NoRoute::SwitchedOff(Switch::Checkpoint)) => {
                text(404, "404 page not found")
            }
            Err(NoRoute::WrongMethod) => text(405, "405 method not allowed"),
            Err(NoRoute::SwitchedOff(Switch::Debugging)) => {
                text(405, "Debug endpoints are disabled.")
            }
            Err(NoRoute::SwitchedOff(_)) => text(405, "This endpoint is disabled."),
            Ok(route) => self.page(route, request).await.unwrap_or_else(|error| match error {
                ViewError::NotFound(why) => text(404, &why),
                ViewError::NotNow(why) => text(400, &why),
                ViewError::Failed(why) => text(500, &why),
            }),
        }
    }
}

/// Counts a request as in flight until dropped, also if the client disconnects.
struct InFlight(IntGauge);

impl InFlight {
    fn new(gauge: IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests;
