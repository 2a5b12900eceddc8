//! Paths of subresources with their operations.

use std::sync::Arc;

use super::operation::{Operation, parameter};
use super::operations::{PRODUCED, body, capital, group_version, item_path, path_parameters};
use super::schemas::{gvk, reference};
use super::templates::{ANY, OPERATIONS, OperationTemplate};
use super::{Described, OpenApiVersion, watches};
use crate::object::Kind;
use crate::shape::Type;
use crate::value::{Map, Value};

/// Kinds that all documents refer to: what deletions read and answer.
const SHARED: [&str; 2] = ["DeleteOptions", "Status"];
/// The verb of a connection by each method; `options` and `head` come with `proxy` alone.
const CONNECTIONS: &[(&str, &str)] = &[
    ("delete", "delete"),
    ("get", "get"),
    ("head", "patch"),
    ("options", "patch"),
    ("patch", "patch"),
    ("post", "create"),
    ("put", "update"),
];

/// A subresource of a kind.
struct Subresource<'a> {
    /// The kind of its parent.
    parent: &'a Arc<Kind>,
    name: &'static str,
    /// The kind of its objects, or of the options of its connections.
    kind: &'a Arc<Kind>,
    verbs: &'static [&'static str],
}

fn all<'a>(described: Described<'a>, parent: &'a Arc<Kind>) -> Vec<Subresource<'a>> {
    let engine = described.engine;
    let find = |name: &'static str, kind: Option<&'a Arc<Kind>>| {
        let (verbs, kind) = (parent.verbs(name)?, kind?);
        Some(Subresource { parent, name, kind, verbs })
    };
    match parent.resource {
        Some(resource) => {
            let kind =
                |group, version, kind| engine.kind(&engine.names().group(group), version, kind);
            let rows = resource.subresources.iter();
            rows.filter_map(|row| find(row.name, kind(row.group, row.version, row.kind))).collect()
        }
        None => {
            let scale = engine.kind("autoscaling", "v1", "Scale");
            [find("status", Some(parent)), find("scale", scale)].into_iter().flatten().collect()
        }
    }
}

/// The kinds of other group versions that the operations of `parents` refer to.
pub(super) fn referred<'a>(
    described: Described<'a>,
    parents: impl Iterator<Item = &'a Arc<Kind>>,
    api_version: &str,
) -> Vec<&'a Arc<Kind>> {
    let engine = described.engine;
    let parents: Vec<&Arc<Kind>> = parents.collect();
    let event = parents.iter().any(|parent| watches::has_paths(parent)).then_some(watches::EVENT);
    let shared = SHARED.into_iter().chain(event);
    let shared = shared.filter_map(|name| engine.kind("", "v1", name));
    let own = parents
        .into_iter()
        .flat_map(|parent| all(described, parent))
        .map(|subresource| subresource.kind);
    let mut kinds: Vec<&Arc<Kind>> =
        shared.chain(own).filter(|kind| kind.api_version != api_version).collect();
    kinds.sort_by_key(|kind| Arc::as_ptr(kind));
    kinds.dedup_by_key(|kind| Arc::as_ptr(kind));
    kinds
}

/// The paths of a kind's subresources.
pub(super) fn of_kind<'a>(
    described: Described<'a>,
    version: OpenApiVersion,
    kind: &'a Arc<Kind>,
) -> impl Iterator<Item = (String, Map)> + use<'a> {
    let found = all(described, kind).into_iter();
    found.flat_map(move |one| {
        if one.is_connection() {
            one.connections(version)
        } else {
            vec![one.path(described, version)]
        }
    })
}

