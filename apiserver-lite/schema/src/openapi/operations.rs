//! Operations of resources: which verbs there are under which path, and which query parameters they take.

use std::sync::Arc;

use super::schemas::{gvk, reference};
use super::{Edition, api_path};
use crate::engine::Engine;
use crate::object::Kind;
use crate::value::{Key, Map, Value};

/// What an operation is, apart from the resource.
struct Verb {
    /// The verb of the resource table that offers it.
    name: &'static str,
    /// The HTTP method.
    method: &'static str,
    /// Whether it is on one object, or on the collection.
    on_item: bool,
    /// The value of `x-kubernetes-action`.
    action: &'static str,
    /// Media types of the body; none means no body.
    consumes: &'static [&'static str],
    /// Query parameters: name and type.
    query: &'static [(&'static str, &'static str)],
}

const WRITE_QUERY: &[(&str, &str)] =
    &[("dryRun", "string"), ("fieldManager", "string"), ("fieldValidation", "string")];

const VERBS: &[Verb] = &[
    Verb {
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
    Verb {
        name: "create",
        method: "post",
        on_item: false,
        action: "post",
        consumes: &["application/json", "application/yaml"],
        query: WRITE_QUERY,
    },
    Verb { name: "get", method: "get", on_item: true, action: "get", consumes: &[], query: &[] },
    Verb {
        name: "update",
        method: "put",
        on_item: true,
        action: "put",
        consumes: &["application/json", "application/yaml"],
        query: WRITE_QUERY,
    },
    Verb {
        name: "patch",
        method: "patch",
        on_item: true,
        action: "patch",
        consumes: &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ],
        query: WRITE_QUERY,
    },
    Verb {
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

/// The paths of all resources whose `apiVersion` is wanted.
pub(super) fn paths(engine: &Engine, edition: Edition, wanted: impl Fn(&str) -> bool) -> Map {
    let mut entries = Vec::new();
    let kinds = engine.kinds().iter().filter(|kind| kind.resource.is_some());
    for kind in kinds.filter(|kind| wanted(&kind.api_version)) {
        for place in [Place::Everywhere, Place::Collection, Place::Item] {
            if let Some(item) = path_item(engine, edition, kind, place) {
                entries.push((Key::Owned(path(kind, place)), Value::Map(item)));
            }
        }
    }
    Map::from_entries(entries)
}

/// What a path of a resource names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The objects of all namespaces.
    Everywhere,
    /// The objects of one namespace, or of a kind that has none.
    Collection,
    /// One object.
    Item,
}

impl Place {
    /// Whether an operation of a verb is offered there.
    fn offers(self, kind: &Kind, verb: &Verb) -> bool {
        match self {
            Self::Everywhere => kind.namespaced() && verb.name == "list",
            Self::Collection => !verb.on_item,
            Self::Item => verb.on_item,
        }
    }
}

fn path(kind: &Kind, place: Place) -> String {
    let within = kind.namespaced() && place != Place::Everywhere;
    let namespace = if within { "/namespaces/{namespace}" } else { "" };
    let name = if place == Place::Item { "/{name}" } else { "" };
    format!("/{}{namespace}/{}{name}", api_path(&kind.api_version), kind.plural())
}

fn path_item(engine: &Engine, edition: Edition, kind: &Arc<Kind>, place: Place) -> Option<Map> {
    let offered = kind.resource.map_or(&[][..], |resource| resource.verbs);
    let verbs =
        VERBS.iter().filter(|verb| place.offers(kind, verb) && offered.contains(&verb.name));
    let mut item: Map = verbs
        .map(|verb| (verb.method, Value::Map(operation(engine, edition, kind, verb, place))))
        .collect();
    if item.is_empty() {
        return None;
    }
    let within = kind.namespaced() && place != Place::Everywhere;
    let in_path = [("name", place == Place::Item), ("namespace", within)];
    let parameters: Vec<Value> = in_path
        .into_iter()
        .filter(|(_, there)| *there)
        .map(|(name, _)| {
            let mut parameter = parameter(edition, name, "path", "string");
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
    edition: Edition,
    kind: &Arc<Kind>,
    verb: &Verb,
    place: Place,
) -> Map {
    let list = format!("{}List", kind.kind);
    let answer = match verb.name {
        "list" => engine.kind(&kind.group, kind.version, &list).unwrap_or(kind),
        _ => kind,
    };
    let answer = reference(engine, edition, answer);
    // A patch is a document of its own; everything else is the kind.
    let body = match verb.name {
        "patch" => Value::Map(Map::from_iter([("type", "object")])),
        _ => reference(engine, edition, kind),
    };
    let mut query: Vec<Value> = verb
        .query
        .iter()
        .map(|(name, ty)| Value::Map(parameter(edition, name, "query", ty)))
        .collect();
    if verb.name == "patch" {
        query.push(Value::Map(parameter(edition, "force", "query", "boolean")));
    }
    let which = match place {
        Place::Everywhere => "ForAllNamespaces",
        Place::Collection => "Collection",
        Place::Item => "",
    };
    let id = format!("{}{}{which}", verb.action, identifier(kind));
    let mut operation = Map::from_iter([
        ("operationId", Value::from(id)),
        ("x-kubernetes-action", Value::from(verb.action)),
        ("x-kubernetes-group-version-kind", gvk(kind)),
    ]);
    match edition {
        Edition::V2 => describe_v2(&mut operation, verb, query, body, answer),
        Edition::V3 => describe_v3(&mut operation, verb, query, body, answer),
    }
    operation
}

fn describe_v2(
    operation: &mut Map,
    verb: &Verb,
    mut query: Vec<Value>,
    body: Value,
    answer: Value,
) {
    let produces = ["application/json", "application/yaml"];
    operation.insert("produces", texts(&produces));
    operation
        .insert("consumes", texts(if verb.consumes.is_empty() { &["*/*"] } else { verb.consumes }));
    if !verb.consumes.is_empty() {
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

fn describe_v3(operation: &mut Map, verb: &Verb, query: Vec<Value>, body: Value, answer: Value) {
    operation.insert("parameters", query);
    let content = |types: &[&str], schema: &Value| {
        let schema = Map::from_iter([("schema", schema.clone())]);
        Map::from_iter(types.iter().map(|ty| ((*ty).to_owned(), schema.clone())))
    };
    if !verb.consumes.is_empty() {
        let body = content(verb.consumes, &body);
        let body = [("content", Value::Map(body)), ("required", Value::from(true))];
        operation.insert("requestBody", Map::from_iter(body));
    }
    let ok = Map::from_iter([
        ("description", Value::from("OK")),
        ("content", Value::Map(content(&["application/json", "application/yaml"], &answer))),
    ]);
    operation.insert("responses", Map::from_iter([("200", ok)]));
}

fn parameter(edition: Edition, name: &str, place: &str, ty: &str) -> Map {
    let mut parameter = Map::from_iter([("name", name), ("in", place)]);
    match edition {
        Edition::V2 => drop(parameter.insert("type", ty)),
        Edition::V3 => drop(parameter.insert("schema", Map::from_iter([("type", ty)]))),
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
        group => group.split('.').map(capital).collect(),
    };
    let scope = if kind.namespaced() { "Namespaced" } else { "" };
    let version: String = capital(kind.version);
    format!("{group}{version}{scope}{}", kind.kind)
}

fn texts(items: &[&str]) -> Vec<Value> {
    items.iter().copied().map(Value::from).collect()
}
