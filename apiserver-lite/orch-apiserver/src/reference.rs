//! What the program's reference has besides flags: metrics, and which flags do nothing.

use apiserver_audit_log::AuditMetrics;
use apiserver_core::flow_control::FlowMetrics;
use apiserver_core::webhooks::WebhookMetrics;
use apiserver_http::Metrics;
use proto_daemon::exit::Failure;
use proto_daemon::reference::Reference;

/// Adds them.
///
/// # Errors
/// A metric cannot be registered.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    reference.leave_out("config");
    reference.mark_without_effect(&[
        "healthz-bind-address",
        "livez-grace-period",
        "show-hidden-metrics-for-version",
    ]);
    reference.add_metrics("apiserver", |metrics, _| {
        Metrics::new(metrics)?;
        AuditMetrics::new(metrics)?;
        FlowMetrics::new(metrics)?;
        WebhookMetrics::new(metrics).map(drop)
    })
}
