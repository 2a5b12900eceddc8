//! The resources that CustomResourceDefinitions add, for controllers of all kinds: read from a list of definitions.

use proto_api::Collection;
use proto_api::names::Names;
use serde_json::Value;

/// A served custom resource, in its preferred version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CustomResource {
    pub group: String,
    /// For example `backups`.
    pub plural: String,
    /// A served version, the one in which objects are stored if that is served.
    pub version: String,
    /// For example `Backup`.
    pub kind: String,
    /// Whether it is namespaced.
    pub namespaced: bool,
    /// All versions in which it is served.
    pub versions: Vec<String>,
}

impl CustomResource {
    /// Its objects in a namespace, or in all.
    pub fn collection(&self, namespace: Option<&str>) -> Collection {
        Collection {
            group: self.group.clone(),
            version: self.version.clone(),
            plural: self.plural.clone(),
            namespace: namespace.filter(|_| self.namespaced).map(str::to_owned),
        }
    }
}

/// All CustomResourceDefinitions in the cache.
pub fn definitions(names: &Names) -> Collection {
    Collection {
        group: names.group("apiextensions"),
        version: "v1".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
        namespace: None,
    }
}

/// The resources of established definitions; `list` is a list of definitions.
pub fn list_served(list: &Value) -> Vec<CustomResource> {
    let items = list.get("items").and_then(Value::as_array);
    items.into_iter().flatten().filter_map(of_definition).collect()
}

/// The collections of a namespace's objects of established definitions; `list` is a list of definitions.
pub fn within(list: &Value, namespace: &str) -> Vec<Collection> {
    let namespaced = list_served(list).into_iter().filter(|resource| resource.namespaced);
    namespaced.map(|resource| resource.collection(Some(namespace))).collect()
}

fn of_definition(definition: &Value) -> Option<CustomResource> {
    let list = |path: &str| {
        definition.pointer(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
    };
    let is = |value: &Value, field: &str, wanted: &str| {
        value.get(field).and_then(Value::as_str) == Some(wanted)
    };
    let established = list("/status/conditions")
        .iter()
        .any(|condition| is(condition, "type", "Established") && is(condition, "status", "True"));
    let flag = |version: &Value, field: &str| version.get(field).and_then(Value::as_bool);
    let served = || list("/spec/versions").iter().filter(|v| flag(v, "served") == Some(true));
    let version =
        served().find(|v| flag(v, "storage") == Some(true)).or_else(|| served().next())?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    established.then_some(())?;
    Some(CustomResource {
        group: text(definition.pointer("/spec/group"))?,
        plural: text(definition.pointer("/spec/names/plural"))?,
        version: text(version.get("name"))?,
        kind: text(definition.pointer("/spec/names/kind"))?,
        namespaced: definition.pointer("/spec/scope").and_then(Value::as_str) == Some("Namespaced"),
        versions: served().filter_map(|version| text(version.get("name"))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(established: &str, served: [bool; 2]) -> Value {
        let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage});
        json!({
            "spec": {
                "group": "example.com",
                "scope": "Namespaced",
                "names": {"plural": "backups", "kind": "Backup"},
                "versions": [version("v1", served[0], false), version("v2", served[1], true)],
            },
            "status": {"conditions": [{"type": "Established", "status": established}]},
        })
    }

    #[test]
    fn established_definitions_are_served_in_the_storage_version_if_it_is_served() {
        let versions = |definition: Value| -> Vec<String> {
            let found = list_served(&json!({"items": [definition]}));
            found.into_iter().map(|found| found.version).collect()
        };
        assert_eq!(versions(definition("True", [true, true])), ["v2"]);
        assert_eq!(versions(definition("True", [true, false])), ["v1"]);
        assert!(versions(definition("True", [false, false])).is_empty());
        assert!(versions(definition("False", [true, true])).is_empty());
        let found = list_served(&json!({"items": [definition("True", [true, true])]}));
        assert_eq!(found.len(), 1);
        let list = json!({"items": [definition("True", [true, true])]});
        let paths: Vec<String> = within(&list, "team").iter().map(Collection::path).collect();
        assert_eq!(paths, ["/apis/example.com/v2/namespaces/team/backups"]);
    }
}
