//! Requests as Kubernetes' dashboards count them: `rest_client_requests_total` and
//! `rest_client_request_duration_seconds`; who leads as `leader_election_master_status`.

use std::time::Duration;

use http::Method;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use proto_daemon::metrics::Metrics;

/// Upper ends in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Counts the requests of the clients that it is given to. Clones count together.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: IntCounterVec,
    durations: HistogramVec,
}

impl RequestMetrics {
    /// Registers both metrics; once a program.
    pub fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let requests = Opts::new(
            "rest_client_requests_total",
            "Number of HTTP requests, partitioned by status code, method, and host.",
        );
        let durations = HistogramOpts::new(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host.",
        )
        .buckets(BUCKETS.to_vec());
        Ok(Self {
            requests: metrics
                .register(IntCounterVec::new(requests, &["code", "host", "method"])?)?,
            durations: metrics.register(HistogramVec::new(durations, &["host", "verb"])?)?,
        })
    }

    /// Counts one request; `code` is not set when there was no answer. The time is that until the
    /// head of the answer, so that a watch counts as long as it took to begin.
    pub(crate) fn count(&self, method: &Method, host: &str, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.with_label_values(&[code.as_str(), host, method.as_str()]).inc();
        self.durations.with_label_values(&[host, method.as_str()]).observe(took.as_secs_f64());
    }
}

/// Whether this instance is the leader, by the name of the lease.
#[derive(Clone, Debug)]
pub struct LeaderMetrics(IntGaugeVec);

impl LeaderMetrics {
    /// Registers the metric; once a program.
    ///
    /// # Errors
    /// The name is registered already.
    pub fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let status = Opts::new(
            "leader_election_master_status",
            "1 if this instance is the leader of the lease, 0 if it waits.",
        );
        Ok(Self(metrics.register(IntGaugeVec::new(status, &["name"])?)?))
    }

    /// The gauge of a lease, which shows that this instance waits.
    pub(crate) fn gauge(&self, lease: &str) -> IntGauge {
        let gauge = self.0.with_label_values(&[lease]);
        gauge.set(0);
        gauge
    }
}
