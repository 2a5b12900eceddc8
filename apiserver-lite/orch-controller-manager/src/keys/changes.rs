//! The keys that a change of an object queues, for all kinds but those of volumes and disruption budgets.

use std::sync::Arc;

use apiserver_controller_io::informers::Informers;
use apiserver_controllers::account_token::{self, TokenReference};
use apiserver_controllers::addresses::{
    endpoint_fields, has_ended, has_selector, selects, trigger_annotation,
};
use apiserver_controllers::cluster_role_aggregation::is_aggregated;
use apiserver_controllers::deployment;
use apiserver_controllers::endpoint_slices::{self, Manager};
use apiserver_controllers::node_cidr::has_ranges;
use apiserver_controllers::node_lifecycle::{is_newly_assigned, is_ready, loses_ready_pods};
use apiserver_controllers::owners;
use apiserver_controllers::service_account;
use apiserver_controllers::taint_manager;
use proto_api::ObjectKey;
use proto_api::apps::v1::{Deployment, ReplicaSet};
use proto_api::coordination::v1::Lease;
use proto_api::core::v1::{
    ConfigMap, Endpoints, Namespace, Node, Pod, ReplicationController, Secret, Service,
    ServiceAccount, Taint,
};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::rbac::v1::ClusterRole;
use proto_api::selectors::Selector;
use proto_client::Change;

use super::{ReconcileKey, disruption, load_balancers, volumes, workloads};

/// A watched kind whose changes queue keys.
pub trait WatchedKind: Sized {
    /// The keys to queue for a change, which the caches contain already.
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey>;
}

/// Key, new and old state of a change.
pub(super) type ChangedObject<'a, T> = (&'a ObjectKey, Option<&'a Arc<T>>, Option<&'a Arc<T>>);

pub(super) fn split<T>(change: &Change<T>) -> Option<ChangedObject<'_, T>> {
    match change {
        Change::Applied { key, new, old } => Some((key, Some(new), old.as_ref())),
        Change::Deleted { key, old } => Some((key, None, Some(old))),
        Change::Synced => None,
    }
}

impl WatchedKind for Namespace {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(namespace), old)) = split(change) else { return Vec::new() };
        let name = key.name.clone();
        if namespace.metadata.deletion_timestamp.is_some() {
            // Changes of the conditions are this controller's own: the next round is scheduled already. After a relist `old` may be an earlier namespace of
            // the same name.
            let begins = |old: &Arc<Self>| {
                let (old, new) = (&old.metadata, &namespace.metadata);
                old.deletion_timestamp.is_none() || old.uid != new.uid
            };
            let differs = |old: &Arc<Self>| old.spec.finalizers != namespace.spec.finalizers;
            let is_due = old.is_none_or(|old| begins(old) || differs(old));
            return is_due.then_some(ReconcileKey::Namespace(name)).into_iter().collect();
        }
        vec![ReconcileKey::ServiceAccount(name.clone()), ReconcileKey::RootCa(name)]
    }
}

impl WatchedKind for ServiceAccount {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, ..)) = split(change) else { return Vec::new() };
        let token = ReconcileKey::AccountToken(key.clone());
        if key.name == service_account::NAME {
            return vec![ReconcileKey::ServiceAccount(key.namespace.clone()), token];
        }
        vec![token]
    }
}

impl WatchedKind for Secret {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = split(change) else { return Vec::new() };
        let accounts = [new, old].into_iter().flatten();
        let accounts = accounts
            .filter_map(|secret| account_token::account_of(informers.names, &secret.metadata));
        let mut keys: Vec<ReconcileKey> = accounts.map(ReconcileKey::AccountToken).collect();
        keys.dedup();
        if let (None, Some(deleted)) = (new, old) {
            let reference = TokenReference::from_secret(informers.names, &deleted.metadata);
            keys.extend(reference.map(ReconcileKey::TokenReference));
        }
        keys
    }
}

impl WatchedKind for ConfigMap {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let key = split(change).map(|(key, ..)| key);
        key.map(|key| ReconcileKey::RootCa(key.namespace.clone())).into_iter().collect()
    }
}

