//! The program: parses flags, starts the log, then forwards or runs a subcommand.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use orch_proxy::flags::{CleanupFlags, Flags, Operation};
use orch_proxy::forwarding_path::{ForwardingPath, select_path};
use orch_proxy::{app, cleanup, config, configz_client, explain, host, reference, userspace};
use proto_api::names::Names;
use proto_daemon::drain::{self, Drain};
use proto_daemon::exit::{self, Failure};
use proto_daemon::program;
use proto_daemon::runtime::{self, Threads};
use proxy_node_addresses::address_table;
use proxy_sync::driver::ThreadError;
use proxy_userspace::remove_leftovers;
use tokio::task::JoinSet;

/// Time for responses to complete. The kernel keeps the rules.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);
/// Time for the commit under way to complete after that.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// Time for forwarded connections to complete in userspace mode.
const USERSPACE_DRAIN_DEADLINE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    program::run("orch-proxy", proto_daemon::build_info!(), reference::describe, run)
}

fn run(flags: Flags) -> Result<(), Failure> {
    proto_daemon::log::init(flags.common.log());
    config_for(&flags).and_then(|config| match flags.operation() {
        Operation::WriteConfig(path) => write_config(&flags, flags.common.names(), &path),
        Operation::Prepare => {
            host::prepare(&config.conntrack);
            Ok(())
        }
        Operation::Forward => runtime::run(Threads::One, forward(config)),
        Operation::CleanUp(flags) => clean_up(&config, flags),
        Operation::Trace(question) => runtime::run(Threads::One, async {
            explain::trace(&config, &question).await.map_err(Failure::run)
        }),
        Operation::Diff => {
            runtime::run(Threads::One, async { explain::diff(&config).await.map_err(Failure::run) })
        }
    })
}

/// The configuration; for `trace` and `diff` that of the running proxy, overridden by the flags.
fn config_for(flags: &Flags) -> Result<config::Config, Failure> {
    let configured = config::load(flags, flags.common.names()).map_err(Failure::usage)?;
    let explains = matches!(flags.operation(), Operation::Trace(_) | Operation::Diff);
    if !explains || flags.common.config.is_some() {
        return Ok(configured);
    }
    match configz_client::fetch_config(configured.metrics_address) {
        Ok(running) => config::load_running(flags, &running).map_err(Failure::usage),
        Err(error) => {
            tracing::warn!(
                error = %exit::chain(&error),
                "cannot read /configz of the running proxy; using the flags alone"
            );
            Ok(configured)
        }
    }
}

fn clean_up(config: &config::Config, flags: CleanupFlags) -> Result<(), Failure> {
    runtime::run(Threads::One, async {
        // Without the tables the node's own servers would be reachable at them.
        let announced = address_table::withdraw_all().await.map_err(Failure::run);
        let tables = announced.and(cleanup::clean_up(config).map_err(Failure::run));
        remove_leftovers(&config.names.component("proxy")).await;
        if flags.routes {
            let routes = proxy_pod_routes::routes::withdraw_all().await.map_err(Failure::run);
            return tables.and(routes);
        }
        tables
    })
}

fn write_config(flags: &Flags, names: &Names, path: &Path) -> Result<(), Failure> {
    let text = config::write_config(flags, names).map_err(Failure::usage)?;
    std::fs::write(path, text).map_err(Failure::run)?;
    tracing::info!(path = %path.display(), "wrote the configuration");
    Ok(())
}

async fn forward(config: config::Config) -> Result<(), Failure> {
    let drain = Drain::default();
    let (mut running, watch) = (JoinSet::new(), drain.watch());
    if config.settings.announcing.is_none()
        && let Err(error) = address_table::withdraw_all().await
    {
        tracing::warn!(error = %exit::chain(&error), "cannot withdraw the addresses that an earlier process announced");
    }
    // Before the first request: they may be addresses of the API server or on the way to it.
    remove_leftovers(&config.names.component("proxy")).await;
    match select_path(&config).map_err(Failure::run)? {
        ForwardingPath::Sockets => {
            let proxy = userspace::build(config).await.map_err(Failure::run)?;
            running.spawn(async {
                proxy.run(watch).await;
                Ok(())
            });
            run_until_signal(drain, &mut running, USERSPACE_DRAIN_DEADLINE).await
        }
        ForwardingPath::Kernel(kernel) => {
            let proxy = app::build(config, kernel).await.map_err(Failure::run)?;
            running.spawn(proxy.run(watch));
            run_until_signal(drain, &mut running, DRAIN_DEADLINE).await?;
            if tokio::time::timeout(COMMIT_DEADLINE, running.join_next()).await.is_err() {
                tracing::warn!(
                    "the kernel has not applied a transaction before the shutdown deadline; it completes after the exit"
                );
            }
            Ok(())
        }
    }
}

/// Waits for a signal, then drains. Fails when the proxy does.
async fn run_until_signal(
    drain: Drain,
    running: &mut JoinSet<Result<(), ThreadError>>,
    deadline: Duration,
) -> Result<(), Failure> {
    // Both arms are cancel safe.
    let signal = tokio::select! {
        signal = drain::stop_signal() => signal.map_err(Failure::run)?,
        Some(ended) = running.join_next() => return Err(match ended {
            Ok(Err(error)) => Failure::run(error),
            Ok(Ok(())) => Failure::run("the proxy ended before a signal to stop"),
            Err(error) => Failure::run(error),
        }),
    };
    tracing::info!(signal, "stopping; the kernel keeps the ruleset");
    drain.drain(deadline).await;
    Ok(())
}
