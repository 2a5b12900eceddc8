//! Metrics of the DNS server.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, exponential_buckets};
use proto_daemon::metrics::Metrics;

/// Metrics of the DNS server; cheap to clone.
#[derive(Clone, Debug)]
pub struct NameMetrics {
    /// Queries by transport.
    pub requests: IntCounterVec,
    /// Responses by code.
    pub responses: IntCounterVec,
    /// Seconds from query to response.
    pub seconds: Histogram,
    /// Queries for names outside the cluster that the cache answered.
    pub cache_hits: IntCounter,
    /// Queries that were sent upstream.
    pub cache_misses: IntCounter,
    /// Queries that no upstream server answered.
    pub forward_failures: IntCounter,
    /// Queries from clients that are not admitted, or beyond a limit.
    pub turned_away: IntCounterVec,
}

impl NameMetrics {
    /// Registers the metrics with `prefix`.
    pub fn register(metrics: &Metrics, prefix: &str) -> Result<Self, prometheus::Error> {
        let name = |name: &str| format!("{prefix}_dns_{name}");
        let count =
            |suffix: &str, help: &str| metrics.register(IntCounter::new(name(suffix), help)?);
        let by = |suffix: &str, help: &str, label: &str| {
            metrics.register(IntCounterVec::new(Opts::new(name(suffix), help), &[label])?)
        };
        // 10 microseconds to 10 seconds.
        let buckets = exponential_buckets(1e-5, 4.0, 11)?;
        let seconds =
            HistogramOpts::new(name("request_duration_seconds"), "Seconds from query to response.");
        Ok(Self {
            requests: by("requests_total", "Queries, by transport.", "proto")?,
            responses: by("responses_total", "Responses, by response code.", "rcode")?,
            seconds: metrics.register(Histogram::with_opts(seconds.buckets(buckets))?)?,
            cache_hits: count(
                "cache_hits_total",
                "Queries for names outside the cluster that the cache answered.",
            )?,
            cache_misses: count(
                "cache_misses_total",
                "Queries for names outside the cluster that were sent upstream.",
            )?,
            forward_failures: count(
                "forward_failures_total",
                "Queries that no upstream server answered.",
            )?,
            turned_away: by(
                "turned_away_total",
                "Queries dropped, by reason: source, busy.",
                "reason",
            )?,
        })
    }
}
