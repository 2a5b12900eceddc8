//! Validation of PersistentVolumes and PersistentVolumeClaims.

use proto_api::Quantity;

use super::volume_source::{self, VolumeOwner};
use super::{FieldErrors, names, selector};
use crate::enums;
use crate::field_gates::{FieldGate, FieldGates};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// The access mode that gives a volume to one pod.
const ONE_POD: &str = "ReadWriteOncePod";

/// Fields of a PersistentVolume's spec that are not volume sources.
const BESIDE_SOURCES: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeMode",
];

pub(super) fn check_volume(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    check_access_modes(spec, gates, &path, errors);
    check_capacity(spec, &path, errors);
    let field = "persistentVolumeReclaimPolicy";
    errors.one_of(&path.field(field), spec.str(field), enums::RECLAIM_POLICIES);
    check_mode(spec, &path, errors);
    check_class(spec, &path, errors);
    check_affinity(spec, &path, errors);
    let mut sources = sources(spec);
    match sources.next() {
        None => errors.required(&path, "must specify a volume type"),
        Some((name, source)) => {
            let empty = Map::new();
            let source = source.as_map().unwrap_or(&empty);
            volume_source::check(
                name,
                source,
                VolumeOwner::PersistentVolume,
                &path.field(name),
                errors,
            );
        }
    }
    for (name, _) in sources {
        errors.forbidden(&path.field(name), "may not specify more than 1 volume type");
    }
    let recycled = spec.str(field) == "Recycle";
    if recycled
        && spec.str_at(&["hostPath", "path"]).trim_end_matches('/').is_empty()
        && spec.contains("hostPath")
    {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.forbidden(&path.field(field), detail);
    }
}

fn sources(spec: &Map) -> impl Iterator<Item = (&str, &Value)> {
    spec.iter().filter(|(key, _)| !BESIDE_SOURCES.contains(key))
}

/// Checks that source, volume mode and node affinity of a volume are unchanged.
pub(super) fn check_volume_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    let own = |spec: &Map| {
        let mut own = Map::new();
        sources(spec).for_each(|(name, source)| {
            own.insert(name.to_owned(), source.clone());
        });
        // the secret of the controller that expands the volume may change
        if let Some(csi) = own.map_mut("csi") {
            csi.remove("controllerExpandSecretRef");
        }
        own
    };
    if own(before) != own(after) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        errors.forbidden(&path.field("persistentvolumesource"), detail);
    }
    if before.get("volumeMode") != after.get("volumeMode") {
        let value = after.get("volumeMode").cloned().unwrap_or_default();
        errors.invalid(&path.field("volumeMode"), value, "field is immutable");
    }
    if before.contains("nodeAffinity") && before.get("nodeAffinity") != after.get("nodeAffinity") {
        let value = after.get("nodeAffinity").cloned().unwrap_or_default();
        errors.invalid(&path.field("nodeAffinity"), value, "field is immutable");
    }
}

fn check_capacity(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("capacity");
    let Some(capacity) = spec.map("capacity").filter(|capacity| !capacity.is_empty()) else {
        errors.required(&here.key("storage"), "");
        return;
    };
    for (name, _) in capacity.iter().filter(|(name, _)| *name != "storage") {
        errors.not_supported(&here, name, &["storage"]);
    }
    match capacity.get("storage") {
        None => errors.required(&here.key("storage"), ""),
        Some(size) => check_size(size, &here.key("storage"), errors),
    }
}

/// Checks that a size is positive.
fn check_size(size: &Value, path: &Path<'_>, errors: &mut FieldErrors) {
    let parsed = size.as_str().and_then(|text| text.parse::<Quantity>().ok());
    if parsed.is_some_and(|size| size.is_negative() || size.is_zero()) {
        errors.invalid(path, size.clone(), "must be greater than zero");
    }
}

fn check_mode(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let mode = spec.str("volumeMode");
    if spec.contains("volumeMode") && !enums::VOLUME_MODES.contains(&mode) {
        errors.not_supported(&path.field("volumeMode"), mode, enums::VOLUME_MODES);
    }
}

fn check_class(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let class = spec.str("storageClassName");
    if !class.is_empty() {
        errors.complaints(&path.field("storageClassName"), class, names::dns_subdomain(class));
    }
}

