//! The resources that other API servers add, for controllers of all kinds: read from a list of APIServices, and from what is served in their versions.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use proto_api::Collection;
use proto_api::names::Names;
use serde_json::Value;

use crate::custom_resources::CustomResource;

/// A version of a group that another server serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherVersion {
    pub group: String,
    pub version: String,
    /// Namespace, name and port of the Service in front of its server.
    pub service: String,
    /// Whether its server answers, as its APIService says.
    pub available: bool,
}

impl OtherVersion {
    /// The path of the list of its resources.
    pub fn path(&self) -> String {
        format!("/apis/{}/{}", self.group, self.version)
    }
}

/// A resource with its verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherResource {
    pub resource: CustomResource,
    verbs: BTreeSet<String>,
}

impl OtherResource {
    /// Whether its objects can be asked for with all these verbs.
    pub fn has(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.contains(*verb))
    }
}

/// All APIServices.
pub fn api_services(names: &Names) -> Collection {
    Collection {
        group: names.group("apiregistration"),
        version: "v1".to_owned(),
        plural: "apiservices".to_owned(),
        namespace: None,
    }
}

/// The versions of other servers, of each group the preferred one first; `list` is a list of APIServices.
pub fn versions(list: &Value) -> Vec<OtherVersion> {
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    let prioritized = |service: &Value| {
        let priority = service.pointer("/spec/versionPriority").and_then(Value::as_i64);
        Some((Reverse(priority.unwrap_or_default()), version(service)?))
    };
    let mut found: Vec<_> = items.filter_map(prioritized).collect();
    found.sort();
    found.into_iter().map(|(_, version)| version).collect()
}

/// The version of an APIService that another server serves.
pub fn version(api_service: &Value) -> Option<OtherVersion> {
    let spec = api_service.get("spec")?;
    let service = spec.get("service").filter(|service| service.is_object())?;
    let text = |of: &Value, field: &str| of.get(field).and_then(Value::as_str).map(str::to_owned);
    let named = |field: &str| text(service, field).unwrap_or_default();
    let port = service.get("port").and_then(Value::as_i64).unwrap_or(443);
    let conditions = api_service.pointer("/status/conditions").and_then(Value::as_array);
    let available = conditions.into_iter().flatten().any(|condition| {
        let is = |field: &str, wanted| condition.get(field).and_then(Value::as_str) == Some(wanted);
        is("type", "Available") && is("status", "True")
    });
    Some(OtherVersion {
        group: text(spec, "group")?,
        version: text(spec, "version")?,
        service: format!("{}/{}:{port}", named("namespace"), named("name")),
        available,
    })
}

/// The resources of a version; `list` is its `APIResourceList`. Subresources are none.
pub fn resources(list: &Value, of: &OtherVersion) -> Vec<OtherResource> {
    let items = list.get("resources").and_then(Value::as_array).into_iter().flatten();
    let read = |item: &Value| {
        let text = |field: &str| item.get(field).and_then(Value::as_str).map(str::to_owned);
        let verbs = item.get("verbs").and_then(Value::as_array).into_iter().flatten();
        let resource = CustomResource {
            group: of.group.clone(),
            plural: text("name").filter(|name| !name.is_empty() && !name.contains('/'))?,
            version: of.version.clone(),
            kind: text("kind")?,
            namespaced: item.get("namespaced").and_then(Value::as_bool) == Some(true),
            versions: vec![of.version.clone()],
        };
        let verbs = verbs.filter_map(Value::as_str).map(str::to_owned).collect();
        Some(OtherResource { resource, verbs })
    };
    items.filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_of_other_servers_have_a_service_and_the_preferred_one_comes_first() {
        let service = |version: &str, priority: i64, status: &str, service: Value| {
            json!({"spec": {"group": "e.com", "version": version, "versionPriority": priority, "service": service},
                "status": {"conditions": [{"type": "Available", "status": status}]}})
        };
        let there = json!({"namespace": "n", "name": "s"});
        let list = json!({"items": [
            service("v1alpha1", 5, "True", there.clone()), service("v1", 15, "False", there), service("local", 20, "True", Value::Null),
            {"spec": {"group": "", "version": "v1"}}, {}]});
        let found = versions(&list);
        let found: Vec<_> = found.iter().map(|one| (one.path(), one.available)).collect();
        let expected = [("/apis/e.com/v1", false), ("/apis/e.com/v1alpha1", true)];
        assert_eq!(found, expected.map(|(path, available)| (path.to_owned(), available)));
        assert_eq!(versions(&json!({})), []);
    }

    #[test]
    fn resources_have_the_verbs_that_are_listed() {
        let of = OtherVersion {
            group: "e.com".into(),
            version: "v1".into(),
            service: "n/s:443".into(),
            available: true,
        };
        let list = json!({"resources": [
            {"name": "birds", "kind": "Bird", "namespaced": true, "verbs": ["list", "delete"]},
            {"name": "birds/status", "kind": "Bird", "namespaced": true, "verbs": ["get"]},
            {"name": "", "kind": "Bird"}, {"name": "nests"}, 3]});
        let found = resources(&list, &of);
        assert_eq!(found.len(), 1);
        assert!(found[0].has(&["delete", "list"]) && !found[0].has(&["list", "watch"]));
        let collection = found[0].resource.collection(Some("n"));
        assert_eq!(collection.path(), "/apis/e.com/v1/namespaces/n/birds");
    }
}
