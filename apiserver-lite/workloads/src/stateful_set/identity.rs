//! The identity of a pod of a set: its ordinal, name, hostname, and claims.

use std::collections::BTreeSet;

use proto_api::apps::v1::StatefulSet;
use proto_api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume, VolumeSource,
};
use proto_api::meta::v1::OwnerReference;
use proto_api::names::Names;

use super::Revision;
use crate::pods::{REVISION_LABEL, from_template};

/// The set's name and the ordinal in the name of a pod; none if it ends with no ordinal.
pub(super) fn parent_and_ordinal(pod: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = pod.rsplit_once('-')?;
    let is_number = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return None;
    }
    // One beyond the range, or written in another way, belongs to the set and has no place in it.
    let number = ordinal.parse().ok().filter(|number: &i32| number.to_string() == ordinal);
    Some((parent, number.unwrap_or(-1)))
}

/// The ordinal of a pod; negative if it has none.
pub(super) fn ordinal(pod: &Pod) -> i32 {
    parent_and_ordinal(&pod.metadata.name).map_or(-1, |(_, ordinal)| ordinal)
}

/// The name of the pod with this ordinal.
pub(super) fn pod_name(set: &StatefulSet, ordinal: i32) -> String {
    format!("{}-{ordinal}", set.metadata.name)
}

/// The label with the name of a pod.
pub(super) fn name_label(names: &Names) -> String {
    names.sub_label("statefulset", "pod-name")
}

pub(super) fn new_pod(
    names: &Names,
    set: &StatefulSet,
    revision: &Revision<'_>,
    reference: OwnerReference,
    ordinal: i32,
) -> Pod {
    let mut pod = from_template(&revision.template, &set.metadata, reference);
    let name = pod_name(set, ordinal);
    pod.metadata.labels.insert(name_label(names), name.clone());
    pod.metadata.labels.insert(REVISION_LABEL.to_owned(), revision.name.to_owned());
    pod.spec.hostname.clone_from(&name);
    pod.spec.subdomain.clone_from(&set.spec.service_name);
    pod.metadata.name = name;
    let templates = &set.spec.volume_claim_templates;
    let of_claims: BTreeSet<&str> =
        templates.iter().map(|template| template.metadata.name.as_str()).collect();
    let volume = |template: &PersistentVolumeClaim| volume_of(set, template, ordinal);
    let mut volumes: Vec<Volume> = templates.iter().map(volume).collect();
    let own = std::mem::take(&mut pod.spec.volumes).into_iter();
    volumes.extend(own.filter(|volume| !of_claims.contains(volume.name.as_str())));
    pod.spec.volumes = volumes;
    pod
}

fn volume_of(set: &StatefulSet, template: &PersistentVolumeClaim, ordinal: i32) -> Volume {
    let claim = PersistentVolumeClaimVolumeSource {
        claim_name: claim_name(set, template, ordinal),
        ..PersistentVolumeClaimVolumeSource::default()
    };
    let volume_source =
        VolumeSource { persistent_volume_claim: Some(claim), ..VolumeSource::default() };
    Volume { name: template.metadata.name.clone(), volume_source }
}

/// The name of the claim that the pod with this ordinal has of a template.
pub(super) fn claim_name(
    set: &StatefulSet,
    template: &PersistentVolumeClaim,
    ordinal: i32,
) -> String {
    format!("{}-{}-{ordinal}", template.metadata.name, set.metadata.name)
}

/// The claim that the pod with this ordinal has of a template.
pub(super) fn new_claim(
    set: &StatefulSet,
    template: &PersistentVolumeClaim,
    ordinal: i32,
) -> PersistentVolumeClaim {
    let mut claim = template.clone();
    claim.metadata.name = claim_name(set, template, ordinal);
    claim.metadata.namespace.clone_from(&set.metadata.namespace);
    let selected = set.spec.selector.iter().flat_map(|selector| selector.match_labels.clone());
    claim.metadata.labels.extend(selected);
    claim
}
