//! `get --watch`: objects, then their changes as the server sends them.

use orchctl_client::{CommandError, LineReader, Output, Session};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::table::PrintOptions;
use orchctl_printers::{PrintFormat, objects, table};
use proto_client::{ListParams, request};
use serde_json::Value;

use super::Args;
use super::print_response;
use super::read::{self, Question, ResponseForm};
use crate::time;

/// Seconds after which the server ends a watch.
const WATCH_SECS: u64 = 3600;

/// What is printed, with the widths of columns so far.
struct Printer<'a> {
    args: &'a Args,
    form: &'a PrintFormat,
    options: PrintOptions,
    layout: ColumnWidths,
    /// Columns; later tables of a watch have none.
    table: Option<Value>,
}

/// Prints until the server ends the watch.
pub(super) async fn run(
    session: &Session,
    args: &Args,
    form: &PrintFormat,
    questions: Vec<Question>,
    output: &mut Output,
) -> Result<(), CommandError> {
    let one = <[Question; 1]>::try_from(questions);
    let Ok([question]) = one else {
        return Err(CommandError::with_text(
            "you may only watch a single resource or type of resource at a time",
        ));
    };
    let mut params = read::params(&args.select);
    let listed = if let Some(name) = &question.name {
        params = ListParams::name(name);
        // The object itself, which says whether it exists.
        read::list_pages(session, &question, &args.select, ResponseForm::Objects).await?;
        true
    } else {
        !args.watch_only
    };
    let mut select = args.select.clone();
    select.field_selector = Some(params.field_selector.clone());
    let wanted = if form.is_table() {
        print_response::choose_response_form(args, false)
    } else {
        ResponseForm::Objects
    };
    let all = Question { name: None, ..question.clone() };
    let answer = read::list_pages(session, &all, &select, wanted).await?;
    let version = objects::text_at(&answer, "/metadata/resourceVersion").to_owned();
    let mut options = print_response::options(form, &args.table, args.all_namespaces);
    options.namespaces &= question.resource.namespaced;
    options.events = args.output_watch_events;
    options.name_prefix = args.table.show_kind.then(|| question.resource.word());
    let mut printer = Printer { args, form, options, layout: ColumnWidths::default(), table: None };
    if listed && !args.watch_only {
        printer.print(answer, "ADDED", output)?;
    }
    let mut request = request::watch(all.collection().path(), &params, &version, WATCH_SECS);
    if wanted != ResponseForm::Objects {
        read::accept_table(session, &mut request, false).await?;
    }
    let mut lines = LineReader::new(session.open(request).await?).ending_after(session.timeout()?);
    while let Some(line) = lines.next_line().await? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let event: Value = serde_json::from_slice(&line).map_err(|error| {
            CommandError::with_text(format!("an event of the watch is not valid JSON: {error}"))
        })?;
        let Some(object) = event.get("object") else { continue };
        match objects::text_at(&event, "/type") {
            "BOOKMARK" => {}
            "ERROR" => {
                let text = objects::text_at(object, "/message");
                return Err(CommandError::with_text(format!("the server ended the watch: {text}")));
            }
            kind => printer.print(object.clone(), kind, output)?,
        }
    }
    Ok(())
}

impl Printer<'_> {
    fn print(
        &mut self,
        object: Value,
        event: &str,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        if self.form.is_table() {
            self.print_rows(object, event, output)?;
        } else {
            for item in objects::into_items(object) {
                if *self.form == PrintFormat::Yaml && self.table.is_some() {
                    writeln!(output.out, "---")?;
                }
                let heads = !self.args.table.no_headers && self.table.is_none();
                self.table = Some(Value::Null);
                let item = if self.options.events && !matches!(self.form, PrintFormat::Name) {
                    serde_json::json!({"type": event, "object": item})
                } else {
                    item
                };
                self.args.print.print(self.form, item, heads, output)?;
            }
        }
        Ok(output.out.flush()?)
    }

    fn print_rows(
        &mut self,
        object: Value,
        event: &str,
        output: &mut Output,
    ) -> Result<(), CommandError> {
        let table = read::as_table(object, time::now());
        let mut rows = Vec::new();
        if self.table.is_none() && !table::rows(&table).is_empty() {
            if !self.args.table.no_headers {
                rows.push(table::heads(&table, &self.options));
            }
            self.table = Some(table.clone());
        }
        let columns = self.table.as_ref().unwrap_or(&table);
        let cells = |row| table::cells(columns, row, &self.options, Some(event));
        rows.extend(table::rows(&table).iter().map(cells));
        let states = print_response::state_column(columns, &self.options, output);
        let text = self.layout.render_coloured(&rows, states);
        Ok(output.out.write_all(text.as_bytes())?)
    }
}
