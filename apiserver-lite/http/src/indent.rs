//! Indented JSON (`?pretty=true`, and for people), made from the compact bytes without a tree of them.

use apiserver_core::request::Query;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::HeaderMap;
use http::header::USER_AGENT;

/// Longest JSON that is indented. Longer answers stay as they are: indenting multiplies them.
const INDENTED_LEN_MAX: usize = 4 << 20;
const STEP: usize = 2;
/// How programs call themselves whose answers people read, as Kubernetes' servers know them.
const READ_BY_PEOPLE: [&str; 3] = ["curl", "Wget", "Mozilla/5.0"];

/// Whether answers are to be indented: if the query does not say, for people.
pub fn is_wanted(headers: &HeaderMap, query: &Query) -> bool {
    if query.get("pretty").is_some() {
        return query.flag("pretty");
    }
    let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    READ_BY_PEOPLE.iter().any(|name| agent.starts_with(name))
}

/// The JSON in `parts`, which is valid, with a line for each member and element; `None` if it is too long.
pub fn indent(parts: &[Bytes]) -> Option<Bytes> {
    let len = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
    if len > INDENTED_LEN_MAX {
        return None;
    }
    let mut writer = Writer { out: BytesMut::with_capacity(len.saturating_mul(2)), depth: 0 };
    let mut text = Text::Outside;
    // Whether a bracket was opened and nothing has followed it.
    let mut is_open = false;
    for byte in parts.iter().flat_map(|part| part.iter().copied()) {
        if text != Text::Outside {
            text = text.after(byte);
            writer.out.put_u8(byte);
            continue;
        }
        if byte.is_ascii_whitespace() {
            continue;
        }
        if std::mem::take(&mut is_open) && !matches!(byte, b'}' | b']') {
            writer.line();
        }
        match byte {
            b'{' | b'[' => {
                writer.out.put_u8(byte);
                writer.depth = writer.depth.saturating_add(1);
                is_open = true;
            }
            b'}' | b']' => writer.close(byte),
            b',' => {
                writer.out.put_u8(byte);
                writer.line();
            }
            b':' => writer.out.put_slice(b": "),
            b'"' => {
                writer.out.put_u8(byte);
                text = Text::Inside;
            }
            _ => writer.out.put_u8(byte),
        }
    }
    Some(writer.out.freeze())
}

/// Where a byte is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Text {
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

impl Text {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Inside, b'"') => Self::Outside,
            (Self::Inside, b'\\') => Self::Escaped,
            _ => Self::Inside,
        }
    }
}

struct Writer {
    out: BytesMut,
    depth: usize,
}

impl Writer {
    fn line(&mut self) {
        self.out.put_u8(b'\n');
        self.out.put_bytes(b' ', self.depth.saturating_mul(STEP));
    }

    /// Closes a bracket; an empty pair stays on one line.
    fn close(&mut self, bracket: u8) {
        let opening = if bracket == b'}' { b'{' } else { b'[' };
        self.depth = self.depth.saturating_sub(1);
        if self.out.last() != Some(&opening) {
            self.line();
        }
        self.out.put_u8(bracket);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn indented(value: &Value) -> String {
        let text = value.to_string();
        let (first, second) = text.split_at(text.floor_char_boundary(text.len() / 2));
        let parts = [first, second].map(|part| Bytes::copy_from_slice(part.as_bytes()));
        String::from_utf8(indent(&parts).unwrap().to_vec()).unwrap()
    }

    #[test]
    fn members_and_elements_have_lines() {
        for value in [
            json!({"a": [1, {"b": []}, {}], "c{": "x\\\"}],:\n", "d": null}),
            json!([]),
            json!("[1,2]"),
            json!([[["{"]]]),
        ] {
            assert_eq!(indented(&value), serde_json::to_string_pretty(&value).unwrap());
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..5)
                    .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn indented_json_is_that_of_serde_json(value in values()) {
            prop_assert_eq!(indented(&value), serde_json::to_string_pretty(&value).unwrap());
        }
    }

    #[test]
    fn long_bodies_are_not_indented() {
        let long = Bytes::from(vec![b' '; INDENTED_LEN_MAX]);
        assert!(indent(std::slice::from_ref(&long)).is_some());
        assert!(indent(&[long, Bytes::from_static(b"1")]).is_none());
    }
}
