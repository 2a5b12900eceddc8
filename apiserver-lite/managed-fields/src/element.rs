//! Steps of field paths: the name of a field, the keys of a list item, the value of a set's item, or an index.

use std::cmp::Ordering;
use std::fmt;

use apiserver_schema::Value;
use apiserver_schema::value::{parse_json, write_json, write_json_string};

/// One step of a path. The order is that of the steps in `fieldsV1`: fields, then keys, values and indexes.
#[derive(Clone, Debug)]
pub enum PathElement {
    /// A field of a message or a key of a map.
    Field(String),
    /// The item of a list whose key fields have these values, sorted by name.
    Key(Vec<(String, Value)>),
    /// The item of a set.
    Value(Value),
    /// The item at an index.
    Index(i64),
}

/// Why a key of `fieldsV1` is not a path element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// Shorter than a type and a colon.
    #[error("key must be 2 characters long: {0:?}")]
    Short(String),
    /// No colon after the type.
    #[error("missing colon: {0:?}")]
    NoColon(String),
    /// What follows the colon is not of the element's type.
    #[error("{element:?} is not a path element: {why}")]
    Malformed {
        /// The key.
        element: String,
        /// The error of the parser.
        why: String,
    },
}

impl PathElement {
    /// The step to the field `name`.
    pub fn field(name: impl Into<String>) -> Self {
        PathElement::Field(name.into())
    }

