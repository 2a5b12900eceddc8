//! YAML as Kubernetes reads and writes it: JSON in another notation.
//!
//! Reading follows the rules of YAML 1.1 that manifests rely on: `yes`, `no`, `on`, `off`, `y` and `n` are booleans unless quoted, `0644` is octal, `<<`
//! merges. Keys have the same types, and become their texts: an unquoted key `n` is `false`, `1.10` is `1.1`, and `null` is an error. Kubernetes takes only
//! usual spellings for booleans (`no`, `No`, `NO`), here `nO` is one too. A duplicate key is an error; depth, nodes and aliases are bounded.
//!
//! Writing is in block style with sorted keys; list items start at the column of their key. A string is plain if it reads back as a string, in double
//! quotes if it would read as another type, literal (`|`) if it has several lines. Lines are not folded.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use std::cmp::Ordering;
use std::iter::Peekable;
use std::str::Chars;

use tree::Tree;
pub use tree::float_key;

mod tree;

/// Why a text is not YAML.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ParseYamlError {
    source: Box<serde_saphyr::Error>,
}

/// Reads one document as a JSON value; an empty text is `null`.
///
/// # Errors
/// When the text is not YAML, has several documents, or has a duplicate key.
pub fn parse(text: &str) -> Result<Value, ParseYamlError> {
    from_str(text).map(Tree::into_value)
}

/// Reads one document as a `T`. A number is accepted where `T` has a string.
///
/// # Errors
/// As [`parse`], and when the document is not a `T`.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, ParseYamlError> {
    with_stack(|| serde_saphyr::from_str_with_options(text, options()))
        .map_err(ParseYamlError::from)
}

/// Reads each document of a stream as a JSON value; empty documents are ignored.
///
/// # Errors
/// When the text is not YAML, or has a duplicate key.
pub fn parse_all(text: &str) -> Result<Vec<Value>, ParseYamlError> {
    let all: Vec<Tree> = with_stack(|| serde_saphyr::from_multiple_with_options(text, options()))?;
    Ok(all.into_iter().map(Tree::into_value).filter(|value| !value.is_null()).collect())
}

/// Writes a JSON value as one document, with a line break at its end.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut out, map, 0),
        Value::Array(list) if !list.is_empty() => write_list(&mut out, list, 0),
        _ => {
            write_scalar(&mut out, value, 0);
            out.push('\n');
        }
    }
    out
}

impl From<serde_saphyr::Error> for ParseYamlError {
    fn from(source: serde_saphyr::Error) -> Self {
        ParseYamlError { source: Box::new(source) }
    }
}

/// Deepest nesting of values, as of JSON. The largest schemas of custom resources have some forty levels.
pub const MAX_DEPTH: usize = 128;

/// Stack that parsing takes at most, in bytes: a level needs 30 KB without optimization.
const STACK_LEN: usize = MAX_DEPTH * (48 << 10);

/// Runs `parse` on a stack that holds [`MAX_DEPTH`] levels; threads of the programs have 1 MiB.
pub fn with_stack<R>(parse: impl FnOnce() -> R) -> R {
    stacker::grow(STACK_LEN, parse)
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
    }
}

/// Writes `key: value` lines; the first one starts at the current column.
fn write_map(out: &mut String, map: &Map<String, Value>, indent: usize) {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort_by(|a, b| natural_order(a, b));
    for (at, key) in keys.into_iter().enumerate() {
        if at > 0 {
            pad(out, indent);
        }
        // A key has one line.
        if key.contains('\n') {
            write_double_quoted(out, key);
        } else {
            write_string(out, key, indent);
        }
        out.push(':');
        // The items of a list start at the column of its key.
        match map.get(key).unwrap_or(&Value::Null) {
            Value::Object(map) if !map.is_empty() => {
                out.push('\n');
                pad(out, indent.saturating_add(2));
                write_map(out, map, indent.saturating_add(2));
            }
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                pad(out, indent);
                write_list(out, list, indent);
            }
            value => {
                out.push(' ');
                write_scalar(out, value, indent);
                out.push('\n');
            }
        }
    }
}

