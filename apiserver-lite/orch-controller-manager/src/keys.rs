//! The reconcile keys of the work queue, and the keys that a change of an object queues.
//!
//! A key names a controller and an object, never an event. Reconciling it compares the current state with the desired one, and is idempotent.

mod changes;
mod disruption;
mod load_balancers;
mod volumes;
mod workloads;

use std::fmt;

use apiserver_controllers::account_token::TokenReference;
use proto_api::ObjectKey;

pub use changes::WatchedKind;
use changes::split;
pub(crate) use volumes::users;

/// Calls a macro with every kind of key: its documentation, its name and what it holds.
macro_rules! for_every_key {
    ($then:ident) => {
        $then! {
            /// The service account `default` of a namespace.
            ServiceAccount(String),
            /// The addresses of a load balancer.
            LoadBalancer(ObjectKey),
            /// The token secrets of a service account.
            AccountToken(ObjectKey),
            /// The reference of a service account to a deleted token secret.
            TokenReference(TokenReference),
            /// The root CA config map of a namespace.
            RootCa(String),
            /// The Endpoints of a Service.
            Endpoints(ObjectKey),
            /// The EndpointSlices of a Service.
            Slices(ObjectKey),
            /// The EndpointSlices that mirror the Endpoints of a Service.
            Mirror(ObjectKey),
            /// A namespace that is being deleted.
            Namespace(String),
            /// A pod that no kubelet may be able to remove.
            PodGc(ObjectKey),
            /// The finished pods beyond the threshold.
            EndedPods,
            /// The health and the taints of a node.
            NodeLifecycle(String),
            /// The readiness of a pod whose node is silent.
            PodReadiness(ObjectKey),
            /// The eviction of a pod by the taints of its node.
            TaintEviction(ObjectKey),
            /// The pod CIDRs of a node.
            NodeIpam(String),
            /// The pods of a replica set.
            ReplicaSet(ObjectKey),
            /// The pods of a replication controller.
            ReplicationController(ObjectKey),
            /// The replica sets of a deployment.
            Deployment(ObjectKey),
            /// The pods of a daemon set.
            DaemonSet(ObjectKey),
            /// The pods of a stateful set.
            StatefulSet(ObjectKey),
            /// Jobs by their schedule.
            CronJob(ObjectKey),
            /// The pods of a job.
            Job(ObjectKey),
            /// A pod that may have lost its job, and is still held for it.
            JobOrphan(ObjectKey),
            /// A finished job with a time to live.
            JobExpiry(ObjectKey),
            /// The status of a PodDisruptionBudget.
            Disruption(ObjectKey),
            /// The binding of a PersistentVolumeClaim.
            Claim(ObjectKey),
            /// The phase and reclaim of a PersistentVolume.
            Volume(String),
            /// The protection finalizer of a claim.
            ClaimProtection(ObjectKey),
            /// The protection finalizer of a volume.
            VolumeProtection(String),
            /// The claims of a pod's ephemeral volumes.
            EphemeralClaims(ObjectKey),
            /// The attached volumes of a node.
            Attachments(String),
            /// A claim that requests more than its capacity.
            Expand(ObjectKey),
            /// The rules of a cluster role that aggregates others.
            RoleAggregation(String)
        }
    };
}

