//! A volume and what becomes of it when its claim goes.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_api::names::Names;
use proto_client::events::EventKind;
use serde_json::{Value, json};

use super::{Marks, change, fit, has, say};
use crate::api_writes::{ObjectKind, Part, Write};
use crate::controllers::Plan;

/// The next step of a volume. `claim` is the object under the name that the volume refers to, if there is one.
pub fn plan(
    names: &Names,
    marks: &Marks,
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Plan {
    let Some(of) = volume.spec.claim_ref.as_ref().filter(|of| !of.uid.is_empty()) else {
        return Plan::of(phase(volume, "Available"));
    };
    match claim.filter(|claim| claim.metadata.uid == of.uid) {
        None => release(names, marks, volume),
        Some(claim) if claim.spec.volume_name == volume.metadata.name => {
            Plan::of(phase(volume, "Bound"))
        }
        Some(claim) if claim.spec.volume_name.is_empty() => mismatch(names, volume, claim),
        Some(_) => let_go(names, marks, volume),
    }
}

/// The claim is about to be bound, or never will be.
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
    let said = vec![
        say(names, volume, kind, "VolumeMismatch", to_volume),
        say(names, claim, kind, "VolumeMismatch", to_claim),
    ];
    Plan { said, ..Plan::default() }
}

/// The claim has another volume: this one was made for it and is not needed, or is free again.
fn let_go(names: &Names, marks: &Marks, volume: &PersistentVolume) -> Plan {
    let made_for_it = has(&volume.metadata, &marks.provisioned_by)
        && volume.spec.persistent_volume_reclaim_policy == "Delete";
    if made_for_it {
        return release(names, marks, volume);
    }
    let by_us = has(&volume.metadata, &marks.bound_by_controller);
    let patch = if by_us {
        let mark = &marks.bound_by_controller;
        json!({"metadata": {"annotations": {mark.as_str(): null}}, "spec": {"claimRef": null}})
    } else {
        // The user's promise stays, to whoever bears that name next.
        json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}})
    };
    Plan::of([change(ObjectKind::PersistentVolume, &volume.metadata, Part::Main, patch)])
}

/// The claim is gone: says so first, then does what the policy asks for.
fn release(names: &Names, marks: &Marks, volume: &PersistentVolume) -> Plan {
    match volume.status.phase.as_str() {
        "Released" => reclaim(names, marks, volume),
        "Failed" => Plan::default(),
        _ => Plan::of(phase(volume, "Released")),
    }
}

fn reclaim(names: &Names, marks: &Marks, volume: &PersistentVolume) -> Plan {
    let failed = |reason, message: String| {
        let fields = json!({"phase": "Failed", "message": message});
        let said = vec![say(names, volume, EventKind::Warning, reason, message)];
        Plan { writes: vec![status(volume, fields)], said, ..Plan::default() }
    };
    match volume.spec.persistent_volume_reclaim_policy.as_str() {
        "Delete" if is_external(names, marks, volume) => Plan::default(),
        // Paths of nodes are not this program's to delete, and other sources have no deleter here.
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

/// Whether somebody else deletes what is behind the volume, and then the volume.
fn is_external(names: &Names, marks: &Marks, volume: &PersistentVolume) -> bool {
    let by = volume.metadata.annotations.get(&marks.provisioned_by);
    by.is_some_and(|by| !by.starts_with(&names.label("")))
        || has(&volume.metadata, &marks.migrated_to)
}

fn phase(volume: &PersistentVolume, phase: &str) -> Option<Write> {
    let fields = json!({"phase": phase, "message": null, "reason": null});
    (volume.status.phase != phase).then(|| status(volume, fields))
}

fn status(volume: &PersistentVolume, fields: Value) -> Write {
    let fields = json!({ "status": fields });
    change(ObjectKind::PersistentVolume, &volume.metadata, Part::Status, fields)
}

#[cfg(test)]
mod tests {
    use super::super::examples::*;
    use super::*;

    /// What is done, in short.
    fn done(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> String {
        let plan = plan(names(), &Marks::new(names()), volume, claim);
        let short = |write: &Write| match write {
            Write::Patch { part: Part::Status, patch, .. } => {
                patch["status"]["phase"].as_str().unwrap().to_owned()
            }
            Write::Patch { patch, .. } => patch["spec"].to_string(),
            other => unreachable!("{other:?}"),
        };
        let said = plan.said.iter().map(|said| said.reason.to_string());
        plan.writes.iter().map(short).chain(said).collect::<Vec<_>>().join(" ")
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
    fn what_is_released_is_kept_deleted_or_refused() {
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
    fn a_volume_whose_claim_has_another_is_let_go() {
        let (mut volume, mut claim) = bound("Delete", "Available");
        claim.spec.volume_name = "another".into();
        assert_eq!(
            done(&volume, Some(&claim)),
            r#"{"claimRef":{"uid":null,"resourceVersion":null}}"#
        );
        let marks = Marks::new(names());
        volume.metadata.annotations.insert(marks.bound_by_controller.clone(), "yes".into());
        assert_eq!(done(&volume, Some(&claim)), r#"{"claimRef":null}"#);
        volume.metadata.annotations.insert(marks.provisioned_by.clone(), "disk.csi.test".into());
        assert_eq!(done(&volume, Some(&claim)), "Released", "one too many");
    }
}
