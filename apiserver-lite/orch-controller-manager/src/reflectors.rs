//! The reflectors that fill the caches of the controllers and queue the keys of changes.

use std::sync::Arc;

use apiserver_controller_io::controller_queues::ControllerQueues;
use apiserver_controller_io::informers::Informers;
use apiserver_controller_io::projections::{
    slim, slim_claim, slim_node, slim_pod, slim_secret, slim_volume,
};
use apiserver_controllers::account_token;
use apiserver_workloads::canonical_revision;
use proto_api::Collection;
use proto_api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use proto_api::batch::v1::{CronJob, Job};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ReplicationController, Secret, Service, ServiceAccount,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::policy::v1::PodDisruptionBudget;
use proto_api::rbac::v1::ClusterRole;
use proto_api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use proto_client::{Client, ListParams, Reflector, ServedResources};
use proto_daemon::drain::DrainWatch;
use tokio::task::JoinSet;

use crate::keys::{ReconcileKey, WatchedKind};
use crate::settings::EnabledControllers;

/// Calls a macro with the fields of [`Reflectors`].
macro_rules! for_every_reflector {
    ($then:ident) => {
        $then!(
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
            cluster_roles,
            daemon_sets,
            stateful_sets,
            cron_jobs,
            jobs,
            revisions
        )
    };
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
    cluster_roles: Reflector<ClusterRole, ClusterRole>,
    daemon_sets: Reflector<DaemonSet, DaemonSet>,
    stateful_sets: Reflector<StatefulSet, StatefulSet>,
    cron_jobs: Reflector<CronJob, CronJob>,
    jobs: Reflector<Job, Job>,
    revisions: Reflector<ControllerRevision, ControllerRevision>,
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
        claims: Reflector::projected(client.all(), all(), slim_claim),
        volumes: Reflector::projected(client.all(), all(), slim_volume),
        classes: Reflector::projected(client.all(), all(), slim),
        drivers: Reflector::projected(client.all(), all(), slim),
        attachments: Reflector::projected(client.all(), all(), slim),
        cluster_roles: Reflector::projected(client.all(), all(), slim),
        daemon_sets: Reflector::projected(client.all(), all(), slim),
        stateful_sets: Reflector::projected(client.all(), all(), slim),
        cron_jobs: Reflector::projected(client.all(), all(), slim),
        jobs: Reflector::projected(client.all(), all(), slim),
        revisions: Reflector::projected(client.all(), all(), |revision| {
            canonical_revision(slim(revision))
        }),
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
        pods_by_node: Default::default(),
        pods_by_label: Default::default(),
        pods_by_claim: Default::default(),
        address_users: Default::default(),
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
        daemon_sets: reflectors.daemon_sets.store(),
        stateful_sets: reflectors.stateful_sets.store(),
        cron_jobs: reflectors.cron_jobs.store(),
        jobs: reflectors.jobs.store(),
        revisions: reflectors.revisions.store(),
    };
    (informers, reflectors)
}

impl Reflectors {
    /// The collections that are followed.
    pub fn collections(&self) -> Vec<&Collection> {
        macro_rules! collections {
            ($($reflector:ident),+) => { vec![$(self.$reflector.collection()),+] };
        }
        for_every_reflector!(collections)
    }

    /// The controllers that write objects which the server does not have. Those that only act on such objects have nothing to do.
    pub fn unserved_controllers(&self, served: &ServedResources) -> &'static [&'static str] {
        match served.has(self.slices.collection()) {
            true => &[],
            false => &["endpointslice", "endpointslicemirroring"],
        }
    }

    /// Runs the reflectors until drained, and queues the keys of their changes. The cache of a resource that is not served is complete and empty.
    pub async fn run(self, served: ServedResources, sink: Sink, drain: DrainWatch) {
        let (sink, served) = (Arc::new(sink), Arc::new(served));
        let mut running = JoinSet::new();
        macro_rules! spawn {
            ($($reflector:ident),+) => {$(
                let (to, has, end) = (sink.clone(), served.clone(), drain.clone());
                let reflector = self.$reflector;
                running.spawn(async move {
                    reflector.run_if_served(&has, end, move |change| to.enqueue(change)).await;
                });
            )+};
        }
        for_every_reflector!(spawn);
        drop(drain);
        running.join_all().await;
    }
}
/// Queues the keys of changes.
pub struct Sink {
    /// The caches, which contain a change before it is handled.
    pub informers: Informers,
    pub queues: ControllerQueues<ReconcileKey>,
    /// The controllers that run.
    pub enabled: EnabledControllers,
}

impl Sink {
    fn enqueue<T: WatchedKind>(&self, change: proto_client::Change<T>) {
        for key in T::keys(&change, &self.informers) {
            if self.enabled.has(key.controller()) {
                self.queues.add(key.controller(), key);
            }
        }
    }
}
