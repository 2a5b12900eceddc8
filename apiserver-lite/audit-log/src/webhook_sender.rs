//! The task that posts events to a remote service, as lists.

use std::path::Path;
use std::time::Duration;

use apiserver_audit::{BatchSettings, Mode, WebhookSettings};
use apiserver_auth::{WebhookError, server_and_path};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Uri, header};
use proto_api::names::Names;
use proto_client::Client;
use proto_client::config::file;
use proto_daemon::exit::chain;
use proto_daemon::rate::Rate;
use tokio::time::{Instant, timeout_at};

use crate::metrics::AuditMetrics;
use crate::queue::{AuditJobs, EventBatch, TAKEN_MAX};

const USER_AGENT: &str = concat!("orch-apiserver/", env!("CARGO_PKG_VERSION"));
/// Longest wait for one answer.
const DEADLINE: Duration = Duration::from_secs(30);
/// Attempts for one list; each pause between them is half as long again, as in Kubernetes.
const ATTEMPTS: u32 = 5;

/// Posts lists of events.
pub struct WebhookSender {
    client: Client,
    path: Uri,
    api_version: String,
    initial_backoff: Duration,
    batch: Option<BatchSettings>,
    metrics: AuditMetrics,
}

impl WebhookSender {
    /// Reads the client configuration, whose server is the whole URL of the service.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(
        settings: &WebhookSettings,
        names: &'static Names,
        metrics: AuditMetrics,
    ) -> Result<Self, WebhookError> {
        let (client, path) = client(&settings.config_file, names)?;
        Ok(Self {
            client,
            path,
            api_version: names.api_version("audit", "v1"),
            initial_backoff: settings.initial_backoff,
            batch: match settings.mode {
                Mode::Batch(batch) => Some(batch),
                Mode::Blocking | Mode::BlockingStrict => None,
            },
            metrics,
        })
    }

    /// Sends until the queue is closed. One list is on its way at a time, so events arrive in their order.
    pub async fn run(self, mut jobs: AuditJobs) {
        let throttle = self.batch.and_then(|batch| batch.throttle);
        let mut rate = throttle.map_or(Rate::new(0, 0), |of| Rate::new(of.per_second, of.burst));
        let started = Instant::now();
        while let Some(taken) = self.collect(&mut jobs).await {
            let stored = taken.events.is_empty() || {
                tokio::time::sleep(rate.take(started.elapsed())).await;
                self.send(&taken.events).await
            };
            taken.finish(stored);
        }
    }

    /// The next events: in the mode batch all that arrive until the list is full or has waited long enough, else those that are there.
    async fn collect(&self, jobs: &mut AuditJobs) -> Option<EventBatch> {
        let mut taken = EventBatch::default();
        let first = jobs.jobs.recv().await?;
        jobs.take(first, &mut taken);
        let Some(batch) = self.batch else {
            jobs.take_ready(&mut taken, TAKEN_MAX);
            return Some(taken);
        };
        let now = Instant::now();
        let until = now.checked_add(batch.max_wait).unwrap_or(now);
        while !taken.is_full(batch.max_size.max(1)) {
            // Cancel safe: a job that is not received stays in the queue.
            let Ok(Some(job)) = timeout_at(until, jobs.jobs.recv()).await else { break };
            jobs.take(job, &mut taken);
        }
        Some(taken)
    }

    async fn send(&self, events: &[Bytes]) -> bool {
        let body = event_list(&self.api_version, events);
        let (mut attempt, mut pause) = (1, self.initial_backoff);
        loop {
            let mut request = Request::new(body.clone());
            *request.method_mut() = Method::POST;
            request.uri_mut().clone_from(&self.path);
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, json);
            let Err(error) = self.client.call(request).await else { return true };
            if attempt >= ATTEMPTS {
                self.metrics.failed("webhook", events.len());
                let (server, events) = (&self.client.config().server, events.len());
                tracing::error!(%server, events, error = chain(&error), "cannot send events to the audit webhook; they are lost");
                return false;
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
            pause = pause.saturating_mul(3) / 2;
        }
    }
}

fn client(config: &Path, names: &'static Names) -> Result<(Client, Uri), WebhookError> {
    let unusable = |source| WebhookError::Config { path: config.to_owned(), source };
    let mut loaded = file::load(config, None).map_err(unusable)?;
    let (server, path) = server_and_path(&loaded.server);
    loaded.server = server;
    let client = Client::new(&loaded, names, USER_AGENT)
        .map_err(|source| WebhookError::Tls { path: config.to_owned(), source })?
        .with_deadline(DEADLINE);
    Ok((client, path.parse().unwrap_or_else(|_| Uri::from_static("/"))))
}

/// An `EventList` of encoded events.
fn event_list(api_version: &str, events: &[Bytes]) -> Bytes {
    let head = format!(
        "{{\"kind\":\"EventList\",\"apiVersion\":\"{api_version}\",\"metadata\":{{}},\"items\":["
    );
    let mut list = head.into_bytes();
    for (nth, event) in events.iter().enumerate() {
        if nth > 0 {
            list.push(b',');
        }
        list.extend_from_slice(event);
    }
    list.extend_from_slice(b"]}");
    Bytes::from(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_events_in_order() {
        let events = [Bytes::from_static(b"{\"a\":1}"), Bytes::from_static(b"{\"a\":2}")];
        assert_eq!(
            event_list("audit.k8s.io/v1", &events),
            r#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":[{"a":1},{"a":2}]}"#
        );
        let empty: serde_json::Value = serde_json::from_slice(&event_list("v", &[])).unwrap();
        assert_eq!(empty["items"], serde_json::json!([]));
    }
}
