//! Tests of objects: pruning, defaults and values.

use proptest::prelude::*;

use apiserver_schema::{Map, Value};

use crate::testing::{schema, value};

/// The errors of an object with the field `f` of a schema.
fn errors_of(schema_of_f: &str, f: &str) -> Vec<String> {
    let schema = schema(&format!(r#"{{"f":{schema_of_f}}}"#));
    let object = value(&format!(r#"{{"f":{f}}}"#));
    schema.validate(&object, None).iter().map(ToString::to_string).collect()
}

#[test]
fn values_are_checked_with_kubernetes_messages() {
    for (schema, f, expect) in VALUE_CASES {
        let found = errors_of(schema, f);
        assert!(found.iter().any(|error| error.contains(expect)), "{schema} {f}: {found:?}");
    }
}

/// The schema of a field, its value, and the error that it has.
const VALUE_CASES: &[(&str, &str, &str)] = &[
    (
        r#"{"type":"string"}"#,
        "1",
        r#"f: Invalid value: "integer": f in body must be of type string: "integer""#,
    ),
    (
        r#"{"type":"string"}"#,
        "null",
        r#"f: Invalid value: "null": f in body must be of type string: "null""#,
    ),
    (
        r#"{"type":"integer"}"#,
        "1.5",
        r#"f: Invalid value: "number": f in body must be of type integer: "number""#,
    ),
    (
        r#"{"x-kubernetes-int-or-string":true}"#,
        "true",
        r#"f in body must be of type integer,string: "boolean""#,
    ),
    (
        r#"{"type":"integer","minimum":3}"#,
        "2",
        "f: Invalid value: 2: f in body should be greater than or equal to 3",
    ),
    (
        r#"{"type":"integer","minimum":3,"exclusiveMinimum":true}"#,
        "3",
        "f in body should be greater than 3",
    ),
    (r#"{"type":"integer","maximum":3}"#, "4", "f in body should be less than or equal to 3"),
    (
        r#"{"type":"number","maximum":3,"exclusiveMaximum":true}"#,
        "3.0",
        "f in body should be less than 3",
    ),
    (r#"{"type":"number","multipleOf":0.5}"#, "0.7", "f in body should be a multiple of 0.5"),
    (r#"{"type":"integer","multipleOf":3}"#, "10", "f in body should be a multiple of 3"),
    (r#"{"type":"string","maxLength":2}"#, r#""abc""#, "f: Too long: may not be longer than 2"),
    (r#"{"type":"string","minLength":2}"#, r#""é""#, "f in body should be at least 2 chars long"),
    (
        r#"{"type":"string","pattern":"^a+$"}"#,
        r#""b""#,
        r#"f: Invalid value: "b": f in body should match '^a+$'"#,
    ),
    (r#"{"type":"string","format":"ipv4"}"#, r#""x""#, r#"f in body must be of type ipv4: "x""#),
    (
        r#"{"type":"string","enum":["a","b"]}"#,
        r#""c""#,
        r#"f: Unsupported value: "c": supported values: "a", "b""#,
    ),
    (
        r#"{"type":"array","items":{"type":"integer"},"maxItems":1}"#,
        "[1,2]",
        "f: Too many: 2: must have at most 1 items",
    ),
    (
        r#"{"type":"array","items":{"type":"integer"},"minItems":1}"#,
        "[]",
        "f in body should have at least 1 items",
    ),
    (
        r#"{"type":"array","items":{"type":"integer"}}"#,
        r#"[1,"a"]"#,
        r#"f[1]: Invalid value: "string": f[1] in body"#,
    ),
    (
        r#"{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}"#,
        "{}",
        "f.a: Required value",
    ),
    (
        r#"{"type":"object","additionalProperties":{"type":"integer"},"maxProperties":1}"#,
        r#"{"a":1,"b":2}"#,
        "f: Too many: 2",
    ),
    (
        r#"{"type":"object","additionalProperties":{"type":"integer"},"minProperties":1}"#,
        "{}",
        "f in body should have at least 1 properties",
    ),
    (
        r#"{"type":"object","additionalProperties":{"type":"integer"}}"#,
        r#"{"a":"b"}"#,
        "f.a in body must be of type integer",
    ),
    (r#"{"type":"integer","not":{"minimum":3}}"#, "4", r#""f" must not validate the schema (not)"#),
    (
        r#"{"type":"integer","anyOf":[{"minimum":3},{"maximum":1}]}"#,
        "2",
        r#""f" must validate at least one schema (anyOf)"#,
    ),
    (
        r#"{"type":"integer","oneOf":[{"minimum":3},{"minimum":2}]}"#,
        "4",
        "one and only one schema (oneOf). Found 2 valid",
    ),
    (
        r#"{"type":"integer","oneOf":[{"minimum":3},{"minimum":2}]}"#,
        "1",
        "one and only one schema (oneOf). Found none valid",
    ),
    (
        r#"{"type":"integer","allOf":[{"minimum":3},{"maximum":5}]}"#,
        "2",
        r#""f" must validate all the schemas (allOf)"#,
    ),
    (
        r#"{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}"#,
        r#"["a","b","a"]"#,
        r#"f[2]: Duplicate value: "a""#,
    ),
    (
        r#"{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object",
            "required":["k"],"properties":{"k":{"type":"string"}}}}"#,
        r#"[{"k":"a"},{"k":"a"}]"#,
        r#"f[1]: Duplicate value: map[string]interface {}{"k":"a"}"#,
    ),
    (
        r#"{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}"#,
        r#"{"kind":"A","metadata":{"labels":{"a":"-"}}}"#,
        "f.apiVersion: Required value: must not be empty",
    ),
];

#[test]
fn values_that_fit_have_no_errors() {
    let cases = [
        (r#"{"type":"string","nullable":true}"#, "null"),
        (r#"{"type":"number"}"#, "1"),
        (r#"{"type":"integer"}"#, "1.0"),
        (r#"{"x-kubernetes-int-or-string":true}"#, r#""50%""#),
        (
            r#"{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]}"#,
            "1",
        ),
        (r#"{"type":"number","enum":[1,2]}"#, "1.0"),
        (r#"{"type":"string","maxLength":2}"#, r#""éé""#),
        (r#"{"type":"string","format":"unknown"}"#, r#""x""#),
        (r#"{"type":"object","x-kubernetes-preserve-unknown-fields":true}"#, r#"{"a":{"b":[1]}}"#),
        (
            r#"{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}"#,
            r#"["a","b"]"#,
        ),
        (r#"{"type":"integer","oneOf":[{"minimum":3},{"maximum":2}]}"#, "4"),
    ];
    for (schema, f) in cases {
        assert_eq!(errors_of(schema, f), Vec::<String>::new(), "{schema} {f}");
    }
}

#[test]
fn rules_are_not_run_on_values_of_other_types() {
    let schema = r#"{"type":"string","x-kubernetes-validations":[{"rule":"self == 'a'"}]}"#;
    let found = errors_of(schema, "1");
    assert!(
        found[1]
            .starts_with("<nil>: Invalid value: \"null\": some validation rules were not checked"),
        "{found:?}"
    );
}

#[test]
fn unknown_fields_are_pruned() {
    let schema = schema(
        r#"{"a":{"type":"object","properties":{"x":{"type":"string"}}},
        "free":{"type":"object","x-kubernetes-preserve-unknown-fields":true,
            "properties":{"k":{"type":"object","properties":{"y":{"type":"string"}}}}},
        "map":{"type":"object","additionalProperties":{"type":"object","properties":{"z":{"type":"string"}}}},
        "list":{"type":"array","items":{"type":"object","properties":{"z":{"type":"string"}}}},
        "emb":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"string"}}}}"#,
    );
    let mut object = value(
        r#"{"apiVersion":"v","kind":"k","metadata":{"name":"n","anything":1},"top":1,"a":{"x":"1","q":1},
        "free":{"u":1,"k":{"y":"1","v":2}},"map":{"m":{"z":"1","w":1}},"list":[{"z":"1"},{"w":2}],
        "emb":{"apiVersion":"v","kind":"k","metadata":{"q":1},"spec":"s","x":1}}"#,
    );
    let mut removed = schema.prune(&mut object);
    removed.sort();
    assert_eq!(removed, ["a.q", "emb.x", "free.k.v", "list[1].w", "map.m.w", "top"]);
    let expect = value(
        r#"{"apiVersion":"v","kind":"k","metadata":{"name":"n","anything":1},"a":{"x":"1"},"free":{"u":1,"k":{"y":"1"}},
        "map":{"m":{"z":"1"}},"list":[{"z":"1"},{}],"emb":{"apiVersion":"v","kind":"k","metadata":{"q":1},"spec":"s"}}"#,
    );
    assert_eq!(object, expect);
}

#[test]
fn defaults_are_set_and_nulls_are_dropped() {
    let schema = schema(
        r#"{"a":{"type":"string","default":"x"},"n":{"type":"string","nullable":true,"default":"y"},"plain":{"type":"string"},
        "o":{"type":"object","default":{},"properties":{"b":{"type":"integer","default":5}}},
        "l":{"type":"array","items":{"type":"object","properties":{"c":{"type":"boolean","default":false}}}},
        "m":{"type":"object","additionalProperties":{"type":"string","default":"d"}}}"#,
    );
    let cases = [
        ("{}", r#"{"a":"x","n":"y","o":{"b":5}}"#),
        (r#"{"a":null,"n":null,"plain":null}"#, r#"{"a":"x","n":null,"o":{"b":5}}"#),
        (
            r#"{"a":"q","o":{"b":1},"l":[{},{"c":true}]}"#,
            r#"{"a":"q","n":"y","o":{"b":1},"l":[{"c":false},{"c":true}]}"#,
        ),
        (r#"{"m":{"k":null,"j":"v"}}"#, r#"{"a":"x","n":"y","o":{"b":5},"m":{"k":"d","j":"v"}}"#),
    ];
    for (object, expect) in cases {
        let mut object = value(object);
        schema.default(&mut object);
        assert_eq!(object, value(expect));
    }
}

#[test]
fn validation_of_hostile_objects_is_bounded() {
    let alternatives = vec![r#"{"minLength":5,"pattern":"^(a|b)*c$"}"#; 500].join(",");
    let schema = schema(&format!(
        r#"{{"l":{{"type":"array","items":{{"type":"string","anyOf":[{alternatives}]}}}}}}"#
    ));
    let items = vec![r#""ab""#; 100_000].join(",");
    let found = schema.validate(&value(&format!(r#"{{"l":[{items}]}}"#)), None);
    assert!((1..=1_200).contains(&found.len()), "{}", found.len());
    let object = value(r#"{"l":[]}"#);
    assert_eq!(schema.validate(&object, None), []);
}

/// Any tree.
fn tree() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-1e9..1e9).prop_map(Value::Float),
        "[a-c]{0,3}".prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::List),
            prop::collection::vec(("(a|f|l|m|o|kind|metadata)", inner), 0..5)
                .prop_map(|entries| { Value::Map(Map::from_iter(entries)) }),
        ]
    })
}

const ANY: &str = r#"{"a":{"type":"string","default":"x","maxLength":2},"f":{"type":"number","minimum":0,"nullable":true},
    "l":{"type":"array","maxItems":5,"items":{"type":"object","properties":{"a":{"type":"integer","default":1},"m":{"type":"string"}}},
        "x-kubernetes-validations":[{"rule":"self.all(i, i.a > 0)"}]},
    "m":{"type":"object","additionalProperties":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}},
    "o":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}"#;

proptest! {
    #[test]
    fn pruning_and_defaulting_twice_is_as_once(object in tree()) {
        let schema = schema(ANY);
        let mut object = object;
        schema.prune(&mut object);
        let mut again = object.clone();
        prop_assert!(schema.prune(&mut again).is_empty());
        prop_assert_eq!(&again, &object);
        schema.default(&mut object);
        let mut again = object.clone();
        schema.default(&mut again);
        prop_assert_eq!(&again, &object);
        prop_assert!(schema.prune(&mut again).is_empty());
    }

    #[test]
    fn validation_of_any_object_ends(object in tree(), old in tree()) {
        let schema = schema(ANY);
        let errors = schema.validate(&object, Some(&old));
        prop_assert!(errors.iter().all(|error| !error.field.is_empty() && !error.message.is_empty()));
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[a-z0-9 ()\\[\\]{}.,'\"!&|+*/?:<>=\\\\-]{0,60}") {
        let rule = text.replace('\\', "\\\\").replace('"', "\\\"");
        let schema = schema(&format!(
            r#"{{"o":{{"type":"object","properties":{{"a":{{"type":"string"}}}},"x-kubernetes-validations":[{{"rule":"{rule}"}}]}}}}"#
        ));
        schema.validate(&value(r#"{"o":{"a":"b"}}"#), None);
    }

    #[test]
    fn any_tree_as_definition_is_refused_or_read(tree in tree()) {
        let spec = Map::from_iter([("spec", tree)]);
        let tree = Value::Map(spec);
        let errors = crate::validate_definition(&tree, None);
        prop_assert!(!errors.is_empty());
        let _ = crate::read_definition(&tree);
    }
}
