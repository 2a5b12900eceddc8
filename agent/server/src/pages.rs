//! The handlers of the pages.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use agent_logs::{LogOptions, log_files, system_logs};
use agent_runtime::runtime::Streams;
use agent_telemetry::timeline;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use proto_api::core::v1::Pod;
use proto_api::object;
use proto_daemon::exit::chain;
use proto_daemon::panics;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;

use super::query::Query;
use super::request_permits::Lasting;
use super::routes::{ContainerName, PodName, Route};
use super::service::{Body, Service};
use super::stats::{self, SummaryScope};
use super::view::{LogRun, Session, ViewError};
use super::{cadvisor, resource_metrics, stream};

/// Time limit of a command of `/run`.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);
/// Chunks of a log that may wait for a slow client.
const LOG_PIECES_MAX: usize = 4;
/// Bytes of a system log file read at a time.
const FILE_BLOCK: usize = 64 << 10;
/// Longest body of a verbosity request.
const VERBOSITY_LEN: usize = 16;

impl Service {
    pub(super) async fn page(
        &self,
        route: Route,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ViewError> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        Ok(match route {
            Route::Admin => self.admin(&request),
            Route::Metrics => self.metrics().await,
            Route::ContainerMetrics => metrics_body(cadvisor::text(&self.view.stats().await?)),
            Route::ProbeMetrics => metrics_body((self.probes)()),
            Route::Spec => json_body(&self.view.machine()),
            Route::SystemLogs(path) => self.system_logs(path).await?,
            Route::Explain(pod) => self.explain(&request, &query, &pod)?,
            Route::Checkpoint(container) => self.checkpoint(&container, &query).await?,
            Route::Verbosity => set_verbosity(request).await?,
            Route::Profile => text(501, "this process makes no profiles"),
            Route::Pods => self.pod_list(self.view.pods()),
            Route::RunningPods => self.pod_list(self.view.running_pods().await?),
            Route::Configz => json_body(&self.view.configuration()),
            Route::StatsSummary => {
                let extent = match query.get("only_cpu_and_memory") {
                    Some("true" | "1") => SummaryScope::CpuAndMemory,
                    _ => SummaryScope::Full,
                };
                json_body(&stats::summary(&self.view.stats().await?, extent))
            }
            Route::ResourceMetrics => {
                metrics_body(resource_metrics::text(&self.view.stats().await?))
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

    fn admin(&self, request: &Request<Incoming>) -> Response<Body> {
        match self.pages.answer(request) {
            Some(response) => {
                response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
            None => text(404, "404 page not found"),
        }
    }

    /// The agent's metrics and the usage of volumes of claims.
    async fn metrics(&self) -> Response<Body> {
        let mut metrics = self.pages.metrics.text();
        let has_claims = |pod: &Pod| {
            let sources = pod.spec.volumes.iter().map(|volume| &volume.volume_source);
            let mut sources =
                sources.filter(|s| s.persistent_volume_claim.is_some() || s.ephemeral.is_some());
            sources.next().is_some()
        };
        if self.view.pods().iter().any(has_claims)
            && let Ok(stats) = self.view.stats().await
        {
            metrics.push_str(&cadvisor::volumes(&stats, self.names));
        }
        metrics_body(metrics)
    }

    async fn system_logs(&self, path: String) -> Result<Response<Body>, ViewError> {
        let root = self.system_logs_dir.clone();
        let opened = panics::spawn_blocking(move || system_logs::open(&root, &path)).await;
        let opened = opened
            .map_err(|error| ViewError::Failed(format!("opening the file panicked: {error}")))?;
        let file = match opened {
            Err(_) => return Ok(text(404, "404 page not found")),
            Ok(system_logs::LogEntry::Directory(page)) => {
                return Ok(body(200, "text/html; charset=utf-8", Bytes::from(page)));
            }
            Ok(system_logs::LogEntry::File(file)) => file,
        };
        let Some(permit) = self.permits.take("", Lasting::Short) else {
            return Ok(too_many_open());
        };
        let (to, from) = mpsc::channel(LOG_PIECES_MAX);
        panics::spawn(async move {
            let _permit = permit;
            send_file(file, &to).await;
        });
        Ok(streamed(from))
    }

    /// The timeline of a pod and why it is not ready; JSON if the client accepts it.
    fn explain(
        &self,
        request: &Request<Incoming>,
        query: &Query,
        name: &PodName,
    ) -> Result<Response<Body>, ViewError> {
        let pods = self.view.pods();
        let meta =
            |pod: &&Pod| pod.metadata.namespace == name.namespace && pod.metadata.name == name.name;
        let pod = pods.iter().find(meta);
        let timelines = self.view.timeline(&name.namespace, &name.name);
        if pod.is_none() && timelines.is_empty() {
            let (name, namespace) = (&name.name, &name.namespace);
            return Err(ViewError::NotFound(format!("pod {name}_{namespace} does not exist")));
        }
        let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let wants_json = accepts.is_some_and(|accepts| accepts.contains("application/json"))
            || query.get("format") == Some("json");
        Ok(if wants_json {
            json_body(&timeline::json_of(pod, &timelines))
        } else {
            let text = timeline::text_of(pod, &timelines);
            body(200, "text/plain; charset=utf-8", Bytes::from(text))
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
        let run = if options.previous { LogRun::Previous } else { LogRun::Last };
        let file = self.view.log_file(&container, run).await?;
        let lasting = if options.follow { Lasting::Long } else { Lasting::Short };
        let Some(permit) = self.permits.take(&container.pod.namespace, lasting) else {
            return Ok(too_many_open());
        };
        // An error can only be returned before the first chunk is sent.
        let path = file.path.clone();
        let opened = panics::spawn_blocking(move || log_files::read(&path)).await;
        let opened = opened.map_err(|error| ViewError::Failed(error.to_string()))?;
        if let Err(error) = opened
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(ViewError::Failed(format!("cannot open {}: {error}", file.path.display())));
        }
        let (to, from) = mpsc::channel(LOG_PIECES_MAX);
        let view = self.view.clone();
        panics::spawn(async move {
            let _permit = permit;
            let is_running = || {
                let (view, file) = (view.clone(), file.clone());
                async move { view.is_running(&file).await }
            };
            agent_logs::send(file.path.clone(), options, is_running, to).await;
        });
        Ok(streamed(from))
    }

    async fn run(
        &self,
        container: &ContainerName,
        query: &Query,
    ) -> Result<Response<Body>, ViewError> {
        // Kubernetes' form is one `cmd`, split at spaces.
        let command: Vec<String> =
            query.get("cmd").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            return Err(ViewError::NotNow("cmd is missing".to_owned()));
        }
        // Each may buffer the whole output of a command.
        let Some(_permit) = self.permits.take(&container.pod.namespace, Lasting::Long) else {
            return Ok(too_many_open());
        };
        let output = self.view.run(container, &command, RUN_TIMEOUT).await?;
        let bytes = [output.stdout, output.stderr].concat();
        Ok(body(if output.code == 0 { 200 } else { 500 }, "text/plain", Bytes::from(bytes)))
    }

    /// Returns the path of the archive in Kubernetes' form.
    async fn checkpoint(
        &self,
        container: &ContainerName,
        query: &Query,
    ) -> Result<Response<Body>, ViewError> {
        let timeout = match query.get("timeout") {
            None | Some("") => 0,
            Some(secs) => secs.parse::<u32>().map_err(|_| {
                ViewError::NotNow("cannot parse value of timeout parameter".to_owned())
            })?,
        };
        let timeout = Duration::from_secs(timeout.into());
        let archive = self.view.checkpoint(container, timeout).await.map_err(|error| {
            let ContainerName { pod, container } = container;
            match error {
                ViewError::Failed(why) => ViewError::Failed(format!(
                    "checkpointing of {}/{}/{container} failed ({why})",
                    pod.namespace, pod.name
                )),
                other => other,
            }
        })?;
        Ok(json_body(&json!({"items": [archive]})))
    }

    async fn session(
        &self,
        request: Request<Incoming>,
        session: Session,
    ) -> Result<Response<Body>, ViewError> {
        if !request.headers().contains_key(header::UPGRADE) {
            return Err(ViewError::NotNow("the connection must be upgraded".to_owned()));
        }
        let Some(permit) = self.permits.take(&session.pod().namespace, Lasting::Long) else {
            return Ok(too_many_open());
        };
        let url = self.view.session(&session).await?;
        let who = described(&session, request.extensions().get());
        Ok(match stream::splice(request, &url, permit, who).await {
            Ok(response) => {
                response.map(|body| body.map_err(|never| match never {}).boxed_unsync())
            }
            Err(error) => text(502, &chain(&error)),
        })
    }
}

/// Describes a session and its client for the log.
fn described(session: &Session, client: Option<&SocketAddr>) -> String {
    let action = match session {
        Session::Exec { .. } => "exec",
        Session::Attach { .. } => "attach",
        Session::PortForward { .. } => "port-forward",
    };
    let pod = session.pod();
    let client = client.map(ToString::to_string).unwrap_or_default();
    format!("{action} {}/{} from {client}", pod.namespace, pod.name)
}

fn streams(query: &Query) -> Result<Streams, ViewError> {
    let on =
        |names: [&str; 2]| names.iter().any(|name| matches!(query.get(name), Some("1" | "true")));
    let tty = on(["tty", "tty"]);
    let streams = Streams {
        stdin: on(["input", "stdin"]),
        stdout: on(["output", "stdout"]),
        // A terminal has one output stream: the runtime rejects a second one.
        stderr: on(["error", "stderr"]) && !tty,
        tty,
    };
    if streams.stdin || streams.stdout || streams.stderr {
        return Ok(streams);
    }
    Err(ViewError::NotNow("you must specify at least 1 of stdin, stdout, stderr".to_owned()))
}

/// Sets the log verbosity to the number in the body.
async fn set_verbosity(request: Request<Incoming>) -> Result<Response<Body>, ViewError> {
    let body = Limited::new(request.into_body(), VERBOSITY_LEN).collect().await;
    let body = body.map_err(|error| ViewError::NotNow(error.to_string()))?.to_bytes();
    let said = String::from_utf8_lossy(&body);
    let said = said.trim();
    let failed = |why: &str| {
        ViewError::NotNow(format!("failed to set klog.logging.verbosity {said}: {why}"))
    };
    let verbosity = said.parse::<u8>().map_err(|error| failed(&error.to_string()))?;
    proto_daemon::log::set_verbosity(verbosity).map_err(|error| failed(&error.to_string()))?;
    tracing::info!(verbosity, "the log verbosity was changed by a client");
    Ok(text(200, &format!("successfully set klog.logging.verbosity to {verbosity}")))
}

fn json_body(value: &Value) -> Response<Body> {
    body(200, "application/json", Bytes::from(value.to_string()))
}

/// The response to a session or log without a permit.
fn too_many_open() -> Response<Body> {
    text(429, "too many logs and sessions are open on this node, or of this namespace on it")
}

/// A plain text response.
pub(super) fn text(status: u16, line: &str) -> Response<Body> {
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

fn metrics_body(metrics: String) -> Response<Body> {
    body(200, proto_daemon::metrics::CONTENT_TYPE, Bytes::from(metrics))
}

/// A streamed response.
fn streamed(mut from: mpsc::Receiver<io::Result<Bytes>>) -> Response<Body> {
    let pieces = futures_util::stream::poll_fn(move |cx| from.poll_recv(cx));
    let pieces = futures_util::StreamExt::map(pieces, |piece| piece.map(Frame::data));
    let mut response = Response::new(StreamBody::new(pieces).boxed_unsync());
    set_type(&mut response, "text/plain");
    response
}

/// Sends a file to its end, or until the client disconnects. A client that pauses holds no thread.
async fn send_file(file: std::fs::File, to: &mpsc::Sender<io::Result<Bytes>>) {
    let mut file = tokio::fs::File::from_std(file);
    let mut block = vec![0; FILE_BLOCK];
    loop {
        let piece = match file.read(&mut block).await {
            Ok(0) => return,
            Ok(len) => Ok(Bytes::copy_from_slice(block.get(..len).unwrap_or_default())),
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if to.send(piece).await.is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many clients as there are threads have received a piece and pause.
    #[test]
    fn clients_that_pause_in_a_system_log_hold_no_threads() {
        const THREADS: usize = 2;
        let content = vec![b'x'; 4 * FILE_BLOCK];
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(THREADS).build().expect("runtime");
        runtime.block_on(async {
            let mut clients = Vec::new();
            for _ in 0..THREADS {
                let (to, mut from) = mpsc::channel(1);
                let mut file = tempfile::tempfile().expect("file");
                std::io::Write::write_all(&mut file, &content).expect("written");
                std::io::Seek::rewind(&mut file).expect("rewound");
                tokio::spawn(async move { send_file(file, &to).await });
                let piece = from.recv().await.expect("a piece").expect("read");
                clients.push((from, piece.to_vec()));
            }
            let other = tokio::task::spawn_blocking(|| 7);
            let other = tokio::time::timeout(Duration::from_secs(60), other).await;
            assert_eq!(other.expect("a thread is free").expect("joined"), 7);
            let (mut from, mut read) = clients.pop().expect("a client");
            while let Some(piece) = from.recv().await {
                read.extend_from_slice(&piece.expect("read"));
            }
            assert!(read == content, "it goes on where it paused");
        });
        // A thread that waits for a client would keep the runtime from ending.
        runtime.shutdown_background();
    }
}
