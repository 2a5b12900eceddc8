//! The reflectors that fill the caches of the controllers and queue the keys of changes.

use std::sync::Arc;

use apiserver_controllers::account_token;
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
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::rbac::v1::ClusterRole;
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_client::{Client, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proto_daemon::work_queue::WorkQueue;
use tokio::task::JoinSet;

use crate::informers::Informers;
use crate::keys::{ReconcileKey, Watched};
use crate::metrics::ControllerMetrics;
use crate::pods_by_node::PodsByNode;
use crate::settings::Enabled;

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
    cluster_roles: Reflector<ClusterRole, ClusterRole>,
}

/// Makes empty caches and the reflectors that fill them.
pub fn make(client: &Client) -> (Informers, Reflectors) {
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
        cluster_roles: Reflector::projected(client.all(), all(), slim),
    };
    let informers = Informers {
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
        cluster_roles: reflectors.cluster_roles.store(),
    };
    (informers, reflectors)
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
            attachments,
            cluster_roles
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
    pub counters: ControllerMetrics,
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
    use proto_api::core::v1::ContainerPort;

    use super::*;

    #[test]
    fn a_slim_pod_keeps_what_controllers_read() {
        let port = ContainerPort { name: "http".into(), ..ContainerPort::default() };
        let mut pod = Pod::default();
        pod.metadata.name = "web".into();
        pod.metadata.labels.insert("app".into(), "web".into());
        pod.spec.node_name = "node".into();
        pod.spec.containers = vec![Container { ports: vec![port], ..Container::default() }];
        pod.status.phase = "Running".into();
        pod.status.pod_ip = "10.1.0.1".into();
        pod.status.conditions.push(Default::default());
        assert_eq!(slim_pod(pod.clone()), pod);
        let mut fat = pod.clone();
        fat.spec.containers[0].image = "image".into();
        fat.metadata.annotations.insert("note".into(), "long".into());
        fat.spec.volumes.push(Default::default());
        assert_eq!(slim_pod(fat), pod);
    }
}
