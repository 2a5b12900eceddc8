//! Judges placements by the rules of the API, with nothing of either scheduler: each pod on its node among all others at the end.

use std::collections::BTreeMap;

use proto_api::Quantity;
use proto_api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodAffinityTerm, Taint, Toleration,
    TopologySpreadConstraint,
};
use proto_api::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;

/// What is wrong with the placements, one line each.
pub fn judge(nodes: &[Node], pods: &[Pod]) -> Vec<String> {
    let by_name = nodes.iter().map(|node| (node.metadata.name.as_str(), node)).collect();
    let cluster = Cluster { nodes: by_name, pods };
    let mut faults = Vec::new();
    for pod in pods {
        let name = &pod.metadata.name;
        match cluster.node_of(pod) {
            _ if pod.spec.node_name.is_empty() => faults.push(format!("{name} has no node")),
            None => faults.push(format!("{name} is on {}, which is no node", pod.spec.node_name)),
            Some(node) => {
                let wrong = cluster.judge_pod(pod, node);
                faults.extend(wrong.map(|why| format!("{name} on {}: {why}", node.metadata.name)));
            }
        }
    }
    faults.extend(cluster.judge_amounts());
    faults
}

struct Cluster<'a> {
    nodes: BTreeMap<&'a str, &'a Node>,
    pods: &'a [Pod],
}

impl<'a> Cluster<'a> {
    fn node_of(&self, pod: &Pod) -> Option<&'a Node> {
        self.nodes.get(pod.spec.node_name.as_str()).copied()
    }

    fn judge_pod(&self, pod: &Pod, node: &Node) -> impl Iterator<Item = String> {
        let spec = &pod.spec;
        let mut wrong = Vec::new();
        if node.spec.unschedulable {
            wrong.push("the node takes no pods".to_owned());
        }
        let untolerated = |taint: &&Taint| {
            taint.effect != "PreferNoSchedule"
                && !spec.tolerations.iter().any(|t| tolerates(t, taint))
        };
        if let Some(taint) = node.spec.taints.iter().find(untolerated) {
            wrong.push(format!(
                "it does not tolerate {}={}:{}",
                taint.key, taint.value, taint.effect
            ));
        }
        if !selects_node(pod, node) {
            wrong.push("its node selector or affinity does not select the node".to_owned());
        }
        let affinity = spec.affinity.as_ref();
        let apart = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
        for term in
            apart.iter().flat_map(|a| &a.required_during_scheduling_ignored_during_execution)
        {
            if let Some(other) = self.others(pod, term).find(|other| self.share(term, node, other))
            {
                wrong.push(format!("{} is in its {}", other.metadata.name, term.topology_key));
            }
        }
        let near = affinity.and_then(|a| a.pod_affinity.as_ref());
        for term in near.iter().flat_map(|a| &a.required_during_scheduling_ignored_during_execution)
        {
            let mut others = self.others(pod, term).peekable();
            let is_first = others.peek().is_none() && concerns(pod, term, pod);
            if !is_first && !others.any(|other| self.share(term, node, other)) {
                wrong.push(format!("none that it wants is in its {}", term.topology_key));
            }
        }
        for constraint in &spec.topology_spread_constraints {
            wrong.extend(self.judge_spread(pod, node, constraint));
        }
        wrong.into_iter()
    }

    /// The other pods with a node that a term speaks of.
    fn others<'b>(
        &'b self,
        pod: &'b Pod,
        term: &'b PodAffinityTerm,
    ) -> impl Iterator<Item = &'b Pod> {
        let is_other = |other: &&Pod| {
            other.metadata.name != pod.metadata.name
                || other.metadata.namespace != pod.metadata.namespace
        };
        let placed = self.pods.iter().filter(|other| !other.spec.node_name.is_empty());
        placed.filter(is_other).filter(move |other| concerns(pod, term, other))
    }

    /// Whether a node and the node of a pod are in the same domain of a term.
    fn share(&self, term: &PodAffinityTerm, node: &Node, other: &Pod) -> bool {
        let domain = node.metadata.labels.get(&term.topology_key);
        let theirs = self.node_of(other).and_then(|n| n.metadata.labels.get(&term.topology_key));
        domain.is_some() && domain == theirs
    }

    fn judge_spread(
        &self,
        pod: &Pod,
        node: &Node,
        constraint: &TopologySpreadConstraint,
    ) -> Option<String> {
        if constraint.when_unsatisfiable != "DoNotSchedule" {
            return None;
        }
        let key = &constraint.topology_key;
        let Some(own) = node.metadata.labels.get(key) else {
            return Some(format!("the node has no {key}"));
        };
        let eligible = self.nodes.values().filter(|node| selects_node(pod, node));
        let domains = eligible.filter_map(|node| node.metadata.labels.get(key));
        let mut counts: BTreeMap<&str, i32> = domains.map(|domain| (domain.as_str(), 0)).collect();
        for other in self.pods {
            let counted = other.metadata.namespace == pod.metadata.namespace
                && constraint
                    .label_selector
                    .as_ref()
                    .is_some_and(|s| selects(s, &other.metadata.labels));
            let domain = self.node_of(other).and_then(|n| n.metadata.labels.get(key));
            if let (true, Some(count)) = (counted, domain.and_then(|d| counts.get_mut(d.as_str())))
            {
                *count += 1;
            }
        }
        let (count, least) = (counts.get(own.as_str())?, counts.values().min()?);
        let skew = count - least;
        (skew > constraint.max_skew)
            .then(|| format!("{skew} more are in {key} {own} than in another"))
    }

    /// What nodes have to give, and what is taken of it.
    fn judge_amounts(&self) -> Vec<String> {
        let mut taken: BTreeMap<(&str, &str), Quantity> = BTreeMap::new();
        let mut ports: BTreeMap<(&str, i32), &str> = BTreeMap::new();
        let mut faults = Vec::new();
        for pod in self.pods.iter().filter(|pod| !pod.spec.node_name.is_empty()) {
            let node = pod.spec.node_name.as_str();
            let mut take = |what, amount| {
                let sum = taken.entry((node, what)).or_default();
                *sum = *sum + amount;
            };
            take("pods", Quantity::from_units(1));
            for container in &pod.spec.containers {
                for (what, amount) in &container.resources.requests {
                    take(what, *amount);
                }
                for port in container.ports.iter().filter(|port| port.host_port != 0) {
                    let name = pod.metadata.name.as_str();
                    if let Some(other) = ports.insert((node, port.host_port), name) {
                        faults.push(format!(
                            "{name} and {other} share port {} of {node}",
                            port.host_port
                        ));
                    }
                }
            }
        }
        for ((node, what), sum) in taken {
            let room = self.nodes.get(node).and_then(|n| n.status.allocatable.get(what));
            if sum > room.copied().unwrap_or_default() {
                faults.push(format!("{node}: {sum} of {what} are taken"));
            }
        }
        faults
    }
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_any = toleration.operator == "Exists";
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = (is_any && toleration.key.is_empty()) || toleration.key == taint.key;
    effect && key && (is_any || toleration.value == taint.value)
}

