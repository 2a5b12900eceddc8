//! `auth reconcile`: roles and bindings brought to what files describe. What others have added stays, unless it is to go.

use apiserver_rbac::{Rule, rules_to_add};
use proto_api::names::Names;
use serde_json::{Map, Value, json};

use crate::keep::{items_at, map_at, text_at};

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileOperation {
    /// It has everything.
    Nothing,
    Create,
    Update,
    /// The role of a binding cannot change: it is deleted and created.
    Recreate,
}

/// An object, and how it gets there.
#[derive(Clone, Debug, PartialEq)]
pub struct Reconciliation {
    /// The object that is written.
    pub object: Value,
    pub operation: ReconcileOperation,
    /// Whether an annotation of the object says that it stays as it is: nothing is written then.
    pub is_protected: bool,
    missing: Vec<String>,
    extra: Vec<String>,
    /// `rules` or `subjects`.
    parts: &'static str,
}

impl Reconciliation {
    /// What is done, in lines for people; none if nothing is.
    pub fn lines(&self, names: &Names, remove_extra: bool) -> Vec<String> {
        let operation = match self.operation {
            ReconcileOperation::Nothing => return Vec::new(),
            ReconcileOperation::Create => "create",
            ReconcileOperation::Update => "update",
            ReconcileOperation::Recreate => "recreate",
        };
        let caveat = if self.is_protected {
            format!(", but object opted out ({}: false)", autoupdate_annotation(names))
        } else {
            String::new()
        };
        let mut lines = vec![format!("\treconciliation required {operation}{caveat}")];
        let mut list = |parts: &[String], done: &str| {
            if !parts.is_empty() {
                lines.push(format!("\t{done}:"));
                lines.extend(parts.iter().map(|part| format!("\t\t{part}")));
            }
        };
        list(&self.missing, &format!("missing {} added", self.parts));
        if remove_extra {
            list(&self.extra, &format!("extra {} removed", self.parts));
        }
        lines
    }
}

fn autoupdate_annotation(names: &Names) -> String {
    names.sub_label("rbac.authorization", "autoupdate")
}

fn is_protected(names: &Names, stored: &Value) -> bool {
    let annotations = stored.pointer("/metadata/annotations");
    annotations.and_then(|all| all.get(autoupdate_annotation(names))) == Some(&json!("false"))
}

/// The stored object with the labels and annotations that it lacks.
fn with_metadata(stored: &Value, wanted: &Value) -> Value {
    let mut object = stored.clone();
    for field in ["labels", "annotations"] {
        let wanted = wanted.pointer(&format!("/metadata/{field}")).and_then(Value::as_object);
        for (key, value) in wanted.into_iter().flatten() {
            let own = map_at(&mut object, &["metadata", field]);
            own.entry(key.as_str()).or_insert_with(|| value.clone());
        }
    }
    object
}

/// Brings a Role or ClusterRole to what is wanted; `remove_extra` removes what it allows besides.
pub fn role(
    names: &Names,
    stored: Option<&Value>,
    wanted: &Value,
    remove_extra: bool,
) -> Reconciliation {
    let wanted_rules = rules(wanted);
    let texts = |rules: &[Rule]| rules.iter().map(rule_text).collect::<Vec<_>>();
    let Some(stored) = stored else {
        return Reconciliation {
            object: wanted.clone(),
            operation: ReconcileOperation::Create,
            is_protected: false,
            missing: texts(&wanted_rules),
            extra: Vec::new(),
            parts: "rules",
        };
    };
    let mut object = with_metadata(stored, wanted);
    let stored_rules = rules(stored);
    let missing = rules_to_add(&stored_rules, &wanted_rules);
    // The rules of two roles that are both unions of others are not theirs.
    let aggregates = |role: &Value| role.get("aggregationRule").is_some_and(Value::is_object);
    let extra = if aggregates(stored) && aggregates(wanted) {
        Vec::new()
    } else {
        rules_to_add(&wanted_rules, &stored_rules)
    };
    if !remove_extra {
        add(&mut object, &[], "rules", missing.iter().map(rule_value));
    } else if !missing.is_empty() || !extra.is_empty() {
        object["rules"] = wanted.get("rules").cloned().unwrap_or_else(|| json!([]));
    }
    reconcile_aggregation(&mut object, stored, wanted, remove_extra);
    Reconciliation {
        operation: if object == *stored {
            ReconcileOperation::Nothing
        } else {
            ReconcileOperation::Update
        },
        is_protected: is_protected(names, stored),
        object,
        missing: texts(&missing),
        extra: texts(&extra),
        parts: "rules",
    }
}

