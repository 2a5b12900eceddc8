//! Metrics, with kube-proxy's names where the meaning is the same.

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, IntGaugeVec, Opts, exponential_buckets,
};
use proto_daemon::metrics::Metrics;

/// All metrics of nftables mode. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProxyMetrics {
    /// Duration of each sync.
    pub sync_seconds: Histogram,
    /// Duration of each sync that changed elements only.
    pub partial_sync_seconds: Histogram,
    /// Duration of each sync that loaded the tables.
    pub full_sync_seconds: Histogram,
    /// Unix time of the last successful sync.
    pub last_sync: Gauge,
    /// Unix time at which a change was last received.
    pub last_queued: Gauge,
    /// Changes of Services and EndpointSlices that are not yet committed.
    pub pending: [IntGauge; 2],
    /// Committed changes of Services and EndpointSlices.
    pub changes: [IntCounter; 2],
    /// Seconds from the endpoint change trigger to its commit in the kernel.
    pub programming_seconds: Histogram,
    /// Syncs that failed.
    pub failures: IntCounter,
    /// Failed deletions of the previous tables.
    pub cleanup_failures: IntCounter,
    /// Elements added or removed.
    pub elements_changed: IntCounter,
    /// Repairs of tables that another program changed.
    pub repairs: IntCounter,
    /// Services that are forwarded.
    pub services: IntGauge,
    /// Ports dropped because the traffic policy is Local and this node has no endpoint, by policy.
    pub without_local_endpoints: IntGaugeVec,
    /// Stale flows that were deleted.
    pub flows_deleted: IntCounter,
    /// Seconds of each conntrack walk.
    pub sweep_seconds: Histogram,
}

impl ProxyMetrics {
    /// Registers the metrics with `prefix`.
    pub fn register(metrics: &Metrics, prefix: &str) -> Result<Self, prometheus::Error> {
        let name = |name: &str| format!("{prefix}_{name}");
        let seconds = |suffix: &str, help: &str| {
            // 10 microseconds to 10 seconds.
            let buckets = exponential_buckets(1e-5, 4.0, 11)?;
            let options = HistogramOpts::new(name(suffix), help).buckets(buckets);
            metrics.register(Histogram::with_opts(options)?)
        };
        let count =
            |suffix: &str, help: &str| metrics.register(IntCounter::new(name(suffix), help)?);
        let moment = |suffix: &str, help: &str| metrics.register(Gauge::new(name(suffix), help)?);
        let number =
            |suffix: &str, help: &str| metrics.register(IntGauge::new(name(suffix), help)?);
        Ok(Self {
            sync_seconds: seconds(
                "sync_proxy_rules_duration_seconds",
                "Duration of each sync, in seconds.",
            )?,
            partial_sync_seconds: seconds(
                "sync_partial_proxy_rules_duration_seconds",
                "Duration of each sync that changed set elements only, in seconds.",
            )?,
            full_sync_seconds: seconds(
                "sync_full_proxy_rules_duration_seconds",
                "Duration of each sync that loaded all tables, in seconds.",
            )?,
            last_sync: moment(
                "sync_proxy_rules_last_timestamp_seconds",
                "Unix time of the last successful sync.",
            )?,
            last_queued: moment(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "Unix time at which a change was last received.",
            )?,
            pending: [pending(metrics, prefix, "service")?, pending(metrics, prefix, "endpoint")?],
            changes: [
                count("sync_proxy_rules_service_changes_total", "Committed changes of Services.")?,
                count(
                    "sync_proxy_rules_endpoint_changes_total",
                    "Committed changes of EndpointSlices.",
                )?,
            ],
            programming_seconds: programming(metrics, prefix)?,
            failures: count("sync_proxy_rules_nftables_sync_failures_total", "Syncs that failed.")?,
            cleanup_failures: count(
                "sync_proxy_rules_nftables_cleanup_failures_total",
                "Failed deletions of the previous tables.",
            )?,
            elements_changed: count(
                "nftables_elements_changed_total",
                "Set elements added or removed.",
            )?,
            repairs: count(
                "nftables_repairs_total",
                "Repairs of tables that another program changed.",
            )?,
            services: number("services", "Forwarded Services.")?,
            without_local_endpoints: by_policy(metrics, prefix)?,
            flows_deleted: count(
                "conntrack_reconciler_deleted_entries_total",
                "Deleted stale conntrack entries.",
            )?,
            sweep_seconds: seconds(
                "conntrack_reconciler_sync_duration_seconds",
                "Duration of each conntrack walk, in seconds.",
            )?,
        })
    }
}

fn pending(metrics: &Metrics, prefix: &str, what: &str) -> Result<IntGauge, prometheus::Error> {
    let name = format!("{prefix}_sync_proxy_rules_{what}_changes_pending");
    let help = format!("Changes of {what}s that are not yet committed to the kernel.");
    metrics.register(IntGauge::new(name, help)?)
}

fn programming(metrics: &Metrics, prefix: &str) -> Result<Histogram, prometheus::Error> {
    let name = format!("{prefix}_network_programming_duration_seconds");
    let help = "Time from the change of endpoints (annotation last-change-trigger-time) to its commit in the kernel, in seconds.";
    let options = HistogramOpts::new(name, help).buckets(programming_buckets());
    metrics.register(Histogram::with_opts(options)?)
}

fn by_policy(metrics: &Metrics, prefix: &str) -> Result<IntGaugeVec, prometheus::Error> {
    let name = format!("{prefix}_sync_proxy_rules_no_local_endpoints_total");
    let help = "Service ports with traffic policy Local and no endpoint on this node.";
    metrics.register(IntGaugeVec::new(Opts::new(name, help), &["traffic_policy"])?)
}

/// kube-proxy's buckets, and some below its smallest.
fn programming_buckets() -> Vec<f64> {
    let small = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5].into_iter();
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    small.chain(seconds.map(f64::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_daemon::metrics::BuildInfo;

    /// kube-proxy's metrics of syncs on Linux in mode nftables, release 1.33.
    const THEIRS: [&str; 15] = [
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "kubeproxy_network_programming_duration_seconds",
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "kubeproxy_sync_proxy_rules_duration_seconds",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        "kubeproxy_sync_proxy_rules_service_changes_total",
    ];

    #[test]
    fn metric_names_of_kube_proxy_dashboards_exist() {
        let build = BuildInfo { version: "0", commit: "0" };
        let registry = Metrics::new("kubeproxy", build).unwrap();
        let metrics = ProxyMetrics::register(&registry, "kubeproxy").unwrap();
        metrics.without_local_endpoints.with_label_values(&["internal"]).set(0);
        let text = registry.text();
        let missing: Vec<_> =
            THEIRS.iter().filter(|name| !text.contains(&format!("# TYPE {name} "))).collect();
        assert!(missing.is_empty(), "{missing:?} in\n{text}");
    }
}
