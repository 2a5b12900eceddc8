//! Objects and lists as trees: parts that every kind has.

use serde_json::{Map, Value, json};

/// A text at a JSON pointer; empty if there is none.
pub fn text_at<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a list at a JSON pointer; none if there is none.
pub fn list_at<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map at a JSON pointer.
pub fn map_at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Map<String, Value>> {
    object.pointer(pointer).and_then(Value::as_object)
}

/// `metadata.name`; empty if it is missing.
pub fn name(object: &Value) -> &str {
    text_at(object, "/metadata/name")
}

/// Its namespace; empty outside of namespaces.
pub fn namespace(object: &Value) -> &str {
    text_at(object, "/metadata/namespace")
}

/// Whether it is a list of objects.
pub fn is_list(object: &Value) -> bool {
    object.get("items").is_some_and(Value::is_array) && text_at(object, "/kind").ends_with("List")
}

/// One list of objects of any kinds.
pub fn list_of(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items})
}

/// The items of a list of one kind, each saying what it is; an object alone is its own item.
pub fn into_items(mut object: Value) -> Vec<Value> {
    if !is_list(&object) {
        return vec![object];
    }
    let api_version = object.get("apiVersion").cloned().unwrap_or_default();
    let kind = text_at(&object, "/kind").trim_end_matches("List").to_owned();
    let Some(Value::Array(mut items)) = object.get_mut("items").map(Value::take) else {
        return Vec::new();
    };
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        if !kind.is_empty() && !item.contains_key("kind") {
            item.insert("kind".to_owned(), json!(kind));
            item.insert("apiVersion".to_owned(), api_version.clone());
        }
    }
    items
}

/// Removes what says who owns which field: it is long and seldom wanted.
pub fn without_managed_fields(object: &mut Value) {
    if let Some(Value::Array(items)) = object.get_mut("items") {
        items.iter_mut().for_each(without_managed_fields);
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
}

/// `a=b,c=d`, or `<none>`.
pub fn pairs(map: Option<&Map<String, Value>>) -> String {
    let mut pairs: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// What an object is called in messages: `pod/web`, `deployment.apps/web`.
pub fn kind_and_name(object: &Value) -> String {
    let kind = text_at(object, "/kind").to_lowercase();
    match text_at(object, "/apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", name(object)),
        None => format!("{kind}/{}", name(object)),
    }
}

/// A selector of the API (`matchLabels`, `matchExpressions`) as the text of a query, by keys; `None` if it says nothing.
pub fn label_selector(object: &Value, pointer: &str) -> Option<String> {
    let at = |part: &str| format!("{pointer}/{part}");
    let labels = map_at(object, &at("matchLabels")).into_iter().flatten();
    let mut parts: Vec<(&str, String)> = labels
        .map(|(key, value)| (key.as_str(), format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for one in list_at(object, &at("matchExpressions")) {
        let key = text_at(one, "/key");
        let values = list_at(one, "/values").iter().filter_map(Value::as_str);
        let mut values = values.collect::<Vec<_>>();
        values.sort_unstable();
        let values = values.join(",");
        let part = match text_at(one, "/operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        parts.push((key, part));
    }
    parts.sort_by_key(|(key, _)| *key);
    let parts: Vec<String> = parts.into_iter().map(|(_, part)| part).collect();
    (!parts.is_empty()).then(|| parts.join(","))
}

/// What selects the pods of a workload or Service, as the text of a query: a selector of the API, or labels alone as Services and replication controllers
/// have them. `None` if it selects none.
pub fn pod_selector(object: &Value) -> Option<String> {
    let labels = map_at(object, "/spec/selector");
    let labels = labels.filter(|map| !map.is_empty() && map.values().all(Value::is_string));
    match labels {
        Some(labels) => Some(pairs(Some(labels))),
        None => label_selector(object, "/spec/selector"),
    }
}

/// The UID under which the node of a pod knows it: of a mirror that of its static pod, which the annotation `mirror` has; the node's events carry it.
pub fn uid_on_node<'a>(pod: &'a Value, mirror: &str) -> &'a str {
    let annotation = map_at(pod, "/metadata/annotations").and_then(|map| map.get(mirror));
    annotation.and_then(Value::as_str).unwrap_or_else(|| text_at(pod, "/metadata/uid"))
}

/// The claims of a pod's volumes; that of an ephemeral volume has the names of both.
pub fn claim_names(pod: &Value) -> Vec<String> {
    let volumes = list_at(pod, "/spec/volumes").iter();
    let names = volumes.map(|one| match one.get("ephemeral") {
        Some(_) => format!("{}-{}", name(pod), text_at(one, "/name")),
        None => text_at(one, "/persistentVolumeClaim/claimName").to_owned(),
    });
    names.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_say_what_they_are() {
        let list = json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [{"metadata": {"name": "a"}}]});
        let items = into_items(list);
        assert_eq!(kind_and_name(&items[0]), "deployment.apps/a");
        assert_eq!(
            kind_and_name(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}})),
            "pod/p"
        );
    }

    #[test]
    fn pods_are_selected_by_labels_and_expressions() {
        let expressions = json!([
            {"key": "tier", "operator": "In", "values": ["b", "a"]}, {"key": "old", "operator": "DoesNotExist"},
            {"key": "env", "operator": "NotIn", "values": ["dev"]}, {"key": "app", "operator": "Exists"}]);
        for (selector, text) in [
            (json!({"app": "web", "a": "1"}), Some("a=1,app=web")),
            (json!({"matchLabels": {"b": "2", "a": "1"}}), Some("a=1,b=2")),
            (
                json!({"matchLabels": {"a": "1"}, "matchExpressions": expressions}),
                Some("a=1,app,env notin (dev),!old,tier in (a,b)"),
            ),
            (json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}), Some("x")),
            (json!({}), None),
            (Value::Null, None),
        ] {
            let object = json!({"spec": {"selector": selector}});
            assert_eq!(pod_selector(&object).as_deref(), text, "{selector}");
        }
    }

    #[test]
    fn a_node_knows_a_mirror_as_its_static_pod() {
        let mut pod = json!({"metadata": {"uid": "u"}});
        assert_eq!(uid_on_node(&pod, "kubernetes.io/config.mirror"), "u");
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
        assert_eq!(uid_on_node(&pod, "kubernetes.io/config.mirror"), "hash");
    }

    #[test]
    fn managed_fields_are_removed_everywhere() {
        let mut list = list_of(vec![json!({"metadata": {"name": "a", "managedFields": [1]}})]);
        without_managed_fields(&mut list);
        assert_eq!(list["items"][0], json!({"metadata": {"name": "a"}}));
    }
}