macro_rules! define_keys {
    ($($(#[doc = $doc:literal])+ $kind:ident $(($object:ty))?),+) => {
        /// A controller and the object that it reconciles.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub enum ReconcileKey {
            $($(#[doc = $doc])+ $kind $(($object))?),+
        }
    };
}

for_every_key!(define_keys);

impl ReconcileKey {
    /// The controller, by its name in `--controllers`.
    pub fn controller(&self) -> &'static str {
        match self {
            Self::ServiceAccount(_) => "serviceaccount",
            Self::AccountToken(_) | Self::TokenReference(_) => "serviceaccount-token",
            Self::RootCa(_) => "root-ca-cert-publisher",
            Self::Endpoints(_) => "endpoint",
            Self::Slices(_) => "endpointslice",
            Self::Mirror(_) => "endpointslicemirroring",
            Self::LoadBalancer(_) => "service",
            Self::Namespace(_) => "namespace",
            Self::PodGc(_) | Self::EndedPods => "podgc",
            Self::NodeLifecycle(_) | Self::PodReadiness(_) | Self::TaintEviction(_) => {
                "nodelifecycle"
            }
            Self::NodeIpam(_) => "nodeipam",
            Self::ReplicaSet(_) => "replicaset",
            Self::ReplicationController(_) => "replicationcontroller",
            Self::Deployment(_) => "deployment",
            Self::DaemonSet(_) => "daemonset",
            Self::StatefulSet(_) => "statefulset",
            Self::CronJob(_) => "cronjob",
            Self::Job(_) | Self::JobOrphan(_) => "job",
            Self::JobExpiry(_) => "ttl-after-finished",
            Self::Disruption(_) => "disruption",
            Self::Claim(_) | Self::Volume(_) => "persistentvolume-binder",
            Self::ClaimProtection(_) => "pvc-protection",
            Self::VolumeProtection(_) => "pv-protection",
            Self::EphemeralClaims(_) => "ephemeral-volume",
            Self::Attachments(_) => "attachdetach",
            Self::Expand(_) => "persistentvolume-expander",
            Self::RoleAggregation(_) => "clusterrole-aggregation",
        }
    }

    /// The source component of this key's events, one of [`EVENT_SOURCES`], as kube-controller-manager sets it.
    pub fn event_source(&self) -> Option<&'static str> {
        Some(match self {
            Self::Attachments(_) => "attachdetach-controller",
            Self::Claim(_) | Self::Volume(_) => "persistentvolume-controller",
            Self::CronJob(_) => "cronjob-controller",
            Self::DaemonSet(_) => "daemonset-controller",
            Self::Deployment(_) => "deployment-controller",
            Self::Disruption(_) => "controllermanager",
            Self::Expand(_) => "volume_expand",
            Self::Job(_) => "job-controller",
            Self::NodeLifecycle(_) | Self::PodReadiness(_) => "node-controller",
            Self::EphemeralClaims(_) => "ephemeral_volume",
            Self::LoadBalancer(_) => "service-controller",
            Self::ReplicaSet(_) => "replicaset-controller",
            Self::ReplicationController(_) => "replication-controller",
            Self::StatefulSet(_) => "statefulset-controller",
            Self::TaintEviction(_) => "taint-controller",
            _ => return None,
        })
    }

    /// The object to reconcile.
    fn target(&self) -> Target<'_> {
        match self {
            Self::ServiceAccount(name) | Self::RootCa(name) | Self::Namespace(name) => {
                Target::Namespace(name)
            }
            Self::NodeLifecycle(name)
            | Self::NodeIpam(name)
            | Self::Volume(name)
            | Self::VolumeProtection(name)
            | Self::Attachments(name)
            | Self::RoleAggregation(name) => Target::ClusterScoped(name),
            Self::AccountToken(key)
            | Self::Endpoints(key)
            | Self::Slices(key)
            | Self::Mirror(key)
            | Self::LoadBalancer(key)
            | Self::PodGc(key)
            | Self::PodReadiness(key)
            | Self::TaintEviction(key)
            | Self::ReplicaSet(key)
            | Self::ReplicationController(key)
            | Self::Deployment(key)
            | Self::DaemonSet(key)
            | Self::StatefulSet(key)
            | Self::CronJob(key)
            | Self::Job(key)
            | Self::JobOrphan(key)
            | Self::JobExpiry(key)
            | Self::Claim(key)
            | Self::ClaimProtection(key)
            | Self::Disruption(key)
            | Self::EphemeralClaims(key)
            | Self::Expand(key) => Target::Namespaced(key),
            Self::TokenReference(reference) => Target::Namespaced(&reference.account),
            Self::EndedPods => Target::AllPods,
        }
    }

    /// The namespace of the object, if it has one.
    pub fn namespace(&self) -> Option<&str> {
        match self.target() {
            Target::Namespace(name) => Some(name),
            Target::Namespaced(key) => Some(&key.namespace),
            Target::ClusterScoped(_) | Target::AllPods => None,
        }
    }
}

/// The object of a key.
enum Target<'a> {
    /// A namespace, or an object of which each namespace has one.
    Namespace(&'a str),
    /// A namespaced object.
    Namespaced(&'a ObjectKey),
    /// A cluster-scoped object.
    ClusterScoped(&'a str),
    /// Every pod.
    AllPods,
}

/// For example `endpointslice default/web`.
impl fmt::Display for ReconcileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.controller())?;
        match self.target() {
            Target::Namespace(name) | Target::ClusterScoped(name) => write!(f, " {name}"),
            Target::Namespaced(key) => write!(f, " {key}"),
            Target::AllPods => f.write_str(" ended pods"),
        }
    }
}

/// The queue logs keys with this.
impl fmt::Debug for ReconcileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// All controllers, by their names in `--controllers`.
pub const CONTROLLERS: [&str; 35] = [
    "attachdetach",
    BOOTSTRAP_SIGNER,
    "clusterrole-aggregation",
    "cronjob",
    "csrapproving",
    "csrcleaner",
    "csrsigning",
    "daemonset",
    "deployment",
    "disruption",
    "endpoint",
    "endpointslice",
    "endpointslicemirroring",
    "ephemeral-volume",
    "garbagecollector",
    "horizontalpodautoscaling",
    "job",
    "namespace",
    "nodeipam",
    "nodelifecycle",
    "persistentvolume-binder",
    "persistentvolume-expander",
    "podgc",
    "pv-protection",
    "pvc-protection",
    "replicaset",
    "replicationcontroller",
    "resourcequota",
    "root-ca-cert-publisher",
    "service",
    "serviceaccount",
    "serviceaccount-token",
    "statefulset",
    TOKEN_CLEANER,
    "ttl-after-finished",
];

