//! What the two webhooks share: a review with a spec is posted to the URL of a client configuration file, and answered with its status. Equal reviews at the
//! same time are posted once, and no client takes more than its share of those on their way.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Uri, header};
use proto_api::names::Names;
use proto_client::config::{ClientConfigError, file};
use proto_client::transport::{ClientTlsError, TransportError};
use proto_client::{Client, ClientError};
use proto_daemon::exit::chain;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::expiring_cache::key;
use crate::fair_queue::{FairQueue, QueueEntry};
use crate::single_flight::SingleFlight;

/// Of requests to providers and webhooks.
pub const USER_AGENT: &str = concat!("orch-apiserver/", env!("CARGO_PKG_VERSION"));

/// Longest wait for an answer, all attempts together.
const DEADLINE: Duration = Duration::from_secs(30);
/// Attempts, and the pause after the first one; each further pause is half as long again, as in Kubernetes.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two lines in the log about failures.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// The version of the reviews that a webhook understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReviewVersion {
    /// `v1beta1`.
    #[default]
    V1Beta1,
    V1,
}

impl ReviewVersion {
    /// As in `apiVersion`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V1Beta1 => "v1beta1",
            Self::V1 => "v1",
        }
    }
}

/// A webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// Its client configuration file cannot be used.
    #[error("cannot use {path}")]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ClientConfigError,
    },
    /// Its certificates cannot be used.
    #[error("cannot use the certificates in {path}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: ClientTlsError,
    },
}

/// A webhook did not answer, or not as it should.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReviewError {
    /// It did not answer.
    #[error("the request to the webhook failed")]
    Call(#[source] Arc<ClientError>),
    /// It did not answer in time.
    #[error("the webhook did not answer within {DEADLINE:?}")]
    Deadline,
    /// Too many questions wait for it, of this client or of all.
    #[error("too many requests to the webhook are in flight")]
    Busy,
    /// The asking has failed in this process; the log says how.
    #[error("the request to the webhook was cancelled")]
    Failed,
    /// Its answer is not a review.
    #[error("the response of the webhook is not a review")]
    Answer(#[source] Arc<serde_json::Error>),
    /// Its answer is a review of another kind or version.
    #[error("the webhook answered with apiVersion {0:?} and kind {1:?}")]
    Kind(String, String),
    /// It could not decide.
    #[error("the webhook reported an evaluation error: {0}")]
    Undecided(String),
}

/// An answered review.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "S: DeserializeOwned + Default")]
struct Reviewed<S> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default = "S::default", deserialize_with = "null_is_empty")]
    status: S,
}

/// A remote service that answers reviews.
pub struct ReviewWebhook {
    service: Arc<Service>,
    /// `apiVersion` and `kind` of the reviews.
    api_version: String,
    kind: &'static str,
    queue: Arc<FairQueue>,
    flights: SingleFlight<Result<Bytes, ReviewError>>,
}

/// Where the service is.
struct Service {
    client: Client,
    path: String,
    warned: Mutex<Option<Instant>>,
}

