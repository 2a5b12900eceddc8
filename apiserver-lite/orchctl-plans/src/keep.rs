//! Access to JSON trees: maps that are made where they are missing.

use serde_json::{Map, Value};

/// The map at a path of keys, made where there is none.
pub(crate) fn map_at<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut map = as_map(object);
    for key in path {
        map = as_map(map.entry(*key).or_insert(Value::Null));
    }
    map
}

/// The value as a map; anything else is replaced by an empty one.
fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("invariant: made a map just above"),
    }
}

/// The text at a path; empty if there is none.
pub(crate) fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a path; 0 if there is none.
pub(crate) fn int_at(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// The items of the list at a path.
pub(crate) fn items_at<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
