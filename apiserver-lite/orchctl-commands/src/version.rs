//! `version`: of client and server.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::json;
use proto_api::yaml;
use serde_json::{Value, json};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Do not ask the server
    #[arg(long)]
    client: bool,
    /// The numbers only, which is what is printed without --output anyway
    #[arg(long, hide = true, conflicts_with = "output")]
    short: bool,
    /// Form of the output
    #[arg(long, short, value_name = "FORM", value_parser = ["json", "yaml"])]
    output: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let Args { client, short: _, output: form } = args;
    let mut versions = json!({"clientVersion": client_version()});
    let server = if client { Ok(Value::Null) } else { session.get_json("/version").await };
    if let Ok(server) = &server
        && !server.is_null()
    {
        versions["serverVersion"] = server.clone();
    }
    match form.as_deref() {
        Some("json") => write!(output.out, "{}", json::pretty(&versions))?,
        Some(_) => write!(output.out, "{}", yaml::to_string(&versions))?,
        None => {
            for (head, field) in [("Client", "clientVersion"), ("Server", "serverVersion")] {
                let path = format!("/{field}/gitVersion");
                if let Some(version) = versions.pointer(&path).and_then(Value::as_str) {
                    writeln!(output.out, "{head} Version: {version}")?;
                }
            }
        }
    }
    server.map(|_| ExitCode::SUCCESS)
}

/// What this program was built from, in the fields of the server's `/version`.
fn client_version() -> Value {
    let build = proto_daemon::build_info!();
    let mut numbers = build.version.split('.');
    json!({
        "major": numbers.next().unwrap_or_default(),
        "minor": numbers.next().unwrap_or_default(),
        "gitVersion": format!("v{}", build.version),
        "gitCommit": build.commit,
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}
