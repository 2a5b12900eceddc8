//! The nodes of a scheduling cycle with the pods that are assigned to them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host_ports::HostPorts;
use crate::node_info::NodeInfo;
use crate::pod_info::{PodInfo, PodPhase};
use crate::resource_amounts::{Amounts, add};
use crate::volume_restrictions::Disks;

/// Which state of a load it is: two with the same stamp have the same pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoadStamp(u64);

impl LoadStamp {
    /// One that no load has.
    fn unused() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A node and its pods.
#[derive(Clone, Debug)]
pub struct NodeLoad {
    /// The projected node.
    pub node: Arc<NodeInfo>,
    /// The sum of the pods' requests.
    pub requested: Amounts,
    /// The number of pods.
    pub pod_count: i64,
    /// The sum of the pods' CPU and memory for scoring, with defaults for pods without requests.
    pub weight: (i64, i64),
    /// The host ports in use.
    pub ports: HostPorts,
    /// The disks that the pods mount.
    pub disks: Disks,
    pub pods: Vec<Arc<PodInfo>>,
    /// Those of them whose constraints concern other pods. Each pod that is scheduled looks at these of all nodes.
    pub constraining: Vec<Arc<PodInfo>>,
    stamp: LoadStamp,
}

/// Assigns the pods to their nodes.
pub fn load(nodes: Vec<Arc<NodeInfo>>, pods: &[Arc<PodInfo>]) -> Vec<NodeLoad> {
    let mut loads: BTreeMap<String, NodeLoad> = BTreeMap::new();
    for node in nodes {
        loads.insert(node.name.clone(), NodeLoad::empty(node));
    }
    for pod in pods.iter().filter(|pod| pod.phase != PodPhase::Ended) {
        if let Some(load) = loads.get_mut(&pod.node) {
            load.add(pod.clone());
        }
    }
    loads.into_values().collect()
}

impl NodeLoad {
    /// A node without pods.
    pub fn empty(node: Arc<NodeInfo>) -> Self {
        Self {
            node,
            requested: Amounts::new(),
            pod_count: 0,
            weight: (0, 0),
            ports: HostPorts::default(),
            disks: Disks::default(),
            pods: Vec::new(),
            constraining: Vec::new(),
            stamp: LoadStamp::unused(),
        }
    }

    /// The node without some of its pods.
    #[must_use]
    pub fn without(&self, leaves: impl Fn(&PodInfo) -> bool) -> Self {
        let mut left = Self::empty(self.node.clone());
        self.pods.iter().filter(|pod| !leaves(pod)).for_each(|pod| left.add(pod.clone()));
        left
    }

    /// Which state of the load this is.
    pub fn stamp(&self) -> LoadStamp {
        self.stamp
    }

    /// Adds a pod.
    pub fn add(&mut self, pod: impl Into<Arc<PodInfo>>) {
        let pod: Arc<PodInfo> = pod.into();
        for (resource, amount) in &pod.requests {
            add(self.requested.entry(resource.clone()).or_default(), *amount);
        }
        add(&mut self.pod_count, 1);
        add(&mut self.weight.0, pod.weight.0);
        add(&mut self.weight.1, pod.weight.1);
        pod.host_ports.iter().for_each(|port| self.ports.add(port));
        pod.disks.iter().for_each(|disk| self.disks.add(disk));
        if pod.constraints.concern_others() {
            self.constraining.push(pod.clone());
        }
        self.pods.push(pod);
        self.stamp = LoadStamp::unused();
    }
}
