//! The fields that a tree has.

use apiserver_schema::Value;

use super::{items, node};
use crate::element::PathElement;
use crate::set::{FieldSet, Node};
use crate::structure::{ListType, MapType, Relation, Shape, Structure, TypeId};

pub(super) fn fields_of_value(structure: &Structure, ty: TypeId, value: &Value) -> Node {
    proto_api::count_steps!(1);
    match structure.shape(ty, value) {
        Shape::Scalar(_) => Node::leaf(),
        Shape::List(ListType { relation: Relation::Atomic, .. })
        | Shape::Map(MapType { atomic: true, .. }) => Node::leaf(),
        Shape::List(list) => {
            let mut below = FieldSet::new();
            for (at, item) in value.as_list().unwrap_or_default().iter().enumerate() {
                let found = fields_of_value(structure, list.item, item);
                below.add(items::element(list, at, item), node(true, found.below));
            }
            node(false, below)
        }
        Shape::Map(map) => {
            let mut below = FieldSet::new();
            for (key, value) in value.as_map().into_iter().flat_map(|map| map.iter()) {
                let Some(ty) = map.value(key) else { continue };
                let mut found = fields_of_value(structure, ty, value);
                let is_empty = match value {
                    Value::Null => true,
                    Value::Map(map) => map.is_empty(),
                    _ => false,
                };
                found.member |= is_empty || map.field(key).is_none();
                below.add(PathElement::field(key), found);
            }
            node(false, below)
        }
    }
}

/// `fields` with the declared fields that lead to members; `ty` is `None` for what the schema does not know.
pub(super) fn with_declared(
    structure: &Structure,
    ty: Option<TypeId>,
    fields: &FieldSet,
) -> FieldSet {
    let atom = ty.map(|ty| structure.atom(ty));
    let map = atom.and_then(|atom| atom.map.as_ref());
    let list = atom.and_then(|atom| atom.list.as_ref());
    fields.combine(|element, have| {
        let (below, declared) = match element {
            PathElement::Field(name) => {
                let declared = map.is_some_and(|map| map.field(name).is_some());
                (map.and_then(|map| map.value(name)), declared)
            }
            PathElement::Key(_) => (list.map(|list| list.item), false),
            PathElement::Value(_) | PathElement::Index(_) => (None, false),
        };
        let member = have.member || declared;
        Some(node(member, with_declared(structure, below, &have.below)))
    })
}
