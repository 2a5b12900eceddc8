//! The ephemeral-volume controller: creates the claims of ephemeral volumes, which the pod owns.

use std::sync::Arc;

use proto_api::Kind as _;
use proto_api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use proto_api::event_report::EventKind;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;

use super::{ephemeral_claim_name, event_report, has_excess_volumes, is_ephemeral_claim_of};
use crate::Plan;
use crate::api_writes::ApiWrite;
use crate::owners::controlled_by;

/// Whether a pod has ephemeral volumes, and not too many volumes.
pub fn has_own(pod: &Pod) -> bool {
    let mut volumes = pod.spec.volumes.iter();
    !has_excess_volumes(pod) && volumes.any(|volume| volume.volume_source.ephemeral.is_some())
}

/// Plans the missing claims of a pod. A claim of the same name that the pod does not own gives an event, and the pod waits.
pub fn plan(
    names: &Names,
    pod: &Pod,
    claim: impl Fn(&str) -> Option<Arc<PersistentVolumeClaim>>,
) -> Plan {
    let mut plan = Plan::default();
    if pod.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    for volume in &pod.spec.volumes {
        if volume.volume_source.ephemeral.is_none() {
            continue;
        }
        match claim(&ephemeral_claim_name(pod, &volume.name)) {
            Some(claim) if !is_ephemeral_claim_of(pod, &claim) => {
                let (kind, message) = (EventKind::Warning, conflict(pod, &volume.name));
                plan.reports.push(event_report(names, pod, kind, "FailedBinding", message));
            }
            Some(_) => {}
            None => plan.writes.extend(own(names, pod, volume)),
        }
    }
    plan
}

fn conflict(pod: &Pod, volume: &str) -> String {
    let ObjectMeta { namespace, name, .. } = &pod.metadata;
    format!(
        "ephemeral volume {volume}: PVC {namespace}/{name}-{volume} was not created for pod {namespace}/{name} (pod is not owner)"
    )
}

fn own(names: &Names, pod: &Pod, volume: &Volume) -> Option<ApiWrite> {
    let template = volume.volume_source.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let api_version = names.api_version(Pod::GROUP, Pod::VERSION);
    let metadata = ObjectMeta {
        name: ephemeral_claim_name(pod, &volume.name),
        namespace: pod.metadata.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations: template.metadata.annotations.clone(),
        owner_references: vec![controlled_by(api_version, Pod::KIND, &pod.metadata)],
        ..ObjectMeta::default()
    };
    let claim = PersistentVolumeClaim {
        metadata,
        spec: template.spec.clone(),
        ..PersistentVolumeClaim::default()
    };
    Some(ApiWrite::Create(claim.into()))
}

#[cfg(test)]
mod tests {
    use proto_api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimTemplate};

    use super::*;
    use crate::api_writes::WrittenObject;
    use crate::volumes::examples::*;

    fn owner() -> Pod {
        let mut pod = user("p", "shared", "");
        let mut volume = Volume { name: "scratch".into(), ..Volume::default() };
        let mut template = PersistentVolumeClaimTemplate::default();
        template.metadata.labels.insert("kind".into(), "scratch".into());
        template.spec = claim("x").spec;
        volume.volume_source.ephemeral =
            Some(Box::new(EphemeralVolumeSource { volume_claim_template: Some(template) }));
        pod.spec.volumes.push(volume);
        pod
    }

    #[test]
    fn a_pod_gets_the_claims_that_it_brings_along() {
        let pod = owner();
        let planned = plan(names(), &pod, |_| None);
        let [ApiWrite::Create(WrittenObject::PersistentVolumeClaim(claim))] = &planned.writes[..]
        else {
            unreachable!("{planned:?}")
        };
        assert_eq!(claim.metadata.name, "p-scratch");
        assert_eq!(claim.metadata.labels["kind"], "scratch");
        assert_eq!(claim.metadata.owner_references[0].uid, "uid-p");
        assert_eq!(claim.metadata.owner_references[0].controller, Some(true));
        assert_eq!(claim.spec.access_modes, ["ReadWriteOnce"]);
        let there = Arc::new((**claim).clone());
        assert_eq!(plan(names(), &pod, |_| Some(there.clone())), Plan::default());
        let mut going = pod;
        going.metadata.deletion_timestamp = Some(proto_api::Time::from_unix(1));
        assert_eq!(plan(names(), &going, |_| None), Plan::default());
    }

    #[test]
    fn a_claim_that_was_there_before_is_not_taken() {
        let planned = plan(names(), &owner(), |name| Some(Arc::new(claim(name))));
        assert!(planned.writes.is_empty());
        assert_eq!(
            (&*planned.reports[0].reason, planned.reports[0].message.as_str()),
            (
                "FailedBinding",
                "ephemeral volume scratch: PVC ns/p-scratch was not created for pod ns/p (pod is not owner)"
            )
        );
    }
}
