//! Metrics of the audit log, under kube-apiserver's names.

use apiserver_audit::Level;
use prometheus::{IntCounter, IntCounterVec, Opts};

/// Metrics of the audit log under Kubernetes' names (`apiserver_audit_*`).
#[derive(Clone)]
pub struct AuditMetrics {
    events: IntCounter,
    levels: IntCounterVec,
    errors: IntCounterVec,
    rejected: IntCounter,
}

impl AuditMetrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn new(registry: &proto_daemon::metrics::Metrics) -> Result<Self, prometheus::Error> {
        let events = IntCounter::new("apiserver_audit_event_total", "Audit events recorded.")?;
        let levels = Opts::new("apiserver_audit_level_total", "Requests by audit level.");
        let errors = Opts::new(
            "apiserver_audit_error_total",
            "Audit events that were not stored, by what failed: log, webhook, or buffered for a full queue.",
        );
        let rejected = IntCounter::new(
            "apiserver_audit_requests_rejected_total",
            "Requests refused because their first audit event could not be stored.",
        )?;
        Ok(Self {
            events: registry.register(events)?,
            levels: registry.register(IntCounterVec::new(levels, &["level"])?)?,
            errors: registry.register(IntCounterVec::new(errors, &["plugin"])?)?,
            rejected: registry.register(rejected)?,
        })
    }

    /// Counts a recorded event.
    pub fn event(&self) {
        self.events.inc();
    }

    /// Counts a request by the level at which it is recorded.
    pub fn level(&self, level: Level) {
        self.levels.with_label_values(&[level.as_str()]).inc();
    }

    /// Counts events that were not stored, by what failed.
    pub fn failed(&self, plugin: &str, events: usize) {
        self.errors.with_label_values(&[plugin]).inc_by(events as u64);
    }

    /// Counts a request that is refused because it could not be recorded.
    pub fn rejected(&self) {
        self.rejected.inc();
    }
}

#[cfg(test)]
pub fn for_tests() -> (AuditMetrics, proto_daemon::metrics::Metrics) {
    let build = proto_daemon::metrics::BuildInfo { version: "1", commit: "c" };
    let registry = proto_daemon::metrics::Metrics::new("test", build).unwrap();
    (AuditMetrics::new(&registry).unwrap(), registry)
}
