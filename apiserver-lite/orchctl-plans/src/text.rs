//! Texts of objects side by side: what `diff` prints.

use serde_json::{Map, Value};
use similar::TextDiff;

/// Lines around a change.
const CONTEXT: usize = 3;

/// The differences of two texts in the unified format; empty if there are none. The names are those of the two sides.
pub fn unified(before: (&str, &str), after: (&str, &str)) -> String {
    let ((old_name, old), (new_name, new)) = (before, after);
    if old == new {
        return String::new();
    }
    let difference = TextDiff::from_lines(old, new);
    let text =
        difference.unified_diff().context_radius(CONTEXT).header(old_name, new_name).to_string();
    format!("diff -u -N {old_name} {new_name}\n{text}")
}

/// Hides what two versions of a Secret hold: equal values look equal, others differ, and none is shown.
pub fn mask_secrets(before: &mut Value, after: &mut Value) {
    for field in ["data", "stringData"] {
        let entries = |object: &Value| object.get(field).and_then(Value::as_object).cloned();
        let (old, new) = (entries(before), entries(after));
        mask(before, field, new.as_ref(), "*** (before)");
        mask(after, field, old.as_ref(), "*** (after)");
    }
}

fn mask(object: &mut Value, field: &str, other: Option<&Map<String, Value>>, differs: &str) {
    let entries = object.get_mut(field).and_then(Value::as_object_mut);
    for (key, value) in entries.into_iter().flat_map(Map::iter_mut) {
        let text = match other.and_then(|other| other.get(key)) {
            Some(other) if other != value => differs,
            _ => "***",
        };
        *value = Value::String(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_have_heads_and_context() {
        let text = unified(("LIVE/a", "a\nb\nc\n"), ("MERGED/a", "a\nx\nc\n"));
        assert_eq!(
            text,
            "diff -u -N LIVE/a MERGED/a\n--- LIVE/a\n+++ MERGED/a\n@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n"
        );
        assert_eq!(unified(("a", "same\n"), ("b", "same\n")), "");
        assert!(unified(("a", ""), ("b", "new\n")).contains("+new"));
    }

    #[test]
    fn secrets_are_never_shown() {
        let mut before = json!({"data": {"same": "cGFzcw==", "changed": "b2xk", "gone": "eA=="}});
        let mut after = json!({"data": {"same": "cGFzcw==", "changed": "bmV3", "new": "eQ=="}});
        mask_secrets(&mut before, &mut after);
        assert_eq!(
            before,
            json!({"data": {"same": "***", "changed": "*** (before)", "gone": "***"}})
        );
        assert_eq!(after, json!({"data": {"same": "***", "changed": "*** (after)", "new": "***"}}));
    }
}
