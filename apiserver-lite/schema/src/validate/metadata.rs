//! Validation of `metadata`, the same for every kind.

use std::collections::BTreeSet;

use super::{FieldErrors, names};
use crate::object::Object;
use crate::value::{Map, Path, Value};

/// Most bytes of all annotations.
const ANNOTATIONS_MAX: usize = 256 * 1024;

pub(super) fn check(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("metadata");
    let empty = Map::new();
    let metadata = object.metadata().unwrap_or(&empty);
    check_name(object, metadata, &path, errors);
    if let Some(labels) = metadata.map("labels") {
        check_labels(labels, &path.field("labels"), errors);
    }
    if let Some(annotations) = metadata.map("annotations") {
        check_annotations(annotations, &path.field("annotations"), errors);
    }
    check_owners(metadata, &path, errors);
    for finalizer in metadata.list("finalizers").iter().filter_map(Value::as_str) {
        errors.complaints(&path.field("finalizers"), finalizer, names::qualified_name(finalizer));
    }
    check_dependents_policy(object, &path, errors);
}

/// What Kubernetes says of a finalizer of a built-in kind that is neither its own nor has a domain.
const UNKNOWN_FINALIZER: &str =
    "name is neither a standard finalizer name nor is it fully qualified";

/// Groups whose metadata Kubernetes checks by the rules of every API only.
const GENERAL_GROUPS: [&str; 4] =
    ["admissionregistration", "apiextensions", "apiregistration", "coordination"];

/// Checks the finalizers that an object of a built-in kind gets: those without a domain are Kubernetes' own.
pub(super) fn check_new_finalizers(
    old: Option<&Object>,
    object: &Object,
    errors: &mut FieldErrors,
) {
    if object.kind.custom_version().is_some() || GENERAL_GROUPS.contains(&object.kind.short_group) {
        return;
    }
    let path = Path::ROOT;
    let path = path.field("metadata");
    let list = path.field("finalizers");
    let known: BTreeSet<&str> = old.into_iter().flat_map(Object::finalizers).collect();
    for (at, finalizer) in object.finalizers().enumerate() {
        if known.contains(finalizer) {
            continue;
        }
        if !is_known_finalizer(finalizer) {
            errors.invalid(&list.index(at), finalizer, UNKNOWN_FINALIZER);
        }
    }
}

/// Whether a built-in kind may have the finalizer. The names of both naming profiles are standard.
fn is_known_finalizer(finalizer: &str) -> bool {
    const STANDARD: [&str; 4] = ["foregroundDeletion", "kubernetes", "orch", "orphan"];
    finalizer.contains('/') || STANDARD.contains(&finalizer)
}

/// Checks `spec.finalizers` of a Namespace.
pub(super) fn check_namespace(object: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("spec");
    let finalizers = object.spec().map_or(&[][..], |spec| spec.list("finalizers"));
    let list = path.field("finalizers");
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        errors.complaints(&list, finalizer, names::qualified_name(finalizer));
        if !is_known_finalizer(finalizer) {
            errors.invalid(&list, finalizer, UNKNOWN_FINALIZER);
        }
    }
}

