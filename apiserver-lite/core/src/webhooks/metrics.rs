//! Metrics of webhook calls, under kube-apiserver's names.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use proto_daemon::metrics::Metrics;

/// Upper ends of the duration buckets, in seconds.
const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Codes above are counted as this one: webhooks choose them.
const CODE_MAX: i32 = 600;

/// Metrics of webhook calls.
pub struct WebhookMetrics {
    durations: HistogramVec,
    requests: IntCounterVec,
    rejections: IntCounterVec,
    fail_open: IntCounterVec,
    condition_failures: IntCounterVec,
    exclusions: IntCounterVec,
}

/// What is counted of a call besides its outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedWebhook<'a> {
    /// Name of the webhook.
    pub(crate) name: &'a str,
    /// `admit` of a mutating one, `validating` of another.
    pub(crate) phase: &'static str,
    /// Operation of the request.
    pub(crate) operation: &'static str,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectionCause {
    /// The webhook denies it.
    Denied,
    /// The webhook cannot be called.
    Call,
    /// What the webhook answers cannot be carried out.
    Server,
}

impl RejectionCause {
    fn name(self) -> &'static str {
        match self {
            Self::Denied => "no_error",
            Self::Call => "calling_webhook_error",
            Self::Server => "apiserver_internal_error",
        }
    }
}

impl WebhookMetrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn new(registry: &Metrics) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            registry.register(IntCounterVec::new(Opts::new(name, help), labels)?)
        };
        let durations = HistogramOpts::new(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Time of a call of an admission webhook, in seconds.",
        );
        let labels = ["name", "type", "operation", "rejected"];
        let durations = HistogramVec::new(durations.buckets(BUCKETS.to_vec()), &labels)?;
        Ok(Self {
            durations: registry.register(durations)?,
            requests: counter(
                "apiserver_admission_webhook_request_total",
                "Calls of admission webhooks.",
                &["name", "type", "operation", "code", "rejected"],
            )?,
            rejections: counter(
                "apiserver_admission_webhook_rejection_count",
                "Requests refused by admission webhooks, or because they could not be asked.",
                &["name", "type", "operation", "error_type", "rejection_code"],
            )?,
            fail_open: counter(
                "apiserver_admission_webhook_fail_open_count",
                "Requests that go on although an admission webhook could not be asked.",
                &["name", "type"],
            )?,
            condition_failures: counter(
                "apiserver_admission_match_condition_evaluation_errors_total",
                "Requests for which match conditions could not be evaluated.",
                &CONDITION_LABELS,
            )?,
            exclusions: counter(
                "apiserver_admission_match_condition_exclusions_total",
                "Requests that match conditions exclude from the call of a webhook.",
                &CONDITION_LABELS,
            )?,
        })
    }

    /// Counts a call, with the code of the webhook's decision or of the failure and whether the request is refused for it.
    pub(crate) fn count_call(
        &self,
        call: AskedWebhook<'_>,
        took: Duration,
        code: i32,
        refused: Option<RejectionCause>,
    ) {
        let AskedWebhook { name, phase, operation } = call;
        let code = code.clamp(0, CODE_MAX).to_string();
        let rejected = if refused.is_some() { "true" } else { "false" };
        self.durations
            .with_label_values(&[name, phase, operation, rejected])
            .observe(took.as_secs_f64());
        self.requests.with_label_values(&[name, phase, operation, code.as_str(), rejected]).inc();
        if let Some(cause) = refused {
            let labels = [name, phase, operation, cause.name(), code.as_str()];
            self.rejections.with_label_values(&labels).inc();
        }
    }

    /// Counts a request about which a webhook is not called because a match condition does not hold.
    pub(crate) fn excluded(&self, call: AskedWebhook<'_>) {
        self.exclusions.with_label_values(&condition_labels(call)).inc();
    }

    /// Counts a request for which match conditions failed.
    pub(crate) fn condition_failed(&self, call: AskedWebhook<'_>) {
        self.condition_failures.with_label_values(&condition_labels(call)).inc();
    }

    /// Counts a request that is admitted although the webhook could not be called.
    pub(crate) fn failed_open(&self, call: AskedWebhook<'_>) {
        self.fail_open.with_label_values(&[call.name, call.phase]).inc();
    }
}

const CONDITION_LABELS: [&str; 4] = ["name", "kind", "type", "operation"];

fn condition_labels(call: AskedWebhook<'_>) -> [&str; 4] {
    [call.name, "webhook", call.phase, call.operation]
}