impl ReviewWebhook {
    /// Reads the client configuration file at `config`. Its server is the whole URL to which reviews of the kind `kind` are posted.
    ///
    /// # Errors
    /// The file cannot be used. Files that it names are read with the first question.
    pub fn load(
        config: &Path,
        names: &'static Names,
        (short_group, version, kind): (&str, ReviewVersion, &'static str),
    ) -> Result<Self, WebhookError> {
        let loaded = file::load(config, None);
        let mut loaded =
            loaded.map_err(|source| WebhookError::Config { path: config.to_owned(), source })?;
        let (server, path) = server_and_path(&loaded.server);
        loaded.server = server;
        let client = Client::new(&loaded, names, USER_AGENT)
            .map_err(|source| WebhookError::Tls { path: config.to_owned(), source })?
            .with_deadline(DEADLINE);
        let api_version = format!("{}/{}", names.group(short_group), version.name());
        let service = Arc::new(Service { client, path, warned: Mutex::default() });
        let (queue, flights) = (FairQueue::new(), SingleFlight::new());
        Ok(Self { service, api_version, kind, queue, flights })
    }

    /// The status that the service gives a review with this spec, which is asked for `client`.
    ///
    /// # Errors
    /// The service did not answer in time, or with something else than a review of the same kind and version; or too many questions wait.
    pub async fn review<S: DeserializeOwned + Default>(
        &self,
        client: &str,
        spec: &Value,
    ) -> Result<S, ReviewError> {
        let answered = match self.post(client, spec).await {
            Ok(body) => self.read_answer(&body),
            Err(error) => Err(error),
        };
        answered.inspect_err(|error| self.service.warn(error))
    }

    async fn post(&self, client: &str, spec: &Value) -> Result<Bytes, ReviewError> {
        let review = json!({"apiVersion": self.api_version, "kind": self.kind, "spec": spec});
        let body = Bytes::from(review.to_string());
        let ask = || {
            let place = self.queue.enter(client).map_err(|_| ReviewError::Busy)?;
            let (service, body) = (self.service.clone(), body.clone());
            Ok(async move {
                let answer =
                    tokio::time::timeout(DEADLINE, service.post_with_retries(&place, body)).await;
                answer.unwrap_or(Err(ReviewError::Deadline))
            })
        };
        self.flights.answer(key(&body), ask).await?.ok_or(ReviewError::Failed)?
    }

    /// The status of an answer.
    ///
    /// # Errors
    /// It is no review of this kind and version.
    fn read_answer<S: DeserializeOwned + Default>(&self, body: &[u8]) -> Result<S, ReviewError> {
        read_status(body, &self.api_version, self.kind)
    }
}

/// The status in an answer to a review of this version and kind.
///
/// # Errors
/// It is no such review.
pub fn read_status<S: DeserializeOwned + Default>(
    body: &[u8],
    api_version: &str,
    kind: &str,
) -> Result<S, ReviewError> {
    let answer: Reviewed<S> =
        serde_json::from_slice(body).map_err(|error| ReviewError::Answer(Arc::new(error)))?;
    match answer.api_version == api_version && answer.kind == kind {
        true => Ok(answer.status),
        false => Err(ReviewError::Kind(answer.api_version, answer.kind)),
    }
}

impl Service {
    /// Tries again where Kubernetes does: after a broken connection, and when the service says that it is overloaded or has failed.
    async fn post_with_retries(
        &self,
        place: &QueueEntry,
        body: Bytes,
    ) -> Result<Bytes, ReviewError> {
        let (mut attempt, mut pause) = (1, FIRST_PAUSE);
        loop {
            let mut request = Request::new(body.clone());
            *request.method_mut() = Method::POST;
            *request.uri_mut() = self.path.parse().unwrap_or_else(|_| Uri::from_static("/"));
            let json = header::HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, json);
            let turn = place.wait().await;
            let answer = self.client.call(request).await;
            drop(turn);
            match answer {
                Ok(answer) => return Ok(answer.body),
                Err(error) if attempt < ATTEMPTS && may_pass(&error) => {
                    tracing::debug!(attempt, %error, "the webhook did not respond; retried");
                    tokio::time::sleep(pause).await;
                    attempt = attempt.saturating_add(1);
                    pause = pause.mul_f64(1.5);
                }
                Err(error) => return Err(ReviewError::Call(Arc::new(error))),
            }
        }
    }

    /// Logs a failure, unless one was logged just now: unauthenticated clients can cause them.
    fn warn(&self, error: &ReviewError) {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|at| now.duration_since(at) >= WARN_INTERVAL) {
            *warned = Some(now);
            let server = &self.client.config().server;
            tracing::warn!(%server, path = self.path, error = chain(error), "a request to the webhook failed");
        }
    }
}

/// Whether asking again may help.
fn may_pass(error: &ClientError) -> bool {
    match error.code() {
        Some(code) => matches!(code, 429 | 500 | 504),
        None => {
            matches!(error, ClientError::Transport { cause: TransportError::Broken { .. }, .. })
        }
    }
}

/// The server of a URL, and the path below it with the query.
pub fn server_and_path(url: &Uri) -> (Uri, String) {
    let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    (Uri::from_parts(parts).unwrap_or_else(|_| url.clone()), path)
}

/// For fields of an answer: `null` is the empty value, as in Go.
pub fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
pub mod testing {
    //! A webhook for tests: answers each review with what a function makes of it.

    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proto_client::testing::{StubServer, json_response};
    use serde_json::{Value, json};

    static NTH: AtomicU64 = AtomicU64::new(0);

    /// Serves on a port of its own; gives the client configuration file that leads to it.
    pub async fn serve(answer: impl Fn(Value) -> (u16, Value) + Send + Sync + 'static) -> PathBuf {
        let server = StubServer::start(move |request| {
            assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/review"));
            let review: Value = serde_json::from_slice(&request.body).unwrap();
            let kind = (review["apiVersion"].clone(), review["kind"].clone());
            let (code, mut answer) = answer(review);
            if let Some(answer) = answer.as_object_mut() {
                answer.entry("apiVersion").or_insert(kind.0);
                answer.entry("kind").or_insert(kind.1);
            }
            Some(json_response(code, &answer))
        });
        config(server.await.address)
    }

    /// A client configuration file that leads to a service at this address.
    pub fn config(address: SocketAddr) -> PathBuf {
        let server = format!("http://{address}/review");
        let config = json!({
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        });
        let nth = NTH.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("webhook-{}-{nth}.conf", std::process::id()));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}
