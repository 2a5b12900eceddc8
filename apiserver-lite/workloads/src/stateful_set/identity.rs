//! The identity of a pod of a set: its ordinal, name, hostname, and claims.

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
    let mut volumes: Vec<Volume> = claims(set, ordinal).into_iter().map(volume_of).collect();
    let templates = &set.spec.volume_claim_templates;
    let own = std::mem::take(&mut pod.spec.volumes).into_iter();
    volumes.extend(
        own.filter(|volume| {
            !templates.iter().any(|template| template.metadata.name == volume.name)
        }),
    );
    pod.spec.volumes = volumes;
    pod
}

fn volume_of((name, claim): (String, PersistentVolumeClaim)) -> Volume {
    let claim = PersistentVolumeClaimVolumeSource {
        claim_name: claim.metadata.name,
        ..PersistentVolumeClaimVolumeSource::default()
    };
    let volume_source =
        VolumeSource { persistent_volume_claim: Some(claim), ..VolumeSource::default() };
    Volume { name, volume_source }
}

/// The claims of the pod with this ordinal, with the names of their volumes.
pub(super) fn claims(set: &StatefulSet, ordinal: i32) -> Vec<(String, PersistentVolumeClaim)> {
    let selected = set.spec.selector.iter().flat_map(|selector| &selector.match_labels);
    let of = |template: &PersistentVolumeClaim| {
        let mut claim = template.clone();
        let volume = std::mem::take(&mut claim.metadata.name);
        claim.metadata.name = format!("{volume}-{}-{ordinal}", set.metadata.name);
        claim.metadata.namespace.clone_from(&set.metadata.namespace);
        let labels = selected.clone().map(|(key, value)| (key.clone(), value.clone()));
        claim.metadata.labels.extend(labels);
        (volume, claim)
    };
    set.spec.volume_claim_templates.iter().map(of).collect()
}