    /// The step to the list item with these key fields.
    pub fn key<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let mut fields: Vec<_> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        PathElement::Key(fields)
    }

    /// Parses a key of `fieldsV1`; `None` for a type that is not known here, which readers skip.
    pub fn parse(text: &str) -> Result<Option<Self>, ElementError> {
        let Some((kind, rest)) = text.split_at_checked(2) else {
            return Err(ElementError::Short(text.to_owned()));
        };
        let malformed =
            |why: &str| ElementError::Malformed { element: text.to_owned(), why: why.to_owned() };
        match kind {
            "f:" => Ok(Some(PathElement::Field(rest.to_owned()))),
            "v:" => {
                let value = parse_json(rest.as_bytes(), &mut Vec::new());
                value
                    .map(|value| Some(PathElement::Value(value)))
                    .map_err(|e| malformed(&e.to_string()))
            }
            "k:" => match parse_json(rest.as_bytes(), &mut Vec::new()) {
                Ok(Value::Map(map)) => {
                    let fields =
                        map.iter_sorted().map(|(name, value)| (name.to_owned(), value.clone()));
                    Ok(Some(PathElement::Key(fields.collect())))
                }
                Ok(other) => Err(malformed(&format!("the keys are of type {}", other.shape()))),
                Err(error) => Err(malformed(&error.to_string())),
            },
            "i:" => match rest.parse() {
                Ok(index) => Ok(Some(PathElement::Index(index))),
                Err(_) => Err(malformed("the index is not a number")),
            },
            _ if kind.ends_with(':') => Ok(None),
            _ => Err(ElementError::NoColon(text.to_owned())),
        }
    }

    /// The key of `fieldsV1` that [`PathElement::parse`] reads.
    pub fn text(&self) -> String {
        let mut out = Vec::new();
        match self {
            PathElement::Field(name) => return format!("f:{name}"),
            PathElement::Index(index) => return format!("i:{index}"),
            PathElement::Value(value) => {
                out.extend_from_slice(b"v:");
                write_json(&mut out, value);
            }
            PathElement::Key(fields) => {
                out.extend_from_slice(b"k:{");
                for (at, (name, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    write_json_string(&mut out, name);
                    out.push(b':');
                    write_json(&mut out, value);
                }
                out.push(b'}');
            }
        }
        String::from_utf8_lossy(&out).into_owned() // own output is UTF-8
    }

    fn rank(&self) -> u8 {
        match self {
            PathElement::Field(_) => 0,
            PathElement::Key(_) => 1,
            PathElement::Value(_) => 2,
            PathElement::Index(_) => 3,
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (PathElement::Field(a), PathElement::Field(b)) => a.cmp(b),
            (PathElement::Key(a), PathElement::Key(b)) => {
                let pair = |(x, y): (&(String, Value), &(String, Value))| {
                    x.0.cmp(&y.0).then_with(|| compare_values(&x.1, &y.1))
                };
                let differs = a.iter().zip(b).map(pair).find(|order| order.is_ne());
                differs.unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (PathElement::Value(a), PathElement::Value(b)) => compare_values(a, b),
            (PathElement::Index(a), PathElement::Index(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// Order of values in `fieldsV1`: numbers by size, then strings, booleans, lists, maps, null.
pub(crate) fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Int(_) | Value::Float(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::List(_) => 3,
        Value::Map(_) => 4,
        Value::Null => 5,
        Value::Json(_) => 6,
    };
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Int(a), Value::Float(b)) => (*a as f64).total_cmp(&unsigned_zero(*b)),
        (Value::Float(a), Value::Int(b)) => unsigned_zero(*a).total_cmp(&(*b as f64)),
        (Value::Float(a), Value::Float(b)) => unsigned_zero(*a).total_cmp(&unsigned_zero(*b)),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Json(a), Value::Json(b)) => a.cmp(b),
        (Value::List(a), Value::List(b)) => {
            let differs = a.iter().zip(b).map(|(a, b)| compare_values(a, b)).find(|o| o.is_ne());
            differs.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (Value::Map(a), Value::Map(b)) => {
            let pair = |((x, v), (y, w)): ((&str, &Value), (&str, &Value))| {
                x.cmp(y).then_with(|| compare_values(v, w))
            };
            let differs = a.iter_sorted().zip(b.iter_sorted()).map(pair).find(|o| o.is_ne());
            differs.unwrap_or_else(|| a.len().cmp(&b.len()))
        }
        (a, b) => rank(a).cmp(&rank(b)),
    }
}

/// `-0` and `0` are one number.
fn unsigned_zero(number: f64) -> f64 {
    if number == 0.0 { 0.0 } else { number }
}

/// As in conflicts: `.name`, `[containerPort=80,protocol="TCP"]`, `[="value"]`, `[0]`.
impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PathElement::Field(name) => write!(f, ".{name}"),
            PathElement::Index(index) => write!(f, "[{index}]"),
            PathElement::Value(value) => write!(f, "[={}]", Shown(value)),
            PathElement::Key(fields) => {
                f.write_str("[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{name}={}", Shown(value))?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A value in a path of a message: strings quoted as Go quotes them.
struct Shown<'a>(&'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("null"),
            Value::Bool(flag) => write!(f, "{flag}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::String(text) => quote(f, text),
            Value::Json(text) => f.write_str(text),
            Value::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if at > 0 { "," } else { "" }, Shown(item))?;
                }
                f.write_str("]")
            }
            Value::Map(map) => {
                map.iter_sorted().try_for_each(|(key, value)| write!(f, "{key}={}", Shown(value)))
            }
        }
    }
}

/// Writes a string in double quotes with Go's escapes.
pub(crate) fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for char in text.chars() {
        match char {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\u{7}' => f.write_str("\\a")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{b}' => f.write_str("\\v")?,
            '\u{c}' => f.write_str("\\f")?,
            control if u32::from(control) < 0x80 && control.is_control() => {
                write!(f, "\\x{:02x}", u32::from(control))?;
            }
            control if control.is_control() => write!(f, "\\u{:04x}", u32::from(control))?,
            plain => write!(f, "{plain}")?,
        }
    }
    f.write_str("\"")
}

/// The path of a field, from the root of the object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(pub Vec<PathElement>);

impl FieldPath {
    /// The path through fields with these names.
    pub fn fields(names: &[&str]) -> Self {
        FieldPath(names.iter().map(|name| PathElement::field(*name)).collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}
