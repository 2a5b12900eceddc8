//! Validation of pod updates.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::names::Names;

use super::FieldErrors;
use crate::object::Object;
use crate::value::{Map, Path, Value, write_json};

/// Checks that a pod's spec is unchanged except for images, two deadlines, and added tolerations.
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

/// Checks that a pod does not become or cease to be the mirror of a static pod.
pub(super) fn check_mirror_annotation(
    names: &Names,
    old: &Object,
    new: &Object,
    errors: &mut FieldErrors,
) {
    if !new.kind.is("", "Pod") {
        return;
    }
    let annotation = names.label("config.mirror");
    let mirror = |pod: &Object| {
        let annotations = pod.metadata().and_then(|metadata| metadata.map("annotations"));
        annotations.and_then(|all| all.get(&annotation)).cloned()
    };
    let detail = match (mirror(old), mirror(new)) {
        (None, Some(_)) => "may not add mirror pod annotation",
        (before @ Some(_), after) if before != after => {
            "may not remove or update mirror pod annotation"
        }
        _ => return,
    };
    let path = Path::ROOT;
    let path = path.field("metadata");
    errors.forbidden(&path.field("annotations").key(&annotation), detail);
}

/// The spec without the mutable fields.
fn fixed_part(spec: &Map) -> Map {
    let mut fixed = spec.clone();
    for list in ["containers", "initContainers"] {
        fixed.maps_mut(list).for_each(|container| drop(container.remove("image")));
    }
    for field in ["activeDeadlineSeconds", "tolerations"] {
        fixed.remove(field);
    }
    // A negative grace period equals one second, so either value may replace the other.
    let field = "terminationGracePeriodSeconds";
    if fixed.int(field).is_some_and(|seconds| seconds < 0) {
        fixed.insert(field, 1);
    }
    fixed
}

/// Checks that `activeDeadlineSeconds` is only set or shortened.
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

/// Checks that tolerations are only added; `tolerationSeconds` of an existing one may change.
fn check_tolerations(before: &Map, after: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    // Compared as text in a set, so that the cost is not quadratic.
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

/// Checks that ephemeral containers are only added.
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

/// Checks a status update: a container that terminated for good stays terminated, and a set node name is kept.
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

/// The items of a list by name.
fn by_name<'a>(map: &'a Map, list: &str) -> BTreeMap<&'a str, &'a Map> {
    map.maps(list).map(|item| (item.str("name"), item)).collect()
}
