//! Validation of the annotations that mean something for a pod, of pods and of their templates.

use std::collections::BTreeSet;

use proto_api::names::Names;

use super::{FieldErrors, metadata};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// The containers of a pod.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Checks the annotations of a pod, or of the template in an object that makes pods.
pub(super) fn check(names: &Names, object: &Object, errors: &mut FieldErrors) {
    let (root, fields) = (Path::ROOT, &object.fields);
    let spec = root.field("spec");
    let template = |path: &[&str]| fields.at(path).and_then(Value::as_map);
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Pod") => check_pod(names, fields, &root, errors),
        ("", "PodTemplate") => {
            check_template(names, template(&["template"]), &root.field("template"), errors);
        }
        ("batch", "CronJob") => {
            let found = template(&["spec", "jobTemplate", "spec", "template"]);
            let job = spec.field("jobTemplate");
            let job = job.field("spec");
            check_template(names, found, &job.field("template"), errors);
        }
        ("apps" | "batch", _) | ("", "ReplicationController") => {
            let found = template(&["spec", "template"]);
            check_template(names, found, &spec.field("template"), errors);
        }
        _ => {}
    }
}

fn check_template(
    names: &Names,
    template: Option<&Map>,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let Some(template) = template else { return };
    if let Some(annotations) = annotations_of(template) {
        let metadata = path.field("metadata");
        metadata::check_annotations(annotations, &metadata.field("annotations"), errors);
    }
    check_pod(names, template, path, errors);
}

fn annotations_of(pod: &Map) -> Option<&Map> {
    pod.map("metadata")?.map("annotations")
}

fn check_pod(names: &Names, pod: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let Some(annotations) = annotations_of(pod) else { return };
    let metadata = path.field("metadata");
    let path = metadata.field("annotations");
    let key = names.sub_label("controller", "pod-deletion-cost");
    let cost = annotations.get(&key).and_then(Value::as_str);
    if let Some(cost) = cost.filter(|cost| !is_cost(cost)) {
        errors.invalid(&path.key(&key), cost, "must be a 32bit integer");
    }
    check_profiles(&names.apparmor_annotation(""), pod, annotations, &path, errors);
}

/// Whether a text is a number without a plus sign or leading zeros.
fn is_cost(text: &str) -> bool {
    text.parse::<i32>().is_ok() && (text == "0" || !text.starts_with(['+', '0']))
}

/// Checks that AppArmor profiles are named by their form, and that their containers exist.
fn check_profiles(
    prefix: &str,
    pod: &Map,
    annotations: &Map,
    path: &Path<'_>,
    errors: &mut FieldErrors,
) {
    let profiles = annotations.iter().filter_map(|(key, profile)| {
        Some((key, key.strip_prefix(prefix)?, profile.as_str().unwrap_or_default()))
    });
    let mut profiles = profiles.peekable();
    if profiles.peek().is_none() {
        return;
    }
    let empty = Map::new();
    let spec = pod.map("spec").unwrap_or(&empty);
    let all = CONTAINERS.iter().flat_map(|list| spec.maps(list));
    let containers: BTreeSet<&str> = all.map(|container| container.str("name")).collect();
    for (key, container, profile) in profiles {
        if !containers.contains(container) {
            errors.invalid(&path.key(key), container, "container not found");
        }
        let is_known = matches!(profile, "" | "runtime/default" | "unconfined")
            || profile.starts_with("localhost/");
        if !is_known {
            let detail = format!("invalid AppArmor profile name: {profile:?}");
            errors.invalid(&path.key(key), profile, &detail);
        }
    }
}

/// Checks that the AppArmor profiles of a pod stay what they are.
pub(super) fn check_update(names: &Names, old: &Object, new: &Object, errors: &mut FieldErrors) {
    if !new.kind.is("", "Pod") {
        return;
    }
    let (prefix, empty) = (names.apparmor_annotation(""), Map::new());
    let before = annotations_of(&old.fields).unwrap_or(&empty);
    let after = annotations_of(&new.fields).unwrap_or(&empty);
    let metadata = Path::ROOT.field("metadata");
    let path = metadata.field("annotations");
    for (key, profile) in before.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        if after.get(key) != Some(profile) {
            errors.forbidden(&path.key(key), "may not remove or update AppArmor annotations");
        }
    }
    for (key, _) in after.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        if !before.contains(key) {
            errors.forbidden(&path.key(key), "may not add AppArmor annotations");
        }
    }
}
