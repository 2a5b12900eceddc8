//! Decodes Protobuf into a tree.

use std::cell::RefCell;

use super::reader::{FormatError, Reader, WireValue};
use crate::scalar;
use crate::shape::{Field, Shape, ShapeId, Shapes, Slot, Type};
use crate::value::{
    Allowance, ENTRY, ITEM, Key, Map, ParseError, ROOM, Reading, TEXT, TooLarge, Value,
    parse_json_within,
};

/// Deepest nesting of messages; `JSONSchemaProps` is the only recursive built-in message.
const DEPTH_MAX: u32 = 100;

/// Why bytes are not a valid message of the expected type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WireError {
    /// Not the wire format.
    #[error("message {message} is malformed: {why}")]
    Format {
        /// Name of the message.
        message: &'static str,
        /// The error of the wire format.
        why: FormatError,
    },
    /// A field has another wire type than its descriptor.
    #[error("field {field} of message {message} is not {expected}")]
    Field {
        /// Name of the message.
        message: &'static str,
        /// JSON name of the field.
        field: String,
        /// The expected type.
        expected: &'static str,
    },
    /// Messages are nested deeper than [`DEPTH_MAX`].
    #[error("message {0} is nested too deeply")]
    Depth(&'static str),
    /// The message has too many values.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Decodes a message of `shape` that weighs no more than is allowed. Unknown fields are skipped, as in Kubernetes.
pub(crate) fn decode_message(
    shapes: &Shapes,
    shape: ShapeId,
    bytes: &[u8],
    allowance: Allowance,
) -> Result<Map, WireError> {
    let mut map = Map::new();
    let reading = Reading { duplicates: RefCell::default(), allowance };
    Decoder { shapes, depth: 0, reading }.message(shape, bytes, &mut map)?;
    Ok(map)
}

struct Decoder<'a> {
    shapes: &'a Shapes,
    depth: u32,
    reading: Reading,
}

impl<'a> Decoder<'a> {
    /// Merges the fields in `bytes` into `map`: repeated messages are merged, repeated scalars replaced.
    fn message(&mut self, shape: ShapeId, bytes: &[u8], map: &mut Map) -> Result<(), WireError> {
        let shape = self.shapes.get(shape);
        if self.depth >= DEPTH_MAX {
            return Err(WireError::Depth(shape.name));
        }
        self.depth = self.depth.saturating_add(1);
        let mut reader = Reader(bytes);
        while let Some((number, value)) = read(&mut reader, shape)? {
            match (shape.wire_field(number).map(|wire| wire.slot), value) {
                (None, _) => {}
                (Some(Slot::Inline(inlined)), WireValue::Bytes(bytes)) => {
                    self.message(inlined, bytes, map)?;
                }
                (Some(Slot::Inline(inlined)), _) => {
                    return Err(WireError::Field {
                        message: shape.name,
                        field: self.shapes.get(inlined).name.to_owned(),
                        expected: "a message",
                    });
                }
                (Some(Slot::Field(at)), value) => {
                    self.field(shape, &shape.fields[usize::from(at)], value, map)?;
                }
            }
        }
        self.depth = self.depth.saturating_sub(1);
        Ok(())
    }

    fn field(
        &mut self,
        shape: &Shape,
        field: &Field,
        value: WireValue<'_>,
        map: &mut Map,
    ) -> Result<(), WireError> {
        let wrong = |expected| WireError::Field {
            message: shape.name,
            field: field.name.clone().into_owned(),
            expected,
        };
        match (&field.ty, value) {
            (Type::List(item), value) => {
                let read = match (&**item, value) {
                    (Type::Int32 | Type::Int64 | Type::Bool, WireValue::Bytes(bytes)) => {
                        // Each takes a byte at least.
                        self.take(ITEM.saturating_mul(bytes.len()))?;
                        packed(item, bytes).ok_or_else(|| wrong(item.name()))?
                    }
                    _ => {
                        self.take(ITEM)?;
                        vec![self.value(item, value, None)?.ok_or_else(|| wrong(item.name()))?]
                    }
                };
                match map.get_mut(&field.name) {
                    Some(Value::List(items)) => items.extend(read),
                    _ => self.insert(map, field, Value::List(read))?,
                }
            }
            (Type::Map(item), WireValue::Bytes(bytes)) => {
                let (key, value) = self.entry(shape, item, bytes)?.ok_or_else(|| wrong("a map"))?;
                if !map.contains(&field.name) {
                    self.insert(map, field, Value::Map(Map::new()))?;
                }
                let entries = map.map_or_insert(field.name.clone());
                self.take(room_for_one(entries))?;
                entries.insert(key, value);
            }
            (ty, value) => {
                let old = map.remove(&field.name);
                let value = self.value(ty, value, old)?.ok_or_else(|| wrong(ty.name()))?;
                if value != Value::Null && field.is_stored(&value) {
                    self.insert(map, field, value)?;
                }
            }
        }
        Ok(())
    }

