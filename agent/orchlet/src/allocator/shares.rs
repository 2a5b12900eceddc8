//! The pod resources API: allocations as seen by device monitors.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_devices::resources::{AllocationSource, PodAllocation};
use agent_node::managers::IdSet;
use agent_node::managers::devices::Inventory;
use agent_node::managers::grant::containers;

use super::Allocator;
use crate::pods::pod_context::PodContext;

/// The node's pods with their allocations.
pub struct PodResources {
    /// The allocations.
    pub allocator: Arc<Allocator>,
    /// The pods.
    pub shared: Arc<PodContext>,
}

impl AllocationSource for PodResources {
    fn pods(&self) -> Vec<PodAllocation> {
        self.shared.metrics.operations.record_pod_resources_request();
        let pods = self.shared.shown_pods();
        let share = |pod: proto_api::core::v1::Pod| PodAllocation {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            containers: containers(&pod)
                .filter(|(init, _)| !init)
                .map(|(_, c)| (c.name.clone(), self.allocator.of(&pod.metadata.uid, &c.name)))
                .collect(),
        };
        pods.into_iter().map(share).collect()
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
