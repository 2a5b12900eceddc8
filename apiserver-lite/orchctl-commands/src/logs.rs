//! `logs`: what containers wrote, once or as they write.

mod source;
mod stream;

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// POD [CONTAINER], or TYPE/NAME
    #[arg(value_name = "POD")]
    args: Vec<String>,
    /// Container of the pods
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
    /// All containers of the pods
    #[arg(long)]
    all_containers: bool,
    /// Pods with these labels
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<String>,
    /// Go on as containers write
    #[arg(long, short)]
    follow: bool,
    /// Most logs that are followed at once
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    max_log_requests: usize,
    /// How long a workload may take to have a pod that runs
    #[arg(long, value_name = "TIME", default_value = "20s")]
    pod_running_timeout: String,
    /// Print pod and container before each line
    #[arg(long)]
    prefix: bool,
    /// Go on with other logs when one fails
    #[arg(long)]
    ignore_errors: bool,
    /// Which part of the logs
    #[command(flatten)]
    part: PartFlags,
}

/// Which part of the logs.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PartFlags {
    /// The log of the container before its last restart
    #[arg(long, short)]
    previous: bool,
    /// Last lines; -1 for all. With a selector 10 by default
    #[arg(long, value_name = "LINES", allow_hyphen_values = true)]
    tail: Option<i64>,
    /// Lines of this time up to now (5s, 2m, 3h)
    #[arg(long, value_name = "TIME", conflicts_with = "since_time")]
    since: Option<String>,
    /// Lines since then (RFC 3339)
    #[arg(long, value_name = "TIME")]
    since_time: Option<String>,
    /// Print the time of each line
    #[arg(long)]
    timestamps: bool,
    /// Most bytes
    #[arg(long, value_name = "BYTES")]
    limit_bytes: Option<u64>,
    /// Do not check the certificate of the node
    #[arg(long)]
    insecure_skip_tls_verify_backend: bool,
}

/// Runs the command.
///
/// # Errors
/// When there are no such pods or containers, or the server refuses.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let sources = source::find(session, &args, output).await?;
    stream::print(session, &args, sources, output).await?;
    Ok(ExitCode::SUCCESS)
}
