//! Tables: objects as rows, with the columns and cells that `kubectl get` prints.
//!
//! The columns of a kind are data (`proto_api::schema`); rows name their cells by column. A kind without columns has name and creation
//! time.

use std::borrow::Borrow;
use std::sync::Arc;

use compact_str::CompactString;
use proto_api::names::Names;
use proto_api::schema::Column;

use crate::engine::Engine;
use crate::list::{ListMeta, write_list_meta};
use crate::object::custom::{CustomColumn, CustomVersion};
use crate::object::{Kind, Object};
use crate::scalar::seconds_of;
use crate::value::{Map, Value, write_json, write_json_string};

mod cluster;
mod metrics;
mod node;
mod pod;
mod service;
mod storage;
#[cfg(test)]
mod tests;
mod text;
mod workload;

pub use text::human_duration;

/// The form of a Table that a client requested: version, columns and `includeObject`.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions<'a> {
    /// `apiVersion` of the table: `v1` or `v1beta1` of the group `meta`.
    pub api_version: &'a str,
    /// Whether the Table has column definitions.
    pub columns: ColumnDefinitions,
    /// What each row includes of its object.
    pub include: Include,
    /// Unix time in seconds, the reference of ages.
    pub now: i64,
}

/// Whether a Table has column definitions. In a watch only the first one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnDefinitions {
    /// They are described.
    Included,
    /// They are left out.
    Omitted,
}

/// What a row includes of its object (query parameter `includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Parses `includeObject`; metadata if it is empty.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Include::Metadata),
            "None" => Some(Include::None),
            "Object" => Some(Include::Object),
            _ => None,
        }
    }
}

/// The columns of a kind without columns of its own.
const DEFAULT_COLUMNS: &[Column] = &[
    Column { name: "Name", value: "string", format: "name", priority: 0 },
    Column { name: "Created At", value: "date", format: "", priority: 0 },
];

/// The columns of a Scale, which is no resource of its own.
const SCALE_COLUMNS: &[Column] = &[
    Column { name: "Name", value: "string", format: "name", priority: 0 },
    Column { name: "Desired", value: "integer", format: "", priority: 0 },
    Column { name: "Available", value: "integer", format: "", priority: 0 },
    Column { name: "Age", value: "string", format: "", priority: 0 },
];

/// Encodes a `Table` of objects of `kind` as JSON.
pub fn encode(
    engine: &Engine,
    options: TableOptions<'_>,
    kind: &Kind,
    meta: &ListMeta,
    objects: impl IntoIterator<Item: Borrow<Object>>,
) -> Vec<u8> {
    let columns = Columns::for_kind(kind);
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(b"{\"kind\":\"Table\",\"apiVersion\":");
    write_json_string(&mut out, options.api_version);
    out.extend_from_slice(b",\"metadata\":");
    write_list_meta(&mut out, meta);
    out.extend_from_slice(b",\"columnDefinitions\":");
    match options.columns {
        ColumnDefinitions::Included => columns.write(&mut out),
        ColumnDefinitions::Omitted => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"rows\":[");
    for (at, object) in objects.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_row(&mut out, engine, options, &columns, object.borrow());
    }
    out.extend_from_slice(b"]}");
    out
}

/// The columns of a kind.
enum Columns {
    BuiltIn(&'static [Column]),
    Custom(Arc<CustomVersion>),
}

impl Columns {
    fn for_kind(kind: &Kind) -> Self {
        if let Some(version) = kind.custom_version() {
            return Self::Custom(version);
        }
        if kind.is("autoscaling", "Scale") {
            return Self::BuiltIn(SCALE_COLUMNS);
        }
        let own = kind.resource.map_or(&[][..], |resource| resource.columns);
        Self::BuiltIn(if own.is_empty() { DEFAULT_COLUMNS } else { own })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        match self {
            Self::BuiltIn(columns) => columns.iter().enumerate().for_each(|(at, column)| {
                let texts = [column.name, column.value, column.format, ""];
                write_column(out, at, texts, column.priority.into());
            }),
            Self::Custom(version) => version.columns.iter().enumerate().for_each(|(at, column)| {
                let CustomColumn { name, value, format, description, priority } = column;
                write_column(out, at, [name, value, format, description], *priority);
            }),
        }
        out.push(b']');
    }

