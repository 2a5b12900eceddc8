//! Client-side apply: the annotation that records what was applied, and the patch from it, the new description and the server's object.

use apiserver_schema::patch::merge_difference;
use apiserver_schema::value::{self, Map as Tree, Value as Node};
use apiserver_schema::{Engine, Kind, PatchError, PatchType};
use proto_api::names::Names;
use serde_json::Value;

use crate::keep::{map_at, text_at};

/// The annotation with what was applied last, the same word in every naming profile's domain.
pub fn last_applied_annotation(names: &Names) -> String {
    names.sub_label("kubectl", "last-applied-configuration")
}

/// What was applied last, as text; `None` for an object that was made otherwise.
pub fn last_applied<'a>(names: &Names, object: &'a Value) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(last_applied_annotation(names))?.as_str()
}

/// The object without the record of an apply: what was exported from a server has one.
pub fn unrecorded(names: &Names, object: &Value) -> Value {
    let mut plain = object.clone();
    let annotations = plain.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove(&last_applied_annotation(names));
    }
    plain
}

/// The object as it is recorded: it has a map of annotations, if an empty one, or what others annotate would count as removed by the next apply.
pub fn as_recorded(names: &Names, object: &Value) -> Value {
    let mut plain = unrecorded(names, object);
    map_at(&mut plain, &["metadata", "annotations"]);
    plain
}

/// The object with the annotation that records it.
pub fn recorded(names: &Names, object: &Value) -> Value {
    let mut plain = as_recorded(names, object);
    let text = format!("{}\n", sorted(&plain));
    let annotations = map_at(&mut plain, &["metadata", "annotations"]);
    annotations.insert(last_applied_annotation(names), Value::String(text));
    plain
}

/// The record of an object that is not applied with it; empty annotations are left out.
pub fn record_alone(names: &Names, object: &Value) -> String {
    let mut plain = unrecorded(names, object);
    if let Some(metadata) = plain.get_mut("metadata").and_then(Value::as_object_mut) {
        let is_empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        metadata.retain(|field, value| field != "annotations" || !is_empty(value));
    }
    format!("{}\n", sorted(&plain))
}

/// The object with keys in order, as records hold it.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            Value::Object(entries.into_iter().map(|(k, v)| (k.clone(), sorted(v))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// A patch, and of which type it is.
#[derive(Clone, Debug, PartialEq)]
pub enum ApplyPatch {
    /// Lists are merged by the rules of the kind.
    Strategic(Value),
    /// Lists are replaced: for kinds of definitions.
    Merge(Value),
}

impl ApplyPatch {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.body().as_object().is_some_and(serde_json::Map::is_empty)
    }

    /// The patch.
    pub fn body(&self) -> &Value {
        match self {
            ApplyPatch::Strategic(body) | ApplyPatch::Merge(body) => body,
        }
    }
}

/// What is compared.
pub struct ApplyDocuments<'a> {
    /// What the user described last; nothing was removed since then if it is not set.
    pub original: Option<&'a Value>,
    /// What the user describes now.
    pub modified: &'a Value,
    /// What the server has.
    pub current: &'a Value,
}

/// The patch that brings the server's object to what the user describes. Built-in kinds are merged by their rules, others by those of JSON merge patches.
///
/// # Errors
/// When a list lacks the key by which it is merged.
pub fn difference(engine: &Engine, documents: &ApplyDocuments) -> Result<ApplyPatch, PatchError> {
    let original = documents.original.map(tree).transpose()?.unwrap_or_default();
    let mut modified = tree(documents.modified)?;
    // Manifests that were generated have `null` here; the server sets it.
    if let Some(metadata) = modified.map_mut("metadata") {
        metadata.retain(|key, value| key != "creationTimestamp" || *value != Node::Null);
    }
    let current = tree(documents.current)?;
    let kind = engine
        .kind_of(text_at(documents.modified, "/apiVersion"), text_at(documents.modified, "/kind"));
    match kind {
        Some(kind) if !is_custom(kind) => Engine::difference(kind, &original, &modified, &current)
            .map(|p| ApplyPatch::Strategic(untree(p))),
        _ => merge_difference(&original, &modified, &current).map(|p| ApplyPatch::Merge(untree(p))),
    }
}

/// The patch between two forms of one object, for commands that change what the server has.
///
/// # Errors
/// As [`difference`].
pub fn change(engine: &Engine, before: &Value, after: &Value) -> Result<ApplyPatch, PatchError> {
    difference(engine, &ApplyDocuments { original: Some(before), modified: after, current: before })
}

/// The object with a patch of `text`, as `--overrides` gives it.
///
/// # Errors
/// The patch is no JSON, does not fit, or is a strategic one of a custom kind.
pub fn overridden(
    engine: &Engine,
    object: &Value,
    patch_type: PatchType,
    text: &str,
) -> Result<Value, PatchError> {
    let patch = value::parse_json(text.as_bytes(), &mut Vec::new())
        .map_err(|error| PatchError::Malformed(error.to_string()))?;
    let kind = engine.kind_of(text_at(object, "/apiVersion"), text_at(object, "/kind"));
    let document = Node::Map(tree(object)?);
    match Engine::patch_document(kind.map(|kind| &**kind), document, patch_type, patch)? {
        Node::Map(map) => Ok(untree(map)),
        other => Err(PatchError::Malformed(format!("expected an object, found {}", other.shape()))),
    }
}

