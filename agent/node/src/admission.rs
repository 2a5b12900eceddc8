//! Admission: whether a pod may run on this node. Decided once per pod and final.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use proto_api::core::v1::{
    Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};

use crate::resources::{Amounts, PODS, add, capacity, requests};

/// A rejection: reason and message of the failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionRefusal {
    /// Reason, such as `OutOfcpu` or `NodeAffinity`.
    pub reason: String,
    /// Message for users.
    pub message: String,
}

/// Resources taken by the pods already admitted.
#[derive(Clone, Debug, Default)]
pub struct NodeLoad {
    /// Number of pods.
    pub pods: i64,
    /// Sum of their requests.
    pub requests: Amounts,
    /// Host ports in use.
    pub host_ports: Vec<HostPort>,
}

/// A port of the node that a container takes (`hostPort`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// Address; empty for all.
    pub ip: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Number.
    pub port: i32,
}

impl HostPort {
    fn clashes(&self, other: &Self) -> bool {
        let wild = |ip: &str| ip.is_empty() || ip == "0.0.0.0" || ip == "::";
        self.port == other.port
            && self.protocol == other.protocol
            && (wild(&self.ip) || wild(&other.ip) || self.ip == other.ip)
    }
}

impl NodeLoad {
    /// Adds an admitted pod that has not ended.
    pub fn add(&mut self, pod: &Pod) {
        self.pods = self.pods.saturating_add(1);
        add(&mut self.requests, &requests(pod));
        self.host_ports.extend(host_ports(pod));
    }
}

/// Host ports of a pod. On the host network every container port is a host port.
pub fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let ports = pod.spec.containers.iter().flat_map(|c| &c.ports);
    ports
        .filter(|p| p.host_port > 0)
        .map(|p| HostPort {
            ip: p.host_ip.clone(),
            protocol: if p.protocol.is_empty() { "TCP".to_owned() } else { p.protocol.clone() },
            port: p.host_port,
        })
        .collect()
}

/// Decides on a pod. Taints do not reject static pods (`is_static`).
///
/// # Errors
/// The first rejection, in the order resources, ports, node selector and affinity, taints.
pub fn admit(
    pod: &Pod,
    node: &Node,
    load: &NodeLoad,
    is_static: bool,
) -> Result<(), AdmissionRefusal> {
    fits(pod, &node.status.allocatable, load)?;
    if host_ports(pod).iter().any(|port| load.host_ports.iter().any(|held| port.clashes(held))) {
        return Err(predicate("NodePorts"));
    }
    if !selects(pod, node) {
        return Err(predicate("NodeAffinity"));
    }
    if !is_static && !tolerates(&pod.spec.tolerations, &node.spec.taints) {
        return Err(predicate("TaintToleration"));
    }
    Ok(())
}

fn predicate(name: &str) -> AdmissionRefusal {
    AdmissionRefusal { reason: name.to_owned(), message: format!("Predicate {name} failed") }
}

fn fits(pod: &Pod, allocatable: &Amounts, load: &NodeLoad) -> Result<(), AdmissionRefusal> {
    let pods = allocatable.get(PODS).map_or(i64::MAX, |q| q.value());
    if load.pods >= pods {
        return Err(out_of(PODS, 1, load.pods, pods));
    }
    for (name, amount) in requests(pod) {
        let held = load.requests.get(&name).copied().unwrap_or_default();
        let Some(capacity) = capacity(allocatable, &name) else { continue };
        if !amount.is_zero() && held + amount > capacity {
            let show =
                |q: proto_api::Quantity| if name == "cpu" { q.as_milli() } else { q.value() };
            return Err(out_of(&name, show(amount), show(held), show(capacity)));
        }
    }
    Ok(())
}

fn out_of(resource: &str, requested: i64, used: i64, capacity: i64) -> AdmissionRefusal {
    AdmissionRefusal {
        reason: format!("OutOf{resource}"),
        message: format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        ),
    }
}

/// Whether the pod's node selector and required node affinity match this node.
fn selects(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let selector = &pod.spec.node_selector;
    if !selector.iter().all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = pod.spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|r| r.node_selector_terms.iter().any(|term| term_selects(term, node)))
}

/// Whether a term matches the node; a term without requirements matches none.
fn term_selects(term: &NodeSelectorTerm, node: &Node) -> bool {
    let label = |r: &NodeSelectorRequirement| {
        requirement_holds(r, node.metadata.labels.get(&r.key).map(String::as_str))
    };
    let field = |r: &NodeSelectorRequirement| {
        let value = (r.key == "metadata.name").then_some(node.metadata.name.as_str());
        requirement_holds(r, value)
    };
    (!term.match_expressions.is_empty() || !term.match_fields.is_empty())
        && term.match_expressions.iter().all(label)
        && term.match_fields.iter().all(field)
}

fn requirement_holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|v| requirement.values.iter().any(|r| r == v));
    let number = || {
        let bound = requirement.values.first()?.parse::<i64>().ok()?;
        Some((value?.parse::<i64>().ok()?, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => number().is_some_and(|(value, bound)| value > bound),
        "Lt" => number().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

/// Whether every `NoExecute` taint is tolerated. The scheduler handles the other effects.
fn tolerates(tolerations: &[Toleration], taints: &[Taint]) -> bool {
    let evicting = taints.iter().filter(|t| t.effect == "NoExecute");
    evicting.into_iter().all(|taint| tolerations.iter().any(|t| tolerates_taint(t, taint)))
}

fn tolerates_taint(toleration: &Toleration, taint: &Taint) -> bool {
    let any_key = toleration.key.is_empty();
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = any_key || toleration.key == taint.key;
    let value = match toleration.operator.as_str() {
        "Exists" => true,
        "" | "Equal" => !any_key && toleration.value == taint.value,
        _ => false,
    };
    effect && key && value
}

#[cfg(test)]
mod tests;
