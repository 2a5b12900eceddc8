//! The keys of daemon sets, stateful sets and jobs that a change affects.

use std::sync::Arc;

use apiserver_controller_io::informers::Informers;
use apiserver_controllers::owners;
use apiserver_workloads::{daemon_set, job};
use proto_api::apps::v1::{ControllerRevision, DaemonSet, StatefulSet};
use proto_api::batch::v1::{CronJob, Job};
use proto_api::core::v1::{Node, Pod};
use proto_api::meta::v1::{LabelSelector, ObjectMeta};
use proto_api::selectors::Selector;
use proto_api::{Kind, ObjectKey, Resource};
use proto_client::{Change, Store};

use super::changes::keys_of_scaled;
use super::{ReconcileKey, WatchedKind, split};

impl WatchedKind for DaemonSet {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let key = split(change).map(|(key, ..)| key);
        key.map(|key| ReconcileKey::DaemonSet(key.clone())).into_iter().collect()
    }
}

impl WatchedKind for StatefulSet {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let replicas = |set: &Self| set.spec.replicas;
        keys_of_scaled(change, informers, ReconcileKey::StatefulSet, replicas)
    }
}

impl WatchedKind for CronJob {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let key = split(change).map(|(key, ..)| key);
        key.map(|key| ReconcileKey::CronJob(key.clone())).into_iter().collect()
    }
}

impl WatchedKind for Job {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = vec![ReconcileKey::Job(key.clone())];
        let owner = new.or(old).and_then(|job| owners::controller(&job.metadata, CronJob::KIND));
        keys.extend(
            owner.map(|owner| ReconcileKey::CronJob(ObjectKey::new(&key.namespace, &owner.name))),
        );
        match new {
            Some(new) if new.spec.ttl_seconds_after_finished.is_some() => {
                keys.push(ReconcileKey::JobExpiry(key.clone()));
            }
            Some(_) => {}
            None => {
                // The finalizer keeps its pods until they are counted; without the Job they are not counted.
                let pods = informers.pods.within(&key.namespace);
                let held = pods.iter().filter(|pod| job::is_tracked(informers.names, pod));
                keys.extend(
                    held.map(|pod| {
                        ReconcileKey::JobOrphan(ObjectKey::from_metadata(&pod.metadata))
                    }),
                );
            }
        }
        keys
    }
}

impl WatchedKind for ControllerRevision {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = Vec::new();
        for revision in [new, old].into_iter().flatten() {
            let owners = &revision.metadata.owner_references;
            match owners.iter().find(|owner| owner.controller == Some(true)) {
                Some(owner) => {
                    let owner_key = ObjectKey::new(&key.namespace, &owner.name);
                    keys.extend(key_of_owner(&owner.kind, owner_key));
                }
                None if new.is_some() => {
                    keys.extend(keys_of_adopters(informers, &revision.metadata));
                }
                None => {}
            }
        }
        keys.dedup();
        keys
    }
}

/// The key of the controller of a pod or a revision.
pub(super) fn key_of_owner(kind: &str, owner: ObjectKey) -> Option<ReconcileKey> {
    match kind {
        "DaemonSet" => Some(ReconcileKey::DaemonSet(owner)),
        "StatefulSet" => Some(ReconcileKey::StatefulSet(owner)),
        "Job" => Some(ReconcileKey::Job(owner)),
        _ => None,
    }
}

/// The keys of the sets that may adopt an orphan.
pub(super) fn keys_of_adopters(informers: &Informers, orphan: &ObjectMeta) -> Vec<ReconcileKey> {
    let daemons = selecting(&informers.daemon_sets, orphan, |set| set.spec.selector.as_ref());
    let stateful = selecting(&informers.stateful_sets, orphan, |set| set.spec.selector.as_ref());
    let daemons = daemons.into_iter().map(ReconcileKey::DaemonSet);
    let jobs = selecting(&informers.jobs, orphan, |job| job.spec.selector.as_ref());
    let sets = daemons.chain(stateful.into_iter().map(ReconcileKey::StatefulSet));
    sets.chain(jobs.into_iter().map(ReconcileKey::Job)).collect()
}

fn selecting<T: Resource>(
    sets: &Store<T>,
    orphan: &ObjectMeta,
    selector: fn(&T) -> Option<&LabelSelector>,
) -> Vec<ObjectKey> {
    let selects = |set: &&Arc<T>| {
        let selector = selector(set).map(|s| Selector::from_label_selector(s, "spec.selector"));
        selector.is_some_and(|selector| selector.is_ok_and(|s| s.matches(&orphan.labels)))
    };
    let sets = sets.within(&orphan.namespace);
    sets.iter().filter(selects).map(|set| ObjectKey::from_metadata(set.metadata())).collect()
}

/// The key of a pod that is held for a job which is not known.
pub(super) fn keys_of_held_pod(
    informers: &Informers,
    key: &ObjectKey,
    new: Option<&Arc<Pod>>,
) -> Option<ReconcileKey> {
    let pod = new.filter(|pod| job::is_tracked(informers.names, pod))?;
    let owner = pod.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
    let job = owner.and_then(|owner| {
        let job = informers.jobs.get(&ObjectKey::new(&key.namespace, &owner.name))?;
        (job.metadata.uid == owner.uid).then_some(())
    });
    job.is_none().then(|| ReconcileKey::JobOrphan(key.clone()))
}

/// The daemon sets that a node runs otherwise than before.
pub(super) fn keys_of_node(
    informers: &Informers,
    new: Option<&Arc<Node>>,
    old: Option<&Arc<Node>>,
) -> Vec<ReconcileKey> {
    if let (Some(new), Some(old)) = (new, old)
        && new.metadata.labels == old.metadata.labels
        && new.spec.taints == old.spec.taints
    {
        return Vec::new();
    }
    let names = informers.names;
    let differs = |set: &&Arc<DaemonSet>| {
        let fit = |node: Option<&Arc<Node>>| node.map(|node| daemon_set::runs_on(names, set, node));
        fit(new) != fit(old)
    };
    let sets = informers.daemon_sets.objects();
    let keys = sets.iter().filter(differs).map(|set| ObjectKey::from_metadata(&set.metadata));
    keys.map(ReconcileKey::DaemonSet).collect()
}
