//! JSON encoding of objects, in descriptor order and with the zero values that kube-apiserver writes.

use crate::shape::{Field, Presence, ShapeId, Shapes, Type};
use crate::value::{Key, Map, Value, write_json, write_json_string};

/// Writes the message `map` of `shape` as a JSON object. `head` (`"kind":…,"apiVersion":…`, or empty) is written first.
pub(crate) fn write_object(
    out: &mut Vec<u8>,
    shapes: &Shapes,
    shape: ShapeId,
    map: &Map,
    head: &str,
) {
    out.push(b'{');
    let start = out.len();
    out.extend_from_slice(head.as_bytes());
    for field in &shapes.get(shape).fields {
        let value = map.get(&field.name);
        if !is_written(field, value) {
            continue;
        }
        if out.len() > start {
            out.push(b',');
        }
        out.push(b'"');
        out.extend_from_slice(field.name.as_bytes()); // names of fields are plain ASCII
        out.extend_from_slice(b"\":");
        match value {
            Some(value) => write_value(out, shapes, &field.ty, value),
            None => write_zero(out, shapes, field),
        }
    }
    out.push(b'}');
}

/// `omitempty` drops empty scalars, lists and maps and optional fields that are not set, but never a plain message.
fn is_written(field: &Field, value: Option<&Value>) -> bool {
    match (field.presence, value) {
        _ if !field.omit_empty => true,
        (Presence::Optional, value) => value.is_some(),
        (Presence::Plain, Some(value)) => is_struct(&field.ty) || !value.is_empty(),
        (Presence::Plain, None) => is_struct(&field.ty),
    }
}

/// Types that are structs in Go: `omitempty` does not omit them.
fn is_struct(ty: &Type) -> bool {
    matches!(
        ty,
        Type::Message(_)
            | Type::Time
            | Type::MicroTime
            | Type::Duration
            | Type::Quantity
            | Type::IntOrString
            | Type::Raw
            | Type::FieldSet
            | Type::Union(_)
    )
}

fn write_value(out: &mut Vec<u8>, shapes: &Shapes, ty: &Type, value: &Value) {
    match (ty, value) {
        (Type::Message(shape), Value::Map(map)) => write_object(out, shapes, *shape, map, ""),
        (Type::List(item) | Type::WrappedList(item), Value::List(items)) => {
            out.push(b'[');
            for (at, value) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(out, shapes, item, value);
            }
            out.push(b']');
        }
        (Type::Map(item), Value::Map(map)) => {
            out.push(b'{');
            for (at, (key, value)) in map.iter_sorted().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_json_string(out, key);
                out.push(b':');
                write_value(out, shapes, item, value);
            }
            out.push(b'}');
        }
        (Type::Union(shape), value) => {
            let fields = &shapes.get(*shape).fields;
            match fields.iter().find(|field| crate::shape_check::fits(&field.ty, value)) {
                Some(field) => write_value(out, shapes, &field.ty, value),
                None => write_json(out, value),
            }
        }
        (_, value) => write_json(out, value),
    }
}

fn write_zero(out: &mut Vec<u8>, shapes: &Shapes, field: &Field) {
    match (field.presence, &field.ty) {
        (Presence::Plain, Type::Message(shape)) => {
            write_object(out, shapes, *shape, &Map::new(), "");
        }
        (Presence::Plain, Type::Bool) => out.extend_from_slice(b"false"),
        (Presence::Plain, Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString) => {
            out.push(b'0');
        }
        (Presence::Plain, Type::String) => out.extend_from_slice(b"\"\""),
        (Presence::Plain, Type::Quantity) => out.extend_from_slice(b"\"0\""),
        (Presence::Plain, Type::Duration) => out.extend_from_slice(b"\"0s\""),
        _ => out.extend_from_slice(b"null"),
    }
}

/// The tree of what [`write_object`] writes: with the zero values that JSON does not omit.
pub(crate) fn write_tree(shapes: &Shapes, shape: ShapeId, map: &Map) -> Map {
    let mut entries: Vec<(Key, Value)> = Vec::with_capacity(map.len());
    for field in &shapes.get(shape).fields {
        let value = map.get(&field.name);
        if !is_written(field, value) {
            continue;
        }
        let value = match value {
            Some(value) => written_value(shapes, &field.ty, value),
            None => written_zero(shapes, field),
        };
        entries.push((field.name.clone(), value));
    }
    Map::from_entries(entries)
}

fn written_value(shapes: &Shapes, ty: &Type, value: &Value) -> Value {
    match (ty, value) {
        (Type::Message(shape), Value::Map(map)) => Value::Map(write_tree(shapes, *shape, map)),
        (Type::List(item) | Type::WrappedList(item), Value::List(items)) => {
            Value::List(items.iter().map(|value| written_value(shapes, item, value)).collect())
        }
        (Type::Map(item), Value::Map(map)) => {
            let entries = map.iter();
            let written = entries.map(|(key, value)| {
                (Key::Owned(key.to_owned()), written_value(shapes, item, value))
            });
            Value::Map(Map::from_entries(written.collect()))
        }
        (Type::Union(shape), value) => {
            let fields = &shapes.get(*shape).fields;
            match fields.iter().find(|field| crate::shape_check::fits(&field.ty, value)) {
                Some(field) => written_value(shapes, &field.ty, value),
                None => value.clone(),
            }
        }
        (_, value) => value.clone(),
    }
}

fn written_zero(shapes: &Shapes, field: &Field) -> Value {
    match (field.presence, &field.ty) {
        (Presence::Plain, Type::Message(shape)) => {
            Value::Map(write_tree(shapes, *shape, &Map::new()))
        }
        (Presence::Plain, ty @ (Type::Bool | Type::String | Type::Quantity | Type::Duration)) => {
            crate::shape_check::zero(ty)
        }
        (Presence::Plain, Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString) => {
            Value::Int(0)
        }
        _ => Value::Null,
    }
}
