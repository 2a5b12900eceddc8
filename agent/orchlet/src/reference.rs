//! What the agent's reference has besides flags: the configuration file's fields, and the metrics of `/metrics`.

use std::path::PathBuf;
use std::sync::Arc;

use agent_devices::Plugins;
use agent_telemetry::metrics::{AgentMetrics, PodGauges, Registrations};
use agent_workers::probes::NodeProbes;
use proto_api::names::{Names, Profile};
use proto_client::metrics::RequestMetrics;
use proto_daemon::exit::Failure;
use proto_daemon::reference::Reference;

/// Adds them.
///
/// # Errors
/// A metric cannot be registered.
pub fn describe(reference: &mut Reference) -> Result<(), Failure> {
    agent_config::describe(reference)?;
    let names = Names::new(Profile::Kubernetes);
    for (path, example) in agent_server::example_pages(names) {
        reference.add_page(path, &example);
    }
    reference.add_page("/metrics/probes", &NodeProbes::example());
    reference.add_metrics("let", |metrics, names| {
        let agent = AgentMetrics::register(metrics, names, "")?;
        RequestMetrics::register(metrics)?;
        metrics.register(PodGauges::new(names, agent.operations, Arc::new(Vec::new))?)?;
        let plugins = Plugins::new(PathBuf::new(), names, []);
        metrics.register(Registrations::new(names, plugins)?).map(drop)
    })
}
