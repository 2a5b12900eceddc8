//! Embedded JSON and named string lists: values whose JSON is simpler than their Protobuf message.

use crate::codec::{Field, protobuf_by_message, serde_by_field};
use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// JSON that is passed through without decoding: an embedded object, or the field set of managed fields.
///
/// In JSON it is the text itself; in Protobuf a message with the text as field 1. Empty is `null` in JSON and an empty message in Protobuf. Bytes from
/// Protobuf that are not JSON are kept, and cannot be written as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawJson {
    /// The text.
    pub raw: Vec<u8>,
}

/// A list of strings that is a message in Protobuf (field 1, repeated) and a plain list in JSON: the values of an extra attribute of a user, the verbs of
/// a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringList(pub Vec<String>);

impl RawJson {
    /// The value as JSON text.
    ///
    /// # Errors
    /// When `value` cannot be written as JSON.
    pub fn from_value<T: Serialize>(value: &T) -> Result<RawJson, serde_json::Error> {
        Ok(RawJson { raw: serde_json::to_vec(value)? })
    }

    /// Reads the text as a `T`.
    ///
    /// # Errors
    /// When the text is not JSON or not a `T`.
    pub fn parse<T: for<'a> Deserialize<'a>>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(if self.raw.is_empty() { b"null" } else { &self.raw })
    }
}

impl Field for RawJson {
    fn is_empty(&self) -> bool {
        false
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        use serde::ser::Error as _;
        if self.raw.is_empty() {
            return to.serialize_unit();
        }
        let raw: &serde_json::value::RawValue =
            serde_json::from_slice(&self.raw).map_err(S::Error::custom)?;
        raw.serialize(to)
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<serde_json::value::RawValue>::deserialize(from)?;
        // The text is kept without white space: objects are stored and compared in compact form.
        Ok(RawJson { raw: compact(raw.get()) })
    }

    protobuf_by_message!();
}

impl prost::Message for RawJson {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.raw.encode_field(1, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => Field::merge_field(&mut self.raw, wire, buf, ctx),
            _ => prost::encoding::skip_field(wire, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.raw.field_len(1)
    }

    fn clear(&mut self) {
        self.raw.clear();
    }
}

serde_by_field!(RawJson);

/// Removes white space between tokens; everything else stays byte for byte.
fn compact(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for byte in text.bytes() {
        if in_string {
            in_string = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
        } else if byte.is_ascii_whitespace() {
            continue;
        } else {
            in_string = byte == b'"';
        }
        out.push(byte);
    }
    out
}

impl Field for StringList {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.write_json(to)
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Vec::read_json(from).map(StringList)
    }

    protobuf_by_message!();
}

impl prost::Message for StringList {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encode_field(1, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => Field::merge_field(&mut self.0, wire, buf, ctx),
            _ => prost::encoding::skip_field(wire, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.0.field_len(1)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

serde_by_field!(StringList);
