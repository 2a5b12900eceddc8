//! What the storage objects of a cycle say to claims, derived from them once: no claim looks at all of them for each node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use proto_api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use proto_api::selectors::Selector;
use proto_api::{ObjectKey, Quantity};

use super::limits::AttachedVolumes;
use super::{BindingAnnotations, StorageSnapshot, is_reserved_for, size};
use crate::nodes::{LoadStamp, NodeLoad};

/// What is derived from a snapshot on its first use. The objects of the snapshot do not change after that; a clone begins again.
#[derive(Debug, Default)]
pub struct Derived {
    index: OnceLock<StorageIndex>,
    /// The volumes on each node, in the state of its load in which they were last counted.
    attached: Mutex<BTreeMap<String, (LoadStamp, Arc<AttachedVolumes>)>>,
}

impl Clone for Derived {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Derived {
    /// The volumes on a node. `count` counts them if that has not been done for this state of it.
    pub(super) fn attached(
        &self,
        load: &NodeLoad,
        count: impl FnOnce() -> AttachedVolumes,
    ) -> Arc<AttachedVolumes> {
        let mut all = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&load.node.name) {
            Some((stamp, found)) if *stamp == load.stamp() => found.clone(),
            _ => {
                let found = Arc::new(count());
                all.insert(load.node.name.clone(), (load.stamp(), found.clone()));
                found
            }
        }
    }
}

/// Volumes by the claim or the class that they are for, and capacities by class.
#[derive(Debug, Default)]
pub(super) struct StorageIndex {
    /// Volumes by the claim that their claimRef names.
    reserved: BTreeMap<ObjectKey, Vec<Arc<PersistentVolume>>>,
    /// Volumes that any claim may have, by class, each class in the order of [`order`].
    available: BTreeMap<String, Vec<AvailableVolume>>,
    /// The node affinities of these, each once.
    affinities: Vec<Option<NodeSelector>>,
    /// The capacities of each class.
    capacities: BTreeMap<String, Vec<Capacity>>,
}

/// A volume that any claim of its class may have.
#[derive(Debug)]
pub(super) struct AvailableVolume {
    pub(super) volume: Arc<PersistentVolume>,
    /// Its place among those of all classes, each class in the order of [`order`].
    pub(super) number: usize,
    /// The number of its node affinity.
    pub(super) affinity: usize,
}

/// Available volumes by their numbers, a bit each: a pod of many claims asks for each of them on each node.
#[derive(Debug, Default)]
pub(super) struct VolumeNumbers(Vec<u64>);

impl VolumeNumbers {
    pub(super) fn insert(&mut self, number: usize) {
        let word = number / 64;
        if self.0.len() <= word {
            self.0.resize(word.saturating_add(1), 0);
        }
        if let Some(word) = self.0.get_mut(word) {
            *word |= 1 << (number % 64);
        }
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|word| word >> (number % 64) & 1 == 1)
    }
}

/// Room for volumes on some nodes.
#[derive(Debug)]
pub(super) struct Capacity {
    pub(super) nodes: Selector,
    /// The size of the largest volume.
    pub(super) largest: Quantity,
}

impl StorageIndex {
    /// The index of a snapshot.
    pub(super) fn for_storage<'a>(
        storage: &'a StorageSnapshot,
        annotations: &BindingAnnotations,
    ) -> &'a Self {
        storage.derived.index.get_or_init(|| Self::make(storage, annotations))
    }

    fn make(storage: &StorageSnapshot, annotations: &BindingAnnotations) -> Self {
        let (mut index, mut affinities) = (Self::default(), BTreeMap::new());
        for volume in storage.volumes.values() {
            if let Some(of) = &volume.spec.claim_ref {
                let key = ObjectKey::new(&of.namespace, &of.name);
                index.reserved.entry(key).or_default().push(volume.clone());
            } else if volume.status.phase == "Available" {
                let required =
                    volume.spec.node_affinity.as_ref().and_then(|all| all.required.as_ref());
                let text = serde_json::to_string(&required).unwrap_or_default();
                let affinity = *affinities.entry(text).or_insert_with(|| {
                    index.affinities.push(required.cloned());
                    index.affinities.len().saturating_sub(1)
                });
                let class = annotations.class_of_volume(volume).to_owned();
                let found = AvailableVolume { volume: volume.clone(), number: 0, affinity };
                index.available.entry(class).or_default().push(found);
            }
        }
        for volumes in index.available.values_mut() {
            volumes.sort_by_key(|found| order(&found.volume));
        }
        for (number, found) in index.available.values_mut().flatten().enumerate() {
            found.number = number;
        }
        for capacity in &storage.capacities {
            let nodes = capacity.node_topology.as_ref();
            let nodes = nodes.and_then(|s| Selector::from_label_selector(s, "nodeTopology").ok());
            let largest = capacity.maximum_volume_size.or(capacity.capacity);
            if let (Some(nodes), Some(largest)) = (nodes, largest) {
                let class = capacity.storage_class_name.clone();
                index.capacities.entry(class).or_default().push(Capacity { nodes, largest });
            }
        }
        index
    }

    /// The volume whose claimRef names the claim.
    pub(super) fn reserved_for(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> Option<&Arc<PersistentVolume>> {
        let named = self.reserved.get(&ObjectKey::from_metadata(&claim.metadata))?;
        named.iter().find(|volume| is_reserved_for(volume, claim))
    }

    /// The volumes that any claim of a class may have, the most suitable first.
    pub(super) fn available(&self, class: &str) -> &[AvailableVolume] {
        self.available.get(class).map_or(&[], Vec::as_slice)
    }

    /// A node affinity of volumes by its number.
    pub(super) fn affinity(&self, nth: usize) -> Option<&NodeSelector> {
        self.affinities.get(nth).and_then(Option::as_ref)
    }

    /// The capacities of a class.
    pub(super) fn capacities(&self, class: &str) -> &[Capacity] {
        self.capacities.get(class).map_or(&[], Vec::as_slice)
    }
}

/// Of two volumes that match a claim, the lesser one is selected: the smaller, whatever its access modes are.
fn order(volume: &PersistentVolume) -> (Quantity, usize) {
    (size(&volume.spec.capacity), volume.spec.access_modes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_each_for_itself() {
        let (mut numbers, own) = (VolumeNumbers::default(), [0, 63, 64, 1000]);
        for (nth, number) in own.into_iter().enumerate() {
            assert!(!numbers.contains(number), "{number}");
            numbers.insert(number);
            let found: Vec<usize> = (0..2000).filter(|number| numbers.contains(*number)).collect();
            assert_eq!(Some(&found[..]), own.get(..=nth));
        }
    }
}
