//! Strategic merge patch: lists are merged by the merge key of their descriptor, and directives control the merge.
//!
//! | directive | where | meaning |
//! |---|---|---|
//! | `$patch: replace`, `delete`, `merge` | in a message | take the patch as it is, empty the message, merge as usual |
//! | `$patch: delete` | in an item of a merged list | remove the item with this merge key |
//! | `$patch: replace` | in an item of a merged list | the rest of the patch replaces the list |
//! | `$retainKeys: [k…]` | in a message | drop every other key |
//! | `$deleteFromPrimitiveList/f: [v…]` | next to field `f` | remove these items |
//! | `$setElementOrder/f: […]` | next to field `f` | order of the items after the merge |

use std::cell::Cell;
use std::collections::HashSet;

use super::PatchError;
use crate::shape::{Field, PatchStrategy, ShapeId, Shapes, Type};
use crate::value::{Map, Value, weigh_copy};

mod order;

use order::normalize;
pub(super) use order::{identity, places};

pub(super) const DIRECTIVE: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
pub(super) const ELEMENT_ORDER: &str = "$setElementOrder/";

/// Applies `patch` to the message `original` of `shape`.
pub(crate) fn apply_strategic(
    shapes: &Shapes,
    shape: ShapeId,
    original: Map,
    patch: Map,
) -> Result<Map, PatchError> {
    Merge::new(shapes).message(Some(shape), original, patch)
}

pub(super) struct Merge<'a> {
    pub(super) shapes: &'a Shapes,
    /// What copies of list items cost that the patch has named once and names again.
    merged_again: Cell<usize>,
}

impl<'a> Merge<'a> {
    /// Most units of it, 32 MB: each such item is copied again, some of its lists more than once.
    const MERGED_AGAIN_MAX: usize = 1_000_000;

    pub(super) fn new(shapes: &'a Shapes) -> Self {
        Self { shapes, merged_again: Cell::new(0) }
    }

    /// Counts an item that is merged again.
    fn merge_again(&self, item: Option<&Value>) -> Result<(), PatchError> {
        let merged = self.merged_again.get().saturating_add(item.map_or(0, weigh_copy));
        self.merged_again.set(merged);
        match merged > Self::MERGED_AGAIN_MAX {
            true => Err(inapplicable("the patch names large items of a list too often")),
            false => Ok(()),
        }
    }

    /// Merges a message. `shape` is `None` below fields without a descriptor.
    fn message(
        &self,
        shape: Option<ShapeId>,
        mut original: Map,
        mut patch: Map,
    ) -> Result<Map, PatchError> {
        match patch.remove(DIRECTIVE) {
            None => {}
            Some(directive) => match directive.as_str() {
                Some("replace") => return Ok(plain_map(patch)),
                Some("delete") => return Ok(Map::new()),
                Some("merge") => {}
                _ => return Err(unknown_directive(&directive)),
            },
        }
        retain_keys(&mut original, &mut patch)?;
        self.ordered_lists(shape, &mut original, &mut patch)?;
        delete_primitives(&mut original, &mut patch)?;
        original.change_all(patch, |key, have, value| self.entry(shape, key, have, value))?;
        Ok(original)
    }

    /// Merges one entry of the patch.
    fn entry(
        &self,
        shape: Option<ShapeId>,
        key: &str,
        have: Option<Value>,
        value: Value,
    ) -> Result<Option<Value>, PatchError> {
        let merged = match (have, value) {
            (_, Value::Null) => return Ok(None),
            (Some(Value::Map(original)), Value::Map(patch)) => {
                Value::Map(self.message(self.message_below(shape, key), original, patch)?)
            }
            (Some(Value::List(original)), Value::List(patch)) => {
                Value::List(self.list(self.list_below(shape, key), original, patch)?)
            }
            (_, value) => plain(value),
        };
        Ok(Some(merged))
    }

