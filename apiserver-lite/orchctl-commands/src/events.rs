//! `events`: what happened, in the order of time, and what happens from then on.

use std::process::ExitCode;

use orchctl_client::{CommandError, LineReader, Output, Session, names};
use orchctl_printers::columns::{ColumnWidths, Row};
use orchctl_printers::{PrintFormat, age, objects};
use proto_api::Collection;
use proto_client::ListParams;
use proto_client::request;
use serde_json::Value;

use crate::print_flags::PrintFlags;
use crate::time;

/// Events of one request.
const PAGE: u32 = 500;
/// Most pages.
const PAGES_MAX: usize = 10_000;
/// Seconds after which the server ends a watch.
const WATCH_SECS: u64 = 3600;

/// Flags of the command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Events of all namespaces
    #[arg(long, short = 'A')]
    all_namespaces: bool,
    /// Events of this object: TYPE/NAME
    #[arg(long = "for", value_name = "OBJECT")]
    object: Option<String>,
    /// Go on with what happens from now on
    #[arg(long, short)]
    watch: bool,
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
/// The server cannot be reached.
pub async fn run(
    session: &Session,
    args: Args,
    output: &mut Output,
) -> Result<ExitCode, CommandError> {
    let form = args.print.form()?;
    let mut fields = Vec::new();
    if let Some(object) = &args.object {
        if !object.contains('/') {
            let why = format!("--for={object}: expected TYPE/NAME, as pod/{object}");
            return Err(CommandError::with_text(why));
        }
        let selection = names::parse_pair(session.discovery().await?, object)?;
        fields.push(format!("involvedObject.kind={}", selection.resource.kind));
        fields.push(format!("involvedObject.name={}", selection.name.unwrap_or_default()));
    }
    let namespace = Some(session.namespace()?.to_owned()).filter(|_| !args.all_namespaces);
    let fields = fields.join(",");
    let (mut events, version) = list_at_version(session, namespace.clone(), &fields).await?;
    events.retain(|event| args.has_wanted_type(event));
    let mut printer =
        Printer { args: &args, form, layout: ColumnWidths::default(), printed: false };
    if args.watch {
        if !events.is_empty() {
            printer.print(events, output)?;
        }
        let params = ListParams::fields(fields);
        let path = collection(namespace).path();
        let request = request::watch(path, &params, &version, WATCH_SECS);
        printer.follow(session, request, output).await?;
        return Ok(ExitCode::SUCCESS);
    }
    if events.is_empty() {
        match namespace {
            Some(namespace) => writeln!(output.err, "No events found in {namespace} namespace.")?,
            None => writeln!(output.err, "No events found.")?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    printer.print(events, output)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Whether an event is of the wanted types.
    fn has_wanted_type(&self, event: &Value) -> bool {
        let kind = objects::text_at(event, "/type");
        self.types.is_empty() || self.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(kind))
    }
}

/// Prints events: a table, whose later rows stand below the earlier ones, or objects.
struct Printer<'a> {
    args: &'a Args,
    form: PrintFormat,
    layout: ColumnWidths,
    printed: bool,
}

impl Printer<'_> {
    fn print(&mut self, events: Vec<Value>, output: &mut Output) -> Result<(), CommandError> {
        let (args, is_first) = (self.args, !std::mem::replace(&mut self.printed, true));
        let heads = is_first && !args.no_headers;
        if !matches!(self.form, PrintFormat::Table | PrintFormat::Wide) {
            args.print.print(&self.form, objects::list_of(events), heads, output)?;
            return Ok(output.out.flush()?);
        }
        let now = time::now();
        let mut rows = Vec::new();
        if heads {
            let heads = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_owned);
            let namespace = args.all_namespaces.then(|| "NAMESPACE".to_owned());
            rows.push(namespace.into_iter().chain(heads).collect());
        }
        rows.extend(events.iter().map(|event| row(event, now, args.all_namespaces)));
        output.out.write_all(self.layout.render(&rows).as_bytes())?;
        Ok(output.out.flush()?)
    }

    /// Prints what happens, until the server ends the watch.
    async fn follow(
        &mut self,
        session: &Session,
        request: http::Request<bytes::Bytes>,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        let mut lines =
            LineReader::new(session.open(request).await?).ending_after(session.timeout()?);
        while let Some(line) = lines.next_line().await? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let change: Value = serde_json::from_slice(&line).map_err(|error| {
                CommandError::with_text(format!("an event of the watch is not valid JSON: {error}"))
            })?;
            let Some(event) = change.get("object") else { continue };
            match objects::text_at(&change, "/type") {
                // An event is deleted when it is old: that is no news.
                "ADDED" | "MODIFIED" if self.args.has_wanted_type(event) => {
                    self.print_one(event.clone(), output)?;
                }
                "ERROR" => {
                    let text = objects::text_at(event, "/message");
                    return Err(CommandError::with_text(format!(
                        "the server ended the watch: {text}"
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn print_one(&mut self, event: Value, output: &mut Output) -> Result<(), CommandError> {
        if matches!(self.form, PrintFormat::Table | PrintFormat::Wide) {
            return self.print(vec![event], output);
        }
        if self.form == PrintFormat::Yaml && self.printed {
            writeln!(output.out, "---")?;
        }
        self.printed = true;
        self.args.print.print(&self.form, event, false, output)?;
        Ok(output.out.flush()?)
    }
}

fn collection(namespace: Option<String>) -> Collection {
    Collection {
        group: String::new(),
        version: "v1".to_owned(),
        plural: "events".to_owned(),
        namespace,
    }
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
    list_at_version(session, namespace, field_selector).await.map(|(events, _)| events)
}

/// The same, with the version of the list.
async fn list_at_version(
    session: &Session,
    namespace: Option<String>,
    field_selector: &str,
) -> Result<(Vec<Value>, String), CommandError> {
    let collection = collection(namespace);
    let mut version = String::new();
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::fields(field_selector) };
    let mut events = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = session.call_json(request::list(collection.path(), &params)).await?;
        let next = objects::text_at(&page, "/metadata/continue").to_owned();
        version = objects::text_at(&page, "/metadata/resourceVersion").to_owned();
        events.extend(objects::into_items(page));
        if next.is_empty() {
            break;
        }
        params.continue_ = Some(next);
    }
    events.sort_by_key(|event| age::last_seen(event).and_then(age::seconds_of));
    Ok((events, version))
}

fn row(event: &Value, now: i64, namespaces: bool) -> Row {
    let text = |pointer: &str| objects::text_at(event, pointer).to_owned();
    let object = format!("{}/{}", text("/involvedObject/kind"), text("/involvedObject/name"));
    let message = text("/message").trim().to_owned();
    let cells = [age::of_event(event, now), text("/type"), text("/reason"), object, message];
    let namespace = namespaces.then(|| text("/metadata/namespace"));
    namespace.into_iter().chain(cells).collect()
}
