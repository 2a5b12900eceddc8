//! What a request may change: the stored object and the request are laid over each other as the subresource allows.

use crate::object::Object;
use crate::value::{Map, Value};

#[cfg(test)]
mod tests;

/// Through which path an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    /// The object itself: everything but its status.
    Main,
    /// `status`: nothing but the status (and labels, annotations and finalizers, which writers of status use).
    Status,
    /// `ephemeralcontainers` of a pod: only that list, and only additions.
    EphemeralContainers,
    /// `finalize` of a namespace: only `spec.finalizers`.
    Finalize,
    /// `approval` of a certificate signing request: only its conditions (and metadata, as with the status).
    Approval,
}

impl Subresource {
    /// The subresource with this name in a path, if it is one that writes the object as a whole.
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

/// Metadata that only the server writes.
const SERVER_METADATA: &[&str] = &[
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

/// Whether the kind counts the generations of its desired state.
pub fn counts_generations(object: &Object) -> bool {
    match (object.kind.short_group, object.kind.kind) {
        ("", kind) => kind == "ReplicationController",
        ("apps", kind) => kind != "ControllerRevision",
        ("batch" | "policy" | "networking" | "admissionregistration" | "apiextensions", _)
        | ("discovery", "EndpointSlice")
        | ("flowcontrol.apiserver", _) => true,
        _ => false,
    }
}

/// Kinds whose `status` only the status subresource writes.
fn has_status_subresource(object: &Object) -> bool {
    object.kind.resource.is_some_and(|resource| resource.subresource("status").is_some())
}

/// The object to store when `request` updates `old` through `subresource`. Both have their defaults; neither is changed;
/// `resourceVersion` is the request's.
///
/// Server-owned metadata comes from `old`. `generation` grows by one when anything outside metadata and status changes, and with the annotations
/// of a Deployment, which its replica sets are given.
/// Deleting, finalizers and versions are the server's matter.
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
    if counts_generations(old) && (annotated || spec_changed(old, &new)) {
        new.set_generation(old.generation().saturating_add(1));
    }
    new
}

/// Prepares an object for its creation, after defaults and once it has its name and uid: no status yet, and the first
/// generation. A node brings its status along: it registers itself.
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
    if counts_generations(object) {
        object.set_generation(1);
    }
}

/// A job that leaves its selector to the server selects its pods by its own uid.
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
        // What was asked for, and by whom, is what is approved and signed.
        copy(&old.fields, &mut new.fields, "spec");
    }
    if old.kind.is("", "Namespace") {
        // Finalizers of a namespace are written through `finalize` alone.
        let kept = old.spec().and_then(|spec| spec.get("finalizers")).cloned();
        match kept {
            Some(finalizers) => {
                drop(new.fields.map_or_insert("spec").insert("finalizers", finalizers))
            }
            None => drop(new.fields.map_or_insert("spec").remove("finalizers")),
        }
    }
    if old.kind.is("", "Pod") {
        // Ephemeral containers have a subresource of their own; leaving them out does not remove them.
        let spec = new.fields.map_or_insert("spec");
        if !spec.contains("ephemeralContainers")
            && let Some(list) = old.spec().and_then(|spec| spec.get("ephemeralContainers"))
        {
            spec.insert("ephemeralContainers", list.clone());
        }
    }
    new
}

fn status_update(old: &Object, request: &Object) -> Object {
    let mut new = old.clone();
    copy(&request.fields, &mut new.fields, "status");
    copy_writable_metadata(request, &mut new);
    if old.kind.is("apps", "Deployment") {
        // Its labels belong to who writes the deployment.
        let labels = old.metadata().cloned().unwrap_or_default();
        copy(&labels, new.metadata_mut(), "labels");
    }
    new
}

/// Metadata that writers of a status use too.
fn copy_writable_metadata(request: &Object, new: &mut Object) {
    let empty = Map::new();
    let metadata = request.metadata().unwrap_or(&empty);
    for field in ["labels", "annotations", "finalizers"] {
        copy(metadata, new.metadata_mut(), field);
    }
}

/// `old` with one field of its spec as the request has it.
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
    // A request need not say which object it means, but what it says is compared later.
    let asked = request.metadata().unwrap_or(&empty);
    for field in ["uid", "name", "namespace"] {
        let from = if asked.str(field).is_empty() { before } else { asked };
        copy(from, metadata, field);
    }
    copy(asked, metadata, "resourceVersion");
    // Without server-side apply nothing here writes them: what a client sends would be stored unchecked.
    metadata.remove("managedFields");
}

/// Sets `field` of `to` as `from` has it, absence included.
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
    let desired = |object: &Object| -> Vec<(String, Value)> {
        let fields = object.fields.iter().filter(|(key, _)| !matches!(*key, "metadata" | "status"));
        fields.map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    desired(old) != desired(new)
}