/// The source components of events, see [`ReconcileKey::event_source`], with the controller that records them.
pub const EVENT_SOURCES: [(&str, &str); 15] = [
    ("attachdetach-controller", "attachdetach"),
    ("controllermanager", "disruption"),
    ("cronjob-controller", "cronjob"),
    ("daemonset-controller", "daemonset"),
    ("deployment-controller", "deployment"),
    ("ephemeral_volume", "ephemeral-volume"),
    ("job-controller", "job"),
    ("node-controller", "nodelifecycle"),
    ("persistentvolume-controller", "persistentvolume-binder"),
    ("replicaset-controller", "replicaset"),
    ("replication-controller", "replicationcontroller"),
    ("service-controller", "service"),
    ("statefulset-controller", "statefulset"),
    ("taint-controller", "nodelifecycle"),
    ("volume_expand", "persistentvolume-expander"),
];

/// Controllers that `*` does not include, as in Kubernetes.
pub const ONLY_BY_NAME: [&str; 2] = [BOOTSTRAP_SIGNER, TOKEN_CLEANER];

const BOOTSTRAP_SIGNER: &str = "bootstrapsigner";
const TOKEN_CLEANER: &str = "tokencleaner";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use apiserver_controller_io::accounts::account_of;

    use super::*;

    /// The object of an example of a key.
    trait Example {
        fn example() -> Self;
    }

    impl Example for String {
        fn example() -> Self {
            "a".into()
        }
    }

    impl Example for ObjectKey {
        fn example() -> Self {
            Self::new("ns", "a")
        }
    }

    impl Example for TokenReference {
        fn example() -> Self {
            Self { account: ObjectKey::example(), uid: "u".into(), secret: "a-token".into() }
        }
    }

    macro_rules! example_keys {
        ($($(#[doc = $doc:literal])+ $kind:ident $(($object:ty))?),+) => {
            [$(ReconcileKey::$kind $((<$object as Example>::example()))?),+]
        };
    }

    #[test]
    fn every_key_has_a_known_controller() {
        let keys = for_every_key!(example_keys);
        for key in &keys {
            assert!(CONTROLLERS.contains(&key.controller()), "{key:?}");
            assert!(key.to_string().starts_with(key.controller()), "{key:?}");
            if let Some(source) = key.event_source() {
                assert!(EVENT_SOURCES.contains(&(source, key.controller())), "{key:?}");
            }
        }
        for controller in CONTROLLERS {
            assert_eq!(
                account_of(controller).is_none(),
                controller == "serviceaccount-token",
                "{controller}"
            );
        }
        // These have queues of their own.
        let others = [
            "bootstrapsigner",
            "csrapproving",
            "csrcleaner",
            "csrsigning",
            "garbagecollector",
            "horizontalpodautoscaling",
            "resourcequota",
            "tokencleaner",
        ];
        let of_keys = keys.iter().map(ReconcileKey::controller);
        let all: BTreeSet<&str> = of_keys.chain(others).collect();
        assert_eq!(all, BTreeSet::from(CONTROLLERS));
        let sources: BTreeSet<&str> = keys.iter().filter_map(ReconcileKey::event_source).collect();
        assert_eq!(sources, EVENT_SOURCES.map(|(source, _)| source).into());
        let slices = ReconcileKey::Slices(ObjectKey::new("ns", "a"));
        assert_eq!(slices.to_string(), "endpointslice ns/a");
    }

    #[test]
    fn controllers_have_the_accounts_that_they_have_in_kubernetes() {
        let accounts: BTreeSet<_> = CONTROLLERS.into_iter().filter_map(account_of).collect();
        assert_eq!(accounts.len(), 31);
        assert_eq!(account_of("service"), Some("service-controller"));
    }

    #[test]
    fn events_of_pods_on_silent_nodes_have_the_source_of_their_controller() {
        let key = ObjectKey::new("ns", "a");
        let readiness = ReconcileKey::PodReadiness(key.clone());
        let eviction = ReconcileKey::TaintEviction(key.clone());
        assert_eq!(readiness.event_source(), Some("node-controller"));
        assert_eq!(eviction.event_source(), Some("taint-controller"));
        assert_eq!(
            (readiness.controller(), eviction.controller()),
            ("nodelifecycle", "nodelifecycle")
        );
        assert_eq!(ReconcileKey::PodGc(key).event_source(), None);
    }
}
