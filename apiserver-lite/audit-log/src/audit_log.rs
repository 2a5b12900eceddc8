//! The audit log of a server: the policy, and where its events go.

use std::path::PathBuf;

use apiserver_audit::{
    AuditAttributes, AuditSettings, Level, LogPath, LogSettings, Policy, RequestHead, Stage, Trail,
};
use apiserver_auth::WebhookError;
use bytes::Bytes;
use proto_api::names::Names;
use proto_daemon::panics;

use crate::log_writer::{self, AuditLogOutput};
use crate::metrics::AuditMetrics;
use crate::queue::{Queue, queue};
use crate::rotating_file::{RotatingFile, Rotation};
use crate::webhook_sender::WebhookSender;

/// Bytes of an event whose objects may be left out.
const LARGE_LEN: usize = 64 << 10;

/// Sends audit events to the log file and the webhook, each through a bounded queue.
pub struct AuditLog {
    policy: Policy,
    api_version: String,
    queues: Vec<Queue>,
    metrics: AuditMetrics,
}

/// The audit log cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum AuditLogError {
    /// Its file cannot be opened.
    #[error("cannot open the audit log {path}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Its thread cannot be started.
    #[error("cannot start the thread of the audit log")]
    Thread(#[source] std::io::Error),
    /// Its webhook cannot be used.
    #[error("cannot use the webhook of the audit log")]
    Webhook(#[from] WebhookError),
    /// Its metrics cannot be registered.
    #[error("cannot register the metrics of the audit log")]
    Metrics(#[from] prometheus::Error),
}

impl AuditLog {
    /// Opens what the settings name. Runs inside a runtime.
    ///
    /// # Errors
    /// A file or webhook that cannot be used.
    pub fn open(
        policy: Policy,
        settings: &AuditSettings,
        names: &'static Names,
        registry: &proto_daemon::metrics::Metrics,
    ) -> Result<Self, AuditLogError> {
        let metrics = AuditMetrics::new(registry)?;
        let mut queues = Vec::new();
        if let Some(log) = &settings.log {
            let output = output(log)?;
            let (sending, jobs) = queue(log.mode, metrics.clone());
            log_writer::start(output, jobs, metrics.clone()).map_err(AuditLogError::Thread)?;
            queues.push(sending);
        }
        if let Some(webhook) = &settings.webhook {
            let sender = WebhookSender::load(webhook, names, metrics.clone())?;
            let (sending, jobs) = queue(webhook.mode, metrics.clone());
            panics::spawn(sender.run(jobs));
            queues.push(sending);
        }
        Ok(Self { policy, api_version: names.api_version("audit", "v1"), queues, metrics })
    }

    /// The record of a request, as the policy says; `head` is asked for only if something is recorded.
    pub fn begin(
        &self,
        request: &AuditAttributes<'_>,
        head: impl FnOnce() -> RequestHead,
    ) -> Option<Trail> {
        let decision = self.policy.decide(request);
        self.metrics.level(decision.level);
        if decision.level == Level::None {
            return None;
        }
        let head = RequestHead { api_version: self.api_version.clone(), ..head() };
        Some(Trail::new(decision, head))
    }

    /// Stores the event of a stage as the modes say; false if the request must not go on without it.
    pub async fn record(&self, trail: &Trail, stage: Stage, micros: i64) -> bool {
        let Some(event) = self.event(trail, stage, micros) else { return true };
        self.metrics.event();
        let mut unsent = Unsent { queues: &self.queues, event };
        let mut waiting = Vec::new();
        while let Some((queue, rest)) = unsent.queues.split_first() {
            waiting.push((queue, queue.send(unsent.event.clone()).await));
            unsent.queues = rest;
        }
        let mut stored = true;
        for (queue, outcome) in waiting {
            stored &= queue.is_stored(outcome).await;
        }
        stored
    }

    /// Stores the event of a stage without a wait.
    pub fn submit(&self, trail: &Trail, stage: Stage, micros: i64) {
        if let Some(event) = self.event(trail, stage, micros) {
            self.metrics.event();
            self.queues.iter().for_each(|queue| queue.submit(event.clone()));
        }
    }

    /// The event of a stage; a large one without its objects, if a queue is half full of such: it has place for the events of others then.
    fn event(&self, trail: &Trail, stage: Stage, micros: i64) -> Option<Bytes> {
        let event = trail.event(stage, micros)?;
        if event.len() > LARGE_LEN && self.queues.iter().any(Queue::is_half_full) {
            trail.leave_out_objects();
            return trail.event(stage, micros).map(Bytes::from);
        }
        Some(Bytes::from(event))
    }

    /// Counts a request that was refused because its first event could not be stored.
    pub fn count_rejected(&self) {
        self.metrics.rejected();
    }

    /// Waits until what is queued is stored.
    pub async fn flush(&self) {
        for queue in &self.queues {
            queue.flush().await;
        }
    }
}

/// An event, and the queues that do not have it yet. If the client disconnects meanwhile, the queues get the event nevertheless.
struct Unsent<'a> {
    queues: &'a [Queue],
    event: Bytes,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.submit(self.event.clone()));
    }
}

