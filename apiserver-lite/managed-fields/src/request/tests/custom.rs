//! What kube-apiserver 1.20.2 answered to writes of custom resources (`testdata/custom`): with a schema, and without one that it can use.
//! Entries are compared without the order of their keys, which it sorts as text in custom resources.

use std::fs;
use std::path::Path;

use apiserver_schema::value::Key;
use apiserver_schema::{Map, Value};
use proto_api::Time;

use super::{json, text};
use crate::request::{ApplyError, Request};
use crate::structure::Structure;
use crate::versions::{ResetFields, SingleVersion};

/// Steps that this server answers otherwise, by recording and number, with the reason.
const OTHERWISE: &[(&str, usize, &str)] = &[
    ("typed", 4, "1.20 takes a map without owned keys for one that was atomic"),
    ("typed", 6, "1.20 takes a list without owned items for one that was atomic"),
    ("typed", 15, "1.20 names the type of its own value"),
    ("custom", 14, "pruning of undeclared fields is not of this crate"),
];

fn directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/custom")
}

fn entries(object: Option<&Value>) -> Option<&Value> {
    object?.as_map()?.at(&["metadata", "managedFields"])
}

fn latest(object: &Value) -> Time {
    let entries = entries(Some(object)).and_then(Value::as_list).unwrap_or_default();
    let times = entries.iter().filter_map(|entry| entry.as_map()?.str("time").parse::<Time>().ok());
    times.max().unwrap_or_default()
}

/// The tree with the default of the schema and without nulls, as the server stores it.
fn stored(value: &Value, in_items: bool) -> Value {
    match value {
        Value::Map(map) => {
            let kept = map.iter().filter(|(_, value)| **value != Value::Null);
            let entries = kept
                .map(|(key, value)| (Key::Owned(key.to_owned()), stored(value, key == "items")));
            let mut map = Map::from_entries(entries.collect());
            if in_items && !map.contains("port") {
                map.insert("port", 80);
            }
            Value::Map(map)
        }
        Value::List(items) => {
            Value::List(items.iter().map(|item| stored(item, in_items)).collect())
        }
        scalar => scalar.clone(),
    }
}

/// The spec, with lists that have no order sorted: 1.20 merges them in another order.
fn spec(object: &Value) -> Value {
    let mut spec = object.as_map().and_then(|map| map.get("spec")).cloned().unwrap_or_default();
    for list in ["items", "set", "numbers"] {
        if let Some(items) = spec.as_map_mut().and_then(|spec| spec.list_mut(list)) {
            items.sort_by_key(|item| text(Some(item)));
        }
    }
    spec
}

/// The entries whatever the order of their keys: kube-apiserver has another one for custom resources.
fn maps(entries: Option<&Value>) -> serde_json::Value {
    serde_json::from_str(&text(entries)).expect("JSON")
}

fn differs(request: &Request<'_>, step: &Map, before: Option<&Value>) -> Option<String> {
    let response = step.get("response").expect("a response");
    let is_done = step.int("code") < Some(300);
    let live = before.cloned().unwrap_or_else(|| request.empty.clone());
    if step.str("op") != "apply" {
        // Custom resources have no admission: the answer is what was written.
        let mut new = response.clone();
        new.as_map_mut()?.map_mut("metadata")?.remove("managedFields");
        let got = request.update(live, new).expect("owners");
        let want = entries(Some(response));
        let differs = maps(got.as_ref()) != maps(want);
        return differs.then(|| format!("got {}\n  want {}", text(got.as_ref()), text(want)));
    }
    let config = step.get("body").cloned().expect("a body");
    let applied = match request.apply(live, config, step.is_true("force")) {
        Ok(applied) => applied,
        Err(error) => {
            let got = match &error {
                ApplyError::Tree { error, .. } => {
                    format!("failed to create typed patch object: {error}")
                }
                error => error.to_string(),
            };
            let want = response.as_map().expect("a map").str("message");
            return (got != want).then(|| format!("got {got}\n  want {want}"));
        }
    };
    if !is_done {
        let is_invalid = step.int("code") == Some(422);
        return (!is_invalid).then(|| format!("applied, want {}", text(Some(response))));
    }
    let (got, want) = (applied.managed_fields, entries(Some(response)));
    if maps(got.as_ref()) != maps(want) {
        return Some(format!("got {}\n  want {}", text(got.as_ref()), text(want)));
    }
    let (got, want) = (spec(&stored(&applied.tree, false)), spec(&stored(response, false)));
    (got != want).then(|| format!("got {}\n  want {}", text(Some(&got)), text(Some(&want))))
}

fn check(name: &str, structure: Structure) {
    let recording = fs::read_to_string(directory().join(format!("{name}.json"))).expect("a file");
    let recording = json(&recording);
    let recording = recording.as_map().expect("a map");
    let api_version = recording.str("apiVersion");
    let versions = SingleVersion { api_version: api_version.to_owned(), structure };
    let kind = recording.str("kind");
    let empty = json(&format!(r#"{{"apiVersion":"{api_version}","kind":"{kind}"}}"#));
    let mut last: Option<Value> = None;
    let mut wrong = Vec::new();
    for (at, step) in recording.maps("steps").enumerate() {
        let before = match step.get("before") {
            Some(before) => Some(before).filter(|before| **before != Value::Null),
            None => last.as_ref(),
        };
        let response = step.get("response").expect("a response");
        let request = Request {
            versions: &versions,
            reset: &ResetFields::new(),
            api_version,
            subresource: "",
            manager: step.str("manager"),
            empty: &empty,
            now: latest(response),
            last_applied: super::LAST_APPLIED,
        };
        let difference = differs(&request, step, before);
        let otherwise = OTHERWISE.iter().any(|(of, number, _)| (*of, *number) == (name, at));
        wrong.extend(difference.filter(|_| !otherwise).map(|why| format!("step {at}: {why}")));
        let before = before.cloned();
        let is_object = response.as_map().is_some_and(|map| map.str("kind") == kind);
        last = if is_object { Some(response.clone()) } else { before };
    }
    assert!(wrong.is_empty(), "{name}: {} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn custom_resources_with_a_schema() {
    let schema = json(&fs::read_to_string(directory().join("schema.json")).expect("a schema"));
    let structure = Structure::from_openapi(schema.as_map().expect("a map"), false);
    check("typed", structure.expect("a structure"));
}

#[test]
fn custom_resources_without_a_schema() {
    check("custom", Structure::deduced());
}
