//! Validation of StorageClasses, CSIDrivers, CSINodes and RuntimeClasses.

use std::collections::{BTreeMap, BTreeSet};

use super::volume_source::check_driver_name;
use super::{FieldErrors, metadata, names, numbers, resources};
use crate::enums;
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Most parameters of a StorageClass.
const PARAMETERS_MAX: usize = 512;
/// Most bytes of a StorageClass's parameters, keys and values.
const PARAMETERS_LEN_MAX: usize = 256 * 1024;

pub(super) fn check_storage(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let fields = &object.fields;
    let provisioner = fields.str("provisioner");
    if provisioner.is_empty() {
        errors.required(&path.field("provisioner"), "");
    } else {
        let lower = provisioner.to_lowercase();
        let wrong = names::qualified_name(&lower);
        errors.complaints(&path.field("provisioner"), provisioner, wrong);
    }
    let here = path.field("parameters");
    let parameters = || fields.map("parameters").into_iter().flat_map(Map::iter);
    let lens = parameters()
        .map(|(key, value)| key.len().saturating_add(value.as_str().map_or(0, str::len)));
    let len = lens.fold(0, usize::saturating_add);
    if parameters().count() > PARAMETERS_MAX {
        errors.too_long(&here, PARAMETERS_MAX);
    } else if len > PARAMETERS_LEN_MAX {
        errors.too_long(&here, PARAMETERS_LEN_MAX);
    }
    if parameters().any(|(key, _)| key.is_empty()) {
        errors.invalid(&here, "", "field can not be empty.");
    }
    for (field, supported) in
        [("reclaimPolicy", &["Delete", "Retain"][..]), ("volumeBindingMode", enums::BINDING_MODES)]
    {
        errors.one_of(&path.field(field), fields.str(field), supported);
    }
    check_topologies(fields, &path.field("allowedTopologies"), errors);
}

/// Checks the topologies of a StorageClass: no two equal ones, each with expressions of different keys and values.
fn check_topologies(fields: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let mut terms: BTreeSet<BTreeMap<&str, BTreeSet<&str>>> = BTreeSet::new();
    for (at, term) in fields.maps("allowedTopologies").enumerate() {
        let here = path.index(at);
        let list = here.field("matchLabelExpressions");
        let mut keys: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (at, expression) in term.maps("matchLabelExpressions").enumerate() {
            let here = list.index(at);
            let key = expression.str("key");
            let values = here.field("values");
            if expression.list("values").is_empty() {
                errors.required(&values, "");
            }
            let mut seen = BTreeSet::new();
            let texts = expression.list("values").iter().filter_map(Value::as_str);
            for (at, value) in texts.enumerate() {
                if !seen.insert(value) {
                    errors.duplicate(&values.index(at), value);
                }
            }
            errors.complaints(&here.field("key"), key, names::qualified_name(key));
            if keys.insert(key, seen).is_some() {
                errors.duplicate(&here.field("key"), key);
            }
        }
        // An empty term is equal to nothing that is said, and refused as one.
        if keys.is_empty() || !terms.insert(keys) {
            errors.duplicate(&list, "");
        }
    }
}

/// Checks that the immutable fields of a StorageClass are unchanged.
pub(super) fn check_storage_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        if old.fields.get(field) != new.fields.get(field) {
            errors.forbidden(&path.field(field), &format!("updates to {field} are forbidden."));
        }
    }
    let field = "volumeBindingMode";
    if old.fields.get(field) != new.fields.get(field) {
        errors.invalid(&path.field(field), new.fields.str(field), "field is immutable");
    }
}

pub(super) fn check_driver(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let metadata = path.field("metadata");
    check_driver_name(object.name(), &metadata.field("name"), errors);
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    let modes = path.field("volumeLifecycleModes");
    for mode in spec.list("volumeLifecycleModes") {
        let mode = mode.as_str().unwrap_or_default();
        if !matches!(mode, "Ephemeral" | "Persistent") {
            errors.not_supported(&modes, mode, &["Ephemeral", "Persistent"]);
        }
    }
    let policy = spec.str("fsGroupPolicy");
    let policies = &["File", "None", "ReadWriteOnceWithFSType"];
    if spec.contains("fsGroupPolicy") && !policies.contains(&policy) {
        errors.not_supported(&path.field("fsGroupPolicy"), policy, policies);
    }
    let list = path.field("tokenRequests");
    let mut seen = BTreeSet::new();
    for (at, request) in spec.maps("tokenRequests").enumerate() {
        let here = list.index(at);
        if !seen.insert(request.str("audience")) {
            errors.duplicate(&here.field("audience"), request.str("audience"));
        }
        let Some(seconds) = request.int("expirationSeconds") else { continue };
        check_token_life(seconds, &here.field("expirationSeconds"), errors);
    }
}

