//! The projection of a pod that the scheduler caches.

use std::collections::BTreeMap;

use proto_api::core::v1::{
    Container, NodeSelector, ObjectReference, Pod, PodCondition, PreferredSchedulingTerm,
    Toleration,
};
use proto_api::names::Names;
use proto_api::{ObjectKey, Resource as _};

use crate::claim_use::{CLAIMS_MAX, ClaimUse, claims_of};
use crate::cloud_disks::{self, CloudDisk};
use crate::features::SchedulingFeatures;
use crate::placement::PlacementConstraints;
use crate::pod_controller::PodController;
use crate::resource_amounts::{Amounts, CPU, MEMORY, add, amount};
use crate::volume_restrictions::{self, PodDisk};

/// Defaults for containers without requests when nodes are scored, so that such pods are spread too.
const DEFAULT_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 << 20;

/// The fields of a pod that scheduling reads.
#[derive(Clone, Debug, PartialEq)]
pub struct PodInfo {
    /// Namespace and name.
    pub key: ObjectKey,
    pub uid: String,
    /// The object that its events refer to.
    pub reference: ObjectReference,
    /// The assigned node; empty if there is none.
    pub node: String,
    /// The phase, reduced to what scheduling distinguishes.
    pub phase: PodPhase,
    /// Whether its phase is past Pending.
    pub has_started: bool,
    /// The `schedulerName`.
    pub scheduler: String,
    /// The priority; higher is scheduled first.
    pub priority: i32,
    /// Whether pods of lower priority may end for it (`preemptionPolicy`).
    pub may_preempt: bool,
    /// The node on which others ended for it (`nominatedNodeName`); empty if there is none.
    pub nominated: String,
    /// The `startTime`, in seconds since 1970.
    pub started: Option<i64>,
    /// The creation time, in seconds since 1970.
    pub created: i64,
    pub requests: Amounts,
    /// CPU and memory for scoring, with defaults for containers without requests.
    pub weight: (i64, i64),
    /// The images of its containers, with the tag `latest` where none is given.
    pub images: Vec<String>,
    pub host_ports: Vec<HostPort>,
    pub node_selector: BTreeMap<String, String>,
    /// The required node affinity.
    pub required: Option<NodeSelector>,
    /// The preferred node affinity.
    pub preferred: Vec<PreferredSchedulingTerm>,
    pub tolerations: Vec<Toleration>,
    pub labels: BTreeMap<String, String>,
    /// The required pod affinity, anti-affinity and topology spread.
    pub constraints: PlacementConstraints,
    /// The PersistentVolumeClaims, at most [`CLAIMS_MAX`].
    pub claims: Vec<ClaimUse>,
    /// How many there are.
    pub claim_count: usize,
    /// The disks that it mounts without a claim.
    pub disks: Vec<PodDisk>,
    /// Those of clouds, which count for the limits of nodes; at most 257.
    pub cloud_disks: Vec<CloudDisk>,
    /// The controller whose pods are spread by default.
    pub controller: Option<PodController>,
    /// The condition PodScheduled unless it is true.
    pub unscheduled: Option<PodCondition>,
}

/// What the scheduler reads of `status.phase` and `deletionTimestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// Pending or running.
    Active,
    /// Terminating; it still uses its requests.
    Terminating,
    /// Finished; it uses nothing.
    Ended,
}

/// A host port that a pod takes on its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The port number.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The host IP; unspecified for all.
    pub ip: String,
}

impl PodInfo {
    /// Projects an API object, with no feature on.
    pub fn from_pod(names: &Names, pod: &Pod) -> Self {
        Self::with_features(names, pod, SchedulingFeatures::default())
    }

