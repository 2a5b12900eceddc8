//! JSON as scripts know it from kubectl: four spaces, sorted keys, `<`, `>` and `&` escaped.

use serde_json::Value;

/// With a line break at its end.
pub fn pretty(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, Some(0));
    out.push('\n');
    out
}

/// Without spaces and line breaks.
pub fn compact(value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, value, None);
    out
}

/// A string in quotes.
pub fn quoted(text: &str) -> String {
    let plain = Value::from(text).to_string();
    let mut out = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out
}

/// Indented by this many levels, or on one line.
fn write(out: &mut String, value: &Value, indent: Option<usize>) {
    let inner = indent.map(|levels| levels + 1);
    match value {
        Value::Object(map) if !map.is_empty() => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (at, key) in keys.into_iter().enumerate() {
                separate(out, at, inner);
                out.push_str(&quoted(key));
                out.push_str(if indent.is_some() { ": " } else { ":" });
                write(out, map.get(key).unwrap_or(&Value::Null), inner);
            }
            break_line(out, indent);
            out.push('}');
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                separate(out, at, inner);
                write(out, item, inner);
            }
            break_line(out, indent);
            out.push(']');
        }
        Value::Object(_) => out.push_str("{}"),
        Value::Array(_) => out.push_str("[]"),
        Value::String(text) => out.push_str(&quoted(text)),
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn separate(out: &mut String, at: usize, indent: Option<usize>) {
    if at > 0 {
        out.push(',');
    }
    break_line(out, indent);
}

fn break_line(out: &mut String, indent: Option<usize>) {
    if let Some(levels) = indent {
        out.push('\n');
        out.extend(std::iter::repeat_n("    ", levels));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_and_signs_escaped() {
        let value = json!({"b": [1, {"x": "<a&b>"}], "a": {}, "c": []});
        let wanted = "{\n    \"a\": {},\n    \"b\": [\n        1,\n        {\n            \"x\": \"\\u003ca\\u0026b\\u003e\"\n        }\n    ],\n    \"c\": []\n}\n";
        assert_eq!(pretty(&value), wanted);
        assert_eq!(compact(&value), r#"{"a":{},"b":[1,{"x":"\u003ca\u0026b\u003e"}],"c":[]}"#);
    }
}