/// Writes `- value` lines; the first one starts at the current column.
fn write_list(out: &mut String, list: &[Value], indent: usize) {
    for (at, value) in list.iter().enumerate() {
        if at > 0 {
            pad(out, indent);
        }
        out.push_str("- ");
        match value {
            Value::Object(map) if !map.is_empty() => write_map(out, map, indent.saturating_add(2)),
            Value::Array(list) if !list.is_empty() => {
                write_list(out, list, indent.saturating_add(2))
            }
            value => {
                write_scalar(out, value, indent);
                out.push('\n');
            }
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn write_scalar(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => out.push_str(&number.to_string()),
        Value::String(text) => write_string(out, text, indent),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

fn write_string(out: &mut String, text: &str, indent: usize) {
    let printable = text.chars().all(|c| c == '\n' || is_printable(c));
    if reads_as_another_type(text) || !printable {
        write_double_quoted(out, text);
    } else if text.contains('\n') {
        if literal_is_faithful(text) {
            write_literal(out, text, indent.saturating_add(2));
        } else {
            write_double_quoted(out, text);
        }
    } else if plain_is_faithful(text) {
        out.push_str(text);
    } else {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }
}

fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{feff}' | '\u{2028}' | '\u{2029}' | '\u{a0}')
}

/// Whether plain text would not be read as a string.
fn reads_as_another_type(text: &str) -> bool {
    const WORDS: &[&str] = &["y", "yes", "true", "on", "n", "no", "false", "off", "null"];
    const SIGNS: &[&str] = &["", "~", "<<", ".nan", ".inf", "+.inf", "-.inf"];
    let lower = text.to_ascii_lowercase();
    WORDS.contains(&lower.as_str())
        || SIGNS.contains(&lower.as_str())
        || is_number(&lower)
        || is_date(text)
}

/// Integers in bases 2, 8, 10 and 16 with `_` between digits, floats, and base 60 (`1:30`).
fn is_number(lower: &str) -> bool {
    let digits = lower.strip_prefix(['+', '-']).unwrap_or(lower).replace('_', "");
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let radix = |prefix: &str, radix: u32| {
        digits
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix)))
    };
    let base_60 = digits.contains(':')
        && digits.split(':').all(|part| part.parse::<f64>().is_ok_and(|n| n >= 0.0));
    radix("0x", 16) || radix("0o", 8) || radix("0b", 2) || base_60 || digits.parse::<f64>().is_ok()
}

/// `2006-1-2`, alone or before a time.
fn is_date(text: &str) -> bool {
    let date = text.split(['T', 't', ' ']).next().unwrap_or_default();
    let mut parts = date.split('-');
    let is_part = |part: Option<&str>, max: usize| {
        part.is_some_and(|p| (1..=max).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_digit()))
    };
    parts.next().is_some_and(|year| year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit()))
        && is_part(parts.next(), 2)
        && is_part(parts.next(), 2)
        && parts.next().is_none()
}

/// Whether one line needs no quotes.
fn plain_is_faithful(text: &str) -> bool {
    let first_is_safe = |first: char, second: Option<char>| match first {
        ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%'
        | '@' | '`' | ' ' => false,
        '-' | '?' | ':' => second.is_some_and(|c| c != ' '),
        _ => true,
    };
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return false };
    first_is_safe(first, chars.next())
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !text.starts_with("---")
        && !text.starts_with("...")
}

/// A literal keeps its lines unless one ends in a space.
fn literal_is_faithful(text: &str) -> bool {
    !text.contains(" \n") && !text.ends_with(' ')
}

/// `|` with an indentation hint where the text starts with a space or an empty line, and a chomping
/// hint where it does not end in exactly one line break.
fn write_literal(out: &mut String, text: &str, indent: usize) {
    out.push('|');
    if text.starts_with([' ', '\n']) {
        out.push('2');
    }
    let body = match text.strip_suffix('\n') {
        None => {
            out.push('-');
            text
        }
        Some(body) if body.is_empty() || body.ends_with('\n') => {
            out.push('+');
            body
        }
        Some(body) => body,
    };
    for line in body.split('\n') {
        out.push('\n');
        if !line.is_empty() {
            pad(out, indent);
            out.push_str(line);
        }
    }
}

