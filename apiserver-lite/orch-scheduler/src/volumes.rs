//! What a pod's claims say about its node: where the volumes are that it has, and where those can be that it still
//! needs.
//!
//! ```text
//!   claim ── bound ───────────────────▶ its volume's nodes only
//!         ── its class waits ─────────▶ nodes with a free volume that fits, or where one can be made
//!         ── neither ─────────────────▶ no node yet
//! ```
//!
//! A claim whose class waits is bound after the node is chosen, and the pod only after that: the choice is written to
//! the objects ([`Choice::write`]), and the pod is looked at again when they have changed.

pub mod disks;
pub mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use proto_api::meta::v1::{ObjectMeta, OwnerReference};
use proto_api::names::Names;
use proto_api::selectors::Selector;
use proto_api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};
use proto_api::{Quantity, Resource as _};
use proto_client::ObjectKey;
use proto_client::events::reference;
use serde_json::{Value, json};

use crate::filter::{Refusal, matches_term};
use crate::node_info::NodeInfo;
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;
use limits::Limits;

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// Its name.
    pub name: String,
    /// Whether the pod brings it along.
    pub own: bool,
}

/// The claims that a pod uses.
pub fn claims_of(pod: &Pod) -> Vec<ClaimUse> {
    let volumes = pod.spec.volumes.iter();
    let claim = |volume: &proto_api::core::v1::Volume| {
        let source = &volume.volume_source;
        if let Some(claim) = &source.persistent_volume_claim {
            return Some(ClaimUse { name: claim.claim_name.clone(), own: false });
        }
        let name = format!("{}-{}", pod.metadata.name, volume.name);
        source.ephemeral.is_some().then_some(ClaimUse { name, own: true })
    };
    volumes.filter_map(claim).collect()
}

/// All objects about storage, as one pass sees them.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    /// Claims.
    pub claims: BTreeMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Classes by name.
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    /// Drivers by name.
    pub drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// What is left to be made of.
    pub capacities: Vec<Arc<CSIStorageCapacity>>,
    /// How many volumes nodes can have.
    pub limits: Limits,
    /// Volumes chosen in this pass, which the map may not show yet.
    pub taken: BTreeSet<String>,
}

/// The annotations that decide, in the words of the naming profile.
#[derive(Clone, Debug)]
pub struct Marks {
    bind_completed: String,
    bound_by_controller: String,
    selected_node: String,
    class: String,
    zones: Vec<String>,
}

impl Marks {
    /// As the naming profile has them.
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

/// What a pod's claims need of a node.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Volumes that it has.
    bound: Vec<Arc<PersistentVolume>>,
    /// Claims that are bound once its node is known.
    waiting: Vec<Arc<PersistentVolumeClaim>>,
    /// A claim that another pod must not use, by name.
    alone: Vec<String>,
    /// A volume that is bound does not exist.
    missing: bool,
}

/// How a claim gets its volume on a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// It gets this one.
    Take(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>),
    /// One is made there.
    Make(Arc<PersistentVolumeClaim>),
}

/// A change of an object, conditional on its version.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Of a volume.
    Volume(String, Value),
    /// Of a claim.
    Claim(ObjectKey, Value),
}

