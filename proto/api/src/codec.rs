//! How one field of an API message is written and read, in JSON and in Protobuf.
//!
//! The generated messages call one function a field; the rules live here, once:
//!
//! | | JSON | Protobuf |
//! |---|---|---|
//! | plain scalar | left out when empty and `omitempty`, else written | always written |
//! | plain message | always written | always written |
//! | `Option` | left out when `None` | left out when `None` |
//! | list | empty: left out, or `null` without `omitempty` | one field an element, never packed |
//! | map | keys sorted | one entry a key, keys sorted, key and value always written |
//! | bytes | base64 | left out when empty, except as the value of a map |
//!
//! Reading JSON, `null` is the same as absence, unknown fields are ignored (the server's engine is
//! where they are found), names are compared exactly, and a number with an empty fraction is an integer.

pub mod json;
pub mod protobuf;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};
use serde::de::MapAccess;
use serde::ser::SerializeMap;
use serde::{Deserializer, Serializer};
use std::collections::BTreeMap;

/// What a generated message adds to [`prost::Message`]: its JSON fields, so that an inlined message
/// can write and read its fields in the object of its owner.
pub trait Object: Message + Default {
    /// The message's name, for errors.
    const NAME: &'static str;

    /// Writes the fields of JSON, in the order of declaration.
    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error>;

    /// Reads the value of `key` from `map`; `false` if there is no such field.
    fn read_field<'de, A: MapAccess<'de>>(
        &mut self,
        key: &str,
        map: &mut A,
    ) -> Result<bool, A::Error>;
}

/// A value of a field.
pub trait Field: Default {
    /// Whether several values may share one length-delimited field when read (they are never
    /// written so).
    const PACKABLE: bool = false;

    /// Whether `omitempty` leaves the value out.
    fn is_empty(&self) -> bool;

    /// Writes the value as JSON.
    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    /// Reads the value from JSON that is not `null`.
    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;

    /// Writes the whole Protobuf field or fields with number `tag`.
    fn encode_field(&self, tag: u32, buf: &mut impl BufMut);

    /// The length in bytes of what [`Field::encode_field`] writes.
    fn field_len(&self, tag: u32) -> usize;

    /// Merges one occurrence of the Protobuf field.
    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError>;
}

/// A list in JSON is an array; in Protobuf, a repeated field.
impl<T: Field> Field for Vec<T> {
    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.is_empty() { to.serialize_unit() } else { json::write_list(self, to) }
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        json::read_list(from)
    }

    fn encode_field(&self, tag: u32, buf: &mut impl BufMut) {
        for value in self {
            value.encode_field(tag, buf);
        }
    }

    fn field_len(&self, tag: u32) -> usize {
        self.iter().map(|value| value.field_len(tag)).sum()
    }

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if T::PACKABLE && wire == WireType::LengthDelimited {
            return protobuf::merge_packed(self, buf, ctx);
        }
        let mut value = T::default();
        value.merge_field(wire, buf, ctx)?;
        self.push(value);
        Ok(())
    }
}

/// A map in JSON is an object; in Protobuf, one entry message a key.
impl<T: Field> Field for BTreeMap<String, T> {
    fn is_empty(&self) -> bool {
        BTreeMap::is_empty(self)
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if Field::is_empty(self) { to.serialize_unit() } else { json::write_map(self, to) }
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        json::read_map(from)
    }

    fn encode_field(&self, tag: u32, buf: &mut impl BufMut) {
        protobuf::encode_map(self, tag, buf);
    }

    fn field_len(&self, tag: u32) -> usize {
        protobuf::map_len(self, tag)
    }

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        protobuf::merge_map(self, wire, buf, ctx)
    }
}

/// A field whose absence differs from its empty value.
impl<T: Field> Field for Option<T> {
    fn is_empty(&self) -> bool {
        self.is_none()
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => value.write_json(to),
            None => to.serialize_unit(),
        }
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read_json(from).map(Some)
    }

    fn encode_field(&self, tag: u32, buf: &mut impl BufMut) {
        if let Some(value) = self {
            value.encode_field(tag, buf);
        }
    }

    fn field_len(&self, tag: u32) -> usize {
        self.as_ref().map_or(0, |value| value.field_len(tag))
    }

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        self.get_or_insert_with(T::default).merge_field(wire, buf, ctx)
    }
}

/// A large and rare message is kept behind a pointer.
impl<T: Object> Object for Box<T> {
    const NAME: &'static str = T::NAME;

