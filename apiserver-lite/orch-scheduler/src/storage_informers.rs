//! The caches of storage objects, filled by watches, and their snapshot for one scheduling cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;

use proto_api::Resource;
use proto_api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use proto_api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use proto_client::{Change, Client, ListParams, Reflector, Store};
use proto_daemon::drain::DrainWatch;
use tokio::task::JoinHandle;

use crate::cycle_trigger::CycleTrigger;
use apiserver_scheduling::volumes::limits::{Limits, NodeLimits};
use apiserver_scheduling::volumes::{Derived, StorageSnapshot, access_modes};

/// The caches. Cheap to clone.
#[derive(Clone)]
pub struct StorageInformers {
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    drivers: Store<CSIDriver>,
    capacities: Store<CSIStorageCapacity>,
    limits: Store<NodeLimits>,
    /// The limit of the disks of each cloud for nodes that say none; none for the clouds' own.
    cloud_disks_max: Option<usize>,
}

/// The environment variable that limits the disks of a cloud on a node that says no limit, as in kube-scheduler.
pub const CLOUD_DISKS_VARIABLE: &str = "KUBE_MAX_PD_VOLS";

/// Reads the limit in [`CLOUD_DISKS_VARIABLE`]: a number above 0. Any other value gives none, with a warning unless it is empty.
pub fn read_cloud_disks_max(value: Option<&str>) -> Option<usize> {
    let value = value.filter(|value| !value.is_empty())?;
    let most = value.parse::<NonZeroUsize>().ok();
    if most.is_none() {
        tracing::warn!(
            value,
            "{CLOUD_DISKS_VARIABLE} is no number above 0; the limits of the clouds count"
        );
    }
    most.map(NonZeroUsize::get)
}

impl StorageInformers {
    /// Starts the watches; a change that a pod may wait for triggers a scheduling cycle. Nodes that say no limit of the disks of a cloud have
    /// `cloud_disks_max`, or the cloud's own.
    pub fn start(
        client: &Client,
        trigger: &CycleTrigger,
        drain: &DrainWatch,
        cloud_disks_max: Option<usize>,
    ) -> (Self, Vec<JoinHandle<()>>) {
        let (all, names) = (ListParams::default, client.names());
        let claims = Reflector::projected(client.all(), all(), slim_claim);
        let volumes = Reflector::projected(client.all(), all(), slim_volume);
        let classes = Reflector::projected(client.all(), all(), slim);
        let drivers = Reflector::projected(client.all(), all(), slim);
        let capacities = Reflector::projected(client.all(), all(), slim);
        let limits = Reflector::projected(client.all(), all(), move |node: CSINode| {
            NodeLimits::from_csi_node(names, &node)
        });
        let stores = Self {
            claims: claims.store(),
            volumes: volumes.store(),
            classes: classes.store(),
            drivers: drivers.store(),
            capacities: capacities.store(),
            limits: limits.store(),
            cloud_disks_max,
        };
        let tasks = vec![
            run(claims, trigger, drain),
            run(volumes, trigger, drain),
            run(classes, trigger, drain),
            run(drivers, trigger, drain),
            run(capacities, trigger, drain),
            run(limits, trigger, drain),
        ];
        (stores, tasks)
    }

    /// Waits until the caches are complete. Capacities may stay empty: not every server has them.
    pub async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.drivers.synced().await;
        self.limits.synced().await;
    }

    /// The current objects.
    pub fn snapshot(&self) -> StorageSnapshot {
        let limits: Limits =
            self.limits.list().into_iter().map(|(key, limits)| (key.name, limits)).collect();
        StorageSnapshot {
            claims: self.claims.list().into_iter().collect(),
            volumes: by_name(&self.volumes),
            classes: by_name(&self.classes),
            drivers: by_name(&self.drivers),
            capacities: self.capacities.objects(),
            limits: limits.with_cloud_disks_max(self.cloud_disks_max),
            assumed: BTreeSet::new(),
            derived: Derived::default(),
        }
    }
}

fn by_name<T>(store: &Store<T>) -> BTreeMap<String, std::sync::Arc<T>> {
    store.list().into_iter().map(|(key, found)| (key.name, found)).collect()
}

/// Starts a watch; a change of what is kept triggers a scheduling cycle.
pub(crate) fn run<T, U>(
    reflector: Reflector<T, U>,
    trigger: &CycleTrigger,
    drain: &DrainWatch,
) -> JoinHandle<()>
where
    T: Resource,
    U: Clone + PartialEq + Send + Sync + 'static,
{
    let trigger = trigger.clone();
    tokio::spawn(reflector.run(drain.clone(), move |change: Change<U>| match &change {
        Change::Applied { new, old: Some(old), .. } if new == old => {}
        Change::Synced => {}
        _ => trigger.retry_pending(),
    }))
}

fn slim<T: Resource>(mut object: T) -> T {
    object.metadata_mut().managed_fields.clear();
    object
}

fn slim_claim(claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    let mut claim = slim(claim);
    access_modes::limit_modes_of_claim(&mut claim);
    let phase = claim.status.phase;
    claim.status = PersistentVolumeClaimStatus { phase, ..Default::default() };
    claim
}

fn slim_volume(volume: PersistentVolume) -> PersistentVolume {
    let mut volume = slim(volume);
    access_modes::limit_modes_of_volume(&mut volume);
    volume
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_limits_disks_by_a_number_above_zero() {
        for (value, expected) in [
            (None, None),
            (Some(""), None),
            (Some("4"), Some(4)),
            (Some("0"), None),
            (Some("-1"), None),
            (Some("many"), None),
        ] {
            assert_eq!(read_cloud_disks_max(value), expected, "{value:?}");
        }
    }

    #[test]
    fn access_modes_of_claims_and_volumes_are_kept_once() {
        let modes = vec!["ReadWriteOnce".to_owned(); 1000];
        let (mut claim, mut volume) =
            (PersistentVolumeClaim::default(), PersistentVolume::default());
        claim.spec.access_modes = modes.clone();
        claim.status.phase = "Pending".into();
        volume.spec.access_modes = modes;
        let (claim, volume) = (slim_claim(claim), slim_volume(volume));
        assert_eq!(claim.spec.access_modes, ["ReadWriteOnce"]);
        assert_eq!(claim.status.phase, "Pending");
        assert_eq!(volume.spec.access_modes, ["ReadWriteOnce"]);
    }
}
