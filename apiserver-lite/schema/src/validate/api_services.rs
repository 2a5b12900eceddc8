//! Validation of APIServices.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto_api::names::Names;
use proto_api::schema;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::value::{Map, Path};

/// Largest priority of a group.
const GROUP_PRIORITY_MAX: i64 = 20_000;
/// Largest priority of a version within its group.
const VERSION_PRIORITY_MAX: i64 = 1_000;
const STATUSES: &[&str] = &["False", "True", "Unknown"];

pub(super) fn check(known: &Names, object: &Object, errors: &mut FieldErrors) {
    let (root, empty) = (Path::ROOT, Map::new());
    let (path, metadata) = (root.field("spec"), root.field("metadata"));
    let spec = object.spec().unwrap_or(&empty);
    let (group, version) = (spec.str("group"), spec.str("version"));
    let required = format!("{version}.{group}");
    if !object.name().is_empty() && object.name() != required {
        let detail = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
        errors.invalid(&metadata.field("name"), object.name(), &detail);
    }
    if group.is_empty() && version != "v1" {
        let detail = "only v1 may have an empty group and it better be legacy kube";
        errors.required(&path.field("group"), detail);
    }
    if !group.is_empty() {
        errors.complaints(&path.field("group"), group, names::dns_subdomain(group));
    }
    errors.complaints(&path.field("version"), version, names::dns_1035_label(version));
    for (field, max) in
        [("groupPriorityMinimum", GROUP_PRIORITY_MAX), ("versionPriority", VERSION_PRIORITY_MAX)]
    {
        let priority = spec.int(field).unwrap_or(0);
        if !(1..=max).contains(&priority) {
            let detail = format!("must be positive and less than {max}");
            errors.invalid(&path.field(field), priority, &detail);
        }
    }
    match spec.map("service") {
        None => check_local(spec, &path, errors),
        Some(service) => {
            check_service(service, &path.field("service"), errors);
            check_trust(spec, &path, errors);
            if schema::is_built_in_group(known, group) {
                let detail = "its group is built in, and only this server serves it";
                errors.forbidden(&path.field("service"), detail);
            }
        }
    }
}

fn check_local(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let authority = spec.str("caBundle");
    if !authority.is_empty() {
        let len = STANDARD.decode(authority).map_or(authority.len(), |bytes| bytes.len());
        let detail = "local APIServices may not have a caBundle";
        errors.invalid(&path.field("caBundle"), format!("{len} bytes"), detail);
    }
    if spec.is_true("insecureSkipTLSVerify") {
        let detail = "local APIServices may not have insecureSkipTLSVerify";
        errors.invalid(&path.field("insecureSkipTLSVerify"), true, detail);
    }
}

fn check_service(service: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["namespace", "name"] {
        if service.str(field).is_empty() {
            errors.required(&path.field(field), "");
        }
    }
    let port = service.int("port").unwrap_or(0);
    let wrong = names::port_number(port);
    if !wrong.is_empty() {
        let detail = format!("port is not valid: {}", wrong.join(", "));
        errors.invalid(&path.field("port"), port, &detail);
    }
}

fn check_trust(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    if spec.is_true("insecureSkipTLSVerify") && !spec.str("caBundle").is_empty() {
        let detail = "may not be true if caBundle is present";
        errors.invalid(&path.field("insecureSkipTLSVerify"), true, detail);
    }
}

pub(super) fn check_status(object: &Object, errors: &mut FieldErrors) {
    let (root, empty) = (Path::ROOT, Map::new());
    let status = root.field("status");
    let list = status.field("conditions");
    let conditions = object.status().unwrap_or(&empty).maps("conditions");
    for (at, condition) in conditions.enumerate() {
        if !STATUSES.contains(&condition.str("status")) {
            let here = list.index(at);
            errors.not_supported(&here.field("status"), condition.str("status"), STATUSES);
        }
    }
}
