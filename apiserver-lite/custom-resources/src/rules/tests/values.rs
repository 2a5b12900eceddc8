//! What rules see of objects: fields that are null, fields that nothing declares, sets and lists with keys, and stored values.

use crate::testing::{definition_with, value};

/// What is wrong with `new` by the rule of a schema with these properties.
fn verdict(properties: &str, rule: &str, new: &str, old: Option<&str>) -> Vec<String> {
    let schema = format!(
        r#"{{"type":"object","properties":{properties},"x-kubernetes-validations":[{{"rule":"{rule}"}}]}}"#
    );
    let definition = crate::read_definition(&definition_with(&schema)).expect("a definition");
    let schema = &definition.versions.first().expect("a version").schema;
    let old = old.map(value);
    schema.validate(&value(new), old.as_ref()).iter().map(ToString::to_string).collect()
}

/// Checks rules about one object: they hold, and their opposites do not.
fn hold(properties: &str, object: &str, rules: &[&str]) {
    for rule in rules {
        assert_eq!(verdict(properties, rule, object, Some(object)), Vec::<String>::new(), "{rule}");
        let opposite = verdict(properties, &format!("!({rule})"), object, Some(object));
        assert_eq!(opposite.len(), 1, "{rule}: {opposite:?}");
    }
}

#[test]
fn a_field_that_is_null_is_not_set() {
    let properties = r#"{"o":{"type":"object","properties":{
        "x":{"type":"string","nullable":true},"y":{"type":"string","nullable":true},
        "namespace":{"type":"string","nullable":true}}},
        "map":{"type":"object","additionalProperties":{"type":"string","nullable":true}},
        "list":{"type":"array","items":{"type":"integer","nullable":true}}}"#;
    let object = r#"{"o":{"x":null,"y":"b","namespace":null},"map":{"k":null},"list":[null,1]}"#;
    hold(
        properties,
        object,
        &[
            "!has(self.o.x) && has(self.o.y) && !has(self.o.__namespace__)",
            "!has(self.o.x) || self.o.x.size() > 0",
            "!self.o.?x.hasValue() && self.o.?x.orValue('d') == 'd'",
            "!('x' in dyn(self.o)) && 'y' in dyn(self.o)",
            // Entries of maps and items of lists are null.
            "has(self.map.k) && 'k' in self.map && dyn(self.map.k) == null",
            "dyn(self.list[0]) == null && self.list.exists(i, dyn(i) == null)",
            "self.o == oldSelf.o && self == oldSelf && self.map == oldSelf.map",
        ],
    );
    let found = verdict(properties, "self.o.x == 'a'", object, None);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("no such key: x evaluating rule"), "{found:?}");
    // A null field and one that is not there differ, as in Kubernetes, which counts them.
    let without = r#"{"o":{"y":"b"}}"#;
    assert_eq!(verdict(properties, "self.o == oldSelf.o", object, Some(without)).len(), 1);
    let other = r#"{"o":{"x":"a","y":"b","namespace":null}}"#;
    assert_eq!(verdict(properties, "self.o == oldSelf.o", object, Some(other)).len(), 1);
}

