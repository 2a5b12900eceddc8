//! What there is to look at, and which changes make us look.
//!
//! A task names an object; it never says what happened to it. Every task can be done at any time, any number
//! of times: it looks at what is, and does what is missing.

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

/// One thing to look at.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReconcileKey {
    /// The account `default` of a namespace.
    ServiceAccount(String),
    /// The token secrets of an account.
    AccountToken(ObjectKey),
    /// The root CA config map of a namespace.
    RootCa(String),
    /// The Endpoints of a service.
    Endpoints(ObjectKey),
    /// The slices of a service.
    Slices(ObjectKey),
    /// The slices that repeat a service's Endpoints.
    Mirror(ObjectKey),
    /// A namespace that is being deleted.
    Namespace(String),
    /// A pod that no kubelet may be left to remove.
    PodGc(ObjectKey),
    /// The finished pods beyond the threshold.
    EndedPods,
    /// The health and the taints of a node.
    NodeLifecycle(String),
    /// The readiness of a pod whose node is silent.
    PodReadiness(ObjectKey),
    /// The eviction of a pod by the taints of its node.
    TaintEviction(ObjectKey),
    /// The pod addresses of a node.
    NodeCidr(String),
    /// The pods of a replica set.
    ReplicaSet(ObjectKey),
    /// The pods of a replication controller.
    ReplicationController(ObjectKey),
    /// The replica sets of a deployment.
    Deployment(ObjectKey),
    /// How many evictions a disruption budget allows.
    Disruption(ObjectKey),
    /// The volume of a claim.
    Claim(ObjectKey),
    /// The phase of a volume, and what becomes of it.
    Volume(String),
    /// Whether a claim may go.
    ClaimProtection(ObjectKey),
    /// Whether a volume may go.
    VolumeProtection(String),
    /// The claims that a pod brings along.
    OwnClaims(ObjectKey),
    /// What is attached to a node.
    Attachments(String),
    /// A claim that asks for more than it has.
    Expand(ObjectKey),
}

impl ReconcileKey {
    /// The controller that does it, by the name that `--controllers` knows.
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
            Self::NodeCidr(_) => "nodeipam",
            Self::ReplicaSet(_) => "replicaset",
            Self::ReplicationController(_) => "replicationcontroller",
            Self::Deployment(_) => "deployment",
            Self::Disruption(_) => "disruption",
            Self::Claim(_) | Self::Volume(_) => "persistentvolume-binder",
            Self::ClaimProtection(_) => "pvc-protection",
            Self::VolumeProtection(_) => "pv-protection",
            Self::OwnClaims(_) => "ephemeral-volume",
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
            Self::OwnClaims(_) => "ephemeral_volume",
            Self::ReplicaSet(_) => "replicaset-controller",
            Self::ReplicationController(_) => "replication-controller",
            Self::TaintEviction(_) => "taint-controller",
            _ => return None,
        })
    }

    /// The object that it is about.
    fn subject(&self) -> Subject<'_> {
        match self {
            Self::ServiceAccount(name) | Self::RootCa(name) | Self::Namespace(name) => {
                Subject::Namespace(name)
            }
            Self::NodeLifecycle(name)
            | Self::NodeCidr(name)
            | Self::Volume(name)
            | Self::VolumeProtection(name)
            | Self::Attachments(name) => Subject::OfCluster(name),
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
            | Self::OwnClaims(key)
            | Self::Expand(key) => Subject::OfNamespace(key),
            Self::EndedPods => Subject::AllPods,
        }
    }

    /// The namespace that it is about; none for nodes and for everything.
    pub fn namespace(&self) -> Option<&str> {
        match self.subject() {
            Subject::Namespace(name) => Some(name),
            Subject::OfNamespace(key) => Some(&key.namespace),
            Subject::OfCluster(_) | Subject::AllPods => None,
        }
    }
}

/// What a task is about.
enum Subject<'a> {
    /// A namespace, or the one object of a kind that each has.
    Namespace(&'a str),
    /// An object of a namespace.
    OfNamespace(&'a ObjectKey),
    /// An object of none.
    OfCluster(&'a str),
    /// Every pod.
    AllPods,
}

/// Controller and object, as `endpointslice default/web`.
impl fmt::Display for ReconcileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.controller())?;
        match self.subject() {
            Subject::Namespace(name) | Subject::OfCluster(name) => write!(f, " {name}"),
            Subject::OfNamespace(key) => write!(f, " {key}"),
            Subject::AllPods => f.write_str(" ended pods"),
        }
    }
}

