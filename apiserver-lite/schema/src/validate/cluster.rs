//! Validation of Nodes, Leases and Events.

use std::collections::BTreeSet;

use super::{FieldErrors, names};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

pub(super) fn check_node(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let mut seen = BTreeSet::new();
    let taints = path.field("taints");
    for (at, taint) in spec.maps("taints").enumerate() {
        let here = taints.index(at);
        let (key, value, effect) = (taint.str("key"), taint.str("value"), taint.str("effect"));
        errors.complaints(&here.field("key"), key, names::qualified_name(key));
        errors.complaints(&here.field("value"), value, names::label_value(value));
        errors.one_of(&here.field("effect"), effect, enums::TAINT_EFFECTS);
        if !seen.insert((key, effect)) {
            errors.duplicate(&here, format!("{key}:{effect}"));
        }
    }
    let list = path.field("podCIDRs");
    for (at, range) in spec.list("podCIDRs").iter().filter_map(Value::as_str).enumerate() {
        errors.complaints(&list.index(at), range, names::cidr(range));
    }
    if let Some(first) = spec.list("podCIDRs").first().and_then(Value::as_str)
        && !spec.str("podCIDR").is_empty()
        && first != spec.str("podCIDR")
    {
        errors.invalid(&list.index(0), first, "must match `podCIDR`");
    }
}

/// Checks that `podCIDRs` and `providerID` of a node are set only once.
pub(super) fn check_node_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    for (field, detail) in [
        ("podCIDRs", "node updates may not change podCIDR except from \"\" to valid"),
        ("providerID", "node updates may not change providerID except from \"\" to valid"),
    ] {
        let before = old.fields.at(&["spec", field]);
        if before.is_some() && before != new.fields.at(&["spec", field]) {
            errors.forbidden(&path.field(field), detail);
        }
    }
}

/// Checks that an event is in the namespace of its object; one without a namespace has its events in `default`.
pub(super) fn check_event(object: &Object, errors: &mut FieldErrors) {
    let own = object.str_at(&["metadata", "namespace"]);
    let empty = Map::new();
    let about = object.fields.map("involvedObject").unwrap_or(&empty);
    let namespace = about.str("namespace");
    let fits = match namespace {
        "" => own == "default",
        _ => own == namespace,
    };
    if !fits {
        let path = Path::ROOT;
        let path = path.field("involvedObject");
        errors.invalid(&path.field("namespace"), namespace, "does not match event.namespace");
    }
}

pub(super) fn check_lease(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    if let Some(seconds) = spec.int("leaseDurationSeconds").filter(|&seconds| seconds <= 0) {
        errors.invalid(&path.field("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = spec.int("leaseTransitions").filter(|&count| count < 0) {
        errors.invalid(
            &path.field("leaseTransitions"),
            count,
            "must be greater than or equal to 0",
        );
    }
}