fn output(log: &LogSettings) -> Result<AuditLogOutput, AuditLogError> {
    let LogPath::File(path) = &log.path else { return Ok(AuditLogOutput::Stdout) };
    let rotation = Rotation::new(log.max_size_mib, log.max_backups, log.max_age_days);
    let file = RotatingFile::open(path, rotation);
    file.map(AuditLogOutput::File)
        .map_err(|source| AuditLogError::Open { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use apiserver_audit::{BatchSettings, Mode, PolicyFile};
    use proto_api::names::Profile;
    use serde_json::{Value, json};

    use super::*;
    use crate::queue::AuditJob;

    fn settings(path: PathBuf, mode: Mode) -> AuditSettings {
        let log = LogSettings {
            path: LogPath::File(path),
            max_age_days: 0,
            max_backups: 0,
            max_size_mib: 0,
            mode,
        };
        AuditSettings { policy_file: PathBuf::new(), log: Some(log), webhook: None }
    }

    fn open(settings: &AuditSettings) -> (AuditLog, proto_daemon::metrics::Metrics) {
        let build = proto_daemon::metrics::BuildInfo { version: "1", commit: "c" };
        let registry = proto_daemon::metrics::Metrics::new("test", build).unwrap();
        let rules =
            json!({"rules": [{"level": "None", "users": ["nobody"]}, {"level": "Metadata"}]});
        let policy = Policy::new(serde_json::from_value::<PolicyFile>(rules).unwrap());
        let names = Names::new(Profile::Kubernetes);
        (AuditLog::open(policy, settings, names, &registry).unwrap(), registry)
    }

    fn request(user: &str) -> AuditAttributes<'_> {
        AuditAttributes {
            user: Some(user),
            groups: &[],
            verb: "get",
            resource: None,
            path: "/version",
        }
    }

    /// A log whose events arrive at these receivers.
    fn with_queues(level: &str, modes: &[Mode]) -> (AuditLog, Vec<crate::queue::AuditJobs>) {
        let build = proto_daemon::metrics::BuildInfo { version: "1", commit: "c" };
        let registry = proto_daemon::metrics::Metrics::new("test", build).unwrap();
        let metrics = AuditMetrics::new(&registry).unwrap();
        let rules = serde_json::from_value(json!({"rules": [{"level": level}]}));
        let policy = Policy::new(rules.unwrap());
        let (queues, jobs) = modes.iter().map(|mode| queue(*mode, metrics.clone())).unzip();
        (AuditLog { policy, api_version: String::new(), queues, metrics }, jobs)
    }

    #[tokio::test]
    async fn every_queue_gets_the_last_event_of_a_client_that_leaves() {
        // While the first one stores the event, and while it has no room for it.
        for (full, before) in [(false, 0), (true, 1024)] {
            let modes = [Mode::Blocking, Mode::BlockingStrict];
            let (log, mut all) = with_queues("Metadata", &modes);
            let trail = log.begin(&request("alice"), RequestHead::default).unwrap();
            (0..before).for_each(|_| log.queues[0].submit(Bytes::new()));
            {
                let recording = std::pin::pin!(log.record(&trail, Stage::ResponseComplete, 1));
                tokio::select! {
                    biased;
                    _ = recording => panic!("it was answered before it was stored"),
                    () = std::future::ready(()) => {}
                }
            }
            let second = all.pop().map(|mut jobs| jobs.jobs.try_recv().is_ok());
            assert_eq!(second, Some(true), "full: {full}");
            let mut first = all.pop().unwrap();
            for nth in 0..=before {
                assert!(first.jobs.recv().await.is_some(), "full: {full}, {nth}");
            }
        }
    }

    /// Who reads large objects again and again leaves the events of others their place.
    #[tokio::test]
    async fn large_events_are_without_objects_where_half_of_a_queue_is_full() {
        let max_wait = std::time::Duration::from_secs(1);
        let batch = BatchSettings { buffer_size: 1000, max_size: 10, max_wait, throttle: None };
        let (log, mut all) = with_queues("RequestResponse", &[Mode::Batch(batch)]);
        let object = format!("\"{}\"", "x".repeat(8 << 20));
        for _ in 0..20 {
            let trail = log.begin(&request("alice"), RequestHead::default).unwrap();
            trail.set_response_object(object.as_bytes());
            log.submit(&trail, Stage::ResponseComplete, 1);
        }
        let mut lens = Vec::new();
        while let Ok(AuditJob::Event(event, _)) = all[0].jobs.try_recv() {
            lens.push(event.len() >> 20);
        }
        assert_eq!(lens, [vec![8; 4], vec![0; 16]].concat());
    }

    #[tokio::test]
    async fn events_are_in_the_file_when_they_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let (log, registry) = open(&settings(path.clone(), Mode::BlockingStrict));
        assert!(log.begin(&request("nobody"), || panic!("nothing is recorded")).is_none());
        let trail = log.begin(&request("alice"), RequestHead::default).unwrap();
        assert!(log.record(&trail, Stage::RequestReceived, 1).await);
        log.submit(&trail, Stage::ResponseComplete, 2);
        log.flush().await;
        let text = std::fs::read_to_string(&path).unwrap();
        let events: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let stages: Vec<&str> = events.iter().filter_map(|event| event["stage"].as_str()).collect();
        assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
        assert_eq!(events[0]["apiVersion"], "audit.k8s.io/v1");
        let text = registry.text();
        for line in [
            "apiserver_audit_event_total 2",
            "apiserver_audit_level_total{level=\"None\"} 1",
            "apiserver_audit_level_total{level=\"Metadata\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
