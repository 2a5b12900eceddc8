//! Parses and writes JSON by the rules of Kubernetes' JSON codec.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Allowance, ENTRY, ITEM, Key, Map, Path, ROOM, TEXT, TooLarge, Value};

/// Why a text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// It is not JSON or is nested more than 128 levels deep.
    #[error("{0}")]
    Malformed(String),
    /// It has too many values.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Parses one JSON document. Keys keep their order; of duplicate keys the last value wins and the path is added to `duplicates`. Nothing
/// bounds the number of values: it is for texts that are stored or short.
pub fn parse_json(text: &[u8], duplicates: &mut Vec<String>) -> Result<Value, ParseError> {
    let reading = Reading { duplicates: RefCell::default(), allowance: Allowance::unbounded() };
    let parsed = parse_json_within(text, &reading);
    duplicates.append(&mut reading.duplicates.into_inner());
    parsed
}

/// Parses one JSON document that may weigh as much as `reading` allows.
pub(crate) fn parse_json_within(text: &[u8], reading: &Reading) -> Result<Value, ParseError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let seed = TreeSeed { path: Path::ROOT, reading };
    let parsed = seed.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    parsed.map_err(|error| match reading.allowance.is_exceeded() {
        true => TooLarge::Values.into(),
        false => ParseError::Malformed(error.to_string()),
    })
}

/// What is noted while a document is read.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Paths of fields that came before.
    pub(crate) duplicates: RefCell<Vec<String>>,
    /// What the document may still weigh.
    pub(crate) allowance: Allowance,
}

impl Reading {
    /// The reading of a request's body.
    pub(crate) fn of_body() -> Self {
        Reading { duplicates: RefCell::default(), allowance: Allowance::of_body() }
    }

    fn take<E: de::Error>(&self, weight: usize) -> Result<(), E> {
        self.allowance.take(weight).map_err(E::custom)
    }
}

/// Builds a tree from any self-describing format and records duplicate keys.
pub(crate) struct TreeSeed<'a> {
    pub(crate) path: Path<'a>,
    pub(crate) reading: &'a Reading,
}

impl<'de> DeserializeSeed<'de> for TreeSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Int(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(i64::try_from(number).map_or(Value::Float(number as f64), Value::Int))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Float(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        self.reading.take::<E>(if text.is_empty() { 0 } else { TEXT })?;
        Ok(Value::from(text))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Value, E> {
        self.reading.take::<E>(if text.is_empty() { 0 } else { TEXT })?;
        Ok(Value::from(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = self.path.index(list.len());
            let seed = TreeSeed { path, reading: self.reading };
            match items.next_element_seed(seed)? {
                Some(item) => {
                    self.reading.take::<A::Error>(ITEM)?;
                    list.push(item);
                }
                None => return Ok(Value::List(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut list: Vec<(Key, Value)> = Vec::new();
        while let Some(key) = entries.next_key_seed(KeySeed)? {
            self.reading.take::<A::Error>(if list.is_empty() { ROOM + ENTRY } else { ENTRY })?;
            let path = self.path.field(&key);
            let seed = TreeSeed { path, reading: self.reading };
            let value = entries.next_value_seed(seed)?;
            list.push((Key::Owned(key), value));
        }
        Ok(Value::Map(self.unique(list)))
    }
}

/// Deserializes a key as text; YAML allows numbers and booleans as keys.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<String, E> {
        Ok(flag.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(proto_api::yaml::float_key(number))
    }
}

/// Most duplicate fields of a document that are named.
const DUPLICATES_MAX: usize = 100;

impl TreeSeed<'_> {
    /// The map of `entries`; of duplicate keys the last value stays in the first position, and the key is recorded.
    fn unique(&self, entries: Vec<(Key, Value)>) -> Map {
        if entries.is_sorted_by(|a, b| a.0 < b.0) {
            return Map::from_ordered(entries);
        }
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_unstable_by_key(|&at| (&entries[at].0, at));
        if order.windows(2).all(|pair| entries[pair[0]].0 != entries[pair[1]].0) {
            return Map::from_ordered(entries);
        }
        let mut replaced_by = vec![None; entries.len()];
        for run in order.chunk_by(|&a, &b| entries[a].0 == entries[b].0) {
            if let [first, .., last] = *run {
                let mut duplicates = self.reading.duplicates.borrow_mut();
                if duplicates.len() < DUPLICATES_MAX {
                    duplicates.push(self.path.field(&entries[first].0).to_string());
                }
                run.iter().for_each(|&at| replaced_by[at] = Some((first, last)));
            }
        }
        let mut slots: Vec<Option<(Key, Value)>> = entries.into_iter().map(Some).collect();
        let mut kept = Vec::with_capacity(slots.len());
        for at in 0..slots.len() {
            match replaced_by[at] {
                None => kept.extend(slots[at].take()),
                Some((first, last)) if first == at => kept.extend(slots[last].take()),
                Some(_) => {}
            }
        }
        Map::from_ordered(kept)
    }
}

/// Writes `value` as compact JSON, keys in the map's order.
pub fn write_json(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(number) => write_int(out, *number),
        Value::Float(number) => write_float(out, *number),
        Value::String(text) => write_json_string(out, text),
        Value::Json(text) => out.extend_from_slice(text.as_bytes()),
        Value::List(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_json(out, item);
            }
            out.push(b']');
        }
        Value::Map(map) => {
            out.push(b'{');
            for (at, (key, item)) in map.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_json_string(out, key);
                out.push(b':');
                write_json(out, item);
            }
            out.push(b'}');
        }
    }
}

/// Writes a decimal integer.
fn write_int(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at = at.saturating_sub(1);
        digits[at] = b'0' | (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes a float the way Go does: shortest digits, an exponent only below 1e-6 and from 1e21 on.
fn write_float(out: &mut Vec<u8>, number: f64) {
    let size = number.abs();
    let text = if !number.is_finite() {
        "null".to_owned() // JSON has no such number and no decoder here makes one
    } else if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        if size >= 1e21 { text.replace('e', "e+") } else { text }
    } else {
        number.to_string()
    };
    out.extend_from_slice(text.as_bytes());
}

/// Writes a JSON string. `<`, `>`, `&`, U+2028 and U+2029 are escaped, as in kube-apiserver.
pub fn write_json_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut done = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let plain = byte >= 0x20 && !matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2);
        if plain {
            continue;
        }
        let separator = match bytes.get(at..at.saturating_add(3)) {
            Some([0xe2, 0x80, last @ (0xa8 | 0xa9)]) => Some(*last),
            _ => None,
        };
        if byte == 0xe2 && separator.is_none() {
            continue;
        }
        out.extend_from_slice(&bytes[done..at]);
        done = at.saturating_add(if separator.is_some() { 3 } else { 1 });
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0xe2 if separator == Some(0xa8) => out.extend_from_slice(b"\\u2028"),
            0xe2 => out.extend_from_slice(b"\\u2029"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
        }
    }
    out.extend_from_slice(&bytes[done..]);
    out.push(b'"');
}
