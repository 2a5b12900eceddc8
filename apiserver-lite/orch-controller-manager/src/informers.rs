//! The caches of the controllers: one per kind, filled by a reflector with the fields that controllers read.

use std::sync::Arc;

use proto_api::Resource;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    ConfigMap, Container, Endpoints, Namespace, Node, NodeStatus, PersistentVolume,
    PersistentVolumeClaim, Pod, PodSpec, PodStatus, ReplicationController, Secret, Service,
    ServiceAccount, Volume,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::meta::v1::ObjectMeta;
use proto_api::names::Names;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_client::{Client, ListParams, ObjectKey, Reflector, Store};
use proto_daemon::drain::DrainWatch;
use proto_daemon::work_queue::WorkQueue;
use tokio::task::JoinSet;

use crate::api_writes::{Effect, EffectState, ObjectKind};
use crate::controllers::account_token;
use crate::keys::{ReconcileKey, Watched};
use crate::metrics::Counters;
use crate::pods_by_node::PodsByNode;
use crate::settings::Enabled;

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
}

/// The reflectors that fill the caches.
pub struct Reflectors {
    namespaces: Reflector<Namespace, Namespace>,
    service_accounts: Reflector<ServiceAccount, ServiceAccount>,
    token_secrets: Reflector<Secret, Secret>,
    root_cas: Reflector<ConfigMap, ConfigMap>,
    services: Reflector<Service, Service>,
    endpoints: Reflector<Endpoints, Endpoints>,
    slices: Reflector<EndpointSlice, EndpointSlice>,
    pods: Reflector<Pod, Pod>,
    nodes: Reflector<Node, Node>,
    leases: Reflector<Lease, Lease>,
    replica_sets: Reflector<ReplicaSet, ReplicaSet>,
    replication_controllers: Reflector<ReplicationController, ReplicationController>,
    deployments: Reflector<Deployment, Deployment>,
    budgets: Reflector<PodDisruptionBudget, PodDisruptionBudget>,
    claims: Reflector<PersistentVolumeClaim, PersistentVolumeClaim>,
    volumes: Reflector<PersistentVolume, PersistentVolume>,
    classes: Reflector<StorageClass, StorageClass>,
    drivers: Reflector<CSIDriver, CSIDriver>,
    attachments: Reflector<VolumeAttachment, VolumeAttachment>,
}

