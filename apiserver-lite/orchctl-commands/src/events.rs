//! `events`: what happened, in the order of time.

use std::process::ExitCode;

use orchctl_client::{CommandError, Output, Session, names};
use orchctl_printers::columns::{Layout, Row};
use orchctl_printers::{Form, age, objects};
use proto_client::ListParams;
use proto_client::request::{self, Collection};
use serde_json::Value;

use crate::print_flags::PrintFlags;
use crate::time;

/// Events of one request.
const PAGE: u32 = 500;
/// Most pages.
const PAGES_MAX: usize = 10_000;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Events of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Events of this object: TYPE/NAME
    #[arg(long = "for", value_name = "OBJECT")]
    object: Option<String>,
    /// Only these types: Normal, Warning
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Leave out the names of columns
    #[arg(long)]
    no_headers: bool,
    /// How events are printed
    #[command(flatten)]
    print: PrintFlags,
}

/// Runs the command.
///
/// # Errors
/// When the server cannot be asked.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let form = args.print.form()?;
    let mut fields = Vec::new();
    if let Some(object) = &args.object {
        let selection = names::parse_pair(session.discovery().await?, object)?;
        fields.push(format!("involvedObject.kind={}", selection.resource.kind));
        fields.push(format!("involvedObject.name={}", selection.name.unwrap_or_default()));
    }
    let namespace = Some(session.namespace()?.to_owned()).filter(|_| !args.all_namespaces);
    let mut events = list(session, namespace.clone(), &fields.join(",")).await?;
    events.retain(|event| {
        let kind = objects::text_at(event, "/type");
        args.types.is_empty() || args.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(kind))
    });
    if events.is_empty() {
        match namespace {
            Some(namespace) => writeln!(output.err, "No events found in {namespace} namespace.")?,
            None => writeln!(output.err, "No events found.")?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if !matches!(form, Form::Table | Form::Wide) {
        args.print.print(&form, objects::list_of(events), !args.no_headers, output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = time::now();
    let mut rows = Vec::new();
    if !args.no_headers {
        let heads = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_owned);
        let namespace = args.all_namespaces.then(|| "NAMESPACE".to_owned());
        rows.push(namespace.into_iter().chain(heads).collect());
    }
    rows.extend(events.iter().map(|event| row(event, now, args.all_namespaces)));
    output.out.write_all(Layout::default().render(&rows).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Events of a namespace or of all, the oldest first.
///
/// # Errors
/// When the server refuses.
pub async fn list(
    session: &Session,
    namespace: Option<String>,
    field_selector: &str,
) -> Result<Vec<Value>, CommandError> {
    let collection = Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "events".to_owned(),
        namespace,
    };
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::fields(field_selector) };
    let mut events = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = session.call_json(request::list(collection.path(), &params)).await?;
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        events.extend(objects::into_items(page));
        if next.is_empty() {
            break;
        }
        params.continue_ = Some(next);
    }
    events.sort_by_key(|event| age::last_seen(event).and_then(age::seconds_of));
    Ok(events)
}

fn row(event: &Value, now: i64, namespaces: bool) -> Row {
    let text = |pointer: &str| objects::text_at(event, pointer).to_owned();
    let object = format!("{}/{}", text("/involvedObject/kind"), text("/involvedObject/name"));
    let message = text("/message").trim().to_owned();
    let cells = [age::of_event(event, now), text("/type"), text("/reason"), object, message];
    let namespace = namespaces.then(|| text("/metadata/namespace"));
    namespace.into_iter().chain(cells).collect()
}
