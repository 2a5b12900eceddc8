//! The schema of a version: what it says about objects.

use apiserver_schema::{FieldError, Map, Value};

use crate::errors::ErrorList;
use crate::node::{ListType, Node};
use crate::packed::CompressedTree;
use crate::pattern::Patterns;
use crate::read::{DefinitionReadError, Reader};
use crate::{default, open_api, prune, rules, validate};

/// A structural schema, compiled: patterns and rules are ready to run.
#[derive(Debug)]
pub struct Structural {
    pub(crate) root: Node,
    preserve_unknown: bool,
    /// `openAPIV3Schema` as it is stored, in JSON, compressed: the nodes are what is used all the time.
    source: CompressedTree,
}

/// Who owns the items of a list, and how items are identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListKind<'a> {
    /// The list is one value.
    Atomic,
    /// Items are scalars, each once.
    Set,
    /// Items are objects, identified by these fields.
    Map(&'a [String]),
}

impl Structural {
    /// Reads `openAPIV3Schema`. `preserve_unknown` is the definition's `preserveUnknownFields`.
    pub(crate) fn read(
        schema: &Map,
        preserve_unknown: bool,
        patterns: &mut Patterns,
    ) -> Result<Self, DefinitionReadError> {
        let mut root = Reader::new(patterns).read(schema)?;
        root.embedded = true;
        rules::compile(&mut root, patterns);
        Ok(Structural { root, preserve_unknown, source: CompressedTree::compress(schema) })
    }

    /// `openAPIV3Schema` as it is stored, from which field ownership makes its structure.
    pub fn source(&self) -> Map {
        self.source.unpack()
    }

    /// Removes fields that the schema does not have, and returns their paths. `apiVersion`, `kind` and `metadata` stay, at the root
    /// and in embedded resources.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        if self.preserve_unknown { Vec::new() } else { prune::prune(object, &self.root) }
    }

    /// Sets the defaults of fields that are not set, and of those that are null and must not be. Used on writing and on reading.
    pub fn default(&self, object: &mut Value) {
        default::default(object, &self.root);
    }

    /// Validates an object; `old` is the stored version of an update. `metadata` of the object itself is checked by the engine.
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = ErrorList::default();
        validate::validate(&self.root, new, old, &mut errors);
        errors.0
    }

    /// The schema as kube-apiserver publishes it in OpenAPI v2: without what its clients cannot read.
    pub fn open_api_v2(&self) -> serde_json::Value {
        open_api::v2(&self.source(), self.preserve_unknown)
    }

    /// The schema as kube-apiserver publishes it in OpenAPI v3.
    pub fn open_api_v3(&self) -> serde_json::Value {
        open_api::v3(&self.source())
    }

    /// How the list at a path of field names is owned; `None` if the schema has no list there. Items of lists and values of maps are
    /// `*` in the path.
    pub fn list_kind(&self, path: &[&str]) -> Option<ListKind<'_>> {
        let node = self.node(path)?;
        node.items.as_ref()?;
        Some(match &node.list {
            ListType::Atomic => ListKind::Atomic,
            ListType::Set => ListKind::Set,
            ListType::Map(keys) => ListKind::Map(keys),
        })
    }

    /// Whether the map at a path of field names is owned as a whole.
    pub fn is_atomic_map(&self, path: &[&str]) -> Option<bool> {
        self.node(path).map(|node| node.atomic_map)
    }

    fn node(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(&self.root, |node, step| match *step {
            "*" => node.items.as_deref().or_else(|| node.additional.schema()),
            name => node.property(name),
        })
    }
}
