//! The filter VolumeBinding: on which nodes the volumes of a pod's claims are or can be.
//!
//! ```text
//!   claim ── bound ───────────────────▶ the nodes of its volume
//!         ── WaitForFirstConsumer ────▶ nodes with a matching free volume, or where one can be provisioned
//!         ── Immediate, unbound ──────▶ no node
//! ```
//!
//! A claim with delayed binding is bound after the node is selected, and the pod after that: the selection is written to the objects
//! ([`VolumeChoice::patch`]), and the pod is retried when they change.

pub mod access_modes;
mod candidates;
mod derived;
pub mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_api::event_report::reference;
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use proto_api::{ObjectKey, Quantity, Resource as _};
use serde_json::{Value, json};

use crate::claim_use::ClaimUse;
use crate::node_info::NodeInfo;
use crate::node_selector::matches_required;
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use crate::profile::{Filter, Profile};
use crate::refusal::Refusal;
use candidates::{COMPARISONS_MAX, NodeStorage, UnboundClaim};
pub use derived::Derived;
use derived::{StorageIndex, VolumeNumbers};
use limits::{AttachedVolumes, Limits};

/// The storage objects of one scheduling cycle.
#[derive(Clone, Debug, Default)]
pub struct StorageSnapshot {
    pub claims: BTreeMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Classes by name.
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    /// Drivers by name.
    pub drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// Capacities that CSI drivers publish.
    pub capacities: Vec<Arc<CSIStorageCapacity>>,
    /// The volume limits of the nodes.
    pub limits: Limits,
    /// Volumes selected in this cycle.
    pub assumed: BTreeSet<String>,
    /// Of all these but the assumed volumes.
    pub derived: Derived,
}

/// The annotations, labels and plugins that the filters of volumes read, named by the naming profile.
#[derive(Clone, Debug)]
pub struct BindingAnnotations {
    bind_completed: String,
    bound_by_controller: String,
    selected_node: String,
    class: String,
    zones: Vec<String>,
    /// Labels of nodes that say the type of the machine, the newer one first.
    instance_types: [String; 2],
    /// The drivers that replace a plugin, by the plugin.
    plugins: BTreeMap<String, &'static str>,
}

impl BindingAnnotations {
    /// The names of a naming profile.
    pub fn new(names: &Names) -> Self {
        let failure_domain = |name: &str| names.sub_label("failure-domain.beta", name);
        Self {
            bind_completed: names.sub_label("pv", "bind-completed"),
            bound_by_controller: names.sub_label("pv", "bound-by-controller"),
            selected_node: names.sub_label("volume", "selected-node"),
            class: names.sub_label("volume.beta", "storage-class"),
            zones: vec![
                names.sub_label("topology", "zone"),
                names.sub_label("topology", "region"),
                failure_domain("zone"),
                failure_domain("region"),
            ],
            instance_types: ["node", "beta"].map(|of| names.sub_label(of, "instance-type")),
            plugins: limits::replaced_plugins(names),
        }
    }

    fn class_of<'a>(&self, claim: &'a PersistentVolumeClaim) -> &'a str {
        let annotated = claim.metadata.annotations.get(&self.class);
        annotated.or(claim.spec.storage_class_name.as_ref()).map_or("", String::as_str)
    }

    fn class_of_volume<'a>(&self, volume: &'a PersistentVolume) -> &'a str {
        volume.metadata.annotations.get(&self.class).unwrap_or(&volume.spec.storage_class_name)
    }
}

/// What a pod's claims require of a node.
#[derive(Clone, Debug, Default)]
pub struct ClaimRequirements {
    /// The bound volumes.
    bound: Vec<Arc<PersistentVolume>>,
    /// Claims that are bound once the node is selected.
    unbound: Vec<UnboundClaim>,
    /// The numbers of the node affinities of volumes that these can have.
    affinities: BTreeSet<usize>,
    /// The volumes that count for the limits of nodes.
    attached: AttachedVolumes,
    /// Names of claims with the access mode ReadWriteOncePod.
    exclusive: BTreeSet<String>,
    /// Whether a bound volume does not exist.
    volume_missing: bool,
}

/// How a claim with delayed binding gets its volume on a node.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeChoice {
    /// It is bound to this volume.
    Bind(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// A volume is provisioned.
    Provision(Arc<PersistentVolumeClaim>),
}

/// A merge patch, conditional on the object's version.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumePatch {
    /// Of a PersistentVolume.
    Volume(String, Value),
    /// Of a PersistentVolumeClaim.
    Claim(ObjectKey, Value),
}

impl VolumePatch {
    /// The claim that it changes, and the claim's version for which it holds.
    pub fn claim(&self) -> Option<(&ObjectKey, &str)> {
        let Self::Claim(key, patch) = self else { return None };
        let version = patch.pointer("/metadata/resourceVersion").and_then(Value::as_str)?;
        Some((key, version))
    }
}

