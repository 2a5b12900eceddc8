//! The flow schemas and priority levels that every server has: the mandatory ones, and those that Kubernetes 1.25 suggests.

use proto_api::names::Names;
use serde_json::{Value, json};

use crate::objects::{CATCH_ALL, EXEMPT, FLOW_SCHEMAS, PRIORITY_LEVELS};

/// An object that every server has.
#[derive(Clone, Debug, PartialEq)]
pub struct BuiltInObject {
    /// Resource in the plural.
    pub resource: &'static str,
    /// Whether its spec cannot be changed.
    pub is_mandatory: bool,
    /// JSON of the object, without `apiVersion` and `kind`.
    pub object: Value,
}

impl BuiltInObject {
    #[must_use]
    pub fn name(&self) -> &str {
        self.object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
    }
}

/// Verbs of leader election.
const ELECTION: [&str; 3] = ["get", "create", "update"];

/// All objects that every server has, levels first.
#[must_use]
pub fn built_in_objects(names: &Names) -> Vec<BuiltInObject> {
    let annotation = names.sub_label("apf", "autoupdate-spec");
    let with = |resource, is_mandatory| {
        let annotation = annotation.clone();
        move |(name, spec): (String, Value)| BuiltInObject {
            resource,
            is_mandatory,
            object: json!({"metadata": {"name": name, "annotations": {&annotation: "true"}}, "spec": spec}),
        }
    };
    let mandatory_levels = [
        (EXEMPT.to_owned(), json!({"type": "Exempt"})),
        (CATCH_ALL.to_owned(), limited(5, json!({"type": "Reject"}))),
    ];
    let mandatory_levels = mandatory_levels.into_iter().map(with(PRIORITY_LEVELS, true));
    let levels = levels().into_iter().map(with(PRIORITY_LEVELS, false));
    let mandatory = [
        schema(EXEMPT, EXEMPT, 1, "", everything(groups(&["system:masters"]))),
        schema(CATCH_ALL, CATCH_ALL, 10_000, "ByUser", everything(all_users())),
    ];
    let mandatory = mandatory.into_iter().map(with(FLOW_SCHEMAS, true));
    let suggested = critical_schemas(names).into_iter().chain(workload_schemas(names));
    let suggested = suggested.map(with(FLOW_SCHEMAS, false));
    mandatory_levels.chain(levels).chain(mandatory).chain(suggested).collect()
}

fn levels() -> Vec<(String, Value)> {
    // name, shares, queues, queues of one flow
    let rows = [
        ("system", 30, 64, 6),
        ("node-high", 40, 64, 6),
        ("leader-election", 10, 16, 4),
        ("workload-high", 40, 128, 6),
        ("workload-low", 100, 128, 6),
        ("global-default", 20, 128, 6),
    ];
    let level = |(name, shares, queues, hand): (&str, i64, i64, i64)| {
        let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 50});
        (name.to_owned(), limited(shares, json!({"type": "Queue", "queuing": queuing})))
    };
    rows.map(level).into()
}

fn limited(shares: i64, response: Value) -> Value {
    json!({"type": "Limited", "limited": {"assuredConcurrencyShares": shares, "limitResponse": response}})
}

/// Of nodes and elections of leaders, which many others depend on, and of probes.
fn critical_schemas(names: &Names) -> Vec<(String, Value)> {
    let (system, coordination) = (names.system_namespace(), names.group("coordination"));
    let nodes = || groups(&["system:nodes"]);
    let candidates =
        ["controller-manager", "scheduler"].map(|component| user(&names.user(component)));
    let candidates: Value = candidates.into_iter().chain([system_accounts(names)]).collect();
    let leases = |verbs: &[&str]| resources(verbs, &coordination, &["leases"], "*", false);
    let locks =
        |namespace: &str| resources(&ELECTION, "", &["endpoints", "configmaps"], namespace, false);
    let of_nodes = resources(&["*"], "", &["nodes", "nodes/status"], "*", true);
    let of_nodes = json!({"subjects": nodes(), "resourceRules": [of_nodes, leases(&["*"])]});
    let paths = json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]}]);
    let probes = json!({"subjects": all_users(), "nonResourceRules": paths});
    let of_system =
        json!({"subjects": candidates, "resourceRules": [locks(system), leases(&ELECTION)]});
    let accounts = [system_accounts(names)];
    let of_workloads =
        json!({"subjects": accounts, "resourceRules": [locks("*"), leases(&ELECTION)]});
    vec![
        schema("system-nodes", "system", 500, "ByUser", everything(nodes())),
        schema("system-node-high", "node-high", 400, "ByUser", of_nodes),
        schema("probes", EXEMPT, 2, "", probes),
        schema("system-leader-election", "leader-election", 100, "ByUser", of_system),
        schema("workload-leader-election", "leader-election", 200, "ByUser", of_workloads),
    ]
}

/// Of components, of service accounts, and of all others.
fn workload_schemas(names: &Names) -> Vec<(String, Value)> {
    let high = |name: &str, precedence, subject: Value| {
        schema(name, "workload-high", precedence, "ByNamespace", everything(json!([subject])))
    };
    let component = |name: &str| high(&names.component(name), 800, user(&names.user(name)));
    let of_system = format!("{}-service-accounts", names.system_namespace());
    let accounts = everything(groups(&["system:serviceaccounts"]));
    vec![
        component("controller-manager"),
        component("scheduler"),
        high(&of_system, 900, system_accounts(names)),
        schema("service-accounts", "workload-low", 9000, "ByUser", accounts),
        schema("global-default", "global-default", 9900, "ByUser", everything(all_users())),
    ]
}

