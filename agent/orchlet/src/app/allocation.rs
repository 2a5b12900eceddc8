//! Exclusive resources of containers: the allocator, and the sockets of device plugins and of the
//! pod resources API.

use std::path::Path;
use std::sync::Arc;

use agent_config::Settings;
use agent_devices::{Plugins, registration, resources};
use agent_host::topology;
use agent_journal::Journal;
use agent_node::status::MachineInfo;
use agent_resources::allocator::{Allocator, pool, settings, shares};
use agent_telemetry::metrics::OperationMetrics;
use agent_workers::pod_context::PodContext;
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;

use super::{Agent, until};

/// Directory of device plugin sockets below the root directory.
const PLUGINS_DIR: &str = "device-plugins";
/// Directory of the pod resources socket below the root directory.
const MONITORS_DIR: &str = "pod-resources";

/// Creates the allocator with the allocations of the journal.
pub(super) fn allocator(
    settings: &Settings,
    machine: &MachineInfo,
    journal: &Journal,
    operations: OperationMetrics,
) -> Result<Arc<Allocator>, Failure> {
    let topology = topology::read_machine(machine.capacity.memory_bytes);
    let evicted_below = machine.reserved.eviction_memory_bytes;
    let rules =
        settings::rules(&settings.file, &topology, evicted_below).map_err(Failure::usage)?;
    let known = Allocator::known_resources(journal);
    let directory = settings.flags.root_dir.join(PLUGINS_DIR);
    let plugins = Plugins::new(directory, settings.names, known);
    Ok(Arc::new(Allocator::new(rules, topology, plugins, journal.clone(), operations)))
}

impl Agent {
    /// Starts the tasks that apply and publish allocations.
    pub(super) fn start_allocation(&self, shared: &Arc<PodContext>, drain: &Drain) {
        let allocator = self.resources.allocator.clone();
        let remembering = allocator.clone();
        let remember = async move { remembering.remember_resources().await };
        tokio::spawn(until(drain.watch(), remember));
        let period = self.settings.file.cpu_manager_reconcile_period;
        let pool =
            pool::keep(allocator.clone(), shared.runtime.clone(), shared.runtime.clone(), period);
        tokio::spawn(until(drain.watch(), pool));

        let root = &self.settings.flags.root_dir;
        let stop = || {
            let drain = drain.watch();
            async move { drain.asked().await }
        };
        let directory = root.join(PLUGINS_DIR);
        spawn(&directory, registration::serve(allocator.plugins().clone(), &directory, stop()));
        let directory = root.join(MONITORS_DIR);
        let pods = shared.clone();
        let pods = Box::new(move || pods.pods.shown_pods());
        let shown = Arc::new(shares::PodResources { allocator, pods });
        spawn(&directory, resources::serve(shown, &directory, stop()));
    }
}

/// Serves a socket; a failure is not fatal, since nodes without devices do not need it.
fn spawn<F: Future<Output = ()> + Send + 'static>(directory: &Path, served: std::io::Result<F>) {
    match served {
        Ok(server) => {
            tokio::spawn(server);
        }
        Err(error) => {
            tracing::warn!(directory = %directory.display(), %error, "cannot serve the socket; device plugins or monitors in this directory are not served")
        }
    }
}
