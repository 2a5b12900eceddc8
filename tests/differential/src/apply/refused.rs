//! pure: configurations and requests that are refused, or nearly so.

use serde_json::{Value as Json, json};

use super::parts::{identity, overlay};
use super::script::{APPLY, Script};
use super::{Named, Subject};
use crate::case::{Pair, UID, VERSION};
use crate::resource::NAMESPACE;
use http::Method;

/// Bodies that are no configuration.
const BODIES: [&str; 16] = [
    "",
    "a",
    "[]",
    "null",
    "{",
    "{\"a\":",
    "a: b: c",
    "a:\n\tb: c",
    "- a",
    "a: 1\na: 2",
    "kind: *none",
    "{}",
    "{}\n---\n{}",
    "%YAML 9.9\n---\n{}",
    "? [a]\n: b",
    "!!binary x",
];

/// The case of a resource; `is_all` for each configuration instead of those that depend on the kind.
pub fn configurations(subject: &Subject<'_>, is_all: bool) -> Named {
    let mut script = Script::new(subject.resource, "apply-refused");
    let object = script.object();
    let config = identity(&object);
    let by_a = "?fieldManager=a";
    script.apply_below("", "", &object);
    script.apply("a", &object);
    for changes in changes() {
        let mut config = config.clone();
        overlay(&mut config, changes);
        script.apply("b", &config);
    }
    for field in ["apiVersion", "kind", "metadata"] {
        let mut config = config.clone();
        if let Some(fields) = config.as_object_mut() {
            fields.shift_remove(field);
        }
        script.apply("b", &config);
    }
    script.apply_below("", "", &config);
    if is_all {
        for query in [
            "?fieldManager=",
            "?fieldManager=a%00b",
            "?fieldManager=a&force=x",
            "?fieldManager=a&force=false",
            "?force=true",
        ] {
            script.apply_below("", query, &config);
        }
        script.apply_below("", &format!("?fieldManager={}", "a".repeat(128)), &config);
        script.apply_below("", &format!("?fieldManager={}", "a".repeat(129)), &config);
        BODIES.iter().for_each(|body| script.apply_raw(by_a, body));
        let yaml = proto_api::yaml::to_string(&config);
        script.apply_raw(by_a, &format!("{yaml}{yaml}"));
        script.apply_raw(by_a, &format!("# a comment\n{yaml}\n...\n"));
        content_types(&mut script, subject, &config);
        script.apply_raw(by_a, &format!("{yaml}---\n{yaml}"));
    }
    script.case("apply", "(refused)", "")
}

/// What is put over the identity of the object.
fn changes() -> Vec<Json> {
    vec![
        json!({"metadata": {"managedFields": [{}]}}),
        json!({"metadata": {"managedFields": []}}),
        json!({"metadata": {"managedFields": null}}),
        json!({"metadata": {"managedFields": [{"manager": "b", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}]}}),
        json!({"metadata": {"name": "another"}}),
        json!({"metadata": {"name": null}}),
        json!({"metadata": {"name": ""}}),
        json!({"metadata": {"name": 5}}),
        json!({"metadata": {"namespace": "another"}}),
        json!({"metadata": {"namespace": NAMESPACE}}),
        json!({"metadata": {"resourceVersion": "1"}}),
        json!({"metadata": {"resourceVersion": "x"}}),
        json!({"metadata": {"resourceVersion": ""}}),
        json!({"metadata": {"resourceVersion": VERSION}}),
        json!({"metadata": {"uid": "another"}}),
        json!({"metadata": {"uid": UID}}),
        json!({"metadata": {"creationTimestamp": null}}),
        json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}),
        json!({"metadata": {"generation": 77}}),
        json!({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}),
        json!({"metadata": {"labels": {"Not Valid": "b"}}}),
        json!({"metadata": {"labels": {"a": 5}}}),
        json!({"metadata": {"labels": null}}),
        json!({"metadata": {"labels": {}}}),
        json!({"metadata": {"labels": {"c": null}}}),
        json!({"metadata": {"labels": []}}),
        json!({"metadata": {"none": 1}}),
        json!({"metadata": 5}),
        json!({"none": 1}),
        json!({"kind": "Other"}),
        json!({"kind": 5}),
        json!({"apiVersion": "a/v1"}),
        json!({"apiVersion": ""}),
        json!({"spec": 5}),
        json!({"spec": null}),
    ]
}

fn content_types(script: &mut Script<'_>, subject: &Subject<'_>, config: &Json) {
    let resource = subject.resource;
    let text = config.to_string();
    for content_type in [
        "application/apply-patch+yaml; charset=utf-8",
        "application/apply-patch+json",
        "application/apply-patch+cbor",
    ] {
        let path = |whose| format!("{}?fieldManager=a", resource.path_of(whose, "apply-refused"));
        script.push(
            Pair::new(Method::PATCH, path).texts([text.clone(), text.clone()]).of(content_type),
        );
    }
    for method in [Method::POST, Method::PUT] {
        let path = |whose| format!("{}?fieldManager=a", resource.path_of(whose, "apply-refused"));
        script.push(Pair::new(method, path).texts([text.clone(), text.clone()]).of(APPLY));
    }
}
