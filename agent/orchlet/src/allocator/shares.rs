//! What monitors of devices see.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_devices::resources::{PodShare, Shares};
use agent_node::managers::IdSet;
use agent_node::managers::devices::Inventory;
use agent_node::managers::grant::containers;

use super::Allocator;
use crate::pods::pod_context::Parts;

/// The pods of the node with what their containers have.
pub struct Shown {
    /// Who has what.
    pub allocator: Arc<Allocator>,
    /// The pods.
    pub parts: Arc<Parts>,
}

impl Shares for Shown {
    fn pods(&self) -> Vec<PodShare> {
        self.parts.metrics.acts.monitor_asked();
        let pods = self.parts.shown_pods();
        let share = |pod: proto_api::core::v1::Pod| PodShare {
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
