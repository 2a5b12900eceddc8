//! Which requests a webhook is called about: those that its rules match and its selectors select.

use std::collections::BTreeMap;

use apiserver_schema::Object;
use proto_api::selectors::{Selector, SelectorError};

use crate::conditions::MatchConditions;
use crate::configuration::{MatchPolicy, Webhook};
use crate::rules::{AdmissionAttributes, MatchedVersion, WebhookOperation};

/// The objects of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objects<'a> {
    /// As it will be.
    pub new: Option<&'a Object>,
    /// As it is stored.
    pub old: Option<&'a Object>,
}

/// Whether a webhook is called cannot be said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The namespace of the request does not exist.
    #[error("the namespace does not exist")]
    NoNamespace,
    /// A selector cannot be read.
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

impl Webhook {
    /// The version in which the webhook is called about a request; `None` if it is not. `namespace` looks up the labels of the request's namespace.
    ///
    /// # Errors
    /// Its rules match, but the namespace does not exist or a selector cannot be read.
    pub fn applies(
        &self,
        attributes: &AdmissionAttributes<'_>,
        objects: Objects<'_>,
        namespace: impl FnOnce() -> Option<BTreeMap<String, String>>,
    ) -> Result<Option<MatchedVersion>, Mismatch> {
        let Some(version) = self.matching_version(attributes) else { return Ok(None) };
        let selectors = self.selectors.as_ref().map_err(|error| error.clone())?;
        if !selects_object(&selectors.object, objects) {
            return Ok(None);
        }
        let selected = selects_namespace(&selectors.namespace, attributes, objects, namespace)?;
        Ok(selected.then_some(version))
    }

    /// The conditions of requests that it [applies](Self::applies) to; `None` without any.
    #[must_use]
    pub fn conditions(&self) -> Option<&MatchConditions> {
        let selectors = self.selectors.as_ref().ok()?;
        Some(&selectors.conditions).filter(|conditions| !conditions.is_empty())
    }

    fn matching_version(&self, attributes: &AdmissionAttributes<'_>) -> Option<MatchedVersion> {
        if self.rules.iter().any(|rule| rule.matches(attributes, attributes.resource)) {
            return Some(MatchedVersion::Requested);
        }
        if self.match_policy == MatchPolicy::Exact {
            return None;
        }
        // Earlier rules go first.
        self.rules.iter().find_map(|rule| {
            let mut all = attributes.equivalents.iter();
            all.position(|other| rule.matches(attributes, *other)).map(MatchedVersion::Equivalent)
        })
    }
}

/// Whether the object is selected as it will be, or as it is stored.
fn selects_object(selector: &Selector, objects: Objects<'_>) -> bool {
    let selects =
        |object: Option<&Object>| object.is_some_and(|object| selector.matches(&object.labels()));
    selector.is_everything() || selects(objects.new) || selects(objects.old)
}

/// Whether the namespace of the request is selected. Of a Namespace that is written it is the written one; what lies in no namespace always is.
fn selects_namespace(
    selector: &Selector,
    attributes: &AdmissionAttributes<'_>,
    objects: Objects<'_>,
    namespace: impl FnOnce() -> Option<BTreeMap<String, String>>,
) -> Result<bool, Mismatch> {
    let is_namespace = attributes.is_namespace();
    if selector.is_everything() || (attributes.namespace.is_empty() && !is_namespace) {
        return Ok(true);
    }
    let written =
        matches!(attributes.operation, WebhookOperation::Create | WebhookOperation::Update)
            && attributes.subresource.is_empty();
    let labels = match objects.new {
        Some(new) if is_namespace && written => new.labels(),
        _ => namespace().ok_or(Mismatch::NoNamespace)?,
    };
    Ok(selector.matches(&labels))
}

#[cfg(test)]
mod tests {
    use apiserver_schema::Engine;
    use proto_api::names::{Names, Profile};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::configuration::tests::webhook;
    use crate::rules::ResourceRef;

    const PODS: ResourceRef<'_> = ResourceRef { group: "", version: "v1", resource: "pods" };

    fn with_rule(rule: Json) -> Webhook {
        let mut full = json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
        for (field, value) in rule.as_object().unwrap() {
            full[field] = value.clone();
        }
        webhook(json!({"name": "a.b.c", "clientConfig": {"url": "https://h"}, "rules": [full],
            "admissionReviewVersions": ["v1"]}))
    }

    fn create<'a>(resource: ResourceRef<'a>, subresource: &'a str) -> AdmissionAttributes<'a> {
        let (operation, equivalents) = (WebhookOperation::Create, &[]);
        AdmissionAttributes { operation, resource, subresource, namespace: "n", equivalents }
    }

    fn applies(webhook: &Webhook, attributes: &AdmissionAttributes<'_>) -> bool {
        let nothing = Objects::default();
        webhook.applies(attributes, nothing, || None).unwrap().is_some()
    }

    #[test]
    fn resources_of_rules_name_subresources_too() {
        for (resources, plain, status, other) in [
            (json!(["pods"]), true, false, false),
            (json!(["pods/status"]), false, true, false),
            (json!(["pods/*"]), true, true, false),
            (json!(["*"]), true, false, true),
            (json!(["*/status"]), false, true, false),
            (json!(["*/*"]), true, true, true),
            (json!(["nodes", "pods"]), true, false, false),
        ] {
            let hook = with_rule(json!({"resources": resources}));
            let secrets = ResourceRef { resource: "secrets", ..PODS };
            let found = (
                applies(&hook, &create(PODS, "")),
                applies(&hook, &create(PODS, "status")),
                applies(&hook, &create(secrets, "")),
            );
            assert_eq!(found, (plain, status, other), "{resources}");
        }
    }

