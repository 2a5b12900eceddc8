//! pure: JSON merge patches (RFC 7386), applied to an object here.

use serde_json::{Map, Value};

/// Applies a merge patch: `null` removes a field, an object changes the fields that it has, everything else replaces what was there.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (name, value) in changes {
        match value {
            Value::Null => drop(fields.remove(name)),
            value => apply(fields.entry(name.clone()).or_insert(Value::Null), value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_changed_removed_and_replaced() {
        for (mut target, patch, result) in [
            (
                json!({"a": "b", "c": {"d": 1}}),
                json!({"c": {"e": 2}}),
                json!({"a": "b", "c": {"d": 1, "e": 2}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": 1, "b": 2}), json!({"a": null, "c": null}), json!({"b": 2})),
            (json!({"a": 1}), json!({"a": {"b": {"c": null}}}), json!({"a": {"b": {}}})),
            (json!([1]), json!({"a": 1}), json!({"a": 1})),
            (json!({"a": 1}), json!(null), json!(null)),
        ] {
            apply(&mut target, &patch);
            assert_eq!(target, result, "{patch}");
        }
    }
}
