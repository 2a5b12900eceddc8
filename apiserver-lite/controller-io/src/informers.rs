//! The caches of the controllers: one per kind, filled by a reflector with the fields that controllers read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apiserver_controllers::addresses::selects;
use apiserver_controllers::api_writes::{Effect, EffectState, ObjectKind};
use apiserver_controllers::load_balancer_addresses::AddressUsers;
use apiserver_controllers::replica_set;
use apiserver_controllers::replicas::{CountsByNode, count_by_node};
use proto_api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use proto_api::batch::v1::{CronJob, Job};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Secret, Service, ServiceAccount,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::meta::v1::{LabelSelector, ObjectMeta};
use proto_api::names::Names;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::rbac::v1::ClusterRole;
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_api::{ObjectKey, Resource};
use proto_client::Store;

use crate::pods_by_claim::PodsByClaim;
use crate::pods_by_label::PodsByLabel;
use crate::pods_by_node::PodsByNode;

/// The caches. Cheap to clone.
#[derive(Clone)]
pub struct Informers {
    /// The naming profile.
    pub names: &'static Names,
    /// All namespaces.
    pub namespaces: Store<Namespace>,
    /// All service accounts.
    pub service_accounts: Store<ServiceAccount>,
    /// The token secrets, with the keys of their data and without the values.
    pub token_secrets: Store<Secret>,
    /// The root CA config maps.
    pub root_cas: Store<ConfigMap>,
    /// All services.
    pub services: Store<Service>,
    /// All Endpoints.
    pub endpoints: Store<Endpoints>,
    /// All EndpointSlices.
    pub slices: Store<EndpointSlice>,
    /// All pods, without what only the kubelet reads.
    pub pods: Store<Pod>,
    /// The pods of each node.
    pub pods_by_node: PodsByNode,
    /// The pods with each label, and those of each controller.
    pub pods_by_label: PodsByLabel,
    /// The pods that use each claim.
    pub pods_by_claim: PodsByClaim,
    /// The addresses of load balancers and nodes, with those that plans give out before the caches show them.
    pub address_users: Arc<Mutex<AddressUsers>>,
    /// All nodes, without capacity and images.
    pub nodes: Store<Node>,
    /// The nodes' leases.
    pub leases: Store<Lease>,
    /// All replica sets.
    pub replica_sets: Store<ReplicaSet>,
    /// All replication controllers.
    pub replication_controllers: Store<ReplicationController>,
    /// All deployments.
    pub deployments: Store<Deployment>,
    /// All disruption budgets.
    pub budgets: Store<PodDisruptionBudget>,
    /// All PersistentVolumeClaims.
    pub claims: Store<PersistentVolumeClaim>,
    /// All PersistentVolumes.
    pub volumes: Store<PersistentVolume>,
    /// All storage classes.
    pub classes: Store<StorageClass>,
    /// All CSIDrivers.
    pub drivers: Store<CSIDriver>,
    /// All VolumeAttachments.
    pub attachments: Store<VolumeAttachment>,
    /// All cluster roles.
    pub cluster_roles: Store<ClusterRole>,
    /// All daemon sets.
    pub daemon_sets: Store<DaemonSet>,
    /// All stateful sets.
    pub stateful_sets: Store<StatefulSet>,
    /// All cron jobs.
    pub cron_jobs: Store<CronJob>,
    /// All jobs.
    pub jobs: Store<Job>,
    /// The pod templates of sets.
    pub revisions: Store<ControllerRevision>,
}

impl Informers {
    /// Waits until every cache has been complete once.
    pub async fn synced(&self) {
        self.namespaces.synced().await;
        self.service_accounts.synced().await;
        self.token_secrets.synced().await;
        self.root_cas.synced().await;
        self.services.synced().await;
        self.endpoints.synced().await;
        self.slices.synced().await;
        self.pods.synced().await;
        self.nodes.synced().await;
        self.leases.synced().await;
        self.replica_sets.synced().await;
        self.replication_controllers.synced().await;
        self.deployments.synced().await;
        self.budgets.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.drivers.synced().await;
        self.attachments.synced().await;
        self.cluster_roles.synced().await;
        self.daemon_sets.synced().await;
        self.stateful_sets.synced().await;
        self.cron_jobs.synced().await;
        self.jobs.synced().await;
        self.revisions.synced().await;
    }

