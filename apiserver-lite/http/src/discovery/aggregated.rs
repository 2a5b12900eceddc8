//! Aggregated discovery: all served resources in one document, for clients that request it by media type.

use std::collections::HashMap;

use http::HeaderMap;
use http::header::ACCEPT;
use proto_api::names::Names;
use serde_json::{Value, json};

use super::rows::Row;
use super::version_priority;

/// The version of aggregated discovery that the client prefers over plain JSON, if any.
#[must_use]
pub fn requested_version(headers: &HeaderMap, names: &Names) -> Option<&'static str> {
    let group = format!("g={}", names.group("apidiscovery"));
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in values.flat_map(|value| value.split(',')) {
        let parameters: Vec<&str> = range.split(';').map(str::trim).collect();
        if parameters.as_slice() == ["application/json"] {
            return None;
        }
        let has = |parameter: &str| parameters.contains(&parameter);
        if has("application/json") && has("as=APIGroupDiscoveryList") && has(&group) {
            let version =
                ["v2", "v2beta1"].into_iter().find(|version| has(&format!("v={version}")));
            if version.is_some() {
                return version;
            }
        }
    }
    None
}

/// Media type of a document of this version.
#[must_use]
pub fn media_type(names: &Names, version: &str) -> String {
    format!(
        "application/json;g={};v={version};as=APIGroupDiscoveryList",
        names.group("apidiscovery")
    )
}

/// The document of the core group (`core`) or of all other groups.
#[must_use]
pub fn document(names: &Names, rows: &[Row], version: &str, core: bool) -> Value {
    let mut order: Vec<&str> = Vec::new();
    let mut by_group: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in rows.iter().filter(|row| row.group.is_empty() == core) {
        let of_group = by_group.entry(row.group.as_str()).or_default();
        if of_group.is_empty() {
            order.push(row.group.as_str());
        }
        of_group.push(row);
    }
    let rows = |name: &str| by_group.get(name).map(Vec::as_slice).unwrap_or_default();
    let items: Vec<Value> = order.into_iter().map(|name| group(name, rows(name))).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("{}/{version}", names.group("apidiscovery")),
        "metadata": {},
        "items": items,
    })
}

fn group(name: &str, rows: &[&Row]) -> Value {
    let mut versions: Vec<&str> = Vec::new();
    for row in rows {
        if !versions.contains(&&*row.version) {
            versions.push(&row.version);
        }
    }
    versions.sort_by(|a, b| version_priority(b).cmp(&version_priority(a)));
    let of = |version: &str| -> Vec<Value> {
        rows.iter().filter(|row| row.version == version).map(|row| resource(row)).collect()
    };
    let versions: Vec<Value> = versions
        .into_iter()
        .map(
            |version| json!({"version": version, "resources": of(version), "freshness": "Current"}),
        )
        .collect();
    json!({"metadata": {"name": name, "creationTimestamp": null}, "versions": versions})
}

fn resource(row: &Row) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": row.plural,
        "responseKind": kind(&row.group, &row.version, &row.kind),
        "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": row.singular,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        entry["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        entry["categories"] = json!(row.categories);
    }
    let below: Vec<Value> = row
        .subresources
        .iter()
        .map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": kind(&sub.group, &sub.version, &sub.kind),
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !below.is_empty() {
        entry["subresources"] = json!(below);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proto_api::names::Profile;

    #[test]
    fn asked_in_the_client_s_order() {
        let names = Names::new(Profile::Kubernetes);
        let ask = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(value));
            requested_version(&headers, names)
        };
        let both = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(ask(both), Some("v2"));
        assert_eq!(
            ask("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
            Some("v2beta1")
        );
        assert_eq!(
            ask(
                "application/json, application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
            ),
            None
        );
        assert_eq!(
            ask("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList"),
            None
        );
    }

    #[test]
    fn every_resource_is_listed_once() {
        let names = Names::new(Profile::Kubernetes);
        let count = |document: &Value| -> usize {
            let versions = document["items"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|group| group["versions"].as_array().unwrap());
            versions.map(|version| version["resources"].as_array().unwrap().len()).sum()
        };
        let rows = super::super::rows::built_in(names);
        let listed = count(&document(names, &rows, "v2", true))
            + count(&document(names, &rows, "v2", false));
        assert_eq!(listed, proto_api::schema::resources().len());
    }
}
