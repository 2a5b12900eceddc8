//! The rows of a view: objects as the server's tables show them, at most this many.

use std::collections::BTreeMap;

use orchctl_printers::table::{self, PrintOptions};
use orchctl_printers::tone::Tone;
use orchctl_printers::{age, objects};
use serde_json::Value;

use crate::text;

/// Most rows of a view. Of events the newest are kept, of others the first.
pub const ROWS_MAX: usize = 2000;

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All nodes.
    Nodes,
    /// Pods of a namespace or all.
    Pods,
    /// Events of a namespace or all, the newest first.
    Events,
    /// The log of a container.
    Logs,
}

impl View {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Nodes, Self::Pods, Self::Events, Self::Logs];

    /// Its name; of those with rows the resource.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Events => "events",
            Self::Logs => "logs",
        }
    }
}

/// An object that a question is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowTarget {
    /// Group and version.
    pub api_version: String,
    pub kind: String,
    /// Namespace; empty outside of namespaces.
    pub namespace: String,
    pub name: String,
}

/// How a row is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStyle {
    /// All is well.
    Plain,
    /// Not yet, or not any more.
    Attention,
    /// Something is wrong.
    Alarm,
}

/// A cell: a text, after an age if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    text: String,
    /// Seconds since 1970.
    since: Option<i64>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScreenRow {
    /// The object, or the one that an event is about.
    pub target: RowTarget,
    /// How it is meant.
    pub tone: RowStyle,
    cells: Vec<Cell>,
    /// By which events are ordered: seconds since 1970.
    time: i64,
}

/// The rows of a view.
#[derive(Debug)]
pub struct Rows {
    view: View,
    options: PrintOptions,
    /// The first answer's columns: those of a watch have none.
    columns: Value,
    heads: Vec<String>,
    rows: BTreeMap<String, ScreenRow>,
    /// Whether there are more objects than rows.
    is_partial: bool,
}

impl ScreenRow {
    /// Its cells at this time.
    pub fn cells(&self, now: i64) -> impl Iterator<Item = String> + '_ {
        self.cells.iter().map(move |cell| match cell.since {
            None => cell.text.clone(),
            Some(then) => {
                let seconds = u64::try_from(now.saturating_sub(then)).unwrap_or_default();
                format!("{}{}", age::of_seconds(seconds), cell.text)
            }
        })
    }

    fn matches(&self, filter: &str) -> bool {
        self.cells.iter().any(|cell| cell.text.to_lowercase().contains(filter))
    }
}

impl Rows {
    /// None yet.
    pub fn new(view: View, all_namespaces: bool) -> Self {
        let namespaces = all_namespaces && view != View::Nodes;
        let options = PrintOptions { namespaces, ..PrintOptions::default() };
        let heads: &[&str] = match view {
            View::Events => &["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"],
            _ => &[],
        };
        let namespace = (namespaces && !heads.is_empty()).then_some("NAMESPACE");
        let heads = namespace.iter().chain(heads).map(|head| (*head).to_owned()).collect();
        Self {
            view,
            options,
            columns: Value::Null,
            heads,
            rows: BTreeMap::new(),
            is_partial: false,
        }
    }

