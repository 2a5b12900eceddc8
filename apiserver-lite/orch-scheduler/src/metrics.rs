//! Counters under the names that dashboards of this ecosystem read.

use std::time::Duration;

use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, exponential_buckets,
};
use proto_daemon::metrics::Metrics;

/// What a try to give a pod a node came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It has a node.
    Scheduled,
    /// It fits nowhere.
    Unschedulable,
    /// It could not be bound.
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

/// The scheduler's own metrics.
#[derive(Clone, Debug)]
pub struct Counters {
    attempts: IntCounterVec,
    durations: HistogramVec,
    pending: IntGaugeVec,
    profile: String,
}

impl Counters {
    /// Registers them; `profile` is the name that pods ask for.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(metrics: &Metrics, profile: &str) -> Result<Self, prometheus::Error> {
        let labels = &["result", "profile"];
        let attempts = Opts::new(
            "scheduler_schedule_attempts_total",
            "Tries to give a pod a node, by result.",
        );
        let durations = HistogramOpts::new(
            "scheduler_scheduling_attempt_duration_seconds",
            "Time of a try, binding included.",
        );
        let durations = durations.buckets(exponential_buckets(0.001, 2.0, 15)?);
        let pending =
            Opts::new("scheduler_pending_pods", "Pods without a node, by where they wait.");
        Ok(Self {
            attempts: metrics.register(IntCounterVec::new(attempts, labels)?)?,
            durations: metrics.register(HistogramVec::new(durations, labels)?)?,
            pending: metrics.register(IntGaugeVec::new(pending, &["queue"])?)?,
            profile: profile.to_owned(),
        })
    }

    /// A try has ended.
    pub fn attempt(&self, result: Attempt, took: Duration) {
        let labels = &[result.label(), self.profile.as_str()];
        self.attempts.with_label_values(labels).inc();
        self.durations.with_label_values(labels).observe(took.as_secs_f64());
    }

    /// A pass has ended: so many pods wait for a change or their back-off.
    pub fn pending(&self, unschedulable: usize) {
        let count = i64::try_from(unschedulable).unwrap_or(i64::MAX);
        self.pending.with_label_values(&["unschedulable"]).set(count);
    }
}
