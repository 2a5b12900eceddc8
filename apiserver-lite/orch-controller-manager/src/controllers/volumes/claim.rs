//! A claim on its way to a volume: chosen among those there are, or made by a provisioner.

use std::sync::Arc;

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::names::Names;
use proto_api::storage::v1::StorageClass;
use proto_client::events::EventKind;
use serde_json::{Map, Value, json};

use super::fit::{self, Choice};
use super::{Marks, WAIT, change, has, is_promised, refer, say};
use crate::api_writes::{ObjectKind, Part, Write};
use crate::controllers::Plan;

/// What a claim is looked at with. Asked only for what is needed.
pub struct ClaimContext<'a> {
    /// The naming profile.
    pub names: &'a Names,
    /// Its annotations.
    pub marks: &'a Marks,
    /// A volume by name. One that is not found does not exist.
    pub volume: &'a dyn Fn(&str) -> Option<Arc<PersistentVolume>>,
    /// All volumes.
    pub volumes: &'a dyn Fn() -> Vec<Arc<PersistentVolume>>,
    /// A class by name.
    pub class: &'a dyn Fn(&str) -> Option<Arc<StorageClass>>,
    /// The default class.
    pub default_class: &'a dyn Fn() -> Option<String>,
    /// The pods that use the claim.
    pub pods: &'a dyn Fn() -> Vec<Arc<Pod>>,
}

