//! Trees without some fields, and parts of trees.

use apiserver_schema::value::Key;
use apiserver_schema::{Map, Value};

use super::items;
use crate::element::PathElement;
use crate::set::FieldSet;
use crate::structure::{Relation, Shape, Structure, TypeId};

pub(super) fn without(
    structure: &Structure,
    ty: TypeId,
    value: &Value,
    fields: &FieldSet,
) -> Value {
    match (structure.shape(ty, value), value) {
        (Shape::Scalar(_), _) => value.clone(),
        (Shape::List(list), Value::List(have)) if !matches!(list.relation, Relation::Atomic) => {
            let mut kept = Vec::with_capacity(have.len());
            for (at, item) in have.iter().enumerate() {
                let element = items::element(list, at, item);
                kept.extend(remove_below(structure, list.item, &element, item, fields));
            }
            if kept.is_empty() { Value::Null } else { Value::List(kept) }
        }
        (Shape::Map(map), Value::Map(have)) if !map.atomic => {
            let mut kept: Vec<(Key, Value)> = Vec::with_capacity(have.len());
            for (key, value) in have.iter() {
                let left = match map.value(key) {
                    Some(ty) => {
                        remove_below(structure, ty, &PathElement::field(key), value, fields)
                    }
                    None => Some(value.clone()),
                };
                kept.extend(left.map(|value| (Key::Owned(key.to_owned()), value)));
            }
            if kept.is_empty() { Value::Null } else { Value::Map(Map::from_entries(kept)) }
        }
        // Atomic, empty or of another type: below it the set has nothing to keep.
        _ => Value::Null,
    }
}

/// What is left of the value at the path of one element; `None` if the set has the path.
fn remove_below(
    structure: &Structure,
    ty: TypeId,
    element: &PathElement,
    value: &Value,
    fields: &FieldSet,
) -> Option<Value> {
    if fields.has(element) {
        return None;
    }
    match fields.below(element) {
        Some(below) => Some(without(structure, ty, value, below)),
        None => Some(value.clone()),
    }
}

pub(super) fn only(
    structure: &Structure,
    ty: TypeId,
    value: &Value,
    fields: &FieldSet,
) -> Option<Value> {
    match (structure.shape(ty, value), value) {
        (Shape::List(list), Value::List(have)) if !matches!(list.relation, Relation::Atomic) => {
            let kept = have.iter().enumerate().filter_map(|(at, item)| {
                let element = items::element(list, at, item);
                part(structure, list.item, &element, item, fields)
            });
            let kept: Vec<Value> = kept.collect();
            (!kept.is_empty()).then_some(Value::List(kept))
        }
        (Shape::Map(map), Value::Map(have)) if !map.atomic => {
            let kept = have.iter().filter_map(|(key, value)| {
                let part =
                    part(structure, map.value(key)?, &PathElement::field(key), value, fields)?;
                Some((Key::Owned(key.to_owned()), part))
            });
            let kept: Vec<(Key, Value)> = kept.collect();
            (!kept.is_empty()).then(|| Value::Map(Map::from_entries(kept)))
        }
        _ => None,
    }
}

/// The part of the value at the path of one element: what the set has below it, or all if the path is a leaf of the set.
fn part(
    structure: &Structure,
    ty: TypeId,
    element: &PathElement,
    value: &Value,
    fields: &FieldSet,
) -> Option<Value> {
    match fields.below(element) {
        Some(below) => only(structure, ty, value, below),
        None => fields.has(element).then(|| value.clone()),
    }
}
