//! `fieldsV1`: sets as JSON objects, in the order and with the bytes of Kubernetes.

use apiserver_schema::value::{Key, parse_json, write_json};
use apiserver_schema::{Map, Value};

use super::{FieldSet, Node};
use crate::element::{ElementError, PathElement};

/// Steps of the longest path that is read or computed.
pub const MAX_DEPTH: usize = 100;

/// Steps of all sets of one object together that are read and stored: more than fit a request.
pub const MAX_PATHS: usize = 400_000;

/// Why a value is not `fieldsV1`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldsError {
    /// Not JSON.
    #[error("fieldsV1 is not JSON: {0}")]
    Json(String),
    /// The value of a path element is not an object.
    #[error("fieldsV1: {element:?} is {got}, expected an object")]
    NotAnObject {
        /// The key, `fieldsV1` for the whole.
        element: String,
        /// Its JSON type.
        got: &'static str,
    },
    /// A key is not a path element.
    #[error("fieldsV1: {0}")]
    Element(#[from] ElementError),
    /// A path has more than [`MAX_DEPTH`] steps.
    #[error("fieldsV1 has a path with more than {MAX_DEPTH} steps")]
    TooDeep,
    /// The sets have more than [`MAX_PATHS`] steps.
    #[error("the managed fields have more than {MAX_PATHS} paths")]
    TooMany,
}

/// What is left of the bound on the sets of one object.
#[derive(Debug)]
pub struct PathBudget {
    paths: usize,
}

impl Default for PathBudget {
    fn default() -> Self {
        PathBudget { paths: MAX_PATHS }
    }
}

impl PathBudget {
    /// A bound of `paths` steps.
    pub(crate) fn of(paths: usize) -> Self {
        PathBudget { paths }
    }

    fn take(&mut self, steps: usize) -> Result<(), FieldsError> {
        self.paths = self.paths.checked_sub(steps).ok_or(FieldsError::TooMany)?;
        Ok(())
    }
}

impl FieldSet {
    /// Checks the bounds of sets that are read.
    pub(crate) fn check(&self, limits: &mut PathBudget) -> Result<(), FieldsError> {
        self.check_below(0, limits)
    }

    fn check_below(&self, depth: usize, limits: &mut PathBudget) -> Result<(), FieldsError> {
        if depth == MAX_DEPTH && !self.is_empty() {
            return Err(FieldsError::TooDeep);
        }
        limits.take(self.nodes.len())?;
        self.nodes
            .values()
            .try_for_each(|node| node.below.check_below(depth.saturating_add(1), limits))
    }

    /// Reads `fieldsV1`.
    pub fn from_json(text: &[u8]) -> Result<FieldSet, FieldsError> {
        let value = parse_json(text, &mut Vec::new());
        let value = value.map_err(|error| FieldsError::Json(error.to_string()))?;
        FieldSet::from_value(&value, &mut PathBudget::default())
    }

    /// Reads `fieldsV1` of a tree. Elements of unknown types are skipped.
    pub fn from_value(value: &Value, limits: &mut PathBudget) -> Result<FieldSet, FieldsError> {
        read("fieldsV1", value, 0, limits).map(|node| node.below)
    }

    /// `fieldsV1` as text.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::new();
        write_json(&mut out, &self.to_value());
        out
    }

    /// `fieldsV1` as a tree, whose maps keep Kubernetes' order.
    pub fn to_value(&self) -> Value {
        Value::Map(self.to_map(false))
    }

    fn to_map(&self, with_self: bool) -> Map {
        let own = with_self.then(|| (Key::Borrowed("."), Value::Map(Map::new())));
        let below = self.nodes.iter().map(|(element, node)| {
            let with_self = node.member && !node.below.is_empty();
            (Key::Owned(element.text()), Value::Map(node.below.to_map(with_self)))
        });
        Map::from_ordered(own.into_iter().chain(below).collect())
    }
}

fn read(
    at: &str,
    value: &Value,
    depth: usize,
    limits: &mut PathBudget,
) -> Result<Node, FieldsError> {
    let Value::Map(map) = value else {
        return Err(FieldsError::NotAnObject { element: at.to_owned(), got: value.shape() });
    };
    let mut node = Node::default();
    for (key, value) in map.iter() {
        if key == "." {
            node.member = true;
            continue;
        }
        let Some(element) = PathElement::parse(key)? else { continue };
        if depth == MAX_DEPTH {
            return Err(FieldsError::TooDeep);
        }
        limits.take(1)?;
        node.below.add(element, read(key, value, depth.saturating_add(1), limits)?);
    }
    node.member |= node.below.is_empty(); // an empty object is the path itself
    Ok(node)
}
