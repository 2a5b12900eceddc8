//! Pods: how long they have been ready, and how they are made from a template.

use std::time::Duration;

use apiserver_controllers::api_writes::{ApiWrite, ObjectKind};
use proto_api::core::v1::{Pod, PodTemplateSpec};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::{ObjectKey, Time};

/// Label with the revision that a pod was made from. It has no domain.
pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";

/// The revision that the pod was made from; empty if its label is missing.
pub(crate) fn revision(pod: &Pod) -> &str {
    pod.metadata.labels.get(REVISION_LABEL).map_or("", String::as_str)
}

/// Whether the pod has been ready for `min_ready_seconds`.
pub(crate) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Time) -> bool {
    available_in(pod, min_ready_seconds, now) == Some(Duration::ZERO)
}

/// The time until the pod is available; none if it is not ready.
pub(crate) fn available_in(pod: &Pod, min_ready_seconds: i32, now: Time) -> Option<Duration> {
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    if min_ready_seconds <= 0 {
        return Some(Duration::ZERO);
    }
    let since = ready.last_transition_time.unix().unwrap_or(0);
    let due = since.saturating_add(i64::from(min_ready_seconds));
    let left = due.saturating_sub(now.unix().unwrap_or(0));
    Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}

/// A pod of the template.
pub(crate) fn from_template(
    template: &PodTemplateSpec,
    owner: &ObjectMeta,
    reference: OwnerReference,
) -> Pod {
    Pod {
        metadata: ObjectMeta {
            generate_name: format!("{}-", owner.name),
            namespace: owner.namespace.clone(),
            labels: template.metadata.labels.clone(),
            annotations: template.metadata.annotations.clone(),
            finalizers: template.metadata.finalizers.clone(),
            owner_references: vec![reference],
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        ..Pod::default()
    }
}

/// Deletes the pod.
pub(crate) fn delete(pod: &Pod) -> ApiWrite {
    delete_object(ObjectKind::Pod, &pod.metadata)
}

/// Deletes the object of this metadata.
pub(crate) fn delete_object(kind: ObjectKind, metadata: &ObjectMeta) -> ApiWrite {
    let (key, uid) = (ObjectKey::from_metadata(metadata), metadata.uid.clone());
    ApiWrite::Delete { kind, key, uid, grace_secs: None }
}