impl Subresource<'_> {
    /// Whether its requests are connections, with options in their query: `exec`, `proxy`.
    fn is_connection(&self) -> bool {
        self.kind.kind().ends_with("Options")
    }

    fn at(&self) -> String {
        format!("{}/{}", item_path(self.parent), self.name)
    }

    fn places(&self, with_path: bool) -> impl Iterator<Item = &'static str> + use<> {
        let places = [("name", true), ("namespace", self.parent.namespaced()), ("path", with_path)];
        places.into_iter().filter(|(_, there)| *there).map(|(name, _)| name)
    }

    /// `CoreV1`, and what follows: `NamespacedPodLog`.
    fn identifier(&self) -> (String, String) {
        let scope = if self.parent.namespaced() { "Namespaced" } else { "" };
        let rest = format!("{scope}{}{}", self.parent.kind(), capital(self.name));
        (group_version(self.parent), rest)
    }

    fn path(&self, described: Described<'_>, version: OpenApiVersion) -> (String, Map) {
        let templates = OPERATIONS.iter().filter(|template| {
            let is_single = template.on_item || template.verb == "create";
            is_single && self.verbs.contains(&template.verb)
        });
        let mut item: Map = templates
            .map(|template| (template.method, self.operation(described, version, template)))
            .collect();
        let mut parameters = path_parameters(version, self.places(false));
        if self.name == "log" {
            let options = described.engine.kind("", "v1", "PodLogOptions");
            parameters.extend(options.into_iter().flat_map(|kind| options_of(version, kind)));
        }
        item.insert("parameters", parameters);
        (self.at(), item)
    }

    fn operation(
        &self,
        described: Described<'_>,
        version: OpenApiVersion,
        template: &OperationTemplate,
    ) -> Value {
        let (group_version, rest) = self.identifier();
        let own = reference(described.engine, version, self.kind);
        let is_log = self.name == "log";
        let operation = Operation {
            id: format!("{}{group_version}{rest}", template.word),
            action: template.action,
            kind: gvk(self.kind),
            query: template.query,
            body: body(described.engine, version, self.parent, template, own.clone()),
            produces: if is_log { &["text/plain"] } else { PRODUCED },
            answer: if is_log { text() } else { own },
            codes: template.codes,
        };
        operation.describe(version)
    }

    fn connections(&self, version: OpenApiVersion) -> Vec<(String, Map)> {
        let mut paths = vec![(self.at(), self.connection(version, ""))];
        if self.name == "proxy" {
            paths.push((format!("{}/{{path}}", self.at()), self.connection(version, "WithPath")));
        }
        paths
    }

    fn connection(&self, version: OpenApiVersion, ending: &str) -> Map {
        let (group_version, rest) = self.identifier();
        let offered = CONNECTIONS.iter().filter(|(_, verb)| self.verbs.contains(verb));
        let one = |method: &str| {
            let operation = Operation {
                id: format!("connect{group_version}{}{rest}{ending}", capital(method)),
                action: "connect",
                kind: gvk(self.kind),
                query: &[],
                body: None,
                produces: ANY,
                answer: text(),
                codes: &["200"],
            };
            operation.describe(version)
        };
        let mut item: Map = offered.map(|(method, _)| (*method, one(method))).collect();
        let mut parameters = path_parameters(version, self.places(!ending.is_empty()));
        parameters.pop(); // nothing of another server is indented
        parameters.extend(options_of(version, self.kind));
        item.insert("parameters", parameters);
        item
    }
}

/// The fields of a kind of options, as query parameters; those that are no plain values have none in Kubernetes either.
fn options_of(version: OpenApiVersion, kind: &Kind) -> Vec<Value> {
    let simple = |ty: &Type| match ty {
        Type::Bool => Some("boolean"),
        Type::Int32 | Type::Int64 => Some("integer"),
        Type::String => Some("string"),
        _ => None,
    };
    let own = kind.shapes.get(kind.root).fields.iter();
    let own = own.filter(|field| !matches!(field.name.as_ref(), "apiVersion" | "kind"));
    let typed = own.filter_map(|field| {
        let ty = match &field.ty {
            Type::List(item) => simple(item)?,
            ty => simple(ty)?,
        };
        Some(parameter(version, &field.name, "query", ty))
    });
    typed.collect()
}

fn text() -> Value {
    Value::Map(Map::from_iter([("type", "string")]))
}