/// Shortest lifetime of a token for a pod, in seconds.
const TOKEN_SECONDS_MIN: i64 = 600;
/// Longest lifetime of a token for a pod, in seconds.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

/// Checks the lifetime of a token: ten minutes to 2^32 seconds.
pub(super) fn check_token_life(seconds: i64, path: &Path<'_>, errors: &mut FieldErrors) {
    if seconds < TOKEN_SECONDS_MIN {
        errors.invalid(path, seconds, "may not specify a duration less than 10 minutes");
    } else if seconds > TOKEN_SECONDS_MAX {
        errors.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds");
    }
}

/// Longest name that a storage driver has for a node.
const NODE_ID_LEN_MAX: usize = 192;

pub(super) fn check_driver_node(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let list = path.field("drivers");
    let empty = Map::new();
    let mut seen = BTreeSet::new();
    for (at, driver) in object.spec().unwrap_or(&empty).maps("drivers").enumerate() {
        let here = list.index(at);
        let name = driver.str("name");
        if name.is_empty() {
            errors.required(&here.field("name"), "");
        }
        check_driver_name(name, &here.field("name"), errors);
        if !seen.insert(name) {
            errors.duplicate(&here.field("name"), name);
        }
        let id = driver.str("nodeID");
        if id.is_empty() {
            errors.required(&here.field("nodeID"), "");
        } else if id.len() > NODE_ID_LEN_MAX {
            let detail = format!("must be {NODE_ID_LEN_MAX} characters or less");
            errors.invalid(&here.field("nodeID"), id, &detail);
        }
        let mut keys = BTreeSet::new();
        for key in driver.list("topologyKeys").iter().filter_map(Value::as_str) {
            if key.is_empty() {
                errors.required(&here, "");
            }
            errors.complaints(&here, key, names::qualified_name(key));
            if !keys.insert(key) {
                errors.duplicate(&here, key);
            }
        }
        if let Some(allocatable) = driver.map("allocatable") {
            numbers::not_negative(allocatable, "count", &here.field("allocatable"), errors);
        }
    }
}

/// Checks that what a node knows of a driver does not change: it is removed and added again.
pub(super) fn check_driver_node_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    let known: BTreeMap<&str, &Map> =
        before.maps("drivers").map(|driver| (driver.str("name"), driver)).collect();
    for driver in after.maps("drivers") {
        if known.get(driver.str("name")).is_some_and(|one| *one != driver) {
            let path = Path::ROOT;
            errors.invalid(&path.field("CSINodeDriver"), driver.clone(), "field is immutable");
        }
    }
}

pub(super) fn check_runtime(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let handler = object.fields.str("handler");
    errors.complaints(&path.field("handler"), handler, names::dns_label(handler));
    if let Some(fixed) = object.fields.at(&["overhead", "podFixed"]).and_then(Value::as_map) {
        let limits: Map = [("limits", Value::Map(fixed.clone()))].into_iter().collect();
        resources::check_requirements(&limits, &path.field("overhead"), errors);
    }
    if let Some(scheduling) = object.fields.map("scheduling") {
        let here = path.field("scheduling");
        if let Some(labels) = scheduling.map("nodeSelector") {
            metadata::check_labels(labels, &here.field("nodeSelector"), errors);
        }
        super::pod::check_tolerations(scheduling, &here, errors);
        let list = here.field("tolerations");
        let mut seen = BTreeSet::new();
        for (at, toleration) in scheduling.list("tolerations").iter().enumerate() {
            if !seen.insert(toleration.identity()) {
                errors.duplicate(&list.index(at), toleration.clone());
            }
        }
    }
}

pub(super) fn check_runtime_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    if old.fields.str("handler") != new.fields.str("handler") {
        let path = Path::ROOT;
        errors.invalid(&path.field("handler"), new.fields.str("handler"), "field is immutable");
    }
}
