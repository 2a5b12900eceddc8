//! The keys of claims, volumes and attachments that a change affects.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver_controller_io::informers::Informers;
use apiserver_controllers::volumes::{
    VolumeAnnotations, attach, claim_of, claims_of, ephemeral, fit, has_excess_volumes,
};
use proto_api::ObjectKey;
use proto_api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::meta::v1::OwnerReference;
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_client::Change;

use super::{ReconcileKey, WatchedKind, split};

impl WatchedKind for PersistentVolumeClaim {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = Vec::new();
        if new.is_some() {
            keys.push(ReconcileKey::Claim(key.clone()));
            keys.push(ReconcileKey::ClaimProtection(key.clone()));
            keys.push(ReconcileKey::Expand(key.clone()));
        }
        for claim in [new, old].into_iter().flatten() {
            keys.extend(of_volume(&claim.spec.volume_name));
        }
        let named = |claim: Option<&Arc<Self>>| claim.map(|claim| claim.spec.volume_name.clone());
        if named(new) != named(old) {
            let is_it = |volume: &Arc<PersistentVolume>| {
                let of = volume.spec.claim_ref.as_ref();
                of.is_some_and(|of| of.name == key.name && of.namespace == key.namespace)
            };
            let promised = informers.volumes.objects().into_iter().filter(is_it);
            keys.extend(promised.flat_map(|volume| of_volume(&volume.metadata.name)));
        }
        let users = match new.map(bound_fields) == old.map(bound_fields) {
            true => Vec::new(),
            false => users(informers, key),
        };
        for pod in users {
            keys.extend(of_node(&pod));
            if new.is_none() && ephemeral::has_own(&pod) {
                keys.push(ReconcileKey::EphemeralClaims(ObjectKey::from_metadata(&pod.metadata)));
            }
        }
        keys
    }
}

impl WatchedKind for PersistentVolume {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = if new.is_some() { of_volume(&key.name) } else { Vec::new() };
        let claims: BTreeSet<ObjectKey> =
            [new, old].into_iter().flatten().filter_map(|volume| claim_of(volume)).collect();
        for claim in claims {
            keys.extend(users(informers, &claim).iter().filter_map(of_node));
            keys.push(ReconcileKey::Claim(claim));
        }
        let is_free = |volume: &Arc<Self>| {
            volume.spec.claim_ref.is_none() && volume.status.phase == "Available"
        };
        if let Some(volume) = new.filter(|volume| is_free(volume)) {
            let marks = VolumeAnnotations::new(informers.names);
            keys.extend(unbound(informers, |claim| fit::can_bind(&marks, volume, claim)));
        }
        // A claim may wait for a volume of this name.
        if new.is_some() && old.is_none() {
            let waiting = informers.claims.objects().into_iter();
            let waiting = waiting.filter(|claim| claim.spec.volume_name == key.name);
            keys.extend(
                waiting.map(|claim| ReconcileKey::Claim(ObjectKey::from_metadata(&claim.metadata))),
            );
        }
        keys
    }
}

fn of_volume(name: &str) -> Vec<ReconcileKey> {
    if name.is_empty() {
        return Vec::new();
    }
    vec![ReconcileKey::Volume(name.to_owned()), ReconcileKey::VolumeProtection(name.to_owned())]
}

/// The keys of unbound claims that match.
fn unbound(
    informers: &Informers,
    concerns: impl Fn(&PersistentVolumeClaim) -> bool,
) -> impl Iterator<Item = ReconcileKey> {
    let claims = informers.claims.objects().into_iter();
    let free = claims.filter(move |claim| claim.spec.volume_name.is_empty() && concerns(claim));
    free.map(|claim| ReconcileKey::Claim(ObjectKey::from_metadata(&claim.metadata)))
}

/// The pods that use a claim.
pub(crate) fn users(informers: &Informers, claim: &ObjectKey) -> Vec<Arc<Pod>> {
    let pods = informers.pods_using(claim);
    proto_api::count_steps!(pods.len());
    pods
}

