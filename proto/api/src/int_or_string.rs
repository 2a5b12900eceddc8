//! A field that holds a number or a name: a port, a percentage.

use crate::codec::{Field, encode_as, serde_by_field};
use prost::DecodeError;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType};
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

/// A 32-bit integer or a string; in JSON a number or a string.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// A name, or a percentage such as `25%`.
    String(String),
}

impl IntOrString {
    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i32> {
        match self {
            IntOrString::Int(value) => Some(*value),
            IntOrString::String(_) => None,
        }
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            IntOrString::Int(_) => None,
            IntOrString::String(value) => Some(value),
        }
    }
}

impl Default for IntOrString {
    fn default() -> Self {
        IntOrString::Int(0)
    }
}

impl From<i32> for IntOrString {
    fn from(value: i32) -> Self {
        IntOrString::Int(value)
    }
}

impl From<&str> for IntOrString {
    fn from(value: &str) -> Self {
        IntOrString::String(value.to_owned())
    }
}

impl fmt::Display for IntOrString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IntOrString::Int(value) => value.fmt(f),
            IntOrString::String(value) => value.fmt(f),
        }
    }
}

/// The message on the wire: all three fields are always written.
#[derive(Clone, PartialEq, prost::Message)]
struct Wire {
    #[prost(int64, required, tag = "1")]
    kind: i64,
    #[prost(int32, required, tag = "2")]
    int: i32,
    #[prost(string, required, tag = "3")]
    string: String,
}

const KIND_INT: i64 = 0;
const KIND_STRING: i64 = 1;

impl From<&IntOrString> for Wire {
    fn from(value: &IntOrString) -> Wire {
        match value {
            IntOrString::Int(int) => Wire { kind: KIND_INT, int: *int, string: String::new() },
            IntOrString::String(s) => Wire { kind: KIND_STRING, int: 0, string: s.clone() },
        }
    }
}

impl Field for IntOrString {
    fn is_empty(&self) -> bool {
        false
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            IntOrString::Int(value) => to.serialize_i32(*value),
            IntOrString::String(value) => to.serialize_str(value),
        }
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IntOrStringVisitor)
    }

    encode_as!(Wire);

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut value = Wire::from(&*self);
        prost::encoding::message::merge(wire, &mut value, buf, ctx)?;
        *self = match value.kind {
            KIND_STRING => IntOrString::String(value.string),
            _ => IntOrString::Int(value.int),
        };
        Ok(())
    }
}

serde_by_field!(IntOrString);

struct IntOrStringVisitor;

impl Visitor<'_> for IntOrStringVisitor {
    type Value = IntOrString;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an integer or a string")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<IntOrString, E> {
        let out_of_range = |_| E::custom(format_args!("{value} is out of range for int32"));
        i32::try_from(value).map(IntOrString::Int).map_err(out_of_range)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<IntOrString, E> {
        let out_of_range = |_| E::custom(format_args!("{value} is out of range for int32"));
        i32::try_from(value).map(IntOrString::Int).map_err(out_of_range)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<IntOrString, E> {
        if value.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&value) {
            #[allow(clippy::cast_possible_truncation, reason = "the range was checked")]
            Ok(IntOrString::Int(value as i32))
        } else {
            Err(E::custom(format_args!("{value} is not an integer")))
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<IntOrString, E> {
        Ok(IntOrString::from(value))
    }
}