    /// Whether the caches show the effect of a write. Until they do, a plan made from them would repeat it.
    pub fn shows(&self, effect: &Effect) -> bool {
        let key = &effect.key;
        let metadata = match effect.kind {
            ObjectKind::ClusterRole => metadata(&self.cluster_roles, key),
            ObjectKind::ConfigMap => metadata(&self.root_cas, key),
            ObjectKind::ControllerRevision => metadata(&self.revisions, key),
            ObjectKind::CronJob => metadata(&self.cron_jobs, key),
            ObjectKind::DaemonSet => metadata(&self.daemon_sets, key),
            ObjectKind::Deployment => metadata(&self.deployments, key),
            ObjectKind::EndpointSlice => metadata(&self.slices, key),
            ObjectKind::Endpoints => metadata(&self.endpoints, key),
            ObjectKind::Job => metadata(&self.jobs, key),
            ObjectKind::Namespace => metadata(&self.namespaces, key),
            ObjectKind::Node => metadata(&self.nodes, key),
            ObjectKind::PersistentVolume => metadata(&self.volumes, key),
            ObjectKind::PersistentVolumeClaim => metadata(&self.claims, key),
            ObjectKind::Pod => metadata(&self.pods, key),
            ObjectKind::PodDisruptionBudget => metadata(&self.budgets, key),
            ObjectKind::ReplicaSet => metadata(&self.replica_sets, key),
            ObjectKind::ReplicationController => metadata(&self.replication_controllers, key),
            ObjectKind::Secret => metadata(&self.token_secrets, key),
            ObjectKind::Service => metadata(&self.services, key),
            ObjectKind::ServiceAccount => metadata(&self.service_accounts, key),
            ObjectKind::StatefulSet => metadata(&self.stateful_sets, key),
            ObjectKind::VolumeAttachment => metadata(&self.attachments, key),
        };
        shows(&effect.state, metadata.as_ref()) && self.finds(effect)
    }

    /// Whether a pod is found by its controller, if the effect is one on a pod: the cache has it before the index.
    fn finds(&self, effect: &Effect) -> bool {
        let (of_pod, key) = (effect.kind == ObjectKind::Pod, &effect.key);
        let pod = of_pod.then(|| self.pods.get(key)).flatten();
        pod.is_none_or(|pod| self.pods_by_label.has_controlled(key, &pod))
    }

    /// The pods of a node.
    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let mut pods: Vec<Arc<Pod>> =
            self.pods_by_node.on(node).iter().filter_map(|key| self.pods.get(key)).collect();
        pods.retain(|pod| pod.spec.node_name == node);
        pods
    }

    /// Applies a change of a pod to what finds pods. To be called before a key is queued because of it.
    pub fn index_pod(&self, key: &ObjectKey, old: Option<&Arc<Pod>>, new: Option<&Arc<Pod>>) {
        let (old, new) = (old.map(|pod| &**pod), new.map(|pod| &**pod));
        self.pods_by_node.apply(key, old, new);
        self.pods_by_label.apply(key, old, new);
        self.pods_by_claim.apply(key, old, new);
    }

    /// The addresses of load balancers. Changes of Services and nodes are to be recorded before a key is queued because of them.
    pub fn address_users(&self) -> MutexGuard<'_, AddressUsers> {
        self.address_users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pods that a Service may select; none without a selector.
    pub fn pods_of_service(&self, service: Option<&Service>) -> Vec<Arc<Pod>> {
        let Some(service) = service else { return Vec::new() };
        let namespace = &service.metadata.namespace;
        let names = self.pods_by_label.labelled(namespace, &service.spec.selector);
        self.pods_named(namespace, names.unwrap_or_default())
    }

    /// The Services that select any of these pods. Pods of a workload have the same labels: each set of labels is compared once.
    pub fn services_of_pods(&self, pods: &[Arc<Pod>]) -> Vec<ObjectKey> {
        let mut by_namespace: BTreeMap<&str, BTreeMap<_, &Pod>> = BTreeMap::new();
        for pod in pods {
            let metadata = &pod.metadata;
            by_namespace.entry(&metadata.namespace).or_default().insert(&metadata.labels, pod);
        }
        let of_namespace = |(namespace, pods): (&str, BTreeMap<_, &Pod>)| {
            let selects_any = |service: &Service| pods.values().any(|pod| selects(service, pod));
            self.services.matching(namespace, selects_any)
        };
        let services = by_namespace.into_iter().flat_map(of_namespace);
        services.map(|service| ObjectKey::from_metadata(&service.metadata)).collect()
    }

    /// The pods of a controller, and those that it may adopt: of its namespace all that have `labels`.
    pub fn pods_of_controller(
        &self,
        controller: &ObjectMeta,
        labels: &BTreeMap<String, String>,
    ) -> Vec<Arc<Pod>> {
        let namespace = &controller.namespace;
        let Some(mut names) = self.pods_by_label.labelled(namespace, labels) else {
            return self.pods.within(namespace);
        };
        names.extend(self.pods_by_label.controlled(namespace, &controller.uid));
        self.pods_named(namespace, names)
    }

    /// The pods of a controller with a selector, and those that it may adopt.
    pub fn pods_to_claim(
        &self,
        controller: &ObjectMeta,
        selector: Option<&LabelSelector>,
    ) -> Vec<Arc<Pod>> {
        let none = BTreeMap::new();
        let labels = selector.map_or(&none, |selector| &selector.match_labels);
        self.pods_of_controller(controller, labels)
    }

    /// How many pods the other sets of a set's controller have on each node, if the set may have to delete some of its own, which are `pods`.
    pub fn pods_beside(&self, set: &ReplicaSet, pods: &[Arc<Pod>]) -> CountsByNode {
        let sets = || self.replica_sets.within(&set.metadata.namespace);
        let names = replica_set::siblings(set, pods, sets).into_iter().flat_map(|sibling| {
            let metadata = &sibling.metadata;
            self.pods_by_label.controlled(&metadata.namespace, &metadata.uid)
        });
        count_by_node(&self.pods_named(&set.metadata.namespace, names))
    }

    /// The pods that use a claim.
    pub fn pods_using(&self, claim: &ObjectKey) -> Vec<Arc<Pod>> {
        self.pods_named(&claim.namespace, self.pods_by_claim.using(claim))
    }

    fn pods_named(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = Arc<str>>,
    ) -> Vec<Arc<Pod>> {
        let keys = names.into_iter().map(|name| ObjectKey::new(namespace, &*name));
        keys.filter_map(|key| self.pods.get(&key)).collect()
    }

    /// Whether a namespace is being deleted.
    pub fn is_terminating(&self, namespace: &str) -> bool {
        let namespace = self.namespaces.get(&ObjectKey::new("", namespace));
        namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }
}

