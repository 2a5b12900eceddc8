//! Metrics of priority and fairness, under kube-apiserver's names.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};
use proto_daemon::metrics::Metrics;

use super::level::NotServed;

/// Upper ends of the buckets of waits, in seconds.
const BUCKETS: [f64; 11] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0];
const SCHEMA: [&str; 2] = ["priority_level", "flow_schema"];

/// Metrics of priority and fairness under Kubernetes' names (`apiserver_flowcontrol_*`).
#[derive(Clone)]
pub struct FlowMetrics {
    dispatched: IntCounterVec,
    rejected: IntCounterVec,
    waiting: IntGaugeVec,
    executing: IntGaugeVec,
    limits: IntGaugeVec,
    waits: HistogramVec,
}

/// The metrics of one flow schema.
pub(super) struct SchemaMetrics {
    pub(super) dispatched: IntCounter,
    pub(super) waiting: IntGauge,
    pub(super) executing: IntGauge,
    served_waits: Histogram,
    refused_waits: Histogram,
    /// In the order of [`NotServed::all`].
    rejected: [IntCounter; 4],
}

impl FlowMetrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn new(registry: &Metrics) -> Result<Self, prometheus::Error> {
        let opts =
            |name: &str, help: &str| Opts::new(format!("apiserver_flowcontrol_{name}"), help);
        let rejected = [SCHEMA[0], SCHEMA[1], "reason"];
        let waits = HistogramOpts::from(opts(
            "request_wait_duration_seconds",
            "Time that requests waited for a seat, in seconds.",
        ));
        let waits = waits.buckets(BUCKETS.to_vec());
        let waits = HistogramVec::new(waits, &[SCHEMA[0], SCHEMA[1], "execute"])?;
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            registry.register(IntGaugeVec::new(opts(name, help), labels)?)
        };
        let dispatched = opts("dispatched_requests_total", "Requests that were served.");
        let refused = opts("rejected_requests_total", "Requests that were refused.");
        Ok(Self {
            dispatched: registry.register(IntCounterVec::new(dispatched, &SCHEMA)?)?,
            rejected: registry.register(IntCounterVec::new(refused, &rejected)?)?,
            waiting: gauge("current_inqueue_requests", "Requests that wait.", &SCHEMA)?,
            executing: gauge("current_executing_requests", "Requests being served.", &SCHEMA)?,
            limits: gauge("request_concurrency_limit", "Seats of a level.", &SCHEMA[..1])?,
            waits: registry.register(waits)?,
        })
    }

    /// The metrics of a flow schema of a level.
    pub(super) fn for_schema(&self, level: &str, schema: &str) -> SchemaMetrics {
        let pair = [level, schema];
        let waits = |execute: &str| self.waits.with_label_values(&[level, schema, execute]);
        let refused =
            |why: NotServed| self.rejected.with_label_values(&[level, schema, why.name()]);
        SchemaMetrics {
            dispatched: self.dispatched.with_label_values(&pair),
            waiting: self.waiting.with_label_values(&pair),
            executing: self.executing.with_label_values(&pair),
            served_waits: waits("true"),
            refused_waits: waits("false"),
            rejected: NotServed::all().map(refused),
        }
    }

    /// Forgets a flow schema of a level.
    pub(super) fn remove(&self, level: &str, schema: &str) {
        // What is not there need not be removed.
        let _ = self.dispatched.remove_label_values(&[level, schema]);
        let _ = self.waiting.remove_label_values(&[level, schema]);
        let _ = self.executing.remove_label_values(&[level, schema]);
        for execute in ["true", "false"] {
            let _ = self.waits.remove_label_values(&[level, schema, execute]);
        }
        for why in NotServed::all() {
            let _ = self.rejected.remove_label_values(&[level, schema, why.name()]);
        }
    }

    /// Notes the seats of a level; `None` for one that is gone.
    pub(super) fn set_limit(&self, level: &str, seats: Option<usize>) {
        match seats {
            Some(seats) => {
                let seats = i64::try_from(seats).unwrap_or(i64::MAX);
                self.limits.with_label_values(&[level]).set(seats);
            }
            None => drop(self.limits.remove_label_values(&[level])),
        }
    }
}

impl SchemaMetrics {
    /// Counts a request that is served after it waited.
    pub(super) fn count_served(&self, waited: Duration) {
        self.dispatched.inc();
        self.served_waits.observe(waited.as_secs_f64());
    }

    /// Counts a request that is not served.
    pub(super) fn refused(&self, why: NotServed, waited: Duration) {
        let at = NotServed::all().iter().position(|of| *of == why);
        if let Some(counter) = at.and_then(|at| self.rejected.get(at)) {
            counter.inc();
        }
        self.refused_waits.observe(waited.as_secs_f64());
    }
}
