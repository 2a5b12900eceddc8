//! Validation of environment variables, and of references to fields and resources in files and variables.

use proto_api::Quantity;

use super::{FieldErrors, names, numbers};
use crate::value::{Map, Path, Value};

/// Pod fields available to downward API files.
const OF_FILES: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Pod fields available to environment variables.
const OF_VARIABLES: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.podIP",
    "status.podIPs",
];
/// All pod fields with a name in references; neither files nor variables support all of them.
const NAMED: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.host",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];
/// Pod fields with a subscript: `metadata.labels['app']`.
const KEYED: &[&str] = &["metadata.annotations", "metadata.labels"];
/// Container resources available to references; huge pages have a prefix and a size.
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: [&str; 2] = ["limits.hugepages-", "requests.hugepages-"];

/// Where a reference is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceTarget {
    /// A file of a volume.
    File,
    /// An environment variable.
    Variable,
}

/// Validates a `fieldRef`.
pub(super) fn check_field(
    field: &Map,
    target: ReferenceTarget,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let (name, here) = (field.str("fieldPath"), path.field("fieldPath"));
    let version = field.str("apiVersion");
    if name.is_empty() {
        errors.required(&here, "");
        return;
    }
    if !matches!(version, "" | "v1") {
        let detail = format!("unsupported pod version: {version}");
        errors.invalid(&here, name, &format!("error converting fieldPath: {detail}"));
        return;
    }
    let supported = match target {
        ReferenceTarget::File => OF_FILES,
        ReferenceTarget::Variable => OF_VARIABLES,
    };
    match name.strip_suffix("']").and_then(|name| name.split_once("['")) {
        Some((map, key)) if KEYED.contains(&map) => {
            // annotation keys may contain capitals
            let key = if map == "metadata.labels" { key.to_owned() } else { key.to_lowercase() };
            errors.complaints(path, &key, names::qualified_name(&key));
        }
        Some((map, _)) => {
            let detail = format!("does not support subscript for {map}");
            errors.invalid(path, name, &detail);
        }
        None if supported.contains(&name) => {}
        None if NAMED.contains(&name) || target == ReferenceTarget::File => {
            errors.not_supported(&here, name, supported);
        }
        None => {
            let detail = format!("error converting fieldPath: field label not supported: {name}");
            errors.invalid(&here, name, &detail);
        }
    }
}

/// Validates a `resourceFieldRef`; in a file it must name the container.
pub(super) fn check_resource(
    resource: &Map,
    target: ReferenceTarget,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    if target == ReferenceTarget::File && resource.str("containerName").is_empty() {
        errors.required(&path.field("containerName"), "");
    }
    let (name, here) = (resource.str("resource"), path.field("resource"));
    let huge = |name: &str| HUGE_PAGES.iter().any(|prefix| name.starts_with(prefix));
    if name.is_empty() {
        errors.required(&here, "");
    } else if !RESOURCES.contains(&name) && !huge(name) {
        errors.not_supported(&here, name, RESOURCES);
    }
    check_divisor(resource, name, path, errors);
}

fn check_divisor(resource: &Map, name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    const BYTES: &[&str] =
        &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let Some(divisor) = resource.get("divisor").and_then(Value::as_str) else { return };
    let Some(amount) = numbers::amount(&Value::from(divisor)).filter(|d| !d.is_zero()) else {
        return;
    };
    let among = |texts: &[&str]| {
        texts.iter().any(|text| text.parse::<Quantity>().is_ok_and(|allowed| allowed == amount))
    };
    let here = path.field("divisor");
    if matches!(name, "limits.cpu" | "requests.cpu") {
        if !among(&["1m", "1"]) {
            let detail = "only divisor's values 1m and 1 are supported with the cpu resource";
            errors.invalid(&here, divisor, detail);
        }
    } else if !among(BYTES) {
        let kind = name.split_once('.').map_or(name, |(_, kind)| kind);
        let kind = if kind == "ephemeral-storage" { "local ephemeral storage" } else { kind };
        let detail = format!(
            "only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the \
             {kind} resource"
        );
        errors.invalid(&here, divisor, &detail);
    }
}

/// Validates the environment of a container.
pub(super) fn check_env(container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("env");
    for (at, var) in container.maps("env").enumerate() {
        let here = list.index(at);
        let name = var.str("name");
        if name.is_empty() {
            errors.required(&here.field("name"), "");
        } else {
            errors.complaints(&here.field("name"), name, names::env_name(name));
        }
        let Some(source) = var.map("valueFrom") else { continue };
        check_env_source(source, &here.field("valueFrom"), errors);
        if !var.str("value").is_empty() {
            let here = here.field("valueFrom");
            errors.invalid(&here, "", "may not be specified when `value` is not empty");
        }
    }
    check_env_from(container, path, errors);
}

fn check_env_source(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    match source.len() {
        0 => errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
        ),
        1 => {}
        _ => errors.invalid(path, "", "may not have more than one field specified at a time"),
    }
    if let Some(field) = source.map("fieldRef") {
        check_field(field, ReferenceTarget::Variable, &path.field("fieldRef"), errors);
    }
    if let Some(resource) = source.map("resourceFieldRef") {
        check_resource(
            resource,
            ReferenceTarget::Variable,
            &path.field("resourceFieldRef"),
            errors,
        );
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        let Some(reference) = source.map(kind) else { continue };
        let here = path.field(kind);
        let (name, key) = (reference.str("name"), reference.str("key"));
        errors.complaints(&here.field("name"), name, names::dns_subdomain(name));
        if key.is_empty() {
            errors.required(&here.field("key"), "");
        } else {
            errors.complaints(&here.field("key"), key, names::config_key(key));
        }
    }
}

fn check_env_from(container: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("envFrom");
    for (at, source) in container.maps("envFrom").enumerate() {
        let here = list.index(at);
        let prefix = source.str("prefix");
        if !prefix.is_empty() {
            errors.complaints(&here.field("prefix"), prefix, names::env_name(prefix));
        }
        let kinds = ["configMapRef", "secretRef"];
        match kinds.iter().filter(|key| source.contains(key)).count() {
            0 => errors.invalid(&list, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(&list, "", "may not have more than one field specified at a time"),
        }
        for kind in kinds {
            let Some(reference) = source.map(kind) else { continue };
            let (name, here) = (reference.str("name"), here.field(kind));
            if name.is_empty() {
                errors.required(&here.field("name"), "");
            } else {
                errors.complaints(&here.field("name"), name, names::dns_subdomain(name));
            }
        }
    }
}
