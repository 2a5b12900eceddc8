//! Brings an object of the bootstrap policy up to date: what the policy has and the stored object lacks is added to it.

use apiserver_schema::{Map, Object, Value};
use proto_api::names::Names;

use crate::bootstrap::autoupdate_annotation;
use crate::missing_rules::rules_to_add;
use crate::read::{read_rules, rule_value};

/// How a stored object is brought up to date.
#[derive(Clone, Debug, PartialEq)]
pub enum ReconcileStep {
    /// It has everything, or its annotation says that it stays as it is.
    Unchanged,
    /// It is replaced by this object: the stored one with what was missing.
    Updated(Box<Object>),
    /// It is a binding to another role: it is deleted and created again, since a binding's role cannot change.
    Recreated,
}

/// Compares the `stored` version of a role or binding with that of the bootstrap policy. Rules, subjects, labels and annotations
/// that others added stay.
#[must_use]
pub fn reconcile(names: &Names, stored: &Object, wanted: &Object) -> ReconcileStep {
    let annotation = autoupdate_annotation(names);
    if stored.annotations().get(&annotation).is_some_and(|value| value == "false") {
        return ReconcileStep::Unchanged;
    }
    let role = |object: &Object| object.fields.map("roleRef").cloned().unwrap_or_default();
    if role(stored) != role(wanted) {
        return ReconcileStep::Recreated;
    }
    let mut object = stored.clone();
    for field in ["labels", "annotations"] {
        let wanted = wanted.metadata().and_then(|metadata| metadata.map(field));
        let own = object.metadata().and_then(|metadata| metadata.map(field));
        let is_missing = |key: &str| own.is_none_or(|own| !own.contains(key));
        let wanted = wanted.into_iter().flat_map(Map::iter);
        let missing: Vec<_> = wanted.filter(|(key, _)| is_missing(key)).collect();
        for (key, value) in missing {
            object.metadata_mut().map_or_insert(field).insert(key.to_owned(), value.clone());
        }
    }
    // The rules of a role that is the union of others are the aggregation controller's.
    if wanted.fields.contains("aggregationRule") {
        let selectors = |object: &Object| {
            let rule = object.fields.map("aggregationRule");
            rule.map(|rule| rule.list("clusterRoleSelectors").to_vec()).unwrap_or_default()
        };
        let own = selectors(stored);
        let missing = selectors(wanted).into_iter().filter(|selector| !own.contains(selector));
        let rule = object.fields.map_or_insert("aggregationRule");
        add_to_list(rule, "clusterRoleSelectors", missing.collect());
    } else {
        let missing = rules_to_add(&read_rules(stored), &read_rules(wanted));
        let missing: Vec<Value> = missing.iter().map(rule_value).collect();
        add_to_list(&mut object.fields, "rules", missing);
    }
    let subjects = wanted.fields.list("subjects").iter();
    let missing = subjects.filter(|subject| !stored.fields.list("subjects").contains(subject));
    add_to_list(&mut object.fields, "subjects", missing.cloned().collect());
    if object == *stored {
        ReconcileStep::Unchanged
    } else {
        ReconcileStep::Updated(Box::new(object))
    }
}

fn add_to_list(fields: &mut Map, field: &'static str, values: Vec<Value>) {
    if values.is_empty() {
        return;
    }
    let mut list = fields.list(field).to_vec();
    list.extend(values);
    fields.insert(field, list);
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Strictness};
    use proto_api::names::Profile;
    use serde_json::json;

    use super::*;

    fn object(kind: &str, json: &serde_json::Value) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let kind = engine.kind("rbac.authorization.k8s.io", "v1", kind).expect("a kind");
        let text = json.to_string();
        engine
            .decode(kind, Format::Json, text.as_bytes(), Strictness::Strict)
            .expect("valid")
            .object
    }

    fn role(annotation: &str, rules: &serde_json::Value) -> Object {
        let annotations = json!({"rbac.authorization.kubernetes.io/autoupdate": annotation});
        object(
            "ClusterRole",
            &json!({"metadata": {"name": "a", "annotations": annotations}, "rules": rules}),
        )
    }

    fn update(stored: &Object, wanted: &Object) -> ReconcileStep {
        reconcile(Names::new(Profile::Kubernetes), stored, wanted)
    }

    #[test]
    fn missing_rules_of_built_in_roles_are_added_and_others_kept() {
        let pods = |verb: &str| json!({"apiGroups": [""], "resources": ["pods"], "verbs": [verb]});
        let wanted = role("true", &json!([pods("get"), pods("list")]));
        assert_eq!(update(&wanted, &wanted), ReconcileStep::Unchanged);
        let stored = role("true", &json!([pods("delete"), pods("get")]));
        let both = role("true", &json!([pods("delete"), pods("get"), pods("list")]));
        assert_eq!(update(&stored, &wanted), ReconcileStep::Updated(Box::new(both.clone())));
        assert_eq!(update(&both, &wanted), ReconcileStep::Unchanged);
        let kept = role("false", &json!([pods("delete")]));
        assert_eq!(update(&kept, &wanted), ReconcileStep::Unchanged);
    }

    #[test]
    fn a_binding_keeps_its_subjects_and_gets_its_role_back() {
        let binding = |role: &str, users: &[&str]| {
            let subject = |name: &&str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name});
            let subjects: Vec<_> = users.iter().map(subject).collect();
            let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
            object(
                "ClusterRoleBinding",
                &json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": subjects}),
            )
        };
        let wanted = binding("view", &["scheduler"]);
        let stored = binding("view", &["jane"]);
        let both = binding("view", &["jane", "scheduler"]);
        assert_eq!(update(&stored, &wanted), ReconcileStep::Updated(Box::new(both)));
        assert_eq!(update(&binding("edit", &["scheduler"]), &wanted), ReconcileStep::Recreated);
    }

    #[test]
    fn the_rules_of_an_aggregated_role_are_left_to_its_controller() {
        let aggregated = |rules: &serde_json::Value| {
            let selector = json!([{"matchLabels": {"x": "true"}}]);
            object(
                "ClusterRole",
                &json!({"metadata": {"name": "a"}, "rules": rules, "aggregationRule": {"clusterRoleSelectors": selector}}),
            )
        };
        let filled =
            aggregated(&json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]));
        assert_eq!(update(&filled, &aggregated(&json!([]))), ReconcileStep::Unchanged);
    }
}
