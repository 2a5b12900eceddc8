//! The reconcile keys of the work queue, and the keys that a change of an object queues.
//!
//! A key names a controller and an object, never an event. Reconciling it compares the current state with the desired one, and is idempotent.

mod disruption;
mod volumes;

use std::fmt;
use std::sync::Arc;

use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, Pod, ReplicationController, Secret, Service,
    ServiceAccount,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::selectors::Selector;
use proto_client::{Change, ObjectKey};

use crate::controllers::account_token;
use crate::controllers::addresses::{has_ended, has_selector, trigger_annotation};
use crate::controllers::deployment;
use crate::controllers::endpoint_slices::{self, Manager};
use crate::controllers::node_cidr::has_ranges;
use crate::controllers::node_lifecycle::{is_newly_assigned, is_ready, is_unknown};
use crate::controllers::owners;
use crate::controllers::service_account;
use crate::informers::Informers;

pub(crate) use volumes::users;

/// A controller and the object that it reconciles.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReconcileKey {
    /// The service account `default` of a namespace.
    ServiceAccount(String),
    /// The token secrets of a service account.
    AccountToken(ObjectKey),
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
}

impl ReconcileKey {
    /// The controller, by its name in `--controllers`.
    pub fn controller(&self) -> &'static str {
        match self {
            Self::ServiceAccount(_) => "serviceaccount",
            Self::AccountToken(_) => "serviceaccount-token",
            Self::RootCa(_) => "root-ca-cert-publisher",
            Self::Endpoints(_) => "endpoint",
            Self::Slices(_) => "endpointslice",
            Self::Mirror(_) => "endpointslicemirroring",
            Self::Namespace(_) => "namespace",
            Self::PodGc(_) | Self::EndedPods => "podgc",
            Self::NodeLifecycle(_) | Self::PodReadiness(_) | Self::TaintEviction(_) => {
                "nodelifecycle"
            }
            Self::NodeIpam(_) => "nodeipam",
            Self::ReplicaSet(_) => "replicaset",
            Self::ReplicationController(_) => "replicationcontroller",
            Self::Deployment(_) => "deployment",
            Self::Disruption(_) => "disruption",
            Self::Claim(_) | Self::Volume(_) => "persistentvolume-binder",
            Self::ClaimProtection(_) => "pvc-protection",
            Self::VolumeProtection(_) => "pv-protection",
            Self::EphemeralClaims(_) => "ephemeral-volume",
            Self::Attachments(_) => "attachdetach",
            Self::Expand(_) => "persistentvolume-expander",
        }
    }

    /// The source component of this key's events, one of [`EVENT_SOURCES`], as kube-controller-manager sets it.
    pub fn event_source(&self) -> Option<&'static str> {
        Some(match self {
            Self::Attachments(_) => "attachdetach-controller",
            Self::Claim(_) | Self::Volume(_) => "persistentvolume-controller",
            Self::Deployment(_) => "deployment-controller",
            Self::Disruption(_) => "controllermanager",
            Self::Expand(_) => "volume_expand",
            Self::NodeLifecycle(_) | Self::PodReadiness(_) => "node-controller",
            Self::EphemeralClaims(_) => "ephemeral_volume",
            Self::ReplicaSet(_) => "replicaset-controller",
            Self::ReplicationController(_) => "replication-controller",
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
            | Self::Attachments(name) => Target::ClusterScoped(name),
            Self::AccountToken(key)
            | Self::Endpoints(key)
            | Self::Slices(key)
            | Self::Mirror(key)
            | Self::PodGc(key)
            | Self::PodReadiness(key)
            | Self::TaintEviction(key)
            | Self::ReplicaSet(key)
            | Self::ReplicationController(key)
            | Self::Deployment(key)
            | Self::Claim(key)
            | Self::ClaimProtection(key)
            | Self::Disruption(key)
            | Self::EphemeralClaims(key)
            | Self::Expand(key) => Target::Namespaced(key),
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
pub const CONTROLLERS: [&str; 26] = [
    "attachdetach",
    BOOTSTRAP_SIGNER,
    "csrapproving",
    "csrcleaner",
    "csrsigning",
    "deployment",
    "disruption",
    "endpoint",
    "endpointslice",
    "endpointslicemirroring",
    "ephemeral-volume",
    "garbagecollector",
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
    "root-ca-cert-publisher",
    "serviceaccount",
    "serviceaccount-token",
    TOKEN_CLEANER,
];

/// The source components of events, see [`ReconcileKey::event_source`].
pub const EVENT_SOURCES: [&str; 10] = [
    "attachdetach-controller",
    "controllermanager",
    "deployment-controller",
    "ephemeral_volume",
    "node-controller",
    "persistentvolume-controller",
    "replicaset-controller",
    "replication-controller",
    "taint-controller",
    "volume_expand",
];

/// Controllers that `*` does not include, as in Kubernetes.
pub const ONLY_BY_NAME: [&str; 2] = [BOOTSTRAP_SIGNER, TOKEN_CLEANER];

const BOOTSTRAP_SIGNER: &str = "bootstrapsigner";
const TOKEN_CLEANER: &str = "tokencleaner";

/// A watched kind whose changes queue keys.
pub trait Watched: Sized {
    /// The keys to queue for a change, which the caches contain already.
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey>;
}

/// Key, new and old state of a change.
type ChangedObject<'a, T> = (&'a ObjectKey, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

fn split<T>(change: &Change<T>) -> Option<ChangedObject<'_, T>> {
    match change {
        Change::Applied { key, new, old } => Some((key, Some(new), old.as_ref())),
        Change::Deleted { key, old } => Some((key, None, Some(old))),
        Change::Synced => None,
    }
}

impl Watched for Namespace {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(namespace), _)) = split(change) else { return Vec::new() };
        let name = key.name.clone();
        if namespace.metadata.deletion_timestamp.is_some() {
            return vec![ReconcileKey::Namespace(name)];
        }
        vec![ReconcileKey::ServiceAccount(name.clone()), ReconcileKey::RootCa(name)]
    }
}