/// Whether a pod's node selector and required node affinity take a node.
pub fn selects_node(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let affinity = pod.spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    pod.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
        && required.is_none_or(|s| s.node_selector_terms.iter().any(|t| term_selects(t, node)))
}

/// Whether a term of a node selector selects a node.
pub fn term_selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let fields = [("metadata.name".to_owned(), node.metadata.name.clone())].into();
    let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    let labels =
        |e: &NodeSelectorRequirement| holds(&e.key, &e.operator, &e.values, &node.metadata.labels);
    let of_fields = |e: &NodeSelectorRequirement| holds(&e.key, &e.operator, &e.values, &fields);
    !is_empty
        && term.match_expressions.iter().all(labels)
        && term.match_fields.iter().all(of_fields)
}

/// Whether a term of `pod` speaks of `other`.
fn concerns(pod: &Pod, term: &PodAffinityTerm, other: &Pod) -> bool {
    let namespace = &other.metadata.namespace;
    let named = match term.namespaces.as_slice() {
        [] => *namespace == pod.metadata.namespace,
        names => names.contains(namespace),
    };
    named && term.label_selector.as_ref().is_some_and(|s| selects(s, &other.metadata.labels))
}

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
        && selector.match_expressions.iter().all(|e| holds(&e.key, &e.operator, &e.values, labels))
}

fn holds(key: &str, operator: &str, values: &[String], labels: &Labels) -> bool {
    let value = labels.get(key);
    let compare = |than: fn(&i64, &i64) -> bool| {
        let bound = values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        value.zip(bound).is_some_and(|(value, bound)| than(&value, &bound))
    };
    match operator {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}