/// The same: it is what the queue logs.
impl fmt::Debug for ReconcileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Every controller, by the name that `--controllers` knows.
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

/// Controllers that `*` does not mean; as in Kubernetes they are named by who wants bootstrap tokens.
pub const ONLY_BY_NAME: [&str; 2] = [BOOTSTRAP_SIGNER, TOKEN_CLEANER];

const BOOTSTRAP_SIGNER: &str = "bootstrapsigner";
const TOKEN_CLEANER: &str = "tokencleaner";

/// A kind whose changes lead to tasks.
pub trait Watched: Sized {
    /// The tasks that a change asks for; `world` already has the change.
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey>;
}

/// Key, new and old state of a change; the end of a list asks for nothing.
type Parts<'a, T> = (&'a ObjectKey, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

fn parts<T>(change: &Change<T>) -> Option<Parts<'_, T>> {
    match change {
        Change::Applied { key, new, old } => Some((key, Some(new), old.as_ref())),
        Change::Deleted { key, old } => Some((key, None, Some(old))),
        Change::Synced => None,
    }
}

impl Watched for Namespace {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(namespace), _)) = parts(change) else { return Vec::new() };
        let name = key.name.clone();
        if namespace.metadata.deletion_timestamp.is_some() {
            return vec![ReconcileKey::Namespace(name)];
        }
        vec![ReconcileKey::ServiceAccount(name.clone()), ReconcileKey::RootCa(name)]
    }
}

impl Watched for ServiceAccount {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, ..)) = parts(change) else { return Vec::new() };
        let token = ReconcileKey::AccountToken(key.clone());
        if key.name == service_account::NAME {
            return vec![ReconcileKey::ServiceAccount(key.namespace.clone()), token];
        }
        vec![token]
    }
}

impl Watched for Secret {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = parts(change) else { return Vec::new() };
        let accounts = [new, old].into_iter().flatten();
        let accounts = accounts
            .filter_map(|secret| account_token::account_of(informers.names, &secret.metadata));
        let mut tasks: Vec<ReconcileKey> = accounts.map(ReconcileKey::AccountToken).collect();
        tasks.dedup();
        tasks
    }
}

impl Watched for ConfigMap {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let key = parts(change).map(|(key, ..)| key);
        key.map(|key| ReconcileKey::RootCa(key.namespace.clone())).into_iter().collect()
    }
}

impl Watched for Service {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, ..)) = parts(change) else { return Vec::new() };
        let [endpoints, slices] = of_service(key);
        vec![endpoints, slices, ReconcileKey::Mirror(key.clone())]
    }
}

fn of_service(key: &ObjectKey) -> [ReconcileKey; 2] {
    [ReconcileKey::Endpoints(key.clone()), ReconcileKey::Slices(key.clone())]
}

impl Watched for Endpoints {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, _)) = parts(change) else { return Vec::new() };
        // Endpoints without a service are a user's who makes the service next: only a service that goes
        // takes its endpoints with it.
        let trigger = trigger_annotation(informers.names);
        let is_made = new.is_some_and(|found| found.metadata.annotations.contains_key(&trigger));
        // What this program has made says when it followed a change; its service may have gone while nobody looked.
        let is_ours = new.is_none() || is_made || informers.services.get(key).is_some();
        if is_ours {
            vec![ReconcileKey::Endpoints(key.clone()), ReconcileKey::Mirror(key.clone())]
        } else {
            Vec::new()
        }
    }
}

impl Watched for EndpointSlice {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = parts(change) else { return Vec::new() };
        let origin = new.or(old).and_then(|slice| endpoint_slices::origin(informers.names, slice));
        let task = origin.map(|(manager, service)| match manager {
            Manager::Selector => ReconcileKey::Slices(service),
            Manager::Mirror => ReconcileKey::Mirror(service),
        });
        task.into_iter().collect()
    }
}

