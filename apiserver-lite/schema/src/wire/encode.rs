//! Encodes a tree as Protobuf.

use crate::scalar;
use crate::shape::{Field, Presence, Shape, ShapeId, Shapes, Slot, Type};
use crate::shape_check::fits;
use crate::value::{Map, Value, write_json};

/// Appends the fields of message `map` of `shape`.
pub(crate) fn encode_message(out: &mut Vec<u8>, shapes: &Shapes, shape: ShapeId, map: &Map) {
    let shape = shapes.get(shape);
    for wire in &shape.wire {
        match wire.slot {
            Slot::Inline(inlined) => {
                put_nested(out, wire.number, |out| encode_message(out, shapes, inlined, map));
            }
            Slot::Field(at) => {
                let field = &shape.fields[usize::from(at)];
                encode_field(out, shapes, wire.number, field, map.get(&field.name));
            }
        }
    }
}

fn encode_field(
    out: &mut Vec<u8>,
    shapes: &Shapes,
    number: u32,
    field: &Field,
    value: Option<&Value>,
) {
    match (&field.ty, value) {
        (Type::List(item), Some(Value::List(items))) => {
            items.iter().for_each(|value| encode_value(out, shapes, number, item, value));
        }
        (Type::Map(item), Some(Value::Map(map))) => {
            for (key, value) in map.iter_sorted() {
                put_nested(out, number, |out| {
                    put_bytes(out, 1, key.as_bytes());
                    encode_value(out, shapes, 2, item, value);
                });
            }
        }
        (Type::List(_) | Type::Map(_) | Type::Bytes, None) => {}
        (_, None) if field.presence == Presence::Optional => {}
        (ty, Some(value)) => encode_value(out, shapes, number, ty, value),
        (ty, None) => encode_value(out, shapes, number, ty, &crate::shape_check::zero(ty)),
    }
}

/// Appends one value as field `number`. A value of the wrong type is written as zero.
fn encode_value(out: &mut Vec<u8>, shapes: &Shapes, number: u32, ty: &Type, value: &Value) {
    match ty {
        Type::Bool => put_number(out, number, i64::from(value.as_bool().unwrap_or(false))),
        Type::Int32 | Type::Int64 => put_number(out, number, value.as_int().unwrap_or(0)),
        Type::Double => {
            put_key(out, number, 1);
            let value = match value {
                Value::Float(value) => *value,
                value => value.as_int().unwrap_or(0) as f64,
            };
            out.extend_from_slice(&value.to_le_bytes());
        }
        Type::String => put_bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Type::Bytes => put_bytes(out, number, &scalar::bytes_of(value)),
        Type::Time | Type::MicroTime => put_nested(out, number, |out| {
            if let Some((seconds, nanos)) = scalar::instant_of(value) {
                put_number(out, 1, seconds);
                put_number(out, 2, i64::from(nanos));
            }
        }),
        Type::Duration => {
            put_nested(out, number, |out| put_number(out, 1, scalar::nanos_of(value)))
        }
        Type::Quantity => put_nested(out, number, |out| {
            put_bytes(out, 1, value.as_str().unwrap_or("0").as_bytes());
        }),
        Type::IntOrString => put_nested(out, number, |out| {
            let text = value.as_str();
            put_number(out, 1, i64::from(text.is_some()));
            put_number(out, 2, value.as_int().unwrap_or(0));
            put_bytes(out, 3, text.unwrap_or_default().as_bytes());
        }),
        Type::Raw | Type::FieldSet => put_nested(out, number, |out| {
            if *value != Value::Null {
                put_nested(out, 1, |out| write_json(out, value));
            }
        }),
        Type::Union(shape) => {
            put_nested(out, number, |out| encode_union(out, shapes, shapes.get(*shape), value));
        }
        Type::Message(shape) => {
            let empty = Map::new();
            let map = value.as_map().unwrap_or(&empty);
            put_nested(out, number, |out| encode_message(out, shapes, *shape, map));
        }
        Type::WrappedList(item) => put_nested(out, number, |out| {
            let items = value.as_list().unwrap_or_default();
            items.iter().for_each(|value| encode_value(out, shapes, 1, item, value));
        }),
        Type::List(_) | Type::Map(_) => {} // neither nests directly in another
    }
}

/// Appends the alternative of a union; the boolean alternative is also true when the message is set.
fn encode_union(out: &mut Vec<u8>, shapes: &Shapes, shape: &Shape, value: &Value) {
    for wire in &shape.wire {
        let Slot::Field(at) = wire.slot else { continue };
        let field = &shape.fields[usize::from(at)];
        if fits(&field.ty, value) {
            encode_field(out, shapes, wire.number, field, Some(value));
        } else if field.ty == Type::Bool {
            put_number(out, wire.number, i64::from(matches!(value, Value::Map(_))));
        }
    }
}

/// Appends a base-128 varint.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a field key.
pub(crate) fn put_key(out: &mut Vec<u8>, number: u32, wire_type: u32) {
    put_varint(out, u64::from(number << 3 | wire_type));
}

/// Appends a length-delimited field.
pub(crate) fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_len(out, number, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends what comes before the bytes of a length-delimited field.
pub(crate) fn put_len(out: &mut Vec<u8>, number: u32, len: usize) {
    put_key(out, number, 2);
    put_varint(out, len as u64);
}

fn put_number(out: &mut Vec<u8>, number: u32, value: i64) {
    put_key(out, number, 0);
    put_varint(out, value as u64); // negative numbers take ten bytes, 32-bit ones too
}

/// Appends a length-delimited field written by `write`. One byte is reserved for the length; longer contents are moved.
fn put_nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_key(out, number, 2);
    let at = out.len();
    out.push(0);
    write(out);
    let len = out.len().saturating_sub(at).saturating_sub(1);
    if len < 0x80 {
        out[at] = len as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(5);
    put_varint(&mut prefix, len as u64);
    out.splice(at..=at, prefix);
}
