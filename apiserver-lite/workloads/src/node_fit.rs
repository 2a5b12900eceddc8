//! Whether a pod may run on a node by its node selector, its required node affinity and the taints that it tolerates.

use apiserver_controllers::taint_manager::tolerates;
use proto_api::core::v1::{
    Affinity, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration,
};

/// The field that selects a node by its name.
pub(crate) const NAME_FIELD: &str = "metadata.name";

/// Whether the node matches the pod's node selector and required node affinity.
pub(crate) fn matches_selectors(spec: &PodSpec, node: &Node) -> bool {
    let has = |(key, value): (&String, &String)| node.metadata.labels.get(key) == Some(value);
    let required = required(spec.affinity.as_ref());
    spec.node_selector.iter().all(has)
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| matches_term(term, node))
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

/// Whether the node meets all requirements of a term; an empty term matches nothing.
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    let label = |key: &str| node.metadata.labels.get(key).map(String::as_str);
    let field = |key: &str| (key == NAME_FIELD).then_some(node.metadata.name.as_str());
    !is_empty
        && term
            .match_expressions
            .iter()
            .all(|requirement| meets(requirement, label(&requirement.key)))
        && term.match_fields.iter().all(|requirement| meets(requirement, field(&requirement.key)))
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let is_listed =
        value.is_some_and(|value| requirement.values.iter().any(|other| other == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = requirement.values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        bound.zip(value).is_some_and(|(bound, value)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}
