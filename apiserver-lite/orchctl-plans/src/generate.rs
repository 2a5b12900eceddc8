//! Objects from flags, as `create`, `run` and `expose` make them. Fields stand in the order of the API's JSON.

pub mod access;
pub mod cluster;
pub mod configuration;
pub mod debug;
pub mod service;
pub mod workload;

use serde_json::{Map, Value, json};

use crate::ArgumentError;

/// The beginning of an object. A null time of creation is how such manifests are written since ever; servers ignore it.
fn object(kind: &str, api_version: &str, name: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("kind".into(), json!(kind));
    object.insert("apiVersion".into(), json!(api_version));
    object.insert("metadata".into(), json!({"name": name, "creationTimestamp": null}));
    object
}

/// Reads `a=b,c=d`.
///
/// # Errors
/// When a part is not a pair.
pub fn parse_pairs(text: &str) -> Result<Map<String, Value>, ArgumentError> {
    let mut pairs = Map::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let pair = part.split_once('=').filter(|(key, _)| !key.is_empty());
        let Some((key, value)) = pair else {
            return Err(ArgumentError::new(format!("{part:?} is not of the form key=value")));
        };
        pairs.insert(key.to_owned(), json!(value));
    }
    Ok(pairs)
}

/// A selector of labels from `a=b,c!=d,e in (f)`, with equalities as `matchLabels`.
///
/// # Errors
/// When it is not a list of equalities.
pub fn parse_selector(text: &str) -> Result<Value, ArgumentError> {
    Ok(json!({"matchLabels": parse_pairs(&text.replace("==", "="))?}))
}

/// Metadata with labels after what is there.
fn set_labels(object: &mut Map<String, Value>, labels: Value) {
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.insert("labels".into(), labels);
    }
}
