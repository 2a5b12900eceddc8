//! An index of pods by node: a change of one node takes time in the number of its pods, not of all pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::ObjectKey;
use proto_api::core::v1::Pod;

/// Pod keys by node name. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct PodsByNode(Arc<Mutex<BTreeMap<String, BTreeSet<ObjectKey>>>>);

impl PodsByNode {
    /// Applies a change of a pod.
    pub fn apply(&self, key: &ObjectKey, old: Option<&Pod>, new: Option<&Pod>) {
        let node = |pod: Option<&Pod>| {
            pod.map(|pod| pod.spec.node_name.clone()).filter(|node| !node.is_empty())
        };
        let (old, new) = (node(old), node(new));
        if old == new {
            return;
        }
        let mut placed = self.lock();
        if let Some(old) = old
            && let Some(keys) = placed.get_mut(&old)
        {
            keys.remove(key);
            if keys.is_empty() {
                placed.remove(&old);
            }
        }
        if let Some(new) = new {
            placed.entry(new).or_default().insert(key.clone());
        }
    }

    /// The keys of the pods of a node.
    pub fn on(&self, node: &str) -> Vec<ObjectKey> {
        self.lock().get(node).into_iter().flatten().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeSet<ObjectKey>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_indexed_by_node() {
        let pod = |node: &str| {
            let mut pod = Pod::default();
            pod.spec.node_name = node.into();
            pod
        };
        let (placed, key) = (PodsByNode::default(), ObjectKey::new("ns", "a"));
        placed.apply(&key, None, Some(&pod("")));
        assert!(placed.lock().is_empty());
        placed.apply(&key, Some(&pod("")), Some(&pod("n1")));
        placed.apply(&ObjectKey::new("ns", "b"), None, Some(&pod("n1")));
        assert_eq!(placed.on("n1").len(), 2);
        // A new pod of the same name on another node.
        placed.apply(&key, Some(&pod("n1")), Some(&pod("n2")));
        assert_eq!((placed.on("n1").len(), placed.on("n2")), (1, vec![key.clone()]));
        placed.apply(&key, Some(&pod("n2")), None);
        placed.apply(&ObjectKey::new("ns", "b"), Some(&pod("n1")), None);
        assert!(placed.lock().is_empty(), "nothing is kept of nodes without pods");
    }
}