    /// Merges the lists with a `$setElementOrder` directive and removes them from the patch.
    fn ordered_lists(
        &self,
        shape: Option<ShapeId>,
        original: &mut Map,
        patch: &mut Map,
    ) -> Result<(), PatchError> {
        let ordered: Vec<String> = patch
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(ELEMENT_ORDER))
            .map(str::to_owned)
            .collect();
        for name in ordered {
            let directive = format!("{ELEMENT_ORDER}{name}");
            let Some(Value::List(order)) = patch.remove(&directive) else {
                return Err(not_a_list(&directive));
            };
            let list = self.list_below(shape, &name);
            let key = list.strategy.merge_key.filter(|key| !key.is_empty());
            let before = original.list(&name).to_vec();
            let merged = match patch.remove(&name) {
                Some(Value::List(items)) => {
                    check_order(&name, &items, &order, key)?;
                    self.list(list, before.clone(), items)?
                }
                Some(Value::Null) => {
                    original.remove(&name);
                    continue;
                }
                Some(_) => return Err(not_a_list(&name)),
                None if original.contains(&name) => before.clone(),
                None => continue,
            };
            original.insert(name, normalize(merged, &order, &before, key));
        }
        Ok(())
    }

    /// Merges two lists by the field's strategy.
    fn list(
        &self,
        list: ListBelow,
        original: Vec<Value>,
        patch: Vec<Value>,
    ) -> Result<Vec<Value>, PatchError> {
        let Some(key) = list.strategy.merge_key else {
            return Ok(patch.into_iter().map(plain).collect());
        };
        if key.is_empty() {
            let before = original.clone();
            let mut have: HashSet<String> = original.iter().map(Value::identity).collect();
            let mut merged = original;
            merged.extend(patch.iter().filter(|item| have.insert(item.identity())).cloned());
            return Ok(normalize(merged, &patch, &before, None));
        }
        self.keyed_list(list.item, key, original, patch)
    }

    fn keyed_list(
        &self,
        item_shape: Option<ShapeId>,
        key: &str,
        original: Vec<Value>,
        patch: Vec<Value>,
    ) -> Result<Vec<Value>, PatchError> {
        let (original, patch) = list_directives(key, original, patch)?;
        let before = original.clone();
        let mut merged = original;
        let mut places = places(&merged, Some(key));
        let mut named = HashSet::new();
        for item in &patch {
            let Value::Map(item_map) = item else {
                return Err(inapplicable("items of a list merged by key must be objects"));
            };
            let Some(id) = identity(item, Some(key)) else {
                return Err(inapplicable(&format!(
                    "map does not contain declared merge key: {key}"
                )));
            };
            let at = *places.entry(id).or_insert(merged.len());
            if !named.insert(at) {
                self.merge_again(merged.get(at))?;
            }
            match merged.get_mut(at) {
                Some(Value::Map(have)) => {
                    let have_taken = std::mem::take(have);
                    *have = self.message(item_shape, have_taken, item_map.clone())?;
                }
                _ => merged.push(plain(item.clone())),
            }
        }
        Ok(normalize(merged, &patch, &before, Some(key)))
    }

    fn field(&self, shape: Option<ShapeId>, name: &str) -> Option<&'a Field> {
        self.shapes.get(shape?).field(name)
    }

    pub(super) fn message_below(&self, shape: Option<ShapeId>, name: &str) -> Option<ShapeId> {
        match self.field(shape, name)?.ty {
            Type::Message(shape) => Some(shape),
            _ => None,
        }
    }

    pub(super) fn list_below(&self, shape: Option<ShapeId>, name: &str) -> ListBelow {
        let Some(field) = self.field(shape, name) else { return ListBelow::default() };
        let item = match &field.ty {
            Type::List(item) => match **item {
                Type::Message(shape) => Some(shape),
                _ => None,
            },
            _ => None,
        };
        ListBelow { strategy: field.patch, item }
    }
}

/// Merge strategy and item shape of a list field.
#[derive(Default)]
pub(super) struct ListBelow {
    pub(super) strategy: PatchStrategy,
    pub(super) item: Option<ShapeId>,
}

/// Applies `$deleteFromPrimitiveList` directives and removes them from the patch.
fn delete_primitives(original: &mut Map, patch: &mut Map) -> Result<(), PatchError> {
    for (key, value) in patch.iter().filter(|(key, _)| key.starts_with(DELETE_PRIMITIVES)) {
        let doomed = value.as_list().ok_or_else(|| not_a_list(key))?;
        let doomed: HashSet<String> = doomed.iter().map(Value::identity).collect();
        let name = key.strip_prefix(DELETE_PRIMITIVES).unwrap_or_default();
        if let Some(items) = original.list_mut(name) {
            items.retain(|item| !doomed.contains(&item.identity()));
        }
    }
    patch.retain(|key, _| !key.starts_with(DELETE_PRIMITIVES));
    Ok(())
}

