//! pure: a custom resource with each kind of list and map, in two versions.

use std::time::Duration;

use http::Method;
use serde_json::{Value as Json, json};

use super::Named;
use super::parts::{identity, overlay};
use super::script::{APPLY, MERGE, Script};
use crate::case::Pair;
use crate::resource::{Resource, Whose};

const GROUP: &str = "apply.example.com";
/// The plural of its kind.
pub const PLURAL: &str = "gadgets";
/// Its schema's name among the definitions.
pub const DEFINITION: &str = "com.example.apply.v1.Gadget";
/// Time in which a server takes over the schema of a new definition.
pub const SCHEMA_TIME: Duration = Duration::from_secs(3);

/// Its schema. It has no `x-kubernetes-int-or-string`: 1.20 reads no schema with one for managed fields.
pub fn schema() -> Json {
    let text = json!({"type": "string"});
    let item = json!({"type": "object", "required": ["name", "port"], "properties": {
        "name": text,
        "port": {"type": "integer"},
        "protocol": {"type": "string", "default": "TCP"},
        "value": text,
        "tags": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "inner": {"type": "object", "properties": {"a": text, "b": text}},
    }});
    let spec = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "text": text,
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "keyed": {
            "type": "array", "items": item,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
        },
        "defaulted": {
            "type": "array", "items": item,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
        },
        "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "numbers": {"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set"},
        "atomic": {"type": "array", "items": text, "x-kubernetes-list-type": "atomic"},
        "plain": {"type": "array", "items": {"type": "object", "properties": {"a": text}}},
        "map": {"type": "object", "additionalProperties": text},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": text, "b": text}},
        "wholeMap": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": text},
        "deep": {"type": "object", "additionalProperties": {
            "type": "object", "properties": {"a": text, "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"}},
        }},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "mixed": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"a": text}},
        "nullable": {"type": "string", "nullable": true},
        "made": {"type": "string", "default": "made"},
    }});
    let status = json!({"type": "object", "properties": {
        "replicas": {"type": "integer"},
        "selector": text,
        "conditions": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type"], "properties": {"type": text, "status": text}},
        },
    }});
    let metadata = json!({"$ref": "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"});
    json!({"type": "object", "properties": {
        "apiVersion": text, "kind": text, "metadata": metadata, "spec": spec, "status": status,
    }})
}

/// The CustomResourceDefinition of the compared kind.
pub fn definition() -> Json {
    let mut schema = schema();
    schema["properties"]["metadata"] = json!({"type": "object"});
    let version = |name: &str, is_stored: bool| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector",
            }},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": [version("v1", true), version("v2", false)],
        },
    })
}

/// It in its first version, with a valid object.
pub fn resource() -> Resource {
    let item = |name: &str, port: i64| json!({"name": name, "port": port, "value": "v", "tags": ["t", "u"], "inner": {"a": "b"}});
    let spec = json!({
        "replicas": 1, "text": "a", "number": 1.5, "flag": true,
        "keyed": [item("a", 80), item("a", 81), item("b", 80)],
        "defaulted": [item("a", 80), item("b", 81)],
        "set": ["a", "b"], "numbers": [1, 2], "atomic": ["a", "b"], "plain": [{"a": "b"}],
        "map": {"a": "b", "c": "d"}, "whole": {"a": "b"}, "wholeMap": {"a": "b"},
        "deep": {"k": {"a": "b", "set": ["a"]}},
        "any": {"a": {"b": [1, 2]}, "c": "d"}, "mixed": {"a": "b", "c": {"d": "e"}},
        "nullable": null,
    });
    let status = json!({"replicas": 1, "conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "False"}]});
    Resource {
        version: format!("{GROUP}/v1"),
        plural: PLURAL.to_owned(),
        kind: "Gadget".to_owned(),
        is_namespaced: true,
        is_stored: true,
        definition: DEFINITION.to_owned(),
        subresources: vec!["status".to_owned(), "scale".to_owned()],
        object: json!({"spec": spec}),
        status,
        fixed_name: None,
    }
}

/// Managers that write in two versions.
pub fn versions() -> Vec<Named> {
    let resource = resource();
    let mut script = Script::new(&resource, "apply-versions");
    let object = script.object();
    let part = |version: &str, spec: Json| {
        let mut config = identity(&object);
        overlay(&mut config, json!({"apiVersion": format!("{GROUP}/{version}"), "spec": spec}));
        config
    };
    let to = |version: &str, query: &str, content_type: &str, body: &Json| {
        let path = |whose: Whose| {
            let path = resource.path_of(whose, "apply-versions");
            format!("{}?{query}", path.replace("/v1/", &format!("/{version}/")))
        };
        let body = body.to_string();
        Pair::new(Method::PATCH, path).texts([body.clone(), body]).of(content_type)
    };
    script.apply("a", &object);
    script.push(to(
        "v2",
        "fieldManager=b",
        APPLY,
        &part("v2", json!({"text": "b", "map": {"k": "l"}})),
    ));
    script.push(to(
        "v2",
        "fieldManager=b&force=true",
        APPLY,
        &part("v2", json!({"text": "b", "map": {"k": "l"}})),
    ));
    script.push(to(
        "v2",
        "fieldManager=a",
        APPLY,
        &part("v2", json!({"set": ["a"], "flag": true})),
    ));
    script.push(to("v1", "fieldManager=b", APPLY, &part("v1", json!({"set": ["b"]}))));
    script.push(to("v1", "fieldManager=b", APPLY, &part("v2", json!({"set": ["b"]}))));
    script.push(to("v2", "fieldManager=u", MERGE, &json!({"spec": {"text": "c"}})));
    script.push(to("v1", "fieldManager=u", MERGE, &json!({"spec": {"flag": false}})));
    script.push(to("v2", "fieldManager=a", APPLY, &part("v2", json!({"text": "d", "flag": true}))));
    script.push(to(
        "v2",
        "fieldManager=a&force=true",
        APPLY,
        &part("v2", json!({"text": "d", "flag": true})),
    ));
    script.apply("a", &object);
    script.force("a", &object);
    script.get("");
    vec![script.case("apply", "(two versions)", "")]
}
