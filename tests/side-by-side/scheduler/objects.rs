//! The nodes and pods that schedulers are measured with, as values: the same for the same numbers.

use proto_api::names::Names;
use serde_json::{Value, json};

/// The namespace of the pods.
pub const NAMESPACE: &str = "placed";
/// The class of the pods that go first.
pub const CLASS: &str = "first";
/// Pods of a group that keeps apart, of one that spreads and of one that stays together.
const GROUPS: [usize; 3] = [10, 20, 5];
const TAINT: &str = "dedicated";

/// What stands there before the pods.
pub fn surroundings() -> [(&'static str, Value); 5] {
    // What the scheduler's role of 1.20 does not let it read; ours waits for it.
    let rules = json!([
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["storage.k8s.io"], "resources": ["csidrivers", "csistoragecapacities"], "verbs": ["get", "list", "watch"]},
    ]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scheduler-of-1.25"});
    let user = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}]);
    [
        (
            "namespaces",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
        ),
        // No token is mounted: nobody has to make one.
        (
            "serviceaccounts",
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "automountServiceAccountToken": false,
                   "metadata": {"name": "default", "namespace": NAMESPACE}}),
        ),
        (
            "priorityclasses",
            json!({"kind": "PriorityClass", "metadata": {"name": CLASS}, "value": 1000}),
        ),
        (
            "clusterroles",
            json!({"kind": "ClusterRole", "metadata": {"name": "scheduler-of-1.25"}, "rules": rules}),
        ),
        (
            "clusterrolebindings",
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "scheduler-of-1.25"},
                   "roleRef": role, "subjects": user}),
        ),
    ]
}

/// Zones of so many nodes.
fn zones(nodes: usize) -> usize {
    (nodes / 2).clamp(1, 10)
}

fn zone(number: usize) -> String {
    format!("zone-{number}")
}

/// The nth of so many nodes, and its taints, which are set once the server has set its own.
pub fn node(names: &Names, nth: usize, nodes: usize) -> (Value, Value) {
    let zones = zones(nodes);
    let row = nth / zones;
    let is_dedicated = (row + nth) % 10 == 9;
    let disk = if row.is_multiple_of(2) { "ssd" } else { "hdd" };
    let name = node_name(nth);
    let room = json!({
        "cpu": if nth.is_multiple_of(3) { "8" } else { "4" },
        "memory": "16Gi", "pods": "110", "ephemeral-storage": "100Gi",
    });
    let mut labels = json!({
        names.label("hostname"): name,
        names.sub_label("topology", "zone"): zone(nth % zones),
        "disk": disk,
    });
    let mut taints = json!([]);
    if is_dedicated {
        labels[TAINT] = json!("yes");
        taints = json!([{"key": TAINT, "value": "yes", "effect": "NoSchedule"}]);
    }
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": room, "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Made"}],
        },
    });
    (node, json!({"spec": {"taints": taints}}))
}

/// The name of the nth node.
pub fn node_name(nth: usize) -> String {
    format!("node-{nth}")
}

/// What a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodKind {
    /// Amounts only.
    Plain,
    /// Nodes with a label, and rather in one zone.
    NodeAffinity,
    /// No other of its group on the node.
    Apart,
    /// Its group evenly over zones, and rather over nodes.
    Spread,
    /// Nodes with a taint.
    Tolerating,
    /// Before all others.
    First,
    /// The zone of its group.
    Together,
}

impl PodKind {
    /// All of them, with their shares of twenty pods.
    pub const SHARES: [(PodKind, usize); 7] = [
        (PodKind::Plain, 7),
        (PodKind::NodeAffinity, 3),
        (PodKind::Apart, 2),
        (PodKind::Spread, 3),
        (PodKind::Tolerating, 2),
        (PodKind::First, 2),
        (PodKind::Together, 1),
    ];