impl ClaimRequirements {
    /// Computes the requirements of the pod's claims.
    ///
    /// # Errors
    /// Why no node is feasible.
    pub fn from_pod(
        pod: &PodInfo,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
    ) -> Result<Self, Refusal> {
        let mut requirements =
            Self { attached: limits::volumes(&[pod], storage, annotations), ..Self::default() };
        let mut comparisons_left = COMPARISONS_MAX;
        for used in &pod.claims {
            let key = ObjectKey::new(&pod.key.namespace, &used.name);
            let claim = check_claim(pod, used, storage.claims.get(&key))?;
            let named = &claim.spec.volume_name;
            if claim.spec.access_modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                requirements.exclusive.insert(used.name.clone());
            }
            let bound = claim.metadata.annotations.contains_key(&annotations.bind_completed);
            if !named.is_empty() && bound {
                match storage.volumes.get(named) {
                    Some(volume) => requirements.bound.push(volume.clone()),
                    None => requirements.volume_missing = true,
                }
                continue;
            }
            let class = storage.classes.get(annotations.class_of(claim));
            let delayed = class.is_some_and(|class| {
                class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
            });
            if !(delayed && named.is_empty()) {
                let why = "pod has unbound immediate PersistentVolumeClaims";
                return Err(Refusal::Claims(why.to_owned()));
            }
            let (claims, left) = (pod.claims.len(), &mut comparisons_left);
            let unbound = UnboundClaim::new(claim, storage, annotations, claims, left)?;
            requirements.affinities.extend(unbound.affinities());
            requirements.unbound.push(unbound);
        }
        // The smaller claims take the smaller volumes, so that the larger ones are left to the others.
        let request = |unbound: &UnboundClaim| size(&unbound.claim.spec.resources.requests);
        requirements.unbound.sort_by_key(request);
        Ok(requirements)
    }

    /// Checks a node, what costs least first, and selects a volume for each claim with delayed binding.
    ///
    /// # Errors
    /// Why the node is not feasible.
    pub fn check(
        &self,
        load: &NodeLoad,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
        profile: &Profile,
    ) -> Result<Vec<VolumeChoice>, Refusal> {
        let node = load.node.as_ref();
        if self.volume_missing {
            return Err(Refusal::VolumeNotFound);
        }
        if self.bound.iter().any(|volume| !is_reachable(volume, node)) {
            return Err(Refusal::VolumeNodeAffinity);
        }
        let elsewhere = |volume: &Arc<PersistentVolume>| !is_in_zone(volume, node, annotations);
        if profile.asks(Filter::VolumeZone) && self.bound.iter().any(elsewhere) {
            return Err(Refusal::VolumeZone);
        }
        if storage.limits.is_exceeded(&self.attached, load, storage, annotations, profile) {
            return Err(Refusal::MaxVolumeCount);
        }
        let mut on_node = NodeStorage::new(node, storage, annotations, &self.affinities);
        let mut taken = VolumeNumbers::default();
        let mut choices = Vec::new();
        for unbound in &self.unbound {
            let claim = &unbound.claim;
            let selected = claim.metadata.annotations.get(&annotations.selected_node);
            if selected.is_some_and(|selected| *selected != node.name) {
                return Err(Refusal::NoVolumeToBind);
            }
            match unbound.find_volume(&on_node, &taken) {
                Some((number, volume)) if selected.is_none() || is_reserved_for(volume, claim) => {
                    number.into_iter().for_each(|number| taken.insert(number));
                    choices.push(VolumeChoice::Bind(claim.clone(), volume.clone()));
                }
                _ => {
                    let request = size(&claim.spec.resources.requests);
                    on_node.check_provisioning(annotations.class_of(claim), request)?;
                    choices.push(VolumeChoice::Provision(claim.clone()));
                }
            }
        }
        Ok(choices)
    }

    /// At most how many entries of claims and of what they may have [`Self::check`] and [`Self::is_used_by_another`] look at.
    pub fn cost(
        &self,
        loads: &[NodeLoad],
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
    ) -> usize {
        let volumes_of = |load: &NodeLoad| {
            let volumes = |pod: &Arc<PodInfo>| {
                pod.claims.len().saturating_add(pod.cloud_disks.len()).saturating_add(1)
            };
            load.pods.iter().map(volumes).fold(0, usize::saturating_add)
        };
        let mut cost = self.bound.len().saturating_add(self.affinities.len());
        if !self.exclusive.is_empty() {
            cost = loads.iter().map(volumes_of).fold(cost, usize::saturating_add);
        }
        if !self.attached.is_empty() {
            let limited = loads.iter().filter(|load| storage.limits.concern(&self.attached, load));
            cost = cost.saturating_add(limited.map(volumes_of).max().unwrap_or(0));
        }
        let volumes = self.affinities.len().saturating_add(self.unbound.len());
        cost = cost.saturating_add(self.unbound.len().saturating_mul(volumes));
        let classes: BTreeSet<&str> =
            self.unbound.iter().map(|unbound| annotations.class_of(&unbound.claim)).collect();
        let capacities = classes
            .into_iter()
            .map(|class| StorageIndex::for_storage(storage, annotations).capacities(class).len());
        capacities.fold(cost, usize::saturating_add)
    }

    /// Whether another pod, on any node, uses one of the pod's ReadWriteOncePod claims. One with too many claims counts as one that does.
    pub fn is_used_by_another(&self, pod: &PodInfo, loads: &[NodeLoad]) -> bool {
        let uses = |other: &PodInfo| {
            other.uid != pod.uid
                && other.key.namespace == pod.key.namespace
                && (other.has_excess_claims()
                    || other.claims.iter().any(|claim| self.exclusive.contains(&claim.name)))
        };
        !self.exclusive.is_empty()
            && loads.iter().flat_map(|load| &load.pods).any(|other| uses(other))
    }
}