impl WatchedKind for Service {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, _)) = split(change) else { return Vec::new() };
        let [endpoints, slices] = keys_of_service(key);
        let mut keys = vec![endpoints, slices, ReconcileKey::Mirror(key.clone())];
        keys.extend(load_balancers::keys_of_service(informers, key, new));
        keys
    }
}

fn keys_of_service(key: &ObjectKey) -> [ReconcileKey; 2] {
    [ReconcileKey::Endpoints(key.clone()), ReconcileKey::Slices(key.clone())]
}

impl WatchedKind for Endpoints {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, _)) = split(change) else { return Vec::new() };
        // A user may create Endpoints before their Service: they are only deleted with a Service.
        let trigger = trigger_annotation(informers.names);
        let is_made = new.is_some_and(|found| found.metadata.annotations.contains_key(&trigger));
        // Endpoints with the trigger annotation were created by this controller; their Service may have been deleted while it was not running.
        let service = informers.services.get(key);
        if new.is_some() && !is_made && service.is_none() {
            return Vec::new();
        }
        // Endpoints of a selector are not mirrored. A change of the selector queues the slices of what was.
        let is_mirrored = service.is_none_or(|service| !has_selector(&service));
        let mirror = is_mirrored.then(|| ReconcileKey::Mirror(key.clone()));
        [ReconcileKey::Endpoints(key.clone())].into_iter().chain(mirror).collect()
    }
}

impl WatchedKind for EndpointSlice {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((_, new, old)) = split(change) else { return Vec::new() };
        let origin = new.or(old).and_then(|slice| endpoint_slices::origin(informers.names, slice));
        let task = origin.map(|(manager, service)| match manager {
            Manager::Selector => ReconcileKey::Slices(service),
            Manager::Mirror => ReconcileKey::Mirror(service),
        });
        let balanced = new.or(old).and_then(|slice| load_balancers::key_of_slice(informers, slice));
        task.into_iter().chain(balanced).collect()
    }
}

