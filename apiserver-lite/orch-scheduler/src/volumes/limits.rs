//! How many volumes of a driver a node can have at once.

use std::collections::{BTreeMap, BTreeSet};

use proto_api::storage::v1::CSINode;
use proto_client::ObjectKey;

use super::{Marks, Storage};
use crate::nodes::NodeLoad;
use crate::pod_info::PodInfo;

/// By node and driver; what is not here has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Limits(BTreeMap<String, BTreeMap<String, usize>>);

/// The limits that a node tells of its drivers.
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
    /// Whether a node cannot have the volumes of one pod more.
    pub(super) fn is_exceeded(
        &self,
        pod: &PodInfo,
        load: &NodeLoad,
        storage: &Storage,
        marks: &Marks,
    ) -> bool {
        let Some(limits) = self.0.get(&load.node.name) else { return false };
        let wanted: BTreeSet<(String, String)> = volumes(pod, storage, marks).collect();
        if wanted.is_empty() {
            return false;
        }
        let there: BTreeSet<(String, String)> =
            load.residents.iter().flat_map(|pod| volumes(pod, storage, marks)).collect();
        limits.iter().any(|(driver, limit)| {
            let of = |all: &BTreeSet<(String, String)>| {
                all.iter().filter(|(name, _)| name == driver).count()
            };
            let new = wanted.difference(&there).filter(|(name, _)| name == driver).count();
            new > 0 && of(&there).saturating_add(new) > *limit
        })
    }
}

/// The driver and the name of each of a pod's volumes; a claim without a volume counts for the one that it will have.
fn volumes<'a>(
    pod: &'a PodInfo,
    storage: &'a Storage,
    marks: &'a Marks,
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
                let class = storage.classes.get(marks.class_of(claim))?;
                Some((class.provisioner.clone(), format!("claim {}", claim.metadata.uid)))
            }
        }
    })
}
