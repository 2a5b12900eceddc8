//! `api-versions`: groups and versions that the server serves.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};

/// Flags of the command: none.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// The server cannot be reached.
pub async fn run(
    session: &Session,
    _args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let discovery = session.discovery().await?;
    let mut names: Vec<String> = Vec::new();
    for group in &discovery.groups {
        for version in &group.versions {
            names.push(match group.name.as_str() {
                "" => version.clone(),
                name => format!("{name}/{version}"),
            });
        }
    }
    names.sort();
    for name in names {
        writeln!(output.out, "{name}")?;
    }
    Ok(ExitCode::SUCCESS)
}