impl Needs {
    /// What the pod's claims need.
    ///
    /// # Errors
    /// Why no node will do, whichever it is.
    pub fn of(pod: &PodInfo, storage: &Storage, marks: &Marks) -> Result<Self, Refusal> {
        let mut needs = Self::default();
        for used in &pod.claims {
            let key = ObjectKey::new(&pod.key.namespace, &used.name);
            let claim = usable(pod, used, storage.claims.get(&key))?;
            let named = &claim.spec.volume_name;
            if claim.spec.access_modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                needs.alone.push(used.name.clone());
            }
            let done = claim.metadata.annotations.contains_key(&marks.bind_completed);
            if !named.is_empty() && done {
                match storage.volumes.get(named) {
                    Some(volume) => needs.bound.push(volume.clone()),
                    None => needs.missing = true,
                }
                continue;
            }
            let class = storage.classes.get(marks.class_of(claim));
            let waits = class.is_some_and(|class| {
                class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
            });
            if !(waits && named.is_empty()) {
                let why = "pod has unbound immediate PersistentVolumeClaims";
                return Err(Refusal::Claims(why.to_owned()));
            }
            needs.waiting.push(claim.clone());
        }
        Ok(needs)
    }

    /// How each claim that waits gets its volume on a node.
    ///
    /// # Errors
    /// Why the node will not do.
    pub fn check(
        &self,
        pod: &PodInfo,
        load: &NodeLoad,
        storage: &Storage,
        marks: &Marks,
    ) -> Result<Vec<Choice>, Refusal> {
        let node = load.node.as_ref();
        if self.missing {
            return Err(Refusal::NoSuchVolume);
        }
        if self.bound.iter().any(|volume| !is_reachable(volume, node)) {
            return Err(Refusal::VolumeElsewhere);
        }
        if self.bound.iter().any(|volume| !is_in_zone(volume, node, marks)) {
            return Err(Refusal::VolumeZone);
        }
        if storage.limits.is_exceeded(pod, load, storage, marks) {
            return Err(Refusal::TooManyVolumes);
        }
        let mut chosen: BTreeSet<&str> = BTreeSet::new();
        let mut choices = Vec::new();
        for claim in &self.waiting {
            let decided = claim.metadata.annotations.get(&marks.selected_node);
            if decided.is_some_and(|decided| *decided != node.name) {
                return Err(Refusal::NoVolume);
            }
            let free = |volume: &PersistentVolume| {
                !chosen.contains(volume.metadata.name.as_str())
                    && !storage.taken.contains(&volume.metadata.name)
            };
            match find(claim, node, storage, marks, free) {
                Some(volume) if decided.is_none() || is_promised(volume, claim) => {
                    chosen.insert(&volume.metadata.name);
                    choices.push(Choice::Take(claim.clone(), volume.clone()));
                }
                _ => {
                    can_make(claim, node, storage, marks)?;
                    choices.push(Choice::Make(claim.clone()));
                }
            }
        }
        Ok(choices)
    }

    /// Whether a claim that is to be used by one pod only is used by another, on any node.
    pub fn is_shared(&self, pod: &PodInfo, loads: &[NodeLoad]) -> bool {
        let uses = |other: &PodInfo| {
            other.uid != pod.uid
                && other.key.namespace == pod.key.namespace
                && other.claims.iter().any(|claim| self.alone.contains(&claim.name))
        };
        !self.alone.is_empty()
            && loads.iter().flat_map(|load| &load.residents).any(|other| uses(other))
    }
}

/// The claim, if it is there, the pod's to use, and not about to go.
fn usable<'a>(
    pod: &PodInfo,
    used: &ClaimUse,
    found: Option<&'a Arc<PersistentVolumeClaim>>,
) -> Result<&'a Arc<PersistentVolumeClaim>, Refusal> {
    let name = &used.name;
    let refused = |why: String| Err(Refusal::Claims(why));
    let Some(claim) = found else {
        return refused(if used.own {
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
    if used.own && !claim.metadata.owner_references.iter().any(owns) {
        let (claim, pod) = (ObjectKey::of(&claim.metadata), &pod.key);
        return refused(format!("PVC {claim} was not created for pod {pod} (pod is not owner)"));
    }
    Ok(claim)
}

// === Where a volume is ===

fn is_reachable(volume: &PersistentVolume, node: &NodeInfo) -> bool {
    let affinity = volume.spec.node_affinity.as_ref().and_then(|a| a.required.as_ref());
    affinity.is_none_or(|required| {
        required.node_selector_terms.iter().any(|term| matches_term(term, node))
    })
}

/// Labels of zones on a volume hold for nodes that have such labels; one may name several zones.
fn is_in_zone(volume: &PersistentVolume, node: &NodeInfo, marks: &Marks) -> bool {
    let known: Vec<&String> =
        marks.zones.iter().filter(|key| node.labels.contains_key(*key)).collect();
    known.is_empty()
        || marks.zones.iter().all(|key| {
            let Some(zones) = volume.metadata.labels.get(key) else { return true };
            let here = node.labels.get(key);
            here.is_some_and(|here| zones.split("__").any(|zone| zone == here))
        })
}

// === Which volume a claim gets ===

fn is_promised(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.spec.claim_ref.as_ref().is_some_and(|of| {
        of.name == claim.metadata.name
            && of.namespace == claim.metadata.namespace
            && (of.uid.is_empty() || of.uid == claim.metadata.uid)
    })
}

/// The smallest free volume that fits the claim and that the node reaches; one that is promised to it before all others.
fn find<'a>(
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
    storage: &'a Storage,
    marks: &Marks,
    free: impl Fn(&PersistentVolume) -> bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let selector = match &claim.spec.selector {
        Some(selector) => Some(Selector::from_label_selector(selector, "spec.selector").ok()?),
        None => None,
    };
    let fits = |volume: &&Arc<PersistentVolume>| {
        let spec = &volume.spec;
        let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
        marks.class_of_volume(volume) == marks.class_of(claim)
            && volume.metadata.deletion_timestamp.is_none()
            && mode(&spec.volume_mode) == mode(&claim.spec.volume_mode)
            && size(&spec.capacity) >= size(&claim.spec.resources.requests)
            && claim.spec.access_modes.iter().all(|mode| spec.access_modes.contains(mode))
            && is_reachable(volume, node)
    };
    let promised = storage.volumes.values().find(|volume| is_promised(volume, claim));
    if let Some(promised) = promised {
        return Some(promised).filter(fits);
    }
    let open = |volume: &&Arc<PersistentVolume>| {
        volume.spec.claim_ref.is_none()
            && volume.status.phase == "Available"
            && selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels))
            && free(volume)
    };
    let all = storage.volumes.values().filter(open).filter(fits);
    all.min_by_key(|volume| (volume.spec.access_modes.len(), size(&volume.spec.capacity)))
}

