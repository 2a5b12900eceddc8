//! The commands of the program: what people type, and the three that it gives itself.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::directory::ClusterDirectory;
use crate::progress::Progress;
use crate::spec::Spec;
use crate::{down, namespaces, network, supervisor, sys, up};

/// Whole clusters on one machine.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a cluster, or mend one that is there, and run the demo in it.
    Up(up::Flags),
    /// Remove every trace of a cluster.
    Down(ClusterDirectory),
    /// Run a command in the namespaces of a node.
    Exec(Exec),
    /// Keep a cluster's programs running (started by `up`).
    #[command(hide = true)]
    Supervise(ClusterDirectory),
    /// Hold a node's namespaces (started by the supervisor).
    #[command(hide = true)]
    Hold { node_dir: PathBuf, node: String },
    /// Configure the network of the node that it runs in (started by the supervisor).
    #[command(hide = true)]
    NodeNetwork { address: Ipv4Addr, gateway: Ipv4Addr },
}

#[derive(Debug, Args)]
struct Exec {
    #[command(flatten)]
    place: ClusterDirectory,
    /// Name of the node.
    node: String,
    /// Command and arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    argv: Vec<String>,
}

/// Runs one command to its end.
pub fn run(command: Command) -> Result<ExitCode> {
    // The holder has one thread, so that entering its namespaces is always possible, and no runtime.
    if let Verb::Hold { node_dir, node } = &command.verb {
        namespaces::hold(node_dir, node)?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(act(command.verb))
}

async fn act(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Up(flags) => up::up(&flags, &Progress::new()).await.map(drop)?,
        Verb::Down(place) => {
            let dir = place.absolute()?;
            if Spec::load(&dir)?.is_none() {
                eprintln!("{} holds no cluster: only what one has left is removed", dir.display());
            }
            down::down(&dir, &Progress::new()).await?;
        }
        Verb::Supervise(place) => supervisor::run(&existing(&place.absolute()?)?).await?,
        Verb::Exec(exec) => return exec_on_node(&exec),
        Verb::NodeNetwork { address, gateway } => {
            network::configure_node(address, gateway).await?;
        }
        Verb::Hold { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn existing(dir: &Path) -> Result<Spec> {
    Spec::load(dir)?.with_context(|| format!("{} is not the directory of a cluster", dir.display()))
}

fn exec_on_node(exec: &Exec) -> Result<ExitCode> {
    let spec = existing(&exec.place.absolute()?)?;
    let holder = namespaces::find(&spec, &exec.node)
        .with_context(|| format!("node {} is not running", exec.node))?;
    let mut command = std::process::Command::new(&exec.argv[0]);
    command.args(&exec.argv[1..]);
    sys::run_in_namespaces_of(&mut command, holder.try_clone_fd()?);
    let status = command.status().with_context(|| format!("cannot run {}", exec.argv[0]))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, Into::into))
}
