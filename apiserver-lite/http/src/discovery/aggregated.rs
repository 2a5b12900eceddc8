//! Aggregated discovery: all served resources in one document, for clients that request it by media type.

use std::collections::BTreeMap;

use http::HeaderMap;
use http::header::ACCEPT;
use proto_api::names::Names;
use serde_json::{Value, json};

use super::rows::DiscoveryRow;

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

/// A group of the document.
pub struct ApiGroupDiscovery {
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<ApiVersionDiscovery>,
}

/// A version of a group.
pub struct ApiVersionDiscovery {
    pub name: String,
    pub resources: Vec<Value>,
    /// Whether they are those of now.
    pub freshness: &'static str,
}

/// What this server knows by itself is of now.
pub const CURRENT: &str = "Current";
/// The discovery document of another server may have changed since it was last reached.
pub const STALE: &str = "Stale";

/// The document of some groups.
#[must_use]
pub fn document(names: &Names, groups: &[ApiGroupDiscovery], version: &str) -> Value {
    let items: Vec<Value> = groups.iter().map(group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("{}/{version}", names.group("apidiscovery")),
        "metadata": {},
        "items": items,
    })
}

fn group(group: &ApiGroupDiscovery) -> Value {
    let version = |of: &ApiVersionDiscovery| json!({"version": of.name, "resources": of.resources, "freshness": of.freshness});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"metadata": {"name": group.name, "creationTimestamp": null}, "versions": versions})
}

/// The resources of an `APIResourceList`, each with its subresources. What has not the form is left out.
#[must_use]
pub fn resources_of_list(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let all = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let kind = |row: &Value| {
        let or = |own: String, outer: &str| if own.is_empty() { outer.to_owned() } else { own };
        let (group, version) = (or(text(row, "group"), group), or(text(row, "version"), version));
        json!({"group": group, "version": version, "kind": text(row, "kind")})
    };
    let mut below: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for row in all {
        if let Some((name, subresource)) =
            row["name"].as_str().and_then(|name| name.split_once('/'))
        {
            let shown = json!({"subresource": subresource, "responseKind": kind(row), "verbs": row["verbs"]});
            below.entry(name).or_default().push(shown);
        }
    }
    let main = all.iter().filter_map(|row| row["name"].as_str().map(|name| (name, row)));
    let shown = main.filter(|(name, _)| !name.contains('/')).map(|(name, row)| {
        let mut shown = json!({
            "resource": name,
            "responseKind": kind(row),
            "scope": if row["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": text(row, "singularName"),
            "verbs": row["verbs"],
        });
        for field in ["shortNames", "categories"] {
            if row[field].is_array() {
                shown[field] = row[field].clone();
            }
        }
        if let Some(subresources) = below.remove(name) {
            shown["subresources"] = subresources.into();
        }
        shown
    });
    shown.collect()
}

/// A resource of this server.
#[must_use]
pub fn resource(row: &DiscoveryRow) -> Value {
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
    fn the_discovery_version_follows_the_order_of_the_accept_header() {
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
    fn resources_of_another_server_are_shown_with_what_lies_below() {
        let list = json!({"resources": [
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["list"], "shortNames": ["fl"]},
            {"name": "fischers/scale", "group": "autoscaling", "version": "v1", "kind": "Scale", "verbs": ["get"]},
            {"name": "fischers", "kind": "Fischer", "verbs": ["get"]},
            {"kind": "Nameless"},
        ]});
        let shown = resources_of_list(&list, "a.com", "v1");
        assert_eq!(shown.len(), 2);
        let flunder = json!({"group": "a.com", "version": "v1", "kind": "Flunder"});
        assert_eq!(
            shown[0],
            json!({"resource": "flunders", "responseKind": flunder, "scope": "Namespaced", "singularResource": "flunder", "verbs": ["list"],
                "shortNames": ["fl"], "subresources": [{"subresource": "status", "responseKind": flunder, "verbs": ["get"]}]})
        );
        assert_eq!(shown[1]["scope"], "Cluster");
        assert_eq!(shown[1]["subresources"][0]["responseKind"]["group"], "autoscaling");
        assert!(resources_of_list(&json!("no list"), "a.com", "v1").is_empty());
    }
}
