//! Where the API's Protobuf differs from `prost`'s: maps always write key and value, and packed lists are read but never written.

use super::Field;
use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, encode_key, encode_varint, key_len};
use prost::encoding::{encoded_len_varint, string};
use std::collections::BTreeMap;

/// Merges one field of a message; an error names both.
pub(crate) fn merge<T: Field>(
    field: &mut T,
    wire: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
    message: &'static str,
    name: &'static str,
) -> Result<(), DecodeError> {
    field.merge_field(wire, buf, ctx).map_err(|mut error| {
        error.push(message, name);
        error
    })
}

/// Reads a list of scalars that share one length-delimited field.
pub(super) fn merge_packed<T: Field>(
    list: &mut Vec<T>,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    prost::encoding::merge_loop(list, buf, ctx, |list, buf, ctx| {
        let mut value = T::default();
        value.merge_field(WireType::Varint, buf, ctx)?;
        list.push(value);
        Ok(())
    })
}

/// Writes one entry message a key, in the order of the keys' bytes.
pub(super) fn encode_map<T: Field>(map: &BTreeMap<String, T>, tag: u32, buf: &mut impl BufMut) {
    for (key, value) in map {
        encode_key(tag, WireType::LengthDelimited, buf);
        encode_varint(entry_len(key, value) as u64, buf);
        string::encode(1, key, buf);
        if value.field_len(2) == 0 {
            empty_value(buf);
        } else {
            value.encode_field(2, buf);
        }
    }
}

/// The length in bytes of what [`encode_map`] writes.
pub(super) fn map_len<T: Field>(map: &BTreeMap<String, T>, tag: u32) -> usize {
    map.iter()
        .map(|(key, value)| {
            let entry = entry_len(key, value);
            key_len(tag).saturating_add(encoded_len_varint(entry as u64)).saturating_add(entry)
        })
        .sum()
}

/// Reads one entry; a later entry with the same key replaces an earlier one.
pub(super) fn merge_map<T: Field>(
    map: &mut BTreeMap<String, T>,
    wire: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    prost::encoding::check_wire_type(WireType::LengthDelimited, wire)?;
    let mut entry = (String::new(), T::default());
    prost::encoding::merge_loop(&mut entry, buf, ctx, |entry, buf, ctx| {
        let (tag, wire) = prost::encoding::decode_key(buf)?;
        match tag {
            1 => string::merge(wire, &mut entry.0, buf, ctx),
            2 => entry.1.merge_field(wire, buf, ctx),
            _ => prost::encoding::skip_field(wire, tag, buf, ctx),
        }
    })?;
    map.insert(entry.0, entry.1);
    Ok(())
}

fn entry_len<T: Field>(key: &String, value: &T) -> usize {
    let value_len = value.field_len(2);
    let value_len = if value_len == 0 { EMPTY_VALUE_LEN } else { value_len };
    string::encoded_len(1, key).saturating_add(value_len)
}

/// Empty bytes are not written, except in a map.
fn empty_value(buf: &mut impl BufMut) {
    encode_key(2, WireType::LengthDelimited, buf);
    encode_varint(0, buf);
}

const EMPTY_VALUE_LEN: usize = 2;
