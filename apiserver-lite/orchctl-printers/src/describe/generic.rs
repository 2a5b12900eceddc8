//! Any kind: its fields in the order of their names.

use serde_json::{Map, Value};

use super::{Context, Page, common};

/// Parts of `metadata` that stand at the top, or nowhere.
const SHOWN_ABOVE: [&str; 5] = ["name", "namespace", "labels", "annotations", "managedFields"];
/// Words of names that are written in capitals.
const ACRONYMS: [&str; 5] = ["api", "url", "uid", "osb", "guid"];
/// Deepest value that is shown.
const DEPTH_MAX: usize = 64;

pub(super) fn describe(page: &mut Page, object: &Value, context: Context<'_>) {
    page.field(0, "Name", crate::objects::name(object));
    page.field(0, "Namespace", crate::objects::namespace(object));
    common::labels(page, object, context);
    if let Some(map) = object.as_object() {
        fields(page, 0, map, true);
    }
}

fn fields(page: &mut Page, level: usize, map: &Map<String, Value>, is_object: bool) {
    if level > DEPTH_MAX {
        return;
    }
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort();
    for key in keys {
        let value = map.get(key).unwrap_or(&Value::Null);
        let title = title(key);
        match value {
            Value::Object(inner) => {
                page.line(level, format!("{title}:"));
                if is_object && key == "metadata" {
                    let mut inner = inner.clone();
                    inner.retain(|key, _| !SHOWN_ABOVE.contains(&key.as_str()));
                    fields(page, level + 1, &inner, false);
                } else {
                    fields(page, level + 1, inner, false);
                }
            }
            Value::Array(items) => {
                page.line(level, format!("{title}:"));
                for item in items {
                    match item {
                        Value::Object(inner) => fields(page, level + 1, inner, false),
                        other => page.line(level + 1, word(other)),
                    }
                }
            }
            other => page.field(level, &title, word(other)),
        }
    }
}

fn word(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        other => crate::jsonpath::text_of(other),
    }
}

/// `lastHeartbeatTime` as `Last Heartbeat Time`. Names with signs are kept: they are keys, not fields.
fn title(name: &str) -> String {
    if !name.chars().all(char::is_alphanumeric) {
        return capitalized(name);
    }
    let mut words: Vec<String> = Vec::new();
    let chars: Vec<char> = name.chars().collect();
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|at| chars.get(at));
        let after = chars.get(at + 1);
        // A capital begins a word after a small letter, and before one.
        let begins = c.is_uppercase()
            && (before.is_some_and(|before| !before.is_uppercase())
                || after.is_some_and(|after| after.is_lowercase()));
        if begins || words.is_empty() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut() {
            word.push(*c);
        }
    }
    let shown = words.iter().map(|word| {
        let is_acronym = ACRONYMS.contains(&word.to_lowercase().as_str());
        if is_acronym { word.to_uppercase() } else { capitalized(word) }
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_titles() {
        for (name, wanted) in [
            ("apiVersion", "API Version"),
            ("uid", "UID"),
            ("podIPs", "Pod I Ps"),
            ("clusterIP", "Cluster IP"),
            ("resourceVersion", "Resource Version"),
            ("a.b/c", "A.b/c"),
        ] {
            assert_eq!(title(name), wanted);
        }
    }
}
