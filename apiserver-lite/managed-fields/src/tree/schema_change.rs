//! Sets that were written under an older schema.

use crate::element::PathElement;
use crate::set::{FieldSet, Node};
use crate::structure::{Relation, Structure, TypeId};

/// Changes the set to what it is under the present schema: of lists, maps and messages that became atomic their owners own the whole. What was
/// atomic and is granular now stays as it is.
pub(super) fn reconcile(structure: &Structure, ty: TypeId, fields: &mut FieldSet) {
    let atom = structure.atom(ty);
    // Of values without a schema nothing is known to have changed.
    let map = atom.map.as_ref().filter(|_| !atom.is_untyped());
    let list = atom.list.as_ref().filter(|_| atom.map.is_none());
    fields.each_node_mut(|element, node| {
        let below = match element {
            PathElement::Field(name) => map.and_then(|map| map.value(name)),
            _ => list.map(|list| list.item),
        };
        if let Some(ty) = below {
            reconcile_node(structure, ty, node);
        }
    });
}

fn reconcile_node(structure: &Structure, ty: TypeId, node: &mut Node) {
    if node.below.is_empty() {
        return;
    }
    let atom = structure.atom(ty);
    let is_atomic = match (&atom.map, &atom.list) {
        (Some(map), _) => map.atomic,
        (None, Some(list)) => matches!(list.relation, Relation::Atomic),
        (None, None) => false,
    };
    if is_atomic {
        *node = Node::leaf();
    } else {
        reconcile(structure, ty, &mut node.below);
    }
}
