//! JSON Merge Patch (RFC 7396): maps are merged, `null` removes, other values replace.

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
    let merge = |_: &str, have: Option<Value>, value: Value| {
        if value == Value::Null {
            return Ok::<_, std::convert::Infallible>(None);
        }
        let mut merged = have.unwrap_or_default();
        apply_merge_patch(&mut merged, value);
        Ok(Some(merged))
    };
    let Ok(()) = map.change_all(patch, merge);
}