impl Watched for ServiceAccount {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, ..)) = split(change) else { return Vec::new() };
        let token = ReconcileKey::AccountToken(key.clone());
        if key.name == service_account::NAME {
            return vec![ReconcileKey::ServiceAccount(key.namespace.clone()), token];
        }
        vec![token]
    }
}

impl Watched for Secret {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = split(change) else { return Vec::new() };
        let accounts = [new, old].into_iter().flatten();
        let accounts = accounts
            .filter_map(|secret| account_token::account_of(informers.names, &secret.metadata));
        let mut keys: Vec<ReconcileKey> = accounts.map(ReconcileKey::AccountToken).collect();
        keys.dedup();
        keys
    }
}

impl Watched for ConfigMap {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let key = split(change).map(|(key, ..)| key);
        key.map(|key| ReconcileKey::RootCa(key.namespace.clone())).into_iter().collect()
    }
}

impl Watched for Service {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, ..)) = split(change) else { return Vec::new() };
        let [endpoints, slices] = keys_of_service(key);
        vec![endpoints, slices, ReconcileKey::Mirror(key.clone())]
    }
}

fn keys_of_service(key: &ObjectKey) -> [ReconcileKey; 2] {
    [ReconcileKey::Endpoints(key.clone()), ReconcileKey::Slices(key.clone())]
}

impl Watched for Endpoints {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, _)) = split(change) else { return Vec::new() };
        // A user may create Endpoints before their Service: they are only deleted with a Service.
        let trigger = trigger_annotation(informers.names);
        let is_made = new.is_some_and(|found| found.metadata.annotations.contains_key(&trigger));
        // Endpoints with the trigger annotation were created by this controller; their Service may have been deleted while it was not running.
        let is_managed = new.is_none() || is_made || informers.services.get(key).is_some();
        if is_managed {
            vec![ReconcileKey::Endpoints(key.clone()), ReconcileKey::Mirror(key.clone())]
        } else {
            Vec::new()
        }
    }
}

impl Watched for EndpointSlice {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = split(change) else { return Vec::new() };
        let origin = new.or(old).and_then(|slice| endpoint_slices::origin(informers.names, slice));
        let task = origin.map(|(manager, service)| match manager {
            Manager::Selector => ReconcileKey::Slices(service),
            Manager::Mirror => ReconcileKey::Mirror(service),
        });
        task.into_iter().collect()
    }
}

impl Watched for Pod {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        informers.pods_by_node.apply(key, old.map(|pod| &**pod), new.map(|pod| &**pod));
        let mut keys = keys_of_services(new, old, &informers.services.within(&key.namespace));
        if let Some(pod) = new {
            keys.push(ReconcileKey::PodGc(key.clone()));
            if !pod.spec.node_name.is_empty() {
                keys.push(ReconcileKey::TaintEviction(key.clone()));
            }
            if is_newly_assigned(old.map(|pod| &**pod), pod) {
                keys.push(ReconcileKey::PodReadiness(key.clone()));
            }
            if has_ended(pod) && !old.is_some_and(|old| has_ended(old)) {
                keys.push(ReconcileKey::EndedPods);
            }
        } else if informers.is_terminating(&key.namespace) {
            keys.push(ReconcileKey::Namespace(key.namespace.clone()));
        }
        keys.extend(volumes::keys_of_pod(informers, key, new, old));
        keys.extend(disruption::keys_of_pod(informers, key, new, old));
        for pod in [new, old].into_iter().flatten() {
            match pod.metadata.owner_references.iter().find(|o| o.controller == Some(true)) {
                Some(owner) => {
                    let of = ObjectKey::new(&key.namespace, &owner.name);
                    match owner.kind.as_str() {
                        "ReplicaSet" => {
                            keys.extend(recreating_deployment(informers, &of, new));
                            keys.push(ReconcileKey::ReplicaSet(of));
                        }
                        "ReplicationController" => {
                            keys.push(ReconcileKey::ReplicationController(of))
                        }
                        _ => {}
                    }
                }
                None if new.is_some() && pod.metadata.owner_references.is_empty() => {
                    // An orphan: a controller that selects it may adopt it.
                    keys.extend(keys_of_adopters(informers, pod));
                }
                None => {}
            }
        }
        keys.dedup();
        keys
    }
}

