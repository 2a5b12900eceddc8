//! Node selectors and node affinity; the DaemonSet controller uses them, too.

use std::collections::BTreeMap;

use proto_api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::node_info::NodeInfo;
use crate::pod_info::PodInfo;

/// Whether the node matches the pod's node selector and required node affinity.
pub fn matches_selector(pod: &PodInfo, node: &NodeInfo) -> bool {
    let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
    pod.node_selector.iter().all(has)
        && pod.required.as_ref().is_none_or(|required| matches_required(required, node))
}

/// Whether the node matches one of the terms.
pub fn matches_required(required: &NodeSelector, node: &NodeInfo) -> bool {
    let mut terms = required.node_selector_terms.iter();
    terms.any(|term| matches_term(term, &node.name, &node.labels))
}

/// The field that selects a node by its name.
pub const NAME_FIELD: &str = "metadata.name";

/// Whether the node of this name and these labels meets all requirements of a term; an empty term matches nothing.
pub fn matches_term(
    term: &NodeSelectorTerm,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    let empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
    let label = |key: &str| labels.get(key).map(String::as_str);
    let field = |key: &str| (key == NAME_FIELD).then_some(name);
    !empty
        && term
            .match_expressions
            .iter()
            .all(|requirement| meets(requirement, label(&requirement.key)))
        && term.match_fields.iter().all(|requirement| meets(requirement, field(&requirement.key)))
}

fn meets(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| requirement.values.iter().any(|other| other == value));
    let compare = |holds: fn(i64, i64) -> bool| {
        let bound = requirement.values.first().and_then(|bound| bound.parse().ok());
        let value = value.and_then(|value| value.parse().ok());
        bound.zip(value).is_some_and(|(bound, value)| holds(value, bound))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|value, bound| value > bound),
        "Lt" => compare(|value, bound| value < bound),
        _ => false,
    }
}
