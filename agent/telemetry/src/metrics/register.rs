//! Registers metrics under the agent's prefix.

use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
};
use proto_daemon::metrics::Metrics;

/// Default buckets in seconds, as in Kubernetes.
pub(super) const BUCKETS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// A registry and the prefix of registered names.
pub(super) struct Register<'a> {
    pub(super) metrics: &'a Metrics,
    pub(super) prefix: String,
}

type Registered<T> = Result<T, prometheus::Error>;

impl Register<'_> {
    pub(super) fn add_prefix(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<IntCounterVec> {
        self.metrics.register(IntCounterVec::new(Opts::new(self.add_prefix(name), help), labels)?)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Registered<IntCounter> {
        self.metrics.register(IntCounter::new(self.add_prefix(name), help)?)
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<IntGaugeVec> {
        self.metrics.register(IntGaugeVec::new(Opts::new(self.add_prefix(name), help), labels)?)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Registered<Gauge> {
        self.metrics.register(Gauge::new(self.add_prefix(name), help)?)
    }

    /// A histogram of durations by labels.
    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Registered<HistogramVec> {
        let options = HistogramOpts::new(self.add_prefix(name), help).buckets(BUCKETS.to_vec());
        self.metrics.register(HistogramVec::new(options, labels)?)
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> Registered<Histogram> {
        let options = HistogramOpts::new(self.add_prefix(name), help).buckets(buckets.to_vec());
        self.metrics.register(Histogram::with_opts(options)?)
    }
}