/// Checks the node affinity, which is required for local volumes.
fn check_affinity(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let here = path.field("nodeAffinity");
    let Some(affinity) = spec.map("nodeAffinity") else {
        if spec.contains("local") {
            errors.required(&here, "Local volume requires node affinity");
        }
        return;
    };
    let required = here.field("required");
    match affinity.map("required") {
        None => errors.required(&required, "must specify required node constraints"),
        Some(terms) => selector::check_nodes(terms, &required, errors),
    }
}

pub(super) fn check_claim(object: &Object, gates: FieldGates, errors: &mut FieldErrors) {
    let empty = Map::new();
    let path = Path::ROOT;
    check_claim_spec(object.spec().unwrap_or(&empty), gates, &path.field("spec"), errors);
}

/// Validates a claim's spec, in a claim or in a template.
pub(super) fn check_claim_spec(
    spec: &Map,
    gates: FieldGates,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    check_access_modes(spec, gates, path, errors);
    let resources = path.field("resources");
    match spec.at(&["resources", "requests", "storage"]) {
        None => errors.required(&resources.key("storage"), ""),
        Some(size) => {
            let requests = resources.field("requests");
            check_size(size, &requests.key("storage"), errors);
        }
    }
    check_class(spec, path, errors);
    check_mode(spec, path, errors);
    selector::check(spec.map("selector"), &path.field("selector"), errors);
    check_data_source(spec, path, errors);
}

/// Checks that `dataSource` and `dataSourceRef` are equal.
fn check_data_source(spec: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.map(field) else { continue };
        let here = path.field(field);
        for part in ["kind", "name"].into_iter().filter(|part| source.str(part).is_empty()) {
            errors.required(&here.field(part), "");
        }
        let core = source.str("apiGroup").is_empty();
        if core && !source.str("kind").is_empty() && source.str("kind") != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid(&here, source.str("kind"), detail);
        }
    }
    let (one, other) = (spec.get("dataSource"), spec.get("dataSourceRef"));
    if one.is_some() && other.is_some() && one != other {
        let detail = "must match dataSourceRef";
        errors.invalid(&path.field("dataSource"), one.cloned().unwrap_or_default(), detail);
    }
}

/// Checks the access modes. The one for a single pod is supported with its gate only.
fn check_access_modes(spec: &Map, gates: FieldGates, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("accessModes");
    let modes = spec.list("accessModes");
    if modes.is_empty() {
        errors.required(&list, "at least 1 access mode is required");
    }
    let is_supported = |mode: &str| {
        let is_known = enums::ACCESS_MODES.contains(&mode);
        is_known && (mode != ONE_POD || gates.has(FieldGate::ReadWriteOncePod))
    };
    for mode in modes.iter().filter_map(Value::as_str).filter(|mode| !is_supported(mode)) {
        let all = enums::ACCESS_MODES.iter().copied();
        let supported: Vec<&str> = all.filter(|mode| is_supported(mode)).collect();
        errors.not_supported(&list, mode, &supported);
    }
    let alone = modes.iter().any(|mode| mode.as_str() == Some(ONE_POD));
    if alone && modes.len() > 1 {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.forbidden(&list, detail);
    }
}

/// Checks an update: a bound claim may request more storage, an unbound one may be bound and get a class if it has none.
pub(super) fn check_claim_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    let bound = old.fields.str_at(&["status", "phase"]) == "Bound";
    let fixed = |spec: &Map| {
        let mut spec = spec.clone();
        if bound && let Some(resources) = spec.map_mut("resources") {
            resources.remove("requests");
        }
        spec
    };
    let (mut was, mut is) = (fixed(before), fixed(after));
    for (field, free) in [
        ("volumeName", before.str("volumeName").is_empty()),
        ("storageClassName", !before.contains("storageClassName")),
    ] {
        if free {
            was.remove(field);
            is.remove(field);
        }
    }
    if was != is {
        let detail = "spec is immutable after creation except resources.requests for bound claims";
        errors.forbidden(&path, detail);
        return;
    }
    let size =
        |spec: &Map| spec.str_at(&["resources", "requests", "storage"]).parse::<Quantity>().ok();
    if let (Some(had), Some(wants)) = (size(before), size(after))
        && wants < had
    {
        let here = path.field("resources");
        let here = here.field("requests");
        errors.forbidden(&here.field("storage"), "field can not be less than previous value");
    }
}
