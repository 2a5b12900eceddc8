//! Types of schemas for rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver_schema::Value;

use crate::cel::names::escape;
use crate::cel::types::{REQUEST_MAX, SizedType, Ty};
use crate::node::{Node, Type};

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
                // Kubernetes' estimates take keys for empty, and rules of published definitions rely on it.
                let key = SizedType::new(Ty::Text, 0, 2);
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
        // Their shortest and longest texts, as Kubernetes takes them.
        "duration" => SizedType::new(Ty::Duration, 32, 3),
        "date" => SizedType::new(Ty::Timestamp, 12, 12),
        "datetime" => SizedType::new(Ty::Timestamp, 32, 21),
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
    if node.hides_metadata() {
        let names = ["name", "generateName"].map(|name| (name.to_owned(), text()));
        let metadata = Ty::Object(Arc::new(BTreeMap::from(names)));
        fields.insert("apiVersion".to_owned(), text());
        fields.insert("kind".to_owned(), text());
        fields.insert("metadata".to_owned(), SizedType::new(metadata, 2, 2));
    }
    let max = fields.len() as u64;
    SizedType::new(Ty::Object(Arc::new(fields)), max, least)
}
