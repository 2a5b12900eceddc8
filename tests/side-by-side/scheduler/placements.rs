//! What placements are like that are all valid: how even, how preferred, and in which order.

use proto_api::core::v1::{Node, Pod};

use super::judge;
use super::objects::CLASS;

/// What can be told of valid placements.
pub struct Qualities {
    /// Requested share of the processors of the emptiest and of the fullest node, in percent.
    pub cpu_range: (f64, f64),
    /// Of the pods that prefer nodes, how many are on one, in percent.
    pub preferred: f64,
    /// Of as many pods as there are with a priority, the first to be bound: how many have it, in percent.
    pub first: f64,
}

impl Qualities {
    /// Of pods on nodes.
    pub fn new(nodes: &[Node], pods: &[Pod]) -> Self {
        let shares = nodes.iter().map(|node| cpu_share(node, pods));
        let cpu_range = shares.fold((100.0, 0.0), |(least, most), share| {
            (f64::min(least, share), f64::max(most, share))
        });
        let preferring: Vec<bool> =
            pods.iter().filter_map(|pod| is_preferred(nodes, pod)).collect();
        let mut order: Vec<&Pod> = pods.iter().collect();
        // The last write to each pod is its binding.
        order.sort_by_key(|pod| pod.metadata.resource_version.parse::<u64>().unwrap_or_default());
        let has_priority = |pod: &&Pod| pod.spec.priority_class_name == CLASS;
        let with = pods.iter().filter(|pod| has_priority(pod)).count();
        let early = order.iter().take(with).filter(|pod| has_priority(pod)).count();
        let happy = preferring.iter().filter(|is_preferred| **is_preferred).count();
        Self { cpu_range, preferred: percent(happy, preferring.len()), first: percent(early, with) }
    }
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn cpu_share(node: &Node, pods: &[Pod]) -> f64 {
    let on_node = pods.iter().filter(|pod| pod.spec.node_name == node.metadata.name);
    let requests = on_node.flat_map(|pod| &pod.spec.containers).map(|c| &c.resources.requests);
    let sum: i64 = requests.filter_map(|r| r.get("cpu")).map(|amount| amount.as_milli()).sum();
    let room = node.status.allocatable.get("cpu").map_or(0, |amount| amount.as_milli());
    100.0 * sum as f64 / room.max(1) as f64
}

/// Whether a pod is on a node that it prefers by its node affinity, if it prefers some.
fn is_preferred(nodes: &[Node], pod: &Pod) -> Option<bool> {
    let affinity = pod.spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.preferred_during_scheduling_ignored_during_execution;
    let node = nodes.iter().find(|node| node.metadata.name == pod.spec.node_name)?;
    let selected = |node| terms.iter().any(|term| judge::term_selects(&term.preference, node));
    (!terms.is_empty()).then(|| selected(node))
}
