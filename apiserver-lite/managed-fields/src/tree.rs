//! Trees of objects and their fields: which fields a tree has, how two trees differ, merging, removing and extracting.
//!
//! All walk a tree along its [`Structure`], with work in proportion to the tree (and a logarithm for sorted keys). A tree has the form in
//! which clients read the object, see `Engine::written_document`.

use std::fmt;

use apiserver_schema::Value;

use crate::set::{FieldSet, MAX_DEPTH, Node};
use crate::structure::{Shape, Structure, TypeId};

mod compare;
mod fields;
mod items;
mod merge;
mod remove;
mod schema_change;
#[cfg(test)]
mod tests;
mod validate;

pub use compare::Comparison;

/// What is wrong with a tree, each with the path of the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
pub struct TreeError {
    /// At most [`TreeError::MAX`].
    pub problems: Vec<Problem>,
}

/// One fault of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path of the value; empty for the object.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl TreeError {
    /// Problems that one error lists.
    pub const MAX: usize = 50;
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            return f.write_str(&self.message);
        }
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [problem] = &self.problems[..] {
            return problem.fmt(f);
        }
        f.write_str("errors:")?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl Structure {
    /// The fields that a tree has: leaves, items of lists and keys of maps. Atomic lists, maps and messages are leaves; of empty ones only
    /// maps are fields.
    pub fn fields_of(&self, tree: &Value) -> FieldSet {
        fields::fields_of_value(self, self.root(), tree).below
    }

    /// What changed from one tree to another. Items of lists are compared by their keys, whatever their order.
    pub fn compare(&self, old: &Value, new: &Value) -> Comparison {
        compare::trees(self, old, new)
    }

    /// Checks a tree that a client applies: types, undeclared fields, duplicate items and missing keys of items.
    pub fn validate(&self, tree: &Value) -> Result<(), TreeError> {
        validate::tree(self, tree)
    }

    /// `live` with the values of `config`; nothing is removed. Merged lists are in the order of `config`, other items stay where they are.
    pub fn merge(&self, live: &Value, config: &Value) -> Value {
        merge::values(self, self.root(), live, config).unwrap_or_default()
    }

    /// The tree without the items and keys in `fields`. What would be empty is null.
    pub fn without(&self, tree: &Value, fields: &FieldSet) -> Value {
        remove::without(self, self.root(), tree, fields)
    }

    /// The part of the tree that `fields` names.
    pub fn extract(&self, tree: &Value, fields: &FieldSet) -> Value {
        remove::only(self, self.root(), tree, fields).unwrap_or_default()
    }

    /// `fields` and, of declared fields that lead to members, the paths.
    pub(crate) fn with_declared(&self, fields: &FieldSet) -> FieldSet {
        fields::with_declared(self, Some(self.root()), fields)
    }

    /// `fields`, written under an older schema, under this one: what became atomic is owned as a whole.
    pub(crate) fn reconcile(&self, mut fields: FieldSet) -> FieldSet {
        schema_change::reconcile(self, self.root(), &mut fields);
        fields
    }

    /// The alternative of type `ty` that `value` takes.
    fn shape(&self, ty: TypeId, value: &Value) -> Shape<'_> {
        self.atom(ty).shape(value)
    }
}

/// Whether a tree is nested deeper than sets describe.
pub(crate) fn is_too_deep(tree: &Value) -> bool {
    fn deeper(value: &Value, left: usize) -> bool {
        let below = |value: &Value| match left.checked_sub(1) {
            Some(left) => deeper(value, left),
            None => true,
        };
        match value {
            Value::List(items) => items.iter().any(below),
            Value::Map(map) => map.iter().any(|(_, value)| below(value)),
            _ => false,
        }
    }
    deeper(tree, MAX_DEPTH)
}

/// A node whose path is a member if `member`.
fn node(member: bool, below: FieldSet) -> Node {
    Node { member, below }
}
