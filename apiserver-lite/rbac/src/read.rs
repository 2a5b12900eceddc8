//! Roles and bindings as the API stores them.

use apiserver_schema::{Kind, Map, Object, Value};

use crate::binding::{Binding, BindingSubject, RoleKey};
use crate::rule::Rule;

/// Whether objects of a kind are part of the policy.
#[must_use]
pub fn is_policy_kind(kind: &Kind) -> bool {
    kind.short_group == "rbac.authorization"
}

/// The rules of a Role or ClusterRole.
#[must_use]
pub fn read_rules(role: &Object) -> Vec<Rule> {
    role.fields.maps("rules").map(read_rule).collect()
}

fn read_rule(rule: &Map) -> Rule {
    Rule::from_fields(|field| {
        rule.list(field).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    })
}

/// A rule as roles have it.
pub(crate) fn rule_value(rule: &Rule) -> Value {
    let lists = [
        ("verbs", &rule.verbs),
        ("apiGroups", &rule.groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.names),
        ("nonResourceURLs", &rule.urls),
    ];
    let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
    let texts =
        |list: &[String]| list.iter().map(|text| Value::from(text.as_str())).collect::<Vec<_>>();
    lists.map(|(field, list)| (field, Value::from(texts(list)))).collect::<Map>().into()
}

/// A RoleBinding or ClusterRoleBinding. Subjects of unknown kinds, and service accounts without a namespace, are ignored.
#[must_use]
pub fn read_binding(binding: &Object) -> Binding {
    let namespace = binding.namespace();
    let role = binding.fields.map("roleRef");
    let text = |field: &str| role.map_or("", |role| role.str(field));
    let of_namespace = if text("kind") == "Role" { namespace } else { "" };
    let subjects = binding.fields.maps("subjects").filter_map(|subject| {
        let name = subject.str("name").to_owned();
        match subject.str("kind") {
            "User" => Some(BindingSubject::User(name)),
            "Group" => Some(BindingSubject::Group(name)),
            "ServiceAccount" => {
                let own = Some(subject.str("namespace")).filter(|own| !own.is_empty());
                let of = own.or(Some(namespace)).filter(|of| !of.is_empty())?;
                Some(BindingSubject::ServiceAccount(of.to_owned(), name))
            }
            _ => None,
        }
    });
    Binding {
        namespace: namespace.to_owned(),
        name: binding.name().to_owned(),
        role: RoleKey { namespace: of_namespace.to_owned(), name: text("name").to_owned() },
        subjects: subjects.collect(),
    }
}
