//! The node's HTTPS endpoint, port 10250: logs, exec, attach and port-forward for the API server,
//! pods, usage and metrics for those who watch the node.
//!
//! A request is routed ([`routes`]), its client recognised and allowed ([`access`]), and then
//! answered from what the agent shows of itself ([`view::NodeView`]). The endpoint decides nothing
//! about pods and keeps nothing.

pub mod access;
pub mod agent;
pub mod logs;
pub mod open;
pub mod resource_metrics;
pub mod routes;
pub mod stats;
pub mod tls;
pub mod view;

mod query;
mod stream;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_runtime::runtime::Streams;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use proto_api::authentication::v1::UserInfo;
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_api::object;
use proto_daemon::admin::AdminPages;
use proto_daemon::drain::DrainWatch;
use proto_daemon::exit::chain;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use access::{Access, Refused};
use logs::LogOptions;
use query::Query;
use routes::{ContainerName, NoRoute, Route};
use stats::Extent;
use tls::ServerTls;
use view::{NodeView, Run, Session, ViewError};

/// Connections served at a time; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 256;
/// Sessions and followed logs at a time; a further one gets 429.
const LONG_REQUESTS_MAX: usize = 128;
/// For the TLS handshake, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A command of `/run` that takes longer is cut off.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Pieces of a log that wait for a slow client.
const LOG_PIECES_MAX: usize = 4;

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
    /// Sessions and followed logs.
    long_requests: Arc<Semaphore>,
}

impl Service {
    /// Puts the parts together.
    pub fn new(
        access: Access,
        view: Arc<dyn NodeView>,
        pages: AdminPages,
        names: &'static Names,
    ) -> Self {
        let long_requests = Arc::new(Semaphore::new(LONG_REQUESTS_MAX));
        Self { access, view, pages, names, long_requests }
    }
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
                tokio::spawn(connection(
                    self.service.clone(),
                    TlsAcceptor::from(config),
                    socket,
                    slot.ok(),
                ));
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
        async move { Ok::<_, Infallible>(service.answer(request, certified.as_deref()).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
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
    async fn answer(
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
        match routes::route(request.method(), &path) {
            Err(NoRoute::NotFound) => text(404, "404 page not found"),
            Err(NoRoute::WrongMethod) => text(405, "405 method not allowed"),
            Ok(route) => self.page(route, request).await.unwrap_or_else(|error| match error {
                ViewError::NotFound(why) => text(404, &why),
                ViewError::NotNow(why) => text(400, &why),
                ViewError::Failed(why) => text(500, &why),
            }),
        }
    }

    async fn page(
        &self,
        route: Route,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ViewError> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        Ok(match route {
            Route::Admin => match self.pages.answer(&request) {
                Some(response) => {
                    response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
                }
                None => text(404, "404 page not found"),
            },
            Route::Pods => self.pod_list(self.view.pods()),
            Route::RunningPods => self.pod_list(self.view.running_pods().await?),
            Route::Configz => json_body(&self.view.configuration()),
            Route::StatsSummary => {
                let extent = match query.get("only_cpu_and_memory") {
                    Some("true" | "1") => Extent::CpuAndMemory,
                    _ => Extent::Full,
                };
                json_body(&stats::summary(&self.view.stats().await?, extent))
            }
            Route::ResourceMetrics => {
                let metrics = resource_metrics::text(&self.view.stats().await?);
                body(200, proto_daemon::metrics::CONTENT_TYPE, Bytes::from(metrics))
            }
            Route::Logs(container) => self.log(container, &query).await?,
            Route::Run(container) => self.run(&container, &query).await?,
            Route::Exec(container) => {
                let command = query.all("command");
                if command.is_empty() {
                    return Err(ViewError::NotNow(
                        "you must specify at least 1 command".to_owned(),
                    ));
                }
                let session = Session::Exec { container, command, streams: streams(&query)? };
                self.session(request, session).await?
            }
            Route::Attach(container) => {
                let session = Session::Attach { container, streams: streams(&query)? };
                self.session(request, session).await?
            }
            Route::PortForward(pod) => {
                let ports =
                    query.all("port").iter().map(|port| port.parse()).collect::<Result<_, _>>();
                let ports =
                    ports.map_err(|_| ViewError::NotNow("port must be a number".to_owned()))?;
                self.session(request, Session::PortForward { pod, ports }).await?
            }
        })
    }

    fn pod_list(&self, pods: Vec<Pod>) -> Response<Body> {
        let items: Result<Vec<Value>, _> =
            pods.iter().map(|pod| object::to_json_value(pod, self.names)).collect();
        match items {
            Ok(items) => json_body(
                &json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}),
            ),
            Err(error) => text(500, &chain(&error)),
        }
    }

