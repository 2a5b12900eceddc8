//! Validation of affinity and topology spread constraints.

use std::collections::BTreeSet;

use super::{FieldErrors, names, numbers, selector};
use crate::enums;
use crate::value::{Map, Path, Value};

const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

/// Validates `affinity` of a pod's spec.
pub(super) fn check(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(affinity) = spec.map("affinity") else { return };
    let path = path.field("affinity");
    if let Some(nodes) = affinity.map("nodeAffinity") {
        check_node_affinity(nodes, &path.field("nodeAffinity"), errors);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        if let Some(pods) = affinity.map(field) {
            check_pod_affinity(pods, &path.field(field), errors);
        }
    }
}

fn check_node_affinity(affinity: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if let Some(required) = affinity.map(REQUIRED) {
        selector::check_nodes(required, &path.field(REQUIRED), errors);
    }
    let list = path.field(PREFERRED);
    let empty = Map::new();
    for (at, term) in affinity.maps(PREFERRED).enumerate() {
        let here = list.index(at);
        check_weight(term, &here, errors);
        let preference = term.map("preference").unwrap_or(&empty);
        selector::check_node_term(preference, &here.field("preference"), errors);
    }
}

fn check_pod_affinity(affinity: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field(REQUIRED);
    for (at, term) in affinity.maps(REQUIRED).enumerate() {
        check_pod_term(term, &list.index(at), errors);
    }
    let list = path.field(PREFERRED);
    let empty = Map::new();
    for (at, weighted) in affinity.maps(PREFERRED).enumerate() {
        let here = list.index(at);
        check_weight(weighted, &here, errors);
        let term = weighted.map("podAffinityTerm").unwrap_or(&empty);
        check_pod_term(term, &here.field("podAffinityTerm"), errors);
    }
}

fn check_weight(term: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let weight = term.int("weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.field("weight"), weight, "must be in the range 1-100");
    }
}

fn check_pod_term(term: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["labelSelector", "namespaceSelector"] {
        selector::check(term.map(field), &path.field(field), errors);
    }
    for name in term.list("namespaces").iter().filter_map(Value::as_str) {
        errors.complaints(&path.field("namespace"), name, names::dns_label(name));
    }
    let key = term.str("topologyKey");
    if key.is_empty() {
        errors.required(&path.field("topologyKey"), "can not be empty");
    }
    errors.complaints(&path.field("topologyKey"), key, names::qualified_name(key));
}

fn check_topology_key(term: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (key, here) = (term.str("topologyKey"), path.field("topologyKey"));
    if key.is_empty() {
        errors.required(&here, "can not be empty");
    } else {
        errors.complaints(&here, key, names::qualified_name(key));
    }
}

/// Validates `topologySpreadConstraints`.
pub(super) fn check_spread(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("topologySpreadConstraints");
    let mut seen = BTreeSet::new();
    for (at, constraint) in spec.maps("topologySpreadConstraints").enumerate() {
        let here = list.index(at);
        if !constraint.contains("maxSkew") {
            errors.invalid(&here.field("maxSkew"), 0, "must be greater than zero");
        }
        for field in ["maxSkew", "minDomains"] {
            numbers::positive(constraint, field, &here, errors);
        }
        check_topology_key(constraint, &here, errors);
        let action = constraint.str("whenUnsatisfiable");
        let actions = enums::UNSATISFIABLE_ACTIONS;
        if !actions.contains(&action) {
            errors.not_supported(&here.field("whenUnsatisfiable"), action, actions);
        }
        if let Some(domains) = constraint.int("minDomains").filter(|_| action != "DoNotSchedule") {
            let detail =
                format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            errors.invalid(&here.field("minDomains"), domains, &detail);
        }
        let key = constraint.str("topologyKey");
        if !seen.insert((key, action)) {
            errors.duplicate(&here, format!("{{{key}, {action}}}"));
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policy = constraint.str(field);
            if constraint.contains(field) && !enums::INCLUSION_POLICIES.contains(&policy) {
                errors.not_supported(&here.field(field), policy, enums::INCLUSION_POLICIES);
            }
        }
        selector::check(constraint.map("labelSelector"), &here.field("labelSelector"), errors);
    }
}
