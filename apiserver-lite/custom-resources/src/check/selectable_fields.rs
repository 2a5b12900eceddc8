//! Fields that field selectors of a version may use: single scalars of its schema, outside of the metadata.

use std::collections::BTreeSet;

use apiserver_schema::validate::Cause;
use apiserver_schema::{Map, Value};

use crate::errors::{ErrorList, Path};
use crate::field_path::SchemaFieldPath;
use crate::node::{Node, Type};
use crate::pattern::Patterns;
use crate::read::Reader;

/// Most selectable fields of a version.
const FIELDS_MAX: usize = 8;

/// Checks `selectableFields` of a version.
pub(super) fn check(
    version: &Map,
    path: Path<'_>,
    patterns: &mut Patterns,
    errors: &mut ErrorList,
) {
    let fields = version.list("selectableFields");
    if fields.is_empty() {
        return;
    }
    let empty = Map::new();
    let schema = version.map("schema").and_then(|schema| schema.map("openAPIV3Schema"));
    // What cannot be read is refused already.
    let Ok(root) = Reader::new(patterns).read(schema.unwrap_or(&empty)) else { return };
    let mut seen = BTreeSet::new();
    for (at, field) in fields.iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let text = field.as_map().map_or("", |field| field.str("jsonPath"));
        check_field(text, &root, path.index(at), &mut seen, errors);
    }
    if seen.len() > FIELDS_MAX {
        let detail = format!("must have at most {FIELDS_MAX} items");
        errors.push(&path, Cause::TooMany, Some(seen.len().to_string()), &detail);
    }
}

fn check_field(
    text: &str,
    root: &Node,
    path: Path<'_>,
    seen: &mut BTreeSet<Vec<String>>,
    errors: &mut ErrorList,
) {
    if text.is_empty() {
        return errors.required(&path.field("jsonPath"), "");
    }
    let found = SchemaFieldPath::parse(text);
    let found = found.and_then(|field| root.find(&field).map(|node| (field.clone(), node)));
    let (field, node) = match found {
        Ok(found) => found,
        Err(error) => {
            let detail = format!("is an invalid path: {error}");
            return errors.invalid_text(&path.field("jsonPath"), text, &detail);
        }
    };
    if field.names().first().is_some_and(|name| name == "metadata") {
        errors.invalid_text(&path, text, "must not point to fields in metadata");
    }
    if !matches!(node.ty, Some(Type::Text | Type::Boolean | Type::Integer)) {
        let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are \
                      allowed.";
        errors.invalid_text(&path, text, detail);
    }
    if !seen.insert(field.names().to_vec()) {
        errors.duplicate(&path, &Value::from(text));
    }
}