/// Every service account of the system's namespace.
fn system_accounts(names: &Names) -> Value {
    json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": names.system_namespace(), "name": "*"}})
}

fn schema(name: &str, level: &str, precedence: i64, method: &str, rule: Value) -> (String, Value) {
    let mut spec = json!({
        "priorityLevelConfiguration": {"name": level},
        "matchingPrecedence": precedence,
        "rules": [rule],
    });
    if !method.is_empty() {
        spec["distinguisherMethod"] = json!({"type": method});
    }
    (name.to_owned(), spec)
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "user": {"name": name}})
}

fn groups(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"kind": "Group", "group": {"name": name}})).collect()
}

fn all_users() -> Value {
    groups(&["system:unauthenticated", "system:authenticated"])
}

/// Every request of these subjects.
fn everything(subjects: Value) -> Value {
    let paths = json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]);
    json!({"subjects": subjects, "resourceRules": [resources(&["*"], "*", &["*"], "*", true)], "nonResourceRules": paths})
}

fn resources(
    verbs: &[&str],
    group: &str,
    resources: &[&str],
    namespace: &str,
    cluster_scope: bool,
) -> Value {
    let mut rule = json!({"verbs": verbs, "apiGroups": [group], "resources": resources, "namespaces": [namespace]});
    if cluster_scope {
        rule["clusterScope"] = json!(true);
    }
    rule
}

#[cfg(test)]
mod tests {
    use apiserver_schema::{Engine, Format, Object, Strictness};
    use proto_api::names::Profile;

    use super::*;
    use crate::flow_schema::{DigestTarget, RequestDigest};
    use crate::objects::VERSION;
    use crate::read::{read_flow_schema, read_priority_level};
    use crate::schemas::FlowSchemas;

    fn decoded(names: &'static Names, resource: &str) -> Vec<(Object, bool)> {
        let engine = Engine::new(names);
        let kind = engine.resource(&names.group("flowcontrol"), VERSION, resource).expect("a kind");
        let objects = built_in_objects(names).into_iter().filter(|of| of.resource == resource);
        objects
            .map(|of| {
                let text = of.object.to_string();
                let decoded =
                    engine.decode(kind, Format::Json, text.as_bytes(), Strictness::Strict);
                let mut object = decoded.expect("valid").object;
                let before = object.clone();
                engine.default(&mut object);
                assert_eq!(
                    object, before,
                    "defaults change nothing, or it would be written at each start"
                );
                (object, of.is_mandatory)
            })
            .collect()
    }

    #[test]
    fn requests_go_where_kubernetes_sends_them() {
        let names = Names::new(Profile::Kubernetes);
        let levels: Vec<String> = decoded(names, PRIORITY_LEVELS)
            .iter()
            .map(|(object, _)| read_priority_level(object).expect("usable").name)
            .collect();
        assert_eq!(levels.len(), 8);
        let schemas = decoded(names, FLOW_SCHEMAS);
        let schemas =
            schemas.iter().map(|(object, _)| std::sync::Arc::new(read_flow_schema(object)));
        let (schemas, left_out) =
            FlowSchemas::new(schemas, |level| levels.iter().any(|name| name == level), |_| true);
        assert_eq!((schemas.ordered().len(), left_out.len()), (12, 0), "none without its level");
        let resource = |group, resource, namespace| DigestTarget::Resource {
            group,
            resource,
            subresource: "",
            namespace,
        };
        let pods = resource("", "pods", "n");
        let lease = resource("coordination.k8s.io", "leases", "n");
        let map = |namespace| resource("", "configmaps", namespace);
        let (all, none) = ("system:authenticated", "system:unauthenticated");
        let account = "system:serviceaccount:kube-system:a";
        for (user, groups, verb, target, expected) in [
            ("admin", "system:masters", "get", pods, "exempt"),
            ("system:anonymous", none, "get", DigestTarget::Path("/readyz/etcd"), "probes"),
            ("u", all, "get", DigestTarget::Path("/metrics"), "global-default"),
            ("u", all, "list", pods, "global-default"),
            ("u", "none", "list", pods, "catch-all"),
            ("system:node:a", "system:nodes", "update", lease, "system-node-high"),
            ("system:node:a", "system:nodes", "list", pods, "system-nodes"),
            ("system:kube-scheduler", all, "update", lease, "system-leader-election"),
            ("system:kube-scheduler", all, "list", pods, "kube-scheduler"),
            ("system:kube-controller-manager", all, "list", pods, "kube-controller-manager"),
            (account, all, "list", pods, "kube-system-service-accounts"),
            (account, all, "get", map("n"), "workload-leader-election"),
            (account, all, "get", map("kube-system"), "system-leader-election"),
            ("a", "system:serviceaccounts", "list", pods, "service-accounts"),
        ] {
            let groups = [groups.to_owned()];
            let request = RequestDigest { user, groups: &groups, verb, target };
            let found = &schemas.ordered()[schemas.find(&request)];
            assert_eq!(found.name, expected, "{user} {verb} {target:?}");
        }
    }

    #[test]
    fn another_profile_has_its_own_names() {
        let names = Names::new(Profile::default());
        let text: String = built_in_objects(names).iter().map(|of| of.object.to_string()).collect();
        assert!(!text.contains("kube") && !text.contains("k8s"), "{text}");
        assert_eq!(
            decoded(names, FLOW_SCHEMAS).iter().filter(|(_, is_mandatory)| *is_mandatory).count(),
            2
        );
    }
}
