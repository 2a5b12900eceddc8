//! Labels, annotations and taints as sets that arguments change: `key=value` sets, `key-` removes.

use serde_json::{Map, Value, json};

use crate::ArgumentError;
use crate::keep::{items_at, text_at};

/// The edit of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Sets a key.
    Set(String, String),
    /// Removes a key.
    Remove(String),
}

impl Edit {
    fn key(&self) -> &str {
        match self {
            Edit::Set(key, _) | Edit::Remove(key) => key,
        }
    }
}

/// Splits arguments into names of objects and edits, which come last. `what` is `label` or `annotation`.
///
/// # Errors
/// When an edit has another form, or a key is both set and removed.
pub fn split_arguments(
    arguments: &[String],
    what: &str,
) -> Result<(Vec<String>, Vec<Edit>), ArgumentError> {
    let is_edit = |argument: &str| argument.contains('=') || argument.ends_with('-');
    let first = arguments.iter().position(|argument| is_edit(argument)).unwrap_or(arguments.len());
    let (names, edits) = arguments.split_at(first);
    let mut parsed: Vec<Edit> = Vec::new();
    for text in edits {
        let edit = match (text.split_once('='), text.strip_suffix('-')) {
            (Some((key, value)), _) if !key.is_empty() => {
                Edit::Set(key.to_owned(), value.to_owned())
            }
            (None, Some(key)) if !key.is_empty() => Edit::Remove(key.to_owned()),
            _ => return Err(ArgumentError::new(format!("unknown {what} spec: {text}"))),
        };
        let differs = |have: &Edit| {
            have.key() == edit.key()
                && matches!(have, Edit::Set(..)) != matches!(edit, Edit::Set(..))
        };
        if parsed.iter().any(differs) {
            let key = edit.key();
            return Err(ArgumentError::new(format!(
                "can not both modify and remove {what} {key:?} in the same command"
            )));
        }
        parsed.push(edit);
    }
    Ok((names.to_vec(), parsed))
}

/// The result of edits of a map of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct EditedMap {
    /// A merge patch of the map; `null` removes.
    pub patch: Map<String, Value>,
    /// Removed keys that were not there.
    pub missing: Vec<String>,
}

/// What the edits do to the map at `field` of the metadata (`labels` or `annotations`).
///
/// # Errors
/// When a key has another value already and `overwrite` is not set; `what` is `label` or `annotation`.
pub fn edit_metadata(
    object: &Value,
    field: &str,
    edits: &[Edit],
    overwrite: bool,
) -> Result<EditedMap, ArgumentError> {
    let have = object.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
    let mut edited = EditedMap { patch: Map::new(), missing: Vec::new() };
    for edit in edits {
        let current = have.and_then(|map| map.get(edit.key())).and_then(Value::as_str);
        match (edit, current) {
            (Edit::Remove(key), None) => edited.missing.push(key.clone()),
            (Edit::Remove(key), Some(_)) => drop(edited.patch.insert(key.clone(), Value::Null)),
            (Edit::Set(_, value), Some(current)) if current == value => {}
            (Edit::Set(key, _), Some(current)) if !overwrite => {
                let text = match field {
                    "labels" => {
                        format!("'{key}' already has a value ({current}), and --overwrite is false")
                    }
                    _ => format!(
                        "--overwrite is false but found the following declared annotation(s): '{key}' already has a value ({current})"
                    ),
                };
                return Err(ArgumentError::new(text));
            }
            (Edit::Set(key, value), _) => {
                edited.patch.insert(key.clone(), Value::String(value.clone()));
            }
        }
    }
    Ok(edited)
}

/// The edit of one taint argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintEdit {
    /// The taint's key.
    pub key: String,
    /// Its value; empty for none.
    pub value: String,
    /// Its effect; empty to remove all effects of the key.
    pub effect: String,
    /// Whether it is removed.
    pub remove: bool,
}

/// The effects that a taint may have.
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Reads `key=value:Effect`, `key:Effect`, `key:Effect-` or `key-`.
///
/// # Errors
/// When the text has another form.
pub fn parse_taint(text: &str) -> Result<TaintEdit, ArgumentError> {
    let invalid = || ArgumentError::new(format!("invalid taint spec: {text}"));
    let (spec, remove) = match text.strip_suffix('-') {
        Some(spec) => (spec, true),
        None => (text, false),
    };
    let (pair, effect) = match spec.split_once(':') {
        Some((pair, effect)) if !effect.contains(':') => (pair, effect),
        None if remove => (spec, ""),
        _ => return Err(invalid()),
    };
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() || value.contains('=') {
        return Err(invalid());
    }
    if !(EFFECTS.contains(&effect) || (remove && effect.is_empty())) {
        let known = EFFECTS.join(", ");
        return Err(ArgumentError::new(format!(
            "invalid taint effect: {effect}, unsupported taint effect; expected one of {known}"
        )));
    }
    Ok(TaintEdit {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        remove,
    })
}