fn size(resources: &BTreeMap<String, Quantity>) -> Quantity {
    resources.get("storage").copied().unwrap_or(Quantity::ZERO)
}

/// Whether the class's provisioner can make a volume for the node.
fn can_make(
    claim: &PersistentVolumeClaim,
    node: &NodeInfo,
    storage: &Storage,
    marks: &Marks,
) -> Result<(), Refusal> {
    let class = storage.classes.get(marks.class_of(claim)).ok_or(Refusal::NoVolume)?;
    let provisioner = &class.provisioner;
    if provisioner.is_empty() || provisioner.ends_with("/no-provisioner") {
        return Err(Refusal::NoVolume);
    }
    let allowed = class.allowed_topologies.is_empty()
        || class.allowed_topologies.iter().any(|term| {
            term.match_label_expressions.iter().all(|wanted| {
                node.labels.get(&wanted.key).is_some_and(|value| wanted.values.contains(value))
            })
        });
    if !allowed {
        return Err(Refusal::NoVolume);
    }
    let counts = storage
        .drivers
        .get(provisioner)
        .is_some_and(|driver| driver.spec.storage_capacity == Some(true));
    let wanted = size(&claim.spec.resources.requests);
    let has_room = |capacity: &Arc<CSIStorageCapacity>| {
        let selector = capacity.node_topology.as_ref();
        let selector = selector.and_then(|s| Selector::from_label_selector(s, "nodeTopology").ok());
        capacity.storage_class_name == class.metadata.name
            && selector.is_some_and(|selector| selector.matches(&node.labels))
            && capacity.maximum_volume_size.or(capacity.capacity).is_some_and(|q| q >= wanted)
    };
    if counts && !storage.capacities.iter().any(has_room) {
        return Err(Refusal::NoRoomForVolume);
    }
    Ok(())
}

impl Choice {
    /// The volume that is taken.
    pub fn taken(&self) -> Option<&str> {
        match self {
            Self::Take(_, volume) => Some(&volume.metadata.name),
            Self::Make(_) => None,
        }
    }

    /// What is to be written so that it comes true; nothing when it is written.
    pub fn write(&self, names: &Names, marks: &Marks, node: &str) -> Option<Write> {
        match self {
            Self::Take(claim, volume) => {
                let of = volume.spec.claim_ref.as_ref();
                if of.is_some_and(|of| of.uid == claim.metadata.uid) {
                    return None;
                }
                let mut metadata = condition(&volume.metadata);
                if of.is_none() {
                    metadata["annotations"] = json!({marks.bound_by_controller.as_str(): "yes"});
                }
                let of = reference(claim.as_ref(), names);
                let patch = json!({"metadata": metadata, "spec": {"claimRef": of}});
                Some(Write::Volume(volume.metadata.name.clone(), patch))
            }
            Self::Make(claim) => {
                if claim.metadata.annotations.get(&marks.selected_node).is_some_and(|n| n == node) {
                    return None;
                }
                let mut metadata = condition(&claim.metadata);
                metadata["annotations"] = json!({marks.selected_node.as_str(): node});
                Some(Write::Claim(ObjectKey::of(claim.metadata()), json!({"metadata": metadata})))
            }
        }
    }
}

fn condition(metadata: &ObjectMeta) -> Value {
    json!({"uid": metadata.uid, "resourceVersion": metadata.resource_version})
}

#[cfg(test)]
mod tests;
