//! Updates: merges a request into the stored object, as far as its subresource may change it.

use crate::object::Object;
use crate::object::custom::CUSTOM;
use crate::value::{Map, Value};

#[cfg(test)]
mod tests;

/// The subresource through which an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself: everything but its status.
    Main,
    /// `status`: only the status, and the labels, annotations and finalizers that writers of status use, unless [`status_keeps_metadata`].
    Status,
    /// `ephemeralcontainers` of a pod: only that list, and only additions.
    EphemeralContainers,
    /// `finalize` of a namespace: only `spec.finalizers`.
    Finalize,
    /// `approval` of a certificate signing request: only its conditions (and metadata, as with the status).
    Approval,
}

impl Subresource {
    /// The subresource with this name, if it writes the whole object.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" => Some(Subresource::Main),
            "status" => Some(Subresource::Status),
            "ephemeralcontainers" => Some(Subresource::EphemeralContainers),
            "finalize" => Some(Subresource::Finalize),
            "approval" => Some(Subresource::Approval),
            _ => None,
        }
    }
}

/// Metadata fields that only the server writes.
const SERVER_METADATA: &[&str] = &[
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

/// Whether the kind has `metadata.generation`.
pub fn counts_generations(object: &Object) -> bool {
    if object.kind.custom().is_some() {
        return true;
    }
    match (object.kind.short_group, object.kind.kind()) {
        ("", kind) => kind == "ReplicationController",
        ("apps", kind) => kind != "ControllerRevision",
        ("batch" | "policy" | "networking" | "admissionregistration" | "apiextensions", _)
        | ("discovery", "EndpointSlice")
        | ("flowcontrol.apiserver", _) => true,
        _ => false,
    }
}

/// Whether the status is written only through the subresource `status`.
fn has_status_subresource(object: &Object) -> bool {
    object.kind.has_status()
}

/// The object to store when `request` updates `old` through `subresource`. Both are defaulted; neither is modified.
///
/// Server-owned metadata comes from `old`, `resourceVersion` from the request. `generation` increases when anything outside
/// metadata and status changes, and with the annotations of a Deployment, which are copied to its ReplicaSets. Deletion and
/// `resourceVersion` are handled by the caller.
pub fn merge_for_update(old: &Object, request: &Object, subresource: Subresource) -> Object {
    let mut new = match subresource {
        Subresource::Main => main_update(old, request),
        Subresource::Status => status_update(old, request),
        Subresource::EphemeralContainers => spec_field_update(old, request, "ephemeralContainers"),
        Subresource::Finalize => spec_field_update(old, request, "finalizers"),
        Subresource::Approval => approval_update(old, request),
    };
    keep_server_metadata(old, request, &mut new);
    let annotated = old.kind.is("apps", "Deployment")
        && subresource == Subresource::Main
        && annotations(old) != annotations(&new);
    // Only updates of a CSIDriver count.
    let counts = counts_generations(old) || old.kind.is("storage", "CSIDriver");
    if counts && (annotated || spec_changed(old, &new)) {
        new.set_generation(old.generation().saturating_add(1));
    }
    new
}

/// Prepares an object for creation, after defaulting and once name and uid are set: removes the status, except of a Node, which
/// registers with it, and sets generation 1.
pub fn prepare_for_create(object: &mut Object) {
    if has_status_subresource(object) && !object.kind.is("", "Node") {
        object.fields.remove("status");
    }
    if object.kind.is("batch", "Job") {
        select_own_pods(object);
    }
    let metadata = object.metadata_mut();
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
        "managedFields",
    ] {
        metadata.remove(field);
    }
    // That of a PriorityClass stays 1.
    if counts_generations(object) || object.kind.is("scheduling", "PriorityClass") {
        object.set_generation(1);
    }
}

/// Sets selector and labels of a Job without `manualSelector`, from its uid.
fn select_own_pods(job: &mut Object) {
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let spec = job.fields.map_or_insert("spec");
    if uid.is_empty() || spec.is_true("manualSelector") {
        return;
    }
    let template = spec.map_or_insert("template").map_or_insert("metadata");
    let labels = template.map_or_insert("labels");
    labels.insert("controller-uid", uid.as_str());
    labels.insert("job-name", name);
    let selector = spec.map_or_insert("selector").map_or_insert("matchLabels");
    selector.insert("controller-uid", uid);
}

