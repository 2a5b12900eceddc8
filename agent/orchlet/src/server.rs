//! The node's HTTPS endpoint, port 10250: logs, exec, attach and port-forward for the API server,
//! pods, usage and metrics for those who watch the node.
//!
//! A request is routed ([`routes`]), its client recognised and allowed ([`access`]), and then
//! answered from what the agent shows of itself ([`view::NodeView`]). The endpoint decides nothing
//! about pods and keeps nothing.

pub mod access;
pub mod agent;
pub mod logs;
pub mod measure;
pub mod open;
pub mod routes;
pub mod stats;
pub mod tls;
pub mod view;

mod cadvisor;
mod exposition;
mod pages;
mod query;
mod resource_metrics;
mod stream;
mod system_logs;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use proto_api::authentication::v1::UserInfo;
use proto_api::names::Names;
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use proto_daemon::panics::{IsolatedExecutor, isolate};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::metrics::AgentMetrics;
use access::{Access, Refused};
use pages::text;
use routes::{NoRoute, Switch};
use tls::ServerTls;
use view::{NodeView, ViewError};

/// Connections served at a time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Sessions and followed logs at a time; a further one gets 429.
const LONG_REQUESTS_MAX: usize = 128;
/// For the TLS handshake, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The endpoint, bound to its address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    tls: ServerTls,
    service: Arc<Service>,
}

/// What requests are answered from.
pub struct Service {
    /// Who may what.
    pub access: Access,
    /// The agent.
    pub view: Arc<dyn NodeView>,
    /// Health, metrics, task status.
    pub pages: AdminPages,
    /// The naming profile.
    pub names: &'static Names,
    /// Which pages are switched on.
    pub switches: Switches,
    /// Directory shown at `/logs/`.
    pub system_logs_dir: PathBuf,
    /// Metrics of probes, as text.
    pub probes: Box<dyn Fn() -> String + Send + Sync>,
    /// Requests, counted.
    pub metrics: AgentMetrics,
    /// Sessions and followed logs.
    pub long_requests: Arc<Semaphore>,
}

/// Which pages are switched on, by the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// `enableDebuggingHandlers`.
    pub debugging: bool,
    /// `enableSystemLogHandler`.
    pub system_logs: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub flags: bool,
    /// The gate `ContainerCheckpoint`.
    pub checkpoint: bool,
}

impl Switches {
    fn is_on(self, switch: Switch) -> bool {
        match switch {
            Switch::Always => true,
            Switch::Debugging => self.debugging,
            Switch::SystemLogs => self.debugging && self.system_logs,
            Switch::Profiling => self.debugging && self.profiling,
            Switch::Flags => self.debugging && self.flags,
            Switch::Checkpoint => self.checkpoint,
        }
    }
}

/// Sessions and followed logs that may be open at a time.
pub fn long_requests() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(LONG_REQUESTS_MAX))
}

impl Server {
    /// Takes the address; port 0 takes a free one.
    pub async fn bind(address: SocketAddr, tls: ServerTls, service: Service) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener, tls, service: Arc::new(service) })
    }

    /// The real address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until drained. Sessions that are open then end with the process.
    pub async fn run(self, drain: DrainWatch) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Both arms are cancel safe: a permit or a connection not taken is taken next time.
            let (slot, accepted) = tokio::select! {
                () = drain.asked() => return,
                taken = async {
                    let slot = slots.clone().acquire_owned().await;
                    (slot, self.listener.accept().await)
                } => taken,
            };
            let config = match (accepted, self.tls.config()) {
                (Ok((socket, _)), Ok(config)) => Some((socket, config)),
                (Ok(_), Err(error)) => {
                    tracing::warn!(error = chain(&error), "no certificate for a connection");
                    None
                }
                // Out of descriptors, most likely: let others close some.
                (Err(_), _) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    None
                }
            };
            if let Some((socket, config)) = config {
                tokio::spawn(isolate(connection(
                    self.service.clone(),
                    TlsAcceptor::from(config),
                    socket,
                    slot.ok(),
                )));
            }
        }
    }
}

async fn connection(
    service: Arc<Service>,
    acceptor: TlsAcceptor,
    socket: TcpStream,
    _slot: Option<OwnedSemaphorePermit>,
) {
    let _ = socket.set_nodelay(true);
    let Ok(Ok(stream)) = timeout(HEAD_TIMEOUT, acceptor.accept(socket)).await else { return };
    let chain = stream.get_ref().1.peer_certificates();
    let certified =
        chain.and_then(|chain| chain.first()).and_then(tls::certified_user).map(Arc::new);
    let answer = service_fn(move |request| {
        let (service, certified) = (service.clone(), certified.clone());
        async move {
            let answer = isolate(service.answer(request, certified.as_deref())).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|panicked| text(500, &panicked.to_string())))
        }
    });
    let mut builder = auto::Builder::new(IsolatedExecutor);
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(128)
        .keep_alive_interval(Duration::from_secs(30));
    // A client that goes away is its own affair.
    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), answer).await;
}

impl Service {
    /// Answers one request, and counts it.
    async fn answer(
        &self,
        request: Request<Incoming>,
        certified: Option<&UserInfo>,
    ) -> Response<Body> {
        let page = routes::page_name(request.uri().path());
        let long = matches!(page, "exec" | "attach" | "portForward" | "containerLogs" | "logs");
        let method = request.method().as_str().to_owned();
        let labels = [method.as_str(), page, "readwrite", if long { "true" } else { "false" }];
        self.metrics.http_requests.with_label_values(&labels).inc();
        self.metrics.http_inflight.with_label_values(&labels).inc();
        let began = Instant::now();
        let response = self.decide(request, certified).await;
        self.metrics.http_inflight.with_label_values(&labels).dec();
        let took = began.elapsed().as_secs_f64();
        self.metrics.http_seconds.with_label_values(&labels).observe(took);
        response
    }

    async fn decide(
        &self,
        request: Request<Incoming>,
        certified: Option<&UserInfo>,
    ) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let permission = routes::permission(request.method(), &path);
        let authorization =
            request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if let Err(refused) = self.access.check(certified, authorization, permission).await {
            return match refused {
                Refused::Unknown => text(401, "Unauthorized"),
                Refused::Forbidden(why) => text(403, &why),
                Refused::CannotTell(why) => text(500, &why),
            };
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

#[cfg(test)]
mod tests;
