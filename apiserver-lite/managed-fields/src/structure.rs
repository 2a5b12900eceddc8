//! How ownership of an object's values is split: by key, by item, or as a whole. Both built-in kinds and OpenAPI schemas of custom
//! resources compile to a [`Structure`].

use std::borrow::Cow;
use std::sync::Arc;

use apiserver_schema::Value;

mod built_in;
mod openapi;
#[cfg(test)]
mod tests;

pub use built_in::BuiltInStructures;
#[cfg(test)]
pub(crate) use built_in::Markers;
pub use openapi::StructureError;

/// Index of an [`Atom`] in a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TypeId(u32);

/// The types of the objects of one kind in one version. Clones share the types.
#[derive(Clone, Debug)]
pub struct Structure {
    types: Arc<Vec<Atom>>,
    root: TypeId,
}

/// A type: the alternatives for values that are scalars, lists and maps. At least one is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Atom {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<ListType>,
    pub(crate) map: Option<MapType>,
}

/// What a scalar may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Number,
    Text,
    Bool,
    Any,
}

#[derive(Clone, Debug)]
pub(crate) struct ListType {
    pub(crate) relation: Relation,
    pub(crate) item: TypeId,
}

/// Who may own the items of a list.
#[derive(Clone, Debug)]
pub(crate) enum Relation {
    /// The owner of the list.
    Atomic,
    /// Each item, a scalar, has owners.
    Set,
    /// Each item has owners and is identified by key fields.
    Map(Vec<KeyField>),
}

/// A field that identifies list items, with the value that an item without it has.
#[derive(Clone, Debug)]
pub(crate) struct KeyField {
    pub(crate) name: Cow<'static, str>,
    pub(crate) default: Option<Value>,
}

/// A message or map.
#[derive(Clone, Debug, Default)]
pub(crate) struct MapType {
    /// Whether it has an owner only as a whole.
    pub(crate) atomic: bool,
    /// Declared fields, sorted by name.
    pub(crate) fields: Vec<(Cow<'static, str>, TypeId)>,
    /// The type of other keys; they are not allowed without one.
    pub(crate) other: Option<TypeId>,
}

impl MapType {
    /// The type of a declared field.
    pub(crate) fn field(&self, name: &str) -> Option<TypeId> {
        let at = self.fields.binary_search_by(|(have, _)| have.as_ref().cmp(name)).ok()?;
        self.fields.get(at).map(|(_, ty)| *ty)
    }

    /// The type of a key.
    pub(crate) fn value(&self, key: &str) -> Option<TypeId> {
        self.field(key).or(self.other)
    }
}

/// The alternative of a type that a value takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    Map(&'a MapType),
    Scalar(Scalar),
    List(&'a ListType),
}

impl Atom {
    /// The alternative for `value`. A value that none fits, and null, take the first.
    pub(crate) fn shape(&self, value: &Value) -> Shape<'_> {
        let fitting = match value {
            Value::Map(_) => self.map.as_ref().map(Shape::Map),
            Value::List(_) => self.list.as_ref().map(Shape::List),
            Value::Null => None,
            _ => self.scalar.map(Shape::Scalar),
        };
        fitting.unwrap_or_else(|| self.first())
    }

    fn first(&self) -> Shape<'_> {
        match (&self.map, self.scalar, &self.list) {
            (Some(map), ..) => Shape::Map(map),
            (None, Some(scalar), _) => Shape::Scalar(scalar),
            (None, None, Some(list)) => Shape::List(list),
            (None, None, None) => Shape::Scalar(Scalar::Any), // no such type is made
        }
    }

    fn scalar(scalar: Scalar) -> Self {
        Atom { scalar: Some(scalar), ..Atom::default() }
    }

    fn list(relation: Relation, item: TypeId) -> Self {
        Atom { list: Some(ListType { relation, item }), ..Atom::default() }
    }

    fn map(map: MapType) -> Self {
        Atom { map: Some(map), ..Atom::default() }
    }

    /// Whether any value fits, as in raw JSON.
    pub(crate) fn is_untyped(&self) -> bool {
        self.scalar == Some(Scalar::Any) && self.map.is_some()
    }
}

impl Structure {
    pub(crate) fn new(types: Arc<Vec<Atom>>, root: TypeId) -> Self {
        Structure { types, root }
    }

    /// For objects without a schema: maps by key, lists as a whole.
    pub fn deduced() -> Self {
        let mut types = Types::default();
        let root = types.deduced();
        types.finish(root)
    }

    pub(crate) fn root(&self) -> TypeId {
        self.root
    }

    pub(crate) fn atom(&self, ty: TypeId) -> &Atom {
        &self.types[ty.0 as usize] // ids are made by `Types`, for this vector only
    }
}

/// The types of structures that are being made.
#[derive(Debug, Default)]
struct Types {
    atoms: Vec<Atom>,
    untyped: Option<TypeId>,
    deduced: Option<TypeId>,
}

impl Types {
    fn push(&mut self, atom: Atom) -> TypeId {
        let id = TypeId(self.atoms.len() as u32); // schemas are bounded by the size of a request
        self.atoms.push(atom);
        id
    }

    fn set(&mut self, id: TypeId, atom: Atom) {
        self.atoms[id.0 as usize] = atom; // an id that `push` returned
    }

    /// Any value, with one owner.
    fn untyped(&mut self) -> TypeId {
        if let Some(id) = self.untyped {
            return id;
        }
        let id = self.push(Atom::scalar(Scalar::Any));
        let map = MapType { atomic: true, fields: Vec::new(), other: Some(id) };
        let list = ListType { relation: Relation::Atomic, item: id };
        self.set(id, Atom { scalar: Some(Scalar::Any), list: Some(list), map: Some(map) });
        self.untyped = Some(id);
        id
    }

    /// Any value: maps by key, lists as a whole.
    fn deduced(&mut self) -> TypeId {
        if let Some(id) = self.deduced {
            return id;
        }
        let item = self.untyped();
        let id = self.push(Atom::scalar(Scalar::Any));
        let map = MapType { atomic: false, fields: Vec::new(), other: Some(id) };
        let list = ListType { relation: Relation::Atomic, item };
        self.set(id, Atom { scalar: Some(Scalar::Any), list: Some(list), map: Some(map) });
        self.deduced = Some(id);
        id
    }

    fn finish(self, root: TypeId) -> Structure {
        Structure::new(Arc::new(self.atoms), root)
    }
}
