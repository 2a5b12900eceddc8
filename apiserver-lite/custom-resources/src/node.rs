//! A node of a schema.

use std::sync::Arc;

use apiserver_schema::validate::Cause;
use apiserver_schema::{Map, Value};

use crate::cel::program::{CompileError, Program};
use crate::field_path::{FieldPathError, SchemaFieldPath};
use crate::pattern::Pattern;

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    Text,
    Integer,
    Number,
    Boolean,
}

impl Type {
    /// Names in the order in which Kubernetes lists them.
    pub(crate) const NAMES: [&'static str; 6] =
        ["array", "boolean", "integer", "number", "object", "string"];

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "object" => Type::Object,
            "array" => Type::Array,
            "string" => Type::Text,
            "integer" => Type::Integer,
            "number" => Type::Number,
            "boolean" => Type::Boolean,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::Text => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
        }
    }
}

/// Values of keys that are no properties.
#[derive(Debug, Default)]
pub(crate) enum AdditionalProperties {
    /// Nothing is said about them.
    #[default]
    Unset,
    /// Any value.
    Any,
    /// There must be none.
    Denied,
    /// Values of this schema.
    Schema(Box<Node>),
}

impl AdditionalProperties {
    pub(crate) fn schema(&self) -> Option<&Node> {
        match self {
            AdditionalProperties::Schema(node) => Some(node),
            _ => None,
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        !matches!(self, AdditionalProperties::Unset)
    }
}

/// `x-kubernetes-list-type` with its keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum ListType {
    #[default]
    Atomic,
    Set,
    Map(Vec<String>),
}

/// A rule of a schema.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) text: String,
    pub(crate) message: String,
    pub(crate) message_expression: String,
    /// `optionalOldSelf`: whether it runs without a stored value, too.
    pub(crate) has_optional_old: bool,
    /// The kind of error that a failure is.
    pub(crate) reason: Cause,
    /// The field that a failure is about, below the value of the rule; `None` for the value itself.
    pub(crate) field_path: Option<SchemaFieldPath>,
    /// `None` until it is compiled.
    pub(crate) program: Option<Result<Program, CompileError>>,
    pub(crate) message_program: Option<Program>,
}

impl Rule {
    pub(crate) fn read(rule: &Map) -> Self {
        Rule {
            text: rule.str("rule").to_owned(),
            message: rule.str("message").to_owned(),
            message_expression: rule.str("messageExpression").to_owned(),
            has_optional_old: rule.get("optionalOldSelf") == Some(&Value::Bool(true)),
            reason: read_reason(rule.str("reason")).unwrap_or(Cause::Invalid),
            field_path: SchemaFieldPath::parse(rule.str("fieldPath")).ok(),
            program: None,
            message_program: None,
        }
    }

    /// What names the rule in errors.
    pub(crate) fn name(&self) -> &str {
        match self.message.trim() {
            "" => self.text.trim(),
            message => message,
        }
    }
}

/// Reasons of rules, in the order in which Kubernetes lists them.
pub(crate) const REASONS: [Cause; 4] =
    [Cause::Duplicate, Cause::Forbidden, Cause::Invalid, Cause::Required];

/// The reason of this name, if rules may have it.
pub(crate) fn read_reason(name: &str) -> Option<Cause> {
    REASONS.into_iter().find(|cause| cause.reason() == name)
}

/// A node of a schema. Below `allOf`, `anyOf`, `oneOf` and `not` nodes have no type, but may have properties, items and checks.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) ty: Option<Type>,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    /// Sorted by name.
    pub(crate) properties: Vec<(String, Node)>,
    pub(crate) additional: AdditionalProperties,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) embedded: bool,
    pub(crate) preserve: bool,
    pub(crate) int_or_string: bool,
    pub(crate) list: ListType,
    pub(crate) atomic_map: bool,
    pub(crate) rules: Vec<Rule>,
    /// Whether it or a node below has rules.
    pub(crate) has_rules: bool,
    /// Whether it or a node below is a set, a list with keys or an embedded resource.
    pub(crate) has_lists: bool,
    pub(crate) checks: Option<Box<Checks>>,
}

/// What is checked of values besides their type.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) format: String,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) max_length: Option<u64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) pattern: Option<(String, Arc<Pattern>)>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_items: Option<u64>,
    pub(crate) unique_items: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) one_value_of: Vec<Value>,
    pub(crate) max_properties: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) required: Vec<String>,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
}

impl Node {
    pub(crate) fn property(&self, name: &str) -> Option<&Node> {
        let at = self.properties.binary_search_by(|(have, _)| have.as_str().cmp(name)).ok()?;
        self.properties.get(at).map(|(_, node)| node)
    }

    /// The node for a key of an object.
    pub(crate) fn field(&self, name: &str) -> Option<&Node> {
        self.property(name).or_else(|| self.additional.schema())
    }

    /// The node of a field below.
    pub(crate) fn find(&self, path: &SchemaFieldPath) -> Result<&Node, FieldPathError> {
        let found = path.names().iter().try_fold(self, |node, name| node.field(name));
        found.ok_or(FieldPathError::Unknown)
    }

    /// Whether it is a resource of whose type and metadata rules see the names alone, because the schema does not declare all of them.
    pub(crate) fn hides_metadata(&self) -> bool {
        let is = |node: &Node, name: &str, ty: Type| {
            node.property(name).is_some_and(|property| property.ty == Some(ty))
        };
        let declares = || {
            let names = ["name", "generateName"];
            ["apiVersion", "kind"].iter().all(|name| is(self, name, Type::Text))
                && is(self, "metadata", Type::Object)
                && self
                    .property("metadata")
                    .is_some_and(|metadata| names.iter().all(|name| is(metadata, name, Type::Text)))
        };
        self.embedded && !declares()
    }

    /// Whether null is replaced with the default.
    pub(crate) fn replaces(&self, value: &Value) -> bool {
        matches!(value, Value::Null) && !self.nullable
    }

    pub(crate) fn is_required(&self, name: &str) -> bool {
        self.checks.as_ref().is_some_and(|checks| checks.required.iter().any(|have| have == name))
    }

    pub(crate) fn format(&self) -> &str {
        self.checks.as_ref().map_or("", |checks| checks.format.as_str())
    }
}
