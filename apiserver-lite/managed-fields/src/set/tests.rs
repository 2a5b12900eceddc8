//! Tests: the laws of sets, their texts, and bounds.

use std::fs;
use std::path::Path;

use apiserver_schema::Value;
use apiserver_schema::value::{parse_json, write_json};
use proptest::prelude::*;

use super::{FieldSet, FieldsError, MAX_DEPTH, MAX_PATHS, PathBudget};
use crate::element::{ElementError, FieldPath, PathElement};

fn element() -> impl Strategy<Value = PathElement> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c<\"\\"), Just("")];
    let value = prop_oneof![
        (-2i64..12).prop_map(Value::Int),
        Just(Value::Float(1.5)),
        any::<bool>().prop_map(Value::Bool),
        prop_oneof![Just("x"), Just("é&\n"), Just("")].prop_map(Value::from),
    ];
    prop_oneof![
        4 => name.clone().prop_map(PathElement::field),
        2 => value.clone().prop_map(PathElement::Value),
        2 => (name, value.clone()).prop_map(|(name, value)| PathElement::key([(name, value)])),
        1 => value.prop_map(|value| PathElement::key([("n", value), ("m", Value::Int(1))])),
        1 => (0i64..3).prop_map(PathElement::Index),
    ]
}

fn set() -> impl Strategy<Value = FieldSet> {
    let path = prop::collection::vec(element(), 1..4).prop_map(FieldPath);
    prop::collection::vec(path, 0..12).prop_map(|paths| paths.into_iter().collect())
}

/// Whether a path other than `path` leads to it and is a member.
fn has_lead(set: &FieldSet, path: &FieldPath) -> bool {
    (1..path.0.len()).any(|length| set.contains(&FieldPath(path.0[..length].to_vec())))
}

proptest! {
    #[test]
    fn sets_obey_the_laws_of_sets(a in set(), b in set(), c in set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.union(&a), a.clone());
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.difference(&b).union(&b), a.union(&b));
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert!(a.difference(&a).is_empty());
        let mut left = a.clone();
        left.subtract(&b);
        prop_assert_eq!(left, a.difference(&b));
        prop_assert_eq!(a.is_empty(), a.paths().is_empty());
        prop_assert_eq!(a.len(), a.paths().len());
    }

    #[test]
    fn operations_are_those_of_their_members(a in set(), b in set()) {
        let all = a.union(&b);
        let (both, minus) = (a.intersection(&b), a.difference(&b));
        let (below, leaves) = (a.recursive_difference(&b), a.leaves());
        for path in all.paths() {
            let (in_a, in_b) = (a.contains(&path), b.contains(&path));
            prop_assert!(in_a || in_b);
            prop_assert_eq!(both.contains(&path), in_a && in_b);
            prop_assert_eq!(minus.contains(&path), in_a && !in_b);
            prop_assert_eq!(below.contains(&path), in_a && !in_b && !has_lead(&b, &path));
            let longer = |other: &FieldPath| other.0.len() > path.0.len() && other.0.starts_with(&path.0);
            let is_leaf = !a.paths().iter().any(longer);
            prop_assert_eq!(leaves.contains(&path), in_a && is_leaf);
        }
    }

    #[test]
    fn texts_are_read_again(a in set()) {
        let text = a.to_json();
        prop_assert_eq!(FieldSet::from_json(&text), Ok(a.clone()));
        prop_assert_eq!(FieldSet::from_value(&a.to_value(), &mut PathBudget::default()), Ok(a));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(text in "[ -~]{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = FieldSet::from_json(&bytes);
        let _ = FieldSet::from_json(format!("{{{text:?}:{{}}}}").as_bytes());
    }
}

/// Every `fieldsV1` below a value, as text.
fn field_texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::List(items) => items.iter().for_each(|item| field_texts(item, found)),
        Value::Map(map) => {
            for (key, value) in map.iter() {
                if key == "fieldsV1" {
                    let mut text = Vec::new();
                    write_json(&mut text, value);
                    found.push(String::from_utf8(text).expect("UTF-8"));
                }
                field_texts(value, found);
            }
        }
        _ => {}
    }
}

#[test]
fn texts_of_a_real_server_are_written_as_they_were_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/server");
    let mut texts = Vec::new();
    for file in fs::read_dir(directory).expect("testdata") {
        let text = fs::read(file.expect("a file").path()).expect("a recording");
        field_texts(&parse_json(&text, &mut Vec::new()).expect("JSON"), &mut texts);
    }
    assert!(texts.len() > 300, "{}", texts.len());
    for text in texts {
        let set = FieldSet::from_json(text.as_bytes()).expect("fieldsV1");
        assert_eq!(String::from_utf8(set.to_json()).expect("UTF-8"), text);
    }
}

