//! The nodes of a scheduling cycle with the pods that are assigned to them.

use std::collections::{BTreeMap, HashMap};
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

/// Assigns the pods to their nodes. The loads are in the order of the nodes' names.
pub fn load(nodes: &[Arc<NodeInfo>], pods: &[Arc<PodInfo>]) -> Vec<NodeLoad> {
    let by_name: BTreeMap<&str, &Arc<NodeInfo>> =
        nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let mut loads: Vec<NodeLoad> =
        by_name.values().map(|node| NodeLoad::empty((*node).clone())).collect();
    // There are many more pods than nodes: each is found by a hash.
    let indices: HashMap<&str, usize> = by_name.into_keys().zip(0..).collect();
    for pod in pods.iter().filter(|pod| pod.phase != PodPhase::Ended) {
        let nth = indices.get(pod.node.as_str());
        if let Some(load) = nth.and_then(|nth| loads.get_mut(*nth)) {
            load.add(pod.clone());
        }
    }
    loads
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
            match self.requested.get_mut(resource) {
                Some(sum) => add(sum, *amount),
                None => drop(self.requested.insert(resource.clone(), *amount)),
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{node, pod};

    #[test]
    fn pods_count_on_their_nodes_until_they_end() {
        let nodes = ["b", "a", "c"].map(|name| Arc::new(node(name)));
        let on = |name: &str, node: &str, phase| {
            Arc::new(PodInfo { node: node.into(), phase, ..pod(name, 100, 1 << 20) })
        };
        let gpu = PodInfo { requests: [("example.com/gpu".into(), 2)].into(), ..pod("g", 0, 0) };
        let pods = [
            on("p", "b", PodPhase::Active),
            on("q", "b", PodPhase::Terminating),
            on("r", "b", PodPhase::Ended),
            on("s", "gone", PodPhase::Active),
            on("t", "", PodPhase::Active),
            Arc::new(PodInfo { node: "b".into(), ..gpu }),
        ];
        let loads = load(&nodes, &pods);
        let seen = |load: &NodeLoad| {
            let pods: Vec<&str> = load.pods.iter().map(|pod| pod.key.name.as_str()).collect();
            format!("{}: {} {}", load.node.name, load.pod_count, pods.join(" "))
        };
        assert_eq!(loads.iter().map(seen).collect::<Vec<_>>(), ["a: 0 ", "b: 3 p q g", "c: 0 "]);
        let sums = [("cpu", 200), ("example.com/gpu", 2), ("memory", 2 << 20)];
        let sums: Amounts = sums.map(|(resource, sum)| (resource.to_owned(), sum)).into();
        assert_eq!(loads[1].requested, sums);
        assert!(loads[0].requested.is_empty());
    }
}
