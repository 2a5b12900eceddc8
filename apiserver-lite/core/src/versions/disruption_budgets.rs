//! PodDisruptionBudgets: an empty selector selects no pod in policy/v1beta1, and all pods in v1.
//!
//! Each version has its own form of what the other one says by an empty selector: one requirement on a label that no pod has.

use apiserver_schema::{Map, Value};
use proto_api::names::Names;

/// The label of those requirements, below the domain `pdb`.
const LABEL: &str = "deprecated-v1beta1-empty-selector-match";

/// Operator of the selector of v1 that selects no pod.
const NO_POD: &str = "Exists";
/// Operator of the selector of v1beta1 that selects all pods.
const ALL_PODS: &str = "DoesNotExist";

pub(super) fn v1beta1_to_v1(names: &Names, fields: &mut Map) {
    let label = names.sub_label("pdb", LABEL);
    let Some(selector) = selector(fields) else { return };
    if selector.is_empty() {
        *selector = requirement(&label, NO_POD);
    } else if *selector == requirement(&label, ALL_PODS) {
        *selector = Map::new();
    } else if let Some(requirements) = selector.list_mut("matchExpressions") {
        // Beside others such a requirement says nothing, and is not the user's.
        requirements.retain(|one| one.as_map().is_none_or(|one| one.str("key") != label.as_str()));
        if requirements.is_empty() {
            selector.remove("matchExpressions");
        }
    }
}

pub(super) fn v1_to_v1beta1(names: &Names, fields: &mut Map) {
    let label = names.sub_label("pdb", LABEL);
    let Some(selector) = selector(fields) else { return };
    if selector.is_empty() {
        *selector = requirement(&label, ALL_PODS);
    } else if *selector == requirement(&label, NO_POD) {
        *selector = Map::new();
    }
}

fn selector(fields: &mut Map) -> Option<&mut Map> {
    fields.map_mut("spec")?.map_mut("selector")
}

/// A selector with this requirement only.
fn requirement(label: &str, operator: &str) -> Map {
    let requirement: Map =
        [("key", Value::from(label)), ("operator", operator.into())].into_iter().collect();
    [("matchExpressions", vec![Value::from(requirement)])].into_iter().collect()
}
