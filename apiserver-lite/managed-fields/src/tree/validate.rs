//! Checks of trees that clients apply.

use std::collections::BTreeSet;
use std::fmt;

use apiserver_schema::Value;

use super::{Problem, TreeError, is_too_deep, items};
use crate::element::PathElement;
use crate::set::MAX_DEPTH;
use crate::structure::{ListType, MapType, Relation, Scalar, Shape, Structure, TypeId};

pub(super) fn tree(structure: &Structure, tree: &Value) -> Result<(), TreeError> {
    let mut walk = Walk { structure, error: TreeError::default() };
    if is_too_deep(tree) {
        walk.problem(
            &TreePath::ROOT,
            format!("the object is nested more than {MAX_DEPTH} levels deep"),
        );
    } else {
        walk.value(structure.root(), tree, &TreePath::ROOT);
    }
    if walk.error.problems.is_empty() { Ok(()) } else { Err(walk.error) }
}

/// A place in a tree; its path is formatted only for messages.
struct TreePath<'a> {
    parent: Option<&'a TreePath<'a>>,
    element: Option<PathElement>,
}

impl<'a> TreePath<'a> {
    const ROOT: TreePath<'static> = TreePath { parent: None, element: None };

    fn below(&'a self, element: PathElement) -> TreePath<'a> {
        TreePath { parent: Some(self), element: Some(element) }
    }

    fn path(&self) -> String {
        let lead = self.parent.map(TreePath::path).unwrap_or_default();
        self.element.as_ref().map_or(lead.clone(), |element| format!("{lead}{element}"))
    }
}

struct Walk<'a> {
    structure: &'a Structure,
    error: TreeError,
}

impl Walk<'_> {
    fn problem(&mut self, place: &TreePath<'_>, message: String) {
        if self.error.problems.len() < TreeError::MAX {
            let message = shortened(message);
            self.error.problems.push(Problem { path: place.path(), message });
        }
    }

    fn value(&mut self, ty: TypeId, value: &Value, place: &TreePath<'_>) {
        let structure = self.structure;
        match (structure.shape(ty, value), value) {
            (_, Value::Null) => {}
            (Shape::Scalar(scalar), value) => {
                if let Some(message) = mismatch(scalar, value) {
                    self.problem(place, message);
                }
            }
            (Shape::List(list), Value::List(items)) => self.list(list, items, place),
            (Shape::Map(map), Value::Map(value)) => {
                for (key, value) in value.iter() {
                    self.field(map, key, value, place);
                }
            }
            (Shape::List(_), other) => {
                self.problem(place, format!("expected list, got &{{{}}}", Go(other)));
            }
            (Shape::Map(_), other) => {
                self.problem(place, format!("expected map, got &{{{}}}", Go(other)));
            }
        }
    }

    fn field(&mut self, map: &MapType, key: &str, value: &Value, place: &TreePath<'_>) {
        let place = place.below(PathElement::field(key));
        match map.value(key) {
            Some(ty) => self.value(ty, value, &place),
            None => self.problem(&place, "field not declared in schema".to_owned()),
        }
    }

    fn list(&mut self, list: &ListType, values: &[Value], place: &TreePath<'_>) {
        let mut seen = BTreeSet::new();
        for (at, item) in values.iter().enumerate() {
            let element = if matches!(list.relation, Relation::Atomic) {
                items::element(list, at, item)
            } else {
                match items::try_element(list, item) {
                    Ok(element) => element,
                    Err(why) => {
                        self.problem(place, format!("element {at}: {why}"));
                        return;
                    }
                }
            };
            if seen.contains(&element) {
                self.problem(place, format!("duplicate entries for key {element}"));
            }
            let below = place.below(element.clone());
            self.value(list.item, item, &below);
            seen.insert(element);
        }
    }
}

/// What is wrong with a scalar, if anything.
fn mismatch(scalar: Scalar, value: &Value) -> Option<String> {
    match (scalar, value) {
        (Scalar::Number, Value::Int(_) | Value::Float(_))
        | (Scalar::Text, Value::String(_))
        | (Scalar::Bool, Value::Bool(_))
        | (Scalar::Any, _) => None,
        (Scalar::Number, value) => {
            Some(format!("expected numeric (int or float), got {}", go_type(value)))
        }
        (Scalar::Text, value) => {
            Some(format!("expected string, got &value.valueUnstructured{{Value:{}}}", Go(value)))
        }
        (Scalar::Bool, value) => Some(format!("expected boolean, got &{{{}}}", Go(value))),
    }
}

/// Name of a value's type in kube-apiserver's messages.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Int(_) => "int64",
        Value::Float(_) => "float64",
        Value::String(_) => "string",
        Value::List(_) => "[]interface {}",
        Value::Map(_) | Value::Json(_) => "map[string]interface {}",
    }
}

/// A value in kube-apiserver's messages.
struct Go<'a>(&'a Value);

impl fmt::Display for Go<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(flag) => write!(f, "{flag}"),
            Value::Int(number) => write!(f, "{number}"),
            Value::Float(number) => write!(f, "{number}"),
            Value::String(text) => f.write_str(text),
            Value::Json(text) => f.write_str(text),
            Value::List(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{}", if at > 0 { " " } else { "" }, Go(item))?;
                }
                f.write_str("]")
            }
            Value::Map(map) => {
                f.write_str("map[")?;
                for (at, (key, value)) in map.iter_sorted().enumerate() {
                    write!(f, "{}{key}:{}", if at > 0 { " " } else { "" }, Go(value))?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A message of at most this many bytes: values may be large.
const MESSAGE_MAX: usize = 500;

/// The start of a message that is too long.
fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let end = message.floor_char_boundary(MESSAGE_MAX);
        message.truncate(end);
        message.push_str("...");
    }
    message
}