impl Informers {
    /// Empty caches and their reflectors.
    pub fn new(client: &Client) -> (Self, Reflectors) {
        let names = client.names();
        let all = ListParams::default;
        let field_selector = format!("type={}", account_token::secret_type(names));
        let tokens = ListParams { field_selector, ..all() };
        let reflectors = Reflectors {
            namespaces: Reflector::whole(client.all(), all()),
            service_accounts: Reflector::whole(client.all(), all()),
            token_secrets: Reflector::projected(client.all(), tokens, slim_secret),
            root_cas: Reflector::whole(client.all(), ListParams::name(names.root_ca_config_map())),
            services: Reflector::whole(client.all(), all()),
            endpoints: Reflector::whole(client.all(), all()),
            slices: Reflector::whole(client.all(), all()),
            pods: Reflector::projected(client.all(), all(), slim_pod),
            nodes: Reflector::projected(client.all(), all(), slim_node),
            leases: Reflector::whole(client.within(names.node_lease_namespace()), all()),
            replica_sets: Reflector::whole(client.all(), all()),
            replication_controllers: Reflector::whole(client.all(), all()),
            deployments: Reflector::whole(client.all(), all()),
            budgets: Reflector::projected(client.all(), all(), slim),
            claims: Reflector::projected(client.all(), all(), slim),
            volumes: Reflector::projected(client.all(), all(), slim),
            classes: Reflector::projected(client.all(), all(), slim),
            drivers: Reflector::projected(client.all(), all(), slim),
            attachments: Reflector::projected(client.all(), all(), slim),
        };
        let informers = Self {
            names,
            namespaces: reflectors.namespaces.store(),
            service_accounts: reflectors.service_accounts.store(),
            token_secrets: reflectors.token_secrets.store(),
            root_cas: reflectors.root_cas.store(),
            services: reflectors.services.store(),
            endpoints: reflectors.endpoints.store(),
            slices: reflectors.slices.store(),
            pods: reflectors.pods.store(),
            pods_by_node: PodsByNode::default(),
            nodes: reflectors.nodes.store(),
            leases: reflectors.leases.store(),
            replica_sets: reflectors.replica_sets.store(),
            replication_controllers: reflectors.replication_controllers.store(),
            deployments: reflectors.deployments.store(),
            budgets: reflectors.budgets.store(),
            claims: reflectors.claims.store(),
            volumes: reflectors.volumes.store(),
            classes: reflectors.classes.store(),
            drivers: reflectors.drivers.store(),
            attachments: reflectors.attachments.store(),
        };
        (informers, reflectors)
    }

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
    }

    /// Whether the caches show the effect of a write. Until they do, a plan made from them would repeat it.
    pub fn shows(&self, effect: &Effect) -> bool {
        let key = &effect.key;
        let metadata = match effect.kind {
            ObjectKind::ConfigMap => metadata(&self.root_cas, key),
            ObjectKind::Deployment => metadata(&self.deployments, key),
            ObjectKind::EndpointSlice => metadata(&self.slices, key),
            ObjectKind::Endpoints => metadata(&self.endpoints, key),
            ObjectKind::Namespace => metadata(&self.namespaces, key),
            ObjectKind::Node => metadata(&self.nodes, key),
            ObjectKind::PersistentVolume => metadata(&self.volumes, key),
            ObjectKind::PersistentVolumeClaim => metadata(&self.claims, key),
            ObjectKind::Pod => metadata(&self.pods, key),
            ObjectKind::PodDisruptionBudget => metadata(&self.budgets, key),
            ObjectKind::ReplicaSet => metadata(&self.replica_sets, key),
            ObjectKind::ReplicationController => metadata(&self.replication_controllers, key),
            ObjectKind::Secret => metadata(&self.token_secrets, key),
            ObjectKind::ServiceAccount => metadata(&self.service_accounts, key),
            ObjectKind::VolumeAttachment => metadata(&self.attachments, key),
        };
        shows(&effect.state, metadata.as_ref())
    }

    pub fn pods_on(&self, node: &str) -> Vec<Arc<Pod>> {
        let mut pods: Vec<Arc<Pod>> =
            self.pods_by_node.on(node).iter().filter_map(|key| self.pods.get(key)).collect();
        pods.retain(|pod| pod.spec.node_name == node);
        pods
    }

    /// Whether a namespace is being deleted.
    pub fn is_terminating(&self, namespace: &str) -> bool {
        let namespace = self.namespaces.get(&ObjectKey::new("", namespace));
        namespace.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some())
    }
}

