//! Tests: how lists and maps of built-in kinds and custom resources are split.

use apiserver_schema::Value;
use apiserver_schema::value::parse_json;

use super::{BuiltInStructures, Structure, StructureError};

fn json(text: &str) -> Value {
    parse_json(text.as_bytes(), &mut Vec::new()).expect("JSON")
}

fn fields(structure: &Structure, tree: &str) -> String {
    String::from_utf8(structure.fields_of(&json(tree)).to_json()).expect("UTF-8")
}

/// Group, kind, tree and its fields. Markers decide and, without them, strategies of patches.
const BUILT_IN: &[(&str, &str, &str, &str)] = &[
    (
        "",
        "Pod",
        r#"{"spec":{"containers":[{"name":"c","ports":[{"containerPort":80}],"command":["a"]}]}}"#,
        r#"{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:command":{},"f:name":{},"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}"#,
    ),
    (
        "",
        "Pod",
        r#"{"spec":{"containers":[{"name":"c","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}],"volumeMounts":[{"mountPath":"/a","name":"v"}]}]}}"#,
        r#"{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:valueFrom":{"f:secretKeyRef":{}}}},"f:name":{},"f:volumeMounts":{"k:{\"mountPath\":\"/a\"}":{".":{},"f:mountPath":{},"f:name":{}}}}}}}"#,
    ),
    (
        "",
        "Pod",
        r#"{"metadata":{"finalizers":["a/b"],"ownerReferences":[{"uid":"u","name":"n"}],"labels":{"a":"b"},"annotations":{}}}"#,
        r#"{"f:metadata":{"f:annotations":{},"f:finalizers":{"v:\"a/b\"":{}},"f:labels":{"f:a":{}},"f:ownerReferences":{"k:{\"uid\":\"u\"}":{}}}}"#,
    ),
    (
        "",
        "Pod",
        r#"{"status":{"conditions":[{"type":"Ready","status":"True"}],"podIPs":[{"ip":"1"}],"containerStatuses":[{"name":"c"}]}}"#,
        r#"{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:podIPs":{"k:{\"ip\":\"1\"}":{".":{},"f:ip":{}}}}}"#,
    ),
    (
        "",
        "Pod",
        r#"{"spec":{"tolerations":[{"key":"a"}],"nodeSelector":{"a":"b"},"imagePullSecrets":[{"name":"s"}],"volumes":[{"name":"v","emptyDir":{}}],"securityContext":{}}}"#,
        r#"{"f:spec":{"f:imagePullSecrets":{"k:{\"name\":\"s\"}":{}},"f:nodeSelector":{},"f:securityContext":{},"f:tolerations":{},"f:volumes":{"k:{\"name\":\"v\"}":{".":{},"f:emptyDir":{},"f:name":{}}}}}"#,
    ),
    (
        "",
        "Service",
        r#"{"spec":{"ports":[{"port":80}],"selector":{"a":"b"},"clusterIPs":["1"],"externalIPs":["2"]}}"#,
        r#"{"f:spec":{"f:clusterIPs":{},"f:externalIPs":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:selector":{}}}"#,
    ),
    (
        "",
        "ConfigMap",
        r#"{"data":{"a":"1"},"binaryData":{},"immutable":true}"#,
        r#"{"f:binaryData":{},"f:data":{"f:a":{}},"f:immutable":{}}"#,
    ),
    (
        "",
        "PersistentVolume",
        r#"{"spec":{"claimRef":{"name":"c"},"capacity":{"storage":"1Gi"}}}"#,
        r#"{"f:spec":{"f:capacity":{"f:storage":{}},"f:claimRef":{"f:name":{}}}}"#,
    ),
    (
        "",
        "ServiceAccount",
        r#"{"secrets":[{"name":"s"}],"imagePullSecrets":[{"name":"p"}]}"#,
        r#"{"f:imagePullSecrets":{},"f:secrets":{"k:{\"name\":\"s\"}":{}}}"#,
    ),
    (
        "apps",
        "Deployment",
        r#"{"spec":{"selector":{"matchLabels":{"a":"b"}},"replicas":null,"strategy":{"rollingUpdate":{"maxSurge":"25%"}}}}"#,
        r#"{"f:spec":{"f:replicas":{},"f:selector":{},"f:strategy":{"f:rollingUpdate":{"f:maxSurge":{}}}}}"#,
    ),
    (
        "apps",
        "ControllerRevision",
        r#"{"data":{"a":{"b":1}},"revision":1}"#,
        r#"{"f:data":{},"f:revision":{}}"#,
    ),
    (
        "rbac.authorization",
        "RoleBinding",
        r#"{"roleRef":{"name":"r"},"subjects":[{"name":"u"}]}"#,
        r#"{"f:roleRef":{},"f:subjects":{}}"#,
    ),
    (
        "apiextensions",
        "CustomResourceDefinition",
        r#"{"spec":{"versions":[{"name":"v1"}]},"status":{"conditions":[{"type":"a"}]}}"#,
        r#"{"f:spec":{"f:versions":{}},"f:status":{"f:conditions":{"k:{\"type\":\"a\"}":{".":{},"f:type":{}}}}}"#,
    ),
];

