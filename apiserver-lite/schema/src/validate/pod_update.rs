//! What an update of a pod may change.

use std::collections::{BTreeMap, BTreeSet};

use super::FieldErrors;
use crate::object::Object;
use crate::value::{Map, Path, Value, write_json};

/// A running pod's spec is fixed, except for images, two deadlines, and tolerations that are added.
pub(super) fn check(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    check_deadline(before, after, &path, errors);
    check_tolerations(before, after, &path, errors);
    if fixed_part(before) != fixed_part(after) {
        errors.forbidden(
            &path,
            "pod updates may not change fields other than `spec.containers[*].image`, \
             `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to \
             existing tolerations) or `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative)",
        );
    }
}

/// The spec without what an update may change.
fn fixed_part(spec: &Map) -> Map {
    let mut fixed = spec.clone();
    for list in ["containers", "initContainers"] {
        fixed.maps_mut(list).for_each(|container| drop(container.remove("image")));
    }
    for field in ["activeDeadlineSeconds", "tolerations"] {
        fixed.remove(field);
    }
    // A negative grace is a second: both may stand there.
    let field = "terminationGracePeriodSeconds";
    if fixed.int(field).is_some_and(|seconds| seconds < 0) {
        fixed.insert(field, 1);
    }
    fixed
}

/// A deadline may be set, or made shorter.
fn check_deadline(before: &Map, after: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let field = "activeDeadlineSeconds";
    let (old, new) = (before.int(field), after.int(field));
    match (old, new) {
        (Some(old), Some(new)) if new > old => {
            let detail = "must be less than or equal to previous value";
            errors.invalid(&path.field(field), new, detail);
        }
        (Some(_), None) => {
            let detail = "must not update from a positive integer to nil value";
            errors.invalid(&path.field(field), Value::Null, detail);
        }
        _ => {}
    }
}

/// Tolerations may be added; of an existing one only the seconds may change.
fn check_tolerations(before: &Map, after: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    // As text, so that many of them are compared without comparing each with each.
    let without_seconds = |spec: &Map| -> BTreeSet<Vec<u8>> {
        let tolerations = spec.maps("tolerations").cloned().map(|mut toleration| {
            toleration.remove("tolerationSeconds");
            let mut text = Vec::new();
            write_json(&mut text, &Value::Map(toleration));
            text
        });
        tolerations.collect()
    };
    let kept = without_seconds(before).is_subset(&without_seconds(after));
    if !kept {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&path.field("tolerations"), detail);
    }
}

/// Ephemeral containers are added; those that are there stay as they are.
pub(super) fn check_ephemeral(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let spec_path = path.field("spec");
    let empty = Map::new();
    let (before, after) = (old.spec().unwrap_or(&empty), new.spec().unwrap_or(&empty));
    let kept = by_name(after, "ephemeralContainers");
    for container in before.maps("ephemeralContainers") {
        let name = container.str("name");
        let detail = match kept.get(name) {
            Some(new) if *new == container => continue,
            Some(_) => format!("existing ephemeral containers {name:?} may not be changed"),
            None => format!("existing ephemeral containers {name:?} may not be removed"),
        };
        errors.forbidden(&spec_path.field("ephemeralContainers"), &detail);
    }
}

/// A container that has terminated for good stays terminated in the status, and a node once set is kept.
pub(super) fn check_status(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let (before, after) = (old.str_at(&["spec", "nodeName"]), new.str_at(&["spec", "nodeName"]));
    if !before.is_empty() && before != after {
        let spec = path.field("spec");
        errors.forbidden(&spec.field("nodeName"), "cannot be changed directly");
    }
    if old.str_at(&["spec", "restartPolicy"]) != "Never" {
        return;
    }
    let status = path.field("status");
    let list = status.field("containerStatuses");
    let empty = Map::new();
    let (before, after) = (old.status().unwrap_or(&empty), new.status().unwrap_or(&empty));
    let before = by_name(before, "containerStatuses");
    for (at, container) in after.maps("containerStatuses").enumerate() {
        let old = before.get(container.str("name"));
        let was = old.is_some_and(|old| old.at(&["state", "terminated"]).is_some());
        if was && container.at(&["state", "terminated"]).is_none() {
            let here = list.index(at);
            errors
                .forbidden(&here.field("state"), "may not be transitioned to non-terminated state");
        }
    }
}

/// The items of a list by their names.
fn by_name<'a>(map: &'a Map, list: &str) -> BTreeMap<&'a str, &'a Map> {
    map.maps(list).map(|item| (item.str("name"), item)).collect()
}
