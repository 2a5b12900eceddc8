//! `scale`: how many replicas a workload has.

use std::process::ExitCode;
use std::time::Duration;

use orchctl_client::{CommandError, Output, Session};
use orchctl_plans::ArgumentError;
use proto_client::Patch;
use serde_json::{Value, json};

use crate::poll::{self, PollIntervals};
use crate::record::RecordFlags;
use crate::requests;
use crate::results::ResultFlags;
use crate::targets::{self, TargetFlags, TargetObject};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// TYPE NAME... or TYPE/NAME...
    #[arg(value_name = "OBJECT")]
    objects: Vec<String>,
    #[command(flatten)]
    targets: TargetFlags,
    /// How many replicas there shall be
    #[arg(long, value_name = "COUNT", required = true, allow_negative_numbers = true, value_parser = replicas)]
    replicas: i32,
    /// Scale only what has this many replicas now
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    current_replicas: i64,
    /// Scale only an object of this version
    #[arg(long, value_name = "VERSION", default_value = "", hide_default_value = true)]
    resource_version: String,
    /// Wait this long for the replicas; 0 to not wait
    #[arg(long, value_name = "TIME", default_value = "0s")]
    timeout: String,
    #[command(flatten)]
    record: RecordFlags,
    #[command(flatten)]
    results: ResultFlags,
}

/// Runs the command.
///
/// # Errors
/// When an object cannot be scaled; the others are scaled all the same.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let waits = !matches!(args.timeout.as_str(), "0" | "0s");
    let limit = poll::limit("--timeout", &args.timeout)?;
    let (targets, mut errors) =
        targets::read_each(session, &args.targets, &args.objects, output).await?;
    if targets.is_empty() && errors.is_empty() {
        return Err(CommandError::with_text("no objects passed to scale"));
    }
    if !args.resource_version.is_empty() && targets.len() > 1 {
        return Err(CommandError::with_text(
            "cannot use --resource-version with multiple resources",
        ));
    }
    for target in targets {
        let limit = Some(limit).filter(|_| waits);
        if let Err(error) = scale(session, &args, target, limit, output).await {
            errors.push(error);
        }
    }
    CommandError::collect(errors).map(|()| ExitCode::SUCCESS)
}

fn replicas(text: &str) -> Result<i32, ArgumentError> {
    let number = text.parse().ok().filter(|number| *number >= 0);
    number.ok_or_else(|| ArgumentError::new("COUNT must be greater than or equal to 0".to_owned()))
}

async fn scale(
    session: &Session,
    args: &Args,
    target: TargetObject,
    limit: Option<Duration>,
    output: &mut Output,
) -> Result<(), CommandError> {
    let TargetObject { place, object } = target;
    if args.current_replicas >= 0 {
        let now = object.pointer("/spec/replicas").and_then(Value::as_i64).unwrap_or_default();
        if now != args.current_replicas {
            let wanted = args.current_replicas;
            return Err(CommandError::with_text(format!(
                "Expected replicas to be {wanted}, was {now}"
            )));
        }
    }
    if !args.results.sends() {
        return args.results.print_result(output, &place, &object, "scaled");
    }
    let mut patch = json!({"spec": {"replicas": args.replicas}});
    if !args.resource_version.is_empty() {
        patch["metadata"] = json!({"resourceVersion": args.resource_version});
    } else if args.current_replicas >= 0 {
        // The count was read from this version.
        patch["metadata"] = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
    }
    let path = place.path(Some("scale"));
    let write = args.results.write("")?;
    requests::patch(session, path, &Patch::Merge(patch), &write).await?;
    let mut annotations = json!({});
    if args.record.annotate(session, &mut annotations, output).await? {
        let patch = Patch::Merge(annotations);
        requests::patch(session, place.path(None), &patch, &write).await?;
    }
    if let Some(limit) = limit {
        let mut pauses = PollIntervals::up_to(limit);
        loop {
            let now = requests::get(session, &place).await?;
            let count =
                |pointer: &str| now.pointer(pointer).and_then(Value::as_i64).unwrap_or_default();
            if count("/status/replicas") == i64::from(args.replicas)
                && count("/metadata/generation") <= count("/status/observedGeneration")
            {
                break;
            }
            if !pauses.pause().await {
                return Err(CommandError::with_text(format!(
                    "timed out waiting for {} to be scaled",
                    place.title()
                )));
            }
        }
    }
    // The answer was a scale; users ask for the object.
    let object = match args.results.print.text() {
        Some(_) => requests::get(session, &place).await?,
        None => object,
    };
    args.results.print_result(output, &place, &object, "scaled")
}
