//! Which changes make us look at claims, volumes and what is attached.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto_api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_client::{Change, ObjectKey};

use super::{ReconcileKey, Watched, parts};
use crate::controllers::volumes::{Marks, attach, claim_of, claims_of, ephemeral, fit};
use crate::informers::Informers;

impl Watched for PersistentVolumeClaim {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let mut tasks = Vec::new();
        if new.is_some() {
            tasks.push(ReconcileKey::Claim(key.clone()));
            tasks.push(ReconcileKey::ClaimProtection(key.clone()));
            tasks.push(ReconcileKey::Expand(key.clone()));
        }
        for claim in [new, old].into_iter().flatten() {
            tasks.extend(of_volume(&claim.spec.volume_name));
        }
        let named = |claim: Option<&Arc<Self>>| claim.map(|claim| claim.spec.volume_name.clone());
        if named(new) != named(old) {
            let is_it = |volume: &Arc<PersistentVolume>| {
                let of = volume.spec.claim_ref.as_ref();
                of.is_some_and(|of| of.name == key.name && of.namespace == key.namespace)
            };
            let promised = informers.volumes.objects().into_iter().filter(is_it);
            tasks.extend(promised.flat_map(|volume| of_volume(&volume.metadata.name)));
        }
        for pod in users(informers, key) {
            tasks.extend(of_node(&pod));
            if new.is_none() && ephemeral::has_own(&pod) {
                tasks.push(ReconcileKey::OwnClaims(ObjectKey::of(&pod.metadata)));
            }
        }
        tasks
    }
}

impl Watched for PersistentVolume {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let mut tasks = if new.is_some() { of_volume(&key.name) } else { Vec::new() };
        let claims: BTreeSet<ObjectKey> =
            [new, old].into_iter().flatten().filter_map(|volume| claim_of(volume)).collect();
        for claim in claims {
            tasks.extend(users(informers, &claim).iter().filter_map(of_node));
            tasks.push(ReconcileKey::Claim(claim));
        }
        let is_free = |volume: &Arc<Self>| {
            volume.spec.claim_ref.is_none() && volume.status.phase == "Available"
        };
        if let Some(volume) = new.filter(|volume| is_free(volume)) {
            let marks = Marks::new(informers.names);
            tasks.extend(unbound(informers, |claim| fit::suits(&marks, volume, claim)));
        }
        // A claim that names a volume waits for it under its name.
        if new.is_some() && old.is_none() {
            let waiting = informers.claims.objects().into_iter();
            let waiting = waiting.filter(|claim| claim.spec.volume_name == key.name);
            tasks.extend(waiting.map(|claim| ReconcileKey::Claim(ObjectKey::of(&claim.metadata))));
        }
        tasks
    }
}

fn of_volume(name: &str) -> Vec<ReconcileKey> {
    if name.is_empty() {
        return Vec::new();
    }
    vec![ReconcileKey::Volume(name.to_owned()), ReconcileKey::VolumeProtection(name.to_owned())]
}

/// Those of the claims without a volume that something concerns.
fn unbound(
    informers: &Informers,
    concerns: impl Fn(&PersistentVolumeClaim) -> bool,
) -> impl Iterator<Item = ReconcileKey> {
    let claims = informers.claims.objects().into_iter();
    let free = claims.filter(move |claim| claim.spec.volume_name.is_empty() && concerns(claim));
    free.map(|claim| ReconcileKey::Claim(ObjectKey::of(&claim.metadata)))
}

/// The pods that use a claim.
pub(crate) fn users(informers: &Informers, claim: &ObjectKey) -> Vec<Arc<Pod>> {
    let mut pods = informers.pods.within(&claim.namespace);
    pods.retain(|pod| claims_of(pod).any(|name| name == claim.name));
    pods
}

fn of_node(pod: &Arc<Pod>) -> Option<ReconcileKey> {
    let node = &pod.spec.node_name;
    (!node.is_empty()).then(|| ReconcileKey::Attachments(node.clone()))
}

impl Watched for StorageClass {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        match parts(change) {
            Some((key, Some(_), _)) => {
                let marks = Marks::new(informers.names);
                // It may be the default, which a claim without a class waits for.
                let concerns = |claim: &PersistentVolumeClaim| {
                    marks.class_of_claim(claim).is_none_or(|class| class == key.name)
                };
                unbound(informers, concerns).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Watched for CSIDriver {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        if parts(change).is_none() {
            return Vec::new();
        }
        let nodes = informers.nodes.list().into_iter();
        nodes.map(|(key, _)| ReconcileKey::Attachments(key.name)).collect()
    }
}

impl Watched for VolumeAttachment {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = parts(change) else { return Vec::new() };
        let Some(attachment) = new.or(old) else { return Vec::new() };
        let mut tasks = vec![ReconcileKey::Attachments(attachment.spec.node_name.clone())];
        if new.is_none() {
            // Another node may have it now.
            let volume = attach::volume_of(attachment);
            let volume = volume.and_then(|name| informers.volumes.get(&ObjectKey::new("", name)));
            let claim = volume.as_deref().and_then(claim_of);
            let waiting = claim.map(|claim| users(informers, &claim)).unwrap_or_default();
            tasks.extend(waiting.iter().filter_map(of_node));
        }
        tasks
    }
}

/// What a change of a pod means for its claims and its node.
pub(super) fn of_pod(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
) -> Vec<ReconcileKey> {
    let mut tasks = Vec::new();
    let Some(pod) = new.or(old) else { return tasks };
    if pod.spec.volumes.is_empty() || new.map(seen) == old.map(seen) {
        return tasks;
    }
    if new.is_some() && ephemeral::has_own(pod) {
        tasks.push(ReconcileKey::OwnClaims(key.clone()));
    }
    for name in claims_of(pod) {
        let claim = ObjectKey::new(&key.namespace, name);
        let known = informers.claims.get(&claim);
        if known.is_some_and(|claim| claim.spec.volume_name.is_empty()) {
            tasks.push(ReconcileKey::Claim(claim.clone()));
        }
        tasks.push(ReconcileKey::ClaimProtection(claim));
    }
    tasks.extend(of_node(pod));
    tasks
}

/// What of a pod decides whether it uses its claims, and where.
fn seen(pod: &Arc<Pod>) -> impl PartialEq + use<> {
    let (spec, status) = (&pod.spec, &pod.status);
    let going = pod.metadata.deletion_timestamp.is_some();
    (pod.metadata.uid.clone(), spec.node_name.clone(), status.phase.clone(), going)
}

/// What a change of a node means for what is attached to it.
pub(super) fn of_changed_node(
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
