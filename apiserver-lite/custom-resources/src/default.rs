//! Defaulting: unset fields get the values of their schema.

use apiserver_schema::value::Key;
use apiserver_schema::{Map, Value};

use crate::node::Node;

/// Most bytes that defaulting of one object adds, counted generously: defaults of items multiply with the items. What is beyond stays unset.
const ADDED_MAX: usize = 8 << 20;

/// What the first entry of a map takes besides its value, in bytes: maps make room for some more.
const ROOM: usize = 4 * size_of::<(Key, Value)>();

/// What a value takes, in bytes.
fn weight(value: &Value) -> usize {
    let below: usize = match value {
        Value::String(text) => text.len(),
        Value::List(items) => items.iter().map(weight).sum(),
        Value::Map(map) => {
            map.iter().map(|(key, value)| key.len().saturating_add(weight(value))).sum()
        }
        _ => 0,
    };
    below.saturating_add(size_of::<Value>())
}

/// Whether a default fits what is left, with what it takes where it is put; it is then counted.
fn charge_default(default: &Value, around: usize, added: &mut usize) -> bool {
    let with = added.saturating_add(around).saturating_add(weight(default));
    let fits = with <= ADDED_MAX;
    if fits {
        *added = with;
    }
    fits
}

/// Drops null where it is neither allowed nor replaced, then sets defaults.
pub(crate) fn default(value: &mut Value, root: &Node) {
    drop_nulls(value, root);
    set_defaults(value, root, &mut 0);
}

/// Removes fields that are null though the schema does not allow it and has no default: such a null means an unset field.
fn drop_nulls(value: &mut Value, node: &Node) {
    match value {
        Value::Map(map) => {
            map.retain(|key, value| match node.field(key) {
                Some(field) if *value == Value::Null => field.nullable || field.default.is_some(),
                _ => true,
            });
            for (key, value) in map.iter_mut() {
                if let Some(field) = node.field(key) {
                    drop_nulls(value, field);
                }
            }
        }
        Value::List(items) => {
            if let Some(node) = &node.items {
                items.iter_mut().for_each(|item| drop_nulls(item, node));
            }
        }
        _ => {}
    }
}

fn set_defaults(value: &mut Value, node: &Node, added: &mut usize) {
    match value {
        Value::Map(map) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                let unset = map.get(name).is_none_or(|have| property.replaces(have));
                let room = if map.is_empty() { ROOM } else { 0 };
                if unset && charge_default(default, room.saturating_add(name.len()), added) {
                    map.insert(name.clone(), default.clone());
                }
            }
            default_fields(map, node, added);
        }
        Value::List(items) => {
            let Some(node) = &node.items else { return };
            for item in items {
                replace_null(item, node, added);
                set_defaults(item, node, added);
            }
        }
        _ => {}
    }
}

fn default_fields(map: &mut Map, node: &Node, added: &mut usize) {
    for (key, value) in map.iter_mut() {
        if let Some(property) = node.property(key) {
            set_defaults(value, property, added);
        } else if let Some(node) = node.additional.schema() {
            replace_null(value, node, added);
            set_defaults(value, node, added);
        }
    }
}

fn replace_null(value: &mut Value, node: &Node, added: &mut usize) {
    if let Some(default) = node.default.as_ref().filter(|_| node.replaces(value))
        && charge_default(default, 0, added)
    {
        *value = default.clone();
    }
}