    async fn log(
        &self,
        container: ContainerName,
        query: &Query,
    ) -> Result<Response<Body>, ViewError> {
        let options = LogOptions::parse(query.pairs())
            .map_err(|error| ViewError::NotNow(error.to_string()))?;
        let run = if options.previous { Run::Previous } else { Run::Last };
        let file = self.view.log_file(&container, run).await?;
        let Ok(slot) = self.long_requests.clone().try_acquire_owned() else {
            return Ok(text(429, "too many logs and sessions are open"));
        };
        let (to, mut from) = mpsc::channel(LOG_PIECES_MAX);
        let view = self.view.clone();
        tokio::spawn(async move {
            let _slot = slot;
            let is_running = || {
                let (view, file) = (view.clone(), file.clone());
                async move { view.is_running(&file).await }
            };
            logs::send(file.path.clone(), options, is_running, to).await;
        });
        let pieces = futures_util::stream::poll_fn(move |cx| from.poll_recv(cx));
        let pieces = futures_util::StreamExt::map(pieces, |piece| piece.map(Frame::data));
        let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
        set_type(&mut response, "text/plain");
        Ok(response)
    }

    async fn run(
        &self,
        container: &ContainerName,
        query: &Query,
    ) -> Result<Response<Body>, ViewError> {
        // The ecosystem's form is one `cmd`, split at spaces.
        let command: Vec<String> =
            query.get("cmd").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            return Err(ViewError::NotNow("cmd is missing".to_owned()));
        }
        let output = self.view.run(container, &command, RUN_TIMEOUT).await?;
        let bytes = [output.stdout, output.stderr].concat();
        Ok(body(if output.code == 0 { 200 } else { 500 }, "text/plain", Bytes::from(bytes)))
    }

    async fn session(
        &self,
        request: Request<Incoming>,
        session: Session,
    ) -> Result<Response<Body>, ViewError> {
        if !request.headers().contains_key(header::UPGRADE) {
            return Err(ViewError::NotNow("the connection must be upgraded".to_owned()));
        }
        let Ok(slot) = self.long_requests.clone().try_acquire_owned() else {
            return Ok(text(429, "too many logs and sessions are open"));
        };
        let url = self.view.session(&session).await?;
        Ok(match stream::splice(request, &url, slot).await {
            Ok(response) => {
                response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
            Err(error) => text(502, &chain(&error)),
        })
    }
}

fn streams(query: &Query) -> Result<Streams, ViewError> {
    let on =
        |names: [&str; 2]| names.iter().any(|name| matches!(query.get(name), Some("1" | "true")));
    let tty = on(["tty", "tty"]);
    let streams = Streams {
        stdin: on(["input", "stdin"]),
        stdout: on(["output", "stdout"]),
        // A terminal has one output: the runtime refuses a second one.
        stderr: on(["error", "stderr"]) && !tty,
        tty,
    };
    if streams.stdin || streams.stdout || streams.stderr {
        return Ok(streams);
    }
    Err(ViewError::NotNow("you must specify at least 1 of stdin, stdout, stderr".to_owned()))
}

fn json_body(value: &Value) -> Response<Body> {
    body(200, "application/json", Bytes::from(value.to_string()))
}

/// A line for people.
fn text(status: u16, line: &str) -> Response<Body> {
    body(status, "text/plain; charset=utf-8", Bytes::from(format!("{line}\n")))
}

fn body(status: u16, content_type: &'static str, bytes: Bytes) -> Response<Body> {
    let bytes = Full::new(bytes).map_err(|never| match never {});
    let mut response = Response::new(bytes.boxed_unsync());
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    set_type(&mut response, content_type);
    response
}

fn set_type(response: &mut Response<Body>, content_type: &'static str) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

#[cfg(test)]
mod tests;
