//! The nodes and what is already on them, as one pass sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::node_info::NodeInfo;
use crate::pod_info::{Amounts, PodInfo, PodPhase, add};
use crate::ports::Ports;
use crate::volumes::disks::Disks;

/// A node and its load.
#[derive(Clone, Debug)]
pub struct NodeLoad {
    /// The node.
    pub node: Arc<NodeInfo>,
    /// What its pods ask for together.
    pub requested: Amounts,
    /// How many pods it has.
    pub pods: i64,
    /// What its pods count for when nodes are compared: processor time and memory.
    pub weight: (i64, i64),
    /// Ports that are taken.
    pub ports: Ports,
    /// Disks that its pods name.
    pub disks: Disks,
    /// Its pods.
    pub residents: Vec<Arc<PodInfo>>,
    /// Pods by the uid of what controls them.
    pub by_controller: BTreeMap<String, i64>,
}

/// All nodes with their loads.
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
    /// Without pods.
    pub fn empty(node: Arc<NodeInfo>) -> Self {
        Self {
            node,
            requested: Amounts::new(),
            pods: 0,
            weight: (0, 0),
            ports: Ports::default(),
            disks: Disks::default(),
            residents: Vec::new(),
            by_controller: BTreeMap::new(),
        }
    }

    /// With one pod more.
    pub fn add(&mut self, pod: impl Into<Arc<PodInfo>>) {
        let pod: Arc<PodInfo> = pod.into();
        for (resource, amount) in &pod.requests {
            add(self.requested.entry(resource.clone()).or_default(), *amount);
        }
        add(&mut self.pods, 1);
        add(&mut self.weight.0, pod.weight.0);
        add(&mut self.weight.1, pod.weight.1);
        pod.host_ports.iter().for_each(|port| self.ports.add(port));
        pod.disks.iter().for_each(|disk| self.disks.add(disk));
        if let Some(controller) = &pod.controller {
            add(self.by_controller.entry(controller.clone()).or_default(), 1);
        }
        self.residents.push(pod);
    }
}
