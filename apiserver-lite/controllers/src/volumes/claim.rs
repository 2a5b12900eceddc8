//! The persistentvolume-binder's claims: binds a claim to an existing or provisioned volume.

use std::sync::Arc;

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::event_report::EventKind;
use proto_api::names::Names;
use proto_api::storage::v1::StorageClass;
use serde_json::{Map, Value, json};

use super::fit::{self, Choice};
use super::{
    VolumeAnnotations, WAIT, conditional_patch, event_report, has_annotation, is_reserved_for,
    reference_to,
};
use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// The objects that a claim is planned with, read on demand.
pub struct ClaimContext<'a> {
    /// The naming profile.
    pub names: &'a Names,
    pub annotations: &'a VolumeAnnotations,
    /// A volume by name; none if it does not exist.
    pub volume: &'a dyn Fn(&str) -> Option<Arc<PersistentVolume>>,
    /// All volumes.
    pub volumes: &'a dyn Fn() -> Vec<Arc<PersistentVolume>>,
    /// A class by name.
    pub class: &'a dyn Fn(&str) -> Option<Arc<StorageClass>>,
    pub default_class: &'a dyn Fn() -> Option<String>,
    /// The pods that use the claim.
    pub pods: &'a dyn Fn() -> Vec<Arc<Pod>>,
}

/// Plans the next step of a claim.
pub fn plan(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    if has_annotation(&claim.metadata, &context.annotations.bind_completed) {
        return check_bound(claim, context);
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    match claim.spec.volume_name.as_str() {
        "" => find(claim, context),
        named => bind_named(claim, named, context),
    }
}

// === A claim without a volume ===

fn find(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    let annotations = context.annotations;
    let Some(class_name) = annotations.class_of_claim(claim) else {
        return match (context.default_class)() {
            Some(class) => Plan::from_writes([conditional_patch(
                ObjectKind::PersistentVolumeClaim,
                &claim.metadata,
                Part::Main,
                json!({"spec": {"storageClassName": class}}),
            )]),
            None => choose(claim, "", None, context),
        };
    };
    let class = (context.class)(class_name);
    choose(claim, class_name, class.as_deref(), context)
}

fn choose(
    claim: &PersistentVolumeClaim,
    class_name: &str,
    class: Option<&StorageClass>,
    context: &ClaimContext<'_>,
) -> Plan {
    let waits = class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some(WAIT));
    let choice = if waits { Choice::Scheduler } else { Choice::Any };
    let volumes = (context.volumes)();
    let volumes = volumes.iter().map(Arc::as_ref);
    if let Some(volume) = fit::best(context.annotations, claim, volumes, choice) {
        return bind(claim, volume, context);
    }
    let selected = has_annotation(&claim.metadata, &context.annotations.selected_node);
    let mut plan = match class {
        _ if waits && !selected => tell_waiting(claim, context),
        Some(class) => provision(claim, class, context),
        None if class_name.is_empty() => plan_event(
            context,
            claim,
            EventKind::Normal,
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        ),
        None => {
            let group = context.names.group("storage");
            let message = format!("storageclass.{group} {class_name:?} not found");
            plan_event(context, claim, EventKind::Warning, "ProvisioningFailed", message)
        }
    };
    plan.writes.extend(pending(claim));
    plan
}

fn plan_event(
    context: &ClaimContext<'_>,
    claim: &PersistentVolumeClaim,
    kind: EventKind,
    reason: &'static str,
    message: impl Into<String>,
) -> Plan {
    let reports = vec![event_report(context.names, claim, kind, reason, message)];
    Plan { reports, ..Plan::default() }
}