    fn write_cells(&self, out: &mut Vec<u8>, names: &'static Names, object: &Object, now: i64) {
        let mut write = |at: usize, cell: &Value| {
            if at > 0 {
                out.push(b',');
            }
            write_json(out, cell);
        };
        match self {
            Self::BuiltIn(columns) => {
                let cells = row(names, object, now);
                let shown = columns.iter().map(|column| cells.get(column.name));
                shown.enumerate().for_each(|(at, cell)| write(at, cell));
            }
            Self::Custom(version) => {
                let cells = version.rules.cells(object, now);
                cells.iter().enumerate().for_each(|(at, cell)| write(at, cell));
            }
        }
    }
}

fn write_column(out: &mut Vec<u8>, at: usize, texts: [&str; 4], priority: i64) {
    if at > 0 {
        out.push(b',');
    }
    let keys = ["{\"name\":", ",\"type\":", ",\"format\":", ",\"description\":"];
    for (key, text) in keys.into_iter().zip(texts) {
        out.extend_from_slice(key.as_bytes());
        write_json_string(out, text);
    }
    out.extend_from_slice(format!(",\"priority\":{priority}}}").as_bytes());
}

fn write_row(
    out: &mut Vec<u8>,
    engine: &Engine,
    options: TableOptions<'_>,
    columns: &Columns,
    object: &Object,
) {
    out.extend_from_slice(b"{\"cells\":[");
    columns.write_cells(out, engine.names(), object, options.now);
    out.push(b']');
    write_conditions(out, object);
    match options.include {
        Include::None => {}
        Include::Metadata => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(&engine.encode_json(&engine.metadata_only(object)));
        }
        Include::Object => {
            out.extend_from_slice(b",\"object\":");
            out.extend_from_slice(&engine.encode_json(object));
        }
    }
    out.push(b'}');
}

/// Writes the row condition `Completed` of a pod that has ended, so that clients can dim the row.
fn write_conditions(out: &mut Vec<u8>, object: &Object) {
    if !object.kind.is("", "Pod") {
        return;
    }
    let (reason, message) = match object.str_at(&["status", "phase"]) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return,
    };
    let condition = format!(
        ",\"conditions\":[{{\"type\":\"Completed\",\"status\":\"True\",\"reason\":\"{reason}\",\"message\":\"{message}\"}}]"
    );
    out.extend_from_slice(condition.as_bytes());
}

/// The cells of one row, by column.
#[derive(Default)]
struct Cells(Vec<(&'static str, Value)>);

impl Cells {
    fn set(&mut self, column: &'static str, value: impl Into<Value>) {
        self.0.push((column, value.into()));
    }

    fn get(&self, column: &str) -> &Value {
        static EMPTY: Value = Value::String(CompactString::const_new(""));
        self.0.iter().find(|(name, _)| *name == column).map_or(&EMPTY, |(_, value)| value)
    }
}

fn row(names: &'static Names, object: &Object, now: i64) -> Cells {
    let mut cells = Cells::default();
    cells.set("Name", object.name());
    let created = object.metadata().and_then(|metadata| metadata.get("creationTimestamp"));
    cells.set("Age", age(created, now));
    cells.set("Created At", created.cloned().unwrap_or_default());
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => pod::cells(object, now, &mut cells),
        ("", "Node") => node::cells(names, object, &mut cells),
        ("", "Service") => service::service_cells(object, &mut cells),
        ("", "Endpoints") => service::endpoints_cells(object, &mut cells),
        ("discovery", "EndpointSlice") => service::slice_cells(object, &mut cells),
        ("networking", _) => service::networking_cells(names, object, &mut cells),
        ("apps" | "batch" | "policy" | "autoscaling", _)
        | ("", "ReplicationController" | "PodTemplate") => {
            workload::cells(object, now, &mut cells);
        }
        ("", "PersistentVolume" | "PersistentVolumeClaim") | ("storage", _) => {
            storage::cells(names, object, &mut cells);
        }
        ("metrics", _) => metrics::cells(object, &mut cells),
        ("" | "events", "Event") => cluster::event_cells(object, now, &mut cells),
        _ => cluster::cells(object, &mut cells),
    }
    cells
}

/// The age of a timestamp: `5m12s`.
fn age(time: Option<&Value>, now: i64) -> String {
    match time.and_then(seconds_of) {
        Some(then) => human_duration(now.saturating_sub(then)),
        None => "<unknown>".to_owned(),
    }
}

/// An integer field; 0 if unset.
fn count(map: Option<&Map>, field: &str) -> i64 {
    map.and_then(|map| map.int(field)).unwrap_or(0)
}

/// The text, or `<none>` if it is empty.
fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}
