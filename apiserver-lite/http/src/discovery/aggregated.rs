//! Aggregated discovery: all served resources in one document, for clients that request it by media type.

use std::cmp::Reverse;

use apiserver_core::config::RuntimeConfig;
use http::HeaderMap;
use http::header::ACCEPT;
use proto_api::names::Names;
use proto_api::schema::{self, Resource};
use serde_json::{Value, json};

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
pub fn document(names: &Names, switches: &RuntimeConfig, version: &str, core: bool) -> Value {
    let mut groups: Vec<&str> = Vec::new();
    let served = |row: &&Resource| switches.serves(row.group, row.version, row.plural);
    let rows: Vec<&'static Resource> = schema::resources().iter().filter(served).collect();
    for resource in rows.iter().filter(|resource| resource.group.is_empty() == core) {
        if !groups.contains(&resource.group) {
            groups.push(resource.group);
        }
    }
    let items: Vec<Value> = groups.into_iter().map(|short| group(names, &rows, short)).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("{}/{version}", names.group("apidiscovery")),
        "metadata": {},
        "items": items,
    })
}

fn group(names: &Names, rows: &[&'static Resource], short: &str) -> Value {
    let rows: Vec<&Resource> = rows.iter().copied().filter(|row| row.group == short).collect();
    let mut versions: Vec<&str> = Vec::new();
    for row in &rows {
        if !versions.contains(&row.version) {
            versions.push(row.version);
        }
    }
    versions.sort_by_key(|version| Reverse(version_priority(version)));
    let of = |version: &str| -> Vec<Value> {
        rows.iter().filter(|row| row.version == version).map(|row| resource(names, row)).collect()
    };
    let versions: Vec<Value> = versions
        .into_iter()
        .map(
            |version| json!({"version": version, "resources": of(version), "freshness": "Current"}),
        )
        .collect();
    json!({"metadata": {"name": names.group(short), "creationTimestamp": null}, "versions": versions})
}

fn resource(names: &Names, row: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": names.group(group), "version": version, "kind": kind});
    let mut entry = json!({
        "resource": row.plural,
        "responseKind": kind(row.group, row.version, row.kind),
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
                "responseKind": kind(sub.group, sub.version, sub.kind),
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
        let all = RuntimeConfig::default();
        let document = |core| document(names, &all, "v2", core);
        let listed = count(&document(true)) + count(&document(false));
        assert_eq!(listed, schema::resources().len());
    }
}
