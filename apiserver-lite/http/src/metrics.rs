//! Request metrics, under kube-apiserver's metric names.

use std::time::Duration;

use http::StatusCode;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use proto_daemon::connections::closed_counter;

use crate::labels::{Labels, RequestKind};

/// The metrics of requests and connections.
pub struct Metrics {
    requests: IntCounterVec,
    durations: HistogramVec,
    in_flight: IntGaugeVec,
    deprecated: IntGaugeVec,
    /// Connections refused or closed by this side, by reason.
    pub connections_closed: IntCounterVec,
}

/// Labels of a request, in the order of [`Metrics::finished`].
const REQUEST: [&str; 6] = ["verb", "group", "version", "resource", "subresource", "scope"];
/// Labels of a deprecated version.
const DEPRECATED: [&str; 5] = ["group", "version", "resource", "subresource", "removed_release"];
/// Upper ends of the duration buckets, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];

impl Metrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn new(registry: &proto_daemon::metrics::Metrics) -> Result<Self, prometheus::Error> {
        let counted: Vec<&str> = REQUEST.iter().copied().chain(["code"]).collect();
        let requests = IntCounterVec::new(
            Opts::new("apiserver_request_total", "Requests answered."),
            &counted,
        )?;
        let durations = HistogramOpts::new(
            "apiserver_request_duration_seconds",
            "Time from a request's head to its response's head, in seconds.",
        );
        let durations = HistogramVec::new(durations.buckets(BUCKETS.to_vec()), &REQUEST)?;
        let in_flight =
            Opts::new("apiserver_current_inflight_requests", "Requests being answered.");
        let deprecated = Opts::new(
            "apiserver_requested_deprecated_apis",
            "Deprecated APIs that have been requested; always 1.",
        );
        let deprecated = IntGaugeVec::new(deprecated, &DEPRECATED)?;
        let closed = closed_counter("apiserver_connections_closed_total")?;
        Ok(Self {
            connections_closed: registry.register(closed)?,
            requests: registry.register(requests)?,
            durations: registry.register(durations)?,
            deprecated: registry.register(deprecated)?,
            in_flight: registry.register(IntGaugeVec::new(in_flight, &["request_kind"])?)?,
        })
    }

    /// Counts a request as in flight until the returned guard is dropped.
    #[must_use]
    pub fn started(&self, kind: RequestKind) -> InFlight {
        let gauge = self.in_flight.with_label_values(&[kind.as_str()]);
        gauge.inc();
        InFlight(gauge)
    }

    /// Notes a request to a deprecated version.
    pub fn deprecated(&self, labels: &Labels, removed_release: &str) {
        let Labels { group, version, resource, subresource, .. } = labels;
        let values = [group, version, resource, subresource, removed_release];
        self.deprecated.with_label_values(&values).set(1);
    }

    /// Counts a finished request and its duration.
    pub fn finished(&self, labels: &Labels, status: StatusCode, took: Duration) {
        let request = [
            labels.verb,
            &labels.group,
            &labels.version,
            &labels.resource,
            &labels.subresource,
            labels.scope,
        ];
        let [verb, group, version, resource, subresource, scope] = request;
        let counted = [verb, group, version, resource, subresource, scope, status.as_str()];
        self.requests.with_label_values(&counted).inc();
        // The duration of a stream is not a latency of the server.
        if labels.kind() != RequestKind::LongRunning {
            self.durations.with_label_values(&request).observe(took.as_secs_f64());
        }
    }
}

/// Counts a request as in flight until dropped.
pub struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
