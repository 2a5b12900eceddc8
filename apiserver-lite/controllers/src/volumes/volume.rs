//! The persistentvolume-binder's volumes: phase and reclaim policy.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_api::event_report::EventKind;
use proto_api::names::Names;
use serde_json::{Value, json};

use super::{VolumeAnnotations, conditional_patch, event_report, fit, has_annotation};
use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// Plans the next step of a volume. `claim` is the object with the name in its claimRef, if it exists.
pub fn plan(
    names: &Names,
    annotations: &VolumeAnnotations,
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Plan {
    let Some(of) = volume.spec.claim_ref.as_ref().filter(|of| !of.uid.is_empty()) else {
        return Plan::from_writes(phase(volume, "Available"));
    };
    match claim.filter(|claim| claim.metadata.uid == of.uid) {
        None => release(names, annotations, volume),
        Some(claim) if claim.spec.volume_name == volume.metadata.name => {
            Plan::from_writes(phase(volume, "Bound"))
        }
        Some(claim) if claim.spec.volume_name.is_empty() => mismatch(names, volume, claim),
        Some(_) => release_volume(names, annotations, volume),
    }
}

/// The claim is not bound: it may be bound to this volume later.
fn mismatch(names: &Names, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Plan {
    if fit::fault_of_mode(volume, claim).is_none() {
        return Plan::default();
    }
    let (of_volume, of_claim) = (&volume.metadata.name, &claim.metadata.name);
    let to_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {of_claim:?} due to incompatible volumeMode."
    );
    let to_claim = format!(
        "Cannot bind PersistentVolume {of_volume:?} to requested PersistentVolumeClaim {of_claim:?} due to incompatible volumeMode."
    );
    let kind = EventKind::Warning;
    let reports = vec![
        event_report(names, volume, kind, "VolumeMismatch", to_volume),
        event_report(names, claim, kind, "VolumeMismatch", to_claim),
    ];
    Plan { reports, ..Plan::default() }
}

/// The claim is bound to another volume: this one is deleted if it was provisioned for the claim, else released.
fn release_volume(
    names: &Names,
    annotations: &VolumeAnnotations,
    volume: &PersistentVolume,
) -> Plan {
    let made_for_it = has_annotation(&volume.metadata, &annotations.provisioned_by)
        && volume.spec.persistent_volume_reclaim_policy == "Delete";
    if made_for_it {
        return release(names, annotations, volume);
    }
    let by_us = has_annotation(&volume.metadata, &annotations.bound_by_controller);
    let patch = if by_us {
        let mark = &annotations.bound_by_controller;
        json!({"metadata": {"annotations": {mark.as_str(): null}}, "spec": {"claimRef": null}})
    } else {
        // A reservation by the user is kept for the next claim of the name.
        json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}})
    };
    Plan::from_writes([conditional_patch(
        ObjectKind::PersistentVolume,
        &volume.metadata,
        Part::Main,
        patch,
    )])
}

/// The claim is deleted: sets the phase, then applies the reclaim policy.
fn release(names: &Names, annotations: &VolumeAnnotations, volume: &PersistentVolume) -> Plan {
    match volume.status.phase.as_str() {
        "Released" => reclaim(names, annotations, volume),
        "Failed" => Plan::default(),
        _ => Plan::from_writes(phase(volume, "Released")),
    }
}

fn reclaim(names: &Names, annotations: &VolumeAnnotations, volume: &PersistentVolume) -> Plan {
    let failed = |reason, message: String| {
        let fields = json!({"phase": "Failed", "message": message});
        let reports = vec![event_report(names, volume, EventKind::Warning, reason, message)];
        Plan { writes: vec![status(volume, fields)], reports, ..Plan::default() }
    };
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "Delete" if is_external(names, annotations, volume) => Plan::default(),
        // Host paths are not deleted, and other sources have no deleter.
        "Delete" => failed(
            "VolumeFailedDelete",
            format!(
                "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                volume.metadata.name
            ),
        ),
        "Recycle" => {
            failed("VolumeFailedRecycle", "No recycler plugin found for the volume!".to_owned())
        }
        _ => Plan::default(),
    }
}

/// Whether an external provisioner deletes the storage and the volume.
fn is_external(names: &Names, annotations: &VolumeAnnotations, volume: &PersistentVolume) -> bool {
    let by = volume.metadata.annotations.get(&annotations.provisioned_by);
    by.is_some_and(|by| !by.starts_with(&names.label("")))
        || has_annotation(&volume.metadata, &annotations.migrated_to)
}

