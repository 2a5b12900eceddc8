//! Defaults: each has only known fields and is valid itself.

use apiserver_schema::Value;

use crate::errors::{ErrorList, Path};
use crate::node::Node;
use crate::prune;
use crate::validate;

/// Checks the defaults of a schema.
pub(super) fn check(node: &Node, path: Path<'_>, errors: &mut ErrorList) {
    if let Some(default) = &node.default {
        check_default(node, default, path.field("default"), errors);
    }
    if let Some(items) = &node.items {
        check(items, path.field("items"), errors);
    }
    for (name, property) in &node.properties {
        if !errors.is_full() {
            check(property, path.field("properties").key(name), errors);
        }
    }
}

fn check_default(node: &Node, default: &Value, path: Path<'_>, errors: &mut ErrorList) {
    let mut pruned = default.clone();
    if !prune::prune(&mut pruned, node).is_empty() {
        return errors.invalid(&path, default, "must not have unknown fields");
    }
    let mut found = ErrorList::default();
    validate::validate(node, default, None, &mut found);
    let prefix = path.to_string();
    for mut error in found.0 {
        if errors.is_full() {
            return;
        }
        let root = error.field == "<nil>";
        error.field = if root { prefix.clone() } else { format!("{prefix}.{}", error.field) };
        errors.0.push(error);
    }
}