    fn write_fields<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        (**self).write_fields(map)
    }

    fn read_field<'de, A: MapAccess<'de>>(
        &mut self,
        key: &str,
        map: &mut A,
    ) -> Result<bool, A::Error> {
        (**self).read_field(key, map)
    }
}

/// The Protobuf methods of [`Field`] for a type that is a [`prost::Message`].
macro_rules! protobuf_by_message {
    () => {
        fn encode_field(&self, tag: u32, buf: &mut impl prost::bytes::BufMut) {
            prost::encoding::message::encode(tag, self, buf);
        }

        fn field_len(&self, tag: u32) -> usize {
            prost::encoding::message::encoded_len(tag, self)
        }

        fn merge_field(
            &mut self,
            wire: prost::encoding::WireType,
            buf: &mut impl prost::bytes::Buf,
            ctx: prost::encoding::DecodeContext,
        ) -> Result<(), prost::DecodeError> {
            prost::encoding::message::merge(wire, self, buf, ctx)
        }
    };
}
pub(crate) use protobuf_by_message;

/// The writing Protobuf methods of [`Field`] for a type that is written as the message `$wire`.
macro_rules! encode_as {
    ($wire:ty) => {
        fn encode_field(&self, tag: u32, buf: &mut impl prost::bytes::BufMut) {
            prost::encoding::message::encode(tag, &<$wire>::from(self), buf);
        }

        fn field_len(&self, tag: u32) -> usize {
            prost::encoding::message::encoded_len(tag, &<$wire>::from(self))
        }
    };
}
pub(crate) use encode_as;

/// A message in a field: never left out when plain.
impl<T: Object> Field for T {
    fn is_empty(&self) -> bool {
        false
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json::write_object(self, to)
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        json::read_object(from)
    }

    protobuf_by_message!();
}

/// The scalars whose Protobuf form `prost` knows.
macro_rules! scalar {
    ($ty:ty, $prost:ident, packable: $packable:literal, empty: $empty:expr, write: $write:expr, read: $read:expr) => {
        impl Field for $ty {
            const PACKABLE: bool = $packable;

            fn is_empty(&self) -> bool {
                $empty(self)
            }

            fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $write(self, to)
            }

            fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $read(from)
            }

            fn encode_field(&self, tag: u32, buf: &mut impl BufMut) {
                prost::encoding::$prost::encode(tag, self, buf);
            }

            fn field_len(&self, tag: u32) -> usize {
                prost::encoding::$prost::encoded_len(tag, self)
            }

            fn merge_field(
                &mut self,
                wire: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                prost::encoding::$prost::merge(wire, self, buf, ctx)
            }
        }
    };
}

scalar!(String, string, packable: false, empty: String::is_empty,
    write: |v: &String, to: S| to.serialize_str(v), read: json::read_string);
scalar!(bool, bool, packable: true, empty: |v: &bool| !v,
    write: |v: &bool, to: S| to.serialize_bool(*v), read: json::read_bool);
scalar!(i32, int32, packable: true, empty: |v: &i32| *v == 0,
    write: |v: &i32, to: S| to.serialize_i32(*v), read: json::read_int);
scalar!(i64, int64, packable: true, empty: |v: &i64| *v == 0,
    write: |v: &i64, to: S| to.serialize_i64(*v), read: json::read_int);

/// Bytes: base64 in JSON. An empty value is written only where [`protobuf`] says so (map entries).
impl Field for Vec<u8> {
    fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    fn write_json<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json::write_bytes(self, to)
    }

    fn read_json<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        json::read_bytes(from)
    }

    fn encode_field(&self, tag: u32, buf: &mut impl BufMut) {
        if !self.as_slice().is_empty() {
            prost::encoding::bytes::encode(tag, self, buf);
        }
    }

    fn field_len(&self, tag: u32) -> usize {
        if self.as_slice().is_empty() { 0 } else { prost::encoding::bytes::encoded_len(tag, self) }
    }

    fn merge_field(
        &mut self,
        wire: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        prost::encoding::bytes::merge(wire, self, buf, ctx)
    }
}

/// `Serialize` and `Deserialize` by way of [`Object`].
macro_rules! serde_by_object {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::codec::json::write_object(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::codec::json::read_whole(from)
            }
        }
    };
}
pub(crate) use serde_by_object;

/// `Serialize` and `Deserialize` by way of [`Field`].
macro_rules! serde_by_field {
    ($name:ident) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::codec::Field::write_json(self, to)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::codec::json::read_value(from)
            }
        }
    };
}
pub(crate) use serde_by_field;

#[cfg(test)]
mod tests;
