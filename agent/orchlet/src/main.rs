//! bin: orchlet, the node agent. Runs the pods that an API server or a directory of manifests gives to this node, on a container
//! runtime; see `agent/README.md`.

mod allocator;
mod app;
mod bootstrap;
mod certificates;
mod clock;
mod config;
mod csi_node;
mod eviction;
#[cfg(test)]
mod extremes;
mod garbage;
mod images;
mod journal;
mod log_files;
mod log_links;
mod logs_rotation;
mod metrics;
mod network;
mod node;
mod node_events;
mod object_cache;
mod oom;
mod persistent_volumes;
mod pod_cgroups;
mod pod_environment;
#[cfg(test)]
mod pod_field_coverage;
mod pods;
mod reports;
mod resolver;
mod server;
mod shutdown;
mod sources;
mod timeline;
mod volumes;
mod volumes_in_use;

use std::process::ExitCode;

use agent_runtime::connection_keeper;
use proto_daemon::exit::{Failure, conclude, parse_flags};
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    proto_daemon::panics::install();
    if std::env::args_os().nth(1).is_some_and(|first| first == connection_keeper::ARGUMENT) {
        return connection_keeper::run();
    }
    let flags: config::Flags = match parse_flags() {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    proto_daemon::log::init(flags.common.log());
    conclude("orchlet", run(flags))
}

fn run(flags: config::Flags) -> Result<(), Failure> {
    let settings = config::Settings::load(flags).map_err(Failure::usage)?;
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    runtime::run(Threads::One, async {
        if !bootstrapped(&settings).await? {
            return Ok(());
        }
        app::build(settings)?.run().await
    })
}

/// Waits for the node's first certificate. Returns false if a signal came first.
async fn bootstrapped(settings: &config::Settings) -> Result<bool, Failure> {
    // Cancel safe: the next start continues with the same certificate request.
    tokio::select! {
        done = bootstrap::ensure(settings) => done.map(|()| true),
        _ = proto_daemon::drain::stop_signal() => Ok(false),
    }
}
