//! The pvc-protection and pv-protection controllers: finalizers on claims that pods use, and on bound volumes.

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::meta::v1::ObjectMeta;
use serde_json::json;

use super::{VolumeAnnotations, ephemeral_claim_name, is_ephemeral_claim_of};
use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// Adds the finalizer to a claim, or removes it from a terminating claim that is not used.
pub fn plan_claim(
    annotations: &VolumeAnnotations,
    claim: &PersistentVolumeClaim,
    used: bool,
) -> Plan {
    let kind = ObjectKind::PersistentVolumeClaim;
    Plan::from_writes(step(kind, &claim.metadata, &annotations.claim_protection, used))
}

/// The same for a volume. `claim` is the object with the name in its claimRef.
pub fn plan_volume(
    annotations: &VolumeAnnotations,
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
) -> Plan {
    let used = is_claimed(volume, claim);
    let kind = ObjectKind::PersistentVolume;
    Plan::from_writes(step(kind, &volume.metadata, &annotations.volume_protection, used))
}

/// Whether a terminating object has the finalizer.
pub fn has_finalizer(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.deletion_timestamp.is_some() && metadata.finalizers.iter().any(|f| f == finalizer)
}

/// Whether a volume is bound, or reserved for an existing claim.
fn is_claimed(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let of = volume.spec.claim_ref.as_ref();
    let theirs = claim.is_some_and(|c| of.is_some_and(|of| of.uid == c.metadata.uid));
    volume.status.phase == "Bound"
        || theirs && !matches!(volume.status.phase.as_str(), "Released" | "Failed")
}

fn step(kind: ObjectKind, metadata: &ObjectMeta, finalizer: &str, used: bool) -> Option<ApiWrite> {
    let there = metadata.finalizers.iter().any(|other| other == finalizer);
    let mut finalizers = metadata.finalizers.clone();
    match (metadata.deletion_timestamp.is_some(), there) {
        (false, false) => finalizers.push(finalizer.to_owned()),
        (true, true) if !used => finalizers.retain(|other| other != finalizer),
        _ => return None,
    }
    let patch = json!({"metadata": {"finalizers": finalizers}});
    Some(super::conditional_patch(kind, metadata, Part::Main, patch))
}

/// Whether a pod's use of a claim protects it. An unscheduled pod is not scheduled with a terminating claim.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if pod.spec.node_name.is_empty() || pod.metadata.namespace != claim.metadata.namespace {
        return false;
    }
    let name = &claim.metadata.name;
    pod.spec.volumes.iter().any(|volume| {
        let source = &volume.volume_source;
        source.persistent_volume_claim.as_ref().is_some_and(|of| of.claim_name == *name)
            || source.ephemeral.is_some()
                && ephemeral_claim_name(pod, &volume.name) == *name
                && is_ephemeral_claim_of(pod, claim)
                && !is_over(pod)
    })
}

/// Whether a pod is finished and terminating, so that its ephemeral claims are not used.
fn is_over(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
        && matches!(pod.status.phase.as_str(), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests {
    use proto_api::Time;

    use super::*;
    use crate::volumes::examples::*;

    fn finalizers(plan: &Plan) -> Option<usize> {
        plan.writes.first().map(|write| match write {
            ApiWrite::Patch { patch, .. } => {
                patch["metadata"]["finalizers"].as_array().map_or(0, Vec::len)
            }
            other => unreachable!("{other:?}"),
        })
    }

    #[test]
    fn a_claim_is_kept_as_long_as_a_pod_uses_it() {
        let annotations = VolumeAnnotations::new(names());
        let planned = |claim: &PersistentVolumeClaim, used| {
            finalizers(&plan_claim(&annotations, claim, used))
        };
        let mut claim = claim("c");
        assert_eq!(planned(&claim, false), Some(1));
        claim.metadata.finalizers = vec![annotations.claim_protection.clone(), "else/x".into()];
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
        let annotations = VolumeAnnotations::new(names());
        let owner = claim("c");
        let planned = |phase: &str, claim: Option<&PersistentVolumeClaim>| {
            let mut volume = promised("v", &owner, true);
            volume.status.phase = phase.into();
            volume.metadata.finalizers = vec![annotations.volume_protection.clone()];
            volume.metadata.deletion_timestamp = Some(Time::from_unix(1));
            finalizers(&plan_volume(&annotations, &volume, claim)).is_some()
        };
        assert!(!planned("Bound", Some(&owner)) && !planned("Bound", None));
        assert!(!planned("Available", Some(&owner)), "between the two writes of a binding");
        assert!(planned("Available", None) && planned("Released", None) && planned("Failed", None));
    }
}
