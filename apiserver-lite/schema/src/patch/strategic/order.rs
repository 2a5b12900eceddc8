//! Order of a merged list: items in the patch's order, other items in their place relative to the rest.

use std::collections::{HashMap, VecDeque};

use crate::value::Value;

/// Identity of a list item: its merge key, or the item itself without one; `None` for an item that lacks the key.
pub(in crate::patch) fn identity(item: &Value, key: Option<&str>) -> Option<String> {
    match key {
        None => Some(item.identity()),
        Some(key) => item.as_map()?.get(key).map(Value::identity),
    }
}

/// First index of each item, by identity.
pub(in crate::patch) fn places(items: &[Value], key: Option<&str>) -> HashMap<String, usize> {
    let mut places = HashMap::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        if let Some(id) = identity(item, key) {
            places.entry(id).or_insert(at);
        }
    }
    places
}

/// An item with its index in the original list.
type Placed = (Option<usize>, Value);

/// Orders `merged`: items of `patch_order` in that order, others in the order of `before`, interleaved so that an item of the
/// second kind precedes one of the first if it did in `before`.
pub(super) fn normalize(
    merged: Vec<Value>,
    patch_order: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let (asked, had) = (places(patch_order, key), places(before, key));
    let size = merged.len();
    let mut named: Vec<(usize, Placed)> = Vec::new();
    let mut others: Vec<Placed> = Vec::new();
    for item in merged {
        let id = identity(&item, key);
        let place = |places: &HashMap<String, usize>| places.get(id.as_ref()?).copied();
        match (place(&asked), place(&had)) {
            (Some(at), was) => named.push((at, (was, item))),
            (None, was) => others.push((was, item)),
        }
    }
    named.sort_by_key(|(at, _)| *at);
    others.sort_by_key(|(was, _)| was.unwrap_or(usize::MAX));

    let mut named: VecDeque<Placed> = named.into_iter().map(|(_, placed)| placed).collect();
    let mut others: VecDeque<Placed> = others.into();
    let mut ordered = Vec::with_capacity(size);
    while let (Some((theirs, _)), Some((ours, _))) = (others.front(), named.front()) {
        let first = match (theirs, ours) {
            (Some(theirs), Some(ours)) if theirs < ours => others.pop_front(),
            _ => named.pop_front(),
        };
        ordered.extend(first.map(|(_, item)| item));
    }
    ordered.extend(others.into_iter().chain(named).map(|(_, item)| item));
    ordered
}
