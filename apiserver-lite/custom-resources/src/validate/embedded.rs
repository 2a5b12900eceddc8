//! Embedded resources: their `apiVersion`, `kind` and `metadata`.

use apiserver_schema::validate::names;
use apiserver_schema::{Map, Value};

use crate::errors::{ErrorList, Path};
use crate::node::Node;

/// Checks the embedded resources below a node, not the node itself: the object's own metadata is checked elsewhere.
pub(super) fn check_below(node: &Node, value: &Value, path: Path<'_>, errors: &mut ErrorList) {
    if !node.has_lists || errors.is_full() {
        return;
    }
    match value {
        Value::List(items) => {
            let Some(node) = &node.items else { return };
            for (at, item) in items.iter().enumerate() {
                check(node, item, path.index(at), errors);
            }
        }
        Value::Map(map) => {
            for (name, value) in map.iter() {
                match node.property(name) {
                    Some(property) => check(property, value, path.field(name), errors),
                    None => {
                        if let Some(node) = node.additional.schema() {
                            check(node, value, path.key(name), errors);
                        }
                    }
                }
            }
        }
        _ => {}
    }
}

fn check(node: &Node, value: &Value, path: Path<'_>, errors: &mut ErrorList) {
    if let (true, Value::Map(map)) = (node.embedded, value) {
        check_object(map, path, errors);
    }
    check_below(node, value, path, errors);
}

/// Checks what every object has.
pub(crate) fn check_object(map: &Map, path: Path<'_>, errors: &mut ErrorList) {
    for field in ["apiVersion", "kind"] {
        match map.get(field) {
            None => errors.required(&path.field(field), "must not be empty"),
            Some(Value::String(text)) if text.is_empty() => {
                errors.required(&path.field(field), "must not be empty");
            }
            Some(Value::String(text)) if field == "kind" => {
                let complaints = names::dns_1035_label(&text.to_lowercase());
                let detail = "may have mixed case, but should otherwise match: ";
                if !complaints.is_empty() {
                    errors.invalid_text(
                        &path.field(field),
                        text,
                        &format!("{detail}{}", complaints.join(",")),
                    );
                }
            }
            Some(Value::String(text)) => {
                if text.matches('/').count() > 1 {
                    let detail = format!("unexpected GroupVersion string: {text}");
                    errors.invalid_text(&path.field(field), text, &detail);
                }
            }
            Some(other) => errors.invalid(&path.field(field), other, "must be a string"),
        }
    }
    match map.get("metadata") {
        None | Some(Value::Null) => {}
        Some(Value::Map(metadata)) => check_metadata(metadata, path.field("metadata"), errors),
        Some(other) => errors.invalid(&path.field("metadata"), other, "must be an object"),
    }
}

fn check_metadata(metadata: &Map, path: Path<'_>, errors: &mut ErrorList) {
    for field in ["name", "generateName", "namespace"] {
        match metadata.get(field) {
            None => {}
            Some(Value::String(text)) => {
                errors.complain(&path.field(field), text, &names::path_segment(text));
            }
            Some(other) => errors.invalid(&path.field(field), other, "must be a string"),
        }
    }
    for field in ["labels", "annotations"] {
        let path = path.field(field);
        match metadata.get(field) {
            None => {}
            Some(Value::Map(entries)) => check_entries(entries, field == "labels", path, errors),
            Some(other) => errors.invalid(&path, other, "must be an object"),
        }
    }
}

fn check_entries(entries: &Map, labels: bool, path: Path<'_>, errors: &mut ErrorList) {
    for (key, value) in entries.iter() {
        for complaint in names::qualified_name(&key.to_lowercase()) {
            errors.invalid_text(&path, key, &complaint);
        }
        match value {
            Value::String(text) if labels => {
                for complaint in names::label_value(text) {
                    errors.invalid_text(&path, text, &complaint);
                }
            }
            Value::String(_) => {}
            other => errors.invalid(&path.key(key), other, "must be a string"),
        }
    }
}
