//! Finalizers that keep claims as long as pods use them, and volumes as long as they are a claim's.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::meta::v1::ObjectMeta;
use serde_json::json;

use super::{Marks, is_own, own_claim};
use crate::api_writes::{ObjectKind, Part, Write};
use crate::controllers::Plan;

/// Puts the finalizer on a claim, or takes it off one that is to go and is not used.
pub fn plan_claim(marks: &Marks, claim: &PersistentVolumeClaim, used: bool) -> Plan {
    let kind = ObjectKind::PersistentVolumeClaim;
    Plan::of(step(kind, &claim.metadata, &marks.claim_protection, used))
}

/// The same for a volume. `claim` is the object under the name that the volume refers to.
pub fn plan_volume(
    marks: &Marks,
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Plan {
    let used = is_claimed(volume, claim);
    let kind = ObjectKind::PersistentVolume;
    Plan::of(step(kind, &volume.metadata, &marks.volume_protection, used))
}

/// Whether an object that is to go still waits for a protection to be lifted.
pub fn is_held(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.deletion_timestamp.is_some() && metadata.finalizers.iter().any(|f| f == finalizer)
}

/// A volume is in use while it is bound, and from the moment that it is promised to a claim that is there.
fn is_claimed(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let of = volume.spec.claim_ref.as_ref();
    let theirs = claim.is_some_and(|c| of.is_some_and(|of| of.uid == c.metadata.uid));
    volume.status.phase == "Bound"
        || theirs && !matches!(volume.status.phase.as_str(), "Released" | "Failed")
}

fn step(kind: ObjectKind, metadata: &ObjectMeta, finalizer: &str, used: bool) -> Option<Write> {
    let there = metadata.finalizers.iter().any(|other| other == finalizer);
    let mut finalizers = metadata.finalizers.clone();
    match (metadata.deletion_timestamp.is_some(), there) {
        (false, false) => finalizers.push(finalizer.to_owned()),
        (true, true) if !used => finalizers.retain(|other| other != finalizer),
        _ => return None,
    }
    let patch = json!({"metadata": {"finalizers": finalizers}});
    Some(super::change(kind, metadata, Part::Main, patch))
}

/// Whether a pod uses a claim so that the claim may not go. A pod that has no node yet will not be started with a
/// claim that is to go.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.spec.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    let name = &claim.metadata.name;
    pod.spec.volumes.iter().any(|volume| {
        let source = &volume.volume_source;
        source.persistent_volume_claim.as_ref().is_some_and(|of| of.claim_name == *name)
            || source.ephemeral.is_some()
                && own_claim(pod, &volume.name) == *name
                && is_own(pod, claim)
                && !is_over(pod)
    })
}

/// A pod that has ended and is to go needs its own claims no more.
fn is_over(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use proto_api::Time;

    use super::super::examples::*;
    use super::*;

    fn finalizers(plan: &Plan) -> Option<usize> {
        plan.writes.first().map(|write| match write {
            Write::Patch { patch, .. } => {
                patch["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
            }
            other => unreachable!("{other:?}"),
        })
    }

    #[test]
    fn a_claim_is_kept_as_long_as_a_pod_uses_it() {
        let marks = Marks::new(names());
        let planned =
            |claim: &PersistentVolumeClaim, used| finalizers(&plan_claim(&marks, claim, used));
        let mut claim = claim("c");
        assert_eq!(planned(&claim, false), Some(1));
        claim.metadata.finalizers = vec![marks.claim_protection.clone(), "else/x".into()];
        assert_eq!(planned(&claim, false), None);
        claim.metadata.deletion_timestamp = Some(Time::from_unix(1));
        assert_eq!(planned(&claim, true), None);
        assert_eq!(planned(&claim, false), Some(1), "the other stays");
        claim.metadata.finalizers.clear();
        assert_eq!(planned(&claim, false), None, "none is put on what goes");
    }

    #[test]
    fn which_pods_use_a_claim() {
        let wanted = claim("c");
        assert!(uses(&user("p", "c", "n"), &wanted));
        assert!(!uses(&user("p", "c", ""), &wanted), "it has no node");
        assert!(!uses(&user("p", "d", "n"), &wanted));
        let mut over = user("p", "c", "n");
        over.status.phase = "Succeeded".into();
        assert!(uses(&over, &wanted), "until the pod is gone");
    }

    #[test]
    fn a_volume_is_kept_from_its_promise_to_its_release() {
        let marks = Marks::new(names());
        let owner = claim("c");
        let planned = |phase: &str, claim: Option<&PersistentVolumeClaim>| {
            let mut volume = promised("v", &owner, true);
            volume.status.phase = phase.into();
            volume.metadata.finalizers = vec![marks.volume_protection.clone()];
            volume.metadata.deletion_timestamp = Some(Time::from_unix(1));
            finalizers(&plan_volume(&marks, &volume, claim)).is_some()
        };
        assert!(!planned("Bound", Some(&owner)) && !planned("Bound", None));
        assert!(!planned("Available", Some(&owner)), "between the two writes of a binding");
        assert!(planned("Available", None) && planned("Released", None) && planned("Failed", None));
    }
}