impl WatchedKind for Pod {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        informers.index_pod(key, old, new);
        let mut keys = keys_of_services(new, old, || informers.services.within(&key.namespace));
        if let Some(pod) = new {
            keys.push(ReconcileKey::PodGc(key.clone()));
            if is_newly_assigned(old.map(|pod| &**pod), pod) {
                keys.push(ReconcileKey::PodReadiness(key.clone()));
            }
            if has_ended(pod) && !old.is_some_and(|old| has_ended(old)) {
                keys.push(ReconcileKey::EndedPods);
            }
        } else if informers.is_terminating(&key.namespace) {
            keys.push(ReconcileKey::Namespace(key.namespace.clone()));
        }
        if taint_manager::is_affected(old.map(|pod| &**pod), new.map(|pod| &**pod)) {
            keys.push(ReconcileKey::TaintEviction(key.clone()));
        }
        keys.extend(volumes::keys_of_pod(informers, key, new, old));
        keys.extend(workloads::keys_of_held_pod(informers, key, new));
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
                        kind => keys.extend(workloads::key_of_owner(kind, of)),
                    }
                }
                None if new.is_some() && pod.metadata.owner_references.is_empty() => {
                    // An orphan: a controller that selects it may adopt it.
                    keys.extend(keys_of_adopters(informers, pod));
                    keys.extend(workloads::keys_of_adopters(informers, &pod.metadata));
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

/// The keys of the Services whose endpoints change between two states of a pod; `services` are those of its namespace.
fn keys_of_services(
    new: Option<&Arc<Pod>>,
    old: Option<&Arc<Pod>>,
    services: impl FnOnce() -> Vec<Arc<Service>>,
) -> Vec<ReconcileKey> {
    if let (Some(new), Some(old)) = (new, old)
        && endpoint_fields(new) == endpoint_fields(old)
    {
        return Vec::new();
    }
    // Without a change of its labels the same Services select the pod as before.
    let old = old.filter(|old| new.is_none_or(|new| new.metadata.labels != old.metadata.labels));
    let mut keys = Vec::new();
    for service in services() {
        if [new, old].into_iter().flatten().any(|pod| selects(&service, pod)) {
            keys.extend(keys_of_service(&ObjectKey::from_metadata(&service.metadata)));
        }
    }
    keys
}

fn keys_of_adopters(informers: &Informers, pod: &Pod) -> Vec<ReconcileKey> {
    let mut keys = Vec::new();
    for controller in informers.replication_controllers.within(&pod.metadata.namespace) {
        let selector = &controller.spec.selector;
        if !selector.is_empty() && Selector::from_map(selector).matches(&pod.metadata.labels) {
            keys.push(ReconcileKey::ReplicationController(ObjectKey::from_metadata(
                &controller.metadata,
            )));
        }
    }
    for set in informers.replica_sets.within(&pod.metadata.namespace) {
        let selects = set.spec.selector.as_ref().is_some_and(|selector| {
            let selector = Selector::from_label_selector(selector, "spec.selector");
            selector.is_ok_and(|selector| selector.matches(&pod.metadata.labels))
        });
        if selects {
            keys.push(ReconcileKey::ReplicaSet(ObjectKey::from_metadata(&set.metadata)));
        }
    }
    keys
}

impl WatchedKind for Node {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let mut keys = vec![ReconcileKey::NodeLifecycle(key.name.clone())];
        if new.is_some_and(|node| !has_ranges(node)) {
            keys.push(ReconcileKey::NodeIpam(key.name.clone()));
        }
        keys.extend(volumes::keys_of_node(key, new, old));
        keys.extend(workloads::keys_of_node(informers, new, old));
        keys.extend(load_balancers::keys_of_node(informers, key, new, old));
        let readiness = |node: Option<&Arc<Self>>| node.is_some_and(|node| is_ready(node));
        if readiness(new) != readiness(old) || new.is_none() {
            // How many nodes are ready affects the taints of the others.
            let all = informers.nodes.list().into_iter().filter(|(_, node)| !is_ready(node));
            keys.extend(all.map(|(key, _)| ReconcileKey::NodeLifecycle(key.name)));
        }
        let taints = |node: Option<&Arc<Self>>| node.map(|node| node.spec.taints.clone());
        let evicting = |node: Option<&Arc<Self>>| -> Vec<Taint> {
            let taints = node.into_iter().flat_map(|node| taint_manager::evicting_taints(node));
            taints.cloned().collect()
        };
        let zone = informers.names.sub_label("topology", "zone");
        let zone =
            |node: Option<&Arc<Self>>| node.and_then(|n| n.metadata.labels.get(&zone).cloned());
        // The EndpointSlices of its pods tell the zone, and have no pods of a Node that is gone.
        let moved = zone(new) != zone(old) || new.is_some() != old.is_some();
        let tainted = taints(new) != taints(old);
        let evicts = evicting(new) != evicting(old);
        // A pod of a node that is out of service is deleted once the node is not ready.
        let fails = readiness(old) && !readiness(new);
        let marks_pods = new.is_some_and(|new| loses_ready_pods(old.map(|old| &**old), new));
        if tainted || moved || fails || marks_pods {
            let pods = informers.pods_on(&key.name);
            if moved {
                let services = informers.services_of_pods(&pods);
                keys.extend(services.into_iter().map(ReconcileKey::Slices));
            }
            for pod in pods {
                let pod_key = ObjectKey::from_metadata(&pod.metadata);
                if tainted || fails {
                    keys.push(ReconcileKey::PodGc(pod_key.clone()));
                }
                if evicts {
                    keys.push(ReconcileKey::TaintEviction(pod_key.clone()));
                }
                if marks_pods {
                    keys.push(ReconcileKey::PodReadiness(pod_key));
                }
            }
        }
        keys
    }
}

impl WatchedKind for Lease {
    fn keys(change: &Change<Self>, _: &Informers) -> Vec<ReconcileKey> {
        let Some((key, Some(_), _)) = split(change) else { return Vec::new() };
        vec![ReconcileKey::NodeLifecycle(key.name.clone())]
    }
}

