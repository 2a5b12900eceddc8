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
    pending: IntGaugeVec,
    preemptions: IntCounter,
    victims: Histogram,
}

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
            pending: metrics.register(IntGaugeVec::new(pending, &["queue"])?)?,
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

    /// Sets the number of pods that wait for a change or their back-off.
    pub fn set_pending(&self, unschedulable: usize) {
        let count = i64::try_from(unschedulable).unwrap_or(i64::MAX);
        self.pending.with_label_values(&["unschedulable"]).set(count);
    }
}