/// Checks that a status says whether the namespace is being deleted.
pub(super) fn check_namespace_phase(object: &Object, errors: &mut FieldErrors) {
    let (phase, detail) = if object.deletion_timestamp().is_some() {
        ("Terminating", "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        ("Active", "may only be 'Active' if `deletionTimestamp` is empty")
    };
    let found = object.fields.map("status").map_or("", |status| status.str("phase"));
    if found != phase {
        errors.invalid(&Path::ROOT.field("status").field("Phase"), found, detail);
    }
}

/// Checks that `orphan` and `foregroundDeletion` are not both among the finalizers.
fn check_dependents_policy(object: &Object, path: &Path<'_>, errors: &mut FieldErrors) {
    let has = |wanted: &str| object.finalizers().any(|finalizer| finalizer == wanted);
    if has("orphan") && has("foregroundDeletion") {
        let all: Vec<Value> = object.finalizers().map(Value::from).collect();
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.invalid(&path.field("finalizers"), all, detail);
    }
}

fn check_name(object: &Object, metadata: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let rule = name_rule(object);
    let (name, prefix) = (metadata.str("name"), metadata.str("generateName"));
    if !prefix.is_empty() {
        // A prefix may end with `-`, and is checked as if a letter stood there.
        let whole = prefix.strip_suffix('-').map(|start| format!("{start}a"));
        let wrong = rule(whole.as_deref().unwrap_or(prefix));
        errors.complaints(&path.field("generateName"), prefix, wrong);
    }
    if name.is_empty() {
        errors.required(&path.field("name"), "name or generateName is required");
    } else {
        errors.complaints(&path.field("name"), name, rule(name));
    }
    let namespace = metadata.str("namespace");
    let here = path.field("namespace");
    match (object.kind.namespaced(), namespace) {
        (true, "") => errors.required(&here, ""),
        (true, namespace) => errors.complaints(&here, namespace, names::dns_label(namespace)),
        (false, "") => {}
        (false, _) => errors.forbidden(&here, "not allowed on this type"),
    }
}

/// The grammar of the kind's names.
fn name_rule(object: &Object) -> fn(&str) -> Vec<String> {
    match (object.kind.short_group, object.kind.kind()) {
        ("", "Namespace") => names::dns_label,
        ("", "Service") => names::dns_1035_label,
        ("", "Event")
        | ("rbac.authorization" | "apiregistration", _)
        | ("certificates", "CertificateSigningRequest") => names::path_segment,
        _ => names::dns_subdomain,
    }
}

/// Checks keys and values of labels.
pub(super) fn check_labels(labels: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    for (key, value) in labels.iter() {
        errors.complaints(path, key, names::qualified_name(key));
        let value = value.as_str().unwrap_or_default();
        errors.complaints(path, value, names::label_value(value));
    }
}

pub(super) fn check_annotations(annotations: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let mut size: usize = 0;
    for (key, value) in annotations.iter() {
        errors.complaints(path, key, names::qualified_name(&key.to_ascii_lowercase()));
        size = size.saturating_add(key.len()).saturating_add(value.as_str().map_or(0, str::len));
    }
    if size > ANNOTATIONS_MAX {
        errors.too_long(path, ANNOTATIONS_MAX);
    }
}

fn check_owners(metadata: &Map, path: &Path<'_>, errors: &mut FieldErrors) {
    let list = path.field("ownerReferences");
    let mut controllers: usize = 0;
    // Kubernetes' paths have no index here.
    for owner in metadata.maps("ownerReferences") {
        for (field, what) in
            [("apiVersion", "version"), ("kind", "kind"), ("name", "name"), ("uid", "uid")]
        {
            if owner.str(field).is_empty() {
                errors.invalid(&list.field(field), "", &format!("{what} must not be empty"));
            }
        }
        controllers = controllers.saturating_add(usize::from(owner.is_true("controller")));
        if controllers > 1 && owner.is_true("controller") {
            let detail = "Only one reference can have Controller set to true.";
            errors.invalid(&list, owner.str("name"), detail);
        }
    }
}

/// Checks that an update leaves immutable metadata unchanged.
pub(super) fn check_update(old: &Object, new: &Object, errors: &mut FieldErrors) {
    let path = Path::ROOT;
    let path = path.field("metadata");
    let empty = Map::new();
    let (before, after) = (old.metadata().unwrap_or(&empty), new.metadata().unwrap_or(&empty));
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        if before.get(field) != after.get(field) {
            let value = after.get(field).cloned().unwrap_or_default();
            errors.invalid(&path.field(field), value, "field is immutable");
        }
    }
    if new.generation() < old.generation() {
        let here = path.field("generation");
        errors.invalid(&here, new.generation(), "must not be decremented");
    }
    if old.deletion_timestamp().is_some() {
        let have: BTreeSet<&str> = old.finalizers().collect();
        let added: Vec<String> = new
            .finalizers()
            .filter(|finalizer| !have.contains(finalizer))
            .map(|finalizer| format!("{finalizer:?}"))
            .collect();
        if !added.is_empty() {
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.forbidden(&path.field("finalizers"), &detail);
        }
    }
}
