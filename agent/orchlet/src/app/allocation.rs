//! What containers have for themselves: the allocator and the sockets of plugins and monitors.

use std::path::Path;
use std::sync::Arc;

use agent_devices::{Plugins, registration, resources};
use agent_host::topology;
use agent_node::status::Machine;
use proto_daemon::drain::Drain;
use proto_daemon::exit::Failure;

use super::{Bound, until};
use crate::allocator::{Allocator, pool, settings, shares};
use crate::config::Settings;
use crate::journal::Journal;
use crate::metrics::Acts;
use crate::pods::pod_context::Parts;

/// Directory of the plugins' sockets below the agent's.
const PLUGINS_DIR: &str = "device-plugins";
/// Directory of the monitors' socket below the agent's.
const MONITORS_DIR: &str = "pod-resources";

/// The allocator, with what the journal remembers.
pub(super) fn allocator(
    settings: &Settings,
    machine: &Machine,
    journal: &Journal,
    acts: Acts,
) -> Result<Arc<Allocator>, Failure> {
    let topology = topology::machine(machine.capacity.memory_bytes);
    let evicted_below = machine.reserved.eviction_memory_bytes;
    let rules =
        settings::rules(&settings.file, &topology, evicted_below).map_err(Failure::usage)?;
    let known = Allocator::known_resources(journal);
    let directory = settings.flags.root_dir.join(PLUGINS_DIR);
    let plugins = Plugins::new(directory, settings.names, known);
    Ok(Arc::new(Allocator::new(rules, topology, plugins, journal.clone(), acts)))
}

impl Bound {
    /// Starts what keeps and shows the shares.
    pub(super) fn start_allocation(&self, parts: &Arc<Parts>, drain: &Drain) {
        let allocator = self.allocator.clone();
        let remembering = allocator.clone();
        let remember = async move { remembering.remember_resources().await };
        tokio::spawn(until(drain.watch(), remember));
        let period = self.settings.file.cpu_manager_reconcile_period;
        let pool = pool::keep(allocator.clone(), parts.runtime.clone(), period);
        tokio::spawn(until(drain.watch(), pool));

        let root = &self.settings.flags.root_dir;
        let stop = || {
            let drain = drain.watch();
            async move { drain.asked().await }
        };
        let directory = root.join(PLUGINS_DIR);
        spawn(&directory, registration::serve(allocator.plugins().clone(), &directory, stop()));
        let directory = root.join(MONITORS_DIR);
        let shown = Arc::new(shares::Shown { allocator, parts: parts.clone() });
        spawn(&directory, resources::serve(shown, &directory, stop()));
    }
}

/// A node without devices runs as well without these sockets.
fn spawn<F: Future<Output = ()> + Send + 'static>(directory: &Path, served: std::io::Result<F>) {
    match served {
        Ok(server) => {
            tokio::spawn(server);
        }
        Err(error) => tracing::warn!(directory = %directory.display(), %error, "no socket"),
    }
}