    fn take(&self, weight: usize) -> Result<(), TooLarge> {
        self.reading.allowance.take(weight)
    }

    fn insert(&self, map: &mut Map, field: &Field, value: Value) -> Result<(), TooLarge> {
        self.take(room_for_one(map))?;
        map.insert(field.name.clone(), value);
        Ok(())
    }

    /// Decodes a map entry; `None` if key or value has the wrong wire type.
    fn entry(
        &mut self,
        shape: &Shape,
        ty: &Type,
        bytes: &[u8],
    ) -> Result<Option<(Key, Value)>, WireError> {
        let mut reader = Reader(bytes);
        let (mut key, mut item) = (String::new(), crate::shape_check::zero(ty));
        while let Some((number, value)) = read(&mut reader, shape)? {
            match (number, value) {
                (1, WireValue::Bytes(bytes)) => match str::from_utf8(bytes) {
                    Ok(text) => text.clone_into(&mut key),
                    Err(_) => return Ok(None),
                },
                (1, _) => return Ok(None),
                (2, value) => match self.value(ty, value, None)? {
                    Some(value) => item = value,
                    None => return Ok(None),
                },
                _ => {}
            }
        }
        Ok(Some((Key::Owned(key), item)))
    }

    /// Decodes a value of `ty`; `None` for another wire type. `old` is the value of an earlier occurrence of the field.
    fn value(
        &mut self,
        ty: &Type,
        value: WireValue<'_>,
        old: Option<Value>,
    ) -> Result<Option<Value>, WireError> {
        Ok(match (ty, value) {
            (Type::Message(shape), WireValue::Bytes(bytes)) => {
                let mut map = match old {
                    Some(Value::Map(map)) => map,
                    _ => Map::new(),
                };
                self.message(*shape, bytes, &mut map)?;
                Some(Value::Map(map))
            }
            (Type::Union(shape), WireValue::Bytes(bytes)) => {
                let mut map = Map::new();
                self.message(*shape, bytes, &mut map)?;
                Some(chosen(self.shapes.get(*shape), map))
            }
            (Type::WrappedList(item), WireValue::Bytes(bytes)) => {
                self.wrapped(item, bytes)?.map(Value::List)
            }
            (Type::Raw, WireValue::Bytes(bytes)) => self.raw(bytes)?,
            (Type::FieldSet, WireValue::Bytes(bytes)) => self.field_set(bytes)?,
            (ty, value) => {
                let value = scalar_value(ty, value);
                let is_text = value.as_ref().and_then(Value::as_str).is_some_and(|t| !t.is_empty());
                self.take(if is_text { TEXT } else { 0 })?;
                value
            }
        })
    }

    /// Embedded JSON.
    fn raw(&self, bytes: &[u8]) -> Result<Option<Value>, WireError> {
        match only(bytes, 1) {
            None => Ok(None),
            Some(None) => Ok(Some(Value::Null)),
            Some(Some(text)) => match parse_json_within(text, &self.reading) {
                Ok(value) => Ok(Some(value)),
                Err(ParseError::TooLarge(error)) => Err(error.into()),
                Err(ParseError::Malformed(_)) => Ok(None),
            },
        }
    }

    /// Embedded JSON that is kept as text: as it is written here, whatever the sender's blanks, escapes and numbers are.
    fn field_set(&self, bytes: &[u8]) -> Result<Option<Value>, WireError> {
        Ok(self.raw(bytes)?.map(|set| if set == Value::Null { set } else { set.into_json() }))
    }