    #[test]
    fn groups_versions_and_operations_are_exact_or_all() {
        for (rule, expected) in [
            (json!({"apiGroups": [""]}), true),
            (json!({"apiGroups": ["apps"]}), false),
            (json!({"apiGroups": ["apps", ""]}), true),
            (json!({"apiVersions": ["v1"]}), true),
            (json!({"apiVersions": ["v2"]}), false),
            (json!({"operations": ["CREATE"]}), true),
            (json!({"operations": ["UPDATE", "DELETE", "CONNECT"]}), false),
        ] {
            assert_eq!(applies(&with_rule(rule.clone()), &create(PODS, "")), expected, "{rule}");
        }
    }

    #[test]
    fn a_namespace_is_cluster_scoped() {
        let namespaces = ResourceRef { resource: "namespaces", ..PODS };
        let nodes = AdmissionAttributes {
            namespace: "",
            ..create(ResourceRef { resource: "nodes", ..PODS }, "")
        };
        for (scope, pod, namespace, node) in [
            ("*", true, true, true),
            ("Namespaced", true, false, false),
            ("Cluster", false, true, true),
        ] {
            let hook = with_rule(json!({"scope": scope}));
            let found = (
                applies(&hook, &create(PODS, "")),
                applies(&hook, &create(namespaces, "")),
                applies(&hook, &nodes),
            );
            assert_eq!(found, (pod, namespace, node), "{scope}");
        }
    }

    #[test]
    fn equivalent_resources_match_unless_the_policy_is_exact() {
        let (group, resource) = ("autoscaling", "horizontalpodautoscalers");
        let of = |version| ResourceRef { group, version, resource };
        let equivalents = [of("v1"), of("v2beta2")];
        let request = AdmissionAttributes { equivalents: &equivalents, ..create(of("v2"), "") };
        let version = |hook: &Webhook| hook.applies(&request, Objects::default(), || None).unwrap();
        let mut hook = with_rule(json!({"apiVersions": ["v2beta2", "v9"]}));
        assert_eq!(version(&hook), Some(MatchedVersion::Equivalent(1)));
        assert_eq!(
            version(&with_rule(json!({"apiVersions": ["*"]}))),
            Some(MatchedVersion::Requested)
        );
        hook.match_policy = MatchPolicy::Exact;
        assert_eq!(version(&hook), None);
    }

    fn labelled(kind: &str, labels: &[(&str, &str)]) -> Object {
        let engine = Engine::new(Names::new(Profile::Kubernetes));
        let mut object = Object::new(engine.kind("", "v1", kind).unwrap().clone());
        let map = object.metadata_mut().map_or_insert("labels");
        labels.iter().for_each(|(key, value)| drop(map.insert((*key).to_owned(), *value)));
        object
    }

    fn selecting(field: &str) -> Webhook {
        let mut fields = json!({"name": "a.b.c", "clientConfig": {"url": "https://h"}, "admissionReviewVersions": ["v1"],
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]});
        fields[field] = json!({"matchLabels": {"on": "yes"}});
        webhook(fields)
    }

    #[test]
    fn objects_are_selected_before_or_after_the_change() {
        let hook = selecting("objectSelector");
        let (with, without) = (labelled("Pod", &[("on", "yes")]), labelled("Pod", &[]));
        let request = create(PODS, "");
        let asked =
            |new, old| hook.applies(&request, Objects { new, old }, || None).unwrap().is_some();
        assert!(asked(Some(&with), None) && asked(Some(&without), Some(&with)));
        assert!(asked(None, Some(&with)));
        assert!(!asked(Some(&without), Some(&without)) && !asked(None, None));
    }

    #[test]
    fn namespaces_are_selected_by_their_labels() {
        let hook = selecting("namespaceSelector");
        let labels = |value: &str| Some(BTreeMap::from([("on".to_owned(), value.to_owned())]));
        let request = create(PODS, "");
        let asked = |request: &AdmissionAttributes<'_>, new: Option<&Object>, found| {
            let found = hook.applies(request, Objects { new, old: None }, || found);
            found.map(|version| version.is_some())
        };
        assert_eq!(asked(&request, None, labels("yes")), Ok(true));
        assert_eq!(asked(&request, None, labels("no")), Ok(false));
        assert_eq!(asked(&request, None, None), Err(Mismatch::NoNamespace));
        let cluster = AdmissionAttributes { namespace: "", ..request };
        assert_eq!(asked(&cluster, None, None), Ok(true), "no namespace, no exemption");
        let namespaces = ResourceRef { resource: "namespaces", ..PODS };
        let itself = create(namespaces, "");
        let new = labelled("Namespace", &[("on", "yes")]);
        assert_eq!(asked(&itself, Some(&new), None), Ok(true), "as it will be");
        let deleted = AdmissionAttributes { operation: WebhookOperation::Delete, ..itself };
        assert_eq!(asked(&deleted, None, labels("no")), Ok(false), "as it is stored");
    }

    #[test]
    fn an_unreadable_selector_matters_only_where_rules_match() {
        let mut hook = with_rule(json!({"resources": ["pods"]}));
        let error = Selector::parse("=").unwrap_err();
        hook.selectors = Err(error.clone());
        let found = hook.applies(&create(PODS, ""), Objects::default(), || None);
        assert_eq!(found, Err(Mismatch::Selector(error)));
        let nodes = ResourceRef { resource: "nodes", ..PODS };
        assert_eq!(hook.applies(&create(nodes, ""), Objects::default(), || None), Ok(None));
    }
}
