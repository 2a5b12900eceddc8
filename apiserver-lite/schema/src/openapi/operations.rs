//! Operations of resources: verbs and query parameters per path.

use std::sync::Arc;

use super::schemas::{gvk, list_reference, reference};
use super::{Described, OpenApiVersion, api_path};
use crate::engine::Engine;
use crate::object::Kind;
use crate::object::custom::CUSTOM;
use crate::value::{Key, Map, Value};

/// An operation, independent of its resource.
struct OperationTemplate {
    /// The resource's verb that provides it.
    name: &'static str,
    /// The HTTP method.
    method: &'static str,
    /// Whether it acts on one object or on the collection.
    on_item: bool,
    /// The value of `x-kubernetes-action`.
    action: &'static str,
    /// Media types of the body; empty without a body.
    consumes: &'static [&'static str],
    /// Query parameters: name and type.
    query: &'static [(&'static str, &'static str)],
}

const WRITE_QUERY: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];

const OPERATIONS: &[OperationTemplate] = &[
    OperationTemplate {
        name: "list",
        method: "get",
        on_item: false,
        action: "list",
        consumes: &[],
        query: &[
            ("allowWatchBookmarks", "boolean"),
            ("continue", "string"),
            ("fieldSelector", "string"),
            ("labelSelector", "string"),
            ("limit", "integer"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
            ("timeoutSeconds", "integer"),
            ("watch", "boolean"),
        ],
    },
    OperationTemplate {
        name: "create",
        method: "post",
        on_item: false,
        action: "post",
        consumes: &["application/json", "application/yaml"],
        query: WRITE_QUERY,
    },
    OperationTemplate {
        name: "get",
        method: "get",
        on_item: true,
        action: "get",
        consumes: &[],
        query: &[],
    },
    OperationTemplate {
        name: "update",
        method: "put",
        on_item: true,
        action: "put",
        consumes: &["application/json", "application/yaml"],
        query: WRITE_QUERY,
    },
    OperationTemplate {
        name: "patch",
        method: "patch",
        on_item: true,
        action: "patch",
        consumes: &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ],
        query: WRITE_QUERY,
    },
    OperationTemplate {
        name: "delete",
        method: "delete",
        on_item: true,
        action: "delete",
        consumes: &[],
        query: &[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("propagationPolicy", "string"),
        ],
    },
];

/// The paths of all resources with a wanted `apiVersion`.
pub(super) fn paths(
    described: Described<'_>,
    version: OpenApiVersion,
    wanted: impl Fn(&str) -> bool,
) -> Map {
    let engine = described.engine;
    let mut entries = Vec::new();
    for kind in described.resources().filter(|kind| wanted(&kind.api_version)) {
        for scope in [PathScope::AllNamespaces, PathScope::Collection, PathScope::Item] {
            if let Some(item) = path_item(engine, version, kind, scope) {
                entries.push((Key::Owned(path(kind, scope)), Value::Map(item)));
            }
        }
    }
    Map::from_entries(entries)
}

/// What a path of a resource addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathScope {
    /// The collection across all namespaces.
    AllNamespaces,
    /// The collection in one namespace, or of a cluster-scoped kind.
    Collection,
    /// One object.
    Item,
}

impl PathScope {
    /// Whether the operation exists at this path.
    fn offers(self, kind: &Kind, verb: &OperationTemplate) -> bool {
        match self {
            Self::AllNamespaces => kind.namespaced() && verb.name == "list",
            Self::Collection => !verb.on_item,
            Self::Item => verb.on_item,
        }
    }
}

fn path(kind: &Kind, scope: PathScope) -> String {
    let within = kind.namespaced() && scope != PathScope::AllNamespaces;
    let namespace = if within { "/namespaces/{namespace}" } else { "" };
    let name = if scope == PathScope::Item { "/{name}" } else { "" };
    format!("/{}{namespace}/{}{name}", api_path(&kind.api_version), kind.plural())
}

fn path_item(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
    scope: PathScope,
) -> Option<Map> {
    let offered = kind.verbs("").unwrap_or_default();
    let verbs =
        OPERATIONS.iter().filter(|verb| scope.offers(kind, verb) && offered.contains(&verb.name));
    let mut item: Map = verbs
        .map(|verb| (verb.method, Value::Map(operation(engine, version, kind, verb, scope))))
        .collect();
    if item.is_empty() {
        return None;
    }
    let within = kind.namespaced() && scope != PathScope::AllNamespaces;
    let in_path = [("name", scope == PathScope::Item), ("namespace", within)];
    let parameters: Vec<Value> = in_path
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| {
            let mut parameter = parameter(version, name, "path", "string");
            parameter.insert("required", true);
            Value::Map(parameter)
        })
        .collect();
    if !parameters.is_empty() {
        item.insert("parameters", parameters);
    }
    Some(item)
}

