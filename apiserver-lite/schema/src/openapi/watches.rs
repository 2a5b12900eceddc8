//! The deprecated paths of watches, `/api/v1/watch/pods`: built-in kinds have them, custom ones have none.

use std::sync::Arc;

use super::operation::Operation;
use super::operations::{PathScope, group_version, path, path_parameters, shared};
use super::schemas::gvk;
use super::templates::LIST_QUERY;
use super::{Described, OpenApiVersion, api_path};
use crate::object::Kind;
use crate::value::{Map, Value};

/// The kind of what a watch answers.
pub(super) const EVENT: &str = "WatchEvent";
const PRODUCED: &[&str] =
    &["application/json", "application/yaml", "application/json;stream=watch"];

/// Whether a kind has such paths.
pub(super) fn has_paths(kind: &Kind) -> bool {
    kind.custom().is_none() && kind.verbs("").is_some_and(|verbs| verbs.contains(&"watch"))
}

/// The paths of a kind's watches.
pub(super) fn of_kind(
    described: Described<'_>,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
) -> impl Iterator<Item = (String, Map)> {
    let scopes = [PathScope::AllNamespaces, PathScope::Collection, PathScope::Item];
    let offered = scopes.into_iter().filter(|scope| {
        has_paths(kind) && (kind.namespaced() || *scope != PathScope::AllNamespaces)
    });
    offered.map(move |scope| {
        let group = format!("/{}/", api_path(&kind.api_version));
        let plain = path(kind, scope);
        let below = plain.strip_prefix(&group).unwrap_or(&plain);
        (format!("{group}watch/{below}"), path_item(described, version, kind, scope))
    })
}

fn path_item(
    described: Described<'_>,
    version: OpenApiVersion,
    kind: &Arc<Kind>,
    scope: PathScope,
) -> Map {
    let (scoped, end) = match scope {
        PathScope::AllNamespaces => ("", "ListForAllNamespaces"),
        PathScope::Collection if kind.namespaced() => ("Namespaced", "List"),
        PathScope::Collection => ("", "List"),
        PathScope::Item if kind.namespaced() => ("Namespaced", ""),
        PathScope::Item => ("", ""),
    };
    let operation = Operation {
        id: format!("watch{}{scoped}{}{end}", group_version(kind), kind.kind()),
        action: if scope == PathScope::Item { "watch" } else { "watchlist" },
        kind: gvk(kind),
        query: LIST_QUERY,
        body: None,
        produces: PRODUCED,
        answer: shared(described.engine, version, EVENT),
        codes: &["200"],
    };
    let mut item: Map = [("get", operation.describe(version))].into_iter().collect();
    let places = [("name", scope == PathScope::Item), ("namespace", scoped == "Namespaced")];
    let places = places.into_iter().filter(|(_, there)| *there).map(|(name, _)| name);
    item.insert("parameters", Value::List(path_parameters(version, places)));
    item
}