/// Applies `$retainKeys`: removes all keys that it does not list. It must list every other key of the patch.
fn retain_keys(original: &mut Map, patch: &mut Map) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let keys = keys.as_list().ok_or_else(|| not_a_list(RETAIN_KEYS))?;
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let named = |key: &str| keys.contains(key);
    let stray = patch
        .iter()
        .find(|(key, value)| !key.starts_with('$') && **value != Value::Null && !named(key));
    if let Some((key, _)) = stray {
        return Err(inapplicable(&format!(
            "{RETAIN_KEYS} does not name {key:?}, which the patch sets"
        )));
    }
    original.retain(|key, _| named(key));
    Ok(())
}

/// Applies the `$patch` directives among the items of a list and removes them.
fn list_directives(
    key: &str,
    mut original: Vec<Value>,
    patch: Vec<Value>,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut doomed = HashSet::new();
    let mut replace = false;
    for item in patch {
        let Some(directive) = item.as_map().and_then(|map| map.get(DIRECTIVE)) else {
            rest.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let id = identity(&item, Some(key)).ok_or_else(|| {
                    inapplicable(&format!("delete patch type with no merge key {key:?} defined"))
                })?;
                doomed.insert(id);
            }
            Some("replace") => replace = true,
            _ => return Err(unknown_directive(directive)),
        }
    }
    if replace {
        return Ok((Vec::new(), rest));
    }
    if !doomed.is_empty() {
        let stays = |item: &Value| identity(item, Some(key)).is_none_or(|id| !doomed.contains(&id));
        original.retain(stays);
    }
    Ok((original, rest))
}

/// Checks that every item of the patch's list is in its `$setElementOrder`.
fn check_order(
    name: &str,
    items: &[Value],
    order: &[Value],
    key: Option<&str>,
) -> Result<(), PatchError> {
    let is_delete = |item: &Value| item.as_map().is_some_and(|map| map.contains(DIRECTIVE));
    let order = places(order, key);
    let ordered = |item: &Value| identity(item, key).is_some_and(|id| order.contains_key(&id));
    let stray = items.iter().find(|item| !is_delete(item) && !ordered(item));
    match stray {
        None => Ok(()),
        Some(_) => Err(inapplicable(&format!(
            "the order in patch list {name:?} doesn't match {ELEMENT_ORDER}{name} list"
        ))),
    }
}

/// A value of a patch without directives and nulls, for a field that the object does not have.
fn plain(value: Value) -> Value {
    match value {
        Value::Map(map) => Value::Map(plain_map(map)),
        Value::List(items) => {
            let marked = |item: &Value| {
                item.as_map()
                    .is_some_and(|map| map.str(DIRECTIVE) == "delete" || is_only_directive(map))
            };
            Value::List(items.into_iter().filter(|item| !marked(item)).map(plain).collect())
        }
        scalar => scalar,
    }
}

fn is_only_directive(map: &Map) -> bool {
    map.len() == 1 && map.contains(DIRECTIVE)
}

fn plain_map(map: Map) -> Map {
    let kept = map.into_iter().filter(|(key, value)| {
        let directive = key == DIRECTIVE
            || key == RETAIN_KEYS
            || key.starts_with(DELETE_PRIMITIVES)
            || key.starts_with(ELEMENT_ORDER);
        !directive && *value != Value::Null
    });
    kept.map(|(key, value)| (key, plain(value))).collect()
}

fn unknown_directive(directive: &Value) -> PatchError {
    let mut text = Vec::new();
    crate::value::write_json(&mut text, directive);
    PatchError::Malformed(format!("unknown patch type {}", String::from_utf8_lossy(&text)))
}

fn not_a_list(key: &str) -> PatchError {
    PatchError::Malformed(format!("{key} must be a list"))
}

fn inapplicable(why: &str) -> PatchError {
    PatchError::Inapplicable(why.to_owned())
}