impl Watched for Pod {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        informers.pods_by_node.apply(key, old.map(|pod| &**pod), new.map(|pod| &**pod));
        let mut tasks = of_services(new, old, &informers.services.within(&key.namespace));
        if let Some(pod) = new {
            tasks.push(ReconcileKey::PodGc(key.clone()));
            if !pod.spec.node_name.is_empty() {
                tasks.push(ReconcileKey::TaintEviction(key.clone()));
            }
            if is_newly_assigned(old.map(|pod| &**pod), pod) {
                tasks.push(ReconcileKey::PodReadiness(key.clone()));
            }
            if has_ended(pod) && !old.is_some_and(|old| has_ended(old)) {
                tasks.push(ReconcileKey::EndedPods);
            }
        } else if informers.is_ending(&key.namespace) {
            tasks.push(ReconcileKey::Namespace(key.namespace.clone()));
        }
        tasks.extend(volumes::of_pod(informers, key, new, old));
        tasks.extend(disruption::of_pod(informers, key, new, old));
        for pod in [new, old].into_iter().flatten() {
            match pod.metadata.owner_references.iter().find(|o| o.controller == Some(true)) {
                Some(owner) => {
                    let of = ObjectKey::new(&key.namespace, &owner.name);
                    match owner.kind.as_str() {
                        "ReplicaSet" => {
                            tasks.extend(waiting_for(informers, &of, new));
                            tasks.push(ReconcileKey::ReplicaSet(of));
                        }
                        "ReplicationController" => {
                            tasks.push(ReconcileKey::ReplicationController(of))
                        }
                        _ => {}
                    }
                }
                None if new.is_some() && pod.metadata.owner_references.is_empty() => {
                    // Nobody's pod: a replica set that selects it may adopt it.
                    tasks.extend(adopters(informers, pod));
                }
                None => {}
            }
        }
        tasks.dedup();
        tasks
    }
}

/// The deployment of a pod's replica set, when it makes no new pods before the old ones are gone and this one is.
fn waiting_for(
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

/// The tasks of those services, of the pod's namespace, that see a difference between two states of a pod.
fn of_services(
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
    services: &[Arc<Service>],
) -> Vec<ReconcileKey> {
    if let (Some(new), Some(old)) = (new, old)
        && seen_by_services(new) == seen_by_services(old)
    {
        return Vec::new();
    }
    let mut tasks = Vec::new();
    for service in services {
        let selector = Selector::from_map(&service.spec.selector);
        let selects =
            |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| selector.matches(&pod.metadata.labels));
        if has_selector(service) && (selects(new) || selects(old)) {
            tasks.extend(of_service(&ObjectKey::of(&service.metadata)));
        }
    }
    tasks
}

/// What endpoints are made from.
fn seen_by_services(pod: &Pod) -> impl PartialEq + '_ {
    let (metadata, spec, status) = (&pod.metadata, &pod.spec, &pod.status);
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready").map(|c| &c.status);
    let identity = (&metadata.uid, &metadata.labels, metadata.deletion_timestamp.is_some());
    (identity, &spec.node_name, &status.pod_ip, &status.pod_ips, &status.phase, ready)
}

fn adopters(informers: &Informers, pod: &Pod) -> Vec<ReconcileKey> {
    let mut tasks = Vec::new();
    for controller in informers.replication_controllers.within(&pod.metadata.namespace) {
        let selector = &controller.spec.selector;
        if !selector.is_empty() && Selector::from_map(selector).matches(&pod.metadata.labels) {
            tasks.push(ReconcileKey::ReplicationController(ObjectKey::of(&controller.metadata)));
        }
    }
    for set in informers.replica_sets.within(&pod.metadata.namespace) {
        let selects = set.spec.selector.as_ref().is_some_and(|selector| {
            let selector = Selector::from_label_selector(selector, "spec.selector");
            selector.is_ok_and(|selector| selector.matches(&pod.metadata.labels))
        });
        if selects {
            tasks.push(ReconcileKey::ReplicaSet(ObjectKey::of(&set.metadata)));
        }
    }
    tasks
}

