//! The work queue metrics of each controller, named as kube-controller-manager's.

use std::time::Duration;

use apiserver_garbage::WorkCounter;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, exponential_buckets};
use proto_daemon::metrics::Metrics;

/// The metrics; the label `name` is the controller.
#[derive(Clone, Debug)]
pub struct ControllerMetrics {
    adds: IntCounterVec,
    retries: IntCounterVec,
    durations: HistogramVec,
}

impl ControllerMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// A name is registered already.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["name"]);
        let durations = HistogramOpts::new(
            "workqueue_work_duration_seconds",
            "Duration of a reconcile, its writes included.",
        );
        let durations = durations.buckets(exponential_buckets(1e-5, 10.0, 8)?);
        let adds = counter("workqueue_adds_total", "Keys added to the queue by changes.")?;
        let retries =
            counter("workqueue_retries_total", "Reconciles that failed and are retried.")?;
        Ok(Self {
            adds: metrics.register(adds)?,
            retries: metrics.register(retries)?,
            durations: metrics.register(HistogramVec::new(durations, &["name"])?)?,
        })
    }

    /// Counts a key that a change has added.
    pub fn count_add(&self, controller: &str) {
        self.adds.with_label_values(&[controller]).inc();
    }

    /// Counts a failed reconcile.
    pub fn count_failure(&self, controller: &str) {
        self.retries.with_label_values(&[controller]).inc();
    }

    /// Observes the duration of a reconcile.
    pub fn observe_duration(&self, controller: &str, took: Duration) {
        self.durations.with_label_values(&[controller]).observe(took.as_secs_f64());
    }
}

/// Counts the work of the garbage collector as that of a controller of its name.
impl WorkCounter for ControllerMetrics {
    fn count_add(&self) {
        Self::count_add(self, apiserver_garbage::CONTROLLER);
    }

    fn count_failure(&self) {
        Self::count_failure(self, apiserver_garbage::CONTROLLER);
    }

    fn observe_duration(&self, took: Duration) {
        Self::observe_duration(self, apiserver_garbage::CONTROLLER, took);
    }
}
