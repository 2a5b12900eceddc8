//! The annotation of client-side apply, when kubectl goes over to server-side apply.

use apiserver_schema::value::{Key, parse_json, write_json};
use apiserver_schema::{Map, Value};

use crate::set::FieldSet;
use crate::structure::Structure;

/// Bytes of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// The fields in the annotation whose values are still those of the live object; `None` without a usable annotation.
pub(crate) fn unchanged_fields(
    structure: &Structure,
    live: &Value,
    api_version: &str,
    annotation: &str,
) -> Option<FieldSet> {
    let text = live.as_map()?.map("metadata")?.map("annotations")?.str(annotation);
    let applied = parse_json(text.as_bytes(), &mut Vec::new()).ok()?;
    if applied.as_map()?.str("apiVersion") != api_version || structure.validate(&applied).is_err() {
        return None;
    }
    let compare = structure.compare(&applied, live);
    let fields = structure.fields_of(&applied).difference(&compare.modified);
    Some(fields.difference(&compare.added).difference(&compare.removed))
}

/// Sets the annotation, if the object has it, to what is applied now; too large, it is removed. Returns whether the tree changed.
pub(crate) fn renew(tree: &mut Value, config: &Value, annotation: &str) -> bool {
    let annotations = tree.as_map_mut().and_then(|map| map.map_mut("metadata"));
    let Some(annotations) = annotations.and_then(|metadata| metadata.map_mut("annotations")) else {
        return false;
    };
    let before = annotations.str(annotation).to_owned();
    if before.is_empty() {
        return false;
    }
    let mut applied = sorted(config);
    let metadata = applied.as_map_mut().and_then(|map| map.map_mut("metadata"));
    if let Some(annotations) = metadata.and_then(|metadata| metadata.map_mut("annotations")) {
        annotations.remove(annotation);
    }
    let mut text = Vec::new();
    write_json(&mut text, &applied);
    text.push(b'\n');
    let text = String::from_utf8_lossy(&text).into_owned(); // own output is UTF-8
    let is_same = text == before;
    annotations.insert(annotation.to_owned(), text);
    let size = annotations
        .iter()
        .map(|(key, value)| key.len().saturating_add(value.as_str().map_or(0, str::len)));
    if size.sum::<usize>() > MAX_ANNOTATIONS {
        annotations.remove(annotation);
    }
    !is_same
}

/// The value with all maps sorted.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Map(map) => {
            let entries =
                map.iter().map(|(key, value)| (Key::Owned(key.to_owned()), sorted(value)));
            Value::Map(Map::from_entries(entries.collect()))
        }
        Value::List(items) => Value::List(items.iter().map(sorted).collect()),
        scalar => scalar.clone(),
    }
}
