//! Nominated pods: they wait on a node for the end of others, and count for pods that are no more important.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;

/// Nodes for which pods end, by the uid of the pod that waits for it, until the watch shows the nomination.
#[derive(Debug, Default)]
pub struct Nominations(BTreeMap<String, String>);

impl Nominations {
    /// The node nominated for the pod; empty for none.
    pub fn node_of<'a>(&'a self, pod: &'a PodInfo) -> &'a str {
        self.0.get(&pod.uid).unwrap_or(&pod.nominated)
    }

    /// Notes a nomination that is written now; empty for none.
    pub fn set(&mut self, pod: &PodInfo, node: &str) {
        self.0.insert(pod.uid.clone(), node.to_owned());
    }

    /// Forgets what the cache shows, and the pods that do not wait any more. `shown` is the pod of a uid if it has no node.
    pub fn forget_shown(&mut self, shown: &BTreeMap<&str, &Arc<PodInfo>>) {
        self.0
            .retain(|uid, node| shown.get(uid.as_str()).is_some_and(|pod| pod.nominated != *node));
    }
}

/// The loads with the pods in `nominated` that are at least as important as `pod`; none if there are none.
pub fn with_nominated(
    pod: &PodInfo,
    loads: &[NodeLoad],
    nominated: &[Arc<PodInfo>],
) -> Option<Vec<NodeLoad>> {
    let counts = |other: &&Arc<PodInfo>| other.priority >= pod.priority && other.uid != pod.uid;
    let mut counted = nominated.iter().filter(counts).peekable();
    counted.peek()?;
    let mut with = loads.to_vec();
    for other in counted {
        if let Some(load) = with.iter_mut().find(|load| load.node.name == other.node) {
            load.add(other.clone());
        }
    }
    Some(with)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::{node, pod};

    #[test]
    fn nominated_pods_count_for_pods_that_are_no_more_important() {
        let mut load = NodeLoad::empty(Arc::new(node("n0")));
        load.add(pod("p0", 3000, 0));
        let loads = [load];
        let nominated =
            vec![Arc::new(PodInfo { node: "n0".into(), priority: 5, ..pod("n", 1000, 0) })];
        let cpu = |priority| {
            let pod = PodInfo { priority, ..pod("p", 1, 0) };
            with_nominated(&pod, &loads, &nominated).map(|with| with[0].requested["cpu"])
        };
        assert_eq!((cpu(4), cpu(5), cpu(6)), (Some(4000), Some(4000), None));
        assert!(with_nominated(&nominated[0], &loads, &nominated).is_none(), "not beside itself");
    }
}