/// The next step of a claim.
pub fn plan(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    if has(&claim.metadata, &context.marks.bind_completed) {
        return keep(claim, context);
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    match claim.spec.volume_name.as_str() {
        "" => find(claim, context),
        named => take(claim, named, context),
    }
}

// === A claim that has no volume yet ===

fn find(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    let marks = context.marks;
    let Some(class_name) = marks.class_of_claim(claim) else {
        return match (context.default_class)() {
            Some(class) => Plan::of([change(
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
    if let Some(volume) = fit::best(context.marks, claim, volumes, choice) {
        return bind(claim, volume, context);
    }
    let selected = has(&claim.metadata, &context.marks.selected_node);
    let mut plan = match class {
        _ if waits && !selected => tell_waiting(claim, context),
        Some(class) => provision(claim, class, context),
        None if class_name.is_empty() => told(
            context,
            claim,
            EventKind::Normal,
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        ),
        None => {
            let group = context.names.group("storage");
            let message = format!("storageclass.{group} {class_name:?} not found");
            told(context, claim, EventKind::Warning, "ProvisioningFailed", message)
        }
    };
    plan.writes.extend(pending(claim));
    plan
}

fn told(
    context: &ClaimContext<'_>,
    claim: &PersistentVolumeClaim,
    kind: EventKind,
    reason: &'static str,
    message: impl Into<String>,
) -> Plan {
    let said = vec![say(context.names, claim, kind, reason, message)];
    Plan { said, ..Plan::default() }
}

/// Whose turn it is: a first pod's, or the scheduler's.
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
    told(context, claim, EventKind::Normal, reason, message)
}

/// Asks the class's provisioner for a volume: it watches for claims that name it.
fn provision(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    context: &ClaimContext<'_>,
) -> Plan {
    let provisioner = &class.provisioner;
    if provisioner.starts_with(&context.names.label("")) {
        let message = format!("no volume plugin matched name: {provisioner}");
        return told(context, claim, EventKind::Warning, "ProvisioningFailed", message);
    }
    let message = format!(
        "waiting for a volume to be created, either by external provisioner {provisioner:?} or manually created by system administrator"
    );
    let mut plan = told(context, claim, EventKind::Normal, "ExternalProvisioning", message);
    let keys = &context.marks.provisioners;
    let asked = |key: &String| claim.metadata.annotations.get(key) == Some(provisioner);
    if !keys.iter().all(asked) {
        let annotations: Map<String, Value> =
            keys.iter().map(|key| (key.clone(), json!(provisioner))).collect();
        plan.writes.push(change(
            ObjectKind::PersistentVolumeClaim,
            &claim.metadata,
            Part::Main,
            json!({"metadata": {"annotations": annotations}}),
        ));
    }
    plan
}

// === A claim that names its volume ===

fn take(claim: &PersistentVolumeClaim, named: &str, context: &ClaimContext<'_>) -> Plan {
    let Some(volume) = (context.volume)(named) else { return Plan::of(pending(claim)) };
    let refused = |reason, message: String| {
        let mut plan = told(context, claim, EventKind::Warning, reason, message);
        plan.writes.extend(pending(claim));
        plan
    };
    if volume.spec.claim_ref.is_some() && !is_promised(&volume, claim) {
        let message = format!("volume {named:?} already bound to a different claim.");
        return refused("FailedBinding", message);
    }
    let unpromised = volume.spec.claim_ref.is_none();
    match fit::fault(context.marks, &volume, claim) {
        Some(why) if unpromised => {
            refused("VolumeMismatch", format!("Cannot bind to requested volume {named:?}: {why}"))
        }
        _ => bind(claim, &volume, context),
    }
}

// === Binding ===

/// The volume first: from then on nobody else gets it.
fn bind(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Plan {
    Plan::of(promise(claim, volume, context).into_iter().chain(complete(claim, volume, context)))
}

/// Makes the volume refer to this very claim.
fn promise(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Option<Write> {
    if volume.spec.claim_ref.as_ref().is_some_and(|of| of.uid == claim.metadata.uid) {
        return None;
    }
    let of = refer(context.names, claim);
    let mut patch = json!({"spec": {"claimRef": of}});
    if !is_promised(volume, claim) {
        let mark = &context.marks.bound_by_controller;
        patch["metadata"] = json!({"annotations": {mark.as_str(): "yes"}});
    }
    Some(change(ObjectKind::PersistentVolume, &volume.metadata, Part::Main, patch))
}

/// Makes the claim name its volume.
fn complete(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    context: &ClaimContext<'_>,
) -> Option<Write> {
    let marks = context.marks;
    if has(&claim.metadata, &marks.bind_completed) {
        return None;
    }
    let mut annotations = Map::from_iter([(marks.bind_completed.clone(), json!("yes"))]);
    let mut patch = json!({});
    if claim.spec.volume_name.is_empty() {
        annotations.insert(marks.bound_by_controller.clone(), json!("yes"));
        patch["spec"] = json!({"volumeName": volume.metadata.name});
    }
    patch["metadata"] = json!({"annotations": annotations});
    Some(change(ObjectKind::PersistentVolumeClaim, &claim.metadata, Part::Main, patch))
}

// === A claim that was bound ===

/// A bound claim keeps its volume; when that is gone, the claim is lost and never given another.
fn keep(claim: &PersistentVolumeClaim, context: &ClaimContext<'_>) -> Plan {
    let lost = |reason, message: &str| {
        if claim.status.phase == "Lost" {
            return Plan::default();
        }
        let mut plan = told(context, claim, EventKind::Warning, reason, message);
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
        Some(of) if of.uid == claim.metadata.uid => Plan::of(show_bound(claim, &volume)),
        None => Plan::of(promise(claim, &volume, context)),
        Some(_) if is_promised(&volume, claim) => Plan::of(promise(claim, &volume, context)),
        Some(_) => {
            let message = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost("ClaimMisbound", message)
        }
    }
}

/// What the claim has got. Its size is told once: from then on it is the resizers' to tell.
fn show_bound(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Write> {
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

fn pending(claim: &PersistentVolumeClaim) -> Option<Write> {
    (claim.status.phase != "Pending").then(|| status(claim, json!({"phase": "Pending"})))
}

fn status(claim: &PersistentVolumeClaim, fields: Value) -> Write {
    let fields = json!({ "status": fields });
    change(ObjectKind::PersistentVolumeClaim, &claim.metadata, Part::Status, fields)
}

#[cfg(test)]
mod tests;
