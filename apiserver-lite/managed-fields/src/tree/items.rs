//! Items of lists that are owned one by one: the path elements that identify them.

use apiserver_schema::{Map, Value};

use crate::element::PathElement;
use crate::structure::{KeyField, ListType, Relation};

/// The items of a list in order, with an index by path element.
pub(super) struct Items<'a> {
    pub(super) order: Vec<(PathElement, &'a Value)>,
    /// Positions in `order`, sorted by element and then by position: duplicates lie side by side.
    sorted: Vec<usize>,
}

impl<'a> Items<'a> {
    pub(super) fn new(list: &ListType, items: &'a [Value]) -> Self {
        proto_api::count_steps!(items.len());
        let each = items.iter().enumerate();
        let order: Vec<_> = each.map(|(at, item)| (element(list, at, item), item)).collect();
        let mut sorted: Vec<usize> = (0..order.len()).collect();
        sorted.sort_by(|&a, &b| order[a].0.cmp(&order[b].0)); // positions in `order`; stable
        Items { order, sorted }
    }

    pub(super) fn contains(&self, element: &PathElement) -> bool {
        self.sorted.binary_search_by(|&at| self.order[at].0.cmp(element)).is_ok()
    }

    /// The items with this element.
    pub(super) fn get(&self, element: &PathElement) -> Vec<&'a Value> {
        let first = self.sorted.partition_point(|&at| self.order[at].0 < *element);
        let rest = self.sorted.get(first..).unwrap_or_default().iter();
        let same = rest.map(|&at| &self.order[at]).take_while(|(have, _)| have == element);
        same.map(|(_, item)| *item).collect()
    }

    /// The distinct elements with their items, sorted.
    pub(super) fn groups(&self) -> impl Iterator<Item = (&PathElement, Vec<&'a Value>)> {
        self.sorted.chunk_by(|&a, &b| self.order[a].0 == self.order[b].0).filter_map(|places| {
            let (element, _) = &self.order[*places.first()?];
            Some((element, places.iter().map(|&at| self.order[at].1).collect()))
        })
    }
}

/// The element that identifies an item. One without usable keys, as only lists have that were never applied, is identified by its index.
pub(super) fn element(list: &ListType, at: usize, item: &Value) -> PathElement {
    let place = || PathElement::Index(i64::try_from(at).unwrap_or(i64::MAX));
    match list.relation {
        Relation::Atomic => place(),
        _ => try_element(list, item).unwrap_or_else(|_| place()),
    }
}

/// Why nothing identifies an item of a list, in the words of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ItemError {
    #[error("the list is atomic")]
    Atomic,
    #[error("associative list with keys may not have a null element")]
    NullInMap,
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    #[error(
        "associative list with keys has an element that omits key field {0:?} (and doesn't have default value)"
    )]
    NoKey(String),
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
}

/// The element that identifies an item of a list, or why there is none.
pub(super) fn try_element(list: &ListType, item: &Value) -> Result<PathElement, ItemError> {
    match (&list.relation, item) {
        (Relation::Atomic, _) => Err(ItemError::Atomic),
        (Relation::Map(keys), Value::Map(item)) => key(keys, item),
        (Relation::Map(_), Value::Null) => Err(ItemError::NullInMap),
        (Relation::Map(_), _) => Err(ItemError::NotAMap),
        (Relation::Set, Value::Map(_)) => Err(ItemError::MapInSet),
        (Relation::Set, Value::List(_)) => Err(ItemError::ListInSet),
        (Relation::Set, Value::Null) => Err(ItemError::NullInSet),
        (Relation::Set, value) => Ok(PathElement::Value(value.clone())),
    }
}

fn key(keys: &[KeyField], item: &Map) -> Result<PathElement, ItemError> {
    let mut fields = Vec::with_capacity(keys.len());
    for key in keys {
        let missing = || ItemError::NoKey(key.name.clone().into_owned());
        let value = item.get(&key.name).or(key.default.as_ref()).ok_or_else(missing)?;
        fields.push((key.name.clone().into_owned(), value.clone()));
    }
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(PathElement::Key(fields))
}
