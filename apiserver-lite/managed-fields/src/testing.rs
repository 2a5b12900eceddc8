//! For tests: values from text, a structure with every kind of type, and random trees of it.

use std::fs;
use std::path::Path;

use apiserver_schema::value::{Key, parse_json, write_json};
use apiserver_schema::{Map, Value};
use proptest::prelude::*;

use crate::set::FieldSet;
use crate::structure::Structure;

pub(crate) fn json(text: &str) -> Value {
    parse_json(text.as_bytes(), &mut Vec::new()).expect("JSON")
}

pub(crate) fn text(value: &Value) -> String {
    let mut out = Vec::new();
    write_json(&mut out, value);
    String::from_utf8(out).expect("UTF-8")
}

pub(crate) fn fields(set: &FieldSet) -> String {
    String::from_utf8(set.to_json()).expect("UTF-8")
}

/// The set of this `fieldsV1`.
pub(crate) fn set(text: &str) -> FieldSet {
    FieldSet::from_json(text.as_bytes()).expect("fieldsV1")
}

/// `testdata/merges/schema.json`.
pub(crate) fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/merges/schema.json");
    json(&fs::read_to_string(path).expect("a schema"))
}

/// The structure of [`schema`].
pub(crate) fn structure() -> Structure {
    let schema = schema();
    Structure::from_openapi(schema.as_map().expect("a map"), false).expect("a structure")
}

/// A random tree that [`structure`] allows.
pub(crate) fn tree() -> impl Strategy<Value = Value> {
    let number = || prop_oneof![Just(Value::Int(1)), Just(Value::Int(2))];
    let fields: Vec<(&'static str, BoxedStrategy<Value>)> = vec![
        ("n", number().boxed()),
        ("s", short().boxed()),
        ("atomicList", prop::collection::vec(short(), 0..3).prop_map(Value::List).boxed()),
        ("set", strings().boxed()),
        ("items", items().boxed()),
        ("atomicMap", map_of(short().boxed()).boxed()),
        ("map", map_of(short().boxed()).boxed()),
        ("deep", map_of(message().boxed()).boxed()),
        ("struct", message().boxed()),
        ("free", free().boxed()),
        ("raw", free().boxed()),
    ];
    some_of(fields)
}

/// A map with some of the fields, some of them null.
fn some_of(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> impl Strategy<Value = Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            prop_oneof![
                6 => Just(None),
                5 => value.prop_map(Some),
                1 => Just(Some(Value::Null)),
            ]
            .prop_map(move |value| value.map(|value| (Key::Borrowed(name), value)))
        })
        .collect();
    fields
        .prop_map(|entries| Value::Map(Map::from_entries(entries.into_iter().flatten().collect())))
}

fn short() -> impl Strategy<Value = Value> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(Value::from)
}

fn strings() -> impl Strategy<Value = Value> {
    let letters = prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..4).prop_shuffle();
    letters.prop_map(|all| Value::List(all.into_iter().map(Value::from).collect()))
}

fn map_of(value: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
    let key = prop_oneof![Just("k"), Just("l"), Just("m")];
    prop::collection::vec((key, value), 0..3).prop_map(|all| Value::Map(all.into_iter().collect()))
}

fn message() -> impl Strategy<Value = Value> {
    let inner = some_of(vec![("a", short().boxed()), ("b", short().boxed())]);
    some_of(vec![
        ("x", Just(Value::Int(1)).boxed()),
        ("set", strings().boxed()),
        ("inner", inner.boxed()),
    ])
}

fn items() -> impl Strategy<Value = Value> {
    let keys = vec![("a", 80), ("a", 81), ("b", 80), ("c", 80), ("d", 80)];
    let keys = prop::sample::subsequence(keys, 0..5).prop_shuffle();
    let rest = some_of(vec![("value", short().boxed()), ("sub", message().boxed())]);
    (keys, prop::collection::vec((rest, any::<bool>()), 5)).prop_map(|(keys, rest)| {
        let items = keys.into_iter().zip(rest).map(|((name, port), (item, with_port))| {
            let mut item = item.as_map().cloned().unwrap_or_default();
            item.insert("name", name);
            if port != 80 || with_port {
                item.insert("port", port);
            }
            Value::Map(item)
        });
        Value::List(items.collect())
    })
}

/// JSON without a schema.
fn free() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), Just(Value::Int(1)), Just(Value::Bool(true)), short()];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let key = prop_oneof![Just("p"), Just("q")];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::List),
            prop::collection::vec((key, inner), 0..3)
                .prop_map(|all| Value::Map(all.into_iter().collect())),
        ]
    })
}
