//! Tests: fields, differences and merges of trees; properties of random trees; the cost of large ones.

use apiserver_schema::Value;
use proptest::prelude::*;

use crate::set::MAX_DEPTH;
use crate::structure::BuiltInStructures;
use crate::testing::{fields, json, set, structure, text, tree};

proptest! {
    #[test]
    fn trees_are_compared_in_both_directions(a in tree(), b in tree()) {
        let structure = structure();
        let (there, back) = (structure.compare(&a, &b), structure.compare(&b, &a));
        prop_assert_eq!(&there.added, &back.removed);
        prop_assert_eq!(&there.removed, &back.added);
        prop_assert_eq!(&there.modified, &back.modified);
        prop_assert!(there.added.intersection(&there.removed).is_empty());
        prop_assert!(there.added.intersection(&there.modified).is_empty());
        prop_assert!(structure.compare(&a, &a).is_same());
    }

    #[test]
    fn a_merge_has_all_of_the_configuration_and_removes_nothing(live in tree(), config in tree()) {
        let structure = structure();
        prop_assert!(structure.validate(&config).is_ok());
        let merged = structure.merge(&live, &config);
        let from_config = structure.compare(&config, &merged);
        prop_assert!(from_config.modified.is_empty(), "{}", fields(&from_config.modified));
        prop_assert!(from_config.removed.intersection(&structure.fields_of(&config)).is_empty());
        let again = structure.merge(&merged, &config);
        prop_assert!(structure.compare(&merged, &again).is_same(), "{}", text(&again));
    }

    #[test]
    fn the_fields_of_a_tree_extract_it(a in tree()) {
        let structure = structure();
        let all = structure.fields_of(&a);
        let extracted = structure.extract(&a, &all);
        if extracted == Value::Null {
            prop_assert!(all.is_empty());
            return Ok(());
        }
        prop_assert_eq!(fields(&structure.fields_of(&extracted)), fields(&all));
        let compare = structure.compare(&a, &extracted);
        prop_assert!(compare.added.is_empty() && compare.modified.is_empty());
        // What is left out is no field: empty lists and declared maps around nothing.
        prop_assert!(compare.removed.intersection(&all).is_empty());
    }

    #[test]
    fn removed_field_sets_are_not_in_the_result(a in tree(), b in tree()) {
        let structure = structure();
        let gone = structure.fields_of(&b);
        let left = structure.without(&a, &gone);
        if left != Value::Null {
            prop_assert!(structure.fields_of(&left).intersection(&gone).is_empty());
        }
        let nothing = structure.without(&a, &set("{}"));
        prop_assert!(nothing == a || a.is_empty());
    }
}

