//! The process: flags, log, then one of three things: forward until asked to stop, clean up, explain.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use orch_proxy::flags::{Act, Flags};
use orch_proxy::mode::ForwardingPath;
use orch_proxy::{app, cleanup, config, configz_client, explain, host, userspace};
use proto_api::names::Names;
use proto_daemon::drain::{self, Drain};
use proto_daemon::exit::{self, Failure};
use proto_daemon::runtime::{self, Threads};

/// Nothing has to be finished but answers on the way: rules stay when we go.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
/// Connections that pass through the process may come to their end.
const USERSPACE_DRAIN_DEADLINE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    proto_daemon::panics::install();
    let flags: Flags = match exit::parse_flags() {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    proto_daemon::log::init(flags.common.log());
    let end = config_for(&flags).and_then(|config| match flags.act() {
        Act::WriteConfig(path) => write_config(&flags, flags.common.names(), &path),
        Act::Prepare => {
            host::prepare(&config.conntrack);
            Ok(())
        }
        Act::Forward => runtime::run(Threads::One, forward(config)),
        Act::CleanUp => clean_up(&config),
        Act::Trace(question) => runtime::run(Threads::One, async {
            explain::trace(&config, &question).await.map_err(Failure::run)
        }),
        Act::Diff => {
            runtime::run(Threads::One, async { explain::diff(&config).await.map_err(Failure::run) })
        }
    });
    exit::conclude("orch-proxy", end)
}

/// What the flags say; for those who explain a proxy that runs here, over what it says of itself.
fn config_for(flags: &Flags) -> Result<config::Config, Failure> {
    let told = config::load(flags, flags.common.names()).map_err(Failure::usage)?;
    let explains = matches!(flags.act(), Act::Trace(_) | Act::Diff);
    if !explains || flags.common.config.is_some() {
        return Ok(told);
    }
    match configz_client::fetch_config(told.metrics_address) {
        Ok(running) => config::load_running(flags, &running).map_err(Failure::usage),
        Err(error) => {
            tracing::warn!(
                error = %exit::chain(&error),
                "cannot read /configz of the running proxy; using the flags alone"
            );
            Ok(told)
        }
    }
}

fn clean_up(config: &config::Config) -> Result<(), Failure> {
    let tables = cleanup::clean_up(config).map_err(Failure::run);
    runtime::run(Threads::One, async {
        remove_addresses(config).await;
        tables
    })
}

fn write_config(flags: &Flags, names: &Names, path: &Path) -> Result<(), Failure> {
    let text = config::written(flags, names).map_err(Failure::usage)?;
    std::fs::write(path, text).map_err(Failure::run)?;
    tracing::info!(path = %path.display(), "wrote the configuration");
    Ok(())
}

async fn forward(config: config::Config) -> Result<(), Failure> {
    let drain = Drain::default();
    let (running, deadline) = match config.mode.select_path(&config).map_err(Failure::run)? {
        ForwardingPath::Sockets => {
            let bound = userspace::build(config).await.map_err(Failure::run)?;
            (tokio::spawn(bound.run(drain.watch())), USERSPACE_DRAIN_DEADLINE)
        }
        ForwardingPath::Kernel(kernel) => {
            remove_addresses(&config).await;
            let bound = app::build(config, kernel).await.map_err(Failure::run)?;
            (tokio::spawn(bound.run(drain.watch())), DRAIN_DEADLINE)
        }
    };
    let signal = drain::stop_signal().await.map_err(Failure::run)?;
    tracing::info!(signal, "stopping; the kernel keeps the ruleset");
    drain.drain(deadline).await;
    running.abort();
    Ok(())
}

/// Takes away what userspace mode may have left: best effort, as it harms nobody.
async fn remove_addresses(config: &config::Config) {
    match userspace::remove_addresses(config).await {
        Ok(true) => tracing::info!("removed the link of userspace mode"),
        Ok(false) => {}
        Err(error) => {
            tracing::debug!(
                error = %exit::chain(&error),
                "cannot remove the link of userspace mode"
            )
        }
    }
}
