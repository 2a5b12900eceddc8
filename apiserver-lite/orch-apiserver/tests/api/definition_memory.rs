//! What one more definition costs the API server in memory, with its objects and its OpenAPI documents.

use serde_json::{Value, json};

use crate::custom_resources::{DEFINITIONS, until};
use crate::process::start_with;
use crate::support::Api;

const GROUPS: usize = 10;
const DEFINITIONS_OF_A_GROUP: usize = 10;
/// The most that one more definition may cost.
const BUDGET_KB: usize = 200;

/// A definition with a schema of some size, a rule, columns and selectable fields.
fn definition(group: &str, plural: &str) -> Value {
    let text = json!({"type": "string", "maxLength": 253});
    let condition = json!({
        "type": "object", "required": ["type", "status"],
        "properties": {"type": text, "status": text, "reason": text, "message": {"type": "string"}},
    });
    let described: serde_json::Map<String, Value> = (0..20)
        .map(|at| (format!("field{at}"), json!({"type": "string", "description": "A text field, described in a sentence of some length."})))
        .collect();
    let spec = json!({
        "type": "object", "required": ["size"],
        "x-kubernetes-validations": [{"rule": "self.size > 0", "messageExpression": "'not ' + string(self.size)"}],
        "properties": {
            "size": {"type": "integer", "minimum": -100, "maximum": 100},
            "mode": {"type": "string", "enum": ["Fast", "Safe"], "default": "Safe"},
            "owner": text,
            "labels": {"type": "object", "additionalProperties": text},
            "parts": {"type": "array", "maxItems": 64, "items": {"type": "object", "properties": described}},
        },
    });
    let status = json!({"type": "object", "properties": {"conditions": {"type": "array", "items": condition}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": format!("Kind{plural}")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
                "selectableFields": [{"jsonPath": ".spec.owner"}],
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
            }],
        },
    })
}

/// Defines the kinds of a group, and uses each: an object, a list, and the documents of OpenAPI.
async fn define_group(api: &Api, group: &str) {
    for at in 0..DEFINITIONS_OF_A_GROUP {
        let plural = format!("things{at}");
        api.post(DEFINITIONS, definition(group, &plural).to_string()).await.expect(201);
        let objects = format!("/apis/{group}/v1/namespaces/default/{plural}");
        until(api, &objects, |list| list["items"].is_array()).await;
        let object = json!({
            "apiVersion": format!("{group}/v1"), "kind": format!("Kind{plural}"), "metadata": {"name": "one"},
            "spec": {"size": 1, "owner": "jane"},
        });
        api.post(&objects, object.to_string()).await.expect(201);
        api.get(&format!("{objects}?fieldSelector=spec.owner%3Djane")).await.expect(200);
    }
    api.get(&format!("/openapi/v3/apis/{group}/v1")).await.expect(200);
    api.get("/openapi/v2").await.expect(200);
}

/// The memory that only this process has, in kB.
fn private_kb(pid: u32) -> usize {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = std::fs::read_to_string(&path).expect(&path);
    let line = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_costs_at_most_its_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    let (process, api) = start_with(dir.path(), &["--naming=kubernetes"]).await;
    // What the first kinds and documents cost once is no part of it.
    define_group(&api, "first.example.com").await;
    let before = private_kb(process.id());
    for at in 0..GROUPS {
        define_group(&api, &format!("g{at}.example.com")).await;
    }
    let added = private_kb(process.id()).saturating_sub(before);
    let each = added / (GROUPS * DEFINITIONS_OF_A_GROUP);
    println!("a definition costs {each} kB");
    assert!(each <= BUDGET_KB, "a definition costs {each} kB, more than {BUDGET_KB}");
}
