//! Validation of volume sources, in a pod or in a persistent volume.
//!
//! The common rules (required fields, ranges, allowed values) are tables; functions below check what only one source needs.

use super::{FieldErrors, names};
use crate::enums;
use crate::value::{Map, Path, Value};

/// What contains the source: some have another form in a persistent volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOwner {
    Pod,
    PersistentVolume,
}

/// Required fields, by source.
const REQUIRED: &[(&str, &[&str])] = &[
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("gitRepo", &["repository"]),
    ("secret", &["secretName"]),
    ("nfs", &["server", "path"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("glusterfs", &["endpoints", "path"]),
    ("persistentVolumeClaim", &["claimName"]),
    ("rbd", &["image"]),
    ("flexVolume", &["driver"]),
    ("cinder", &["volumeID"]),
    ("azureFile", &["secretName", "shareName"]),
    ("configMap", &["name"]),
    ("vsphereVolume", &["volumePath"]),
    ("quobyte", &["registry", "volume"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("storageos", &["volumeName"]),
    ("csi", &["driver"]),
    ("local", &["path"]),
];

/// Lists that must not be empty, by source.
const REQUIRED_LISTS: &[(&str, &str)] = &[("rbd", "monitors"), ("cephfs", "monitors")];

/// Ranges of numbers, by source: lowest and highest.
const RANGES: &[(&str, &str, i64, i64)] = &[
    ("gcePersistentDisk", "partition", 0, 255),
    ("awsElasticBlockStore", "partition", 0, 255),
    ("iscsi", "lun", 0, 255),
    ("fc", "lun", 0, 255),
];

/// Allowed values of optional fields, by source.
const WORDS: &[(&str, &str, &[&str])] = &[
    ("hostPath", "type", enums::HOST_PATH_TYPES),
    ("azureDisk", "cachingMode", enums::AZURE_CACHING_MODES),
    ("azureDisk", "kind", enums::AZURE_DISK_KINDS),
    ("scaleIO", "storageMode", &["ThickProvisioned", "ThinProvisioned"]),
];

/// References to Secrets that need a name, by source.
const SECRETS: &[(&str, &str)] = &[
    ("cinder", "secretRef"),
    ("storageos", "secretRef"),
    ("scaleIO", "secretRef"),
    ("iscsi", "secretRef"),
    ("csi", "nodePublishSecretRef"),
];

/// References to Secrets of a CSI persistent volume: name and namespace, or unset.
const DRIVER_SECRETS: &[&str] = &[
    "controllerPublishSecretRef",
    "controllerExpandSecretRef",
    "nodePublishSecretRef",
    "nodeStageSecretRef",
    "nodeExpandSecretRef",
];

/// Longest name of a driver.
const DRIVER_LEN_MAX: usize = 63;
/// Longest tenant of a quobyte volume.
const TENANT_LEN_MAX: usize = 64;

/// Checks the source `name` of a volume.
pub(super) fn check(
    name: &str,
    source: &Map,
    owner: VolumeOwner,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    check_tables(name, source, path, errors);
    match name {
        "hostPath" | "local" => check_no_steps_back(source, "path", path, errors),
        "emptyDir" => check_empty_dir(source, path, errors),
        "gitRepo" => check_relative(source.str("directory"), &path.field("directory"), errors),
        "nfs" if !source.str("path").is_empty() && !source.str("path").starts_with('/') => {
            errors.invalid(&path.field("path"), source.str("path"), "must be an absolute path");
        }
        "iscsi" => check_iscsi(source, path, errors),
        "flocker" => check_flocker(source, path, errors),
        "quobyte" => check_quobyte(source, path, errors),
        "fc" => check_fc(source, path, errors),
        "azureDisk" => check_azure_disk(source, path, errors),
        "azureFile" | "glusterfs" => check_namespace(name, source, path, errors),
        "scaleIO" if !source.contains("secretRef") => {
            errors.required(&path.field("secretRef"), "");
        }
        "storageos" => check_storage_os(source, path, errors),
        "csi" => check_driver(source, owner, path, errors),
        _ => {}
    }
}

fn check_tables(name: &str, source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in REQUIRED.iter().filter(|row| row.0 == name).flat_map(|row| row.1) {
        if source.str(field).is_empty() {
            errors.required(&path.field(field), "");
        }
    }
    for (_, field) in REQUIRED_LISTS.iter().filter(|row| row.0 == name) {
        if source.list(field).is_empty() {
            errors.required(&path.field(field), "");
        }
    }
    for (_, field, lowest, highest) in RANGES.iter().filter(|row| row.0 == name) {
        if let Some(number) = source.int(field).filter(|n| !(*lowest..=*highest).contains(n)) {
            let detail = format!("must be between {lowest} and {highest}, inclusive");
            errors.invalid(&path.field(field), number, &detail);
        }
    }
    for (_, field, words) in WORDS.iter().filter(|row| row.0 == name) {
        if source.contains(field) && !words.contains(&source.str(field)) {
            errors.not_supported(&path.field(field), source.str(field), words);
        }
    }
    for (_, field) in SECRETS.iter().filter(|row| row.0 == name) {
        if source.map(field).is_some_and(|secret| secret.str("name").is_empty()) {
            let here = path.field(field);
            errors.required(&here.field("name"), "");
        }
    }
}

fn check_no_steps_back(source: &Map, field: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    let target = source.str(field);
    if target.split('/').any(|part| part == "..") {
        errors.invalid(&path.field(field), target, "must not contain '..'");
    }
}

/// Checks a relative path without parent directories; it may be empty.
pub(super) fn check_relative(target: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

fn check_empty_dir(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let limit = source.str("sizeLimit").parse::<proto_api::Quantity>();
    if limit.is_ok_and(proto_api::Quantity::is_negative) {
        let detail = "SizeLimit field must be a valid resource quantity";
        errors.forbidden(&path.field("sizeLimit"), detail);
    }
}

/// Validates an iSCSI source, including the forms of initiator and target names.
fn check_iscsi(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["iqn", "initiatorName"] {
        let name = source.str(field);
        if name.is_empty() {
            continue;
        }
        let detail = match name.get(..3) {
            Some("iqn" | "eui" | "naa") => "must be valid format",
            _ => "must be valid format starting with iqn, eui, or naa",
        };
        if !is_scsi_name(name) {
            errors.invalid(&path.field(field), name, detail);
        }
    }
    let authenticates = source.is_true("chapAuthDiscovery") || source.is_true("chapAuthSession");
    if authenticates && !source.contains("secretRef") {
        errors.required(&path.field("secretRef"), "");
    }
}

/// `iqn.<year>-<month>.<domain>[:<anything>]`, `eui.` with 16 letters and digits, or `naa.` with 32 (RFC 3720, 3.2.6.3).
fn is_scsi_name(name: &str) -> bool {
    let plain = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    if let Some(rest) = name.strip_prefix("eui.") {
        return plain(rest, 16);
    }
    if let Some(rest) = name.strip_prefix("naa.") {
        return plain(rest, 32);
    }
    let Some((date, rest)) = name.strip_prefix("iqn.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    let digits = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let dated =
        date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2));
    let (domain, own) = rest.split_once(':').map_or((rest, None), |(d, own)| (d, Some(own)));
    let in_domain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let in_own = |c: char| !c.is_whitespace() && !",;*&$|".contains(c);
    dated
        && !domain.is_empty()
        && domain.bytes().all(in_domain)
        && own.is_none_or(|own| !own.is_empty() && own.chars().all(in_own))
}

fn check_flocker(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let name = source.str("datasetName");
    match (name.is_empty(), source.str("datasetUUID").is_empty()) {
        (true, true) => {
            errors.required(path, "one of datasetName and datasetUUID is required");
        }
        (false, false) => {
            let detail = "datasetName and datasetUUID can not be specified simultaneously";
            errors.invalid(path, "resource", detail);
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(&path.field("datasetName"), name, "must not contain '/'");
    }
}

fn check_quobyte(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let registry = source.str("registry");
    let is_pair = |pair: &str| {
        let parts = pair.rsplit_once(':');
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    if !registry.is_empty() && !registry.split(',').all(is_pair) {
        let detail = "must be a host:port pair or multiple pairs separated by commas";
        errors.invalid(&path.field("registry"), registry, detail);
    }
    if source.str("tenant").len() > TENANT_LEN_MAX {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.required(&path.field("tenant"), detail);
    }
}

/// Validates a Fibre Channel source: target WWNs and LUN, or WWIDs.
fn check_fc(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let (ports, ids) = (source.list("targetWWNs"), source.list("wwids"));
    let here = path.field("targetWWNs");
    match (ports.is_empty(), ids.is_empty()) {
        (true, true) => {
            let detail = "must specify either targetWWNs or wwids, but not both";
            errors.required(&here, detail);
        }
        (false, false) => {
            let detail = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid(&here, ports.to_vec(), detail);
        }
        (false, true) if source.int("lun").is_none() => {
            let detail = "lun is required if targetWWNs is specified";
            errors.required(&path.field("lun"), detail);
        }
        _ => {}
    }
}

/// Validates an Azure disk: the URI of a managed disk is a resource path, of others a blob URL.
fn check_azure_disk(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let uri = source.str("diskURI");
    let (start, form) = if source.str("kind") == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !uri.is_empty() && !uri.starts_with(start) {
        errors.not_supported(&path.field("diskURI"), uri, &[form]);
    }
}

/// Checks that a set namespace is not empty.
fn check_namespace(name: &str, source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let field = if name == "azureFile" { "secretNamespace" } else { "endpointsNamespace" };
    if source.get(field).and_then(Value::as_str) == Some("") {
        errors.required(&path.field(field), "");
    }
}

fn check_storage_os(source: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["volumeName", "volumeNamespace"] {
        let value = source.str(field);
        if !value.is_empty() {
            errors.complaints(&path.field(field), value, names::dns_label(value));
        }
    }
}

fn check_driver(source: &Map, owner: VolumeOwner, path: &Path<'_>, errors: &mut FieldErrors) {
    check_driver_name(source.str("driver"), &path.field("driver"), errors);
    if owner == VolumeOwner::Pod {
        return;
    }
    if source.str("volumeHandle").is_empty() {
        errors.required(&path.field("volumeHandle"), "");
    }
    for field in DRIVER_SECRETS {
        let Some(secret) = source.map(field) else { continue };
        let here = path.field(field);
        // its name is checked with all Secrets
        let parts: &[&str] = match *field {
            "nodePublishSecretRef" => &["namespace"],
            _ => &["name", "namespace"],
        };
        for part in parts.iter().filter(|part| secret.str(part).is_empty()) {
            errors.required(&here.field(part), "");
        }
    }
}

/// Checks a CSI driver name: a lower-case domain. An empty one is reported as a missing field.
pub(super) fn check_driver_name(name: &str, path: &Path<'_>, errors: &mut FieldErrors) {
    if name.is_empty() {
        return;
    }
    if name.len() > DRIVER_LEN_MAX {
        errors.too_long(path, DRIVER_LEN_MAX);
    }
    // the CSI specification allows capitals
    let lower = name.to_ascii_lowercase();
    errors.complaints(path, name, names::dns_subdomain(&lower));
}
