//! Pods and nodes for tests.

use std::collections::BTreeMap;

use proto_api::Quantity;

use proto_api::core::v1::{Container, Pod};
use proto_api::names::Names;

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;
use crate::profile::Profile;
use crate::resource_amounts::{CPU, MEMORY, PODS};

/// A pending pod that requests `cpu` millicores and `memory` bytes.
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
    PodInfo::from_pod(names(), &pod)
}

/// A node with 4 CPUs, 8 GiB and 110 pods.
pub fn node(name: &str) -> NodeInfo {
    let allocatable = [(CPU, 4000), (MEMORY, 8 << 30), (PODS, 110)];
    NodeInfo {
        name: name.into(),
        labels: BTreeMap::from([
            ("zone".into(), format!("zone-{name}")),
            (names().label("hostname"), name.into()),
        ]),
        allocatable: allocatable.into_iter().map(|(r, amount)| (r.into(), amount)).collect(),
        ..NodeInfo::default()
    }
}

/// The names of Kubernetes.
pub fn names() -> &'static Names {
    Names::new(proto_api::names::Profile::Kubernetes)
}

/// The default profile.
pub fn profile() -> Profile {
    Profile::new(names(), "default-scheduler")
}
