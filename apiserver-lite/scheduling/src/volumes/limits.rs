//! The filter NodeVolumeLimits: how many volumes of a CSI driver a node can have.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::ObjectKey;
use proto_api::storage::v1::CSINode;

use super::{BindingAnnotations, StorageSnapshot};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;

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
    /// Whether the volumes of the pod would exceed a limit of the node.
    pub(super) fn is_exceeded(
        &self,
        pod: &PodInfo,
        load: &NodeLoad,
        storage: &StorageSnapshot,
        annotations: &BindingAnnotations,
    ) -> bool {
        let Some(limits) = self.0.get(&load.node.name) else { return false };
        let needed: BTreeSet<(String, String)> = volumes(pod, storage, annotations).collect();
        if needed.is_empty() {
            return false;
        }
        let attached: BTreeSet<(String, String)> =
            load.pods.iter().flat_map(|pod| volumes(pod, storage, annotations)).collect();
        limits.iter().any(|(driver, limit)| {
            let of = |all: &BTreeSet<(String, String)>| {
                all.iter().filter(|(name, _)| name == driver).count()
            };
            let new = needed.difference(&attached).filter(|(name, _)| name == driver).count();
            new > 0 && of(&attached).saturating_add(new) > *limit
        })
    }
}

/// The driver and the handle of each of a pod's volumes; an unbound claim counts as one volume.
fn volumes<'a>(
    pod: &'a PodInfo,
    storage: &'a StorageSnapshot,
    annotations: &'a BindingAnnotations,
) -> impl Iterator<Item = (String, String)> + 'a {
    pod.claims.iter().filter_map(move |used| {
        let key = ObjectKey::new(&pod.key.namespace, &used.name);
        let claim = storage.claims.get(&key)?;
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
    })
}
