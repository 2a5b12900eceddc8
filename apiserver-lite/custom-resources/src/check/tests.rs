//! Tests of writes of definitions.

use apiserver_schema::Value;

use crate::testing::{definition, definition_with, value};

fn errors_of(tree: &Value, old: Option<&Value>) -> Vec<String> {
    crate::validate_definition(tree, old).iter().map(ToString::to_string).collect()
}

/// A definition with one part of its spec set.
fn with(path: &[&str], part: &str) -> Value {
    let mut tree = definition("{}");
    let (last, parents) = path.split_last().expect("a path");
    let mut map = tree.as_map_mut().expect("a map").map_or_insert("spec");
    for name in parents {
        map = map.map_or_insert((*name).to_owned());
    }
    map.insert((*last).to_owned(), value(part));
    tree
}

#[test]
fn a_definition_gets_its_defaults_and_is_valid() {
    let tree = definition(r#"{"spec":{"type":"object"}}"#);
    assert_eq!(errors_of(&tree, None), Vec::<String>::new());
    let spec = tree.as_map().and_then(|root| root.map("spec")).expect("a spec");
    assert_eq!(spec.str_at(&["names", "singular"]), "widget");
    assert_eq!(spec.str_at(&["names", "listKind"]), "WidgetList");
    assert_eq!(spec.str_at(&["conversion", "strategy"]), "None");
}

#[test]
fn scope_and_strategy_have_no_defaults() {
    let mut tree = with(&["scope"], r#""""#);
    let spec = tree.as_map_mut().and_then(|root| root.map_mut("spec")).expect("a spec");
    spec.insert("conversion", value("{}"));
    crate::default_definition(&mut tree);
    assert_eq!(
        errors_of(&tree, None),
        ["spec.scope: Required value", "spec.conversion.strategy: Required value"]
    );
}

#[test]
fn rules_of_the_spec() {
    let version = r#""served":true,"schema":{"openAPIV3Schema":{"type":"object"}}"#;
    let two =
        |more: &str| format!(r#"[{{"name":"v1","storage":true,{version}}},{{{more},{version}}}]"#);
    let cases: Vec<(&[&str], String, &str)> = vec![
        (&["group"], r#""other.com""#.to_owned(), r#"metadata.name: Invalid value: "widgets.example.com": must be spec.names.plural+"."+spec.group"#),
        (&["group"], r#""example""#.to_owned(), "spec.group: Invalid value: \"example\": should be a domain with at least one dot"),
        (&["scope"], r#""Galaxy""#.to_owned(), r#"spec.scope: Unsupported value: "Galaxy": supported values: "Cluster", "Namespaced""#),
        (&["scope"], r#""""#.to_owned(), "spec.scope: Required value"),
        (&["names", "kind"], r#""WidgetList""#.to_owned(), "spec.names.listKind: Invalid value: \"WidgetList\": kind and listKind may not be the same"),
        (&["names", "kind"], r#""a b""#.to_owned(), "may have mixed case, but should otherwise match"),
        (&["names", "plural"], r#""""#.to_owned(), "spec.names.plural: Required value"),
        (&["names", "shortNames"], r#"["A"]"#.to_owned(), "spec.names.shortNames[0]: Invalid value"),
        (&["versions"], "[]".to_owned(), "must have exactly one version marked as storage version"),
        (&["versions"], two(r#""name":"v1","storage":false"#), "must contain unique version names"),
        (&["versions"], two(r#""name":"v2","storage":true"#), "must have exactly one version marked as storage version"),
        (&["versions"], two(r#""name":"V2","storage":false"#), "spec.versions[1].name: Invalid value"),
        (&["versions"], two(r#""name":"v2","deprecationWarning":"x""#), "can only be set for deprecated versions"),
        (&["versions"], r#"[{"name":"v1","storage":true}]"#.to_owned(), "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"),
        (&["preserveUnknownFields"], "true".to_owned(), "spec.preserveUnknownFields: Invalid value: true: cannot set to true"),
        (&["conversion"], r#"{"strategy":"Webhook"}"#.to_owned(), "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook"),
        (&["conversion"], "{}".to_owned(), "spec.conversion.strategy: Required value"),
        (&["conversion"], r#"{"strategy":"Magic"}"#.to_owned(), "spec.conversion.strategy: Unsupported value"),
        (&["conversion"], r#"{"strategy":"None","webhook":{"clientConfig":{"url":"https://a"}}}"#.to_owned(), "should not be set when strategy is not set to Webhook"),
        (&["conversion"], r#"{"strategy":"Webhook","webhook":{"clientConfig":{"url":"http://a"},"conversionReviewVersions":["v1"]}}"#.to_owned(), "'https' is the only allowed URL scheme"),
        (&["conversion"], r#"{"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://a"},"conversionReviewVersions":["v9"]}}"#.to_owned(), "must include at least one of v1, v1beta1"),
        (&["conversion"], r#"{"strategy":"Webhook","webhook":{"clientConfig":{"service":{"name":"a","namespace":"b","port":0}},"conversionReviewVersions":["v1"]}}"#.to_owned(), "port is not valid"),
    ];
    for (path, part, expect) in cases {
        let found = errors_of(&with(path, &part), None);
        assert!(found.iter().any(|error| error.contains(expect)), "{part}: {found:?}");
    }
}

#[test]
fn columns_and_subresources() {
    let version = |more: &str| {
        format!(
            r#"[{{"name":"v1","served":true,"storage":true,{more},"schema":{{"openAPIV3Schema":{{"type":"object"}}}}}}]"#
        )
    };
    let cases = [
        (
            r#""additionalPrinterColumns":[{"type":"string","jsonPath":".a"}]"#,
            "spec.additionalPrinterColumns[0].name: Required value",
        ),
        (
            r#""additionalPrinterColumns":[{"name":"a","type":"text","jsonPath":".a"}]"#,
            "type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
        ),
        (
            r#""additionalPrinterColumns":[{"name":"a","type":"string","jsonPath":"a"}]"#,
            "JSONPath: Invalid value: \"a\": must be a simple json path starting with .",
        ),
        (
            r#""additionalPrinterColumns":[{"name":"a","type":"string","format":"x","jsonPath":".a"}]"#,
            "format: Invalid value",
        ),
        (
            r#""subresources":{"scale":{"specReplicasPath":".x.r","statusReplicasPath":".status.r"}}"#,
            "spec.subresources.scale.specReplicasPath: Invalid value: \".x.r\": should be a json path under .spec",
        ),
        (
            r#""subresources":{"scale":{"specReplicasPath":".spec.r"}}"#,
            "spec.subresources.scale.statusReplicasPath: Required value",
        ),
        (
            r#""subresources":{"scale":{"specReplicasPath":".spec.r","statusReplicasPath":".status.r","labelSelectorPath":".a"}}"#,
            "should be a json path under either .spec or .status",
        ),
    ];
    for (more, expect) in cases {
        let found = errors_of(&with(&["versions"], &version(more)), None);
        assert!(found.iter().any(|error| error.contains(expect)), "{more}: {found:?}");
    }
}

/// The errors of a schema, without the path of the root.
fn schema_errors(schema: &str) -> Vec<String> {
    let found = errors_of(&definition_with(schema), None);
    found.iter().map(|error| error.replace("spec.validation.openAPIV3Schema", "$")).collect()
}

#[test]
fn rules_of_schemas() {
    for (schema, expect) in SCHEMA_CASES {
        let found = schema_errors(schema);
        assert!(found.iter().any(|error| error.contains(expect)), "{schema}: {found:?}");
    }
}

/// Schemas, and the error that each has.
const SCHEMA_CASES: &[(&str, &str)] = &[
    (r#"{"type":"string"}"#, "$.type: Invalid value: \"string\": must be object at the root"),
    ("{}", "$.type: Required value: must not be empty at the root"),
    (
        r#"{"type":"object","nullable":true}"#,
        "$.nullable: Forbidden: nullable cannot be true at the root",
    ),
    (
        r#"{"type":"object","additionalProperties":{"type":"string"}}"#,
        "$.additionalProperties: Forbidden: must not be used at the root",
    ),
    (
        r#"{"type":"object","properties":{"a":{}}}"#,
        "$.properties[a].type: Required value: must not be empty for specified object fields",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array"}}}"#,
        "$.properties[a].items: Required value: must be specified",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","items":{}}}}"#,
        "must not be empty for specified array items",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"thing"}}}"#,
        "$.properties[a].type: Unsupported value: \"thing\"",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"type":"string"}},"additionalProperties":{"type":"string"}}}}"#,
        "additionalProperties and properties are mutual exclusive",
    ),
    (
        r##"{"type":"object","properties":{"a":{"type":"string","$ref":"#/a"}}}"##,
        "$.properties[a].$ref: Forbidden: $ref is not supported",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},"uniqueItems":true}}}"#,
        "uniqueItems cannot be set to true",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","pattern":"("}}}"#,
        "must be a valid regular expression, but isn't",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","anyOf":[{"type":"string"}]}}}"#,
        "$.properties[a].anyOf[0].type: Forbidden: must be empty to be structural",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","not":{"default":1}}}}"#,
        "not.default: Forbidden: must be undefined to be structural",
    ),
    (
        r#"{"type":"object","anyOf":[{"properties":{"b":{"minLength":1}}}]}"#,
        "$.properties[b]: Required value: because it is defined in $.anyOf[0].properties[b]",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"object","x-kubernetes-preserve-unknown-fields":false}}}"#,
        "must be true or undefined",
    ),
    (
        r#"{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"x-kubernetes-preserve-unknown-fields":true}}}"#,
        "must be false if x-kubernetes-int-or-string is true",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"object","x-kubernetes-embedded-resource":true}}}"#,
        "must not be empty if x-kubernetes-embedded-resource is true",
    ),
    (
        r#"{"type":"object","properties":{"metadata":{"type":"object","properties":{"labels":{"type":"object"}}}}}"#,
        "must not specify anything other than name and generateName",
    ),
    (
        r#"{"type":"object","properties":{"kind":{"type":"integer"}}}"#,
        "$.properties[kind].type: Invalid value: \"integer\": must be string",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"object","x-kubernetes-list-type":"set"}}}"#,
        "must be array if x-kubernetes-list-type is specified",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"bag","items":{"type":"string"}}}}"#,
        "Unsupported value: \"bag\"",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"map","items":{"type":"object"}}}}"#,
        "must not be empty if x-kubernetes-list-type is map",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object"}}}}"#,
        "entries must all be names of item properties",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","properties":{"k":{"type":"string"}}}}}}"#,
        "must have a default or be a required property",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"object"}}}}"#,
        "must be atomic as item of a list",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","default":1}}}"#,
        "$.properties[a].default: Invalid value: \"integer\"",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"object","default":{"z":1}}}}"#,
        "must not have unknown fields",
    ),
    (
        r#"{"type":"object","properties":{"metadata":{"type":"object","default":{}}}}"#,
        "must not be set in top-level metadata",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","x-kubernetes-validations":[{"rule":""}]}}}"#,
        "rule: Required value: rule is not specified",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self == 1"}]}}}"#,
        "apiextensions.ValidationRule{Rule:\"self == 1\", Message:\"\"}: compilation failed",
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string","maxLength":9,"x-kubernetes-validations":[{"rule":"self ==\n'a'"}]}}}"#,
        "message must be specified if rule contains line breaks",
    ),
];