/// Whether an object, in a cache or on the server, is in the state after a write, or newer.
pub(crate) fn shows(state: &EffectState, shown: Option<&ObjectMeta>) -> bool {
    match (state, shown) {
        (EffectState::Version(_), None) => false,
        (EffectState::Patched(_), None) => true,
        (EffectState::Version(written) | EffectState::Patched(written), Some(shown)) => {
            shown.resource_version.parse().is_ok_and(|version: u64| version >= *written)
        }
        (EffectState::Deleted(_), None) => true,
        (EffectState::Deleted(uid), Some(shown)) => {
            shown.uid != *uid || shown.deletion_timestamp.is_some()
        }
    }
}

fn metadata<T: Resource>(store: &Store<T>, key: &ObjectKey) -> Option<ObjectMeta> {
    store.get(key).map(|object| {
        let ObjectMeta { uid, resource_version, deletion_timestamp, .. } = object.metadata();
        ObjectMeta {
            uid: uid.clone(),
            resource_version: resource_version.clone(),
            deletion_timestamp: *deletion_timestamp,
            ..ObjectMeta::default()
        }
    })
}

#[cfg(test)]
mod tests {
    use proto_api::Time;

    use super::*;

    #[test]
    fn the_effect_of_a_write_is_observed() {
        let object = |version: &str, uid: &str, deleted: Option<i64>| ObjectMeta {
            resource_version: version.into(),
            uid: uid.into(),
            deletion_timestamp: deleted.map(Time::from_unix),
            ..ObjectMeta::default()
        };
        let check = |state: EffectState, shown: Option<ObjectMeta>, expect: bool| {
            assert_eq!(shows(&state, shown.as_ref()), expect, "{state:?} {shown:?}");
        };
        use EffectState::{Deleted, Patched, Version};
        check(Patched(10), None, true);
        check(Patched(10), Some(object("9", "a", None)), false);
        check(Patched(10), Some(object("10", "a", None)), true);
        check(Version(10), None, false);
        check(Version(10), Some(object("9", "a", None)), false);
        check(Version(10), Some(object("10", "a", None)), true);
        check(Version(9), Some(object("10", "a", None)), true);
        check(Deleted("a".into()), None, true);
        check(Deleted("a".into()), Some(object("10", "a", None)), false);
        check(Deleted("a".into()), Some(object("10", "a", Some(1))), true);
        check(Deleted("a".into()), Some(object("10", "b", None)), true);
    }
}
