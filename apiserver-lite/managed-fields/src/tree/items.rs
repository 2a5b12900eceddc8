//! Items of lists that are owned one by one: the path elements that identify them.

use std::collections::BTreeMap;

use apiserver_schema::{Map, Value};

use crate::element::PathElement;
use crate::structure::{KeyField, ListType, Relation};

/// The items of a list in order, with an index by path element.
pub(super) struct Items<'a> {
    pub(super) order: Vec<(PathElement, &'a Value)>,
    /// Positions of the items with this element: more than one if the list has duplicates.
    places: BTreeMap<PathElement, Vec<usize>>,
}

impl<'a> Items<'a> {
    pub(super) fn new(list: &ListType, items: &'a [Value]) -> Self {
        let mut found = Items { order: Vec::with_capacity(items.len()), places: BTreeMap::new() };
        for (at, item) in items.iter().enumerate() {
            proto_api::count_steps!(1);
            let element = element(list, at, item);
            found.places.entry(element.clone()).or_default().push(at);
            found.order.push((element, item));
        }
        found
    }

    pub(super) fn contains(&self, element: &PathElement) -> bool {
        self.places.contains_key(element)
    }

    /// The items with this element.
    pub(super) fn get(&self, element: &PathElement) -> Vec<&'a Value> {
        let places = self.places.get(element).map(Vec::as_slice).unwrap_or_default();
        places.iter().filter_map(|&at| self.order.get(at)).map(|(_, item)| *item).collect()
    }

    /// The distinct elements, sorted.
    pub(super) fn elements(&self) -> impl Iterator<Item = &PathElement> {
        self.places.keys()
    }
}

/// The element that identifies an item. One without usable keys, which only lists that nobody applied have, is known by its place.
pub(super) fn element(list: &ListType, at: usize, item: &Value) -> PathElement {
    let place = || PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX));
    match list.relation {
        Relation::Atomic => place(),
        _ => try_element(list, item).unwrap_or_else(|_| place()),
    }
}

/// The element that identifies an item of a list, or why there is none.
pub(super) fn try_element(list: &ListType, item: &Value) -> Result<PathElement, String> {
    match (&list.relation, item) {
        (Relation::Atomic, _) => Err("the list is atomic".to_owned()),
        (Relation::Map(keys), Value::Map(item)) => key(keys, item),
        (Relation::Map(_), Value::Null) => {
            Err("associative list with keys may not have a null element".to_owned())
        }
        (Relation::Map(_), _) => {
            Err("associative list with keys may not have non-map elements".to_owned())
        }
        (Relation::Set, Value::Map(_)) => {
            Err("associative list without keys has an element that's a map type".to_owned())
        }
        (Relation::Set, Value::List(_)) => {
            Err("not supported: associative list with lists as elements".to_owned())
        }
        (Relation::Set, Value::Null) => {
            Err("associative list without keys has an element that's an explicit null".to_owned())
        }
        (Relation::Set, value) => Ok(PathElement::Value(value.clone())),
    }
}

fn key(keys: &[KeyField], item: &Map) -> Result<PathElement, String> {
    let mut fields = Vec::with_capacity(keys.len());
    for key in keys {
        let value = item.get(&key.name).or(key.default.as_ref()).ok_or_else(|| {
            format!(
                "associative list with keys has an element that omits key field {:?} (and doesn't have default value)",
                key.name
            )
        })?;
        fields.push((key.name.clone().into_owned(), value.clone()));
    }
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(fields))
}
