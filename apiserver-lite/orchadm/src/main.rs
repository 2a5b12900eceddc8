//! bin: `orchadm`, which makes clusters of real hosts as kubeadm does: `init` on one, `join` on the others.
//!
//! ```text
//!   flags, --config ─► settings ─► preflight ─► phases of init or join ─► programs: units of systemd, or supervised here
//!                                      │                │
//!                                facts of the host    files and objects of apiserver-bootstrap
//! ```
//!
//! It bootstraps and nothing else: what runs afterwards does not need it. Every step finds what an earlier run has done, so that a command that was
//! interrupted anywhere can be repeated.

mod certs;
mod cluster;
mod command;
mod config;
mod failure;
mod host;
mod init;
mod join;
mod member;
mod output;
mod preflight;
mod reset;
mod runtime;
mod supervisor;
mod token;
mod upgrade;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    if let Some(code) =
        proto_daemon::reference::answer::<command::OrchadmCommand>(version, |_| Ok(()))
    {
        return code;
    }
    let command = match command::OrchadmCommand::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // A failed write to a closed terminal changes nothing.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let verbosity = command.verbosity();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(command.run()),
        Err(error) => Err(error.into()),
    };
    failure::report_failure(ended, verbosity)
}