fn operation(
    engine: &Engine,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
    verb: &OperationTemplate,
    scope: PathScope,
) -> Map {
    let answer = match verb.name {
        "list" => list_reference(engine, version, kind),
        _ => reference(engine, version, kind),
    };
    // The body of a patch is a Patch; other bodies are the kind.
    let body = match verb.name {
        "patch" => Value::Map(Map::from_iter([("type", "object")])),
        _ => reference(engine, version, kind),
    };
    let mut query: Vec<Value> = verb
        .query
        .iter()
        .map(|(name, ty)| Value::Map(parameter(version, name, "query", ty)))
        .collect();
    if verb.name == "patch" {
        query.push(Value::Map(parameter(version, "force", "query", "boolean")));
    }
    let which = match scope {
        PathScope::AllNamespaces => "ForAllNamespaces",
        PathScope::Collection => "Collection",
        PathScope::Item => "",
    };
    let id = format!("{}{}{which}", verb.action, identifier(kind));
    let mut operation = Map::from_iter([
        ("operationId", Value::from(id)),
        ("x-kubernetes-action", Value::from(verb.action)),
        ("x-kubernetes-group-version-kind", gvk(kind)),
    ]);
    // Custom objects have no merge keys.
    let types = verb.consumes.iter().copied();
    let strategic = |ty: &&str| ty.contains("strategic");
    let types: Vec<&str> = match kind.custom() {
        Some(_) => types.filter(|ty| !strategic(ty)).collect(),
        None => types.collect(),
    };
    match version {
        OpenApiVersion::V2 => describe_v2(&mut operation, &types, query, body, answer),
        OpenApiVersion::V3 => describe_v3(&mut operation, &types, query, body, answer),
    }
    operation
}

fn describe_v2(
    operation: &mut Map,
    consumes: &[&str],
    mut query: Vec<Value>,
    body: Value,
    answer: Value,
) {
    let produces = ["application/json", "application/yaml"];
    operation.insert("produces", texts(&produces));
    operation.insert("consumes", texts(if consumes.is_empty() { &["*/*"] } else { consumes }));
    if !consumes.is_empty() {
        query.push(Value::Map(Map::from_iter([
            ("name", Value::from("body")),
            ("in", Value::from("body")),
            ("required", Value::from(true)),
            ("schema", body),
        ])));
    }
    operation.insert("parameters", query);
    let ok = Map::from_iter([("description", Value::from("OK")), ("schema", answer)]);
    operation.insert("responses", Map::from_iter([("200", ok)]));
}

fn describe_v3(
    operation: &mut Map,
    consumes: &[&str],
    query: Vec<Value>,
    body: Value,
    answer: Value,
) {
    operation.insert("parameters", query);
    let content = |types: &[&str], schema: &Value| {
        let schema = Map::from_iter([("schema", schema.clone())]);
        Map::from_iter(types.iter().map(|ty| ((*ty).to_owned(), schema.clone())))
    };
    if !consumes.is_empty() {
        let body = content(consumes, &body);
        let body = [("content", Value::Map(body)), ("required", Value::from(true))];
        operation.insert("requestBody", Map::from_iter(body));
    }
    let ok = Map::from_iter([
        ("description", Value::from("OK")),
        ("content", Value::Map(content(&["application/json", "application/yaml"], &answer))),
    ]);
    operation.insert("responses", Map::from_iter([("200", ok)]));
}

fn parameter(version: OpenApiVersion, name: &str, place: &str, ty: &str) -> Map {
    let mut parameter = Map::from_iter([("name", name), ("in", place)]);
    match version {
        OpenApiVersion::V2 => drop(parameter.insert("type", ty)),
        OpenApiVersion::V3 => drop(parameter.insert("schema", Map::from_iter([("type", ty)]))),
    }
    parameter
}

/// `AppsV1NamespacedDeployment`.
fn identifier(kind: &Kind) -> String {
    let capital = |text: &str| {
        let mut chars = text.chars();
        chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
    };
    let group: String = match kind.short_group {
        "" => "Core".to_owned(),
        CUSTOM => kind.group.split('.').map(capital).collect(),
        group => group.split('.').map(capital).collect(),
    };
    let scope = if kind.namespaced() { "Namespaced" } else { "" };
    let version: String = capital(kind.version());
    format!("{group}{version}{scope}{}", kind.kind())
}

fn texts(items: &[&str]) -> Vec<Value> {
    items.iter().copied().map(Value::from).collect()
}
