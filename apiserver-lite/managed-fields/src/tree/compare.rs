//! Differences of two trees.

use std::cmp::Ordering;

use apiserver_schema::{Map, Value};

use super::items::Items;
use crate::element::{PathElement, compare_values};
use crate::set::{FieldSet, Node};
use crate::structure::{Atom, ListType, MapType, Relation, Shape, Structure, TypeId};

/// What changed from one tree to another. No path is a member of two sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields that only the new tree has.
    pub added: FieldSet,
    /// Fields with another value.
    pub modified: FieldSet,
    /// Fields that only the old tree has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Whether nothing changed.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// The members of `fields` that are added or modified.
    pub fn written_of(&self, fields: &FieldSet) -> FieldSet {
        let mut written = self.added.intersection(fields);
        written.extend(self.modified.intersection(fields));
        written
    }

    /// The changes outside of `fields`.
    #[must_use]
    pub fn excluding(self, fields: &FieldSet) -> Self {
        if fields.is_empty() {
            return self;
        }
        Comparison {
            added: self.added.recursive_difference(fields),
            modified: self.modified.recursive_difference(fields),
            removed: self.removed.recursive_difference(fields),
        }
    }
}

pub(super) fn trees(structure: &Structure, old: &Value, new: &Value) -> Comparison {
    let delta = Walk { structure }.values(structure.root(), Some(old), Some(new));
    Comparison {
        added: delta.added.below,
        modified: delta.modified.below,
        removed: delta.removed.below,
    }
}

/// The changes at and below one path.
#[derive(Default)]
struct Delta {
    added: Node,
    modified: Node,
    removed: Node,
}

impl Delta {
    /// Adds the changes below the path of one element, which is made only for changes.
    fn add(&mut self, element: impl Fn() -> PathElement, below: Delta) {
        for (into, node) in [
            (&mut self.added, below.added),
            (&mut self.modified, below.modified),
            (&mut self.removed, below.removed),
        ] {
            if !node.is_empty() {
                into.below.add(element(), node);
            }
        }
    }
}

struct Walk<'a> {
    structure: &'a Structure,
}

impl Walk<'_> {
    fn values(&self, ty: TypeId, old: Option<&Value>, new: Option<&Value>) -> Delta {
        proto_api::count_steps!(1);
        let atom = self.structure.atom(ty);
        let mut delta = Delta::default();
        let is_leaf = match (old, new) {
            (None, None) => true,
            (Some(value), None) | (None, Some(value)) => {
                self.shaped(atom.shape(value), old, new, &mut delta)
            }
            (Some(a), Some(b)) if !takes_same(atom, a, b) => {
                // A value that became one of another shape is compared as both.
                self.shaped(atom.shape(a), old, new, &mut delta);
                self.shaped(atom.shape(b), old, new, &mut delta)
            }
            (Some(_), Some(b)) => self.shaped(atom.shape(b), old, new, &mut delta),
        };
        match (old, new) {
            (None, Some(_)) if !is_leaf => delta.added.member = true,
            (Some(_), None) if !is_leaf => delta.removed.member = true,
            _ => {}
        }
        delta
    }

    /// Compares values as one alternative of their type; returns whether they are one leaf.
    fn shaped(
        &self,
        shape: Shape<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        delta: &mut Delta,
    ) -> bool {
        match shape {
            Shape::Scalar(_) => leaf(old, new, delta),
            Shape::List(list) => {
                let a = old.and_then(Value::as_list).unwrap_or_default();
                let b = new.and_then(Value::as_list).unwrap_or_default();
                let is_atomic = matches!(list.relation, Relation::Atomic);
                if is_atomic || a.is_empty() && b.is_empty() {
                    return leaf(old, new, delta);
                }
                self.lists(list, a, b, delta);
                false
            }
            Shape::Map(map) => {
                let (a, b) = (old.and_then(Value::as_map), new.and_then(Value::as_map));
                let is_empty = |map: Option<&Map>| map.is_none_or(Map::is_empty);
                if map.atomic || is_empty(a) && is_empty(b) {
                    return leaf(old, new, delta);
                }
                self.maps(map, a, b, delta);
                false
            }
        }
    }

    fn maps(&self, map: &MapType, old: Option<&Map>, new: Option<&Map>, delta: &mut Delta) {
        let mut a = old.into_iter().flat_map(Map::iter_sorted).peekable();
        let mut b = new.into_iter().flat_map(Map::iter_sorted).peekable();
        loop {
            let order = match (a.peek(), b.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((x, _)), Some((y, _))) => x.cmp(y),
            };
            let old = if order.is_le() { a.next() } else { None };
            let new = if order.is_ge() { b.next() } else { None };
            let Some((key, _)) = old.or(new) else { return };
            let Some(ty) = map.value(key) else { continue };
            let below = self.values(ty, old.map(|(_, value)| value), new.map(|(_, value)| value));
            delta.add(|| PathElement::field(key), below);
        }
    }

    fn lists(&self, list: &ListType, old: &[Value], new: &[Value], delta: &mut Delta) {
        let (old, new) = (Items::new(list, old), Items::new(list, new));
        let (mut old, mut new) = (old.groups().peekable(), new.groups().peekable());
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((a, _)), Some((b, _))) => a.cmp(b),
            };
            let a = if order.is_le() { old.next() } else { None };
            let b = if order.is_ge() { new.next() } else { None };
            let Some(element) = a.as_ref().or(b.as_ref()).map(|(element, _)| *element) else {
                return;
            };
            let (a, b) =
                (a.unwrap_or((element, Vec::new())).1, b.unwrap_or((element, Vec::new())).1);
            let below = match (&a[..], &b[..]) {
                ([a], [b]) => self.values(list.item, Some(a), Some(b)),
                ([a], []) => self.values(list.item, Some(a), None),
                ([], [b]) => self.values(list.item, None, Some(b)),
                (a, b) => duplicates(a, b),
            };
            delta.add(|| element.clone(), below);
        }
    }
}

/// Items that one of the lists has several times are compared as one value.
fn duplicates(old: &[&Value], new: &[&Value]) -> Delta {
    let mut delta = Delta::default();
    let is_same =
        old.len() == new.len() && old.iter().zip(new).all(|(a, b)| compare_values(a, b).is_eq());
    match (old.is_empty(), new.is_empty()) {
        (true, _) => delta.added.member = true,
        (_, true) => delta.removed.member = true,
        _ => delta.modified.member = !is_same,
    }
    delta
}

fn leaf(old: Option<&Value>, new: Option<&Value>, delta: &mut Delta) -> bool {
    match (old, new) {
        (Some(a), Some(b)) => delta.modified.member |= compare_values(a, b).is_ne(),
        (None, Some(_)) => delta.added.member = true,
        (Some(_), None) => delta.removed.member = true,
        (None, None) => {}
    }
    true
}

/// Whether two values take the same alternatives of a type.
fn takes_same(atom: &Atom, a: &Value, b: &Value) -> bool {
    if !atom.is_untyped() {
        return true;
    }
    let rank = |value: &Value| match value {
        Value::Map(_) => 0,
        Value::List(_) => 1,
        Value::Null => 2,
        _ => 3,
    };
    rank(a) == rank(b)
}
