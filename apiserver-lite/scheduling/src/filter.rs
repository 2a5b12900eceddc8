//! The Filter extension point: whether a pod can run on a node.

use proto_api::core::v1::{Taint, Toleration};

use crate::node_info::{Admission, NodeInfo};
use crate::node_selector::matches_selector;
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::refusal::Refusal;
use crate::resource_amounts::{CPU, MEMORY, PODS};
use crate::taints::tolerates;

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
