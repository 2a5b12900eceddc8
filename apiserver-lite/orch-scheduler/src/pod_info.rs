//! The fields of a pod that scheduling reads, taken from the API object once when it arrives.

use std::collections::BTreeMap;

use proto_api::core::v1::{
    Container, NodeSelector, ObjectReference, Pod, PodCondition, PreferredSchedulingTerm,
    Toleration,
};
use proto_api::names::Names;
use proto_api::{Quantity, Resource as _};
use proto_client::ObjectKey;

use crate::pod_affinity::PlacementConstraints;
use crate::volumes::disks::{self, Disk};
use crate::volumes::{ClaimUse, claims_of};

/// Amounts by resource: processor time in thousandths, everything else in whole units or bytes.
pub type Amounts = BTreeMap<String, i64>;

/// Processor time.
pub const CPU: &str = "cpu";
/// Memory in bytes.
pub const MEMORY: &str = "memory";
/// How many pods.
pub const PODS: &str = "pods";

/// A pod that asks for less than this counts as asking for this when nodes are compared, so that pods that ask
/// for nothing spread as well.
const LEAST_CPU: i64 = 100;
const LEAST_MEMORY: i64 = 200 << 20;

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodInfo {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: String,
    /// What events about it refer to.
    pub reference: ObjectReference,
    /// Its node; empty for none.
    pub node: String,
    /// Where it is in its life.
    pub phase: PodPhase,
    /// Whether it has begun to run.
    pub has_begun: bool,
    /// Who is to schedule it.
    pub scheduler: String,
    /// Higher goes first.
    pub priority: i32,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// What it asks for.
    pub requests: Amounts,
    /// What it counts for when nodes are compared: processor time and memory.
    pub weight: (i64, i64),
    /// Ports of the node that it wants for itself.
    pub host_ports: Vec<HostPort>,
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Terms of which its node must meet one.
    pub required: Option<NodeSelector>,
    /// Terms that its node should meet.
    pub preferred: Vec<PreferredSchedulingTerm>,
    /// Taints that it tolerates.
    pub tolerations: Vec<Toleration>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it says about other pods.
    pub constraints: PlacementConstraints,
    /// The claims that it uses.
    pub claims: Vec<ClaimUse>,
    /// The disks that it names itself.
    pub disks: Vec<Disk>,
    /// The uid of what controls it; pods of one controller are spread.
    pub controller: Option<String>,
    /// Its condition `PodScheduled`, if that is not true.
    pub unscheduled: Option<PodCondition>,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodPhase {
    /// It is to run.
    Active,
    /// It is being deleted; it still takes room.
    Terminating,
    /// It has ended; it takes no room.
    Ended,
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The number.
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The address of the node; unspecified for all.
    pub ip: String,
}

impl PodInfo {
    /// From the API's object.
    pub fn of(names: &Names, pod: &Pod) -> Self {
        let (spec, status) = (&pod.spec, &pod.status);
        let metadata = pod.metadata();
        let node_affinity =
            spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
        let controller =
            metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
        let is_unscheduled = |c: &&PodCondition| c.type_ == "PodScheduled" && c.status != "True";
        Self {
            key: ObjectKey::of(metadata),
            uid: metadata.uid.clone(),
            reference: proto_client::events::reference(pod, names),
            node: spec.node_name.clone(),
            phase: phase(pod),
            has_begun: !matches!(status.phase.as_str(), "" | "Pending"),
            scheduler: spec.scheduler_name.clone(),
            priority: spec.priority.unwrap_or(0),
            created: metadata.creation_timestamp.unix().unwrap_or(0),
            requests: requests(pod),
            weight: weight(pod),
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
            constraints: PlacementConstraints::of(pod),
            claims: claims_of(pod),
            disks: disks::of_pod(pod),
            controller: controller.map(|owner| owner.uid.clone()),
            unscheduled: status.conditions.iter().find(is_unscheduled).cloned(),
        }
    }

    /// Whether it has a node, and is yet to run there.
    pub fn is_starting(&self) -> bool {
        !self.node.is_empty() && self.phase == PodPhase::Active && !self.has_begun
    }
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

/// The amount of a resource in its unit; less than nothing, which validation keeps out, is nothing.
pub(crate) fn amount(resource: &str, quantity: &Quantity) -> i64 {
    let amount = if resource == CPU { quantity.as_milli() } else { quantity.value() };
    amount.max(0)
}

/// Adds to a sum that stays at the largest number: what asks for more than there can be fits nowhere.
pub fn add(sum: &mut i64, amount: i64) {
    *sum = sum.saturating_add(amount);
}

/// What the pod needs at once: all containers together or the largest init container, whichever is more, and
/// its overhead.
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

fn weight(pod: &Pod) -> (i64, i64) {
    let of = |container: &Container, resource: &str, least: i64| {
        let asked = container.resources.requests.get(resource);
        asked.map_or(least, |quantity| amount(resource, quantity))
    };
    let sum = |resource, least| {
        let asked = pod.spec.containers.iter().map(|container| of(container, resource, least));
        asked.fold(0, i64::saturating_add)
    };
    (sum(CPU, LEAST_CPU), sum(MEMORY, LEAST_MEMORY))
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
pub mod examples {
    //! Pods and nodes for tests.

    use super::*;
    use crate::node_info::NodeInfo;

    /// A pending pod that asks for `cpu` thousandths and `memory` bytes.
    pub fn pod(name: &str, cpu: i64, memory: i64) -> PodInfo {
        let mut pod = Pod::default();
        pod.metadata.name = name.into();
        pod.metadata.namespace = "ns".into();
        pod.metadata.uid = format!("uid-{name}");
        pod.spec.scheduler_name = "default-scheduler".into();
        let mut container = Container::default();
        let requests = &mut container.resources.requests;
        requests.insert(CPU.into(), Quantity::from_milli(cpu));
        requests.insert(MEMORY.into(), Quantity::from_bytes(memory));
        pod.spec.containers.push(container);
        PodInfo::of(names(), &pod)
    }

    /// An empty node of 4 processors, 8 GiB and 110 pods.
    pub fn node(name: &str) -> NodeInfo {
        let allocatable = [(CPU, 4000), (MEMORY, 8 << 30), (PODS, 110)];
        NodeInfo {
            name: name.into(),
            labels: BTreeMap::from([("zone".into(), format!("zone-{name}"))]),
            allocatable: allocatable.into_iter().map(|(r, amount)| (r.into(), amount)).collect(),
            ..NodeInfo::default()
        }
    }

    /// The names of Kubernetes.
    pub fn names() -> &'static Names {
        Names::new(proto_api::names::Profile::Kubernetes)
    }
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
    fn a_pod_needs_the_larger_of_its_phases_and_the_overhead() {
        let mut pod = Pod::default();
        pod.spec.containers = vec![container("200m"), container("300m")];
        assert_eq!(requests(&pod)[CPU], 500);
        pod.spec.init_containers = vec![container("450m"), container("700m")];
        assert_eq!(requests(&pod)[CPU], 700);
        pod.spec.overhead.insert(CPU.into(), "50m".parse().unwrap());
        assert_eq!(requests(&pod)[CPU], 750);
        assert_eq!(weight(&pod), (500, 400 << 20));
    }
}
