//! Counters of the work of each controller, under the names that dashboards of this ecosystem read.

pub mod volumes;

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, exponential_buckets};
use proto_daemon::metrics::Metrics;

/// The controllers' metrics; the label `name` is the controller's.
#[derive(Clone, Debug)]
pub struct Counters {
    adds: IntCounterVec,
    retries: IntCounterVec,
    durations: HistogramVec,
}

impl Counters {
    /// Registers them.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["name"]);
        let durations = HistogramOpts::new(
            "workqueue_work_duration_seconds",
            "Time that a task took, its writes included.",
        );
        let durations = durations.buckets(exponential_buckets(1e-5, 10.0, 8)?);
        let adds = counter("workqueue_adds_total", "Tasks that changes asked for.")?;
        let retries = counter("workqueue_retries_total", "Tasks that failed and are tried again.")?;
        Ok(Self {
            adds: metrics.register(adds)?,
            retries: metrics.register(retries)?,
            durations: metrics.register(HistogramVec::new(durations, &["name"])?)?,
        })
    }

    /// A change has asked for a task of the controller.
    pub fn added(&self, controller: &str) {
        self.adds.with_label_values(&[controller]).inc();
    }

    /// A task has failed.
    pub fn failed(&self, controller: &str) {
        self.retries.with_label_values(&[controller]).inc();
    }

    /// A task has ended, well or not.
    pub fn worked(&self, controller: &str, took: Duration) {
        self.durations.with_label_values(&[controller]).observe(took.as_secs_f64());
    }
}