/// The deployment of a finished or deleted pod if its strategy is Recreate: it waits for old pods to end.
fn recreating_deployment(
    informers: &Informers,
    set: &ObjectKey,
    pod: Option<&Arc<Pod>>,
) -> Option<ReconcileKey> {
    if pod.is_some_and(|pod| !has_ended(pod)) {
        return None;
    }
    let set = informers.replica_sets.get(set)?;
    let owner = owners::controller(&set.metadata, "Deployment")?;
    let key = ObjectKey::new(&set.metadata.namespace, &owner.name);
    let waits = informers.deployments.get(&key).is_some_and(|found| deployment::recreates(&found));
    waits.then_some(ReconcileKey::Deployment(key))
}

/// The keys of the Services whose endpoints change between two states of a pod.
fn keys_of_services(
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
    services: &[Arc<Service>],
) -> Vec<ReconcileKey> {
    if let (Some(new), Some(old)) = (new, old)
        && endpoint_fields(new) == endpoint_fields(old)
    {
        return Vec::new();
    }
    let mut keys = Vec::new();
    for service in services {
        let selector = Selector::from_map(&service.spec.selector);
        let selects =
            |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| selector.matches(&pod.metadata.labels));
        if has_selector(service) && (selects(new) || selects(old)) {
            keys.extend(keys_of_service(&ObjectKey::of(&service.metadata)));
        }
    }
    keys
}

/// The fields of a pod that endpoints are made from.
fn endpoint_fields(pod: &Pod) -> impl PartialEq + '_ {
    let (metadata, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| &c.status);
    let identity = (&metadata.uid, &metadata.labels, metadata.deletion_timestamp.is_some());
    (identity, &spec.node_name, &status.pod_ip, &status.pod_ips, &status.phase, ready)
}

fn keys_of_adopters(informers: &Informers, pod: &Pod) -> Vec<ReconcileKey> {
    let mut keys = Vec::new();
    for controller in informers.replication_controllers.within(&pod.metadata.namespace) {
        let selector = &controller.spec.selector;
        if !selector.is_empty() && Selector::from_map(selector).matches(&pod.metadata.labels) {
            keys.push(ReconcileKey::ReplicationController(ObjectKey::of(&controller.metadata)));
        }
    }
    for set in informers.replica_sets.within(&pod.metadata.namespace) {
        let selects = set.spec.selector.as_ref().is_some_and(|selector| {
            let selector = Selector::from_label_selector(selector, "spec.selector");
            selector.is_ok_and(|selector| selector.matches(&pod.metadata.labels))
        });
        if selects {
            keys.push(ReconcileKey::ReplicaSet(ObjectKey::of(&set.metadata)));
        }
    }
    keys
}

impl Watched for Node {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = vec![ReconcileKey::NodeLifecycle(key.name.clone())];
        if new.is_some_and(|node| !has_ranges(node)) {
            keys.push(ReconcileKey::NodeIpam(key.name.clone()));
        }
        keys.extend(volumes::keys_of_node(key, new, old));
        let readiness = |node: Option<&Arc<Self>>| node.is_some_and(|node| is_ready(node));
        if readiness(new) != readiness(old) {
            // Whether any node is ready affects the taints of all.
            let all = informers.nodes.list();
            if !all.iter().any(|(other, node)| other != key && is_ready(node)) {
                keys.extend(all.into_iter().map(|(key, _)| ReconcileKey::NodeLifecycle(key.name)));
            }
        }
        let taints = |node: Option<&Arc<Self>>| node.map(|node| node.spec.taints.clone());
        let unknown = |node: Option<&Arc<Self>>| node.is_some_and(|node| is_unknown(node));
        let zone = informers.names.sub_label("topology", "zone");
        let zone =
            |node: Option<&Arc<Self>>| node.and_then(|n| n.metadata.labels.get(&zone).cloned());
        let (tainted, moved) = (taints(new) != taints(old), zone(new) != zone(old));
        let silent = unknown(new) && !unknown(old);
        if tainted || moved || silent {
            for pod in informers.pods_on(&key.name) {
                let pod_key = ObjectKey::of(&pod.metadata);
                if tainted || silent {
                    keys.push(ReconcileKey::PodGc(pod_key.clone()));
                    keys.push(ReconcileKey::TaintEviction(pod_key.clone()));
                }
                if silent {
                    keys.push(ReconcileKey::PodReadiness(pod_key));
                }
                if moved {
                    let services = informers.services.within(&pod.metadata.namespace);
                    keys.extend(keys_of_services(Some(&pod), None, &services));
                }
            }
        }
        keys
    }
}

