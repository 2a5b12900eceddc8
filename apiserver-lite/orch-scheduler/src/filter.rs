//! The Filter extension point: whether a pod can run on a node. Messages are kube-scheduler's.

use std::collections::BTreeMap;
use std::fmt;

use proto_api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

use crate::node_info::{Admission, NodeInfo};
use crate::nodes::NodeLoad;
use crate::pod_info::{CPU, MEMORY, PODS, PodInfo, add};

/// Why a node is not feasible for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The node is cordoned.
    Unschedulable,
    /// The pod does not tolerate a taint of the node.
    Taint {
        /// The taint's key.
        key: String,
        /// The taint's value.
        value: String,
    },
    /// The node does not match the pod's selector or node affinity.
    NodeAffinity,
    /// A host port of the pod is in use on the node.
    HostPorts,
    /// The node has its maximum number of pods.
    TooManyPods,
    /// The node lacks this resource.
    Insufficient(String),
    /// The anti-affinity of a pod on the node selects this pod.
    ExistingAntiAffinity,
    /// The pod's anti-affinity selects a pod in the node's domain.
    PodAntiAffinity,
    /// The pod's affinity selects no pod in the node's domain.
    PodAffinity,
    /// The pod would exceed the maximum skew of a topology spread constraint.
    TopologySpread,
    /// The node lacks the topology key of a spread constraint.
    TopologySpreadLabel,
    /// A disk of the pod is in use on the node.
    Disk,
    /// The pod's claims cannot be used on any node.
    Claims(String),
    /// A claim is bound to a volume that does not exist.
    VolumeNotFound,
    /// A bound volume is not accessible from the node.
    VolumeNodeAffinity,
    /// A bound volume is in another zone.
    VolumeZone,
    /// The node has its maximum number of volumes of a CSI driver.
    MaxVolumeCount,
    /// An unbound claim has no matching volume for the node.
    NoVolumeToBind,
    /// The storage has no capacity for an unbound claim.
    NoStorageCapacity,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => {
                write!(f, "node(s) had untolerated taint {{{key}: {value}}}")
            }
            Self::NodeAffinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::HostPorts => {
                f.write_str("node(s) didn't have free ports for the requested pod ports")
            }
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::ExistingAntiAffinity => {
                f.write_str("node(s) didn't satisfy existing pods anti-affinity rules")
            }
            Self::PodAntiAffinity => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Self::PodAffinity => f.write_str("node(s) didn't match pod affinity rules"),
            Self::TopologySpread => {
                f.write_str("node(s) didn't match pod topology spread constraints")
            }
            Self::TopologySpreadLabel => f.write_str(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ),
            Self::Disk => f.write_str("node(s) had no available disk"),
            Self::Claims(why) => f.write_str(why),
            Self::VolumeNotFound => f.write_str(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
            Self::VolumeNodeAffinity => f.write_str("node(s) had volume node affinity conflict"),
            Self::VolumeZone => f.write_str("node(s) had no available volume zone"),
            Self::MaxVolumeCount => f.write_str("node(s) exceed max volume count"),
            Self::NoVolumeToBind => {
                f.write_str("node(s) didn't find available persistent volumes to bind")
            }
            Self::NoStorageCapacity => f.write_str("node(s) did not have enough free storage"),
        }
    }
}

/// Checks a node, cheap filters first. Only insufficient resources give several reasons. Inter-pod constraints are checked afterwards, see
/// [`crate::pod_affinity`].
///
/// # Errors
/// Why the pod cannot run on the node.
pub fn check(pod: &PodInfo, load: &NodeLoad) -> Result<(), Vec<Refusal>> {
    let node = &load.node;
    if node.admission == Admission::Cordoned && !tolerates_cordon(pod, node) {
        return Err(vec![Refusal::Unschedulable]);
    }
    if let Some(taint) = find_untolerated(&pod.tolerations, &node.taints) {
        return Err(vec![Refusal::Taint { key: taint.key.clone(), value: taint.value.clone() }]);
    }
    if !matches_selector(pod, node) {
        return Err(vec![Refusal::NodeAffinity]);
    }
    if pod.host_ports.iter().any(|port| load.ports.is_taken(port)) {
        return Err(vec![Refusal::HostPorts]);
    }
    if pod.disks.iter().any(|disk| load.disks.is_refused(disk)) {
        return Err(vec![Refusal::Disk]);
    }
    let refusals = insufficient_resources(pod, load);
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// The message for a pod without a feasible node: how many nodes were filtered out for each reason.
pub fn summary(nodes: usize, refusals: impl IntoIterator<Item = Vec<Refusal>>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counts: BTreeMap<Refusal, i64> = BTreeMap::new();
    for refusal in refusals.into_iter().flatten() {
        add(counts.entry(refusal).or_default(), 1);
    }
    let mut reasons: Vec<String> =
        counts.into_iter().map(|(refusal, count)| format!("{count} {refusal}")).collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

// === Taints ===

/// Whether the pod tolerates the taint of a cordoned node.
fn tolerates_cordon(pod: &PodInfo, node: &NodeInfo) -> bool {
    // The domain of the key depends on the naming profile.
    let cordon = node.taints.iter().find(|taint| taint.key.ends_with("/unschedulable"));
    cordon
        .is_some_and(|taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn find_untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    let excludes = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut taints = taints.iter().filter(excludes);
    taints.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether the toleration matches the taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key == taint.key || toleration.key.is_empty() && exists;
    effect && key && (exists || toleration.value == taint.value)
}

// === Node affinity ===

/// Whether the node matches the pod's node selector and required node affinity.
pub fn matches_selector(pod: &PodInfo, node: &NodeInfo) -> bool {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let required = pod.required.as_ref();
    pod.node_selector.iter().all(has)
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| matches_term(term, node))
        })
}

/// Whether the node meets all requirements of a term; an empty term matches nothing.
pub fn matches_term(term: &NodeSelectorTerm, node: &NodeInfo) -> bool {
    let empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    let label = |key: &str| node.labels.get(key).map(String::as_str);
    let field = |key: &str| (key == "metadata.name").then_some(node.name.as_str());
    !empty
        && term
            .match_expressions
            .iter()
            .all(|requirement| meets(requirement, label(&requirement.key)))
        && term.match_fields.iter().all(|requirement| meets(requirement, field(&requirement.key)))
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| requirement.values.iter().any(|other| other == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = requirement.values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        bound.zip(value).is_some_and(|(bound, value)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}

// === Resources ===

fn insufficient_resources(pod: &PodInfo, load: &NodeLoad) -> Vec<Refusal> {
    let allocatable = |resource: &str| load.node.allocatable.get(resource).copied().unwrap_or(0);
    let mut refusals = Vec::new();
    if load.pod_count >= allocatable(PODS) {
        refusals.push(Refusal::TooManyPods);
    }
    let requested = |resource: &str| load.requested.get(resource).copied().unwrap_or(0);
    // CPU and memory come first.
    let order = |resource: &&String| (*resource != CPU, *resource != MEMORY, (*resource).clone());
    let mut resources: Vec<&String> = pod.requests.keys().collect();
    resources.sort_by_key(order);
    for resource in resources {
        let request = pod.requests.get(resource).copied().unwrap_or(0);
        if request > 0 && request > allocatable(resource).saturating_sub(requested(resource)) {
            refusals.push(Refusal::Insufficient(resource.clone()));
        }
    }
    refusals
}

#[cfg(test)]
mod tests;
