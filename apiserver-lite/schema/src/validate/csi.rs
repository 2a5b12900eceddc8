//! Validation of the objects that CSI drivers, attachers and provisioners act on.

use super::volume_source::check_driver_name;
use super::{FieldErrors, names, numbers};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Fields of a CSIDriver that pods and attachments rely on.
const DRIVER_FIXED: &[&str] =
    &["attachRequired", "fsGroupPolicy", "podInfoOnMount", "volumeLifecycleModes"];

/// Checks that the immutable fields of a CSIDriver are unchanged.
pub(super) fn check_driver_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    check_unchanged(before, after, DRIVER_FIXED, &path, errors);
}

pub(super) fn check_capacity(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let class = object.fields.str("storageClassName");
    errors.complaints(&path.field("storageClassName"), class, names::dns_subdomain(class));
    for field in ["capacity", "maximumVolumeSize"] {
        if let Some(amount) = object.fields.get(field) {
            numbers::amount_not_negative(amount, &path.field(field), errors);
        }
    }
}

/// Checks that what a driver was asked for its capacity is unchanged.
pub(super) fn check_capacity_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let fixed = &["nodeTopology", "storageClassName"];
    check_unchanged(&old.fields, &new.fields, fixed, &Path::ROOT, errors);
}

pub(super) fn check_attachment(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let spec = object.spec().unwrap_or(&empty);
    for field in ["attacher", "nodeName"] {
        let (text, here) = (spec.str(field), path.field(field));
        match text.is_empty() {
            true => errors.required(&here, ""),
            false if field == "attacher" => check_driver_name(text, &here, errors),
            false => errors.complaints(&here, text, names::dns_subdomain(text)),
        }
    }
    let source = spec.map("source").unwrap_or(&empty);
    let here = path.field("source");
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (source.contains("inlineVolumeSpec"), source.get("persistentVolumeName")) {
        (false, None) => errors.required(&here, one),
        (true, Some(_)) => errors.forbidden(&here, one),
        (false, Some(name)) => {
            let name = name.as_str().unwrap_or_default();
            let here = here.field("persistentVolumeName");
            if name.is_empty() {
                errors.required(&here, "must specify non empty persistentVolumeName");
            } else {
                errors.complaints(&here, name, names::dns_subdomain(name));
            }
        }
        (true, None) => {}
    }
}

pub(super) fn check_attachment_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    check_unchanged(&old.fields, &new.fields, &["spec"], &Path::ROOT, errors);
}

/// Checks that fields of a map are unchanged.
pub(super) fn check_unchanged(
    old: &Map,
    new: &Map,
    fields: &[&str],
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    for field in fields.iter().filter(|field| old.get(field) != new.get(field)) {
        let value = new.get(field).cloned().unwrap_or(Value::Null);
        errors.invalid(&path.field(field), value, "field is immutable");
    }
}