impl Watched for Lease {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(_), _)) = split(change) else { return Vec::new() };
        vec![ReconcileKey::NodeLifecycle(key.name.clone())]
    }
}

impl Watched for ReplicaSet {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = vec![ReconcileKey::ReplicaSet(key.clone())];
        let replicas = |set: Option<&Arc<Self>>| set.map(|set| set.spec.replicas);
        keys.extend(disruption::keys_of_scale(
            informers,
            &key.namespace,
            replicas(new),
            replicas(old),
        ));
        for set in [new, old].into_iter().flatten() {
            let owner = owners::controller(&set.metadata, "Deployment");
            keys.extend(owner.map(|owner| {
                ReconcileKey::Deployment(ObjectKey::new(&key.namespace, &owner.name))
            }));
        }
        keys
    }
}

impl Watched for ReplicationController {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let replicas = |found: Option<&Arc<Self>>| found.map(|found| found.spec.replicas);
        let mut keys = vec![ReconcileKey::ReplicationController(key.clone())];
        keys.extend(disruption::keys_of_scale(
            informers,
            &key.namespace,
            replicas(new),
            replicas(old),
        ));
        keys
    }
}

impl Watched for Deployment {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let replicas = |found: Option<&Arc<Self>>| found.map(|found| found.spec.replicas);
        let mut keys = vec![ReconcileKey::Deployment(key.clone())];
        keys.extend(disruption::keys_of_scale(
            informers,
            &key.namespace,
            replicas(new),
            replicas(old),
        ));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::addresses::examples;

    fn keys(new: Option<Pod>, old: Option<Pod>) -> usize {
        let services = [Arc::new(examples::service())];
        keys_of_services(new.map(Arc::new).as_ref(), old.map(Arc::new).as_ref(), &services).len()
    }

    #[test]
    fn services_are_queued_only_for_fields_of_endpoints() {
        let pod = || examples::pod(1);
        assert_eq!(keys(Some(pod()), None), 2, "Endpoints and slices");
        assert_eq!(keys(None, Some(pod())), 2);
        assert_eq!(keys(Some(pod()), Some(pod())), 0);
        let mut unlike = pod();
        unlike.metadata.labels.clear();
        assert_eq!(keys(Some(unlike.clone()), None), 0);
        assert_eq!(keys(Some(unlike), Some(pod())), 2, "it left the selector");
        let mut renamed = pod();
        renamed.metadata.annotations.insert("note".into(), "x".into());
        renamed.metadata.resource_version = "9".into();
        assert_eq!(keys(Some(renamed), Some(pod())), 0);
        let mut unready = pod();
        examples::set_ready(&mut unready, "False");
        assert_eq!(keys(Some(unready), Some(pod())), 2);
        let mut moved = pod();
        moved.status.pod_ip = "10.1.0.99".into();
        assert_eq!(keys(Some(moved), Some(pod())), 2);
    }

    #[test]
    fn every_key_has_a_known_controller() {
        let key = ObjectKey::new("ns", "a");
        for task in [
            ReconcileKey::ServiceAccount("ns".into()),
            ReconcileKey::Endpoints(key.clone()),
            ReconcileKey::EndedPods,
            ReconcileKey::NodeLifecycle("n".into()),
            ReconcileKey::NodeIpam("n".into()),
            ReconcileKey::ReplicaSet(key.clone()),
        ] {
            assert!(CONTROLLERS.contains(&task.controller()), "{task:?}");
            assert!(task.to_string().starts_with(task.controller()));
        }
        let slices = ReconcileKey::Slices(ObjectKey::new("ns", "a"));
        assert_eq!(slices.to_string(), "endpointslice ns/a");
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
        for task in [readiness, eviction, ReconcileKey::Deployment(key.clone())] {
            assert!(task.event_source().is_some_and(|source| EVENT_SOURCES.contains(&source)));
        }
        assert_eq!(ReconcileKey::PodGc(key).event_source(), None);
    }
}