/// Live items, those of the configuration, and the merged order.
#[test]
fn merged_lists_follow_the_configuration() {
    let rows = [
        ("abc", "cba", "cba"),
        ("abc", "b", "abc"),
        ("ab", "xbyaz", "xbyaz"),
        ("axbyc", "cna", "xbycna"),
        ("manb", "bqa", "mnbqa"),
        ("a", "bac", "bac"),
        ("", "ba", "ba"),
        ("abcd", "deb", "acdeb"),
        ("ab", "", "ab"),
    ];
    let list = |letters: &str| {
        let items: Vec<String> =
            letters.chars().map(|name| format!("{:?}", name.to_string())).collect();
        json(&format!(r#"{{"set":[{}]}}"#, items.join(",")))
    };
    for (live, config, want) in rows {
        let merged = structure().merge(&list(live), &list(config));
        assert_eq!(text(&merged), text(&list(want)), "{live} {config}");
    }
}

#[test]
fn duplicates_are_refused_in_what_is_applied() {
    let structure = structure();
    let rows = [
        (r#"{"set":["a","b","a"]}"#, r#".set: duplicate entries for key [="a"]"#),
        (
            r#"{"items":[{"name":"x"},{"name":"x","port":80}]}"#,
            r#".items: duplicate entries for key [name="x",port=80]"#,
        ),
        (r#"{"deep":{"k":{"set":["a","a"]}}}"#, r#".deep.k.set: duplicate entries for key [="a"]"#),
        (
            r#"{"items":[{"port":1}]}"#,
            r#".items: element 0: associative list with keys has an element that omits key field "name" (and doesn't have default value)"#,
        ),
        (
            r#"{"items":[null]}"#,
            ".items: element 0: associative list with keys may not have a null element",
        ),
        (
            r#"{"set":[["a"]]}"#,
            ".set: element 0: not supported: associative list with lists as elements",
        ),
        (r#"{"n":"x"}"#, ".n: expected numeric (int or float), got string"),
        (r#"{"s":1}"#, ".s: expected string, got &value.valueUnstructured{Value:1}"),
        (r#"{"b":[1,{"a":null}]}"#, ".b: expected boolean, got &{[1 map[a:<nil>]]}"),
        (
            r#"{"map":{"k":{}}}"#,
            ".map.k: expected string, got &value.valueUnstructured{Value:map[]}",
        ),
        (r#"{"items":{}}"#, ".items: expected list, got &{map[]}"),
    ];
    for (tree, want) in rows {
        let error = structure.validate(&json(tree)).expect_err(tree);
        assert_eq!(error.to_string(), want, "{tree}");
    }
}

#[test]
fn duplicates_of_live_lists_have_one_owner_and_stay() {
    let structure = structure();
    let live = json(
        r#"{"items":[{"name":"a","value":"1"},{"name":"b"},{"name":"a","value":"2"}],"set":["x","x"]}"#,
    );
    let all = r#"{"f:items":{"k:{\"name\":\"a\",\"port\":80}":{".":{},"f:name":{},"f:value":{}},"k:{\"name\":\"b\",\"port\":80}":{".":{},"f:name":{}}},"f:set":{"v:\"x\"":{}}}"#;
    assert_eq!(fields(&structure.fields_of(&live)), all);
    assert!(structure.compare(&live, &live).is_same());
    let one_changed = json(
        r#"{"items":[{"name":"a","value":"1"},{"name":"b"},{"name":"a","value":"3"}],"set":["x"]}"#,
    );
    let compare = structure.compare(&live, &one_changed);
    let modified = r#"{"f:items":{"k:{\"name\":\"a\",\"port\":80}":{}},"f:set":{"v:\"x\"":{}}}"#;
    assert_eq!(fields(&compare.modified), modified);
    // An apply that does not name them keeps them, one that does replaces them.
    let merged = structure.merge(&live, &json(r#"{"items":[{"name":"b","value":"n"}]}"#));
    let kept = r#"{"items":[{"name":"a","value":"1"},{"name":"b","value":"n"},{"name":"a","value":"2"}],"set":["x","x"]}"#;
    assert_eq!(merged, json(kept));
    let merged =
        structure.merge(&live, &json(r#"{"items":[{"name":"a","value":"n"}],"set":["x"]}"#));
    assert_eq!(merged, json(r#"{"items":[{"name":"a","value":"n"},{"name":"b"}],"set":["x"]}"#));
}

#[test]
fn items_without_keys_are_known_by_their_place() {
    let structure = structure();
    let live = json(r#"{"items":[{"value":"1"},{"name":"b"},7]}"#);
    let want = r#"{"f:items":{"k:{\"name\":\"b\",\"port\":80}":{".":{},"f:name":{}},"i:0":{".":{},"f:value":{}},"i:2":{}}}"#;
    assert_eq!(fields(&structure.fields_of(&live)), want);
    let merged = structure.merge(&live, &json(r#"{"items":[{"name":"b","value":"2"}]}"#));
    assert_eq!(merged, json(r#"{"items":[{"value":"1"},{"name":"b","value":"2"},7]}"#));
}

#[test]
fn parts_of_trees() {
    let structure = structure();
    let live = json(
        r#"{"n":1,"items":[{"name":"a","value":"1","sub":{"x":1}},{"name":"b"}],"map":{"k":"1","l":"2"},"atomicMap":{"a":"b"}}"#,
    );
    let fields = set(
        r#"{"f:n":{},"f:items":{"k:{\"name\":\"a\",\"port\":80}":{".":{},"f:name":{},"f:value":{}}},"f:map":{"f:k":{}},"f:atomicMap":{}}"#,
    );
    let part =
        r#"{"n":1,"items":[{"name":"a","value":"1"}],"map":{"k":"1"},"atomicMap":{"a":"b"}}"#;
    assert_eq!(structure.extract(&live, &fields), json(part));
    let rest = r#"{"items":[{"name":"b"}],"map":{"l":"2"}}"#;
    assert_eq!(structure.without(&live, &fields), json(rest));
    let emptied =
        structure.without(&json(r#"{"n":1,"map":{"k":"1"}}"#), &set(r#"{"f:map":{"f:k":{}}}"#));
    assert_eq!(emptied, json(r#"{"n":1,"map":null}"#));
}

#[test]
fn a_set_of_an_older_schema_owns_what_became_atomic() {
    let structure = structure();
    let old = set(
        r#"{"f:atomicMap":{".":{},"f:a":{}},"f:atomicList":{"v:\"a\"":{}},"f:deep":{"f:k":{"f:x":{}}},"f:map":{},"f:items":{"k:{\"name\":\"a\"}":{"f:sub":{"f:gone":{}}}},"f:unknown":{"f:a":{}},"f:free":{"f:a":{"f:b":{}}},"f:raw":{"f:a":{}}}"#,
    );
    let new = r#"{"f:atomicList":{},"f:atomicMap":{},"f:deep":{"f:k":{"f:x":{}}},"f:free":{"f:a":{"f:b":{}}},"f:items":{"k:{\"name\":\"a\"}":{"f:sub":{"f:gone":{}}}},"f:map":{},"f:raw":{},"f:unknown":{"f:a":{}}}"#;
    assert_eq!(fields(&structure.reconcile(old)), new);
}

#[test]
fn trees_that_are_too_deep_are_refused() {
    let nested = |depth: usize| {
        let mut tree = Value::Int(1);
        for _ in 0..depth {
            tree = Value::List(vec![tree]);
        }
        tree
    };
    assert!(!super::is_too_deep(&nested(MAX_DEPTH)));
    assert!(super::is_too_deep(&nested(MAX_DEPTH + 1)));
    let mut raw = json("{}");
    raw.as_map_mut().expect("a map").insert("raw", nested(MAX_DEPTH));
    let error = structure().validate(&raw).expect_err("too deep");
    assert_eq!(error.to_string(), "the object is nested more than 100 levels deep");
}

/// Twice the items cost at most twice the steps: no list or map is searched for each of its items.
#[test]
fn work_is_in_proportion_to_the_tree() {
    let structure = BuiltInStructures::new().find("", "v1", "Pod").expect("a structure");
    let pod = |size: usize, value: &str| {
        // Keys are not in sorted order.
        let place = |at: usize| (at * 7919) % size;
        let list =
            |item: &dyn Fn(usize) -> String| (0..size).map(item).collect::<Vec<_>>().join(",");
        json(&format!(
            r#"{{"metadata":{{"labels":{{{}}},"finalizers":[{}]}},"spec":{{"containers":[{{"name":"c","env":[{}]}}]}}}}"#,
            list(&|at| format!(r#""k{}":"{value}""#, place(at))),
            list(&|at| format!(r#""f{}""#, place(at))),
            list(&|at| format!(r#"{{"name":"N{}","value":"{value}"}}"#, place(at))),
        ))
    };
    let cost = |size: usize| {
        let (live, config) = (pod(size, "a"), pod(size, "b"));
        proto_api::steps::count_during(|| {
            structure.validate(&config).expect("a pod");
            let merged = structure.merge(&live, &config);
            let all = structure.fields_of(&merged);
            let compare = structure.compare(&live, &merged);
            assert_eq!(compare.modified.len(), 2 * size);
            assert!(
                structure
                    .fields_of(&structure.without(&merged, &all))
                    .intersection(&all)
                    .is_empty()
            );
        })
    };
    let costs: Vec<(usize, u64)> =
        (0..4).map(|power| 250 << power).map(|size| (size, cost(size))).collect();
    for pair in costs.windows(2) {
        let [(size, less), (_, more)] = *pair else { continue };
        assert!(more <= less * 2 + size as u64, "{costs:?}");
    }
}
