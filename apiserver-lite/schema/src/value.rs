//! The value tree: the form of an API object between decoding and encoding.
//!
//! A tree has the seven types of JSON values, and the text of sets of fields. Bytes are canonical base64 text, times and quantities
//! canonical text, as in JSON, so that patches and selectors see the same values as clients.

use std::borrow::Cow;

use compact_str::CompactString;

mod json;
mod map;
mod path;
#[cfg(test)]
mod tests;
mod weight;
mod yaml;

pub use json::{ParseError, parse_json, write_json, write_json_string};
pub(crate) use json::{Reading, TreeSeed, parse_json_within};
pub use map::{Key, Map};
pub(crate) use path::Path;
pub use path::cut;
pub use weight::TooLarge;
pub(crate) use weight::{
    Allowance, ENTRY, ITEM, MAPS_IN_LISTS_MAX, ROOM, TEXT, UNIT, WEIGHT_MAX, maps_in_lists, weigh,
    weigh_copy,
};
pub(crate) use yaml::read_yaml;

/// One node of a tree.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// JSON `null`; in a checked object it occurs only inside embedded raw JSON.
    #[default]
    Null,
    /// A boolean.
    Bool(bool),
    /// A number without fraction that fits 64 bits.
    Int(i64),
    /// Every other number.
    Float(f64),
    /// Text. Most texts of an object are short, and those of up to 24 bytes need no memory of their own.
    String(CompactString),
    List(Vec<Value>),
    /// A message or a map.
    Map(Map),
    /// An object as valid JSON text, which is written as it stands. Only `fieldsV1` of managed fields is kept so: it may have more fields than the rest of its
    /// object, and nothing but its own reader looks into it.
    Json(Box<str>),
}

impl Value {
    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, if it is one (`1.0` counts, as in Kubernetes' decoder).
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(number) => Some(*number),
            Value::Float(number) => whole(*number),
            _ => None,
        }
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// The items, if it is a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// The entries, if it is a map.
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The entries, mutable, if it is a map.
    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The JSON type, for messages: `object`, `array`, `string`, `number`, `bool`, `null`.
    pub fn shape(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::Float(_) => "number",
            Value::String(_) => "string",
            Value::List(_) => "array",
            Value::Map(_) | Value::Json(_) => "object",
        }
    }

    /// Whether `omitempty` omits the value: false, 0, empty string, list or map, null.
    pub fn is_empty(&self) -> bool {
        match self {
            Value::Null => true,
            Value::Bool(flag) => !flag,
            Value::Int(number) => *number == 0,
            Value::Float(number) => *number == 0.0,
            Value::String(text) => text.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Map(map) => map.is_empty(),
            Value::Json(_) => false,
        }
    }
}

impl Value {
    /// Canonical text of the value, equal exactly for equal values whatever the order of their maps; finds duplicates without pairwise
    /// comparison.
    pub fn identity(&self) -> String {
        let mut out = String::new();
        self.write_identity(&mut out);
        proto_api::count_steps!((out.len() / 16).saturating_add(1));
        out
    }

    /// The value as JSON text.
    pub(crate) fn into_json(self) -> Value {
        if matches!(self, Value::Json(_)) {
            return self;
        }
        let mut text = Vec::new();
        write_json(&mut text, &self);
        Value::Json(String::from_utf8_lossy(&text).into())
    }

    /// Makes sets of fields maps, as clients see them: for patches and expressions, which may look into them.
    pub fn parse_field_sets(&mut self) {
        match self {
            Value::Json(text) => {
                *self = parse_json(text.as_bytes(), &mut Vec::new()).unwrap_or_default();
            }
            Value::List(items) => items.iter_mut().for_each(Value::parse_field_sets),
            Value::Map(map) => map.iter_mut().for_each(|(_, value)| value.parse_field_sets()),
            _ => {}
        }
    }

    /// The number of values in this one, itself included.
    pub(crate) fn count_values(&self) -> usize {
        let sum = |values: &mut dyn Iterator<Item = &Value>| {
            values.map(Value::count_values).fold(1, usize::saturating_add)
        };
        match self {
            Value::Map(map) => sum(&mut map.iter().map(|(_, value)| value)),
            Value::List(items) => sum(&mut items.iter()),
            _ => 1,
        }
    }

    fn write_identity(&self, out: &mut String) {
        match self {
            Value::List(items) => {
                out.push('[');
                for item in items {
                    item.write_identity(out);
                    out.push(',');
                }
                out.push(']');
            }
            Value::Map(map) => {
                out.push('{');
                for (key, value) in map.iter_sorted() {
                    Value::from(key).write_identity(out);
                    out.push(':');
                    value.write_identity(out);
                    out.push(',');
                }
                out.push('}');
            }
            scalar => {
                let mut text = Vec::new();
                write_json(&mut text, scalar);
                out.push_str(&String::from_utf8_lossy(&text));
            }
        }
    }
}

/// `number` as an integer, if it has no fraction and fits.
fn whole(number: f64) -> Option<i64> {
    const LIMIT: f64 = 9_007_199_254_740_992.0; // 2^53: above it a float no longer names one integer
    (number.fract() == 0.0 && number.abs() <= LIMIT).then_some(number as i64)
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::String(CompactString::new(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::String(CompactString::from(text))
    }
}

impl From<Cow<'_, str>> for Value {
    fn from(text: Cow<'_, str>) -> Self {
        Value::String(CompactString::from(text))
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Int(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Value::Bool(flag)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Value::Map(map)
    }
}

impl From<Vec<Value>> for Value {
    fn from(items: Vec<Value>) -> Self {
        Value::List(items)
    }
}
