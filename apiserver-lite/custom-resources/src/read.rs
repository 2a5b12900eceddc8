//! Reads schemas: trees into nodes.

use apiserver_schema::{Map, Value};

use crate::node::{AdditionalProperties, Checks, ListType, Node, Rule, Type};
use crate::pattern::{PatternError, Patterns};

/// Deepest nesting of a schema.
pub(crate) const DEPTH_MAX: usize = 64;
/// Most nodes of a schema.
const NODES_MAX: usize = 200_000;

/// Why a stored definition cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionReadError {
    /// A field is not there.
    #[error("the CustomResourceDefinition has no {field}: write it")]
    Missing {
        /// Path of the field.
        field: &'static str,
    },
    /// The schema of a version cannot be used.
    #[error("version {version:?}: {error}")]
    Schema {
        /// Name of the version.
        version: String,
        /// Why.
        error: Box<DefinitionReadError>,
    },
    /// The schema is nested too deep.
    #[error("the schema is nested more than {DEPTH_MAX} levels deep: flatten it")]
    TooDeep,
    /// The schema has too many nodes.
    #[error("the schema has more than {NODES_MAX} nodes: split the kind")]
    TooLarge,
    /// A pattern is no regular expression, or too large.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A path of a column, of the subresource `scale` or of a selectable field cannot be read.
    #[error("{0:?} is not a field path such as .spec.replicas")]
    JsonPath(String),
}

/// Reads one schema.
pub(crate) struct Reader<'a> {
    patterns: &'a mut Patterns,
    nodes: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(patterns: &'a mut Patterns) -> Self {
        Reader { patterns, nodes: 0 }
    }

    pub(crate) fn read(&mut self, schema: &Map) -> Result<Node, DefinitionReadError> {
        self.node(schema, 0)
    }

    fn node(&mut self, schema: &Map, depth: usize) -> Result<Node, DefinitionReadError> {
        if depth > DEPTH_MAX {
            return Err(DefinitionReadError::TooDeep);
        }
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > NODES_MAX {
            return Err(DefinitionReadError::TooLarge);
        }
        let below = depth.saturating_add(1);
        let mut properties = Vec::new();
        for (name, property) in schema.map("properties").into_iter().flat_map(Map::iter_sorted) {
            if let Value::Map(property) = property {
                properties.push((name.to_owned(), self.node(property, below)?));
            }
        }
        let additional = match schema.get("additionalProperties") {
            Some(Value::Map(values)) => {
                AdditionalProperties::Schema(Box::new(self.node(values, below)?))
            }
            Some(Value::Bool(true)) => AdditionalProperties::Any,
            Some(Value::Bool(false)) => AdditionalProperties::Denied,
            _ => AdditionalProperties::Unset,
        };
        let items = match schema.map("items") {
            Some(items) => Some(Box::new(self.node(items, below)?)),
            None => None,
        };
        let checks = self.checks(schema, below)?;
        let mut node = Node {
            ty: Type::parse(schema.str("type")),
            nullable: schema.is_true("nullable"),
            default: schema.get("default").filter(|value| **value != Value::Null).cloned(),
            properties,
            additional,
            items,
            embedded: schema.is_true("x-kubernetes-embedded-resource"),
            preserve: schema.is_true("x-kubernetes-preserve-unknown-fields"),
            int_or_string: schema.is_true("x-kubernetes-int-or-string"),
            list: read_list_type(schema),
            atomic_map: schema.str("x-kubernetes-map-type") == "atomic",
            rules: schema.maps("x-kubernetes-validations").map(Rule::read).collect(),
            has_rules: false,
            has_lists: false,
            checks,
        };
        sum_up(&mut node);
        Ok(node)
    }

    fn checks(
        &mut self,
        schema: &Map,
        depth: usize,
    ) -> Result<Option<Box<Checks>>, DefinitionReadError> {
        if !CHECKED.iter().any(|field| schema.contains(field)) {
            return Ok(None);
        }
        let pattern = match schema.str("pattern") {
            "" => None,
            text => Some((text.to_owned(), self.patterns.compile(text)?)),
        };
        let not = match schema.map("not") {
            Some(not) => Some(Box::new(self.node(not, depth)?)),
            None => None,
        };
        let size = |field: &str| schema.int(field).and_then(|number| u64::try_from(number).ok());
        let checks = Checks {
            format: schema.str("format").replace('-', ""),
            maximum: number(schema, "maximum"),
            exclusive_maximum: schema.is_true("exclusiveMaximum"),
            minimum: number(schema, "minimum"),
            exclusive_minimum: schema.is_true("exclusiveMinimum"),
            max_length: size("maxLength"),
            min_length: size("minLength"),
            pattern,
            max_items: size("maxItems"),
            min_items: size("minItems"),
            unique_items: schema.is_true("uniqueItems"),
            multiple_of: number(schema, "multipleOf"),
            one_value_of: schema.list("enum").to_vec(),
            max_properties: size("maxProperties"),
            min_properties: size("minProperties"),
            required: texts(schema.list("required")),
            all_of: self.nodes(schema, "allOf", depth)?,
            any_of: self.nodes(schema, "anyOf", depth)?,
            one_of: self.nodes(schema, "oneOf", depth)?,
            not,
        };
        Ok(Some(Box::new(checks)))
    }

    fn nodes(
        &mut self,
        schema: &Map,
        field: &str,
        depth: usize,
    ) -> Result<Vec<Node>, DefinitionReadError> {
        schema.maps(field).map(|nested| self.node(nested, depth)).collect()
    }
}

/// Fields of a schema that are read as checks.
const CHECKED: [&str; 20] = [
    "format",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "enum",
    "maxProperties",
    "minProperties",
    "required",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
];

/// A number of a schema.
pub(crate) fn number(schema: &Map, field: &str) -> Option<f64> {
    match schema.get(field)? {
        Value::Int(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

/// The texts of a list.
pub(crate) fn texts(items: &[Value]) -> Vec<String> {
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read_list_type(schema: &Map) -> ListType {
    match schema.str("x-kubernetes-list-type") {
        "set" => ListType::Set,
        "map" => ListType::Map(texts(schema.list("x-kubernetes-list-map-keys"))),
        _ => ListType::Atomic,
    }
}

/// Notes what lies below a node, so that objects are walked only where there is something to check.
fn sum_up(node: &mut Node) {
    let below = || {
        let properties = node.properties.iter().map(|(_, node)| node);
        properties.chain(node.items.as_deref()).chain(node.additional.schema())
    };
    let has_rules = !node.rules.is_empty() || below().any(|node| node.has_rules);
    let has_lists =
        node.list != ListType::Atomic || node.embedded || below().any(|node| node.has_lists);
    (node.has_rules, node.has_lists) = (has_rules, has_lists);
}
