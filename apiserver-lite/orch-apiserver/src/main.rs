//! The process: parses flags, sets up logging, builds the server and runs it until SIGTERM or SIGINT.

use std::path::Path;
use std::process::ExitCode;

use orch_apiserver::config::{Anonymous, AnonymousAccess, AuthorizationMode, Storage};
use orch_apiserver::flags::Flags;
use proto_daemon::drain::{self, Drain};
use proto_daemon::exit::{self, Failure};
use proto_daemon::flags::warn_without_effect;
use proto_daemon::runtime::{self, Threads};

const PROGRAM: &str = "orch-apiserver";

fn main() -> ExitCode {
    proto_daemon::panics::install();
    let flags: Flags = match exit::parse_flags(proto_daemon::build_info!()) {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    if let Err(error) = flags.common.refuse_config() {
        return exit::conclude(PROGRAM, Err(Failure::usage(error)));
    }
    proto_daemon::log::init(flags.common.log());
    if flags.common.healthz_bind_address.is_some() {
        // Health pages are served on the secure port.
        warn_without_effect("healthz-bind-address");
    }
    let backup = flags.restore();
    let (config, warnings) = match flags.config() {
        Ok(read) => read,
        Err(error) => return exit::conclude(PROGRAM, Err(Failure::usage(error))),
    };
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if let Some(backup) = backup {
        return exit::conclude(PROGRAM, restore(&config, &backup));
    }
    let threads = Threads::Workers(config.worker_threads);
    exit::conclude(PROGRAM, runtime::run(threads, serve(config)))
}

/// Makes the store of a backup, and says of how many objects.
fn restore(config: &orch_apiserver::Config, backup: &Path) -> Result<(), Failure> {
    let restored = orch_apiserver::restore(config, backup).map_err(Failure::run)?;
    println!(
        "restored {} objects of revision {}; the next revision is {}",
        restored.records,
        restored.backup,
        restored.revision.next()
    );
    Ok(())
}

async fn serve(config: orch_apiserver::Config) -> Result<(), Failure> {
    let deadline = config.shutdown_delay.saturating_add(config.shutdown_deadline);
    if config.storage == Storage::Memory {
        tracing::warn!(
            "no --data-dir: objects are kept in memory only and are lost when this process ends"
        );
    }
    if config.anonymous == Anonymous::Served(AnonymousAccess::Authorized)
        && config.authorization.contains(&AuthorizationMode::AlwaysAllow)
    {
        tracing::warn!(
            "--anonymous-access=authorized with AlwaysAllow: requests without credentials are allowed everything"
        );
    }
    let drain = Drain::default();
    let bound = orch_apiserver::build(config).await.map_err(|error| match error {
        error if error.is_usage() => Failure::usage(error),
        error => Failure::run(error),
    })?;
    tracing::info!(address = %bound.address(), "serving");
    let running = tokio::spawn(bound.run(drain.watch()));
    let signal = drain::stop_signal().await.map_err(Failure::run)?;
    tracing::info!(signal, "stopping");
    let drained = drain.drain(deadline).await;
    tracing::info!(?drained, "stopped");
    running.abort();
    Ok(())
}
