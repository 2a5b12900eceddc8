//! Rules for nodes, leases, volumes and claims.

use std::collections::BTreeSet;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::value::{Map, Path, Value};

const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "PreferNoSchedule"];
const ACCESS_MODES: &[&str] =
    &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

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
        errors.one_of(&here.field("effect"), effect, EFFECTS);
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

/// The ranges and the provider's id of a node are set once.
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

pub(super) fn check_persistent_volume(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_access_modes(spec, &path, errors);
    if spec.map("capacity").is_none_or(|capacity| !capacity.contains("storage")) {
        let capacity = path.field("capacity");
        errors.required(&capacity.key("storage"), "");
    }
    let policies = &["Delete", "Recycle", "Retain"];
    let field = "persistentVolumeReclaimPolicy";
    errors.one_of(&path.field(field), spec.str(field), policies);
    let sources = spec.iter().filter(|(key, _)| {
        !matches!(
            *key,
            "accessModes"
                | "capacity"
                | "claimRef"
                | "mountOptions"
                | "nodeAffinity"
                | "persistentVolumeReclaimPolicy"
                | "storageClassName"
                | "volumeMode"
        )
    });
    match sources.count() {
        0 => errors.required(&path, "must specify a volume type"),
        1 => {}
        _ => errors.forbidden(&path, "may not specify more than 1 volume type"),
    }
}

pub(super) fn check_claim(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_access_modes(spec, &path, errors);
    if spec.at(&["resources", "requests", "storage"]).is_none() {
        let resources = path.field("resources");
        errors.required(&resources.key("storage"), "");
    }
    let class = spec.str("storageClassName");
    if !class.is_empty() {
        errors.complaints(&path.field("storageClassName"), class, names::dns_subdomain(class));
    }
}

fn check_access_modes(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("accessModes");
    if spec.list("accessModes").is_empty() {
        errors.required(&list, "at least 1 access mode is required");
    }
    for (at, mode) in spec.list("accessModes").iter().filter_map(Value::as_str).enumerate() {
        if !ACCESS_MODES.contains(&mode) {
            errors.not_supported(&list.index(at), mode, ACCESS_MODES);
        }
    }
}

/// A bound claim changes its request only; an unbound one may be bound.
pub(super) fn check_claim_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let fixed = |object: &Object| {
        let mut spec = object.spec().cloned().unwrap_or_default();
        spec.remove("resources");
        spec
    };
    let (before, mut after) = (fixed(old), fixed(new));
    if before.str("volumeName").is_empty() {
        after.remove("volumeName");
    }
    if before != after {
        let path = Path::ROOT;
        let detail = "spec is immutable after creation except resources.requests for bound claims";
        errors.forbidden(&path.field("spec"), detail);
    }
}
