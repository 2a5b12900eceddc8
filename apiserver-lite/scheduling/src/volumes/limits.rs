//! The filter NodeVolumeLimits: how many volumes of a CSI driver a node can have.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use proto_api::ObjectKey;
use proto_api::storage::v1::CSINode;

use super::{BindingAnnotations, StorageSnapshot};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;

/// The handles of volumes by driver.
pub(super) type DriverVolumes = BTreeMap<String, BTreeSet<String>>;

/// Limits by node and driver; a driver without an entry has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits(BTreeMap<String, BTreeMap<String, usize>>);

/// The limits in a CSINode.
pub fn of_node(node: &CSINode) -> BTreeMap<String, usize> {
    let drivers = node.spec.drivers.iter();
    let limit = |driver: &proto_api::storage::v1::CSINodeDriver| {
        let count = driver.allocatable.as_ref()?.count?;
        Some((driver.name.clone(), usize::try_from(count).ok()?))
    };
    drivers.filter_map(limit).collect()
}

impl FromIterator<(String, BTreeMap<String, usize>)> for Limits {
    fn from_iter<I: IntoIterator<Item = (String, BTreeMap<String, usize>)>>(nodes: I) -> Self {
        Self(nodes.into_iter().collect())
    }
}

impl Limits {
    /// Whether there are limits of the node.
    pub(super) fn concern(&self, load: &NodeLoad) -> bool {
        self.0.contains_key(&load.node.name)
    }

    /// Whether the volumes that a pod needs would exceed a limit of the node.
    pub(super) fn is_exceeded(
        &self,
        needed: &DriverVolumes,
        load: &NodeLoad,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
    ) -> bool {
        let Some(limits) = self.0.get(&load.node.name) else { return false };
        if needed.is_empty() {
            return false;
        }
        let attached = storage.derived.attached(load, || volumes(&load.pods, storage, annotations));
        limits.iter().any(|(driver, limit)| {
            let Some(needed) = needed.get(driver) else { return false };
            let attached = attached.get(driver);
            let is_new = |handle: &&String| !attached.is_some_and(|there| there.contains(*handle));
            let new = needed.iter().filter(is_new).count();
            new > 0 && attached.map_or(0, BTreeSet::len).saturating_add(new) > *limit
        })
    }
}

/// The handles of the pods' volumes; an unbound claim counts as one volume.
pub(super) fn volumes<P: Borrow<PodInfo>>(
    pods: &[P],
    storage: &StorageSnapshot,
    annotations: &BindingAnnotations,
) -> DriverVolumes {
    let mut all = DriverVolumes::new();
    for pod in pods.iter().map(Borrow::borrow) {
        for used in &pod.claims {
            proto_api::count_steps!(1);
            let key = ObjectKey::new(&pod.key.namespace, &used.name);
            if let Some((driver, handle)) = volume_of(&key, storage, annotations) {
                all.entry(driver).or_default().insert(handle);
            }
        }
    }
    all
}

/// The driver and the handle of a claim's volume.
fn volume_of(
    key: &ObjectKey,
    storage: &StorageSnapshot,
    annotations: &BindingAnnotations,
) -> Option<(String, String)> {
    let claim = storage.claims.get(key)?;
    match storage.volumes.get(&claim.spec.volume_name) {
        Some(volume) => {
            let csi = volume.spec.persistent_volume_source.csi.as_ref()?;
            Some((csi.driver.clone(), csi.volume_handle.clone()))
        }
        None => {
            let class = storage.classes.get(annotations.class_of(claim))?;
            Some((class.provisioner.clone(), format!("claim {}", claim.metadata.uid)))
        }
    }
}
