//! Validation of resource quantities: names, requests and limits.

use super::{FieldErrors, names, numbers};
use crate::value::{Map, Path, Value};

const OF_CONTAINERS: &[&str] = &["cpu", "ephemeral-storage", "memory"];
/// Quota resources that are object counts.
const COUNTED: &[&str] = &[
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
/// Quota resources that are sums.
const SUMMED: &[&str] = &[
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "storage",
];
const HUGE_PAGES: &str = "hugepages-";

fn is_huge(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Whether the resource is an extended resource (with a domain).
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.starts_with("requests.")
}

/// Whether limits may exceed requests.
pub(super) fn allows_overcommit(name: &str) -> bool {
    !is_huge(name) && !is_extended(name)
}

/// Whether quantities of the resource are integers.
fn is_counted(name: &str) -> bool {
    COUNTED.contains(&name) || name.starts_with("count/") || name.contains('/')
}

/// Whether a quota's resource is one of Kubernetes' own, which have no domain.
pub(super) fn is_standard(name: &str) -> bool {
    let huge = is_huge(name.strip_prefix("requests.").unwrap_or(name));
    SUMMED.contains(&name) || COUNTED.contains(&name) || huge
}

/// Checks the name of a resource.
fn check_any_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    errors.complaints(path, name, names::qualified_name(name));
    if !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

fn check_container_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    check_any_name(name, path, errors);
    if !name.contains('/') {
        if !OF_CONTAINERS.contains(&name) && !is_huge(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// Checks a key of a quota's `hard`.
pub(super) fn check_quota_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    check_any_name(name, path, errors);
    if !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource for quota");
    }
}

/// Checks a resource name in a LimitRange item of type `kind`.
pub(super) fn check_limit_name(name: &str, kind: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if matches!(kind, "Pod" | "Container") {
        check_container_name(name, path, errors);
    } else {
        check_any_name(name, path, errors);
    }
}

/// Checks that a quantity is not negative, and an integer where the resource requires it.
pub(super) fn check_amount(name: &str, value: &Value, path: &Path<'_>, errors: &mut FieldErrors) {
    numbers::amount_not_negative(value, path, errors);
    if is_counted(name) && !numbers::is_whole(value) {
        errors.invalid(path, value.clone(), "must be an integer");
    }
}

/// Validates requests and limits of a container.
pub(super) fn check_requirements(resources: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let entries = |list: &str| resources.map(list).into_iter().flat_map(Map::iter);
    for list in ["limits", "requests"] {
        let here = path.field(list);
        for (name, value) in entries(list) {
            let here = here.key(name);
            check_container_name(name, &here, errors);
            check_amount(name, value, &here, errors);
        }
    }
    let limits = resources.map("limits");
    for (name, value) in entries("requests") {
        check_request(name, value, limits.and_then(|limits| limits.get(name)), path, errors);
    }
    let mut all = entries("limits").chain(entries("requests"));
    let plain = |name: &str| matches!(name, "cpu" | "memory");
    if all.any(|(name, _)| is_huge(name))
        && !entries("limits").chain(entries("requests")).any(|(name, _)| plain(name))
    {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
}

/// Checks that a request is at most its limit, and equal to it for resources without overcommit.
fn check_request(
    name: &str,
    value: &Value,
    limit: Option<&Value>,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let (requests, limits) = (path.field("requests"), path.field("limits"));
    let shared = allows_overcommit(name);
    let Some(limit) = limit else {
        if !shared {
            errors.required(&limits, "Limit must be set for non overcommitable resources");
        }
        return;
    };
    let (Some(wants), Some(may)) = (numbers::amount(value), numbers::amount(limit)) else { return };
    if !shared && wants != may {
        let detail = format!("must be equal to {name} limit of {may}");
        errors.invalid(&requests, value.clone(), &detail);
    } else if wants > may {
        let detail = format!("must be less than or equal to {name} limit of {may}");
        errors.invalid(&requests, value.clone(), &detail);
    }
}