    /// The kind of the nth pod, and which of its kind it is.
    fn nth(nth: usize) -> (PodKind, usize) {
        let (round, mut rest) = (nth / 20, nth % 20);
        for (kind, share) in Self::SHARES {
            if rest < share {
                return (kind, round * share + rest);
            }
            rest -= share;
        }
        (PodKind::Plain, nth)
    }
}

/// The nth pod on so many nodes.
pub fn pod(names: &Names, nth: usize, nodes: usize) -> Value {
    let (kind, number) = PodKind::nth(nth);
    let [apart, spread, together] = GROUPS;
    let group = match kind {
        PodKind::Apart => format!("apart-{}", number / apart),
        PodKind::Spread => format!("spread-{}", number / spread),
        PodKind::Together => format!("together-{}", number / together),
        kind => format!("{kind:?}").to_lowercase(),
    };
    let mut spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "app", "image": "registry.invalid/placed:1",
            "resources": {"requests": {
                "cpu": format!("{}m", 100 + 50 * (nth % 7)),
                "memory": format!("{}Mi", 64 + 64 * (nth % 5)),
            }},
        }],
    });
    let (zone_label, host_label) = (names.sub_label("topology", "zone"), names.label("hostname"));
    let selector = json!({"matchLabels": {"group": group}});
    let term = |key: &str| json!([{"topologyKey": key, "labelSelector": selector}]);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    match kind {
        PodKind::Plain => {}
        PodKind::NodeAffinity => {
            let preferred = zone(number % zones(nodes));
            spec["affinity"] = json!({"nodeAffinity": {
                required: {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "disk", "operator": "In", "values": ["ssd"]}]}]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference":
                    {"matchExpressions": [{"key": zone_label, "operator": "In", "values": [preferred]}]}}],
            }});
        }
        PodKind::Apart => {
            spec["affinity"] = json!({"podAntiAffinity": {required: term(&host_label)}})
        }
        PodKind::Together => {
            spec["affinity"] = json!({"podAffinity": {required: term(&zone_label)}})
        }
        PodKind::Spread => {
            let constraint = |key: &str, otherwise: &str| {
                json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": otherwise,
                       "labelSelector": selector})
            };
            spec["topologySpreadConstraints"] = json!([
                constraint(&zone_label, "DoNotSchedule"),
                constraint(&host_label, "ScheduleAnyway"),
            ]);
        }
        PodKind::Tolerating => {
            spec["tolerations"] =
                json!([{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]);
            spec["nodeSelector"] = json!({TAINT: "yes"});
        }
        PodKind::First => spec["priorityClassName"] = json!(CLASS),
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("pod-{nth}"), "namespace": NAMESPACE, "labels": {"group": group}},
        "spec": spec,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_pods_have_every_kind_in_its_share() {
        let kinds: Vec<PodKind> = (20..40).map(|nth| PodKind::nth(nth).0).collect();
        for (kind, share) in PodKind::SHARES {
            assert_eq!(kinds.iter().filter(|other| **other == kind).count(), share, "{kind:?}");
        }
    }

    #[test]
    fn every_zone_has_nodes_without_a_taint_and_there_are_nodes_with_one() {
        let names = Names::new(proto_api::names::Profile::Kubernetes);
        let is_tainted = |(_, taints): &(Value, Value)| taints["spec"]["taints"] != json!([]);
        for nodes in [20, 100, 1000] {
            let all: Vec<_> = (0..nodes).map(|nth| node(names, nth, nodes)).collect();
            let zone = |(node, _): &(Value, Value)| {
                node["metadata"]["labels"][names.sub_label("topology", "zone")].to_string()
            };
            let free: std::collections::BTreeSet<_> =
                all.iter().filter(|node| !is_tainted(node)).map(zone).collect();
            assert_eq!(free.len(), zones(nodes));
            assert_eq!(all.iter().filter(|node| is_tainted(node)).count(), nodes / 10);
        }
    }
}
