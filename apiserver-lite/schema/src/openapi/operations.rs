//! Paths of resources with their operations.

use std::sync::Arc;

use super::operation::{Body, Operation, parameter};
use super::schemas::{gvk, list_reference, reference};
use super::templates::{OPERATIONS, OperationTemplate};
use super::{Described, OpenApiVersion, api_path};
use crate::engine::Engine;
use crate::object::Kind;
use crate::object::custom::CUSTOM;
use crate::value::{Map, Value};

/// Media types of answers.
pub(super) const PRODUCED: &[&str] = &["application/json", "application/yaml"];

/// The paths of a kind's resource.
pub(super) fn of_resource(
    described: Described<'_>,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
) -> impl Iterator<Item = (String, Map)> {
    let scopes = [PathScope::AllNamespaces, PathScope::Collection, PathScope::Item];
    scopes.into_iter().filter_map(move |scope| {
        Some((path(kind, scope), path_item(described.engine, version, kind, scope)?))
    })
}

/// What a path of a resource addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathScope {
    /// The collection across all namespaces.
    AllNamespaces,
    /// The collection in one namespace, or of a cluster-scoped kind.
    Collection,
    /// One object.
    Item,
}

impl PathScope {
    /// Whether the operation exists at this path.
    fn offers(self, kind: &Kind, template: &OperationTemplate) -> bool {
        match self {
            Self::AllNamespaces => kind.namespaced() && template.verb == "list",
            Self::Collection => !template.on_item,
            Self::Item => template.on_item,
        }
    }
}

/// The path of a kind's resource.
pub(super) fn path(kind: &Kind, scope: PathScope) -> String {
    match scope {
        PathScope::Item => item_path(kind),
        PathScope::Collection if kind.namespaced() => {
            let group = api_path(&kind.api_version);
            format!("/{group}/namespaces/{{namespace}}/{}", kind.plural())
        }
        _ => format!("/{}/{}", api_path(&kind.api_version), kind.plural()),
    }
}

/// The path of one object.
pub(super) fn item_path(kind: &Kind) -> String {
    let within = if kind.namespaced() { "/namespaces/{namespace}" } else { "" };
    format!("/{}{within}/{}/{{name}}", api_path(&kind.api_version), kind.plural())
}

fn path_item(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
    scope: PathScope,
) -> Option<Map> {
    let offered = kind.verbs("").unwrap_or_default();
    let is_there = |template: &&OperationTemplate| {
        scope.offers(kind, template) && offered.contains(&template.verb)
    };
    let templates = OPERATIONS.iter().filter(is_there);
    let mut item: Map = templates
        .map(|template| (template.method, operation(engine, version, kind, template, scope)))
        .collect();
    if item.is_empty() {
        return None;
    }
    let within = kind.namespaced() && scope != PathScope::AllNamespaces;
    let places = [("name", scope == PathScope::Item), ("namespace", within)];
    let places = places.into_iter().filter(|(_, there)| *there).map(|(name, _)| name);
    item.insert("parameters", path_parameters(version, places));
    Some(item)
}

/// The parameters that all operations of a path have.
pub(super) fn path_parameters(
    version: OpenApiVersion,
    places: impl Iterator<Item = &'static str>,
) -> Vec<Value> {
    let places = places.map(|name| parameter(version, name, "path", "string"));
    places.chain([parameter(version, "pretty", "query", "string")]).collect()
}

fn operation(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
    template: &OperationTemplate,
    scope: PathScope,
) -> Value {
    let answer = match template.verb {
        "list" => list_reference(engine, version, kind),
        "delete" if !kind.is_returned_on_delete() => shared(engine, version, "Status"),
        "deletecollection" => shared(engine, version, "Status"),
        _ => reference(engine, version, kind),
    };
    let own = reference(engine, version, kind);
    let (collection, everywhere) = match (template.verb, scope) {
        ("deletecollection", _) => ("Collection", ""),
        (_, PathScope::AllNamespaces) => ("", "ForAllNamespaces"),
        _ => ("", ""),
    };
    let scope = if kind.namespaced() && everywhere.is_empty() { "Namespaced" } else { "" };
    let id = format!(
        "{}{}{collection}{scope}{}{everywhere}",
        template.word,
        group_version(kind),
        kind.kind()
    );
    let operation = Operation {
        id,
        action: template.action,
        kind: gvk(kind),
        query: template.query,
        body: body(engine, version, kind, template, own),
        produces: PRODUCED,
        answer,
        codes: template.codes,
    };
    operation.describe(version)
}

/// The body of an operation on objects whose schema is `own`.
pub(super) fn body(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Kind,
    template: &OperationTemplate,
    own: Value,
) -> Option<Body<'static>> {
    if template.consumes.is_empty() {
        return None;
    }
    // Custom objects have no merge keys.
    let fits = |ty: &&str| kind.custom().is_none() || !ty.contains("strategic");
    let types = template.consumes.iter().copied().filter(fits).collect();
    let (schema, required) = match template.verb {
        // A patch is of no kind.
        "patch" => (Value::Map(Map::from_iter([("type", "object")])), true),
        "delete" | "deletecollection" => (shared(engine, version, "DeleteOptions"), false),
        _ => (own, true),
    };
    Some(Body { types, schema, required })
}

/// A reference to the schema of a kind of all groups.
pub(super) fn shared(engine: &Engine, version: OpenApiVersion, kind: &str) -> Value {
    engine.kind("", "v1", kind).map(|kind| reference(engine, version, kind)).unwrap_or_default()
}

/// `CoreV1`, `AppsV1`, `RbacAuthorizationV1`: the part of an id.
pub(super) fn group_version(kind: &Kind) -> String {
    let group: String = match kind.short_group {
        "" => "Core".to_owned(),
        CUSTOM => kind.group.split('.').map(capital).collect(),
        group => group.split('.').map(capital).collect(),
    };
    format!("{group}{}", capital(kind.version()))
}

/// The text with a capital at its start.
pub(super) fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}
