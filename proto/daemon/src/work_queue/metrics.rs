//! The metrics of work queues, named as client-go's (`k8s.io/component-base/metrics/prometheus/workqueue`). Unlike there, retries are those of failures
//! only, and a key whose delay has ended counts from when its queue is next used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, exponential_buckets,
};
use tokio::time::Instant;

use super::schedule::Run;
use crate::metrics::Metrics;

/// The metrics; the label `name` is the controller as `--controllers` names it, of one queue for several controllers one of them. Cheap to clone; all
/// clones are the same metrics.
#[derive(Clone, Debug)]
pub struct WorkQueueMetrics {
    depth: IntGaugeVec,
    adds: IntCounterVec,
    retries: IntCounterVec,
    queue_durations: HistogramVec,
    work_durations: HistogramVec,
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
        let depth = opts("depth", "Keys that wait for a worker.");
        let adds = counter("adds_total", "Keys added to the queue that were not waiting in it.")?;
        let retries = counter("retries_total", "Reconciles that failed and are retried.")?;
        let queue_durations = histogram(
            "queue_duration_seconds",
            "How long a key was ready before a worker took it.",
        )?;
        let work_durations =
            histogram("work_duration_seconds", "Duration of a reconcile, its writes included.")?;
        Ok(Self {
            depth: IntGaugeVec::new(depth, &["name"])?,
            adds,
            retries,
            queue_durations,
            work_durations,
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
        metrics.register(all.queue_durations.clone())?;
        metrics.register(all.work_durations.clone())?;
        metrics.register(all.running.clone())?;
        Ok(all)
    }
}

/// Counts the keys of a queue as those of their controllers.
#[derive(Debug)]
pub(super) struct QueueMetrics<K> {
    pub(super) metrics: WorkQueueMetrics,
    pub(super) controller_of: fn(&K) -> &'static str,
}

impl<K> QueueMetrics<K> {
    /// A key waits for a worker, or for the end of its current run.
    pub(super) fn count_added(&self, key: &K) {
        let name = (self.controller_of)(key);
        self.metrics.depth.with_label_values(&[name]).inc();
        self.metrics.adds.with_label_values(&[name]).inc();
    }

    /// A key does not wait any more, and no worker took it.
    pub(super) fn count_withdrawn(&self, key: &K) {
        self.metrics.depth.with_label_values(&[(self.controller_of)(key)]).dec();
    }

    /// A worker took a key at `begun`, and it had been ready for `waited`.
    pub(super) fn count_begun(&self, key: &K, waited: Duration, begun: Instant) {
        let name = (self.controller_of)(key);
        self.metrics.depth.with_label_values(&[name]).dec();
        self.metrics.queue_durations.with_label_values(&[name]).observe(waited.as_secs_f64());
        self.metrics.running.begin(name, begun);
    }

    /// A run ended.
    pub(super) fn count_ended(&self, key: &K, run: Run) {
        let name = (self.controller_of)(key);
        if run.was_begun {
            let took = run.ended.saturating_duration_since(run.begun);
            self.metrics.work_durations.with_label_values(&[name]).observe(took.as_secs_f64());
        }
        self.metrics.running.end(name, run.begun);
    }

    /// A run failed.
    pub(super) fn count_failed(&self, key: &K) {
        self.metrics.retries.with_label_values(&[(self.controller_of)(key)]).inc();
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
        let seconds = |at: &Instant| now.saturating_duration_since(*at).as_secs_f64();
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, times) in begun {
            // The sum of nothing would be -0.
            let sum = times.iter().fold(0.0, |sum, (at, count)| sum + seconds(at) * *count as f64);
            self.unfinished.with_label_values(&[name]).set(sum);
            let longest = times.first_key_value().map_or(0.0, |(at, _)| seconds(at));
            self.longest.with_label_values(&[name]).set(longest);
        }
        [&self.unfinished, &self.longest].into_iter().flat_map(Collector::collect).collect()
    }
}
