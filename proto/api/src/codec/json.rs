//! JSON of fields, lists, maps and messages, over `serde`, so that one set of rules serves every
//! reader and writer.

use super::{Field, Object};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Writes a field, also when it is empty.
pub(crate) fn write_always<T: Field, M: SerializeMap>(
    map: &mut M,
    name: &'static str,
    value: &T,
) -> Result<(), M::Error> {
    map.serialize_entry(name, &Written(value))
}

/// Writes a field with `omitempty`.
pub(crate) fn write_non_empty<T: Field, M: SerializeMap>(
    map: &mut M,
    name: &'static str,
    value: &T,
) -> Result<(), M::Error> {
    if value.is_empty() { Ok(()) } else { write_always(map, name, value) }
}

/// Reads the value of the key that was just read; `null` is the empty value. Errors have the path: `spec.ports[1].port: invalid type ...`.
pub(crate) fn read<'de, T: Field, A: MapAccess<'de>>(
    map: &mut A,
    name: &str,
) -> Result<T, A::Error> {
    map.next_value_seed(Nullable(PhantomData)).map_err(|error| within(error, name))
}

/// Reads one value at the top level; `null` is the empty value.
pub(crate) fn read_value<'de, T: Field, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Nullable(PhantomData).deserialize(from).map_err(unmarked)
}

/// Reads one object at the top level.
pub(crate) fn read_whole<'de, T: Object, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    read_object(from).map_err(unmarked)
}

pub(crate) fn write_object<T: Object, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(None)?;
    value.write_fields(&mut map)?;
    map.end()
}

pub(crate) fn read_object<'de, T: Object, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    from.deserialize_map(ObjectVisitor(PhantomData))
}

pub(super) fn write_list<T: Field, S: Serializer>(list: &[T], to: S) -> Result<S::Ok, S::Error> {
    let mut seq = to.serialize_seq(Some(list.len()))?;
    for value in list {
        seq.serialize_element(&Written(value))?;
    }
    seq.end()
}

pub(super) fn read_list<'de, T: Field, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(ListVisitor(PhantomData))
}

pub(super) fn write_map<T: Field, S: Serializer>(
    values: &BTreeMap<String, T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(values.len()))?;
    for (key, value) in values {
        map.serialize_entry(key, &Written(value))?;
    }
    map.end()
}

pub(super) fn read_map<'de, T: Field, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    from.deserialize_map(MapVisitor(PhantomData))
}

pub(super) fn read_string<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from)
}

pub(super) fn read_bool<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    bool::deserialize(from)
}

/// Reads an integer; a number written with an empty fraction (`1.0`) is one.
pub(super) fn read_int<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    let value = from.deserialize_any(IntVisitor)?;
    T::try_from(value).map_err(|_| D::Error::custom(format_args!("{value} is out of range")))
}

pub(super) fn write_bytes<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&BASE64.encode(bytes))
}

/// Reads standard base64 with padding; line breaks within it are skipped.
pub(super) fn read_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let mut text = String::deserialize(from)?;
    text.retain(|c| c != '\n' && c != '\r');
    BASE64.decode(&text).map_err(|error| D::Error::custom(format_args!("not base64: {error}")))
}

/// Prepends a step to the path of an error.
///
/// Custom errors of `serde` are texts; the mark separates the path from the message.
fn within<E: serde::de::Error>(error: E, step: &str) -> E {
    let text = error.to_string();
    match text.strip_prefix(PATH) {
        Some(rest) if rest.starts_with('[') => E::custom(format_args!("{PATH}{step}{rest}")),
        Some(rest) => E::custom(format_args!("{PATH}{step}.{rest}")),
        None => E::custom(format_args!("{PATH}{step}: {text}")),
    }
}

/// Removes the mark from the text of a finished error.
pub(crate) fn unmarked<E: serde::de::Error>(error: E) -> E {
    match error.to_string().strip_prefix(PATH) {
        Some(text) => E::custom(text),
        None => error,
    }
}

/// Precedes the path in the text of an error that is not finished.
const PATH: char = '\u{1}';

/// A key of a JSON object, borrowed where the reader allows.
pub(crate) struct JsonKey<'de>(pub(crate) Cow<'de, str>);

impl<'de> Deserialize<'de> for JsonKey<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = JsonKey<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<JsonKey<'de>, E> {
                Ok(JsonKey(Cow::Owned(name.to_owned())))
            }
        }
        from.deserialize_identifier(KeyVisitor)
    }
}

/// Passes a field to a serializer.
pub(crate) struct Written<'a, T>(pub(crate) &'a T);

impl<T: Field> Serialize for Written<'_, T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write_json(to)
    }
}

/// Reads a field, or `null`.
struct Nullable<T>(PhantomData<T>);

impl<'de, T: Field> DeserializeSeed<'de> for Nullable<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_option(self)
    }
}

impl<'de, T: Field> Visitor<'de> for Nullable<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value or null")
    }

    fn visit_none<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::default())
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        T::read_json(from)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Object> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "an object of type {}", T::NAME)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut value = T::default();
        while let Some(JsonKey(name)) = map.next_key()? {
            if !value.read_field(&name, &mut map)? {
                map.next_value::<serde::de::IgnoredAny>()?;
            }
        }
        Ok(value)
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Field> Visitor<'de> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        loop {
            let next = seq.next_element_seed(Nullable(PhantomData));
            match next.map_err(|error| within(error, &format!("[{}]", list.len())))? {
                Some(value) => list.push(value),
                None => return Ok(list),
            }
        }
    }
}

struct MapVisitor<T>(PhantomData<T>);

impl<'de, T: Field> Visitor<'de> for MapVisitor<T> {
    type Value = BTreeMap<String, T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = read(&mut map, &key)?;
            values.insert(key, value);
        }
        Ok(values)
    }
}

struct IntVisitor;

impl Visitor<'_> for IntVisitor {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E>(self, value: i64) -> Result<i64, E> {
        Ok(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<i64, E> {
        i64::try_from(value).map_err(|_| E::custom(format_args!("{value} is out of range")))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<i64, E> {
        // 2^63 as a float is exact; every whole number below it converts exactly.
        let in_range = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
        if value.fract() == 0.0 && in_range {
            #[allow(clippy::cast_possible_truncation, reason = "the range was checked")]
            Ok(value as i64)
        } else {
            Err(E::custom(format_args!("{value} is not an integer")))
        }
    }
}
