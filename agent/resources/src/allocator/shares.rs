//! The pod resources API: allocations as seen by device monitors.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_devices::resources::{AllocationSource, PodAllocation};
use agent_node::managers::IdSet;
use agent_node::managers::container_allocation::containers;
use agent_node::managers::devices::Inventory;

use proto_api::core::v1::Pod;

use super::Allocator;

/// The node's pods with their allocations.
pub struct PodResources {
    /// The allocations.
    pub allocator: Arc<Allocator>,
    /// Returns the node's pods.
    pub pods: Box<dyn Fn() -> Vec<Pod> + Send + Sync>,
}

impl AllocationSource for PodResources {
    fn pods(&self) -> Vec<PodAllocation> {
        self.allocator.operations.record_pod_resources_request();
        let share = |pod: Pod| PodAllocation {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            containers: containers(&pod)
                .filter(|(init, _)| !init)
                .map(|(_, c)| {
                    (c.name.clone(), self.allocator.find_grant(&pod.metadata.uid, &c.name))
                })
                .collect(),
        };
        (self.pods)().into_iter().map(share).collect()
    }

    fn inventory(&self) -> Inventory {
        self.allocator.plugins().inventory()
    }

    fn cpus(&self) -> IdSet {
        self.allocator.givable_cpus()
    }

    fn memory(&self) -> BTreeMap<u32, BTreeMap<String, u64>> {
        match &self.allocator.rules.memory {
            Some(_) => self.allocator.machine.memory.clone(),
            None => BTreeMap::new(),
        }
    }
}