/// The selectors of roles whose rules a role takes over.
fn reconcile_aggregation(object: &mut Value, stored: &Value, wanted: &Value, remove_extra: bool) {
    let selectors = |role| items_at(role, "/aggregationRule/clusterRoleSelectors");
    let missing = lacking(selectors(wanted), selectors(stored));
    if !remove_extra {
        add(object, &["aggregationRule"], "clusterRoleSelectors", missing.into_iter().cloned());
    } else if !missing.is_empty() || !lacking(selectors(stored), selectors(wanted)).is_empty() {
        match wanted.get("aggregationRule") {
            Some(rule) => object["aggregationRule"] = rule.clone(),
            None => drop(map_at(object, &[]).remove("aggregationRule")),
        }
    }
}

/// Brings a RoleBinding or ClusterRoleBinding to what is wanted; `remove_extra` removes its other subjects.
pub fn binding(
    names: &Names,
    stored: Option<&Value>,
    wanted: &Value,
    remove_extra: bool,
) -> Reconciliation {
    let wanted = with_groups(names, wanted);
    let subjects = |binding| items_at(binding, "/subjects");
    let texts = |subjects: Vec<&Value>| subjects.into_iter().map(subject_text).collect::<Vec<_>>();
    let whole = |operation, missing, is_protected| Reconciliation {
        object: wanted.clone(),
        operation,
        is_protected,
        missing,
        extra: Vec::new(),
        parts: "subjects",
    };
    let Some(stored) = stored else {
        return whole(ReconcileOperation::Create, texts(subjects(&wanted).iter().collect()), false);
    };
    let compared = with_groups(names, stored);
    if compared.get("roleRef") != wanted.get("roleRef") {
        return whole(ReconcileOperation::Recreate, Vec::new(), is_protected(names, stored));
    }
    let mut object = with_metadata(stored, &wanted);
    let missing = lacking(subjects(&wanted), subjects(&compared));
    let extra = lacking(subjects(&compared), subjects(&wanted));
    if !remove_extra {
        add(&mut object, &[], "subjects", missing.iter().map(|subject| (*subject).clone()));
    } else if !missing.is_empty() || !extra.is_empty() {
        object["subjects"] = json!(subjects(&wanted));
    }
    Reconciliation {
        operation: if object == *stored {
            ReconcileOperation::Nothing
        } else {
            ReconcileOperation::Update
        },
        is_protected: is_protected(names, stored),
        object,
        missing: texts(missing),
        extra: texts(extra),
        parts: "subjects",
    }
}

/// The binding as the server stores it: the groups of its role, users and groups are set, and what is empty is left out.
fn with_groups(names: &Names, binding: &Value) -> Value {
    let mut binding = binding.clone();
    let group = Value::from(names.group("rbac"));
    let set = |reference: &mut Map<String, Value>| {
        if reference.get("apiGroup").is_none_or(|own| own == "" || own.is_null()) {
            reference.insert("apiGroup".into(), group.clone());
        }
    };
    binding.get_mut("roleRef").and_then(Value::as_object_mut).into_iter().for_each(set);
    let subjects = binding.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten().filter_map(Value::as_object_mut) {
        if subject.get("kind").is_some_and(|kind| kind == "User" || kind == "Group") {
            set(subject);
        }
        for field in ["apiGroup", "namespace"] {
            if subject.get(field).is_some_and(|own| own == "" || own.is_null()) {
                subject.remove(field);
            }
        }
    }
    binding
}

/// Items of a list that another one lacks, each once.
fn lacking<'a>(list: &'a [Value], other: &[Value]) -> Vec<&'a Value> {
    let mut lacking: Vec<&Value> = Vec::new();
    for item in list {
        if !other.contains(item) && !lacking.contains(&item) {
            lacking.push(item);
        }
    }
    lacking
}

fn add(object: &mut Value, path: &[&str], field: &str, items: impl Iterator<Item = Value>) {
    let mut items = items.peekable();
    if items.peek().is_none() {
        return;
    }
    let list = map_at(object, path).entry(field).or_insert_with(|| json!([]));
    if !list.is_array() {
        *list = json!([]);
    }
    list.as_array_mut().into_iter().for_each(|list| list.extend(items.by_ref()));
}

