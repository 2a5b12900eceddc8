//! bin: orchlet, the node agent. Runs the pods that an API server or a directory of manifests gives to this node, on a container
//! runtime; see `agent/README.md`.

mod app;
mod bootstrap;
mod eviction;
mod network;
mod node;
mod oom;
mod reference;
mod reports;
mod shutdown;

use std::process::ExitCode;

use agent_config::node::RuntimeKind;
use agent_config::{Flags, Settings};
use agent_runtime::connection_keeper;
use proto_daemon::exit::Failure;
use proto_daemon::program;
use proto_daemon::runtime::{self, Threads};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == connection_keeper::ARGUMENT) {
        proto_daemon::panics::install();
        return connection_keeper::run();
    }
    program::run("orchlet", app::BUILD, reference::describe, run)
}

fn run(flags: Flags) -> Result<(), Failure> {
    proto_daemon::log::init(flags.common.log());
    if agent_clock::IS_VIRTUAL {
        let why = "this build has the virtual clock of the tests; build orchlet alone";
        return Err(Failure::run(why));
    }
    let settings = Settings::load(flags).map_err(Failure::usage)?;
    settings.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    runtime::run_with_shares(Threads::One, async {
        if settings.flags.node.runtime == RuntimeKind::Memory {
            return app::hollow::run(&settings).await;
        }
        if !wait_for_certificate(&settings).await? {
            return Ok(());
        }
        app::build(settings).await?.run().await
    })
}

/// Waits for the node's first certificate. Returns false if a signal came first.
async fn wait_for_certificate(settings: &Settings) -> Result<bool, Failure> {
    // Cancel safe: the next start continues with the same certificate request.
    tokio::select! {
        done = bootstrap::ensure(settings) => done.map(|()| true),
        _ = proto_daemon::drain::stop_signal() => Ok(false),
    }
}