/// The fields of a claim that decide which volume its pods need attached.
fn bound_fields(claim: &Arc<PersistentVolumeClaim>) -> (&str, &str, &[OwnerReference]) {
    let metadata = &claim.metadata;
    (&metadata.uid, &claim.spec.volume_name, &metadata.owner_references)
}

/// The key of the node of a pod that a node may run.
fn of_node(pod: &Arc<Pod>) -> Option<ReconcileKey> {
    let node = &pod.spec.node_name;
    (!node.is_empty() && !has_excess_volumes(pod)).then(|| ReconcileKey::Attachments(node.clone()))
}

impl WatchedKind for StorageClass {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        match split(change) {
            Some((key, Some(_), _)) => {
                let marks = VolumeAnnotations::new(informers.names);
                // A claim without a class may wait for a default class.
                let concerns = |claim: &PersistentVolumeClaim| {
                    marks.class_of_claim(claim).is_none_or(|class| class == key.name)
                };
                unbound(informers, concerns).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl WatchedKind for CSIDriver {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        if split(change).is_none() {
            return Vec::new();
        }
        let nodes = informers.nodes.list().into_iter();
        nodes.map(|(key, _)| ReconcileKey::Attachments(key.name)).collect()
    }
}

impl WatchedKind for VolumeAttachment {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = split(change) else { return Vec::new() };
        let Some(attachment) = new.or(old) else { return Vec::new() };
        let mut keys = vec![ReconcileKey::Attachments(attachment.spec.node_name.clone())];
        if new.is_none() {
            // Another node can attach the volume now.
            let volume = attach::volume_of(attachment);
            let volume = volume.and_then(|name| informers.volumes.get(&ObjectKey::new("", name)));
            let claim = volume.as_deref().and_then(claim_of);
            let waiting = claim.map(|claim| users(informers, &claim)).unwrap_or_default();
            keys.extend(waiting.iter().filter_map(of_node));
        }
        keys
    }
}

/// The keys of a changed pod's claims and node.
pub(super) fn keys_of_pod(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
) -> Vec<ReconcileKey> {
    let mut keys = Vec::new();
    let Some(pod) = new.or(old) else { return keys };
    if pod.spec.volumes.is_empty() || new.map(used_fields) == old.map(used_fields) {
        return keys;
    }
    if new.is_some() && ephemeral::has_own(pod) {
        keys.push(ReconcileKey::EphemeralClaims(key.clone()));
    }
    for name in claims_of(pod) {
        let claim = ObjectKey::new(&key.namespace, name);
        let Some(known) = informers.claims.get(&claim) else { continue };
        if known.spec.volume_name.is_empty() && !has_excess_volumes(pod) {
            keys.push(ReconcileKey::Claim(claim.clone()));
        }
        // A change of the claim queues it otherwise, its deletion as well.
        if known.metadata.deletion_timestamp.is_some() {
            keys.push(ReconcileKey::ClaimProtection(claim));
        }
    }
    keys.extend(of_node(pod));
    keys
}

/// The fields of a pod that decide whether it uses its claims, and on which node.
fn used_fields(pod: &Arc<Pod>) -> impl PartialEq + use<> {
    let (spec, status) = (&pod.spec, &pod.status);
    let going = pod.metadata.deletion_timestamp.is_some();
    (pod.metadata.uid.clone(), spec.node_name.clone(), status.phase.clone(), going)
}

/// The keys of a changed node's attachments.
pub(super) fn keys_of_node(
    key: &ObjectKey,
    new: Option<&Arc<Node>>,
    old: Option<&Arc<Node>>,
) -> Option<ReconcileKey> {
    let seen = |node: &Arc<Node>| {
        let status = &node.status;
        let ready = status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
        let volumes = (status.volumes_in_use.clone(), status.volumes_attached.clone());
        (node.spec.taints.clone(), volumes, ready)
    };
    (new.map(seen) != old.map(seen)).then(|| ReconcileKey::Attachments(key.name.clone()))
}
