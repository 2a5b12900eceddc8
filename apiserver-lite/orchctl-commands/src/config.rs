//! `config`: the client configuration, shown and edited.

mod edit;
mod exec;
mod view;

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the configuration, without secrets
    View(view::ViewArgs),
    /// Show the name of the current context
    CurrentContext,
    /// List contexts
    GetContexts(view::ContextsArgs),
    /// List the names of clusters
    GetClusters,
    /// List the names of users
    GetUsers,
    /// Make a context the current one
    #[command(alias = "use")]
    UseContext {
        /// The context
        name: String,
    },
    /// Create or change a context; its fields are --cluster, --user and --namespace
    SetContext {
        /// The context
        name: Option<String>,
        /// Change the current context
        #[arg(long)]
        current: bool,
    },
    /// Create or change a cluster; its fields are --server, --certificate-authority, --tls-server-name, --insecure-skip-tls-verify and --proxy-url
    SetCluster {
        /// The cluster
        name: String,
        /// The proxy on the way to the server: http, https or socks5; empty for none
        #[arg(long, value_name = "URL")]
        proxy_url: Option<String>,
        /// Write the content of files in the place of their names
        #[arg(long)]
        embed_certs: bool,
    },
    /// Create or change a user; its fields are --token, --username, --password, --client-certificate and --client-key
    SetCredentials {
        /// The user
        name: String,
        /// Write the content of files in the place of their names
        #[arg(long)]
        embed_certs: bool,
        #[command(flatten)]
        exec: exec::ExecFlags,
    },
    /// Delete a context
    DeleteContext {
        /// The context
        name: String,
    },
    /// Delete a cluster
    DeleteCluster {
        /// The cluster
        name: String,
    },
    /// Delete a user
    DeleteUser {
        /// The user
        name: String,
    },
    /// Rename a context
    RenameContext {
        /// The context
        name: String,
        /// Its new name
        new_name: String,
    },
    /// Set one field, as clusters.NAME.server
    Set {
        /// The field
        property: String,
        /// Its value
        value: String,
        /// The value of a -data field is not base64 yet
        #[arg(long)]
        set_raw_bytes: bool,
    },
    /// Remove one field or entry, as contexts.NAME
    Unset {
        /// The field
        property: String,
    },
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or written, or has no such entry.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    match args.command {
        Command::View(args) => view::view(session, &args, output)?,
        Command::CurrentContext => view::current_context(session, output)?,
        Command::GetContexts(args) => view::contexts(session, &args, output)?,
        Command::GetClusters => view::names(session, "clusters", output)?,
        Command::GetUsers => view::names(session, "users", output)?,
        Command::UseContext { name } => edit::use_context(session, &name, output)?,
        Command::SetContext { name, current } => {
            edit::set_context(session, name.as_deref(), current, output)?;
        }
        Command::SetCluster { name, proxy_url, embed_certs } => {
            edit::set_cluster(session, &name, proxy_url.as_deref(), embed_certs, output)?;
        }
        Command::SetCredentials { name, embed_certs, exec } => {
            edit::set_credentials(session, &name, embed_certs, &exec, output)?;
        }
        Command::DeleteContext { name } => edit::delete(session, "contexts", &name, output)?,
        Command::DeleteCluster { name } => edit::delete(session, "clusters", &name, output)?,
        Command::DeleteUser { name } => edit::delete(session, "users", &name, output)?,
        Command::RenameContext { name, new_name } => {
            edit::rename_context(session, &name, &new_name, output)?;
        }
        Command::Set { property, value, set_raw_bytes } => {
            edit::set(session, &property, &value, set_raw_bytes, output)?;
        }
        Command::Unset { property } => edit::unset(session, &property, output)?,
    }
    Ok(ExitCode::SUCCESS)
}
