//! Pruning: fields that a schema does not have are removed.

use apiserver_schema::Value;

use crate::errors::Path;
use crate::node::Node;

/// Most paths that are returned.
const PATHS_MAX: usize = 100;
/// Deepest value that is looked into where the schema has an end.
const DEPTH_MAX: usize = 256;

/// Fields of every object, which are never pruned.
pub(crate) const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Removes unknown fields and returns their paths.
pub(crate) fn prune(value: &mut Value, root: &Node) -> Vec<String> {
    let mut removed = Vec::new();
    prune_value(value, Some(root), Path::ROOT, 0, &mut removed);
    removed
}

fn prune_value(
    value: &mut Value,
    node: Option<&Node>,
    path: Path<'_>,
    depth: usize,
    removed: &mut Vec<String>,
) {
    if node.is_some_and(|node| node.preserve) {
        return skip(value, node, path, depth, removed);
    }
    let below = depth.saturating_add(1);
    match value {
        Value::Map(map) => {
            let known = |key: &str| {
                node.is_some_and(|node| {
                    (node.embedded && META_FIELDS.contains(&key))
                        || node.property(key).is_some()
                        || node.additional.is_set()
                })
            };
            map.retain(|key, _| {
                let keep = known(key);
                if !keep && removed.len() < PATHS_MAX {
                    removed.push(path.field(key).to_string());
                }
                keep
            });
            let Some(node) = node else { return };
            for (key, value) in map.iter_mut() {
                if !(node.embedded && META_FIELDS.contains(&key)) {
                    prune_value(value, node.field(key), path.field(key), below, removed);
                }
            }
        }
        Value::List(items) => {
            let node = node.and_then(|node| node.items.as_deref());
            if node.is_none() && depth > DEPTH_MAX {
                items.clear();
            }
            for (at, item) in items.iter_mut().enumerate() {
                prune_value(item, node, path.index(at), below, removed);
            }
        }
        _ => {}
    }
}

/// Keeps unknown fields, and prunes below known ones.
fn skip(
    value: &mut Value,
    node: Option<&Node>,
    path: Path<'_>,
    depth: usize,
    removed: &mut Vec<String>,
) {
    let Some(node) = node else { return };
    let below = depth.saturating_add(1);
    match value {
        Value::Map(map) => {
            for (key, value) in map.iter_mut() {
                if node.embedded && META_FIELDS.contains(&key) {
                    continue;
                }
                if node.property(key).is_some() || node.additional.is_set() {
                    prune_value(value, node.field(key), path.field(key), below, removed);
                }
            }
        }
        Value::List(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                skip(item, node.items.as_deref(), path.index(at), below, removed);
            }
        }
        _ => {}
    }
}