    /// Projects an API object.
    pub fn with_features(names: &Names, pod: &Pod, features: SchedulingFeatures) -> Self {
        let (spec, status) = (&pod.spec, &pod.status);
        let metadata = pod.metadata();
        let (claims, claim_count) = claims_of(pod);
        let node_affinity =
            spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let is_unscheduled = |c: &&PodCondition| c.type_ == "PodScheduled" && c.status != "True";
        Self {
            key: ObjectKey::from_metadata(metadata),
            uid: metadata.uid.clone(),
            reference: proto_api::event_report::reference(pod, names),
            node: spec.node_name.clone(),
            phase: phase(pod),
            has_started: !matches!(status.phase.as_str(), "" | "Pending"),
            scheduler: spec.scheduler_name.clone(),
            priority: spec.priority.unwrap_or(0),
            may_preempt: spec.preemption_policy.as_deref() != Some("Never"),
            nominated: status.nominated_node_name.clone(),
            started: status.start_time.as_ref().and_then(|time| time.unix()),
            created: metadata.creation_timestamp.unix().unwrap_or(0),
            requests: requests(pod),
            weight: weight(pod),
            images: spec.containers.iter().map(|container| tagged(&container.image)).collect(),
            host_ports: host_ports(pod),
            node_selector: spec.node_selector.clone(),
            required: node_affinity.and_then(|affinity| {
                affinity.required_during_scheduling_ignored_during_execution.clone()
            }),
            preferred: node_affinity.map_or_else(Vec::new, |affinity| {
                affinity.preferred_during_scheduling_ignored_during_execution.clone()
            }),
            tolerations: spec.tolerations.clone(),
            labels: metadata.labels.clone(),
            constraints: PlacementConstraints::from_pod(pod, features),
            claims,
            claim_count,
            disks: volume_restrictions::of_pod(pod),
            cloud_disks: cloud_disks::of_pod(pod),
            controller: PodController::from_pod(names, metadata),
            unscheduled: status.conditions.iter().find(is_unscheduled).cloned(),
        }
    }

    /// Whether it has more claims than are scheduled.
    pub fn has_excess_claims(&self) -> bool {
        self.claim_count > CLAIMS_MAX
    }

    /// Whether its place depends on storage objects.
    pub fn needs_storage(&self) -> bool {
        !self.claims.is_empty() || !self.cloud_disks.is_empty()
    }

    /// Whether it is assigned to a node and not running yet.
    pub fn is_starting(&self) -> bool {
        !self.node.is_empty() && self.phase == PodPhase::Active && !self.has_started
    }
}

/// The name of an image as nodes report it.
fn tagged(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') || name.contains('@') {
        return image.to_owned();
    }
    format!("{image}:latest")
}

fn phase(pod: &Pod) -> PodPhase {
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        PodPhase::Ended
    } else if pod.metadata.deletion_timestamp.is_some() {
        PodPhase::Terminating
    } else {
        PodPhase::Active
    }
}

/// The larger of the sum over the containers and the largest init container, plus the overhead.
fn requests(pod: &Pod) -> Amounts {
    let mut sum = Amounts::new();
    for container in &pod.spec.containers {
        for (resource, quantity) in &container.resources.requests {
            add(sum.entry(resource.clone()).or_default(), amount(resource, quantity));
        }
    }
    for container in &pod.spec.init_containers {
        for (resource, quantity) in &container.resources.requests {
            let all = sum.entry(resource.clone()).or_default();
            *all = (*all).max(amount(resource, quantity));
        }
    }
    for (resource, quantity) in &pod.spec.overhead {
        add(sum.entry(resource.clone()).or_default(), amount(resource, quantity));
    }
    sum
}

/// The same with defaults for containers without requests.
fn weight(pod: &Pod) -> (i64, i64) {
    let spec = &pod.spec;
    let of = |resource: &str, default: i64| {
        let request = |container: &Container| {
            let request = container.resources.requests.get(resource);
            request.map_or(default, |quantity| amount(resource, quantity))
        };
        let sum = spec.containers.iter().map(request).fold(0, i64::saturating_add);
        let largest = spec.init_containers.iter().map(request).max().unwrap_or(0);
        let overhead = spec.overhead.get(resource).map_or(0, |quantity| amount(resource, quantity));
        sum.max(largest).saturating_add(overhead)
    };
    (of(CPU, DEFAULT_CPU), of(MEMORY, DEFAULT_MEMORY))
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
    let port = |port: &proto_api::core::v1::ContainerPort| HostPort {
        port: port.host_port,
        protocol: if port.protocol.is_empty() { "TCP".to_owned() } else { port.protocol.clone() },
        ip: port.host_ip.clone(),
    };
    ports.filter(|port| port.host_port > 0).map(port).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(cpu: &str) -> Container {
        let mut container = Container::default();
        container.resources.requests.insert(CPU.into(), cpu.parse().unwrap());
        container
    }

    #[test]
    fn requests_are_the_larger_of_containers_and_init_containers_plus_overhead() {
        let mut pod = Pod::default();
        pod.spec.containers = vec![container("200m"), container("300m")];
        assert_eq!(requests(&pod)[CPU], 500);
        pod.spec.init_containers = vec![container("450m"), container("700m")];
        assert_eq!(requests(&pod)[CPU], 700);
        pod.spec.overhead.insert(CPU.into(), "50m".parse().unwrap());
        assert_eq!(requests(&pod)[CPU], 750);
        assert_eq!(weight(&pod), (750, 400 << 20));
    }
}
