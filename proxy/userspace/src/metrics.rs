//! Metrics of userspace forwarding.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts};
use proto_daemon::metrics::Metrics;

/// Metrics of the userspace forwarder; cheap to clone.
#[derive(Clone, Debug)]
pub struct ForwardMetrics {
    /// Started connections and sessions, by protocol.
    pub begun: IntCounterVec,
    /// Open connections and sessions, by protocol.
    pub open: IntGaugeVec,
    /// Endpoints that did not respond.
    pub unanswered: IntCounter,
    /// Connections and datagrams that were not forwarded, by reason: none (no endpoint), bound (limit), loop (the endpoint is
    /// a frontend of this process).
    pub refused: IntCounterVec,
}

impl ForwardMetrics {
    /// Registers the metrics with `prefix`.
    pub fn register(metrics: &Metrics, prefix: &str) -> Result<Self, prometheus::Error> {
        let options =
            |name: &str, help: &str| Opts::new(format!("{prefix}_userspace_{name}"), help);
        let begun = options("connections_total", "Connections and sessions started.");
        let open = options("connections", "Open connections and sessions.");
        let unanswered = options("unanswered_total", "Endpoints that did not respond.");
        let refused = options(
            "refused_total",
            "Connections and datagrams that were not forwarded, by reason.",
        );
        Ok(Self {
            begun: metrics.register(IntCounterVec::new(begun, &["protocol"])?)?,
            open: metrics.register(IntGaugeVec::new(open, &["protocol"])?)?,
            unanswered: metrics.register(IntCounter::with_opts(unanswered)?)?,
            refused: metrics.register(IntCounterVec::new(refused, &["reason"])?)?,
        })
    }
}
