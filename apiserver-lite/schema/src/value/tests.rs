//! Tests of trees: lookups, order, parsing and writing JSON.

use super::{Map, Value, parse_json, write_json};

fn parse(text: &str) -> (Value, Vec<String>) {
    let mut duplicates = Vec::new();
    let value = parse_json(text.as_bytes(), &mut duplicates).expect(text);
    (value, duplicates)
}

fn compact(text: &str) -> String {
    let mut out = Vec::new();
    write_json(&mut out, &parse(text).0);
    String::from_utf8(out).expect("the writer writes text")
}

#[test]
fn json_is_written_as_kubernetes_writes_it() {
    let cases = [
        (r#"{ "b" : 1, "a" : [ true , null ] }"#, r#"{"b":1,"a":[true,null]}"#),
        ("-9223372036854775808", "-9223372036854775808"),
        ("18446744073709551615", "18446744073709552000"),
        ("1.5", "1.5"),
        ("1.0", "1"),
        ("1e21", "1e+21"),
        ("1e20", "100000000000000000000"),
        ("0.0000001", "1e-7"),
        (r#""a<b>&c\"\\\n\u0001\u2028\u00e2é""#, r#""a\u003cb\u003e\u0026c\"\\\n\u0001\u2028âé""#),
    ];
    for (input, expect) in cases {
        assert_eq!(compact(input), expect, "{input}");
    }
}

#[test]
fn repeated_keys_are_noted_with_their_path_and_the_last_value_stays() {
    let (value, duplicates) =
        parse(r#"{"spec":{"list":[{"z":1,"a":1,"z":2}],"b":1},"spec2":1,"x":{"k":1,"k":2,"k":3}}"#);
    assert_eq!(duplicates, ["spec.list[0].z", "x.k"]);
    let item = value.as_map().and_then(|m| m.map("spec")?.maps("list").next()).cloned();
    assert_eq!(item, Some(Map::from_iter([("a", 1), ("z", 2)])));
    assert_eq!(value.as_map().and_then(|m| m.map("x")?.int("k")), Some(3));
}

#[test]
fn malformed_json_is_refused() {
    let deep = "[".repeat(200);
    for text in ["", "{", "{]", "1 2", "nul", "\"\u{1}\"", "{'a':1}", "NaN", deep.as_str()] {
        assert!(parse_json(text.as_bytes(), &mut Vec::new()).is_err(), "{text}");
    }
    assert!(parse_json(b"\"\xff\"", &mut Vec::new()).is_err());
}

#[test]
fn a_map_finds_its_keys_in_either_order() {
    let (written, _) = parse(r#"{"c":3,"a":1,"b":2}"#);
    let mut written = written.as_map().cloned().expect("a map");
    let mut sorted = Map::from_iter([("b", 2), ("a", 1), ("c", 3)]);
    assert_eq!(written, sorted);
    for map in [&mut written, &mut sorted] {
        assert_eq!(map.int("b"), Some(2));
        assert_eq!(map.insert("bb", 4), None);
        assert_eq!(map.insert("a", 7), Some(Value::Int(1)));
        assert_eq!(map.remove("c"), Some(Value::Int(3)));
        assert!(!map.contains("c"));
        map.map_or_insert("new").insert("x", 1);
    }
    assert_eq!(written, sorted);
    let keys: Vec<&str> = written.iter_sorted().map(|(key, _)| key).collect();
    assert_eq!(keys, ["a", "b", "bb", "new"]);
}

#[test]
fn of_equal_entries_the_last_wins() {
    let map = Map::from_iter([("b", 1), ("a", 1), ("b", 2)]);
    assert_eq!((map.len(), map.int("b")), (2, Some(2)));
}

#[test]
fn duplicates_of_a_document_do_not_grow_with_its_keys() {
    let key = "k".repeat(100_000);
    let fields: Vec<String> = (0..5_000).map(|n| format!("\"f{n}\":1,\"f{n}\":1")).collect();
    let text = format!("{{\"{key}\":{{{}}}}}", fields.join(","));
    let mut duplicates = Vec::new();
    parse_json(text.as_bytes(), &mut duplicates).expect("JSON");
    assert_eq!(duplicates.len(), 100);
    assert!(duplicates.iter().all(|path| path.len() < 600), "{}", duplicates[0].len());
}

#[test]
fn entries_added_together_replace_those_of_their_keys() {
    for text in [r#"{"c":"3","a":"1"}"#, r#"{"a":"1","c":"3"}"#] {
        let mut map = parse(text).0.as_map().cloned().expect("a map");
        map.extend([("b", "2"), ("a", "0"), ("b", "4")]);
        let all: Vec<(&str, Option<&str>)> =
            map.iter().map(|(key, value)| (key, value.as_str())).collect();
        assert_eq!(all, [("a", Some("0")), ("b", Some("4")), ("c", Some("3"))]);
        assert_eq!(map.str("c"), "3");
    }
}

#[test]
fn each_value_of_maps_that_differ_is_compared_once() {
    let nested = |leaf: &str| {
        let text = (0..100).fold(leaf.to_owned(), |text, _| format!(r#"{{"b":{text},"a":0}}"#));
        parse(&text).0
    };
    let (one, two) = (nested("1"), nested("2"));
    let mut equal = true;
    let steps = proto_api::steps::count_during(|| equal = one == two);
    assert!(!equal && steps <= 200, "{steps} steps");
}

/// What is read is what was written, to the last bit: serde_json's faster way to read a number may be off by one.
#[test]
fn floats_are_read_exactly() {
    let long = "8".to_owned() + &"1".repeat(85) + "0.5";
    let texts = ["0.1", "123.45600000000002", "5e-324", "1.7976931348623157e308", &long];
    for text in texts {
        let read = parse_json(text.as_bytes(), &mut Vec::new()).expect("a number");
        let exact: f64 = text.parse().expect("a number");
        assert_eq!(read, Value::Float(exact), "{text}");
        let mut written = Vec::new();
        write_json(&mut written, &read);
        let again = parse_json(&written, &mut Vec::new()).expect("a number");
        assert_eq!(again, read, "{text}");
    }
}
