//! Paths of fields, and the errors of fields in Kubernetes' words.

use std::fmt;

use apiserver_schema::validate::Cause;
use apiserver_schema::value::cut;
use apiserver_schema::{FieldError, Value};

/// Most errors that are kept of one object.
const ERRORS_MAX: usize = 1000;

/// One segment below `parent`; the root has none.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    /// The root of an object, for which Kubernetes writes `<nil>`.
    pub(crate) const ROOT: Path<'static> = Path { parent: None, segment: Segment::Root };

    pub(crate) fn field(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: Segment::Field(name) }
    }

    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), segment: Segment::Key(key) }
    }

    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), segment: Segment::Index(index) }
    }

    fn is_root(&self) -> bool {
        matches!(self.segment, Segment::Root)
    }

    /// The path in an error: `<nil>` for the root.
    pub(crate) fn name(&self) -> String {
        if self.is_root() { "<nil>".to_owned() } else { self.to_string() }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.segment {
            Segment::Root => Ok(()),
            Segment::Key(key) => write!(f, "[{}]", cut(key)),
            Segment::Index(index) => write!(f, "[{index}]"),
            Segment::Field(name) if self.parent.is_none_or(Path::is_root) => f.write_str(cut(name)),
            Segment::Field(name) => write!(f, ".{}", cut(name)),
        }
    }
}

/// The errors of an object, at most [`ERRORS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct ErrorList(pub(crate) Vec<FieldError>);

impl ErrorList {
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= ERRORS_MAX
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Required, None, detail);
    }

    pub(crate) fn forbidden(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, Cause::Forbidden, None, detail);
    }

    pub(crate) fn invalid(&mut self, path: &Path<'_>, value: &Value, detail: &str) {
        self.push(path, Cause::Invalid, Some(show(value)), detail);
    }

    pub(crate) fn invalid_text(&mut self, path: &Path<'_>, value: &str, detail: &str) {
        self.push(path, Cause::Invalid, Some(quote(value)), detail);
    }

    pub(crate) fn not_supported(&mut self, path: &Path<'_>, value: &Value, supported: &[String]) {
        let quoted: Vec<String> = supported.iter().map(|text| quote(text)).collect();
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push(path, Cause::NotSupported, Some(show(value)), &detail);
    }

    pub(crate) fn duplicate(&mut self, path: &Path<'_>, value: &Value) {
        self.push(path, Cause::Duplicate, Some(show(value)), "");
    }

    /// Adds an error whose value is shown already.
    pub(crate) fn push(
        &mut self,
        path: &Path<'_>,
        cause: Cause,
        value: Option<String>,
        detail: &str,
    ) {
        if self.is_full() {
            return;
        }
        let mut message = cause.text().to_owned();
        let value = value.map(shortened);
        for part in value.as_deref().into_iter().chain((!detail.is_empty()).then_some(detail)) {
            message.push_str(": ");
            message.push_str(part.get(..part.floor_char_boundary(DETAIL_LEN_MAX)).unwrap_or(part));
        }
        self.0.push(FieldError { field: path.name(), cause, message });
    }

    /// Adds each message as an error of an invalid text.
    pub(crate) fn complain(&mut self, path: &Path<'_>, value: &str, complaints: &[String]) {
        if !complaints.is_empty() {
            self.invalid_text(path, value, &complaints.join(","));
        }
    }
}

/// Longest value that an error shows, in bytes.
const VALUE_LEN_MAX: usize = 4096;

/// Longest detail that an error has, in bytes.
const DETAIL_LEN_MAX: usize = 10_000;

/// A shown value, cut where it is too long.
pub(crate) fn shortened(mut shown: String) -> String {
    if shown.len() > VALUE_LEN_MAX {
        shown.truncate(shown.floor_char_boundary(VALUE_LEN_MAX));
        shown.push_str("...");
    }
    shown
}

/// A quoted text, as Kubernetes writes it.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len().saturating_add(2));
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() && u32::from(c) < 0x80 => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)));
            }
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value in an error: texts quoted, numbers as they are, others as kube-apiserver shows its own values.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Null => quote("null"),
        value => show_nested(value),
    }
}

fn show_nested(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => show_float(*number),
        Value::String(text) => quote(text),
        Value::Json(text) => text.to_string(),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(show_nested).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Map(map) => {
            let entries = map.iter_sorted();
            let entries: Vec<String> = entries
                .map(|(key, value)| format!("{}:{}", quote(key), show_nested(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
    }
}

/// A number with a fraction, without one if it is whole.
pub(crate) fn show_float(number: f64) -> String {
    let mut out = Vec::new();
    apiserver_schema::value::write_json(&mut out, &Value::Float(number));
    String::from_utf8_lossy(&out).into_owned()
}
