//! Sets and lists with keys: no item twice.

use std::collections::HashMap;

use apiserver_schema::{Map, Value};

use super::values::identity;
use crate::errors::{ErrorList, Path};
use crate::node::{ListType, Node};

pub(super) fn check(node: &Node, value: &Value, path: Path<'_>, errors: &mut ErrorList) {
    if !node.has_lists || errors.is_full() {
        return;
    }
    match value {
        Value::List(items) => {
            match &node.list {
                ListType::Atomic => {}
                ListType::Set => {
                    for at in duplicates(items.iter().map(identity)) {
                        if let Some(item) = items.get(at) {
                            errors.duplicate(&path.index(at), item);
                        }
                    }
                }
                ListType::Map(keys) => check_keys(items, keys, path, errors),
            }
            if let Some(node) = &node.items {
                for (at, item) in items.iter().enumerate() {
                    check(node, item, path.index(at), errors);
                }
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

fn check_keys(items: &[Value], keys: &[String], path: Path<'_>, errors: &mut ErrorList) {
    let other = |item: &Value| !matches!(item, Value::Map(_) | Value::Null);
    if let Some(at) = items.iter().position(other) {
        let item = items.get(at).unwrap_or(&Value::Null);
        errors.invalid(&path.index(at), item, "must be an object for an array of list-type map");
        return;
    }
    let found: Vec<Value> = items.iter().map(|item| key_of(item, keys)).collect();
    for at in duplicates(found.iter().map(identity)) {
        if let Some(key) = found.get(at) {
            errors.duplicate(&path.index(at), key);
        }
    }
}

/// The key fields of an item, as far as they are set.
fn key_of(item: &Value, keys: &[String]) -> Value {
    let Value::Map(item) = item else { return Value::Map(Map::new()) };
    let fields =
        keys.iter().filter_map(|key| item.get(key).map(|value| (key.clone(), value.clone())));
    Value::Map(Map::from_iter(fields))
}

/// Indices of the items that are the second of their kind.
fn duplicates(identities: impl Iterator<Item = String>) -> Vec<usize> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut found = Vec::new();
    for (at, identity) in identities.enumerate() {
        let times = seen.entry(identity).or_default();
        *times = times.saturating_add(1);
        if *times == 2 {
            found.push(at);
        }
    }
    found
}
