//! Whether a pod may run on a node, and if not, why: in the words that people search for.

use std::collections::BTreeMap;
use std::fmt;

use proto_api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration};

use crate::node_info::{Admission, NodeInfo};
use crate::nodes::NodeLoad;
use crate::pod_info::{CPU, MEMORY, PODS, PodInfo, add};

/// Why a node is none for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The node is closed to new pods.
    Unschedulable,
    /// The pod does not tolerate a taint.
    Taint {
        /// Key of the taint.
        key: String,
        /// Its value.
        value: String,
    },
    /// The node's labels are not what the pod asks for.
    Affinity,
    /// Another pod has a port of the node that this one wants.
    Ports,
    /// The node has as many pods as it may.
    TooManyPods,
    /// The node has not enough left.
    Insufficient(String),
    /// A pod there wants to be apart from this one.
    OthersKeepApart,
    /// A pod there is one that this one wants to be apart from.
    NotApart,
    /// The pods that this one wants to be near are elsewhere.
    NotNear,
    /// One pod more there would be too uneven.
    Uneven,
    /// The node lacks the label over whose values pods are to be spread.
    NoPlace,
    /// A disk that the pod names is another pod's there.
    Disk,
    /// The pod's claims cannot be used, wherever it runs.
    Claims(String),
    /// A claim is bound to a volume that does not exist.
    NoSuchVolume,
    /// A volume of the pod cannot be reached from there.
    VolumeElsewhere,
    /// A volume of the pod is in another zone.
    VolumeZone,
    /// The node has as many volumes of a driver as it may.
    TooManyVolumes,
    /// A claim of the pod gets no volume there.
    NoVolume,
    /// There is nothing left to make a volume of.
    NoRoomForVolume,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => {
                write!(f, "node(s) had untolerated taint {{{key}: {value}}}")
            }
            Self::Affinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::Ports => {
                f.write_str("node(s) didn't have free ports for the requested pod ports")
            }
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::OthersKeepApart => {
                f.write_str("node(s) didn't satisfy existing pods anti-affinity rules")
            }
            Self::NotApart => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Self::NotNear => f.write_str("node(s) didn't match pod affinity rules"),
            Self::Uneven => f.write_str("node(s) didn't match pod topology spread constraints"),
            Self::NoPlace => f.write_str(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ),
            Self::Disk => f.write_str("node(s) had no available disk"),
            Self::Claims(why) => f.write_str(why),
            Self::NoSuchVolume => f.write_str(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
            Self::VolumeElsewhere => f.write_str("node(s) had volume node affinity conflict"),
            Self::VolumeZone => f.write_str("node(s) had no available volume zone"),
            Self::TooManyVolumes => f.write_str("node(s) exceed max volume count"),
            Self::NoVolume => {
                f.write_str("node(s) didn't find available persistent volumes to bind")
            }
            Self::NoRoomForVolume => f.write_str("node(s) did not have enough free storage"),
        }
    }
}

/// Checks a node; what is cheap and says most comes first, and only room can give several reasons. Other pods'
/// wishes come last: see [`crate::pod_affinity`].
///
/// # Errors
/// Why the pod cannot run there.
pub fn check(pod: &PodInfo, load: &NodeLoad) -> Result<(), Vec<Refusal>> {
    let node = &load.node;
    if node.admission == Admission::Cordoned && !tolerates_cordon(pod, node) {
        return Err(vec![Refusal::Unschedulable]);
    }
    if let Some(taint) = untolerated(&pod.tolerations, &node.taints) {
        return Err(vec![Refusal::Taint { key: taint.key.clone(), value: taint.value.clone() }]);
    }
    if !matches_selector(pod, node) {
        return Err(vec![Refusal::Affinity]);
    }
    if pod.host_ports.iter().any(|wanted| load.ports.is_taken(wanted)) {
        return Err(vec![Refusal::Ports]);
    }
    if pod.disks.iter().any(|disk| load.disks.is_refused(disk)) {
        return Err(vec![Refusal::Disk]);
    }
    let refusals = lacking(pod, load);
    if refusals.is_empty() { Ok(()) } else { Err(refusals) }
}

/// What is said of a pod that fits nowhere: how many nodes refuse it for which reason.
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

/// A pod that tolerates the taint for closed nodes may go there.
fn tolerates_cordon(pod: &PodInfo, node: &NodeInfo) -> bool {
    // Another program puts the taint there; its key tells how it is named here.
    let cordon = node.taints.iter().find(|taint| taint.key.ends_with("/unschedulable"));
    cordon
        .is_some_and(|taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn untolerated<'a>(tolerations: &[Toleration], taints: &'a [Taint]) -> Option<&'a Taint> {
    let keeps_out = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut taints = taints.iter().filter(keeps_out);
    taints.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

/// Whether the toleration is for this taint.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let exists = toleration.operator == "Exists";
    let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    let key = toleration.key == taint.key || toleration.key.is_empty() && exists;
    effect && key && (exists || toleration.value == taint.value)
}

// === Labels ===

/// Whether the node's labels are what the pod asks for.
pub fn matches_selector(pod: &PodInfo, node: &NodeInfo) -> bool {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    let required = pod.required.as_ref();
    pod.node_selector.iter().all(has)
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| matches_term(term, node))
        })
}

/// Whether the node meets all requirements of a term; a term without any matches nothing.
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

// === Room ===

fn lacking(pod: &PodInfo, load: &NodeLoad) -> Vec<Refusal> {
    let allocatable = |resource: &str| load.node.allocatable.get(resource).copied().unwrap_or(0);
    let mut refusals = Vec::new();
    if load.pods >= allocatable(PODS) {
        refusals.push(Refusal::TooManyPods);
    }
    let requested = |resource: &str| load.requested.get(resource).copied().unwrap_or(0);
    // Processor time and memory first, as people expect.
    let order = |resource: &&String| (*resource != CPU, *resource != MEMORY, (*resource).clone());
    let mut resources: Vec<&String> = pod.requests.keys().collect();
    resources.sort_by_key(order);
    for resource in resources {
        let wanted = pod.requests.get(resource).copied().unwrap_or(0);
        if wanted > 0 && wanted > allocatable(resource).saturating_sub(requested(resource)) {
            refusals.push(Refusal::Insufficient(resource.clone()));
        }
    }
    refusals
}

#[cfg(test)]
mod tests;