/// The event of a claim with delayed binding: it waits for a pod, or for the pod to be scheduled.
fn tell_waiting(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    let pods = (context.pods)();
    let unplaced = pods.iter().filter(|pod| pod.spec.node_name.is_empty());
    let names: Vec<&str> = unplaced.map(|pod| pod.metadata.name.as_str()).collect();
    let (reason, message) = match names.as_slice() {
        [] => (
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding".to_owned(),
        ),
        [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
        all => {
            ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", all.join(",")))
        }
    };
    plan_event(context, claim, EventKind::Normal, reason, message)
}

/// Annotates the claim with the class's provisioner, which watches for such claims.
fn provision(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    context: &ClaimContext<'_>,
) -> Plan {
    let provisioner = &class.provisioner;
    if provisioner.starts_with(&context.names.label("")) {
        let message = format!("no volume plugin matched name: {provisioner}");
        return plan_event(context, claim, EventKind::Warning, "ProvisioningFailed", message);
    }
    let message = format!(
        "waiting for a volume to be created, either by external provisioner {provisioner:?} or manually created by system administrator"
    );
    let mut plan = plan_event(context, claim, EventKind::Normal, "ExternalProvisioning", message);
    let keys = &context.annotations.provisioners;
    let has_provisioner = |key: &String| claim.metadata.annotations.get(key) == Some(provisioner);
    if !keys.iter().all(has_provisioner) {
        let patch: Map<String, Value> =
            keys.iter().map(|key| (key.clone(), json!(provisioner))).collect();
        plan.writes.push(conditional_patch(
            ObjectKind::PersistentVolumeClaim,
            &claim.metadata,
            Part::Main,
            json!({"metadata": {"annotations": patch}}),
        ));
    }
    plan
}

// === A claim that names its volume ===

fn bind_named(claim: &PersistentVolumeClaim, named: &str, context: &ClaimContext<'_>) -> Plan {
    let Some(volume) = (context.volume)(named) else { return Plan::from_writes(pending(claim)) };
    let refused = |reason, message: String| {
        let mut plan = plan_event(context, claim, EventKind::Warning, reason, message);
        plan.writes.extend(pending(claim));
        plan
    };
    if volume.spec.claim_ref.is_some() && !is_reserved_for(&volume, claim) {
        let message = format!("volume {named:?} already bound to a different claim.");
        return refused("FailedBinding", message);
    }
    let unreserved = volume.spec.claim_ref.is_none();
    match fit::fault(context.annotations, &volume, claim) {
        Some(why) if unreserved => {
            refused("VolumeMismatch", format!("Cannot bind to requested volume {named:?}: {why}"))
        }
        _ => bind(claim, &volume, context),
    }
}

// === Binding ===

/// Writes the volume first: from then on it is reserved for the claim.
fn bind(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Plan {
    Plan::from_writes(
        reserve(claim, volume, context).into_iter().chain(bind_claim(claim, volume, context)),
    )
}

/// Sets the volume's claimRef, with the claim's uid.
fn reserve(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Option<ApiWrite> {
    if volume.spec.claim_ref.as_ref().is_some_and(|of| of.uid == claim.metadata.uid) {
        return None;
    }
    let of = reference_to(context.names, claim);
    let mut patch = json!({"spec": {"claimRef": of}});
    if !is_reserved_for(volume, claim) {
        let mark = &context.annotations.bound_by_controller;
        patch["metadata"] = json!({"annotations": {mark.as_str(): "yes"}});
    }
    Some(conditional_patch(ObjectKind::PersistentVolume, &volume.metadata, Part::Main, patch))
}

/// Sets the claim's volume name.
fn bind_claim(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Option<ApiWrite> {
    let annotations = context.annotations;
    if has_annotation(&claim.metadata, &annotations.bind_completed) {
        return None;
    }
    let mut patch_annotations =
        Map::from_iter([(annotations.bind_completed.clone(), json!("yes"))]);
    let mut patch = json!({});
    if claim.spec.volume_name.is_empty() {
        patch_annotations.insert(annotations.bound_by_controller.clone(), json!("yes"));
        patch["spec"] = json!({"volumeName": volume.metadata.name});
    }
    patch["metadata"] = json!({"annotations": patch_annotations});
    Some(conditional_patch(ObjectKind::PersistentVolumeClaim, &claim.metadata, Part::Main, patch))
}

// === A claim that was bound ===

/// A bound claim keeps its volume. If the volume is deleted, the claim is lost and not bound again.
fn check_bound(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    let lost = |reason, message: &str| {
        if claim.status.phase == "Lost" {
            return Plan::default();
        }
        let mut plan = plan_event(context, claim, EventKind::Warning, reason, message);
        plan.writes.push(status(claim, json!({"phase": "Lost"})));
        plan
    };
    if claim.spec.volume_name.is_empty() {
        let message =
            "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lost("ClaimLost", message);
    }
    let Some(volume) = (context.volume)(&claim.spec.volume_name) else {
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lost("ClaimLost", message);
    };
    match &volume.spec.claim_ref {
        Some(of) if of.uid == claim.metadata.uid => Plan::from_writes(show_bound(claim, &volume)),
        None => Plan::from_writes(reserve(claim, &volume, context)),
        Some(_) if is_reserved_for(&volume, claim) => {
            Plan::from_writes(reserve(claim, &volume, context))
        }
        Some(_) => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost("ClaimMisbound", message)
        }
    }
}

/// The status of a bound claim. The capacity is set once: later the resizers update it.
fn show_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<ApiWrite> {
    let newly = claim.status.phase != "Bound";
    if !newly && claim.status.access_modes == volume.spec.access_modes {
        return None;
    }
    let mut fields = json!({"phase": "Bound", "accessModes": volume.spec.access_modes});
    if newly {
        fields["capacity"] = json!(volume.spec.capacity);
    }
    Some(status(claim, fields))
}

fn pending(claim: &PersistentVolumeClaim) -> Option<ApiWrite> {
    (claim.status.phase != "Pending").then(|| status(claim, json!({"phase": "Pending"})))
}

fn status(claim: &PersistentVolumeClaim, fields: Value) -> ApiWrite {
    let fields = json!({ "status": fields });
    conditional_patch(ObjectKind::PersistentVolumeClaim, &claim.metadata, Part::Status, fields)
}

#[cfg(test)]
mod tests;