#[test]
fn schemas_that_are_fine() {
    for schema in [
        r#"{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]}}}"#,
        r#"{"type":"object","x-kubernetes-preserve-unknown-fields":true}"#,
        r#"{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":5}}}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"object","default":{"b":1},"properties":{"b":{"type":"integer"}}}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"object","additionalProperties":{"type":"string"}}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"string","not":{"enum":["x"]},"oneOf":[{"minLength":1}]}}}"#,
    ] {
        assert_eq!(schema_errors(schema), Vec::<String>::new(), "{schema}");
    }
}

#[test]
fn deep_schemas_are_refused() {
    let mut schema = r#"{"type":"string"}"#.to_owned();
    (0..62).for_each(|_| schema = format!(r#"{{"type":"array","items":{schema}}}"#));
    let whole = |schema: &str| format!(r#"{{"type":"object","properties":{{"a":{schema}}}}}"#);
    assert_eq!(schema_errors(&whole(&schema)), Vec::<String>::new());
    let mut tree = value(&schema);
    for _ in 0..10 {
        tree = Value::Map([("type", Value::from("array")), ("items", tree)].into_iter().collect());
    }
    let root = Value::Map([("type", Value::from("object")), ("items", tree)].into_iter().collect());
    let mut deep = definition("{}");
    let spec = deep.as_map_mut().and_then(|root| root.map_mut("spec")).expect("a spec");
    let version = spec.maps_mut("versions").next().expect("a version");
    version.map_or_insert("schema").insert("openAPIV3Schema", root);
    assert!(errors_of(&deep, None)[0].contains("nested more than 64 levels deep"));
    assert!(crate::read_definition(&deep).is_err());
}

#[test]
fn immutable_fields_of_definitions_are_refused() {
    let old = |status: &str| {
        let mut tree = definition("{}");
        tree.as_map_mut().expect("a map").insert("status", value(status));
        tree
    };
    let established =
        r#"{"conditions":[{"type":"Established","status":"True"}],"storedVersions":["v1"]}"#;
    let scope = with(&["scope"], r#""Cluster""#);
    assert_eq!(errors_of(&scope, Some(&old("{}"))), Vec::<String>::new());
    assert_eq!(
        errors_of(&scope, Some(&old(established))),
        ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
    );
    let group = with(&["group"], r#""other.com""#);
    assert_eq!(
        errors_of(&group, Some(&old("{}"))),
        ["spec.group: Invalid value: \"other.com\": field is immutable"]
    );
    let mut gone = definition("{}");
    gone.as_map_mut().expect("a map").insert("status", value(r#"{"storedVersions":["v1","v0"]}"#));
    assert_eq!(
        errors_of(&gone, Some(&old(established))),
        ["status.storedVersions[1]: Invalid value: \"v0\": must appear in spec.versions"]
    );
}

#[test]
fn read_definitions_show_columns_and_scale() {
    let part = r#"[{"name":"v1","served":true,"storage":true,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object"}},
        "subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas",
        "labelSelectorPath":".status.selector"}},
        "additionalPrinterColumns":[{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"},
        {"name":"N","type":"integer","jsonPath":".spec.replicas"},{"name":"X","type":"number","jsonPath":".spec.list[-1]"},
        {"name":"B","type":"boolean","jsonPath":".spec.b"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"},
        {"name":"Map","type":"string","jsonPath":".metadata.annotations.a\\.b"},{"name":"None","type":"string","jsonPath":".a[*"}]}]"#;
    let definition = crate::read_definition(&with(&["versions"], part)).expect("a definition");
    let version = definition.storage_version().expect("a version");
    let mut object = value(
        r#"{"metadata":{"creationTimestamp":"1970-01-01T00:00:00Z","annotations":{"a.b":"c"}},
        "spec":{"replicas":3,"list":[1,2],"b":true},
        "status":{"replicas":2,"selector":"a=b","conditions":[{"type":"A","status":"1"},{"type":"Ready","status":"True"}]}}"#,
    );
    let cells = crate::cells(&version.columns, &object, 90);
    assert_eq!(Value::List(cells), value(r#"["True",3,2.0,true,"90s","c",null]"#));
    let scale = version.subresources.scale.as_ref().expect("a scale");
    assert_eq!(
        (scale.replicas(&object), scale.present(&object), scale.selector(&object)),
        (Some(3), 2, Some("a=b"))
    );
    assert!(scale.set_replicas(&mut object, 5));
    assert_eq!(scale.replicas(&object), Some(5));
    let mut empty = value("{}");
    assert!(scale.set_replicas(&mut empty, 1));
    assert_eq!(empty, value(r#"{"spec":{"replicas":1}}"#));
    assert!(!scale.set_replicas(&mut value(r#"{"spec":1}"#), 1));
    assert_eq!(version.warning("e.com", "W").as_deref(), Some("e.com/v1 W is deprecated"));
}

/// The complaints about a version with these selectable fields.
fn selectable(paths: &[&str]) -> Vec<String> {
    let mut tree = definition(
        r#"{"metadata":{"type":"object","properties":{"name":{"type":"string"}}},
        "spec":{"type":"object","properties":{"color":{"type":"string","enum":["red"]},"size":{"type":"integer"},
            "on":{"type":"boolean"},"at":{"type":"string","format":"date-time"},"x":{"type":"number"},
            "port":{"x-kubernetes-int-or-string":true},"a.b":{"type":"string"},
            "list":{"type":"array","items":{"type":"string"}},
            "map":{"type":"object","additionalProperties":{"type":"string"}}}}}"#,
    );
    let fields = paths.iter().map(|path| {
        let mut field = apiserver_schema::Map::new();
        field.insert("jsonPath", *path);
        Value::Map(field)
    });
    let fields: Vec<Value> = fields.collect();
    let spec = tree.as_map_mut().and_then(|root| root.map_mut("spec")).expect("a spec");
    for version in spec.maps_mut("versions") {
        version.insert("selectableFields", fields.clone());
    }
    errors_of(&tree, None)
}

#[test]
fn selectable_fields_are_scalars_of_the_schema() {
    let good = [".spec.color", ".spec.size", ".spec.on", ".spec.at", ".spec['a.b']", ".spec.map.k"];
    assert_eq!(selectable(&good), Vec::<String>::new());
    let kinds = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
    for (path, expected) in [
        ("", "[0].jsonPath: Required value".to_owned()),
        ("spec.color", "[0].jsonPath: Invalid value: \"spec.color\": is an invalid path: must be fields such as .spec.color".to_owned()),
        (".spec.zz", "[0].jsonPath: Invalid value: \".spec.zz\": is an invalid path: does not refer to a valid field".to_owned()),
        (".spec.list[0]", "[0].jsonPath: Invalid value: \".spec.list[0]\": is an invalid path".to_owned()),
        (".spec", format!("[0]: Invalid value: \".spec\": {kinds}")),
        (".spec.list", format!("[0]: Invalid value: \".spec.list\": {kinds}")),
        (".spec.x", format!("[0]: Invalid value: \".spec.x\": {kinds}")),
        (".spec.port", format!("[0]: Invalid value: \".spec.port\": {kinds}")),
        (".metadata.name", "[0]: Invalid value: \".metadata.name\": must not point to fields in metadata".to_owned()),
    ] {
        let found = selectable(&[path]);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].starts_with(&format!("spec.selectableFields{expected}")), "{found:?}");
    }
    let twice = selectable(&[".spec.color", ".spec['color']"]);
    assert_eq!(twice, ["spec.selectableFields[1]: Duplicate value: \".spec['color']\""]);
    let keys: Vec<String> = (0..9).map(|at| format!(".spec.map.k{at}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    assert_eq!(
        selectable(&keys),
        ["spec.selectableFields: Too many: 9: must have at most 8 items"]
    );
    assert_eq!(selectable(&keys[..8]), Vec::<String>::new());
}
