//! The Filter extension point: whether a pod can run on a node.

use proto_api::core::v1::{Taint, Toleration};

use crate::node_info::Admission;
use crate::node_selector::{matches_required, matches_selector};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::profile::{Filter, Profile, ResourceFit};
use crate::refusal::Refusal;
use crate::resource_amounts::{CPU, MEMORY, PODS};
use crate::taints::tolerates;

/// Checks a node in the order of kube-scheduler's filters. Only insufficient resources give several reasons. Inter-pod constraints are checked afterwards, see
/// [`crate::pod_affinity`].
///
/// # Errors
/// Why the pod cannot run on the node.
pub fn check(pod: &PodInfo, load: &NodeLoad, profile: &Profile) -> Result<(), Vec<Refusal>> {
    if let Some(refusal) = refusal(pod, load, profile) {
        return Err(vec![refusal]);
    }
    if profile.asks(Filter::NodeResourcesFit) {
        let refusals = insufficient_resources(pod, load, &profile.fit);
        if !refusals.is_empty() {
            return Err(refusals);
        }
    }
    let is_refused = || pod.disks.iter().any(|disk| load.disks.is_refused(disk));
    match profile.asks(Filter::VolumeRestrictions) && is_refused() {
        true => Err(vec![Refusal::Disk]),
        false => Ok(()),
    }
}

/// Why the pod cannot run on the node, whatever resources and disks are left.
fn refusal(pod: &PodInfo, load: &NodeLoad, profile: &Profile) -> Option<Refusal> {
    let (node, asks) = (&load.node, |filter| profile.asks(filter));
    let is_cordoned = node.admission == Admission::Cordoned && !tolerates_cordon(pod);
    if is_cordoned && asks(Filter::NodeUnschedulable) {
        return Some(Refusal::Unschedulable);
    }
    if asks(Filter::TaintToleration)
        && let Some(taint) = find_untolerated(&pod.tolerations, &node.taints)
    {
        return Some(Refusal::Taint { key: taint.key.clone(), value: taint.value.clone() });
    }
    if asks(Filter::NodeAffinity) {
        let added = profile.added_affinity.required.as_ref();
        if added.is_some_and(|required| !matches_required(required, node)) {
            return Some(Refusal::EnforcedNodeAffinity);
        }
        if !matches_selector(pod, node) {
            return Some(Refusal::NodeAffinity);
        }
    }
    let takes_port = || pod.host_ports.iter().any(|port| load.ports.is_taken(port));
    (asks(Filter::NodePorts) && takes_port()).then_some(Refusal::HostPorts)
}

// === Taints ===

/// Whether the pod tolerates the taint of a cordoned node, which the node gets a moment later.
fn tolerates_cordon(pod: &PodInfo) -> bool {
    pod.tolerations.iter().any(|toleration| {
        let key = toleration.key.clone();
        // The domain of the key depends on the naming profile.
        let is_of_cordon = key.starts_with("node.") && key.ends_with("/unschedulable");
        let cordon = Taint { key, effect: "NoSchedule".to_owned(), ..Taint::default() };
        (is_of_cordon || cordon.key.is_empty()) && tolerates(toleration, &cordon)
    })
}

/// A taint that keeps pods with these tolerations off.
pub(crate) fn find_untolerated<'a>(
    tolerations: &[Toleration],
    taints: &'a [Taint],
) -> Option<&'a Taint> {
    let excludes = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let mut taints = taints.iter().filter(excludes);
    taints.find(|taint| !tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

// === Resources ===

impl ResourceFit {
    /// Whether nodes need not have the resource. Only extended ones can be left out.
    fn ignores(&self, resource: &str) -> bool {
        let group = resource.split_once('/').map(|(group, _)| group);
        group.is_some_and(|group| {
            self.ignored_resources.contains(resource) || self.ignored_groups.contains(group)
        })
    }
}

fn insufficient_resources(pod: &PodInfo, load: &NodeLoad, fit: &ResourceFit) -> Vec<Refusal> {
    let allocatable = |resource: &str| load.node.allocatable.get(resource).copied().unwrap_or(0);
    let mut refusals = Vec::new();
    if load.pod_count >= allocatable(PODS) {
        refusals.push(Refusal::TooManyPods);
    }
    let requested = |resource: &str| load.requested.get(resource).copied().unwrap_or(0);
    let is_insufficient = |(resource, request): &(&String, &i64)| {
        let free = || allocatable(resource).saturating_sub(requested(resource));
        **request > 0 && **request > free() && !fit.ignores(resource)
    };
    let insufficient = pod.requests.iter().filter(is_insufficient);
    // Empty on most nodes.
    let mut resources: Vec<&String> = insufficient.map(|(resource, _)| resource).collect();
    // CPU and memory come first, the others by name as they are.
    resources.sort_by_key(|resource| (*resource != CPU, *resource != MEMORY));
    refusals.extend(resources.into_iter().cloned().map(Refusal::Insufficient));
    refusals
}

#[cfg(test)]
mod tests;