fn main_update(old: &Object, request: &Object) -> Object {
    let mut new = request.clone();
    if has_status_subresource(old) {
        copy(&old.fields, &mut new.fields, "status");
    }
    if old.kind.is("certificates", "CertificateSigningRequest") {
        // The spec of a request is immutable, because it is what gets approved and signed.
        copy(&old.fields, &mut new.fields, "spec");
    }
    if old.kind.is("", "Namespace") {
        // Finalizers of a namespace are written only through `finalize`.
        let kept = old.spec().and_then(|spec| spec.get("finalizers")).cloned();
        match kept {
            Some(finalizers) => {
                drop(new.fields.map_or_insert("spec").insert("finalizers", finalizers))
            }
            None => drop(new.fields.map_or_insert("spec").remove("finalizers")),
        }
    }
    if old.kind.is("", "Pod") {
        // Ephemeral containers have a subresource; leaving them out does not remove them.
        let spec = new.fields.map_or_insert("spec");
        if !spec.contains("ephemeralContainers")
            && let Some(list) = old.spec().and_then(|spec| spec.get("ephemeralContainers"))
        {
            spec.insert("ephemeralContainers", list.clone());
        }
    }
    new
}

/// Whether writes of the subresource `status` leave all metadata of the kind as they are, other than those of most kinds. The group is without its domain.
pub fn status_keeps_metadata(short_group: &str, kind: &str) -> bool {
    matches!(
        (short_group, kind),
        ("apiextensions", "CustomResourceDefinition")
            | ("apiregistration", "APIService")
            | ("flowcontrol.apiserver", "FlowSchema" | "PriorityLevelConfiguration")
            | ("storage", "VolumeAttachment")
            | (CUSTOM, _)
    )
}

fn status_update(old: &Object, request: &Object) -> Object {
    let mut new = old.clone();
    copy(&request.fields, &mut new.fields, "status");
    if status_keeps_metadata(old.kind.short_group, old.kind.kind()) {
        return new;
    }
    copy_writable_metadata(request, &mut new);
    if old.kind.is("apps", "Deployment") {
        // A status update of a Deployment does not change its labels.
        let labels = old.metadata().cloned().unwrap_or_default();
        copy(&labels, new.metadata_mut(), "labels");
    }
    new
}

/// Copies the metadata that status updates may change.
fn copy_writable_metadata(request: &Object, new: &mut Object) {
    let empty = Map::new();
    let metadata = request.metadata().unwrap_or(&empty);
    for field in ["labels", "annotations", "finalizers"] {
        copy(metadata, new.metadata_mut(), field);
    }
}

/// `old` with one field of the request's spec.
fn spec_field_update(old: &Object, request: &Object, field: &'static str) -> Object {
    let mut new = old.clone();
    let empty = Map::new();
    copy(request.spec().unwrap_or(&empty), new.fields.map_or_insert("spec"), field);
    new
}

fn approval_update(old: &Object, request: &Object) -> Object {
    let mut new = old.clone();
    let empty = Map::new();
    copy(request.status().unwrap_or(&empty), new.fields.map_or_insert("status"), "conditions");
    copy_writable_metadata(request, &mut new);
    new
}

fn keep_server_metadata(old: &Object, request: &Object, new: &mut Object) {
    let empty = Map::new();
    let before = old.metadata().unwrap_or(&empty);
    let metadata = new.metadata_mut();
    for field in SERVER_METADATA {
        copy(before, metadata, field);
    }
    // A request may leave these out; if set, they are compared later.
    let asked = request.metadata().unwrap_or(&empty);
    for field in ["uid", "name", "namespace"] {
        let from = if asked.str(field).is_empty() { before } else { asked };
        copy(from, metadata, field);
    }
    copy(asked, metadata, "resourceVersion");
    // The caller sets the owners of fields: those of a client would be stored unchecked.
    metadata.remove("managedFields");
}

/// Copies `field` from `from` to `to`, or removes it.
fn copy(from: &Map, to: &mut Map, field: &str) {
    match from.get(field) {
        Some(value) => drop(to.insert(field.to_owned(), value.clone())),
        None => drop(to.remove(field)),
    }
}

fn annotations(object: &Object) -> Option<&Value> {
    object.metadata()?.get("annotations")
}

fn spec_changed(old: &Object, new: &Object) -> bool {
    // A custom kind without the subresource has no status of its own: it is a field like others.
    let status = if old.kind.custom().is_some() && !old.kind.has_status() { "" } else { "status" };
    let desired = |object: &Object| -> Vec<(String, Value)> {
        let fields = object.fields.iter().filter(|(key, _)| *key != "metadata" && *key != status);
        fields.map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    desired(old) != desired(new)
}