impl Watched for Node {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let mut tasks = vec![ReconcileKey::NodeLifecycle(key.name.clone())];
        if new.is_some_and(|node| !has_ranges(node)) {
            tasks.push(ReconcileKey::NodeCidr(key.name.clone()));
        }
        tasks.extend(volumes::of_changed_node(key, new, old));
        let readiness = |node: Option<&Arc<Self>>| node.is_some_and(|node| is_ready(node));
        if readiness(new) != readiness(old) {
            // Whether any node is ready counts for the taints of all.
            let all = informers.nodes.list();
            if !all.iter().any(|(other, node)| other != key && is_ready(node)) {
                tasks.extend(all.into_iter().map(|(key, _)| ReconcileKey::NodeLifecycle(key.name)));
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
                    tasks.push(ReconcileKey::PodGc(pod_key.clone()));
                    tasks.push(ReconcileKey::TaintEviction(pod_key.clone()));
                }
                if silent {
                    tasks.push(ReconcileKey::PodReadiness(pod_key));
                }
                if moved {
                    let services = informers.services.within(&pod.metadata.namespace);
                    tasks.extend(of_services(Some(&pod), None, &services));
                }
            }
        }
        tasks
    }
}

impl Watched for Lease {
    fn tasks(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(_), _)) = parts(change) else { return Vec::new() };
        vec![ReconcileKey::NodeLifecycle(key.name.clone())]
    }
}

impl Watched for ReplicaSet {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let mut tasks = vec![ReconcileKey::ReplicaSet(key.clone())];
        let replicas = |set: Option<&Arc<Self>>| set.map(|set| set.spec.replicas);
        tasks.extend(disruption::of_scale(informers, &key.namespace, replicas(new), replicas(old)));
        for set in [new, old].into_iter().flatten() {
            let owner = owners::controller(&set.metadata, "Deployment");
            tasks.extend(owner.map(|owner| {
                ReconcileKey::Deployment(ObjectKey::new(&key.namespace, &owner.name))
            }));
        }
        tasks
    }
}

impl Watched for ReplicationController {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let replicas = |found: Option<&Arc<Self>>| found.map(|found| found.spec.replicas);
        let mut tasks = vec![ReconcileKey::ReplicationController(key.clone())];
        tasks.extend(disruption::of_scale(informers, &key.namespace, replicas(new), replicas(old)));
        tasks
    }
}

impl Watched for Deployment {
    fn tasks(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = parts(change) else { return Vec::new() };
        let replicas = |found: Option<&Arc<Self>>| found.map(|found| found.spec.replicas);
        let mut tasks = vec![ReconcileKey::Deployment(key.clone())];
        tasks.extend(disruption::of_scale(informers, &key.namespace, replicas(new), replicas(old)));
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::addresses::examples;

    fn tasks(new: Option<Pod>, old: Option<Pod>) -> usize {
        let services = [Arc::new(examples::service())];
        of_services(new.map(Arc::new).as_ref(), old.map(Arc::new).as_ref(), &services).len()
    }

    #[test]
    fn services_look_only_at_what_they_see() {
        let pod = || examples::pod(1);
        assert_eq!(tasks(Some(pod()), None), 2, "Endpoints and slices");
        assert_eq!(tasks(None, Some(pod())), 2);
        assert_eq!(tasks(Some(pod()), Some(pod())), 0);
        let mut unlike = pod();
        unlike.metadata.labels.clear();
        assert_eq!(tasks(Some(unlike.clone()), None), 0);
        assert_eq!(tasks(Some(unlike), Some(pod())), 2, "it left the selector");
        let mut renamed = pod();
        renamed.metadata.annotations.insert("note".into(), "x".into());
        renamed.metadata.resource_version = "9".into();
        assert_eq!(tasks(Some(renamed), Some(pod())), 0);
        let mut unready = pod();
        examples::set_ready(&mut unready, "False");
        assert_eq!(tasks(Some(unready), Some(pod())), 2);
        let mut moved = pod();
        moved.status.pod_ip = "10.1.0.99".into();
        assert_eq!(tasks(Some(moved), Some(pod())), 2);
    }

    #[test]
    fn every_task_has_a_known_controller() {
        let key = ObjectKey::new("ns", "a");
        for task in [
            ReconcileKey::ServiceAccount("ns".into()),
            ReconcileKey::Endpoints(key.clone()),
            ReconcileKey::EndedPods,
            ReconcileKey::NodeLifecycle("n".into()),
            ReconcileKey::NodeCidr("n".into()),
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
