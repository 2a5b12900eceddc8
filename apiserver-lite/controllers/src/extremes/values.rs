//! Variants of a document with an extreme number, quantity, time or percentage; for tests.

use serde_json::{Value, json};

const NUMBERS: [i64; 9] =
    [i64::MAX, i64::MIN, i32::MAX as i64, i32::MIN as i64, 1 << 32, 65_536, 0, -1, 1];
const QUANTITIES: [&str; 8] =
    ["9223372036854775807", "-9223372036854775808", "8Ei", "1e18", "1n", "-1", "0", "9E"];
const TIMES: [&str; 3] = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1970-01-01T00:00:01Z"];
const SHARES: [&str; 4] = ["9223372036854775807%", "-100%", "200%", "%"];

/// The type of a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Number,
    Quantity,
    Time,
}

/// All variants with their names: one changed leaf each, then all leaves of a type at once, for sums.
pub fn variants(document: &Value) -> Vec<(String, Value)> {
    let mut leaves = Vec::new();
    find(document, &mut String::new(), &mut leaves);
    assert!(leaves.len() > 5, "the document has too few numbers");
    let mut variants = Vec::new();
    for (pointer, leaf) in &leaves {
        for value in extremes(*leaf) {
            variants.push((format!("{pointer} = {value}"), with(document, [pointer], &value)));
        }
    }
    for sort in [Leaf::Number, Leaf::Quantity, Leaf::Time] {
        let all = || leaves.iter().filter(|(_, leaf)| *leaf == sort).map(|(pointer, _)| pointer);
        for value in extremes(sort) {
            variants.push((format!("all = {value}"), with(document, all(), &value)));
        }
    }
    variants
}

fn with<'a>(
    document: &Value,
    pointers: impl IntoIterator<Item = &'a String>,
    value: &Value,
) -> Value {
    let mut changed = document.clone();
    for pointer in pointers {
        *changed.pointer_mut(pointer).expect("a pointer from find") = value.clone();
    }
    changed
}

fn extremes(leaf: Leaf) -> Vec<Value> {
    match leaf {
        Leaf::Number => {
            let shares = SHARES.iter().map(|text| json!(text));
            NUMBERS.iter().map(|number| json!(number)).chain(shares).collect()
        }
        Leaf::Quantity => QUANTITIES.iter().map(|text| json!(text)).collect(),
        Leaf::Time => TIMES.iter().map(|text| json!(text)).collect(),
    }
}

fn find(value: &Value, at: &mut String, leaves: &mut Vec<(String, Leaf)>) {
    let here = at.len();
    let mut below = |key: &str, value: &Value| {
        at.push('/');
        at.push_str(&key.replace('~', "~0").replace('/', "~1"));
        find(value, at, leaves);
        at.truncate(here);
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| below(key, value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(nth, value)| below(&nth.to_string(), value));
        }
        Value::Number(_) => leaves.push((at.clone(), Leaf::Number)),
        Value::String(text) if text == "0" => leaves.push((at.clone(), Leaf::Quantity)),
        Value::String(text) if text.ends_with('Z') && text.contains(':') => {
            leaves.push((at.clone(), Leaf::Time));
        }
        _ => {}
    }
}
