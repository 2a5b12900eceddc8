//! Validation of label selectors and node selectors.

use super::{FieldErrors, metadata, names};
use crate::enums;
use crate::value::{Map, Path, Value};

const WITH_VALUES: &str = "must be specified when `operator` is 'In' or 'NotIn'";
const WITHOUT_VALUES: &str = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";

/// Validates a label selector, if set.
pub(super) fn check(selector: Option<&Map>, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(selector) = selector else { return };
    if let Some(labels) = selector.map("matchLabels") {
        metadata::check_labels(labels, &path.field("matchLabels"), errors);
    }
    let list = path.field("matchExpressions");
    for (at, requirement) in selector.maps("matchExpressions").enumerate() {
        let here = list.index(at);
        let (key, operator) = (requirement.str("key"), requirement.str("operator"));
        let values = requirement.list("values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&here.field("values"), WITH_VALUES);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(&here.field("values"), WITHOUT_VALUES);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.invalid(&here.field("operator"), other, "not a valid selector operator");
            }
        }
        errors.complaints(&here.field("key"), key, names::qualified_name(key));
        let values_path = here.field("values");
        for (at, value) in values.iter().filter_map(Value::as_str).enumerate() {
            errors.complaints(&values_path.index(at), value, names::label_value(value));
        }
    }
}

/// Validates a node selector, which has at least one term.
pub(super) fn check_nodes(selector: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("nodeSelectorTerms");
    if selector.list("nodeSelectorTerms").is_empty() {
        errors.required(&list, "must have at least one node selector term");
    }
    for (at, term) in selector.maps("nodeSelectorTerms").enumerate() {
        check_node_term(term, &list.index(at), errors);
    }
}

/// Validates a term of a node selector.
pub(super) fn check_node_term(term: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("matchExpressions");
    for (at, requirement) in term.maps("matchExpressions").enumerate() {
        check_node_labels(requirement, &list.index(at), errors);
    }
    let list = path.field("matchFields");
    for (at, requirement) in term.maps("matchFields").enumerate() {
        check_node_field(requirement, &list.index(at), errors);
    }
}

fn check_node_labels(requirement: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let values = requirement.list("values");
    let here = path.field("values");
    match requirement.str("operator") {
        "In" | "NotIn" if values.is_empty() => errors.required(&here, WITH_VALUES),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(&here, WITHOUT_VALUES),
        "Gt" | "Lt" if values.len() != 1 => {
            let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.required(&here, detail);
        }
        known if enums::NODE_OPERATORS.contains(&known) => {}
        other => errors.invalid(&path.field("operator"), other, "not a valid selector operator"),
    }
    let key = requirement.str("key");
    errors.complaints(&path.field("key"), key, names::qualified_name(key));
}

/// Validates a field requirement: only `metadata.name` is selectable.
fn check_node_field(requirement: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    match requirement.str("operator") {
        "In" | "NotIn" if requirement.list("values").len() != 1 => {
            let detail =
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&path.field("values"), detail);
        }
        "In" | "NotIn" => {}
        other => errors.invalid(&path.field("operator"), other, "not a valid selector operator"),
    }
    let key = requirement.str("key");
    if key != "metadata.name" {
        errors.invalid(&path.field("key"), key, "not a valid field selector key");
        return;
    }
    let values = path.field("values");
    for (at, value) in requirement.list("values").iter().filter_map(Value::as_str).enumerate() {
        errors.complaints(&values.index(at), value, names::dns_subdomain(value));
    }
}
