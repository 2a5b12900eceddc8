//! The process: flags, log, then one of three things: forward until asked to stop, clean up, explain.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use orch_proxy::flags::{Act, Flags};
use orch_proxy::{app, cleanup, config, explain, host};
use proto_api::names::Names;
use proto_daemon::drain::{self, Drain};
use proto_daemon::exit::{self, Failure};
use proto_daemon::runtime::{self, Threads};

/// Nothing has to be finished but answers on the way: rules stay when we go.
const DRAIN_DEADLINE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let flags: Flags = match exit::parse_flags() {
        Ok(flags) => flags,
        Err(code) => return code,
    };
    proto_daemon::log::init(flags.common.log());
    let names = flags.common.names();
    let end =
        config::load(&flags, names).map_err(Failure::usage).and_then(|config| match flags.act() {
            Act::WriteConfig(path) => write_config(&flags, names, &path),
            Act::Prepare => {
                host::prepare(&config.conntrack);
                Ok(())
            }
            Act::Forward => runtime::run(Threads::One, forward(config)),
            Act::CleanUp => cleanup::clean_up(&config).map_err(Failure::run),
            Act::Trace(question) => explain::trace(&config, &question).map_err(Failure::run),
        });
    exit::conclude("orch-proxy", end)
}

fn write_config(flags: &Flags, names: &Names, path: &Path) -> Result<(), Failure> {
    let text = config::written(flags, names).map_err(Failure::usage)?;
    std::fs::write(path, text).map_err(Failure::run)?;
    tracing::info!(path = %path.display(), "wrote the configuration");
    Ok(())
}

async fn forward(config: config::Config) -> Result<(), Failure> {
    let drain = Drain::default();
    let bound = app::build(config).await.map_err(Failure::run)?;
    let running = tokio::spawn(bound.run(drain.watch()));
    let signal = drain::stop_signal().await.map_err(Failure::run)?;
    tracing::info!(signal, "stopping; forwarding stays as it is");
    drain.drain(DRAIN_DEADLINE).await;
    running.abort();
    Ok(())
}
