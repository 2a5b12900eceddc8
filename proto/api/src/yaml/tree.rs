//! A value of YAML whose keys have types, as JSON, whose keys are texts.

use std::fmt;

use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value whose keys became texts as in Kubernetes.
pub(super) struct Tree(Value);

impl Tree {
    pub(super) fn into_value(self) -> Value {
        self.0
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Tree)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        // JSON has no infinity.
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(KeyVisitor)? {
            // The parser compares keys as they are written: `n` and `no` are one.
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("duplicate key {key:?}")));
            }
            let Tree(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Reads a key of any scalar type as text.
struct KeyVisitor;

impl<'de> DeserializeSeed<'de> for KeyVisitor {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for KeyVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key that is a text, a number or a boolean")
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

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        let small = i64::try_from(number);
        small.map(|number| number.to_string()).map_err(|_| {
            E::custom(format_args!(
                "the key {number} is too large: keys are numbers of 64 bits with a sign"
            ))
        })
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(float_key(number))
    }
}

/// The shortest text of a number of 32 bits, with an exponent of at least two digits where it is less than -4 or more than 5: what Go writes as `%g`.
#[must_use]
pub fn float_key(number: f64) -> String {
    let number = number as f32;
    if number.is_nan() {
        return ".nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..=5).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_by_go() {
        for (number, text) in [
            (1.1, "1.1"),
            (1000.0, "1000"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (1e21, "1e+21"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-10, "-1.5e-10"),
            (0.0, "0"),
            (0.1 + 0.2, "0.3"),
            (1e300, ".inf"),
            (f64::NAN, ".nan"),
        ] {
            assert_eq!(float_key(number), text);
        }
    }
}