/// The claim if it exists, belongs to the pod if it is ephemeral, and is neither lost nor terminating.
fn check_claim<'a>(
    pod: &PodInfo,
    used: &ClaimUse,
    found: Option<&'a Arc<PersistentVolumeClaim>>,
) -> Result<&'a Arc<PersistentVolumeClaim>, Refusal> {
    let name = &used.name;
    let refused = |why: String| Err(Refusal::Claims(why));
    let Some(claim) = found else {
        return refused(if used.ephemeral {
            format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            )
        } else {
            format!("persistentvolumeclaim {name:?} not found")
        });
    };
    if claim.status.phase == "Lost" {
        let volume = &claim.spec.volume_name;
        return refused(format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return refused(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    let owns = |owner: &OwnerReference| owner.controller == Some(true) && owner.uid == pod.uid;
    if used.ephemeral && !claim.metadata.owner_references.iter().any(owns) {
        let (claim, pod) = (ObjectKey::from_metadata(&claim.metadata), &pod.key);
        return refused(format!("PVC {claim} was not created for pod {pod} (pod is not owner)"));
    }
    Ok(claim)
}

// === Topology of a volume ===

fn is_reachable(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let affinity = volume.spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    affinity.is_none_or(|required| matches_required(required, node))
}

/// Zone labels of a volume apply to nodes that have such labels; a value may list several zones.
fn is_in_zone(
    volume: &PersistentVolume,
    node: &NodeInfo,
    annotations: &BindingAnnotations,
) -> bool {
    let known: Vec<&String> =
        annotations.zones.iter().filter(|key| node.labels.contains_key(*key)).collect();
    known.is_empty()
        || annotations.zones.iter().all(|key| {
            let Some(zones) = volume.metadata.labels.get(key) else { return true };
            let own = node.labels.get(key);
            own.is_some_and(|own| zones.split("__").any(|zone| zone == own))
        })
}

// === Volume of a claim ===

fn is_reserved_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| {
        of.name == claim.metadata.name
            && of.namespace == claim.metadata.namespace
            && (of.uid.is_empty() || of.uid == claim.metadata.uid)
    })
}

fn size(resources: &BTreeMap<String, Quantity>) -> Quantity {
    resources.get("storage").copied().unwrap_or(Quantity::ZERO)
}

impl VolumeChoice {
    /// The name of the volume to bind.
    pub fn volume_name(&self) -> Option<&str> {
        match self {
            Self::Bind(_, volume) => Some(&volume.metadata.name),
            Self::Provision(_) => None,
        }
    }

    /// The patch that selects the volume or the node; none if it is written.
    pub fn patch(
        &self,
        names: &Names,
        annotations: &BindingAnnotations,
        node: &str,
    ) -> Option<VolumePatch> {
        match self {
            Self::Bind(claim, volume) => {
                let of = volume.spec.claim_ref.as_ref();
                if of.is_some_and(|of| of.uid == claim.metadata.uid) {
                    return None;
                }
                let mut metadata = precondition(&volume.metadata);
                if of.is_none() {
                    metadata["annotations"] =
                        json!({annotations.bound_by_controller.as_str(): "yes"});
                }
                let of = reference(claim.as_ref(), names);
                let patch = json!({"metadata": metadata, "spec": {"claimRef": of}});
                Some(VolumePatch::Volume(volume.metadata.name.clone(), patch))
            }
            Self::Provision(claim) => {
                if claim
                    .metadata
                    .annotations
                    .get(&annotations.selected_node)
                    .is_some_and(|n| n == node)
                {
                    return None;
                }
                let mut metadata = precondition(&claim.metadata);
                metadata["annotations"] = json!({annotations.selected_node.as_str(): node});
                Some(VolumePatch::Claim(
                    ObjectKey::from_metadata(claim.metadata()),
                    json!({"metadata": metadata}),
                ))
            }
        }
    }
}

fn precondition(metadata: &ObjectMeta) -> Value {
    json!({"uid": metadata.uid, "resourceVersion": metadata.resource_version})
}

#[cfg(test)]
mod tests;
