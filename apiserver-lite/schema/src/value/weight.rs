//! What trees weigh: a bound on the memory that a small body becomes. A unit is 32 bytes, about what an item of a list takes.

use std::cell::Cell;

use super::{Key, Map, Value};

const _: () = assert!(size_of::<Value>() <= 32 && size_of::<(Key, Value)>() <= 64);

/// Most units of the tree of one object. An object of 1.5 MB is far below it, even a ConfigMap of nothing but short keys, each with its
/// entry in `managedFields`.
pub(crate) const WEIGHT_MAX: usize = 1_000_000;
/// Most maps that are items of lists, without those in the metadata, of an object of a built-in kind: defaults may be set in each of
/// them.
pub(crate) const MAPS_IN_LISTS_MAX: usize = 50_000;

/// An item of a list.
pub(crate) const ITEM: usize = 1;
/// A text that is not empty, besides what it is in.
pub(crate) const TEXT: usize = 1;
/// An entry of a map: key and value.
pub(crate) const ENTRY: usize = 3;
/// A map that is not empty, besides its entries: it has room for some more.
pub(crate) const ROOM: usize = 5;

/// A body or an object has too many values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Fields and items of all kinds.
    #[error(
        "the object has too many fields and items: together they may weigh at most {WEIGHT_MAX}, where an item counts 1 and a field 3 \
         and more; split it into several objects"
    )]
    Values,
    /// Objects in lists.
    #[error(
        "the lists of the object have more than {MAPS_IN_LISTS_MAX} items that are objects; split it into several objects"
    )]
    MapsInLists,
}

/// What a body that is being read may still weigh.
#[derive(Debug)]
pub(crate) struct Allowance(Cell<Option<usize>>);

impl Allowance {
    /// That of a request's body.
    pub(crate) fn of_body() -> Self {
        Allowance(Cell::new(Some(WEIGHT_MAX)))
    }

    /// No bound: of what is stored, and of what callers bound by its length.
    pub(crate) fn unbounded() -> Self {
        Allowance(Cell::new(Some(usize::MAX)))
    }

    /// Counts what was read.
    pub(crate) fn take(&self, weight: usize) -> Result<(), TooLarge> {
        let left = self.0.get().and_then(|left| left.checked_sub(weight));
        self.0.set(left);
        if left.is_some() { Ok(()) } else { Err(TooLarge::Values) }
    }

    /// Whether more was read than allowed.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.0.get().is_none()
    }
}

/// Bytes of a unit.
pub(crate) const UNIT: usize = 32;

/// What the entries of a map weigh.
pub(crate) fn weigh(map: &Map) -> usize {
    let entries = map.iter().map(|(_, value)| ENTRY.saturating_add(weigh_value(value)));
    let room = if map.is_empty() { 0 } else { ROOM };
    entries.fold(room, usize::saturating_add)
}

/// What a value weighs, besides the item or entry that it is.
fn weigh_value(value: &Value) -> usize {
    match value {
        Value::String(text) if !text.is_empty() => TEXT,
        Value::Json(text) => (text.len() / UNIT).saturating_add(TEXT),
        Value::List(items) => {
            let items = items.iter().map(|item| ITEM.saturating_add(weigh_value(item)));
            items.fold(0, usize::saturating_add)
        }
        Value::Map(map) => weigh(map),
        _ => 0,
    }
}

/// What a copy of a value costs: a unit for each value in it, and the units that its texts and keys fill.
pub(crate) fn weigh_copy(value: &Value) -> usize {
    let units = |text: &str| text.len() / UNIT;
    match value {
        Value::String(text) => units(text).saturating_add(1),
        Value::Json(text) => units(text).saturating_add(1),
        Value::List(items) => items.iter().map(weigh_copy).fold(1, usize::saturating_add),
        Value::Map(map) => {
            let entries =
                map.iter().map(|(key, value)| units(key).saturating_add(weigh_copy(value)));
            entries.fold(1, usize::saturating_add)
        }
        _ => 1,
    }
}

/// How many items of the lists in a value are maps.
pub(crate) fn maps_in_lists(value: &Value) -> usize {
    match value {
        Value::List(items) => {
            let maps = items.iter().filter(|item| matches!(item, Value::Map(_))).count();
            items.iter().map(maps_in_lists).fold(maps, usize::saturating_add)
        }
        Value::Map(map) => {
            map.iter().map(|(_, value)| maps_in_lists(value)).fold(0, usize::saturating_add)
        }
        _ => 0,
    }
}