/// Whether the cached object is in the state after a write, or newer.
fn shows(state: &EffectState, shown: Option<&ObjectMeta>) -> bool {
    match (state, shown) {
        (EffectState::Version(_), None) => false,
        (EffectState::Version(written), Some(shown)) => {
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

impl Reflectors {
    /// Runs the reflectors until drained, and queues the keys of their changes.
    pub async fn run(self, sink: Sink, drain: DrainWatch) {
        let sink = Arc::new(sink);
        let mut running = JoinSet::new();
        macro_rules! spawn {
            ($($reflector:ident),+) => {$(
                let to = sink.clone();
                running.spawn(self.$reflector.run(drain.clone(), move |change| to.enqueue(change)));
            )+};
        }
        spawn!(
            namespaces,
            service_accounts,
            token_secrets,
            root_cas,
            services,
            endpoints,
            slices,
            pods,
            nodes,
            leases,
            replica_sets,
            replication_controllers,
            deployments,
            budgets,
            claims,
            volumes,
            classes,
            drivers,
            attachments
        );
        drop(drain);
        running.join_all().await;
    }
}

/// Queues the keys of changes.
pub struct Sink {
    /// The caches, which contain a change before it is handled.
    pub informers: Informers,
    /// The queue.
    pub queue: WorkQueue<ReconcileKey>,
    /// The controllers that run.
    pub enabled: Enabled,
    /// The metrics.
    pub counters: Counters,
}

impl Sink {
    fn enqueue<T: Watched>(&self, change: proto_client::Change<T>) {
        for key in T::keys(&change, &self.informers) {
            if self.enabled.has(key.controller()) {
                self.counters.count_add(key.controller());
                self.queue.add(key);
            }
        }
    }
}

/// Keeps the fields of a pod that controllers read.
fn slim_pod(pod: Pod) -> Pod {
    let Pod { metadata, spec, status } = pod;
    let container = |container: Container| Container {
        name: container.name,
        ports: container.ports,
        ..Container::default()
    };
    let deletion_cost = |key: &String| key.ends_with("/pod-deletion-cost");
    let annotations =
        metadata.annotations.into_iter().filter(|(key, _)| deletion_cost(key)).collect();
    Pod {
        metadata: ObjectMeta { annotations, managed_fields: Vec::new(), ..metadata },
        spec: PodSpec {
            containers: spec.containers.into_iter().map(container).collect(),
            node_name: spec.node_name,
            host_network: spec.host_network,
            hostname: spec.hostname,
            subdomain: spec.subdomain,
            restart_policy: spec.restart_policy,
            tolerations: spec.tolerations,
            volumes: spec.volumes.into_iter().filter(is_claim).collect(),
            ..PodSpec::default()
        },
        status: PodStatus {
            phase: status.phase,
            conditions: status.conditions,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            ..PodStatus::default()
        },
    }
}

fn is_claim(volume: &Volume) -> bool {
    let source = &volume.volume_source;
    source.persistent_volume_claim.is_some() || source.ephemeral.is_some()
}

/// Removes the managed fields.
fn slim<T: Resource>(mut object: T) -> T {
    object.metadata_mut().managed_fields.clear();
    object
}

/// Keeps the metadata, the type and the keys of non-empty data of a token secret.
fn slim_secret(secret: Secret) -> Secret {
    let Secret { metadata, data, type_, immutable, .. } = secret;
    let filled = data.into_iter().filter(|(_, value)| !value.is_empty());
    Secret {
        metadata: ObjectMeta { managed_fields: Vec::new(), ..metadata },
        data: filled.map(|(key, _)| (key, Vec::new())).collect(),
        type_,
        immutable,
        ..Secret::default()
    }
}

/// Keeps the labels, spec, conditions and volumes of a node.
fn slim_node(node: Node) -> Node {
    let Node { metadata, spec, status } = node;
    Node {
        metadata: ObjectMeta {
            annotations: Default::default(),
            managed_fields: Vec::new(),
            ..metadata
        },
        spec,
        status: NodeStatus {
            conditions: status.conditions,
            volumes_attached: status.volumes_attached,
            volumes_in_use: status.volumes_in_use,
            ..NodeStatus::default()
        },
    }
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
        use EffectState::{Deleted, Version};
        check(Version(10), None, false);
        check(Version(10), Some(object("9", "a", None)), false);
        check(Version(10), Some(object("10", "a", None)), true);
        check(Version(9), Some(object("10", "a", None)), true);
        check(Deleted("a".into()), None, true);
        check(Deleted("a".into()), Some(object("10", "a", None)), false);
        check(Deleted("a".into()), Some(object("10", "a", Some(1))), true);
        check(Deleted("a".into()), Some(object("10", "b", None)), true);
    }

    #[test]
    fn a_slim_pod_keeps_what_controllers_read() {
        let pod = crate::controllers::addresses::examples::pod(1);
        assert_eq!(slim_pod(pod.clone()), pod);
        let mut fat = pod.clone();
        fat.spec.containers[0].image = "image".into();
        fat.metadata.annotations.insert("note".into(), "long".into());
        fat.spec.volumes.push(Default::default());
        assert_eq!(slim_pod(fat), pod);
    }
}
