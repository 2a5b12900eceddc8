//! Columns of tables.

use apiserver_schema::table::human_duration;
use apiserver_schema::value::write_json;
use apiserver_schema::{Map, Value};
use proto_api::Time;

use crate::json_path::JsonPath;

/// A column of a version (`additionalPrinterColumns`).
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub value: String,
    /// Its format, or empty.
    pub format: String,
    /// What it shows.
    pub description: String,
    /// 0 always shown, otherwise in wide tables.
    pub priority: i64,
    /// Where its values are; `None` if the path cannot be read, which gives empty cells.
    pub path: Option<JsonPath>,
}

impl Column {
    pub(crate) fn read(column: &Map) -> Self {
        let path = column.str("jsonPath");
        let usual = || format!("Custom resource definition column (in JSONPath format): {path}");
        let description = Some(column.str("description")).filter(|text| !text.is_empty());
        Column {
            name: column.str("name").to_owned(),
            value: column.str("type").to_owned(),
            format: column.str("format").to_owned(),
            description: description.map_or_else(usual, str::to_owned),
            priority: column.int("priority").unwrap_or_default(),
            path: JsonPath::parse(path).ok(),
        }
    }

    /// The column of versions that name none.
    pub(crate) fn age() -> Self {
        Column {
            name: "Age".to_owned(),
            value: "date".to_owned(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this object was created. It is not \
                          guaranteed to be set in happens-before order across separate operations. Clients may not set this \
                          value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null \
                          for lists."
                .to_owned(),
            priority: 0,
            path: JsonPath::parse(".metadata.creationTimestamp").ok(),
        }
    }

    /// The cell of an object. `now` is the Unix time of ages.
    fn cell(&self, object: &Value, now: i64) -> Value {
        let value = self.path.as_ref().and_then(|path| path.first(object));
        let Some(value) = value.filter(|value| **value != Value::Null) else {
            return Value::Null;
        };
        match (self.value.as_str(), value) {
            ("string", value) => Value::from(text_of(value)),
            ("integer", Value::Int(number)) => Value::Int(*number),
            ("integer", Value::Float(number)) => Value::Int(*number as i64), // saturates, as a cell must show something
            ("number", Value::Int(number)) => Value::Float(*number as f64),
            ("number", Value::Float(number)) => Value::Float(*number),
            ("boolean", Value::Bool(flag)) => Value::Bool(*flag),
            ("date", Value::String(time)) => Value::from(age(time, now)),
            _ => Value::Null,
        }
    }
}

/// The cells of an object, one a column. `now` is the Unix time of ages.
pub fn cells(columns: &[Column], object: &Value, now: i64) -> Vec<Value> {
    columns.iter().map(|column| column.cell(object, now)).collect()
}

/// A value as text: strings as they are, others in JSON.
fn text_of(value: &Value) -> String {
    if let Value::String(text) = value {
        return text.to_string();
    }
    let mut out = Vec::new();
    write_json(&mut out, value);
    String::from_utf8_lossy(&out).into_owned()
}

fn age(time: &str, now: i64) -> String {
    match time.parse::<Time>().ok().and_then(Time::unix) {
        Some(then) => human_duration(now.saturating_sub(then)),
        None => "<invalid>".to_owned(),
    }
}