#[test]
fn what_nothing_declares_is_compared_and_not_seen() {
    let properties = r#"{"o":{"type":"object","x-kubernetes-preserve-unknown-fields":true,
        "properties":{"a.b":{"type":"integer"}}},
        "r":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}}"#;
    let object = r#"{"metadata":{"name":"m","labels":{"l":"v"}},"o":{"a.b":1,"hidden":{"k":[1]}},
        "r":{"apiVersion":"v1","kind":"A","metadata":{"name":"n","namespace":"s"},"spec":{}}}"#;
    hold(
        properties,
        object,
        &[
            "!has(dyn(self.o).hidden) && !('hidden' in dyn(self.o)) && dyn(self.o).a__dot__b == 1",
            "dyn(self.o).all(k, k == 'a__dot__b') && size(dyn(self.o)) == 2",
            "!has(dyn(self.r).spec) && self.r.kind == 'A' && self.r.metadata.name == 'n'",
            "!has(dyn(self.r.metadata).namespace) && !has(dyn(self.metadata).labels)",
            "self.o == oldSelf.o && self.r == oldSelf.r",
        ],
    );
    for (rule, new) in [
        ("self.o == oldSelf.o", object.replace("[1]", "[2]")),
        ("self.r == oldSelf.r", object.replace(r#""s"}"#, r#""t"}"#)),
    ] {
        assert_eq!(verdict(properties, rule, &new, Some(object)).len(), 1, "{rule}");
    }
}

#[test]
fn a_schema_that_declares_its_metadata_is_taken_at_its_word() {
    let properties = r#"{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object",
        "properties":{"name":{"type":"string","maxLength":5},"generateName":{"type":"string","maxLength":5}}}}"#;
    let rule = "self.metadata.name.matches('^(a|b|c|d|e|f|g|h)+$')";
    let schema = |properties: &str| {
        let rules = vec![format!(r#"{{"rule":"{rule}"}}"#); 80].join(",");
        let schema = format!(
            r#"{{"type":"object","properties":{properties},"x-kubernetes-validations":[{rules}]}}"#
        );
        crate::validate_definition(&definition_with(&schema), None)
    };
    assert_eq!(schema(properties), []);
    // Nothing bounds names otherwise, so that the rules are too expensive.
    assert!(!schema(&properties.replace(r#""kind":{"type":"string"},"#, "")).is_empty());
    hold(properties, r#"{"kind":"W","metadata":{"name":"ab"}}"#, &[rule]);
}

const LISTS: &str = r#"{"set":{"type":"array","maxItems":9,"x-kubernetes-list-type":"set","items":{"type":"string"}},
    "numbers":{"type":"array","maxItems":9,"x-kubernetes-list-type":"set","items":{"type":"integer"}},
    "plain":{"type":"array","maxItems":9,"items":{"type":"string"}},
    "keyed":{"type":"array","maxItems":9,"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
        "items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"},"v":{"type":"integer"}}}}}"#;

#[test]
fn sets_and_lists_with_keys_have_no_order_beside_any_list() {
    let object = r#"{"set":["x","y"],"numbers":[1,2],"plain":["y","x"],"keyed":[{"k":"a","v":1},{"k":"b","v":2}]}"#;
    hold(
        LISTS,
        object,
        &[
            "self.set == ['y', 'x'] && self.set == self.plain && self.numbers == [2, 1]",
            "self.set != ['y', 'z'] && self.set != ['y']",
            "size(self.set + ['x']) == 2 && self.set + ['z', 'x'] == ['z', 'y', 'x']",
            "(self.set + ['z']) + ['z', 'x'] == ['x', 'y', 'z'] && size(self.set + self.plain) == 2",
            "(self.set + ['z', 'w'])[3] == 'w'",
            // The left side decides.
            "['y', 'x'] != self.set && self.plain != self.set && size(['x'] + self.set) == 3",
            "size(self.plain + self.set) == 4",
            "self.keyed == [self.keyed[1], self.keyed[0]]",
            "[self.keyed[1], self.keyed[0]] != self.keyed",
            "size(self.keyed + [self.keyed[1]]) == 2",
            "self.keyed + [self.keyed[1]] == [self.keyed[1], self.keyed[0]]",
            "self.keyed == self.keyed.filter(i, i.v == 2) + self.keyed.filter(i, i.v == 1)",
            "self.keyed.filter(i, i.v > 0) + self.keyed != self.keyed",
        ],
    );
    let old = r#"{"set":["z","x"],"keyed":[{"k":"c","v":3},{"k":"a","v":9}]}"#;
    for rule in [
        "self.set + oldSelf.set == ['x', 'y', 'z'] && self.set + oldSelf.set == oldSelf.set + self.set",
        "size(self.keyed + oldSelf.keyed) == 3 && (self.keyed + oldSelf.keyed)[0].v == 9",
        "oldSelf.keyed + self.keyed != self.keyed + oldSelf.keyed",
    ] {
        assert_eq!(verdict(LISTS, rule, object, Some(old)), Vec::<String>::new(), "{rule}");
    }
}

#[test]
fn rules_below_an_atomic_map_see_stored_values() {
    let schema = |list: &str| {
        let rule = r#""maxLength":9,"x-kubernetes-validations":[{"rule":"self == oldSelf","message":"fixed"}]"#;
        format!(
            r#"{{"type":"object","properties":{{"spec":{{"type":"object","x-kubernetes-map-type":"atomic","properties":{{
                "a":{{"type":"string",{rule}}},
                "m":{{"type":"object","maxProperties":3,"x-kubernetes-map-type":"atomic","additionalProperties":{{"type":"string",{rule}}}}},
                "l":{{"type":"array","maxItems":3,{list}"items":{{"type":"object","x-kubernetes-map-type":"atomic",
                    "properties":{{"k":{{"type":"string"}},"v":{{"type":"string",{rule}}}}}}}}}}}}}}}}}"#
        )
    };
    let keyed = r#""x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"#;
    let keyed = schema(keyed).replace(r#""k":{"#, r#""k":{"default":"","#);
    let tree = definition_with(&keyed);
    assert_eq!(crate::validate_definition(&tree, None), []);
    let definition = crate::read_definition(&tree).expect("a definition");
    let schema_of = &definition.versions.first().expect("a version").schema;
    let object = |a: &str, m: &str, v: &str| {
        let spec = format!(r#"{{"a":"{a}","m":{{"x":"{m}"}},"l":[{{"k":"b","v":"{v}"}}]}}"#);
        value(&format!(r#"{{"spec":{spec}}}"#))
    };
    let stored = object("1", "1", "1");
    for (new, expected) in [
        (object("1", "1", "1"), &[][..]),
        (object("2", "1", "1"), &["spec.a"]),
        (object("1", "2", "1"), &["spec.m[x]"]),
        (object("1", "1", "2"), &["spec.l[0].v"]),
    ] {
        let found = schema_of.validate(&new, Some(&stored));
        let fields: Vec<&str> = found.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, expected, "{found:?}");
    }
    // Items of other lists have no stored value.
    let place = "spec.validation.openAPIV3Schema.properties[spec].properties[l]";
    for list in ["", r#""x-kubernetes-list-type":"atomic","#, r#""x-kubernetes-list-type":"set","#]
    {
        let found = crate::validate_definition(&definition_with(&schema(list)), None);
        let expected = format!(
            "oldSelf cannot be used on the uncorrelatable portion of the schema within {place}"
        );
        assert_eq!(found.len(), 1, "{list}: {found:?}");
        assert!(found[0].message.ends_with(&expected), "{list}: {found:?}");
    }
}

#[test]
fn sums_of_empty_lists_are_of_the_type_of_their_items() {
    let properties = r#"{"d":{"type":"array","items":{"type":"number"}},"w":{"type":"array","items":{"type":"string","format":"duration"}},
        "i":{"type":"array","items":{"type":"integer"}}}"#;
    hold(
        properties,
        r#"{"d":[],"w":[],"i":[]}"#,
        &[
            "self.d.sum() + 1.5 == 1.5 && type(self.d.sum()) == double",
            "self.w.sum() == duration('0s') && self.w.sum() + duration('1s') == duration('1s')",
            "type(self.i.sum()) == int",
            "self.i.map(i, uint(i)).sum() == 0u && type(self.i.map(i, uint(i)).sum()) == uint",
        ],
    );
}