    /// The heads of the columns.
    pub fn heads(&self) -> &[String] {
        &self.heads
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// How many rows are meant so.
    pub fn count_of(&self, tone: RowStyle) -> usize {
        self.rows.values().filter(|row| row.tone == tone).count()
    }

    /// Whether there are more objects than rows.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// The rows that have a text in a cell, in their order.
    pub fn filter_rows(&self, filter: &str) -> Vec<(&str, &ScreenRow)> {
        let filter = filter.to_lowercase();
        let rows = self.rows.iter().filter(|(_, row)| filter.is_empty() || row.matches(&filter));
        let mut rows: Vec<(&str, &ScreenRow)> =
            rows.map(|(key, row)| (key.as_str(), row)).collect();
        if self.view == View::Events {
            rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.time));
        }
        rows
    }

    /// Takes in a page of a list.
    pub fn list(&mut self, page: &Value) {
        if table::is_table(page) {
            self.take_columns(page);
            for row in table::rows(page) {
                self.put_row(row);
            }
        } else {
            for object in objects::list_at(page, "/items") {
                self.put_event(object);
            }
        }
    }

    /// Notes that the list goes on after its last page.
    pub fn set_partial(&mut self) {
        self.is_partial = true;
    }

    /// Takes in an event of a watch: its type, and an object or a table of it.
    pub fn change(&mut self, kind: &str, object: &Value) {
        let is_gone = match kind {
            "DELETED" => true,
            "ADDED" | "MODIFIED" => false,
            _ => return,
        };
        if !table::is_table(object) {
            if is_gone {
                self.remove(object)
            } else {
                self.put_event(object)
            }
            return;
        }
        self.take_columns(object);
        for row in table::rows(object) {
            match row.get("object") {
                Some(object) if is_gone => self.remove(object),
                _ => self.put_row(row),
            }
        }
    }

    fn take_columns(&mut self, table: &Value) {
        if self.columns.is_null() && !objects::list_at(table, "/columnDefinitions").is_empty() {
            let definitions = table.get("columnDefinitions").cloned();
            self.columns = serde_json::json!({"columnDefinitions": definitions});
            let heads = table::heads(&self.columns, &self.options);
            self.heads = heads.iter().map(|head| text::cell(head)).collect();
        }
    }

    fn remove(&mut self, object: &Value) {
        self.rows.remove(&key(object));
    }

    fn put_row(&mut self, row: &Value) {
        let object = row.get("object").unwrap_or(&Value::Null);
        let texts = table::cells(&self.columns, row, &self.options, None);
        let created = age::seconds_of(objects::text_at(object, "/metadata/creationTimestamp"));
        let heads = self.heads.iter().map(String::as_str);
        let cells: Vec<Cell> = heads
            .zip(texts)
            .map(|(head, shown)| match created.filter(|_| head == "AGE") {
                Some(then) => Cell { text: String::new(), since: Some(then) },
                None => Cell { text: text::cell(&shown), since: None },
            })
            .collect();
        let cell_of = |name: &str| {
            let at = self.heads.iter().position(|head| head == name);
            at.and_then(|at| cells.get(at)).map_or("", |cell| cell.text.as_str())
        };
        let tone = tone_of(cell_of("STATUS"), cell_of("READY"));
        let kind = if self.view == View::Nodes { "Node" } else { "Pod" };
        let target = RowTarget {
            api_version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: objects::namespace(object).to_owned(),
            name: objects::name(object).to_owned(),
        };
        self.put(key(object), ScreenRow { target, tone, cells, time: created.unwrap_or_default() });
    }

    fn put_event(&mut self, event: &Value) {
        let part = |pointer: &str| objects::text_at(event, pointer);
        let time = age::last_seen(event).and_then(age::seconds_of);
        let count = event.pointer("/series/count").or_else(|| event.get("count"));
        let count = count.and_then(Value::as_i64).filter(|count| *count > 1);
        let times = count.map(|count| format!(" (x{count})")).unwrap_or_default();
        let (kind, name) = (part("/involvedObject/kind"), part("/involvedObject/name"));
        let plain = |shown: &str| Cell { text: text::cell(shown), since: None };
        let mut cells = Vec::new();
        if self.options.namespaces {
            cells.push(plain(objects::namespace(event)));
        }
        cells.push(Cell { text: times, since: time });
        cells.push(plain(part("/type")));
        cells.push(plain(part("/reason")));
        cells.push(plain(&format!("{kind}/{name}")));
        cells.push(plain(part("/message")));
        let target = RowTarget {
            api_version: part("/involvedObject/apiVersion").to_owned(),
            kind: kind.to_owned(),
            namespace: part("/involvedObject/namespace").to_owned(),
            name: name.to_owned(),
        };
        let tone = if part("/type") == "Warning" { RowStyle::Alarm } else { RowStyle::Plain };
        self.put(key(event), ScreenRow { target, tone, cells, time: time.unwrap_or_default() });
    }

    fn put(&mut self, key: String, row: ScreenRow) {
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            self.is_partial = true;
            if self.view != View::Events {
                return;
            }
            let oldest = self.rows.iter().min_by_key(|(_, row)| row.time);
            let Some((oldest, last)) = oldest.map(|(key, row)| (key.clone(), row.time)) else {
                return;
            };
            if row.time < last {
                return;
            }
            self.rows.remove(&oldest);
        }
        self.rows.insert(key, row);
    }
}

fn key(object: &Value) -> String {
    format!("{}/{}", objects::namespace(object), objects::name(object))
}

/// Of a node or pod in the server's tables; `ready` is as `1/2`.
fn tone_of(status: &str, ready: &str) -> RowStyle {
    let is_partly_ready = ready.split_once('/').is_some_and(|(ready, all)| ready != all);
    match Tone::of_status(status) {
        Some(Tone::Well) if status == "Running" && is_partly_ready => RowStyle::Attention,
        Some(Tone::Well) => RowStyle::Plain,
        Some(Tone::Attention) => RowStyle::Attention,
        None if status.is_empty() => RowStyle::Plain,
        Some(Tone::Alarm) | None => RowStyle::Alarm,
    }
}
