//! The order of a merged list: the patch orders what it names, what only the server has keeps its place relative to the rest.

use std::collections::VecDeque;

use crate::value::Value;

/// Whether two items of a list are the same one: by merge key, or by value where there is none.
pub(super) fn same_element(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        None => a == b,
        Some(key) => {
            match (a.as_map().and_then(|a| a.get(key)), b.as_map().and_then(|b| b.get(key))) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            }
        }
    }
}

/// Orders `merged`: items named in `patch_order` in that order, the others in the order of `before`, the two interleaved so that
/// an item of the second kind stands before one of the first if it did in `before`.
pub(super) fn normalize(
    merged: Vec<Value>,
    patch_order: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let place = |item: &Value, order: &[Value]| {
        order.iter().position(|other| same_element(item, other, key))
    };
    let size = merged.len();
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(item, patch_order).is_some());
    named.sort_by_cached_key(|item| place(item, patch_order));
    others.sort_by_cached_key(|item| place(item, before).unwrap_or(usize::MAX));

    let mut named: VecDeque<Value> = named.into();
    let mut others: VecDeque<Value> = others.into();
    let mut ordered = Vec::with_capacity(size);
    while let (Some(theirs), Some(ours)) = (others.front(), named.front()) {
        let first = match (place(theirs, before), place(ours, before)) {
            (Some(theirs), Some(ours)) if theirs < ours => others.pop_front(),
            _ => named.pop_front(),
        };
        ordered.extend(first);
    }
    ordered.extend(others);
    ordered.extend(named);
    ordered
}
