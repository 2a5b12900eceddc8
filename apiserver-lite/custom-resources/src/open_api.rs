//! Schemas as they are published. The root's `apiVersion`, `kind` and `metadata` are added by who publishes, since their definitions are
//! named there, to every schema with `properties`: one without accepts any field, which kubectl rejects in a group with others.

use apiserver_schema::{Map, Value};
use serde_json::json;

/// In OpenAPI v3 everything that a structural schema has.
pub(crate) fn v3(schema: &Map) -> serde_json::Value {
    if schema.is_empty() {
        return any_object();
    }
    with_properties(publish(schema, &|_| {}))
}

/// In OpenAPI v2 without what clients cannot read. Where unknown fields are kept the schema says nothing of the known ones either.
pub(crate) fn v2(schema: &Map, preserve_unknown: bool) -> serde_json::Value {
    let keeps_unknown = preserve_unknown || schema.is_true("x-kubernetes-preserve-unknown-fields");
    if schema.is_empty() || keeps_unknown {
        return any_object();
    }
    with_properties(publish(schema, &simplify))
}

fn any_object() -> serde_json::Value {
    json!({"type": "object"})
}

/// The schema of an object that has the fields of every object.
fn with_properties(mut schema: serde_json::Value) -> serde_json::Value {
    if let Some(root) = schema.as_object_mut() {
        root.entry("type").or_insert_with(|| json!("object"));
        root.entry("properties").or_insert_with(|| json!({}));
    }
    schema
}

type Object = serde_json::Map<String, serde_json::Value>;

/// Copies a schema; `change` changes each copied node after the nodes below it.
fn publish(schema: &Map, change: &dyn Fn(&mut Object)) -> serde_json::Value {
    let mut out = Object::new();
    for (name, value) in schema.iter_sorted() {
        let copy = match (name, value) {
            ("externalDocs" | "example" | "id" | "$schema", _) => continue,
            ("nullable" | "uniqueItems" | "x-kubernetes-embedded-resource", Value::Bool(false)) => {
                continue;
            }
            ("x-kubernetes-int-or-string", Value::Bool(false)) => continue,
            ("items" | "additionalProperties" | "not", Value::Map(nested)) => {
                publish(nested, change)
            }
            ("properties", Value::Map(nested)) => {
                let nested = nested.iter_sorted().filter_map(|(name, value)| {
                    Some((name.to_owned(), publish(value.as_map()?, change)))
                });
                serde_json::Value::Object(nested.collect())
            }
            ("allOf" | "anyOf" | "oneOf", Value::List(items)) => items
                .iter()
                .filter_map(Value::as_map)
                .map(|nested| publish(nested, change))
                .collect(),
            (_, value) => to_json(value),
        };
        out.insert(name.to_owned(), copy);
    }
    change(&mut out);
    serde_json::Value::Object(out)
}

fn is_true(schema: &Object, field: &str) -> bool {
    schema.get(field) == Some(&json!(true))
}

/// What kubectl's reader of OpenAPI v2 does not understand is left out.
fn simplify(schema: &mut Object) {
    for junctor in ["allOf", "anyOf", "oneOf", "not"] {
        schema.remove(junctor);
    }
    let preserve = is_true(schema, "x-kubernetes-preserve-unknown-fields");
    let nullable = schema.remove("nullable") == Some(json!(true));
    if nullable || preserve {
        schema.remove("items");
        schema.remove("properties");
    }
    let kind = schema.get("type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let list_of_unknown = kind == "array" && !schema.contains_key("items");
    if nullable || list_of_unknown || (preserve && kind == "object") {
        schema.remove("type");
    }
    // `simplify` has removed `nullable` from the nodes below; a node without a type was nullable or has unknown contents.
    let untyped = |node: &serde_json::Value| node.get("type").is_none();
    let optional: Vec<String> = schema
        .get("properties")
        .and_then(|properties| properties.as_object())
        .into_iter()
        .flatten()
        .filter(|(_, node)| untyped(node) && node.get("x-kubernetes-int-or-string").is_none())
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(serde_json::Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| {
            name.as_str().is_none_or(|name| !optional.iter().any(|have| have == name))
        });
        if required.is_empty() {
            schema.remove("required");
        }
    }
}

/// A value as JSON.
fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(flag) => json!(flag),
        Value::Int(number) => json!(number),
        Value::Float(number) => json!(number),
        Value::String(text) => json!(text.as_str()),
        Value::Json(text) => serde_json::from_str(text).unwrap_or_default(),
        Value::List(items) => items.iter().map(to_json).collect(),
        Value::Map(map) => {
            map.iter_sorted().map(|(key, value)| (key.to_owned(), to_json(value))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::value;

    fn schema() -> Map {
        let text = r#"{"type":"object","required":["n","s"],"properties":{
            "n":{"type":"string","nullable":true},
            "s":{"type":"string","default":"x","anyOf":[{"pattern":"a"}]},
            "u":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"string"}}},
            "l":{"type":"array","items":{"type":"integer"}}}}"#;
        value(text).as_map().cloned().expect("a map")
    }

    #[test]
    fn v3_has_everything() {
        let published = v3(&schema());
        assert_eq!(published["properties"]["s"]["anyOf"], json!([{"pattern": "a"}]));
        assert_eq!(published["properties"]["n"]["nullable"], json!(true));
    }

    #[test]
    fn v2_has_what_its_clients_read() {
        let expect = json!({"type": "object", "required": ["s"], "properties": {
            "n": {}, "s": {"type": "string", "default": "x"},
            "u": {"x-kubernetes-preserve-unknown-fields": true},
            "l": {"type": "array", "items": {"type": "integer"}}}});
        assert_eq!(v2(&schema(), false), expect);
        assert_eq!(v2(&schema(), true), any_object());
        assert_eq!(v2(&Map::new(), false), any_object());
        let mut keeps = schema();
        keeps.insert("x-kubernetes-preserve-unknown-fields", true);
        assert_eq!(v2(&keeps, false), any_object());
        assert_eq!(v3(&keeps)["properties"]["s"]["type"], "string");
        let no_fields = Map::from_iter([("type", "object")]);
        assert_eq!(v2(&no_fields, false), json!({"type": "object", "properties": {}}));
    }
}
