//! The volumes that an unbound claim can have: which match it is found once for a pod, and which of them a node reaches once for the node.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proto_api::Quantity;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use proto_api::meta::v1::LabelSelector;
use proto_api::selectors::Selector;

use super::derived::{StorageIndex, VolumeNumbers};
use super::{BindingAnnotations, StorageSnapshot, is_reachable, size};
use crate::node_info::NodeInfo;
use crate::node_selector::matches_required;
use crate::refusal::Refusal;

/// Most comparisons of the claims of a pod, and of the requirements of their selectors, with volumes.
pub(super) const COMPARISONS_MAX: usize = 5_000_000;

/// A claim that is bound once the node is selected.
#[derive(Clone, Debug)]
pub(super) struct UnboundClaim {
    pub(super) claim: Arc<PersistentVolumeClaim>,
    volumes: Candidates,
}

/// The volumes that a claim can have.
#[derive(Clone, Debug)]
enum Candidates {
    /// This one, which is for no other claim; none if it does not match.
    Reserved(Option<Arc<PersistentVolume>>),
    /// One of these by the number of their node affinity, each with its own number.
    Available(BTreeMap<usize, Vec<(usize, Arc<PersistentVolume>)>>),
}

impl UnboundClaim {
    /// Finds the volumes of a claim. `left` are the comparisons that are left to the pod, which has `claims` claims.
    ///
    /// # Errors
    /// They do not suffice.
    pub(super) fn new(
        claim: &Arc<PersistentVolumeClaim>,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
        claims: usize,
        left: &mut usize,
    ) -> Result<Self, Refusal> {
        let index = StorageIndex::for_storage(storage, annotations);
        let class = annotations.class_of(claim);
        let all = index.available(class);
        let own = claim.spec.selector.as_ref();
        // The selector itself is read, too.
        let cost = all.len().saturating_add(1).saturating_mul(own.map_or(1, weight));
        *left = left.checked_sub(cost).ok_or_else(|| {
            let why = format!(
                "node(s) were not tried: the selectors of the pod's unbound persistent volume claims need more than {COMPARISONS_MAX} comparisons with volumes"
            );
            Refusal::Claims(why)
        })?;
        let made = |volumes| Ok(Self { claim: claim.clone(), volumes });
        let selector = match own.map(|own| Selector::from_label_selector(own, "spec.selector")) {
            Some(Err(_)) => return made(Candidates::Reserved(None)),
            Some(Ok(selector)) => Some(selector),
            None => None,
        };
        if let Some(reserved) = index.reserved_for(claim) {
            let matches = annotations.class_of_volume(reserved) == class && fits(claim, reserved);
            return made(Candidates::Reserved(matches.then(|| reserved.clone())));
        }
        let mut found: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for candidate in all {
            let volume = &candidate.volume;
            let is_free = !storage.assumed.contains(&volume.metadata.name)
                && fits(claim, volume)
                && selector.as_ref().is_none_or(|s| s.matches(&volume.metadata.labels));
            if is_free {
                let of_affinity = found.entry(candidate.affinity).or_default();
                // The other claims of the pod take fewer than these.
                if of_affinity.len() < claims {
                    of_affinity.push((candidate.number, volume.clone()));
                }
            }
        }
        made(Candidates::Available(found))
    }

    /// The numbers of the node affinities of its volumes.
    pub(super) fn affinities(&self) -> impl Iterator<Item = usize> + '_ {
        let found = match &self.volumes {
            Candidates::Available(found) => Some(found),
            Candidates::Reserved(_) => None,
        };
        found.into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// The most suitable volume for the node that is not `taken`. An available one has a number.
    pub(super) fn find_volume(
        &self,
        node: &NodeStorage<'_>,
        taken: &VolumeNumbers,
    ) -> Option<(Option<usize>, &Arc<PersistentVolume>)> {
        let found = match &self.volumes {
            Candidates::Reserved(volume) => {
                let volume = volume.as_ref().filter(|volume| is_reachable(volume, node.node));
                return volume.map(|volume| (None, volume));
            }
            Candidates::Available(found) => found,
        };
        let is_free = |(number, _): &&(usize, Arc<PersistentVolume>)| {
            proto_api::count_steps!(1);
            !taken.contains(*number)
        };
        let reached = node.reached().iter().filter_map(|nth| found.get(nth));
        let first = reached.filter_map(|volumes| volumes.iter().find(is_free));
        let (number, volume) = first.min_by_key(|(number, _)| *number)?;
        Some((Some(*number), volume))
    }
}

