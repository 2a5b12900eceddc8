//! Merging what a client applies into the live object.

use std::cmp::Ordering;

use apiserver_schema::value::Key;
use apiserver_schema::{Map, Value};

use super::items::Items;
use crate::element::PathElement;
use crate::structure::{ListType, MapType, Relation, Shape, Structure, TypeId};

/// The merged value; `None` if it has no entries left, as the value is then absent.
pub(super) fn values(
    structure: &Structure,
    ty: TypeId,
    live: &Value,
    config: &Value,
) -> Option<Value> {
    proto_api::count_steps!(1);
    match structure.shape(ty, config) {
        Shape::Scalar(_) => Some(config.clone()),
        Shape::List(list) => {
            let a = live.as_list().unwrap_or_default();
            let b = config.as_list().unwrap_or_default();
            let is_atomic = matches!(list.relation, Relation::Atomic);
            if is_atomic || a.is_empty() && b.is_empty() {
                return Some(config.clone());
            }
            let merged = lists(structure, list, a, b);
            (!merged.is_empty()).then_some(Value::List(merged))
        }
        Shape::Map(map) => {
            let empty = Map::new();
            let a = live.as_map().unwrap_or(&empty);
            let b = config.as_map().unwrap_or(&empty);
            if map.atomic || a.is_empty() && b.is_empty() {
                return Some(config.clone());
            }
            let merged = maps(structure, map, a, b);
            (!merged.is_empty()).then_some(Value::Map(merged))
        }
    }
}

fn maps(structure: &Structure, map: &MapType, live: &Map, config: &Map) -> Map {
    let mut a = live.iter_sorted().peekable();
    let mut b = config.iter_sorted().peekable();
    let mut entries: Vec<(Key, Value)> = Vec::with_capacity(live.len().max(config.len()));
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return Map::from_entries(entries),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((x, _)), Some((y, _))) => x.cmp(y),
        };
        let live = if order.is_le() { a.next() } else { None };
        let config = if order.is_ge() { b.next() } else { None };
        let merged = match (live, config) {
            (Some((key, live)), Some((_, config))) => {
                let merged = match map.value(key) {
                    Some(ty) => values(structure, ty, live, config),
                    None => Some(config.clone()),
                };
                merged.map(|value| (key, value))
            }
            (Some((key, value)), None) | (None, Some((key, value))) => Some((key, value.clone())),
            (None, None) => None,
        };
        entries.extend(merged.map(|(key, value)| (Key::Owned(key.to_owned()), value)));
    }
}

/// Merges lists by item. Items of both are in the order of `config`; an item of `live` alone stays behind the item that precedes it there.
fn lists(structure: &Structure, list: &ListType, live: &[Value], config: &[Value]) -> Vec<Value> {
    let (live, config) = (Items::new(list, live), Items::new(list, config));
    let mut shared = config.order.iter().map(|(element, _)| element).filter(|e| live.contains(e));
    let mut next_shared = shared.next();
    let merged = |element: &PathElement, item: &Value| match live.get(element)[..] {
        [have] => values(structure, list.item, have, item),
        _ => Some(item.clone()), // new, or it replaces duplicates
    };
    let mut out = Vec::with_capacity(live.order.len().max(config.order.len()));
    let (mut left, mut right) = (live.order.iter().peekable(), config.order.iter().peekable());
    loop {
        proto_api::count_steps!(1);
        match (left.peek(), right.peek()) {
            (None, None) => return out,
            (Some((a, _)), Some((b, item))) if a == b => {
                out.extend(merged(b, item));
                next_shared = shared.next();
                left.next();
                right.next();
            }
            (Some((a, item)), _) if !config.contains(a) => {
                out.push((*item).clone());
                left.next();
            }
            // An item of both whose turn, by the order of `config`, is over or not yet come.
            (Some((a, _)), Some(_)) if next_shared.is_some_and(|next| next != a) => {
                left.next();
            }
            (Some(_), None) => {
                left.next();
            }
            (_, Some((b, item))) => {
                out.extend(merged(b, item));
                if next_shared == Some(b) {
                    next_shared = shared.next();
                }
                right.next();
            }
        }
    }
}