#[test]
fn lists_and_maps_of_built_in_kinds() {
    let built_in = BuiltInStructures::new();
    for (group, kind, tree, want) in BUILT_IN {
        let structure = built_in.find(group, "v1", kind).expect(kind);
        assert_eq!(fields(&structure, tree), *want, "{kind} {tree}");
    }
    assert!(built_in.find("apps", "v1", "Pod").is_none());
}

#[test]
fn objects_without_a_schema_are_split_by_key() {
    let tree = r#"{"spec":{"list":[{"a":1}],"map":{"a":{"b":null}},"empty":{},"number":1}}"#;
    let want = r#"{"f:spec":{".":{},"f:empty":{},"f:list":{},"f:map":{".":{},"f:a":{".":{},"f:b":{}}},"f:number":{}}}"#;
    assert_eq!(fields(&Structure::deduced(), tree), want);
}

fn structure(schema: &str) -> Result<Structure, StructureError> {
    Structure::from_openapi(json(schema).as_map().expect("a map"), false)
}

#[test]
fn custom_resources_have_the_metadata_of_objects() {
    let schema = r#"{"type":"object","properties":{"metadata":{"type":"object"},"spec":{"type":"object","properties":{"a":{"type":"string"}}}}}"#;
    let structure = structure(schema).expect("a structure");
    let tree = r#"{"apiVersion":"t/v1","kind":"T","metadata":{"name":"x","finalizers":["f"],"labels":{"a":"b"}},"spec":{"a":"1"}}"#;
    let want = r#"{"f:apiVersion":{},"f:kind":{},"f:metadata":{"f:finalizers":{"v:\"f\"":{}},"f:labels":{"f:a":{}},"f:name":{}},"f:spec":{"f:a":{}}}"#;
    assert_eq!(fields(&structure, tree), want);
    assert!(structure.validate(&json(tree)).is_ok());
    let undeclared = structure.validate(&json(r#"{"spec":{"b":1},"other":1}"#)).expect_err("two");
    assert_eq!(
        undeclared.to_string(),
        "errors:\n  .spec.b: field not declared in schema\n  .other: field not declared in schema"
    );
}

#[test]
fn unknown_fields_of_custom_resources_are_kept_where_the_schema_says_so() {
    let schema = r#"{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"a":{"type":"object"}}},"embedded":{"type":"object","x-kubernetes-embedded-resource":true},"any":{"x-kubernetes-preserve-unknown-fields":true},"number":{"x-kubernetes-int-or-string":true}}}"#;
    let structure = structure(schema).expect("a structure");
    let tree = r#"{"spec":{"a":{"x":{"y":1}},"b":{"c":{"d":[1]}}},"embedded":{"metadata":{"finalizers":["f"]}},"any":{"p":{"q":1}},"number":"5%"}"#;
    assert!(structure.validate(&json(tree)).is_ok());
    let want = r#"{"f:any":{"f:p":{".":{},"f:q":{}}},"f:embedded":{"f:metadata":{"f:finalizers":{"v:\"f\"":{}}}},"f:number":{},"f:spec":{"f:a":{"f:x":{".":{},"f:y":{}}},"f:b":{".":{},"f:c":{".":{},"f:d":{}}}}}"#;
    assert_eq!(fields(&structure, tree), want);
    assert!(structure.validate(&json(r#"{"embedded":{"spec":1}}"#)).is_err());
    let all = Structure::from_openapi(json(r#"{"type":"object"}"#).as_map().expect("a map"), true);
    assert!(all.expect("a structure").validate(&json(r#"{"x":{"y":1}}"#)).is_ok());
}

#[test]
fn schemas_with_unknown_markers_are_refused() {
    let of = |marker: &str| {
        structure(&format!(r#"{{"type":"object","properties":{{"a":{{{marker}}}}}}}"#))
            .expect_err(marker)
    };
    let error = of(r#""type":"array","x-kubernetes-list-type":"bag""#);
    assert_eq!(
        error.to_string(),
        r#"schema.a: x-kubernetes-list-type is "bag"; write one of atomic, set, map"#
    );
    let error = of(r#""type":"array","x-kubernetes-list-type":"map""#);
    assert!(matches!(error, StructureError::NoKeys { .. }), "{error}");
    let error = of(r#""type":"object","x-kubernetes-map-type":"bag""#);
    assert!(error.to_string().starts_with("schema.a: x-kubernetes-map-type"), "{error}");
    let deep = format!(
        "{}{}{}",
        r#"{"type":"object","properties":{"a":"#.repeat(60),
        r#"{"type":"string"}"#,
        "}}".repeat(60)
    );
    assert!(structure(&deep).is_ok());
    // Deeper than JSON is read at all, as a tree that is made in memory.
    let mut tree = json(r#"{"type":"string"}"#);
    for _ in 0..120 {
        tree = json(r#"{"type":"array"}"#)
            .as_map()
            .map(|map| {
                let mut map = map.clone();
                map.insert("items", tree.clone());
                Value::Map(map)
            })
            .expect("a map");
    }
    let mut root = json(r#"{"type":"object","properties":{}}"#);
    root.as_map_mut()
        .and_then(|map| map.map_mut("properties"))
        .expect("properties")
        .insert("a", tree);
    let error =
        Structure::from_openapi(root.as_map().expect("a map"), false).expect_err("too deep");
    assert!(matches!(error, StructureError::TooDeep { .. }), "{error}");
}
