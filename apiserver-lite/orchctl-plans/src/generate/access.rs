//! Roles and their bindings.

use proto_api::names::Names;
use serde_json::{Map, Value, json};

use super::object;
use crate::ArgumentError;

/// A resource of a rule, as the server serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleResource {
    /// The group; empty for core.
    pub group: String,
    /// The resource, with its subresource: `pods/log`.
    pub resource: String,
}

/// What a role allows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoleFlags<'a> {
    /// The verbs; `*` stands for all.
    pub verbs: &'a [String],
    pub resources: &'a [RuleResource],
    /// Names of objects; all if there are none.
    pub resource_names: &'a [String],
    /// Paths that are no resources.
    pub paths: &'a [String],
}

fn rules(flags: RoleFlags) -> Result<Value, ArgumentError> {
    if flags.verbs.is_empty() {
        return Err(ArgumentError::new("at least one verb must be specified"));
    }
    if flags.resources.is_empty() && flags.paths.is_empty() {
        return Err(ArgumentError::new("at least one resource must be specified"));
    }
    let mut verbs: Vec<&String> = Vec::new();
    for verb in flags.verbs {
        if !verbs.contains(&verb) {
            verbs.push(verb);
        }
    }
    if verbs.iter().any(|verb| *verb == "*") {
        verbs.retain(|verb| *verb == "*");
    }
    // One rule for the resources of each group.
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in flags.resources {
        match groups.iter_mut().find(|(group, _)| *group == resource.group) {
            Some((_, list)) => list.push(&resource.resource),
            None => groups.push((&resource.group, vec![&resource.resource])),
        }
    }
    groups.sort();
    let mut rules: Vec<Value> = groups
        .into_iter()
        .map(|(group, resources)| {
            let mut rule = Map::new();
            rule.insert("verbs".into(), json!(verbs));
            rule.insert("apiGroups".into(), json!([group]));
            rule.insert("resources".into(), json!(resources));
            if !flags.resource_names.is_empty() {
                rule.insert("resourceNames".into(), json!(flags.resource_names));
            }
            Value::Object(rule)
        })
        .collect();
    if !flags.paths.is_empty() {
        rules.push(json!({"verbs": verbs, "nonResourceURLs": flags.paths}));
    }
    Ok(Value::Array(rules))
}

fn rbac(names: &Names, kind: &str, name: &str) -> Map<String, Value> {
    object(kind, &names.api_version("rbac", "v1"), name)
}

/// A Role.
///
/// # Errors
/// Without a verb or a resource.
pub fn role(names: &Names, name: &str, flags: RoleFlags) -> Result<Value, ArgumentError> {
    let mut object = rbac(names, "Role", name);
    object.insert("rules".into(), rules(flags)?);
    Ok(Value::Object(object))
}

/// A ClusterRole; `aggregation` has the labels of the roles whose rules it takes over, as `a=b`.
///
/// # Errors
/// Without a verb or a resource, unless it is aggregated.
pub fn cluster_role(
    names: &Names,
    name: &str,
    flags: RoleFlags,
    aggregation: &str,
) -> Result<Value, ArgumentError> {
    let mut object = rbac(names, "ClusterRole", name);
    if aggregation.is_empty() {
        object.insert("rules".into(), rules(flags)?);
    } else {
        let labels = super::parse_pairs(aggregation)?;
        object.insert(
            "aggregationRule".into(),
            json!({"clusterRoleSelectors": [{"matchLabels": labels}]}),
        );
        object.insert("rules".into(), Value::Null);
    }
    Ok(Value::Object(object))
}

/// Who gets a role.
#[derive(Clone, Copy, Debug, Default)]
pub struct SubjectFlags<'a> {
    pub users: &'a [String],
    pub groups: &'a [String],
    /// Service accounts as `namespace:name`.
    pub service_accounts: &'a [String],
}

