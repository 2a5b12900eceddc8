//! RFC 7396: maps are merged, `null` removes, everything else replaces.

use crate::value::{Map, Value};

/// Applies `patch` to `target`.
pub(crate) fn apply_merge_patch(target: &mut Value, patch: Value) {
    let Value::Map(patch) = patch else {
        *target = patch;
        return;
    };
    if !matches!(target, Value::Map(_)) {
        *target = Value::Map(Map::new());
    }
    let Some(map) = target.as_map_mut() else { return };
    for (key, value) in patch {
        if value == Value::Null {
            map.remove(&key);
            continue;
        }
        let mut merged = map.remove(&key).unwrap_or_default();
        apply_merge_patch(&mut merged, value);
        map.insert(key, merged);
    }
}
