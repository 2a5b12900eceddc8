//! Checks a tree against a shape: types and unknown fields; normalizes times, quantities and bytes.
//!
//! The result is canonical: plain fields at their zero value are absent, maps are sorted, scalars are normalized. Two objects are
//! equal exactly when their trees are.

use crate::scalar;
use crate::shape::{Field, ShapeId, Shapes, Type};
use crate::value::{Key, Map, Path, Value};

/// A field with a value of the wrong type.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{path}: expected {expected}, got {got}")]
pub struct TypeError {
    /// Path of the field.
    pub path: String,
    /// What it should hold.
    pub expected: &'static str,
    /// Its JSON type, or the text that cannot be parsed.
    pub got: String,
}

/// Most unknown fields of an object that are named.
const UNKNOWN_MAX: usize = 100;

/// Checks and normalizes `map` for `shape`. Unknown fields are dropped and their paths added to `unknown`.
pub(crate) fn conform(
    shapes: &Shapes,
    shape: ShapeId,
    map: Map,
    unknown: &mut Vec<String>,
) -> Result<Map, TypeError> {
    Conform { shapes, unknown }.message(shape, map, &Path::ROOT)
}

struct Conform<'a> {
    shapes: &'a Shapes,
    unknown: &'a mut Vec<String>,
}

impl Conform<'_> {
    fn message(&mut self, shape: ShapeId, map: Map, path: &Path<'_>) -> Result<Map, TypeError> {
        let shape = self.shapes.get(shape);
        let mut entries: Vec<(Key, Value)> = Vec::with_capacity(map.len());
        for (key, value) in map {
            let here = path.field(&key);
            let Some(field) = shape.field(&key) else {
                if self.unknown.len() < UNKNOWN_MAX {
                    self.unknown.push(here.to_string());
                }
                continue;
            };
            if let Some(value) = self.field(field, value, &here)? {
                entries.push((field.name.clone(), value));
            }
        }
        Ok(Map::from_entries(entries))
    }

    fn field(
        &mut self,
        field: &Field,
        value: Value,
        path: &Path<'_>,
    ) -> Result<Option<Value>, TypeError> {
        if value == Value::Null {
            return Ok(None);
        }
        let value = self.value(&field.ty, value, path)?;
        Ok((value != Value::Null && field.is_stored(&value)).then_some(value))
    }

    fn value(&mut self, ty: &Type, value: Value, path: &Path<'_>) -> Result<Value, TypeError> {
        match (ty, value) {
            (Type::Message(shape), Value::Map(map)) => {
                Ok(Value::Map(self.message(*shape, map, path)?))
            }
            (Type::List(item) | Type::WrappedList(item), Value::List(items)) => {
                let checked: Result<_, _> = (0..)
                    .zip(items)
                    .map(|(at, value)| self.item(item, value, &path.index(at)))
                    .collect();
                Ok(Value::List(checked?))
            }
            (Type::Map(item), Value::Map(map)) => {
                let mut entries = Vec::with_capacity(map.len());
                for (key, value) in map {
                    let value = self.item(item, value, &path.field(&key))?;
                    entries.push((key, value));
                }
                Ok(Value::Map(Map::from_entries(entries)))
            }
            (Type::Union(shape), value) => self.union(*shape, value, path),
            (Type::Raw, value) => Ok(value),
            (Type::FieldSet, value) => Ok(value.into_json()),
            (scalar, value) => scalar::canonical(scalar, value).map_err(|got| TypeError {
                path: path.to_string(),
                expected: ty.name(),
                got: got.0,
            }),
        }
    }

    /// Checks an item of a list or map: `null` is the zero value.
    fn item(&mut self, ty: &Type, value: Value, path: &Path<'_>) -> Result<Value, TypeError> {
        match value {
            Value::Null => Ok(zero(ty)),
            value => self.value(ty, value, path),
        }
    }

    fn union(&mut self, shape: ShapeId, value: Value, path: &Path<'_>) -> Result<Value, TypeError> {
        let shape = self.shapes.get(shape);
        match shape.fields.iter().find(|field| fits(&field.ty, &value)) {
            Some(field) => self.value(&field.ty, value, path),
            None => Err(TypeError {
                path: path.to_string(),
                expected: "object, array or bool",
                got: value.shape().to_owned(),
            }),
        }
    }
}

/// Whether `value` is the union alternative with type `ty`.
pub(crate) fn fits(ty: &Type, value: &Value) -> bool {
    match ty {
        Type::Message(_) => matches!(value, Value::Map(_)),
        Type::List(_) => matches!(value, Value::List(_)),
        Type::Bool => matches!(value, Value::Bool(_)),
        _ => false,
    }
}

/// The zero value of a type.
pub(crate) fn zero(ty: &Type) -> Value {
    match ty {
        Type::Bool => Value::Bool(false),
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => Value::Int(0),
        Type::String | Type::Bytes => Value::from(""),
        Type::Quantity => Value::from("0"),
        Type::Duration => Value::from("0s"),
        Type::Message(_) | Type::Map(_) => Value::Map(Map::new()),
        Type::List(_) | Type::WrappedList(_) => Value::List(Vec::new()),
        Type::Time | Type::MicroTime | Type::Raw | Type::FieldSet | Type::Union(_) => Value::Null,
    }
}
