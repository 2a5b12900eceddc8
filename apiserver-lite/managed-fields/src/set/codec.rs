//! `fieldsV1`: sets as JSON objects, in the order and with the bytes of Kubernetes.

use std::fmt;

use apiserver_schema::Value;
use apiserver_schema::value::{write_json, write_json_string};
use serde::Deserializer;
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};

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
    pub(crate) fn with_paths(paths: usize) -> Self {
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

    /// Reads `fieldsV1`. Elements of unknown types are skipped.
    pub fn from_json(text: &[u8]) -> Result<FieldSet, FieldsError> {
        read(text, &mut PathBudget::default())
    }

    /// Reads `fieldsV1` of a tree.
    pub fn from_value(value: &Value, limits: &mut PathBudget) -> Result<FieldSet, FieldsError> {
        match value {
            Value::Json(text) => read(text.as_bytes(), limits),
            other => {
                let mut text = Vec::new();
                write_json(&mut text, other);
                read(&text, limits)
            }
        }
    }

    /// `fieldsV1` as text, in Kubernetes' order.
    pub fn to_json(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out, false);
        out
    }

    /// `fieldsV1` of a tree.
    pub fn to_value(&self) -> Value {
        Value::Json(String::from_utf8_lossy(&self.to_json()).into())
    }

    fn write(&self, out: &mut Vec<u8>, with_self: bool) {
        out.push(b'{');
        if with_self {
            out.extend_from_slice(br#"".":{}"#);
        }
        let mut is_first = !with_self;
        for (element, node) in &self.nodes {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            write_json_string(out, &element.text());
            out.push(b':');
            node.below.write(out, node.member && !node.below.is_empty());
        }
        out.push(b'}');
    }
}

fn read(text: &[u8], limits: &mut PathBudget) -> Result<FieldSet, FieldsError> {
    let mut refused = None;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let seed = NodeSeed { at: "fieldsV1", depth: 0, limits, refused: &mut refused };
    let node = seed.deserialize(&mut reader).and_then(|node| reader.end().map(|()| node));
    node.map(|node| node.below)
        .map_err(|error| refused.unwrap_or_else(|| FieldsError::Json(error.to_string())))
}

/// Reads what is at and below one path.
struct NodeSeed<'a> {
    /// The key.
    at: &'a str,
    depth: usize,
    limits: &'a mut PathBudget,
    /// Why a set is refused that is JSON: serde's errors are texts.
    refused: &'a mut Option<FieldsError>,
}

impl NodeSeed<'_> {
    fn refuse<E: de::Error>(self, why: FieldsError) -> E {
        let text = E::custom(&why);
        *self.refused = Some(why);
        text
    }

    fn not_an_object<E: de::Error>(self, got: &'static str) -> E {
        let element = self.at.to_owned();
        self.refuse(FieldsError::NotAnObject { element, got })
    }
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Err(self.not_an_object("null"))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Node, E> {
        Err(self.not_an_object("bool"))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Node, E> {
        Err(self.not_an_object("number"))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Node, E> {
        Err(self.not_an_object("number"))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Node, E> {
        Err(self.not_an_object("number"))
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Node, E> {
        Err(self.not_an_object("string"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Node, A::Error> {
        Err(self.not_an_object("array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut node = Node::default();
        while let Some(key) = entries.next_key::<String>()? {
            if key == "." {
                entries.next_value::<IgnoredAny>()?;
                node.member = true;
                continue;
            }
            let element = match PathElement::parse(&key) {
                Ok(Some(element)) => element,
                Ok(None) => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
                Err(error) => return Err(self.refuse(error.into())),
            };
            if self.depth == MAX_DEPTH {
                return Err(self.refuse(FieldsError::TooDeep));
            }
            if let Err(error) = self.limits.take(1) {
                return Err(self.refuse(error));
            }
            let below = entries.next_value_seed(NodeSeed {
                at: &key,
                depth: self.depth.saturating_add(1),
                limits: self.limits,
                refused: self.refused,
            })?;
            node.below.add(element, below);
        }
        node.member |= node.below.is_empty(); // an empty object is the path itself
        Ok(node)
    }
}
