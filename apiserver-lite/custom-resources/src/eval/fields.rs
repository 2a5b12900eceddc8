//! Fields of objects and entries of maps as rules see them. An object has the fields of its schema, by escaped names; one that is null is not set. What
//! `x-kubernetes-preserve-unknown-fields` preserves beside them is compared, and not seen. Entries of maps are seen as they are.

use std::borrow::Cow;
use std::sync::LazyLock;

use apiserver_schema::{Map, Value};

use crate::cel::names::{escape, unescape};
use crate::node::{Node, Type};

/// Of the metadata of a resource whose schema does not declare it, rules see the names.
static METADATA: LazyLock<Node> = LazyLock::new(|| {
    let text = || Node { ty: Some(Type::Text), ..Node::default() };
    let properties = ["generateName", "name"].map(|name| (name.to_owned(), text()));
    Node { ty: Some(Type::Object), properties: properties.into(), ..Node::default() }
});

/// Whether a schema is one of an object with fields, not of a map.
fn has_fields(node: Option<&Node>) -> bool {
    node.is_some_and(|node| node.additional.schema().is_none())
}

/// The value of a name in a rule, with its schema.
pub(crate) fn named<'a>(
    map: &'a Map,
    node: Option<&'a Node>,
    name: &str,
) -> Option<(&'a Value, Option<&'a Node>)> {
    let key = if has_fields(node) { Cow::Owned(unescape(name)) } else { Cow::Borrowed(name) };
    keyed(map, node, &key)
}

/// The value of a key, with its schema.
pub(crate) fn keyed<'a>(
    map: &'a Map,
    node: Option<&'a Node>,
    key: &str,
) -> Option<(&'a Value, Option<&'a Node>)> {
    see_value(node, key, map.get(key)?)
}

/// A value with its schema, if rules see it.
pub(crate) fn see_value<'a>(
    node: Option<&'a Node>,
    key: &str,
    value: &'a Value,
) -> Option<(&'a Value, Option<&'a Node>)> {
    let schema = schema_of(node, key)?;
    (*value != Value::Null || !has_fields(node)).then_some((value, schema))
}

/// The schema of a key, which is none where nothing is described; `None` if rules do not see the key.
pub(crate) fn schema_of<'a>(node: Option<&'a Node>, key: &str) -> Option<Option<&'a Node>> {
    let Some(node) = node else { return Some(None) };
    if let Some(values) = node.additional.schema() {
        return Some(Some(values));
    }
    match key {
        "apiVersion" | "kind" if node.hides_metadata() => Some(None),
        "metadata" if node.hides_metadata() => Some(Some(&METADATA)),
        _ => node.property(key).map(Some),
    }
}

/// The names in rules of all that is seen, in their order.
pub(crate) fn names<'a>(
    map: &'a Map,
    node: Option<&'a Node>,
) -> impl Iterator<Item = Cow<'a, str>> {
    let seen = map.iter_sorted().filter(move |(key, _)| schema_of(node, key).is_some());
    seen.map(move |(key, _)| match has_fields(node) {
        true => escape(key).map_or(Cow::Borrowed(key), Cow::Owned),
        false => Cow::Borrowed(key),
    })
}