fn write_double_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\u{1b}' => out.push_str("\\e"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c => out.push_str(&format!("\\u{:04X}", u32::from(c))),
        }
    }
    out.push('"');
}

/// The order of keys: where two keys first differ, runs of digits compare as numbers, and what is
/// not a letter comes before letters.
fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.chars().peekable(), b.chars().peekable());
    let mut in_number = false;
    loop {
        let (Some(&x), Some(&y)) = (a.peek(), b.peek()) else {
            return a.peek().is_some().cmp(&b.peek().is_some());
        };
        if x == y {
            in_number = x.is_ascii_digit() && (in_number || x != '0');
            a.next();
            b.next();
            continue;
        }
        return match (x.is_alphabetic(), y.is_alphabetic()) {
            (true, true) => x.cmp(&y),
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                // Within a number, a digit more makes it larger.
                let base = i64::from(in_number && (x == '0' || y == '0'));
                let (m, n) = (number(base, &mut a), number(base, &mut b));
                m.cmp(&n).then(x.cmp(&y))
            }
        };
    }
}

/// The number at the start of the text and its length; `base` precedes its digits.
fn number(base: i64, text: &mut Peekable<Chars>) -> (i64, usize) {
    let (mut value, mut len) = (base, 0_usize);
    while let Some(digit) = text.peek().and_then(|c| c.to_digit(10)) {
        value = value.saturating_mul(10).saturating_add(i64::from(digit));
        len = len.saturating_add(1);
        text.next();
    }
    (value, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// Found by fuzzing: a key of two lines was written as a block, which is invalid for a key.
    #[test]
    fn keys_stay_on_their_line() {
        let value = json!({"x\n- y": [1], "z\n": {"a\n\nb": "c"}});
        assert_eq!(parse(&to_string(&value)).unwrap(), value);
    }

    #[test]
    fn strings_are_written_so_that_they_read_as_strings() {
        let cases = [
            ("plain", "plain"),
            ("two words", "two words"),
            ("", r#""""#),
            ("yes", r#""yes""#),
            ("On", r#""On""#),
            ("1", r#""1""#),
            ("1.5e3", r#""1.5e3""#),
            ("0x1F", r#""0x1F""#),
            ("1:30", r#""1:30""#),
            ("2006-01-02T15:04:05Z", r#""2006-01-02T15:04:05Z""#),
            ("10.0.0.1", "10.0.0.1"),
            ("500m", "500m"),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("- a", "'- a'"),
            ("-a", "-a"),
            ("it's", "it's"),
            ("'it", "'''it'"),
            ("*", "'*'"),
            ("a #b", "'a #b'"),
            ("tab\there", r#""tab\there""#),
            ("a\nb\n", "|\n  a\n  b"),
            ("a\nb", "|-\n  a\n  b"),
            ("a\n\n", "|+\n  a\n"),
            (" a\nb", "|2-\n   a\n  b"),
            ("a \nb", r#""a \nb""#),
        ];
        for (text, yaml) in cases {
            let written = to_string(&json!(text));
            assert_eq!(written, format!("{yaml}\n"), "{text:?}");
            assert_eq!(parse(&written).unwrap(), json!(text), "{written:?}");
        }
    }

    #[test]
    fn nested_values() {
        let value = json!({"b": [1, [2, 3], {"x": 1, "a": []}], "a": {"k": {}}, "z": null});
        let yaml = "a:\n  k: {}\nb:\n- 1\n- - 2\n  - 3\n- a: []\n  x: 1\nz: null\n";
        assert_eq!(to_string(&value), yaml);
        assert_eq!(parse(yaml).unwrap(), value);
    }

    #[test]
    fn booleans_and_octal_numbers_are_those_of_yaml_1_1() {
        let yaml = "a: yes\nb: off\nc: 0644\nd: \"yes\"\ne: !!str no\n";
        let value = json!({"a": true, "b": false, "c": 0o644, "d": "yes", "e": "no"});
        assert_eq!(parse(yaml).unwrap(), value);
    }

    /// What kubectl 1.32 reads, with a ConfigMap of each line.
    #[test]
    fn keys_have_the_types_of_values() {
        for (line, key, value) in [
            ("n: a", "false", json!("a")),
            ("y: n", "true", json!(false)),
            ("on: Y", "true", json!(true)),
            ("\"n\": \"y\"", "n", json!("y")),
            ("'y': 'on'", "y", json!("on")),
            ("!!str n: a", "n", json!("a")),
            ("1: a", "1", json!("a")),
            ("0x10: a", "16", json!("a")),
            ("-1: a", "-1", json!("a")),
            ("1.10: a", "1.1", json!("a")),
            ("1e3: a", "1000", json!("a")),
            ("1e6: a", "1e+06", json!("a")),
            ("2006-01-02: a", "2006-01-02", json!("a")),
        ] {
            let in_map = json!({"data": {key: value}});
            assert_eq!(parse(&format!("data: {{{line}}}")).unwrap(), in_map, "{line}");
            assert_eq!(parse_all(line).unwrap(), [in_map["data"].clone()], "{line}");
        }
        for wrong in ["null: a", "~: a", ": a", "18446744073709551615: a", "[a]: b", "{a: b}: c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_written_so_that_they_read_as_they_are() {
        let value =
            json!({"n": "y", "Yes": "no", "off": "n", "1.10": "1.10", "null": "~", "a": true});
        let yaml = "\"1.10\": \"1.10\"\n\"Yes\": \"no\"\na: true\n\"n\": \"y\"\n\"null\": \"~\"\n\"off\": \"n\"\n";
        assert_eq!(to_string(&value), yaml);
        assert_eq!(parse(yaml).unwrap(), value);
    }

    #[test]
    fn a_key_that_stands_twice_is_an_error() {
        for text in ["a: 1\na: 2\n", "n: 1\nno: 2\n", "n: 1\n\"false\": 2\n", "1.0: a\n1: b\n"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_and_aliases_are_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&nested(MAX_DEPTH)).is_ok());
        assert!(parse(&nested(MAX_DEPTH + 1)).is_err());
        assert!(parse(&nested(100_000)).is_err());
        let maps = |depth: usize| format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth));
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let parsed = small
            .spawn(move || (parse(&maps(MAX_DEPTH)).is_ok(), parse(&maps(MAX_DEPTH + 1)).is_ok()));
        assert_eq!(parsed.unwrap().join().unwrap(), (true, false), "whatever stack the caller has");
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for n in 1..10 {
            let aliases = format!("*a{},", n - 1).repeat(10);
            bomb.push_str(&format!("a{n}: &a{n} [{aliases}]\n"));
        }
        assert!(parse(&bomb).is_err());
    }

    #[test]
    fn documents_of_a_stream() {
        let all = parse_all("---\na: 1\n---\n---\nb: 2\n").unwrap();
        assert_eq!(all, [json!({"a": 1}), json!({"b": 2})]);
    }

    #[test]
    fn keys_are_in_natural_order() {
        let mut keys = ["a10", "a2", "b", "a", "a_", "aB", "A", "1", "10", "9", "a-b", "a02"];
        keys.sort_by(|a, b| natural_order(a, b));
        assert_eq!(keys, ["1", "9", "10", "A", "a", "a-b", "a_", "a2", "a02", "a10", "aB", "b"]);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            "[ a\n#:-]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z0-9 :.#-]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn written_yaml_parses_back(value in any_value()) {
            let yaml = to_string(&value);
            prop_assert_eq!(parse(&yaml).map_err(|e| TestCaseError::fail(format!("{e:?}\n{yaml}")))?, value);
        }
    }
}
