//! Schemas of definitions have a structure: what the rules of apiextensions accept, field ownership can use.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use apiserver_custom_resources::{default_definition, read_definition, validate_definition};
use apiserver_managed_fields::Structure;
use apiserver_schema::value::parse_json;

const DEFINITION: &str = r#"{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Cluster",
    "names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,
    "schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":SPEC}}}}]}}"#;

/// Whether a definition with this schema of `spec` may be written, and whether its schema has a structure.
fn accepted(spec: &str) -> (bool, bool) {
    let text = DEFINITION.replace("SPEC", spec);
    let mut tree = parse_json(text.as_bytes(), &mut Vec::new()).expect(spec);
    default_definition(&mut tree);
    let definition = read_definition(&tree).expect(spec);
    let version = definition.storage_version().expect(spec);
    let structure =
        Structure::from_openapi(&version.schema.source(), definition.preserve_unknown_fields);
    (validate_definition(&tree, None).is_empty(), structure.is_ok())
}

#[test]
fn accepted_schemas_have_a_structure() {
    for spec in [
        r#"{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}"#,
        r#"{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object",
            "required":["k"],"properties":{"k":{"type":"string"}}}}"#,
        r#"{"type":"object","x-kubernetes-map-type":"atomic","additionalProperties":{"x-kubernetes-int-or-string":true}}"#,
        r#"{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}"#,
    ] {
        assert_eq!(accepted(spec), (true, true), "{spec}");
    }
}

#[test]
fn schemas_without_a_structure_are_refused() {
    for spec in [
        r#"{"type":"array","x-kubernetes-list-type":"bag","items":{"type":"string"}}"#,
        r#"{"type":"array","x-kubernetes-list-type":"map","items":{"type":"object"}}"#,
        r#"{"type":"object","x-kubernetes-map-type":"loose"}"#,
    ] {
        assert_eq!(accepted(spec), (false, false), "{spec}");
    }
}
