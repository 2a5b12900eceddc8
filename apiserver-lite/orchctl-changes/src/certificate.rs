//! `certificate approve` and `certificate deny`: decisions about requests for certificates.

use std::process::ExitCode;

use clap::Subcommand;
use orchctl_client::{CommandError, Output, Session};
use orchctl_commands::print_flags::PrintFlags;
use orchctl_commands::time;
use proto_api::Time;
use serde_json::{Value, json};

use crate::requests::{self, Place, WriteOptions};
use crate::results::ResultFlags;

/// How often a decision is written again when another writer was faster.
const CONFLICTS_MAX: usize = 5;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Part,
}

#[derive(Subcommand, Debug)]
enum Part {
    /// Have the certificate issued
    Approve(DecisionArgs),
    /// Refuse it
    Deny(DecisionArgs),
}

#[derive(clap::Args, Debug)]
struct DecisionArgs {
    /// Names of requests
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    /// Decide again where it is decided
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    print: PrintFlags,
}

/// Runs the command.
///
/// # Errors
/// When there is no such request, or it was decided otherwise.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let (decision, done, args) = match args.command {
        Part::Approve(args) => ("Approved", "approved", args),
        Part::Deny(args) => ("Denied", "denied", args),
    };
    let names = session.names().await?;
    let version = names.api_version("certificates", "v1");
    let resource =
        session.discovery().await?.served_kind(&version, "CertificateSigningRequest")?.clone();
    let results = ResultFlags::printing(args.print.clone());
    let write = results.write("")?;
    for name in &args.names {
        let name = name.rsplit('/').next().unwrap_or_default().to_owned();
        let place = Place { resource: resource.clone(), namespace: None, name };
        let object = decide(session, &place, decision, (args.force, &write)).await?;
        results.print_result(output, &place, &object, done)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn decide(
    session: &Session,
    place: &Place,
    decision: &str,
    (force, write): (bool, &WriteOptions),
) -> Result<Value, CommandError> {
    let mut attempt = 0;
    loop {
        let mut request = requests::get(session, place).await?;
        let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.cloned().unwrap_or_default();
        if conditions.iter().any(|one| one["type"] == decision) && !force {
            return Ok(request);
        }
        conditions.retain(|one| one["type"] != decision);
        let verb = if decision == "Approved" { "approved" } else { "denied" };
        conditions.push(json!({"type": decision, "status": "True",
            "reason": if decision == "Approved" { "KubectlApprove" } else { "KubectlDeny" },
            "message": format!("This CSR was {verb} by certificate {}.", if decision == "Approved" { "approve" } else { "deny" }),
            "lastUpdateTime": Time::from_unix(time::now()).to_string()}));
        request["status"]["conditions"] = Value::Array(conditions);
        let path = place.path(Some("approval"));
        match requests::update(session, path, &request, write).await {
            Err(error) if requests::code(&error) == Some(409) && attempt < CONFLICTS_MAX => {
                attempt += 1
            }
            other => return other,
        }
    }
}
