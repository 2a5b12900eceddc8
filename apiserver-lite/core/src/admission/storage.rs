//! Persistent volumes and claims: protection finalizers, the default StorageClass, and expansion only where the class allows it.

use apiserver_schema::Object;
use proto_api::Quantity;
use proto_api::names::Names;

use super::default_classes::default_classes;
use crate::config::AdmissionPlugin;
use crate::context::RequestContext;
use crate::status::{ApiError, StatusTarget};

/// Adds the protection finalizer to a new claim or volume, and the default class to a claim without one.
pub fn admit_create(call: &RequestContext<'_>, object: &mut Object) {
    let names = call.server.names;
    let runs = |plugin| call.server.config.admission.runs(plugin);
    let (finalizer, is_claim) = match (object.kind.short_group, object.kind.kind()) {
        ("", "PersistentVolumeClaim") => ("pvc-protection", true),
        ("", "PersistentVolume") => ("pv-protection", false),
        _ => return,
    };
    if runs(AdmissionPlugin::StorageObjectInUseProtection) {
        add_finalizer(object, &names.label(finalizer));
    }
    if is_claim && runs(AdmissionPlugin::DefaultStorageClass) {
        set_default_class(call, object);
    }
}

/// Refuses the expansion of a claim unless it is bound and its StorageClass allows it.
pub fn admit_update(
    call: &RequestContext<'_>,
    claim: &Object,
    old: &Object,
) -> Result<(), ApiError> {
    if requested(claim) <= requested(old) {
        return Ok(());
    }
    let refused = |why: &str| {
        let about = StatusTarget { name: claim.name(), ..call.about() };
        Err(ApiError::forbidden(about, why))
    };
    if old.str_at(&["status", "phase"]) != "Bound" {
        return refused("Only bound persistent volume claims can be expanded");
    }
    let class = class_of(call.server.names, old).unwrap_or_default();
    let class = call.server.find_in("storage", "storageclasses", "", &class);
    if class.is_some_and(|class| class.object().fields.is_true("allowVolumeExpansion")) {
        return Ok(());
    }
    refused(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}

fn requested(claim: &Object) -> Quantity {
    claim.str_at(&["spec", "resources", "requests", "storage"]).parse().unwrap_or(Quantity::ZERO)
}

fn add_finalizer(object: &mut Object, finalizer: &str) {
    if object.finalizers().any(|other| other == finalizer) {
        return;
    }
    let metadata = object.metadata_mut();
    let mut finalizers = metadata.list("finalizers").to_vec();
    finalizers.push(finalizer.into());
    metadata.insert("finalizers", finalizers);
}

/// The StorageClass of a claim, by field or by the older annotation; `None` if it names none.
fn class_of(names: &Names, claim: &Object) -> Option<String> {
    let annotated = claim.annotations().remove(&names.sub_label("volume.beta", "storage-class"));
    let said = claim.spec().and_then(|spec| spec.get("storageClassName")?.as_str());
    annotated.or(said.map(str::to_owned))
}

fn set_default_class(call: &RequestContext<'_>, claim: &mut Object) {
    if class_of(call.server.names, claim).is_some() {
        return;
    }
    if let Some(class) = default_class(call) {
        claim.fields.map_or_insert("spec").insert("storageClassName", class);
    }
}

/// The name of the default StorageClass: the newest, then the first by name.
fn default_class(call: &RequestContext<'_>) -> Option<String> {
    let annotation = |group| call.server.names.sub_label(group, "is-default-class");
    let annotations = ["storageclass", "storageclass.beta"].map(annotation);
    let classes = default_classes(call, ("storage", "storageclasses"), &annotations);
    // RFC 3339 timestamps in UTC compare as text.
    let newest = classes.iter().map(|class| class.object()).max_by(|a, b| {
        let made = |class: &Object| class.meta_str("creationTimestamp").to_owned();
        made(a).cmp(&made(b)).then_with(|| b.name().cmp(a.name()))
    });
    newest.map(|class| class.name().to_owned())
}