/// The key of an object that scales pods, and those of the disruption budgets that count its replicas.
pub(super) fn keys_of_scaled<T>(
    change: &Change<T>,
    informers: &Informers,
    reconciled: fn(ObjectKey) -> ReconcileKey,
    replicas: impl Fn(&T) -> Option<i32>,
) -> Vec<ReconcileKey> {
    let Some((key, new, old)) = split(change) else { return Vec::new() };
    let (new, old) = (new.map(|new| replicas(new)), old.map(|old| replicas(old)));
    let mut keys = vec![reconciled(key.clone())];
    keys.extend(disruption::keys_of_scale(informers, &key.namespace, new, old));
    keys
}

impl WatchedKind for ReplicaSet {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let Some((key, new, old)) = split(change) else { return Vec::new() };
        let replicas = |set: &Self| set.spec.replicas;
        let mut keys = keys_of_scaled(change, informers, ReconcileKey::ReplicaSet, replicas);
        for set in [new, old].into_iter().flatten() {
            let owner = owners::controller(&set.metadata, "Deployment");
            keys.extend(owner.map(|owner| {
                ReconcileKey::Deployment(ObjectKey::new(&key.namespace, &owner.name))
            }));
        }
        keys
    }
}

impl WatchedKind for ReplicationController {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let replicas = |controller: &Self| controller.spec.replicas;
        keys_of_scaled(change, informers, ReconcileKey::ReplicationController, replicas)
    }
}

impl WatchedKind for Deployment {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        let replicas = |deployment: &Self| deployment.spec.replicas;
        keys_of_scaled(change, informers, ReconcileKey::Deployment, replicas)
    }
}

/// A role may be a part of any aggregated role, before or after the change.
impl WatchedKind for ClusterRole {
    fn keys(change: &Change<Self>, informers: &Informers) -> Vec<ReconcileKey> {
        if split(change).is_none() {
            return Vec::new();
        }
        let roles = informers.cluster_roles.list().into_iter();
        let aggregated = roles.filter(|(_, role)| is_aggregated(role));
        aggregated.map(|(key, _)| ReconcileKey::RoleAggregation(key.name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto_api::core::v1::{PodCondition, PodIP};

    use super::*;

    /// A service that selects `app=web`.
    fn service() -> Service {
        let mut service = Service::default();
        service.metadata.namespace = "ns".into();
        service.metadata.name = "web".into();
        service.spec.selector = BTreeMap::from([("app".into(), "web".into())]);
        service
    }

    /// A ready pod that the service selects.
    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = "ns".into();
        pod.metadata.name = "web-1".into();
        pod.metadata.uid = "uid-1".into();
        pod.metadata.labels = BTreeMap::from([("app".into(), "web".into())]);
        pod.spec.node_name = "node".into();
        pod.status.phase = "Running".into();
        pod.status.pod_ip = "10.1.0.1".into();
        pod.status.pod_ips = vec![PodIP { ip: "10.1.0.1".into() }];
        set_ready(&mut pod, "True");
        pod
    }

    fn set_ready(pod: &mut Pod, status: &str) {
        let condition = PodCondition { type_: "Ready".into(), ..PodCondition::default() };
        pod.status.conditions = vec![PodCondition { status: status.into(), ..condition }];
    }

    fn keys(new: Option<Pod>, old: Option<Pod>) -> usize {
        let (new, old) = (new.map(Arc::new), old.map(Arc::new));
        let services = || vec![Arc::new(service())];
        keys_of_services(new.as_ref(), old.as_ref(), services).len()
    }

    #[test]
    fn services_are_queued_only_for_fields_of_endpoints() {
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
        set_ready(&mut unready, "False");
        assert_eq!(keys(Some(unready), Some(pod())), 2);
        let mut moved = pod();
        moved.status.pod_ip = "10.1.0.99".into();
        assert_eq!(keys(Some(moved), Some(pod())), 2);
        let mut left = pod();
        left.metadata.labels.insert("app".into(), "other".into());
        assert_eq!(keys(Some(left), Some(pod())), 2, "it left the selector with other labels");
    }

    #[test]
    fn services_are_not_asked_for_without_a_change_of_endpoints() {
        let (new, old) = (Arc::new(pod()), Arc::new(pod()));
        let keys = keys_of_services(Some(&new), Some(&old), || panic!("asked for"));
        assert_eq!(keys, []);
    }
}
