//! Objects of custom kinds: trees whose fields keep their form, apart from the metadata.

use crate::object::Kind;
use crate::shape_check::{TypeError, conform};
use crate::value::{Key, Map, Value, write_json, write_json_string};

/// The tree of a document of a custom kind, without `apiVersion` and `kind`, pruned by the rules of the kind. Paths of dropped fields are added to
/// `unknown`.
pub(crate) fn custom_fields(
    kind: &Kind,
    map: Map,
    unknown: &mut Vec<String>,
) -> Result<Map, TypeError> {
    let mut fields = checked_metadata(kind, map, unknown)?;
    if let Some(version) = kind.custom_version() {
        version.rules.prune(&mut fields, unknown);
    }
    Ok(fields)
}

/// The tree with metadata as all objects have them; the rest keeps its form.
pub(crate) fn checked_metadata(
    kind: &Kind,
    mut map: Map,
    unknown: &mut Vec<String>,
) -> Result<Map, TypeError> {
    let metadata = map.remove("metadata").map(|value| (Key::Borrowed("metadata"), value));
    let metadata = Map::from_entries(metadata.into_iter().collect());
    let mut checked = conform(&kind.shapes, kind.root, metadata, unknown)?;
    let Value::Map(mut fields) = sorted(Value::Map(map)) else { return Ok(checked) };
    if let Some(metadata) = checked.remove("metadata") {
        fields.insert("metadata", metadata);
    }
    Ok(fields)
}

/// An encoded object, after a line with the names of its resource, which the object does not have.
pub(crate) fn write_stored(kind: &Kind, object: &[u8]) -> Vec<u8> {
    let mut out = b"{\"plural\":".to_vec();
    write_json_string(&mut out, kind.plural());
    let namespaced: &[u8] = if kind.namespaced() { b"true" } else { b"false" };
    for part in [b",\"namespaced\":", namespaced, b"}\n", object] {
        out.extend_from_slice(part);
    }
    out
}

/// The value with all maps in the order of their keys.
fn sorted(value: Value) -> Value {
    match value {
        Value::Map(map) => {
            let entries = map.into_iter().map(|(key, value)| (key, sorted(value)));
            Value::Map(Map::from_entries(entries.collect()))
        }
        Value::List(items) => Value::List(items.into_iter().map(sorted).collect()),
        scalar => scalar,
    }
}

/// Writes an object of a custom kind as JSON.
pub(crate) fn write_custom(out: &mut Vec<u8>, kind: &Kind, fields: &Map) {
    out.push(b'{');
    out.extend_from_slice(kind.type_meta_json.as_bytes());
    for (name, value) in fields.iter() {
        out.push(b',');
        write_json_string(out, name);
        out.push(b':');
        write_json(out, value);
    }
    out.push(b'}');
}

/// `"apiVersion":"…","kind":"…"`: objects of custom kinds have the order of a map's keys.
pub(crate) fn custom_type_meta_json(kind: &str, api_version: &str) -> String {
    let mut out = b"\"apiVersion\":".to_vec();
    write_json_string(&mut out, api_version);
    out.extend_from_slice(b",\"kind\":");
    write_json_string(&mut out, kind);
    String::from_utf8_lossy(&out).into_owned()
}
