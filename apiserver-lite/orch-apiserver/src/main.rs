//! The process: parses flags, sets up logging, builds the server and runs it until SIGTERM or SIGINT. Under the names of Kubernetes' programs it is what test
//! harnesses start: `kube-apiserver` is an ephemeral server, `etcd` a stand-in.

mod invocation;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use apiserver_development::{etcd, load, manifests};
use invocation::Invocation;
use orch_apiserver::config::{Anonymous, AnonymousAccess, AuthorizationMode, Storage};
use orch_apiserver::flags::ApiServerFlags;
use orch_apiserver::{BoundServer, Config};
use proto_daemon::drain::{self, Drain};
use proto_daemon::exit::{self, Failure};
use proto_daemon::flags::warn_without_effect;
use proto_daemon::memory_file::MemoryFile;
use proto_daemon::runtime::{self, Threads};

const PROGRAM: &str = "orch-apiserver";

fn main() -> ExitCode {
    proto_daemon::panics::install();
    let version = env!("CARGO_PKG_VERSION");
    let describe = orch_apiserver::reference::describe;
    if let Some(code) = proto_daemon::reference::answer::<ApiServerFlags>(version, describe) {
        return code;
    }
    match Invocation::read(std::env::args_os()) {
        Invocation::Server { arguments, warnings } => run(arguments, &warnings),
        Invocation::Etcd(arguments) => exit::conclude("etcd", stand_in(&arguments)),
        Invocation::Assets(arguments) => exit::conclude(PROGRAM, invocation::assets(&arguments)),
    }
}

fn run(arguments: Vec<std::ffi::OsString>, adapted: &[String]) -> ExitCode {
    let flags: ApiServerFlags = match exit::parse_flags_of(proto_daemon::build_info!(), arguments) {
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
    let (backup, fixtures) = (flags.restore(), flags.fixtures());
    let (config, warnings) = match flags.config() {
        Ok(read) => read,
        Err(error) => return exit::conclude(PROGRAM, Err(Failure::usage(error))),
    };
    adapted.iter().chain(&warnings).for_each(|warning| tracing::warn!("{warning}"));
    if let Some(backup) = backup {
        return exit::conclude(PROGRAM, restore(&config, &backup));
    }
    let threads = Threads::Workers(config.worker_threads);
    exit::conclude(PROGRAM, runtime::run(threads, serve(config, fixtures.as_deref())))
}

/// Makes the store of a backup, and says of how many objects.
fn restore(config: &Config, backup: &Path) -> Result<(), Failure> {
    let restored = orch_apiserver::restore(config, backup).map_err(Failure::run)?;
    println!(
        "restored {} objects of revision {}; the next revision is {}",
        restored.records,
        restored.backup,
        restored.revision.next()
    );
    Ok(())
}

async fn serve(config: Config, fixtures: Option<&Path>) -> Result<(), Failure> {
    let deadline = config.shutdown_delay.saturating_add(config.shutdown_deadline);
    warn_of(&config);
    let manifests = fixtures.map(manifests::read).transpose().map_err(Failure::usage)?;
    let ephemeral = config.ephemeral;
    let drain = Drain::default();
    let bound = orch_apiserver::build(config).await.map_err(|error| match error {
        error if error.is_usage() => Failure::usage(error),
        error => Failure::run(error),
    })?;
    let _kubeconfig = match ephemeral {
        true => Some(make_ready(&bound, &manifests.unwrap_or_default()).await?),
        false => None,
    };
    tracing::info!(address = %bound.address(), "orch-apiserver is serving");
    let running = tokio::spawn(bound.run(drain.watch()));
    let signal = drain::stop_signal().await.map_err(Failure::run)?;
    tracing::info!(signal, "orch-apiserver is stopping; requests in flight are completed");
    let drained = drain.drain(deadline).await;
    tracing::info!(?drained, "orch-apiserver has stopped");
    running.abort();
    Ok(())
}

fn warn_of(config: &Config) {
    if config.storage == Storage::Memory && !config.ephemeral {
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
}

/// Loads what an ephemeral server begins with, keeps it as its first state, and says where it is. Connections wait in the listener's queue until then.
async fn make_ready(
    bound: &BoundServer,
    manifests: &[manifests::ManifestObject],
) -> Result<MemoryFile, Failure> {
    let running = bound.running();
    let client = running.admin().map_err(Failure::run)?;
    load::load(&client, manifests).await.map_err(Failure::run)?;
    running.save_start().await.map_err(Failure::run)?;
    let file = MemoryFile::new("kubeconfig", bound.kubeconfig().as_bytes());
    let file = file.map_err(Failure::run)?;
    let address = bound.reached_at();
    // With certificates of others there is no user for whom to write it.
    let kubeconfig = match bound.kubeconfig() {
        "" => String::new(),
        _ => format!("KUBECONFIG={} ", file.path().display()),
    };
    let mut out = io::stdout();
    // Who starts it need not read.
    let _ = writeln!(out, "{kubeconfig}SERVER=https://{address}").and_then(|()| out.flush());
    Ok(file)
}

fn print_line(text: &str) -> Result<(), Failure> {
    // A failed write to a closed terminal changes nothing.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The stand-in for etcd.
fn stand_in(arguments: &[std::ffi::OsString]) -> Result<(), Failure> {
    match etcd::read_arguments(arguments).map_err(Failure::usage)? {
        etcd::EtcdCommand::Help => print_line(etcd::HELP),
        etcd::EtcdCommand::Version => print_line(etcd::VERSION),
        etcd::EtcdCommand::Serve { address, ignored } => {
            eprintln!(
                "etcd: a stand-in that stores nothing, on {address}; without effect: {}",
                ignored.join(" ")
            );
            let serving = async { etcd::run(address).await.map_err(Failure::run) };
            runtime::run(Threads::One, serving)
        }
    }
}
