//! The metrics of work queues, named as client-go's (`k8s.io/component-base/metrics/prometheus/workqueue`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, exponential_buckets,
};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// The metrics; the label `name` is the controller. Cheap to clone; all clones are the same metrics.
#[derive(Clone, Debug)]
pub struct WorkQueueMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    waits: HistogramVec,
    durations: HistogramVec,
    running: RunningWork,
}

impl WorkQueueMetrics {
    /// The metrics, all of them 0.
    ///
    /// # Errors
    /// None: the names are valid.
    pub fn new() -> Result<Self, prometheus::Error> {
        let opts = |name: &str, help: &str| Opts::new(format!("workqueue_{name}"), help);
        let counter = |name, help| IntCounterVec::new(opts(name, help), &["name"]);
        let histogram = |name, help| {
            let buckets = exponential_buckets(1e-8, 10.0, 10)?;
            HistogramVec::new(HistogramOpts::from(opts(name, help)).buckets(buckets), &["name"])
        };
        let depth = opts("depth", "Keys that are ready and wait for a worker.");
        let adds = counter("adds_total", "Keys that became ready.")?;
        let retries = counter("retries_total", "Reconciles that failed and are retried.")?;
        let waits = histogram(
            "queue_duration_seconds",
            "How long a key was ready before a worker took it.",
        )?;
        let durations =
            histogram("work_duration_seconds", "Duration of a reconcile, its writes included.")?;
        Ok(Self {
            depth: IntGaugeVec::new(depth, &["name"])?,
            adds,
            retries,
            waits,
            durations,
            running: RunningWork::new()?,
        })
    }

    /// Registers new ones.
    ///
    /// # Errors
    /// A name is registered already.
    pub fn register(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let all = Self::new()?;
        metrics.register(all.depth.clone())?;
        metrics.register(all.adds.clone())?;
        metrics.register(all.retries.clone())?;
        metrics.register(all.waits.clone())?;
        metrics.register(all.durations.clone())?;
        metrics.register(all.running.clone())?;
        Ok(all)
    }
}

/// The metrics of one queue, whose keys are counted as those of the controller that `name` gives.
#[derive(Clone, Debug)]
pub(super) struct QueueMetrics<K> {
    pub(super) all: WorkQueueMetrics,
    pub(super) name: fn(&K) -> &'static str,
}

impl<K> QueueMetrics<K> {
    /// A key became ready.
    pub(super) fn count_ready(&self, key: &K) {
        let name = (self.name)(key);
        self.all.depth.with_label_values(&[name]).inc();
        self.all.adds.with_label_values(&[name]).inc();
    }

    /// A worker took a key at `begun`, and it had been ready for `waited`.
    pub(super) fn count_begun(&self, key: &K, waited: Duration, begun: Instant) {
        let name = (self.name)(key);
        self.all.depth.with_label_values(&[name]).dec();
        self.all.waits.with_label_values(&[name]).observe(waited.as_secs_f64());
        self.all.running.begin(name, begun);
    }

    /// The work that began at `begun` ended after `took`.
    pub(super) fn count_ended(&self, key: &K, begun: Instant, took: Duration) {
        let name = (self.name)(key);
        self.all.durations.with_label_values(&[name]).observe(took.as_secs_f64());
        self.all.running.end(name, begun);
    }

    /// The work has failed.
    pub(super) fn count_failed(&self, key: &K) {
        self.all.retries.with_label_values(&[(self.name)(key)]).inc();
    }
}

/// When the keys in progress were taken: how many at each time, by controller.
type Begun = BTreeMap<&'static str, BTreeMap<Instant, usize>>;

/// What has not ended yet, as of each scrape.
#[derive(Clone, Debug)]
struct RunningWork {
    begun: Arc<Mutex<Begun>>,
    unfinished: GaugeVec,
    longest: GaugeVec,
}

impl RunningWork {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["name"]);
        Ok(Self {
            begun: Arc::default(),
            unfinished: gauge(
                "workqueue_unfinished_work_seconds",
                "Time that the reconciles in progress have taken so far, together.",
            )?,
            longest: gauge(
                "workqueue_longest_running_processor_seconds",
                "Time that the longest reconcile in progress has taken so far.",
            )?,
        })
    }

    fn begin(&self, name: &'static str, at: Instant) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let count = begun.entry(name).or_default().entry(at).or_default();
        *count = count.saturating_add(1);
    }

    fn end(&self, name: &str, at: Instant) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(times) = begun.get_mut(name) else { return };
        if let Some(count) = times.get_mut(&at) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                times.remove(&at);
            }
        }
    }
}

impl Collector for RunningWork {
    fn desc(&self) -> Vec<&Desc> {
        [&self.unfinished, &self.longest].into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        for (name, times) in &*self.begun.lock().unwrap_or_else(PoisonError::into_inner) {
            let seconds = |at: &Instant| now.saturating_duration_since(*at).as_secs_f64();
            let sum: f64 = times.iter().map(|(at, count)| seconds(at) * *count as f64).sum();
            self.unfinished.with_label_values(&[name]).set(sum);
            let longest = times.first_key_value().map_or(0.0, |(at, _)| seconds(at));
            self.longest.with_label_values(&[name]).set(longest);
        }
        [&self.unfinished, &self.longest].into_iter().flat_map(Collector::collect).collect()
    }
}