#[test]
fn elements_are_sorted_by_kind_and_value() {
    let text = r#"{"i:0":{},"v:true":{},"v:10":{},"v:9":{},"v:\"a\"":{},"v:1.5":{},"k:{\"p\":10}":{},"k:{\"p\":9}":{},"f:b":{".":{},"f:c":{}},"f:a":{"f:x":{}}}"#;
    let sorted = r#"{"f:a":{"f:x":{}},"f:b":{".":{},"f:c":{}},"k:{\"p\":9}":{},"k:{\"p\":10}":{},"v:1.5":{},"v:9":{},"v:10":{},"v:\"a\"":{},"v:true":{},"i:0":{}}"#;
    let set = FieldSet::from_json(text.as_bytes()).expect("fieldsV1");
    assert_eq!(String::from_utf8(set.to_json()).expect("UTF-8"), sorted);
}

#[test]
fn members_and_the_paths_to_them_differ() {
    let set = FieldSet::from_json(br#"{"f:a":{".":{},"f:b":{}},"f:c":{"f:d":{}}}"#).expect("a set");
    for (path, is_member) in [
        (&["a"][..], true),
        (&["a", "b"], true),
        (&["c"], false),
        (&["c", "d"], true),
        (&["e"], false),
        (&[], false),
    ] {
        assert_eq!(set.contains(&FieldPath::fields(path)), is_member, "{path:?}");
    }
    let paths: Vec<String> = set.paths().iter().map(FieldPath::to_string).collect();
    assert_eq!(paths, [".a", ".a.b", ".c.d"]);
}

#[test]
fn keys_in_any_order_are_one_element() {
    let set = FieldSet::from_json(br#"{"k:{\"b\":1,\"a\":\"x\"}":{}}"#).expect("a set");
    assert_eq!(set.to_json(), br#"{"k:{\"a\":\"x\",\"b\":1}":{}}"#);
    assert_eq!(set.paths()[0].to_string(), r#"[a="x",b=1]"#);
    // Numbers are one by value.
    let numbers = FieldSet::from_json(br#"{"v:1":{},"v:1.0":{}}"#).expect("a set");
    assert_eq!(numbers.len(), 1);
}

#[test]
fn malformed_field_sets_are_refused() {
    let refused = |text: &str| FieldSet::from_json(text.as_bytes()).expect_err(text);
    assert!(matches!(refused("{"), FieldsError::Json(_)));
    assert!(matches!(refused("[]"), FieldsError::NotAnObject { got: "array", .. }));
    assert!(matches!(refused(r#"{"f:a":1}"#), FieldsError::NotAnObject { got: "number", .. }));
    let element = |text: &str| match refused(text) {
        FieldsError::Element(error) => error,
        other => panic!("{text}: {other}"),
    };
    assert!(matches!(element(r#"{"f":{}}"#), ElementError::Short(_)));
    assert!(matches!(element(r#"{"abc":{}}"#), ElementError::NoColon(_)));
    for malformed in ["k:[]", "k:{", "v:", "v:{\\\"a\\\"}", "i:x", "i:"] {
        let error = element(&format!(r#"{{"{malformed}":{{}}}}"#));
        assert!(matches!(error, ElementError::Malformed { .. }), "{malformed}: {error}");
    }
    // Elements that a later release may write are skipped with what is below them.
    let skipped = FieldSet::from_json(br#"{"x:new":{"f:a":{}},"f:b":{}}"#).expect("a set");
    assert_eq!(skipped.to_json(), br#"{"f:b":{}}"#);
}

#[test]
fn sets_are_bounded() {
    let nested =
        |depth: usize| format!("{}{}{}", r#"{"f:a":"#.repeat(depth), "{}", "}".repeat(depth));
    assert!(FieldSet::from_json(nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(FieldSet::from_json(nested(MAX_DEPTH + 1).as_bytes()), Err(FieldsError::TooDeep));
    let wide = |paths: usize| {
        let keys: Vec<String> = (0..paths).map(|at| format!("\"v:{at}\":{{}}")).collect();
        format!("{{{}}}", keys.join(","))
    };
    assert!(FieldSet::from_json(wide(MAX_PATHS).as_bytes()).is_ok());
    assert_eq!(FieldSet::from_json(wide(MAX_PATHS + 1).as_bytes()), Err(FieldsError::TooMany));
}

#[test]
fn names_in_messages_are_quoted_as_in_go() {
    let shown = |text: &str| PathElement::Value(Value::from(text)).to_string();
    assert_eq!(shown("a\"b\\c\n\u{7}\u{1}é"), "[=\"a\\\"b\\\\c\\n\\a\\x01é\"]");
    let key =
        PathElement::key([("n", Value::Null), ("b", Value::Bool(true)), ("f", Value::Float(0.5))]);
    assert_eq!(key.to_string(), "[b=true,f=0.5,n=null]");
    assert_eq!(PathElement::Index(3).to_string(), "[3]");
}
