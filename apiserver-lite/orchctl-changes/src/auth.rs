//! `auth`: what asks about access, of `orchctl-commands`, and what changes it.

mod reconcile;

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_commands::auth::{self, AuthCommand};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Ask(AuthCommand),
    /// Bring roles and bindings to what files describe, and leave what others added
    Reconcile(reconcile::Args),
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Command::Ask(question) => auth::run(session, question, output).await,
        Command::Reconcile(args) => reconcile::run(session, args, output).await,
    }
}
