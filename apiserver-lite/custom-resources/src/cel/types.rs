//! Types of expressions, those of schemas with the most elements that their values may have.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use apiserver_schema::Value;

use super::names::escape;
use crate::node::{Node, Type};

/// Largest request, in bytes: what no limit of a schema bounds has at most as many elements as fit in it.
pub(crate) const REQUEST_MAX: u64 = 3 * 1024 * 1024;

/// A type with sizes.
#[derive(Clone, Debug)]
pub(crate) struct SizedType {
    pub(crate) ty: Ty,
    /// Most elements of a list or map, or bytes of a text.
    pub(crate) max: u64,
    /// Fewest bytes of a value in JSON.
    pub(crate) least: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Ty {
    Dyn,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    List(Arc<SizedType>),
    Map(Arc<SizedType>, Arc<SizedType>),
    /// Fields by their escaped names.
    Object(Arc<BTreeMap<String, SizedType>>),
    Url,
    Type,
}

impl SizedType {
    pub(crate) fn new(ty: Ty, max: u64, least: u64) -> Self {
        SizedType { ty, max, least }
    }

    /// A type of values without elements, or of unknown size.
    pub(crate) fn plain(ty: Ty) -> Self {
        SizedType::new(ty, REQUEST_MAX, 1)
    }

    pub(crate) fn list(item: SizedType, max: u64) -> Self {
        SizedType::new(Ty::List(Arc::new(item)), max, 2)
    }
}

impl Ty {
    /// Whether a value of either type can be used as the other.
    pub(crate) fn fits(&self, other: &Ty) -> bool {
        match (self, other) {
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::List(left), Ty::List(right)) => left.ty.fits(&right.ty),
            (Ty::Map(key, value), Ty::Map(other_key, other_value)) => {
                key.ty.fits(&other_key.ty) && value.ty.fits(&other_value.ty)
            }
            (Ty::Object(_), Ty::Object(_)) => true,
            (Ty::Null, Ty::Object(_) | Ty::Duration | Ty::Timestamp)
            | (Ty::Object(_) | Ty::Duration | Ty::Timestamp, Ty::Null) => true,
            (left, right) => std::mem::discriminant(left) == std::mem::discriminant(right),
        }
    }

    /// A letter for the type, as in signatures.
    pub(crate) fn letter(&self) -> char {
        match self {
            Ty::Dyn => '*',
            Ty::Null => 'n',
            Ty::Bool => 'B',
            Ty::Int => 'i',
            Ty::Uint => 'u',
            Ty::Double => 'd',
            Ty::Text => 's',
            Ty::Bytes => 'b',
            Ty::Duration => 'D',
            Ty::Timestamp => 'T',
            Ty::List(_) => 'l',
            Ty::Map(..) => 'm',
            Ty::Object(_) => 'o',
            Ty::Url => 'U',
            Ty::Type => 't',
        }
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Null => f.write_str("null"),
            Ty::Bool => f.write_str("bool"),
            Ty::Int => f.write_str("int"),
            Ty::Uint => f.write_str("uint"),
            Ty::Double => f.write_str("double"),
            Ty::Text => f.write_str("string"),
            Ty::Bytes => f.write_str("bytes"),
            Ty::Duration => f.write_str("google.protobuf.Duration"),
            Ty::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Ty::List(item) => write!(f, "list({})", item.ty),
            Ty::Map(key, value) => write!(f, "map({}, {})", key.ty, value.ty),
            Ty::Object(_) => f.write_str("object"),
            Ty::Url => f.write_str("kubernetes.URL"),
            Ty::Type => f.write_str("type"),
        }
    }
}

/// The type of the values of a schema; `None` if rules cannot use them, because the schema does not say what they are.
pub(crate) fn declare(node: &Node) -> Option<SizedType> {
    if node.int_or_string {
        return Some(SizedType::new(Ty::Dyn, REQUEST_MAX.saturating_sub(2), 1));
    }
    let checks = node.checks.as_deref();
    Some(match node.ty? {
        Type::Boolean => SizedType::new(Ty::Bool, 1, 4),
        Type::Integer => SizedType::new(Ty::Int, 1, 1),
        Type::Number => SizedType::new(Ty::Double, 1, 1),
        Type::Text => declare_text(node),
        Type::Array => {
            let item = declare(node.items.as_deref()?)?;
            let fitting = REQUEST_MAX.saturating_sub(2).checked_div(item.least.saturating_add(1));
            let max = checks.and_then(|checks| checks.max_items).or(fitting).unwrap_or(REQUEST_MAX);
            SizedType::list(item, max)
        }
        Type::Object => match node.additional.schema() {
            Some(values) => {
                let value = declare(values)?;
                let fitting =
                    REQUEST_MAX.saturating_sub(2).checked_div(value.least.saturating_add(6));
                let max = checks.and_then(|checks| checks.max_properties).or(fitting);
                let key = SizedType::new(Ty::Text, REQUEST_MAX.saturating_sub(2), 2);
                SizedType::new(
                    Ty::Map(Arc::new(key), Arc::new(value)),
                    max.unwrap_or(REQUEST_MAX),
                    2,
                )
            }
            None => declare_object(node),
        },
    })
}

fn declare_text(node: &Node) -> SizedType {
    let checks = node.checks.as_deref();
    let max = checks.and_then(|checks| checks.max_length);
    let unlimited = REQUEST_MAX.saturating_sub(2);
    match node.format() {
        "byte" => SizedType::new(Ty::Bytes, max.unwrap_or(unlimited), 2),
        "duration" => SizedType::new(Ty::Duration, 32, 2),
        "date" => SizedType::new(Ty::Timestamp, 10, 12),
        "datetime" => SizedType::new(Ty::Timestamp, 30, 22),
        _ => {
            let longest = checks
                .filter(|checks| !checks.one_value_of.is_empty())
                .map(|checks| longest(&checks.one_value_of));
            // A character has up to four bytes.
            let max = longest.or(max.map(|max| max.saturating_mul(4))).unwrap_or(unlimited);
            SizedType::new(Ty::Text, max, 2)
        }
    }
}

fn longest(values: &[Value]) -> u64 {
    values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max().unwrap_or_default()
}

fn declare_object(node: &Node) -> SizedType {
    let text = || SizedType::new(Ty::Text, REQUEST_MAX.saturating_sub(2), 2);
    let mut fields = BTreeMap::new();
    let mut least: u64 = 2;
    for (name, property) in &node.properties {
        let Some(field) = declare(property) else { continue };
        if node.is_required(name) && property.default.is_none() {
            least = least
                .saturating_add(name.len() as u64)
                .saturating_add(field.least)
                .saturating_add(4);
        }
        if let Some(name) = escape(name) {
            fields.insert(name, field);
        }
    }
    if node.embedded {
        let names = ["name", "generateName"].map(|name| (name.to_owned(), text()));
        let metadata = Ty::Object(Arc::new(BTreeMap::from(names)));
        fields.insert("apiVersion".to_owned(), text());
        fields.insert("kind".to_owned(), text());
        fields.insert("metadata".to_owned(), SizedType::new(metadata, 2, 2));
    }
    let max = fields.len() as u64;
    SizedType::new(Ty::Object(Arc::new(fields)), max, least)
}