fn rules(role: &Value) -> Vec<Rule> {
    let rule = |value: &Value| {
        let list = |field: &str| {
            let texts = value.get(field).and_then(Value::as_array).into_iter().flatten();
            texts.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    };
    items_at(role, "/rules").iter().map(rule).collect()
}

/// The lists of a rule by the names that roles have for them.
fn lists(rule: &Rule) -> [(&'static str, &[String]); 5] {
    [
        ("verbs", &rule.verbs),
        ("apiGroups", &rule.groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.names),
        ("nonResourceURLs", &rule.urls),
    ]
}

fn rule_value(rule: &Rule) -> Value {
    let lists = lists(rule).into_iter().filter(|(_, list)| !list.is_empty());
    Value::Object(lists.map(|(field, list)| (field.to_owned(), json!(list))).collect::<Map<_, _>>())
}

/// `{Verbs:[get list] APIGroups:[] Resources:[pods] ResourceNames:[] NonResourceURLs:[]}`.
fn rule_text(rule: &Rule) -> String {
    let names = ["Verbs", "APIGroups", "Resources", "ResourceNames", "NonResourceURLs"];
    let lists = names.into_iter().zip(lists(rule));
    let texts = lists.map(|(name, (_, list))| format!("{name}:[{}]", list.join(" ")));
    format!("{{{}}}", texts.collect::<Vec<_>>().join(" "))
}

/// `{Kind:User APIGroup:rbac.authorization.k8s.io Name:alice Namespace:}`.
fn subject_text(subject: &Value) -> String {
    let fields = [
        ("Kind", "/kind"),
        ("APIGroup", "/apiGroup"),
        ("Name", "/name"),
        ("Namespace", "/namespace"),
    ];
    let texts = fields.map(|(name, pointer)| format!("{name}:{}", text_at(subject, pointer)));
    format!("{{{}}}", texts.join(" "))
}

#[cfg(test)]
mod tests {
    use proto_api::names::Profile;

    use super::*;

    fn names() -> &'static Names {
        Names::new(Profile::Kubernetes)
    }

    fn rule(verbs: &[&str], resource: &str) -> Value {
        json!({"verbs": verbs, "apiGroups": [""], "resources": [resource]})
    }

    fn a_role(rules: &[Value]) -> Value {
        json!({"kind": "Role", "metadata": {"name": "r"}, "rules": rules})
    }

    fn a_binding(role: &str, users: &[&str]) -> Value {
        let group = "rbac.authorization.k8s.io";
        let subject = |user: &&str| json!({"kind": "User", "apiGroup": group, "name": user});
        json!({"kind": "RoleBinding", "metadata": {"name": "b"},
            "roleRef": {"kind": "Role", "apiGroup": group, "name": role},
            "subjects": users.iter().map(subject).collect::<Vec<_>>()})
    }

    #[test]
    fn a_role_gets_the_rules_that_it_lacks() {
        let stored = a_role(&[rule(&["get"], "pods"), rule(&["get"], "secrets")]);
        let wanted = a_role(&[rule(&["get", "list"], "pods")]);
        let added = role(names(), Some(&stored), &wanted, false);
        assert_eq!(added.operation, ReconcileOperation::Update);
        assert_eq!(items_at(&added.object, "/rules").len(), 3);
        assert_eq!(added.object["rules"][2], rule(&["list"], "pods"));
        let missing =
            "\t\t{Verbs:[list] APIGroups:[] Resources:[pods] ResourceNames:[] NonResourceURLs:[]}";
        let head = "\treconciliation required update";
        assert_eq!(added.lines(names(), false), [head, "\tmissing rules added:", missing]);
        let exact = role(names(), Some(&stored), &wanted, true);
        assert_eq!(exact.object["rules"], wanted["rules"]);
        let removed = exact.lines(names(), true);
        assert_eq!(removed[3], "\textra rules removed:");
        assert!(removed[4].contains("Verbs:[get] APIGroups:[] Resources:[secrets]"), "{removed:?}");
        // What it has in other words is no difference.
        let same = role(names(), Some(&wanted), &a_role(&[rule(&["get"], "pods")]), false);
        assert_eq!(
            (same.operation, same.lines(names(), false).len()),
            (ReconcileOperation::Nothing, 0)
        );
        assert_eq!(role(names(), None, &wanted, false).operation, ReconcileOperation::Create);
    }

    #[test]
    fn labels_and_annotations_of_others_stay() {
        let mut stored = a_role(&[]);
        stored["metadata"]["labels"] = json!({"a": "theirs", "b": "theirs"});
        let mut wanted = a_role(&[]);
        wanted["metadata"]["labels"] = json!({"a": "ours", "c": "ours"});
        let merged = role(names(), Some(&stored), &wanted, true);
        let labels = json!({"a": "theirs", "b": "theirs", "c": "ours"});
        assert_eq!(merged.object["metadata"]["labels"], labels);
        assert_eq!(merged.operation, ReconcileOperation::Update);
    }

    #[test]
    fn an_object_may_opt_out() {
        let mut stored = a_role(&[]);
        stored["metadata"]["annotations"] =
            json!({"rbac.authorization.kubernetes.io/autoupdate": "false"});
        let wanted = a_role(&[rule(&["get"], "pods")]);
        let protected = role(names(), Some(&stored), &wanted, false);
        assert!(protected.is_protected);
        assert_eq!(
            protected.lines(names(), false)[0],
            "\treconciliation required update, but object opted out (rbac.authorization.kubernetes.io/autoupdate: false)"
        );
    }

    #[test]
    fn roles_that_are_unions_get_selectors() {
        let union = |labels: &[&str]| {
            let selectors: Vec<Value> =
                labels.iter().map(|label| json!({"matchLabels": {(*label): "x"}})).collect();
            json!({"kind": "ClusterRole", "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []})
        };
        let added = role(names(), Some(&union(&["a"])), &union(&["b"]), false);
        assert_eq!(added.object["aggregationRule"], union(&["a", "b"])["aggregationRule"]);
        let exact = role(names(), Some(&union(&["a"])), &union(&["b"]), true);
        assert_eq!(exact.object["aggregationRule"], union(&["b"])["aggregationRule"]);
        let none = role(names(), Some(&union(&["a"])), &a_role(&[]), true);
        assert_eq!(none.object.get("aggregationRule"), None);
    }

    #[test]
    fn a_binding_gets_the_subjects_that_it_lacks() {
        let stored = a_binding("r", &["alice"]);
        let added = binding(names(), Some(&stored), &a_binding("r", &["bob", "bob"]), false);
        assert_eq!(added.object["subjects"], a_binding("r", &["alice", "bob"])["subjects"]);
        assert_eq!(
            added.lines(names(), false)[2],
            "\t\t{Kind:User APIGroup:rbac.authorization.k8s.io Name:bob Namespace:}"
        );
        let exact = binding(names(), Some(&stored), &a_binding("r", &["bob"]), true);
        assert_eq!(exact.object["subjects"], a_binding("r", &["bob"])["subjects"]);
        assert_eq!(exact.lines(names(), true)[3], "\textra subjects removed:");
        let other = binding(names(), Some(&stored), &a_binding("s", &["alice"]), false);
        assert_eq!(other.operation, ReconcileOperation::Recreate);
        assert_eq!(other.lines(names(), false), ["\treconciliation required recreate"]);
        // A file may leave out the group.
        let mut short = a_binding("r", &["alice"]);
        for pointer in ["/roleRef", "/subjects/0"] {
            let part = short.pointer_mut(pointer).and_then(Value::as_object_mut).expect("a map");
            part.remove("apiGroup");
        }
        let same = binding(names(), Some(&stored), &short, true);
        assert_eq!(same.operation, ReconcileOperation::Nothing);
    }

    #[test]
    fn a_subject_is_compared_as_it_is_stored() {
        let with = |subject: Value| {
            let mut binding = a_binding("r", &[]);
            binding["subjects"] = json!([subject]);
            binding
        };
        let account = json!({"kind": "ServiceAccount", "name": "s", "namespace": "n"});
        let user = json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "a"});
        let group = json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "g"});
        let forms = [
            (
                json!({"kind": "ServiceAccount", "apiGroup": "", "name": "s", "namespace": "n"}),
                &account,
            ),
            (
                json!({"kind": "ServiceAccount", "apiGroup": null, "name": "s", "namespace": "n"}),
                &account,
            ),
            (json!({"kind": "User", "apiGroup": "", "name": "a", "namespace": ""}), &user),
            (json!({"kind": "Group", "name": "g"}), &group),
        ];
        for (given, stored) in forms {
            // Either way around: a server may keep what is empty.
            for (stored, wanted) in [(stored, &given), (&given, stored)] {
                for remove_extra in [false, true] {
                    let same = binding(
                        names(),
                        Some(&with(stored.clone())),
                        &with(wanted.clone()),
                        remove_extra,
                    );
                    assert_eq!(same.operation, ReconcileOperation::Nothing, "{stored} {wanted}");
                }
            }
            let created = binding(names(), None, &with(given), false);
            assert_eq!(created.object["subjects"][0], *stored);
        }
        // What the server refuses stays as it is given.
        let odd = json!({"kind": "Node", "name": "s"});
        let other =
            json!({"kind": "ServiceAccount", "apiGroup": "x", "name": "s", "namespace": "n"});
        for refused in [odd, other] {
            let created = binding(names(), None, &with(refused.clone()), false);
            assert_eq!(created.object["subjects"][0], refused);
        }
    }
}