fn phase(volume: &PersistentVolume, phase: &str) -> Option<ApiWrite> {
    let fields = json!({"phase": phase, "message": null, "reason": null});
    (volume.status.phase != phase).then(|| status(volume, fields))
}

fn status(volume: &PersistentVolume, fields: Value) -> ApiWrite {
    let fields = json!({ "status": fields });
    conditional_patch(ObjectKind::PersistentVolume, &volume.metadata, Part::Status, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::examples::*;

    /// The plan in short form.
    fn done(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> String {
        let plan = plan(names(), &VolumeAnnotations::new(names()), volume, claim);
        let short = |write: &ApiWrite| match write {
            ApiWrite::Patch { part: Part::Status, patch, .. } => {
                patch["status"]["phase"].as_str().unwrap().to_owned()
            }
            ApiWrite::Patch { patch, .. } => patch["spec"].to_string(),
            other => unreachable!("{other:?}"),
        };
        let reports = plan.reports.iter().map(|event| event.reason.to_string());
        plan.writes.iter().map(short).chain(reports).collect::<Vec<_>>().join(" ")
    }

    fn bound(policy: &str, phase: &str) -> (PersistentVolume, PersistentVolumeClaim) {
        let mut claim = claim("c");
        claim.spec.volume_name = "v".into();
        let mut volume = promised("v", &claim, true);
        volume.spec.persistent_volume_reclaim_policy = policy.into();
        volume.status.phase = phase.into();
        (volume, claim)
    }

    #[test]
    fn phases() {
        let mut fresh = volume("v", "1Gi");
        assert_eq!(done(&fresh, None), "");
        fresh.status.phase = "Pending".into();
        assert_eq!(done(&fresh, None), "Available");
        let mut kept = promised("v", &claim("c"), false);
        kept.status.phase = "Pending".into();
        assert_eq!(done(&kept, None), "Available", "promised to a claim that may come");
        let (volume, claim) = bound("Retain", "Available");
        assert_eq!(done(&volume, Some(&claim)), "Bound");
        let mut unbound = claim.clone();
        unbound.spec.volume_name.clear();
        assert_eq!(done(&volume, Some(&unbound)), "", "the claim is about to follow");
        unbound.spec.volume_mode = Some("Block".into());
        assert_eq!(done(&volume, Some(&unbound)), "VolumeMismatch VolumeMismatch");
        let (volume, _) = bound("Retain", "Bound");
        assert_eq!(done(&volume, None), "Released");
        let mut again = claim.clone();
        again.metadata.uid = "another".into();
        assert_eq!(done(&volume, Some(&again)), "Released", "a new claim of that name is another");
    }

    #[test]
    fn released_volumes_are_handled_by_reclaim_policy() {
        let released = |policy: &str, by: Option<&str>| {
            let mut volume = bound(policy, "Released").0;
            if let Some(by) = by {
                let key = "pv.kubernetes.io/provisioned-by".to_owned();
                volume.metadata.annotations.insert(key, by.into());
            }
            done(&volume, None)
        };
        assert_eq!(released("Retain", None), "");
        assert_eq!(released("Delete", Some("disk.csi.test")), "", "its provisioner does it");
        assert_eq!(released("Delete", Some("kubernetes.io/x")), "Failed VolumeFailedDelete");
        assert_eq!(released("Delete", None), "Failed VolumeFailedDelete");
        assert_eq!(released("Recycle", None), "Failed VolumeFailedRecycle");
        assert_eq!(done(&bound("Delete", "Failed").0, None), "");
    }

    #[test]
    fn a_volume_whose_claim_is_bound_to_another_volume_is_released() {
        let (mut volume, mut claim) = bound("Delete", "Available");
        claim.spec.volume_name = "another".into();
        assert_eq!(
            done(&volume, Some(&claim)),
            r#"{"claimRef":{"uid":null,"resourceVersion":null}}"#
        );
        let annotations = VolumeAnnotations::new(names());
        volume.metadata.annotations.insert(annotations.bound_by_controller.clone(), "yes".into());
        assert_eq!(done(&volume, Some(&claim)), r#"{"claimRef":null}"#);
        volume
            .metadata
            .annotations
            .insert(annotations.provisioned_by.clone(), "disk.csi.test".into());
        assert_eq!(done(&volume, Some(&claim)), "Released", "one too many");
    }
}
