//! Metrics of the health pages, with kube-proxy's names.

use prometheus::{IntCounterVec, Opts};
use proto_daemon::metrics::Metrics;

/// Responses of the health pages, by status code. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HealthMetrics {
    pub healthz: IntCounterVec,
    pub livez: IntCounterVec,
}

impl HealthMetrics {
    /// Registers the metrics with `prefix`.
    pub fn register(metrics: &Metrics, prefix: &str) -> Result<Self, prometheus::Error> {
        let count = |page: &str| {
            let options = Opts::new(
                format!("{prefix}_proxy_{page}_total"),
                format!("Responses of /{page}, by status code."),
            );
            metrics.register(IntCounterVec::new(options, &["code"])?)
        };
        Ok(Self { healthz: count("healthz")?, livez: count("livez")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_daemon::metrics::BuildInfo;

    #[test]
    fn metric_names_are_those_of_kube_proxy() {
        let build = BuildInfo { version: "0", commit: "0" };
        let registry = Metrics::new("kubeproxy", build).unwrap();
        let health = HealthMetrics::register(&registry, "kubeproxy").unwrap();
        health.healthz.with_label_values(&["200"]).inc();
        health.livez.with_label_values(&["200"]).inc();
        let text = registry.text();
        for page in ["healthz", "livez"] {
            assert!(text.contains(&format!("# TYPE kubeproxy_proxy_{page}_total ")), "{text}");
        }
    }
}
