//! Whether a pod may run on a node by its node selector, its required node affinity and the taints that it tolerates.

use apiserver_scheduling::node_selector::matches_term;
use apiserver_scheduling::taints::tolerates;
use proto_api::core::v1::{Affinity, Node, NodeSelector, PodSpec, Toleration};

/// Whether the node matches the pod's node selector and required node affinity.
pub(crate) fn matches_selectors(spec: &PodSpec, node: &Node) -> bool {
    let has = |(key, value): (&String, &String)| node.metadata.labels.get(key) == Some(value);
    let required = required(spec.affinity.as_ref());
    spec.node_selector.iter().all(has)
        && required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|term| matches_term(term, &node.metadata.name, &node.metadata.labels))
        })
}

/// The required node affinity.
pub(crate) fn required(affinity: Option<&Affinity>) -> Option<&NodeSelector> {
    let affinity = affinity?.node_affinity.as_ref()?;
    affinity.required_during_scheduling_ignored_during_execution.as_ref()
}

/// Whether the tolerations match each taint of the node with one of these effects.
pub(crate) fn tolerates_all(tolerations: &[Toleration], node: &Node, effects: &[&str]) -> bool {
    let mut taints = node.spec.taints.iter().filter(|taint| effects.contains(&&*taint.effect));
    taints.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}
