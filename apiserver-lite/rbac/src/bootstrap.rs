//! The roles and bindings that every cluster starts with: those of `bootstrap.yaml`, in the names of the server's profile.

use std::collections::BTreeMap;

use proto_api::names::Names;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::rule::Rule;

const POLICY: &str = include_str!("bootstrap.yaml");

/// A role or binding of the bootstrap policy.
#[derive(Clone, Debug, PartialEq)]
pub struct BootstrapObject {
    /// Resource in the plural, of the group `rbac.authorization`.
    pub resource: &'static str,
    /// JSON of the object, without `apiVersion` and `kind`.
    pub object: Value,
}

/// The compiled-in policy is not what it should be: an error of the build.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the compiled-in bootstrap policy")]
pub struct BootstrapPolicyError(#[from] serde_saphyr::Error);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyFile {
    cluster_roles: Vec<FileRole>,
    cluster_role_bindings: Vec<FileBinding>,
    roles: Vec<FileRole>,
    role_bindings: Vec<FileBinding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileRole {
    name: String,
    namespace: Option<String>,
    aggregate_to: Option<String>,
    aggregated_from: Option<String>,
    #[serde(default)]
    rules: Vec<Map<String, Value>>,
    /// More rules, by the feature gate that they need.
    #[serde(default)]
    gated_rules: BTreeMap<String, Vec<Map<String, Value>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileBinding {
    name: String,
    namespace: Option<String>,
    role: Option<String>,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    service_accounts: Vec<String>,
}

/// The roles and bindings of a new cluster, roles first, with the rules of the feature gates that are on.
///
/// # Errors
/// The compiled-in file cannot be read; a test excludes that.
pub fn bootstrap_objects(
    names: &Names,
    is_on: impl Fn(&str) -> bool,
) -> Result<Vec<BootstrapObject>, BootstrapPolicyError> {
    let file: PolicyFile = serde_saphyr::from_str(&in_profile(names))?;
    let object = |resource, object| BootstrapObject { resource, object };
    let roles = |all: Vec<FileRole>, resource| {
        let roles: Vec<Value> = all.into_iter().map(|role| role.object(names, &is_on)).collect();
        roles.into_iter().map(move |role| object(resource, role))
    };
    let bindings = |all: Vec<FileBinding>, resource, kind: &'static str| {
        all.into_iter().map(move |binding| object(resource, binding.object(names, kind)))
    };
    Ok(roles(file.cluster_roles, "clusterroles")
        .chain(roles(file.roles, "roles"))
        .chain(bindings(file.cluster_role_bindings, "clusterrolebindings", "ClusterRole"))
        .chain(bindings(file.role_bindings, "rolebindings", "Role"))
        .collect())
}

/// The rules of the role `system:node`, which the authorization module `Node` decides by.
///
/// # Errors
/// The compiled-in file cannot be read; a test excludes that.
pub fn node_rules(names: &Names) -> Result<Vec<Rule>, BootstrapPolicyError> {
    let file: PolicyFile = serde_saphyr::from_str(&in_profile(names))?;
    let role = file.cluster_roles.into_iter().find(|role| role.name == "system:node");
    Ok(role.map_or_else(Vec::new, |role| role.rules.iter().map(read_rule).collect()))
}

fn read_rule(rule: &Map<String, Value>) -> Rule {
    Rule::from_fields(|field| {
        let texts = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    })
}

/// The policy's text with the names of the profile in place of Kubernetes' own.
fn in_profile(names: &Names) -> String {
    let programs = names.component("");
    let pairs = [
        ("k8s.io", names.group_domain()),
        ("kubernetes.io", names.label_domain()),
        ("kube-system", names.system_namespace()),
        ("kube-public", names.public_namespace()),
        ("kubelet", &names.component("let")),
        ("kube-", &programs),
    ];
    pairs.iter().fold(POLICY.to_owned(), |text, (kubernetes, own)| text.replace(kubernetes, own))
}

fn metadata(names: &Names, name: &str, namespace: Option<&str>) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {names.label("bootstrapping"): "rbac-defaults"},
        "annotations": {autoupdate_annotation(names): "true"},
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

/// The annotation whose value `false` keeps an object of the bootstrap policy as it is.
pub(crate) fn autoupdate_annotation(names: &Names) -> String {
    names.sub_label("rbac.authorization", "autoupdate")
}

impl FileRole {
    fn object(self, names: &Names, is_on: impl Fn(&str) -> bool) -> Value {
        let group = names.group("rbac.authorization");
        let label = |role: &str| format!("{group}/aggregate-to-{role}");
        let mut metadata = metadata(names, &self.name, self.namespace.as_deref());
        if let Some(role) = &self.aggregate_to {
            metadata["labels"][label(role)] = "true".into();
        }
        let gated = self.gated_rules.iter().filter(|(gate, _)| is_on(gate));
        let rules: Vec<_> = self.rules.iter().chain(gated.flat_map(|(_, rules)| rules)).collect();
        let mut object = json!({"metadata": metadata, "rules": rules});
        if let Some(role) = &self.aggregated_from {
            object["aggregationRule"] =
                json!({"clusterRoleSelectors": [{"matchLabels": {label(role): "true"}}]});
        }
        object
    }
}

impl FileBinding {
    fn object(self, names: &Names, kind: &str) -> Value {
        let group = names.group("rbac.authorization");
        let role = self.role.as_ref().unwrap_or(&self.name);
        let named = |kind: &str, all: &[String]| -> Vec<Value> {
            all.iter().map(|name| json!({"apiGroup": group, "kind": kind, "name": name})).collect()
        };
        let accounts = self.service_accounts.iter().map(|name| {
            json!({"kind": "ServiceAccount", "name": name, "namespace": names.system_namespace()})
        });
        let subjects = named("User", &self.users).into_iter();
        let subjects = subjects.chain(named("Group", &self.groups)).chain(accounts);
        json!({
            "metadata": metadata(names, &self.name, self.namespace.as_deref()),
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": subjects.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proto_api::names::Profile;

    use super::*;

    fn objects(profile: Profile) -> Vec<BootstrapObject> {
        bootstrap_objects(Names::new(profile), |_| false).expect("the policy")
    }

    fn find<'a>(all: &'a [BootstrapObject], resource: &str, name: &str) -> &'a Value {
        let found = all.iter().find(|object| {
            object.resource == resource && object.object["metadata"]["name"] == name
        });
        &found.unwrap_or_else(|| unreachable!("{resource} {name}")).object
    }

    #[test]
    fn every_binding_names_a_role_of_the_policy() {
        let all = objects(Profile::Kubernetes);
        let id = |object: &Value| {
            let text =
                |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
            (text("namespace"), text("name"))
        };
        let roles: BTreeSet<_> = all
            .iter()
            .filter(|object| object.resource.ends_with("roles"))
            .map(|object| id(&object.object))
            .collect();
        let bindings = all.iter().filter(|object| object.resource.ends_with("bindings"));
        assert!(bindings.clone().count() > 40);
        for BootstrapObject { object, .. } in bindings {
            let role = object["roleRef"]["name"].as_str().unwrap_or_default().to_owned();
            assert!(roles.contains(&(id(object).0, role.clone())), "{role}");
        }
        let distinct: BTreeSet<_> =
            all.iter().map(|object| (object.resource, id(&object.object))).collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn objects_are_as_kubernetes_has_them() {
        let all = objects(Profile::Kubernetes);
        assert_eq!(
            find(&all, "clusterroles", "view"),
            &json!({
                "metadata": {
                    "name": "view",
                    "labels": {
                        "kubernetes.io/bootstrapping": "rbac-defaults",
                        "rbac.authorization.k8s.io/aggregate-to-edit": "true",
                    },
                    "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
                },
                "rules": [],
                "aggregationRule": {"clusterRoleSelectors": [
                    {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
                ]},
            })
        );
        let binding =
            find(&all, "rolebindings", "system::extension-apiserver-authentication-reader");
        assert_eq!(binding["metadata"]["namespace"], "kube-system");
        assert_eq!(binding["roleRef"]["name"], "extension-apiserver-authentication-reader");
        assert_eq!(binding["subjects"][1]["name"], "system:kube-scheduler");
    }

    #[test]
    fn claims_are_updated_by_the_controller_of_stateful_sets_with_the_gate_only() {
        let verbs = |on: bool| -> Vec<String> {
            let is_on = |gate: &str| on && gate == "StatefulSetAutoDeletePVC";
            let all = bootstrap_objects(Names::new(Profile::Kubernetes), is_on);
            let all = all.expect("the policy");
            let role = find(&all, "clusterroles", "system:controller:statefulset-controller");
            let rules = role["rules"].as_array().expect("rules").iter();
            let of_claims = rules.filter(|rule| rule["resources"][0] == "persistentvolumeclaims");
            let verbs = of_claims.flat_map(|rule| rule["verbs"].as_array().expect("verbs"));
            verbs.map(|verb| verb.as_str().expect("a verb").to_owned()).collect()
        };
        assert_eq!(verbs(false), ["create", "get"]);
        assert_eq!(verbs(true), ["create", "get", "delete", "patch", "update"]);
    }

    #[test]
    fn the_rules_of_nodes_are_those_of_their_role() {
        let names = Names::new(Profile::Kubernetes);
        let role =
            find(&objects(Profile::Kubernetes), "clusterroles", "system:node")["rules"].clone();
        let rules = node_rules(names).expect("the policy");
        assert_eq!(rules.len(), role.as_array().map_or(0, Vec::len));
        assert!(rules.len() > 20 && rules[0].resources == ["tokenreviews"]);
    }

    #[test]
    fn no_name_of_kubernetes_is_left_in_another_profile() {
        let names = Names::new(Profile::parse("orch", None).expect("a profile"));
        let text = serde_json::to_string(
            &bootstrap_objects(names, |_| true)
                .expect("the policy")
                .into_iter()
                .map(|object| object.object)
                .collect::<Vec<_>>(),
        )
        .expect("JSON");
        for word in ["k8s", "kube"] {
            assert!(!text.contains(word), "{word}");
        }
        assert!(text.contains("system:orch-scheduler"));
        assert!(text.contains(&names.node_client_signer()));
    }
}
