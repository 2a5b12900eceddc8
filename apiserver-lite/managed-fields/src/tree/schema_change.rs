//! Sets that were written under an older schema.

use super::node;
use crate::element::PathElement;
use crate::set::{FieldSet, Node};
use crate::structure::{Relation, Structure, TypeId};

/// The set under the present schema: of lists, maps and messages that became atomic their owners own the whole. What was atomic and is
/// granular now stays as it is.
pub(super) fn reconcile(structure: &Structure, ty: TypeId, fields: &FieldSet) -> FieldSet {
    let atom = structure.atom(ty);
    // Of values without a schema nothing is known to have changed.
    let map = atom.map.as_ref().filter(|_| !atom.is_untyped());
    let list = atom.list.as_ref().filter(|_| atom.map.is_none());
    fields.combine(|element, have| {
        let below = match element {
            PathElement::Field(name) => map.and_then(|map| map.value(name)),
            _ => list.map(|list| list.item),
        };
        Some(match below {
            Some(ty) => reconcile_node(structure, ty, have),
            None => have.clone(),
        })
    })
}

fn reconcile_node(structure: &Structure, ty: TypeId, have: &Node) -> Node {
    if have.below.is_empty() {
        return have.clone();
    }
    let atom = structure.atom(ty);
    let is_atomic = match (&atom.map, &atom.list) {
        (Some(map), _) => map.atomic,
        (None, Some(list)) => matches!(list.relation, Relation::Atomic),
        (None, None) => false,
    };
    if is_atomic {
        return Node::leaf();
    }
    node(have.member, reconcile(structure, ty, &have.below))
}
