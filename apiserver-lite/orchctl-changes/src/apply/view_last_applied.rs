//! `apply view-last-applied`: what was applied last.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::apply;
use proto_api::yaml;
use serde_json::Value;

use crate::targets::{self, TargetFlags};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// Form of the output
    #[arg(long, short, value_name = "FORM", value_parser = ["json", "yaml"], default_value = "yaml")]
    output: String,
}

/// Runs the command.
///
/// # Errors
/// When an object does not exist, or its record is malformed.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let names = session.names().await?;
    for target in targets::read(session, &args.targets, &args.objects, output).await? {
        let Some(text) = apply::last_applied(names, &target.object) else {
            let name = &target.place.name;
            writeln!(
                output.err,
                "no last-applied-configuration annotation found on resource: {name}"
            )?;
            continue;
        };
        let object: Value = serde_json::from_str(text).map_err(|error| {
            CommandError::with_text(format!(
                "the last-applied-configuration annotation of {} is not valid JSON: {error}",
                target.place.title()
            ))
        })?;
        match args.output.as_str() {
            "json" => writeln!(output.out, "{object:#}")?,
            _ => write!(output.out, "{}", yaml::to_string(&object))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