/// A binding of the kind `RoleBinding` or `ClusterRoleBinding` to a role of the kind `Role` or `ClusterRole`.
///
/// # Errors
/// When a service account is not `namespace:name`.
pub fn binding(
    names: &Names,
    (kind, name): (&str, &str),
    (role_kind, role): (&str, &str),
    flags: SubjectFlags,
) -> Result<Value, ArgumentError> {
    let group = names.group("rbac");
    let named = |kind: &str, name: &String| json!({"kind": kind, "apiGroup": group, "name": name});
    let mut subjects: Vec<Value> = flags.users.iter().map(|user| named("User", user)).collect();
    subjects.extend(flags.groups.iter().map(|name| named("Group", name)));
    for text in flags.service_accounts {
        let pair = text.split_once(':').filter(|(namespace, name)| {
            !namespace.is_empty() && !name.is_empty() && !name.contains(':')
        });
        let Some((namespace, name)) = pair else {
            return Err(ArgumentError::new("serviceaccount must be <namespace>:<name>"));
        };
        subjects.push(json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}));
    }
    let mut object = rbac(names, kind, name);
    if !subjects.is_empty() {
        object.insert("subjects".into(), Value::Array(subjects));
    }
    object.insert("roleRef".into(), json!({"apiGroup": group, "kind": role_kind, "name": role}));
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn texts(words: &str) -> Vec<String> {
        words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn roles_have_a_rule_for_each_group() {
        let names = Names::new(Profile::Kubernetes);
        let resource = |group: &str, resource: &str| RuleResource {
            group: group.into(),
            resource: resource.into(),
        };
        let resources =
            [resource("apps", "deployments"), resource("", "pods"), resource("", "pods/log")];
        let verbs = texts("get get list");
        let flags = RoleFlags { verbs: &verbs, resources: &resources, ..RoleFlags::default() };
        assert_eq!(
            role(names, "r", flags).expect("valid").to_string(),
            r#"{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"r","creationTimestamp":null},"rules":[{"verbs":["get","list"],"apiGroups":[""],"resources":["pods","pods/log"]},{"verbs":["get","list"],"apiGroups":["apps"],"resources":["deployments"]}]}"#
        );
        assert!(role(names, "r", RoleFlags { verbs: &[], ..flags }).is_err());
        assert!(role(names, "r", RoleFlags { resources: &[], ..flags }).is_err());
        let (all, paths) = (texts("get *"), texts("/x"));
        let flags = RoleFlags { verbs: &all, paths: &paths, ..RoleFlags::default() };
        let made = cluster_role(names, "r", flags, "").expect("valid");
        assert_eq!(made["rules"], json!([{"verbs": ["*"], "nonResourceURLs": ["/x"]}]));
        let made = cluster_role(names, "r", RoleFlags::default(), "a=b").expect("valid");
        assert_eq!(
            made.pointer("/aggregationRule/clusterRoleSelectors/0/matchLabels/a"),
            Some(&json!("b"))
        );
    }

    #[test]
    fn bindings_name_subjects() {
        let names = Names::new(Profile::Kubernetes);
        let (users, groups, accounts) = (texts("u"), texts("g"), texts("n:s"));
        let flags = SubjectFlags { users: &users, groups: &groups, service_accounts: &accounts };
        assert_eq!(
            binding(names, ("RoleBinding", "r"), ("ClusterRole", "admin"), flags)
                .expect("valid")
                .to_string(),
            r#"{"kind":"RoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"r","creationTimestamp":null},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"u"},{"kind":"Group","apiGroup":"rbac.authorization.k8s.io","name":"g"},{"kind":"ServiceAccount","name":"s","namespace":"n"}],"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"admin"}}"#
        );
        for wrong in ["s", ":s", "n:", "a:b:c"] {
            let accounts = texts(wrong);
            let flags = SubjectFlags { service_accounts: &accounts, ..flags };
            assert!(binding(names, ("RoleBinding", "r"), ("Role", "x"), flags).is_err(), "{wrong}");
        }
    }
}