/// The taints of a node after the edits.
///
/// # Errors
/// When a taint that is removed is not there, or one that is set is there and `overwrite` is not set.
pub fn edit_taints(
    node: &Value,
    edits: &[TaintEdit],
    overwrite: bool,
) -> Result<Vec<Value>, ArgumentError> {
    let mut taints = items_at(node, "/spec/taints").to_vec();
    for edit in edits {
        let matches = |taint: &Value| {
            text_at(taint, "/key") == edit.key
                && (edit.effect.is_empty() || text_at(taint, "/effect") == edit.effect)
        };
        let found = taints.iter().position(matches);
        match (edit.remove, found) {
            (true, None) => {
                let effect = if edit.effect.is_empty() { "" } else { ":" };
                let (key, name) = (&edit.key, &edit.effect);
                return Err(ArgumentError::new(format!("taint \"{key}{effect}{name}\" not found")));
            }
            (true, Some(_)) => taints.retain(|taint| !matches(taint)),
            (false, Some(_)) if !overwrite => {
                let node = text_at(node, "/metadata/name");
                let (key, effect) = (&edit.key, &edit.effect);
                return Err(ArgumentError::new(format!(
                    "node {node} already has {key} taint(s) with same effect(s) and --overwrite is false ({key}:{effect})"
                )));
            }
            (false, found) => {
                let mut taint = json!({"key": edit.key, "effect": edit.effect});
                if !edit.value.is_empty() {
                    taint["value"] = json!(edit.value);
                }
                match found.and_then(|at| taints.get_mut(at)) {
                    Some(have) => *have = taint,
                    None => taints.push(taint),
                }
            }
        }
    }
    Ok(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn edits_follow_the_names() {
        let (names, edits) =
            split_arguments(&words("pod a app=web tier-"), "label").expect("valid");
        assert_eq!(names, ["pod", "a"]);
        assert_eq!(edits, [Edit::Set("app".into(), "web".into()), Edit::Remove("tier".into())]);
        let (_, edits) = split_arguments(&words("pod a x=a=b-"), "label").expect("valid");
        assert_eq!(edits, [Edit::Set("x".into(), "a=b-".into())]);
        for (wrong, says) in [("pod a =x", "=x"), ("pod a x=1 y", "y"), ("pod a x=1 x-", "both")] {
            let error = split_arguments(&words(wrong), "label").expect_err(wrong).to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn values_are_kept_without_overwrite() {
        let object = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
        let edits = split_arguments(&words("x a=1 c=3 b- d-"), "label").expect("valid").1;
        let edited = edit_metadata(&object, "labels", &edits, false).expect("allowed");
        assert_eq!(Value::Object(edited.patch), json!({"c": "3", "b": null}));
        assert_eq!(edited.missing, ["d"]);
        let edits = [Edit::Set("a".into(), "2".into())];
        let error = edit_metadata(&object, "labels", &edits, false).expect_err("has a value");
        assert_eq!(error.to_string(), "'a' already has a value (1), and --overwrite is false");
        let edited = edit_metadata(&object, "labels", &edits, true).expect("overwrites");
        assert_eq!(Value::Object(edited.patch), json!({"a": "2"}));
    }

    #[test]
    fn taints_are_parsed() {
        let edit = |key: &str, value: &str, effect: &str, remove| {
            let (key, value, effect) = (key.to_owned(), value.to_owned(), effect.to_owned());
            Ok(TaintEdit { key, value, effect, remove })
        };
        assert_eq!(parse_taint("a=b:NoSchedule"), edit("a", "b", "NoSchedule", false));
        assert_eq!(parse_taint("a:NoExecute"), edit("a", "", "NoExecute", false));
        assert_eq!(parse_taint("a:NoExecute-"), edit("a", "", "NoExecute", true));
        assert_eq!(parse_taint("a=b:NoExecute-"), edit("a", "b", "NoExecute", true));
        assert_eq!(parse_taint("a-"), edit("a", "", "", true));
        for wrong in ["a", "a=b", ":NoExecute", "a:Never", "a:NoExecute:x", "a=b=c:NoExecute"] {
            assert!(parse_taint(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn taints_are_set_by_key_and_effect() {
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [
            {"key": "a", "value": "1", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}]}});
        let edited = |text: &str, overwrite| {
            edit_taints(&node, &[parse_taint(text).expect(text)], overwrite)
        };
        assert_eq!(edited("a-", false), Ok(Vec::new()));
        assert_eq!(edited("a:NoExecute-", false).expect("removed").len(), 1);
        assert_eq!(edited("b=1:NoExecute", false).expect("added").len(), 3);
        assert!(edited("a=2:NoSchedule", false).is_err());
        let set = edited("a=2:NoSchedule", true).expect("overwritten");
        assert_eq!(set.first(), Some(&json!({"key": "a", "effect": "NoSchedule", "value": "2"})));
        assert_eq!(edited("c-", false), Err(ArgumentError::new("taint \"c\" not found")));
    }
}
