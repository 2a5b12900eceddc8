//! pure: what has one owner as a whole in Kubernetes 1.25, and owners of its fields in 1.20, or the reverse.
//!
//! The markers `+structType`, `+mapType` and `+listType` of the API's sources at 1.25 that the OpenAPI document of 1.20 has not. They are named here, and not
//! read off our server: what it marks is compared.

use crate::open_api::{OpenApi, Shape};

/// Messages that are atomic.
const MESSAGES: [&str; 18] = [
    "ConfigMapKeySelector",
    "CrossVersionObjectReference",
    "EndpointAddress",
    "EndpointPort",
    "LocalObjectReference",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "ObjectReference",
    "OwnerReference",
    "ResourceFieldSelector",
    "RoleRef",
    "ScopeSelector",
    "SecretKeySelector",
    "SecretReference",
    "Subject",
    "TopologySelectorTerm",
    "TypedLocalObjectReference",
];

/// Fields, with the last part of their message's name: maps that are atomic, and lists whose items have owners in one of both only.
const FIELDS: [&str; 6] = [
    "CustomResourceDefinitionStatus.conditions",
    "JobStatus.conditions",
    "PodSpec.nodeSelector",
    "ReplicationControllerSpec.selector",
    "Scheduling.nodeSelector",
    "ServiceSpec.selector",
];

/// Whether what stands at a path has owners of its fields, keys or items, as 1.25 has them.
pub fn is_split(api: &OpenApi, definition: Option<&str>, path: &[String]) -> bool {
    let Some(mut here) = definition.and_then(|name| api.schema(name)) else { return false };
    if whole(api, definition, path).is_some() {
        return false;
    }
    for step in path {
        let next = match (api.shape(here), step.strip_prefix("f:")) {
            (Shape::Object(schema), Some(field)) => schema["properties"].get(field),
            (Shape::Map(values), Some(_)) => Some(values),
            (Shape::List { items, .. }, None) => Some(items),
            _ => None,
        };
        let Some(next) = next else { return false };
        here = next;
    }
    !matches!(api.shape(here), Shape::Leaf)
}

/// The number of steps to the first place on a path that is owned otherwise, with what marks it. `path` has the steps of `fieldsV1`.
pub fn whole(api: &OpenApi, definition: Option<&str>, path: &[String]) -> Option<(usize, String)> {
    let mut name = definition?;
    let mut here = api.schema(name)?;
    for (at, step) in path.iter().enumerate() {
        let next = match step.strip_prefix("f:") {
            Some(field) => here["properties"].get(field).or(here.get("additionalProperties"))?,
            None => here.get("items")?,
        };
        let field = format!("{}.{}", last(name), step.trim_start_matches("f:"));
        if here.get("properties").is_some() && FIELDS.contains(&field.as_str()) {
            return Some((at + 1, field));
        }
        match next["$ref"].as_str() {
            Some(reference) => {
                name = reference.rsplit('/').next().unwrap_or_default();
                here = api.schema(name)?;
                if MESSAGES.contains(&last(name)) {
                    return Some((at + 1, last(name).to_owned()));
                }
            }
            None => here = next,
        }
    }
    None
}

fn last(definition: &str) -> &str {
    definition.rsplit('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_place_on_a_path_that_is_marked_is_found() {
        let api = OpenApi::new(&json!({"definitions": {
            "v1.Pod": {"properties": {"spec": {"$ref": "#/definitions/v1.PodSpec"}}},
            "v1.PodSpec": {"properties": {
                "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
                "imagePullSecrets": {"type": "array", "items": {"$ref": "#/definitions/v1.LocalObjectReference"}},
                "hostname": {"type": "string"},
            }},
            "v1.LocalObjectReference": {"properties": {"name": {"type": "string"}}},
        }}));
        let of = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|step| (*step).to_owned()).collect();
            whole(&api, Some("v1.Pod"), &path)
        };
        let selector = Some((2, "PodSpec.nodeSelector".to_owned()));
        assert_eq!(of(&["f:spec", "f:nodeSelector", "f:a"]), selector);
        let reference = Some((3, "LocalObjectReference".to_owned()));
        assert_eq!(
            of(&["f:spec", "f:imagePullSecrets", "k:{\"name\":\"a\"}", "f:name"]),
            reference
        );
        assert_eq!(of(&["f:spec", "f:hostname"]), None);
        assert_eq!(of(&["f:none"]), None);
        assert_eq!(whole(&api, None, &["f:spec".to_owned()]), None);
        let is_split = |path: &[&str]| {
            let path: Vec<String> = path.iter().map(|step| (*step).to_owned()).collect();
            super::is_split(&api, Some("v1.Pod"), &path)
        };
        assert!(is_split(&["f:spec"]) && !is_split(&["f:spec", "f:hostname"]));
        assert!(!is_split(&["f:spec", "f:nodeSelector"]) && !is_split(&["f:none"]));
    }
}
