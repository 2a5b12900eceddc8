//! `timeline`: the start of a pod as moments with the time between them.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_printers::timeline;
use proto_client::request;

use crate::{describe, time};

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// pod/NAME or the name of a pod
    #[arg(required = true)]
    args: Vec<String>,
    /// perfetto: a trace as JSON, for Perfetto and Chrome
    #[arg(long, short, value_name = "FORM", value_parser = ["perfetto"])]
    output: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// When there is no such pod.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let selection = names::parse_one(session.discovery().await?, &args.args, "pods")?;
    let resource = &selection.resource;
    if (resource.group.as_str(), resource.kind.as_str()) != ("", "Pod") {
        return Err(CommandError::with_text(format!(
            "timelines are those of pods, and {} are none: name one of its pods",
            resource.full_name()
        )));
    }
    let collection = resource.collection(Some(session.namespace()?));
    let path = collection.item(selection.name.as_deref().unwrap_or_default(), None);
    let pod = session.call_json(request::get(path)).await?;
    let events = describe::events_of(session, &pod).await;
    if events.is_none() {
        writeln!(output.err, "events could not be read: the times of pulls are missing")?;
    }
    let events = events.unwrap_or_default();
    let text = match args.output {
        Some(_) => {
            let now = time::now().saturating_mul(1_000_000);
            format!("{}\n", timeline::trace(&pod, &events, now))
        }
        None => timeline::render(&timeline::moments(&pod, &events)),
    };
    output.out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