    fn wrapped(&mut self, ty: &Type, bytes: &[u8]) -> Result<Option<Vec<Value>>, WireError> {
        let mut reader = Reader(bytes);
        let mut items = Vec::new();
        while let Some((number, value)) = read_named(&mut reader, "list")? {
            if number == 1 {
                self.take(ITEM)?;
                match self.value(ty, value, None)? {
                    Some(item) => items.push(item),
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(items))
    }
}

/// What one more entry of a map weighs.
fn room_for_one(map: &Map) -> usize {
    if map.is_empty() { ROOM + ENTRY } else { ENTRY }
}

/// The set alternative of a union: a message or list takes precedence over the boolean.
fn chosen(shape: &Shape, mut map: Map) -> Value {
    let named = shape.fields.iter().filter(|field| field.ty != Type::Bool);
    let set = named.filter_map(|field| map.remove(&field.name)).next();
    let boolean = shape.fields.iter().find(|field| field.ty == Type::Bool);
    match (set, boolean) {
        (Some(value), _) => value,
        (None, Some(field)) => Value::Bool(map.is_true(&field.name)),
        (None, None) => Value::Null,
    }
}

fn scalar_value(ty: &Type, value: WireValue<'_>) -> Option<Value> {
    match (ty, value) {
        (Type::Bool, WireValue::Varint(bits)) => Some(Value::Bool(bits != 0)),
        (Type::Int32, WireValue::Varint(bits)) => Some(Value::Int(i64::from(bits as i32))),
        (Type::Int64, WireValue::Varint(bits)) => Some(Value::Int(bits as i64)),
        (Type::Double, WireValue::Fixed64(bits)) => {
            let number = f64::from_bits(bits);
            number.is_finite().then_some(Value::Float(number))
        }
        (Type::String, WireValue::Bytes(bytes)) => str::from_utf8(bytes).ok().map(Value::from),
        (Type::Bytes, WireValue::Bytes(bytes)) => Some(scalar::bytes_value(bytes)),
        (Type::Time | Type::MicroTime, WireValue::Bytes([])) => Some(Value::Null),
        (Type::Time, WireValue::Bytes(bytes)) => {
            let (seconds, nanos) = numbers(bytes)?;
            scalar::time_value(seconds, nanos)
        }
        (Type::MicroTime, WireValue::Bytes(bytes)) => {
            let (seconds, nanos) = numbers(bytes)?;
            scalar::micro_time_value(seconds, nanos)
        }
        (Type::Duration, WireValue::Bytes(bytes)) => scalar::duration_value(numbers(bytes)?.0),
        (Type::Quantity, WireValue::Bytes(bytes)) => {
            let text = only(bytes, 1)?.map_or(Ok("0"), str::from_utf8).ok()?;
            scalar::canonical(ty, Value::from(text)).ok()
        }
        (Type::IntOrString, WireValue::Bytes(bytes)) => int_or_string(bytes),
        _ => None,
    }
}

/// Decodes a packed field: Kubernetes does not pack numbers, but Protobuf decoders must accept it.
fn packed(ty: &Type, bytes: &[u8]) -> Option<Vec<Value>> {
    let mut reader = Reader(bytes);
    let mut values = Vec::new();
    while !reader.0.is_empty() {
        values.push(scalar_value(ty, WireValue::Varint(reader.varint().ok()?))?);
    }
    Some(values)
}

/// Fields 1 and 2 of a message of two numbers.
fn numbers(bytes: &[u8]) -> Option<(i64, i32)> {
    let (mut first, mut second) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.field().ok()? {
        match (number, value) {
            (1, WireValue::Varint(bits)) => first = bits as i64,
            (2, WireValue::Varint(bits)) => second = bits as i32,
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some((first, second))
}

/// Length-delimited field `wanted` of a message; the last occurrence counts.
fn only(bytes: &[u8], wanted: u32) -> Option<Option<&[u8]>> {
    let mut found = None;
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.field().ok()? {
        match value {
            WireValue::Bytes(bytes) if number == wanted => found = Some(bytes),
            _ if number == wanted => return None,
            _ => {}
        }
    }
    Some(found)
}

fn int_or_string(bytes: &[u8]) -> Option<Value> {
    let (mut is_text, mut int, mut text) = (false, 0, "");
    let mut reader = Reader(bytes);
    while let Some((number, value)) = reader.field().ok()? {
        match (number, value) {
            (1, WireValue::Varint(bits)) => is_text = bits != 0,
            (2, WireValue::Varint(bits)) => int = i64::from(bits as i32),
            (3, WireValue::Bytes(bytes)) => text = str::from_utf8(bytes).ok()?,
            (1..=3, _) => return None,
            _ => {}
        }
    }
    Some(if is_text { Value::from(text) } else { Value::Int(int) })
}

fn read<'b>(
    reader: &mut Reader<'b>,
    shape: &Shape,
) -> Result<Option<(u32, WireValue<'b>)>, WireError> {
    read_named(reader, shape.name)
}

fn read_named<'b>(
    reader: &mut Reader<'b>,
    message: &'static str,
) -> Result<Option<(u32, WireValue<'b>)>, WireError> {
    reader.field().map_err(|why| WireError::Format { message, why })
}
