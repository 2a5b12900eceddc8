//! The scheduler's metrics, named as kube-scheduler's.

use std::time::Duration;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    exponential_buckets,
};
use proto_daemon::metrics::Metrics;

/// The result of a scheduling attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The pod was bound.
    Scheduled,
    /// No node is feasible.
    Unschedulable,
    /// The binding failed.
    Error,
}

impl Attempt {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// Counters and histograms under the names of kube-scheduler's.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    attempts: IntCounterVec,
    durations: HistogramVec,
    /// Of the selection of a node alone.
    selections: Histogram,
    /// From the first attempt of a pod to its binding, by the number of attempts.
    pods: HistogramVec,
    pod_attempts: Histogram,
    pending: IntGaugeVec,
    cached: IntGaugeVec,
    preemptions: IntCounter,
    victims: Histogram,
}

/// Pods without a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingPods {
    /// That the next cycle takes up.
    pub active: usize,
    /// That wait for the end of their back-off.
    pub backoff: usize,
    /// That wait for a change.
    pub unschedulable: usize,
}

/// Attempts are counted one by one up to here, as kube-scheduler's label `attempts` is not bounded.
const ATTEMPTS_MAX: u32 = 16;

impl SchedulerMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// A name is registered already.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let labels = &["result", "profile"];
        let attempts =
            Opts::new("scheduler_schedule_attempts_total", "Scheduling attempts, by result.");
        let durations = HistogramOpts::new(
            "scheduler_scheduling_attempt_duration_seconds",
            "Duration of a scheduling attempt, binding included.",
        );
        let durations = durations.buckets(exponential_buckets(0.001, 2.0, 15)?);
        let pending = Opts::new("scheduler_pending_pods", "Pending pods, by queue.");
        let cached = Opts::new("scheduler_scheduler_cache_size", "Objects in the cache, by type.");
        let selections = HistogramOpts::new(
            "scheduler_scheduling_algorithm_duration_seconds",
            "Duration of the selection of a node.",
        );
        let selections = selections.buckets(exponential_buckets(0.001, 2.0, 15)?);
        let pods = HistogramOpts::new(
            "scheduler_pod_scheduling_duration_seconds",
            "Time from the first attempt of a pod to its binding, by the number of attempts.",
        );
        let pods = pods.buckets(exponential_buckets(0.01, 2.0, 20)?);
        let pod_attempts = HistogramOpts::new(
            "scheduler_pod_scheduling_attempts",
            "Attempts until a pod was bound.",
        );
        let pod_attempts = pod_attempts.buckets(exponential_buckets(1.0, 2.0, 5)?);
        let victims = HistogramOpts::new(
            "scheduler_preemption_victims",
            "Pods of lower priority that were deleted for a pod.",
        );
        let victims = victims.buckets(exponential_buckets(1.0, 2.0, 7)?);
        let preemptions = Opts::new(
            "scheduler_preemption_attempts_total",
            "Attempts to make room for a pod by deleting others.",
        );
        Ok(Self {
            preemptions: metrics.register(IntCounter::with_opts(preemptions)?)?,
            victims: metrics.register(Histogram::with_opts(victims)?)?,
            attempts: metrics.register(IntCounterVec::new(attempts, labels)?)?,
            durations: metrics.register(HistogramVec::new(durations, labels)?)?,
            selections: metrics.register(Histogram::with_opts(selections)?)?,
            pods: metrics.register(HistogramVec::new(pods, &["attempts"])?)?,
            pod_attempts: metrics.register(Histogram::with_opts(pod_attempts)?)?,
            pending: metrics.register(IntGaugeVec::new(pending, &["queue"])?)?,
            cached: metrics.register(IntGaugeVec::new(cached, &["type"])?)?,
        })
    }

    /// Counts an attempt for a pod with this `schedulerName`.
    pub fn count_attempt(&self, profile: &str, result: Attempt, took: Duration) {
        let labels = &[result.label(), profile];
        self.attempts.with_label_values(labels).inc();
        self.durations.with_label_values(labels).observe(took.as_secs_f64());
    }

    /// Counts an attempt to preempt.
    pub fn count_preemption(&self) {
        self.preemptions.inc();
    }

    /// Counts the pods that were deleted for one pod.
    pub fn observe_victims(&self, count: usize) {
        self.victims.observe(count as f64);
    }

    /// Observes how long a node was selected.
    pub fn observe_selection(&self, took: Duration) {
        self.selections.observe(took.as_secs_f64());
    }

    /// Observes a bound pod: how often it was tried, and for how long since the first time.
    pub fn observe_bound(&self, attempts: u32, took: Duration) {
        self.pod_attempts.observe(attempts.into());
        let label = attempts.min(ATTEMPTS_MAX).to_string();
        self.pods.with_label_values(&[&*label]).observe(took.as_secs_f64());
    }

    /// Sets the numbers of pods that wait.
    pub fn set_pending(&self, pods: PendingPods) {
        for (queue, count) in [
            ("active", pods.active),
            ("backoff", pods.backoff),
            ("unschedulable", pods.unschedulable),
        ] {
            self.pending.with_label_values(&[queue]).set(gauge(count));
        }
    }

    /// Sets the numbers of objects in the cache.
    pub fn set_cached(&self, nodes: usize, pods: usize, assumed_pods: usize) {
        for (kind, count) in [("nodes", nodes), ("pods", pods), ("assumed_pods", assumed_pods)] {
            self.cached.with_label_values(&[kind]).set(gauge(count));
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
