//! The server's tables of objects, as rows.

use serde_json::{Value, json};

use crate::age;
use crate::columns::Row;
use crate::objects;

/// Which columns are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintOptions {
    /// Those that the server marks as less important, too.
    pub wide: bool,
    /// The object's namespace, first.
    pub namespaces: bool,
    /// All labels, last.
    pub labels: bool,
    /// The values of these labels.
    pub label_columns: Vec<String>,
    /// What stands before the slash in the column of names, as `pod`.
    pub name_prefix: Option<String>,
    /// Types of watch events, first.
    pub events: bool,
}

/// Whether the server answered with a table.
pub fn is_table(answer: &Value) -> bool {
    objects::text_at(answer, "/kind") == "Table"
}

/// The rows of a table, with their objects.
pub fn rows(table: &Value) -> &[Value] {
    objects::list_at(table, "/rows")
}

/// The heads of its columns.
pub fn heads(table: &Value, options: &PrintOptions) -> Row {
    let mut heads = Row::new();
    if options.events {
        heads.push("EVENT".to_owned());
    }
    if options.namespaces {
        heads.push("NAMESPACE".to_owned());
    }
    let names = list_columns(table, options).map(|(_, column)| objects::text_at(column, "/name"));
    heads.extend(names.map(str::to_uppercase));
    heads.extend(options.label_columns.iter().map(|label| {
        let last = label.rsplit('/').next().unwrap_or(label);
        last.to_uppercase()
    }));
    if options.labels {
        heads.push("LABELS".to_owned());
    }
    heads
}

/// One row of `table`, whose columns may be those of an earlier table; `event` is its type in a watch.
pub fn cells(table: &Value, row: &Value, options: &PrintOptions, event: Option<&str>) -> Row {
    let object = row.get("object").unwrap_or(&Value::Null);
    let mut cells = Row::new();
    if options.events {
        cells.push(event.unwrap_or_default().to_owned());
    }
    if options.namespaces {
        cells.push(objects::namespace(object).to_owned());
    }
    let values = objects::list_at(row, "/cells");
    for (at, column) in list_columns(table, options) {
        let text = values.get(at).map(cell_text).unwrap_or_default();
        let is_name = objects::text_at(column, "/format") == "name"
            || at == 0 && objects::text_at(column, "/name").eq_ignore_ascii_case("name");
        cells.push(match &options.name_prefix {
            Some(prefix) if is_name => format!("{prefix}/{text}"),
            _ => text,
        });
    }
    let labels = objects::map_at(object, "/metadata/labels");
    for label in &options.label_columns {
        let value = labels.and_then(|labels| labels.get(label)).and_then(Value::as_str);
        cells.push(value.unwrap_or_default().to_owned());
    }
    if options.labels {
        cells.push(objects::pairs(labels));
    }
    cells
}

fn list_columns<'a>(
    table: &'a Value,
    options: &PrintOptions,
) -> impl Iterator<Item = (usize, &'a Value)> + use<'a> {
    let wide = options.wide;
    let is_shown = move |column: &Value| {
        wide || column.get("priority").and_then(Value::as_i64).unwrap_or_default() == 0
    };
    let columns = objects::list_at(table, "/columnDefinitions").iter().enumerate();
    columns.filter(move |(_, column)| is_shown(column))
}

/// A cell has one line.
fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => match text.split_once(['\n', '\r', '\u{c}']) {
            Some((first, _)) => format!("{first}..."),
            None => text.clone(),
        },
        other => crate::jsonpath::text_of(other),
    }
}

/// A table of names and ages, for servers and commands without columns of the kind.
pub fn plain(items: &[Value], now: i64) -> Value {
    let row = |item: &Value| {
        let created = Some(objects::text_at(item, "/metadata/creationTimestamp"));
        json!({"cells": [objects::name(item), age::since(created, now)], "object": item})
    };
    json!({
        "kind": "Table",
        "columnDefinitions": [{"name": "Name", "format": "name"}, {"name": "Age"}],
        "rows": items.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Value {
        json!({
            "kind": "Table",
            "columnDefinitions": [
                {"name": "Name", "format": "name", "priority": 0},
                {"name": "Restarts", "priority": 0},
                {"name": "Node", "priority": 1},
            ],
            "rows": [{
                "cells": ["a", 3, "n1\nx"],
                "object": {"metadata": {"name": "a", "namespace": "web", "labels": {"b/app": "x", "a": "y"}}},
            }],
        })
    }

    fn shown_rows(options: &PrintOptions) -> (String, String) {
        let table = sample();
        let cells = cells(&table, &rows(&table)[0], options, Some("ADDED"));
        (heads(&table, options).join("|"), cells.join("|"))
    }

    #[test]
    fn options_choose_columns() {
        let short = shown_rows(&PrintOptions::default());
        assert_eq!(short, ("NAME|RESTARTS".into(), "a|3".into()));
        let options = PrintOptions {
            wide: true,
            namespaces: true,
            labels: true,
            label_columns: vec!["b/app".into(), "none".into()],
            name_prefix: Some("pod".into()),
            events: true,
        };
        let (heads, cells) = shown_rows(&options);
        assert_eq!(heads, "EVENT|NAMESPACE|NAME|RESTARTS|NODE|APP|NONE|LABELS");
        assert_eq!(cells, "ADDED|web|pod/a|3|n1...|x||a=y,b/app=x");
    }

    #[test]
    fn any_object_has_a_name_and_an_age() {
        let item = json!({"metadata": {"name": "a", "creationTimestamp": "1970-01-01T00:00:10Z"}});
        let table = plain(&[item], 40);
        let options = PrintOptions::default();
        assert_eq!(cells(&table, &rows(&table)[0], &options, None), ["a", "30s"]);
    }
}
