//! Custom resources, as clients see them: definitions, their objects, discovery.

mod conversions;
mod definitions;
mod messages;
mod objects;
mod selectable_fields;
mod versions;
mod writes;

use http::Method;
use serde_json::{Value, json};

use crate::support::{Api, Reply, TestServer};

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const BACKUPS: &str = "/apis/example.com/v1/namespaces/default/backups";

/// A definition of `backups.example.com` with one version, status and scale, a default and columns.
pub fn backups() -> Value {
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": {
                "type": "object",
                "required": ["source"],
                "properties": {
                    "source": {"type": "string", "minLength": 2},
                    "replicas": {"type": "integer", "minimum": 0},
                    "mode": {"type": "string", "default": "full", "enum": ["full", "delta"]},
                    "days": days(),
                    "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
            },
            "status": {
                "type": "object",
                "properties": {
                    "replicas": {"type": "integer"},
                    "selector": {"type": "string"},
                    "phase": {"type": "string"},
                },
            },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "backups.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {
                "plural": "backups",
                "kind": "Backup",
                "shortNames": ["bk"],
                "categories": ["all"],
            },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.replicas",
                        "statusReplicasPath": ".status.replicas",
                        "labelSelectorPath": ".status.selector",
                    },
                },
                "additionalPrinterColumns": [
                    {"name": "Source", "type": "string", "jsonPath": ".spec.source"},
                    {"name": "Phase", "type": "string", "jsonPath": ".status.phase", "priority": 1},
                ],
            }],
        },
    })
}

/// A list whose items have names.
fn days() -> Value {
    json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "hour": {"type": "integer"}},
        },
    })
}

/// Creates a definition and waits until it is established.
pub async fn define(server: &TestServer, definition: &Value) -> Value {
    server.post(DEFINITIONS, definition.to_string()).await.expect(201);
    let name = definition["metadata"]["name"].as_str().expect("a name");
    until(server, &format!("{DEFINITIONS}/{name}"), |definition| {
        condition(definition, "Established")["status"] == "True"
    })
    .await
}

/// Reads an object until it is as wanted.
pub async fn until(server: &Api, path: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..6000 {
        let reply = server.get(path).await;
        last = reply.json_or_null();
        if wanted(&last) {
            return last;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{path} does not become as wanted: {last}");
}

pub fn condition(definition: &Value, kind: &str) -> Value {
    let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|have| have["type"] == kind).unwrap_or_default()
}

/// A backup of a name.
pub fn backup(name: &str) -> Value {
    json!({
        "apiVersion": "example.com/v1",
        "kind": "Backup",
        "metadata": {"name": name},
        "spec": {"source": "disk"},
    })
}

pub async fn patch(server: &TestServer, path: &str, media: &str, body: &Value) -> Reply {
    server.call(Method::PATCH, path, media, body.to_string()).await
}

pub fn warnings(reply: &Reply) -> Vec<String> {
    let all = reply.headers.get_all("warning").iter();
    all.map(|value| value.to_str().expect("text").to_owned()).collect()
}