/// The requirements and values of a selector, and one.
fn weight(selector: &LabelSelector) -> usize {
    let values = selector.match_expressions.iter().map(|one| one.values.len().saturating_add(1));
    values.fold(selector.match_labels.len().saturating_add(1), usize::saturating_add)
}

/// Whether a volume of its class suits a claim, wherever it is.
fn fits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    proto_api::count_steps!(1);
    let (spec, wanted) = (&volume.spec, &claim.spec);
    volume.metadata.deletion_timestamp.is_none()
        && mode(spec.volume_mode.as_ref()) == mode(wanted.volume_mode.as_ref())
        && size(&spec.capacity) >= size(&wanted.resources.requests)
        && wanted.access_modes.iter().all(|mode| spec.access_modes.contains(mode))
}

fn mode(mode: Option<&String>) -> &str {
    mode.map_or("Filesystem", String::as_str)
}

/// A node, and what claims have asked about it.
pub(super) struct NodeStorage<'a> {
    pub(super) node: &'a NodeInfo,
    storage: &'a StorageSnapshot,
    index: &'a StorageIndex,
    /// The numbers of the node affinities that matter.
    affinities: &'a BTreeSet<usize>,
    reached: OnceCell<Vec<usize>>,
    /// What can be provisioned, by class.
    provisioning: BTreeMap<&'a str, Provisioning>,
}

/// Which volumes of a class can be provisioned for a node.
#[derive(Clone, Copy)]
enum Provisioning {
    None,
    AnySize,
    /// Of at most this size; none if there is no room.
    UpTo(Option<Quantity>),
}

impl<'a> NodeStorage<'a> {
    pub(super) fn new(
        node: &'a NodeInfo,
        storage: &'a StorageSnapshot,
        annotations: &BindingAnnotations,
        affinities: &'a BTreeSet<usize>,
    ) -> Self {
        let index = StorageIndex::for_storage(storage, annotations);
        let (reached, provisioning) = (OnceCell::new(), BTreeMap::new());
        Self { node, storage, index, affinities, reached, provisioning }
    }

    /// Those of the node affinities that the node matches.
    fn reached(&self) -> &[usize] {
        self.reached.get_or_init(|| {
            let is_matched = |nth: &usize| {
                proto_api::count_steps!(1);
                self.index.affinity(*nth).is_none_or(|of| matches_required(of, self.node))
            };
            self.affinities.iter().copied().filter(is_matched).collect()
        })
    }

    /// Whether the provisioner of a class can provision a volume of this size.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_provisioning(
        &mut self,
        class: &'a str,
        request: Quantity,
    ) -> Result<(), Refusal> {
        let found = match self.provisioning.get(class) {
            Some(found) => *found,
            None => {
                let found = self.find_provisioning(class);
                self.provisioning.insert(class, found);
                found
            }
        };
        match found {
            Provisioning::None => Err(Refusal::NoVolumeToBind),
            Provisioning::AnySize => Ok(()),
            Provisioning::UpTo(largest) => largest
                .is_some_and(|largest| largest >= request)
                .then_some(())
                .ok_or(Refusal::NoStorageCapacity),
        }
    }

    fn find_provisioning(&self, class: &str) -> Provisioning {
        let labels = &self.node.labels;
        let Some(class) = self.storage.classes.get(class) else { return Provisioning::None };
        let provisioner = &class.provisioner;
        if provisioner.is_empty() || provisioner.ends_with("/no-provisioner") {
            return Provisioning::None;
        }
        let is_allowed = class.allowed_topologies.is_empty()
            || class.allowed_topologies.iter().any(|term| {
                term.match_label_expressions.iter().all(|label| {
                    labels.get(&label.key).is_some_and(|value| label.values.contains(value))
                })
            });
        if !is_allowed {
            return Provisioning::None;
        }
        let driver = self.storage.drivers.get(provisioner);
        if driver.is_none_or(|driver| driver.spec.storage_capacity != Some(true)) {
            return Provisioning::AnySize;
        }
        let all = self.index.capacities(&class.metadata.name).iter();
        let here = all.filter(|capacity| {
            proto_api::count_steps!(1);
            capacity.nodes.matches(labels)
        });
        Provisioning::UpTo(here.map(|capacity| capacity.largest).max())
    }
}
