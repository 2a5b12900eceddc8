//! Answers as tables, or as objects in other forms.

use orchctl_client::{CommandError, Output, Session};
use orchctl_printers::columns::ColumnWidths;
use orchctl_printers::jsonpath::Path;
use orchctl_printers::table::PrintOptions;
use orchctl_printers::{PrintFormat, objects, sort, table};
use serde_json::Value;

use super::read::{self, Question, ResponseForm};
use super::{Args, SelectFlags, TableFlags};
use crate::time;

/// Prints one table a type, with an empty line between two.
pub(super) async fn tables(
    session: &Session,
    args: &Args,
    form: &PrintFormat,
    questions: Vec<Question>,
    output: &mut Output,
) -> Result<(), CommandError> {
    let sort_path = sort_path(&args.select)?;
    let wanted = choose_response_form(args, sort_path.is_some());
    let all_namespaced = questions.iter().all(|question| question.resource.namespaced);
    let kinds = !is_one_type(&questions) || args.table.show_kind;
    let mut errors = Vec::new();
    let mut printed = 0_usize;
    let mut at = 0;
    while let Some(question) = questions.get(at) {
        // Objects of one type that follow each other are one table.
        let rest = questions.get(at..).unwrap_or_default();
        let count = rest.iter().take_while(|next| next.resource == question.resource).count();
        let mut whole: Option<Value> = None;
        for question in rest.iter().take(count) {
            match read::list_pages(session, question, &args.select, wanted).await {
                Ok(answer) => merge(&mut whole, read::as_table(answer, time::now())),
                Err(error) if error.is_not_found() && args.select.ignore_not_found => {}
                Err(error) => errors.push(error),
            }
        }
        at += count;
        let Some(mut whole) = whole.filter(|whole| !table::rows(whole).is_empty()) else {
            continue;
        };
        if let Some(path) = &sort_path {
            sort_rows(&mut whole, path)?;
        }
        let mut options = options(form, &args.table, args.all_namespaces);
        options.namespaces &= question.resource.namespaced;
        options.name_prefix = kinds.then(|| question.resource.word());
        if printed > 0 && !args.table.no_headers {
            writeln!(output.out)?;
        }
        printed += 1;
        let mut rows = Vec::new();
        if !args.table.no_headers {
            rows.push(table::heads(&whole, &options));
        }
        let cells = |row| table::cells(&whole, row, &options, None);
        rows.extend(table::rows(&whole).iter().map(cells));
        let states = state_column(&whole, &options, output);
        let text = ColumnWidths::default().render_coloured(&rows, states);
        output.out.write_all(text.as_bytes())?;
    }
    output.out.flush()?;
    if printed == 0 && errors.is_empty() && !args.select.ignore_not_found {
        if all_namespaced && !args.all_namespaces {
            writeln!(output.err, "No resources found in {} namespace.", session.namespace()?)?;
        } else {
            writeln!(output.err, "No resources found")?;
        }
    }
    CommandError::collect(errors)
}

/// Prints objects in a form that is no table: one object alone, others as a list.
pub(super) async fn objects(
    session: &Session,
    args: &Args,
    form: &PrintFormat,
    questions: Vec<Question>,
    output: &mut Output,
) -> Result<(), CommandError> {
    let sort_path = sort_path(&args.select)?;
    let single = matches!(questions.as_slice(), [Question { name: Some(_), .. }]);
    let mut errors = Vec::new();
    let mut items = Vec::new();
    for question in &questions {
        match read::list_pages(session, question, &args.select, ResponseForm::Objects).await {
            Ok(answer) if single => {
                return args.print.print(form, answer, !args.table.no_headers, output);
            }
            Ok(answer) => items.extend(objects::into_items(answer)),
            Err(error) if error.is_not_found() && args.select.ignore_not_found => {}
            Err(error) => errors.push(error),
        }
    }
    if single || items.is_empty() && (!errors.is_empty() || args.select.ignore_not_found) {
        return CommandError::collect(errors);
    }
    if let Some(path) = &sort_path {
        sort::by_path(&mut items, path, |item| item)
            .map_err(|error| CommandError::with_text(error.to_string()))?;
    }
    args.print.print(form, objects::list_of(items), !args.table.no_headers, output)?;
    output.out.flush()?;
    CommandError::collect(errors)
}

/// The column of states, if the output may have colours.
pub(super) fn state_column(
    table: &Value,
    options: &PrintOptions,
    output: &Output,
) -> Option<usize> {
    let heads = table::heads(table, options);
    heads.iter().position(|head| head == "STATUS").filter(|_| output.colours)
}

/// Which columns the flags ask for.
pub(super) fn options(form: &PrintFormat, flags: &TableFlags, namespaces: bool) -> PrintOptions {
    PrintOptions {
        wide: *form == PrintFormat::Wide,
        namespaces,
        labels: flags.show_labels,
        label_columns: flags.label_columns.clone(),
        ..PrintOptions::default()
    }
}

/// The requested form of the response.
pub(super) fn choose_response_form(args: &Args, sorted: bool) -> ResponseForm {
    if args.table.server_print {
        ResponseForm::Table { whole_objects: sorted }
    } else {
        ResponseForm::Objects
    }
}

pub(super) fn is_one_type(questions: &[Question]) -> bool {
    let Some((first, rest)) = questions.split_first() else { return true };
    rest.iter().all(|question| question.resource == first.resource)
}

fn sort_path(select: &SelectFlags) -> Result<Option<Path>, CommandError> {
    let path = select.sort_by.as_deref().filter(|path| !path.is_empty());
    path.map(Path::parse_relaxed)
        .transpose()
        .map_err(|error| CommandError::with_text(format!("--sort-by: {error}")))
}

fn sort_rows(whole: &mut Value, path: &Path) -> Result<(), CommandError> {
    let Some(Value::Array(rows)) = whole.get_mut("rows") else { return Ok(()) };
    sort::by_path(rows, path, |row| row.get("object").unwrap_or(&Value::Null))
        .map_err(|error| CommandError::with_text(error.to_string()))
}

fn merge(whole: &mut Option<Value>, mut table: Value) {
    match whole {
        None => *whole = Some(table),
        Some(whole) => {
            let more = table.get_mut("rows").map(Value::take);
            if let (Some(Value::Array(rows)), Some(Value::Array(more))) =
                (whole.get_mut("rows"), more)
            {
                rows.extend(more);
            }
        }
    }
}