fn is_custom(kind: &Kind) -> bool {
    kind.custom().is_some()
}

fn tree(value: &Value) -> Result<Tree, PatchError> {
    let text = value.to_string();
    let parsed = value::parse_json(text.as_bytes(), &mut Vec::new())
        .map_err(|error| PatchError::Malformed(error.to_string()))?;
    match parsed {
        Node::Map(map) => Ok(map),
        other => Err(PatchError::Malformed(format!("expected an object, found {}", other.shape()))),
    }
}

fn untree(map: Tree) -> Value {
    let mut text = Vec::new();
    value::write_json(&mut text, &Node::Map(map));
    // A tree is written as JSON, always.
    serde_json::from_slice(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    fn kubernetes() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    #[test]
    fn the_record_is_the_object_without_itself() {
        let names = kubernetes();
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}});
        let first = recorded(names, &object);
        let text = last_applied(names, &first).expect("a record").to_owned();
        assert_eq!(
            text,
            "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"annotations\":{},\"name\":\"a\"}}\n"
        );
        assert_eq!(recorded(names, &first), first, "an exported object records the same");
        assert_eq!(last_applied(names, &unrecorded(names, &first)), None);
        let written =
            last_applied(names, &first).and_then(|text| serde_json::from_str::<Value>(text).ok());
        assert_eq!(written.as_ref(), Some(&as_recorded(names, &first)));
        assert_eq!(last_applied(names, &object), None);
        assert!(!record_alone(names, &first).contains("annotations"));
        let orch = Names::new(Profile::Orch { domain: "orch.io".into() });
        assert!(last_applied_annotation(orch).contains("orch.io"));
    }

    #[test]
    fn generated_objects_are_overridden_by_each_type_of_patch() {
        let engine = Engine::new(kubernetes());
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "a", "image": "x"}]}});
        let made = |patch_type, text: &str| overridden(&engine, &pod, patch_type, text);
        let container = r#"{"spec": {"containers": [{"name": "a", "tty": true}]}}"#;
        let merged = made(PatchType::Merge, container).unwrap();
        assert_eq!(merged.pointer("/spec/containers/0"), Some(&json!({"name": "a", "tty": true})));
        let merged = made(PatchType::Strategic, container).unwrap();
        let expected = json!({"name": "a", "image": "x", "tty": true});
        assert_eq!(merged.pointer("/spec/containers/0"), Some(&expected));
        let list = r#"[{"op": "add", "path": "/spec/nodeName", "value": "n"}]"#;
        let changed = made(PatchType::Json, list).unwrap();
        assert_eq!(changed.pointer("/spec/nodeName"), Some(&json!("n")));
        for (patch_type, text) in [
            (PatchType::Merge, "[]"),
            (PatchType::Merge, "{"),
            (PatchType::Json, "{}"),
            (PatchType::Json, r#"[{"op": "replace", "path": "", "value": 1}]"#),
        ] {
            assert!(made(patch_type, text).is_err(), "{text}");
        }
    }

    #[test]
    fn kinds_of_definitions_get_merge_patches() {
        let engine = Engine::new(kubernetes());
        let object = |kind: &str, version: &str, list: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "creationTimestamp": null, "finalizers": list}});
        let both = |kind: &str, version: &str| {
            let (before, after) =
                (object(kind, version, json!(["x"])), object(kind, version, json!(["x", "y"])));
            change(&engine, &before, &after).expect("a patch")
        };
        assert_eq!(
            both("Widget", "example.com/v1"),
            ApplyPatch::Merge(
                json!({"metadata": {"creationTimestamp": null, "finalizers": ["x", "y"]}})
            )
        );
        let ApplyPatch::Strategic(patch) = both("ConfigMap", "v1") else {
            panic!("a built-in kind")
        };
        assert_eq!(patch.pointer("/metadata/finalizers"), Some(&json!(["y"])));
    }

    #[test]
    fn fields_that_the_user_never_applied_are_kept() {
        let engine = Engine::new(kubernetes());
        let named = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
        let documents = ApplyDocuments {
            original: Some(&named(json!({"a": "1", "gone": "1"}))),
            modified: &named(json!({"a": "2"})),
            current: &named(json!({"a": "1", "gone": "1", "theirs": "1"})),
        };
        let patch = difference(&engine, &documents).expect("a patch");
        assert_eq!(patch, ApplyPatch::Strategic(json!({"data": {"a": "2", "gone": null}})));
        let same = named(json!({"a": "2"}));
        let documents = ApplyDocuments { original: None, modified: &same, current: &same };
        assert!(difference(&engine, &documents).expect("a patch").is_empty());
    }
}
