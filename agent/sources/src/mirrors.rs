//! Mirror pods: API objects that show static pods to users. The manifest is authoritative; mirrors
//! are created, replaced and deleted to match it, and deleting a mirror stops nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_interfaces::PodSourceEvent;
use agent_pod::desired::PodSource;
use proto_api::ObjectKey;
use proto_api::core::v1::{Node, Pod};
use proto_api::meta::v1::OwnerReference;
use proto_api::names::Names;
use proto_client::{Change, Client, DeleteParams, Store, WriteParams};
use tokio::sync::{Notify, mpsc, watch};

use crate::manifests::{ManifestPods, StaticPods};

/// Pause between attempts after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Whether a pod of the API is a mirror pod.
pub fn is_mirror(names: &Names, pod: &Pod) -> bool {
    pod.metadata.annotations.contains_key(&names.label("config.mirror"))
}

/// Whether it mirrors this static pod, and not an earlier one of its name.
pub fn is_mirror_of(names: &Names, mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.annotations.get(&names.label("config.mirror")) == Some(&pod.metadata.uid)
}

/// Whether a change in the API may require changes of mirrors: the pod is or was a mirror, or had
/// the name of one.
pub fn may_change(names: &Names, change: &Change<Pod>) -> bool {
    match change {
        Change::Applied { new, old, .. } => {
            is_mirror(names, new) || old.as_ref().is_some_and(|old| is_mirror(names, old))
        }
        Change::Deleted { .. } | Change::Synced => true,
    }
}

/// A change of mirror pods.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorChange {
    /// Create the mirror of this static pod.
    Create(Arc<Pod>),
    /// Delete a mirror without a static pod.
    Delete(Arc<Pod>),
}

/// Compares mirrors with static pods. A mirror that a client deleted is ended at once and created again: the API server waits for
/// the agent to end it, and nothing runs in it that could. Pure.
pub fn plan(names: &Names, pods: &StaticPods, mirrors: &[Arc<Pod>]) -> Vec<MirrorChange> {
    let annotation = names.label("config.mirror");
    let hash = |mirror: &Pod| mirror.metadata.annotations.get(&annotation).cloned();
    let stays = |mirror: &Pod| {
        // A user may write the annotation of another pod's mirror.
        let wanted = hash(mirror).and_then(|uid| pods.get(&uid));
        let is_wanted = wanted.is_some_and(|pod| {
            ObjectKey::from_metadata(&pod.metadata) == ObjectKey::from_metadata(&mirror.metadata)
        });
        is_wanted && mirror.metadata.deletion_timestamp.is_none()
    };
    let stale = mirrors.iter().filter(|m| !stays(m));
    let shown: Vec<String> = mirrors.iter().filter(|m| stays(m)).filter_map(|m| hash(m)).collect();
    let deleted = stale.map(|m| MirrorChange::Delete(m.clone()));
    let created = pods.iter().filter(|(uid, _)| !shown.contains(uid));
    // Deletions first: a new mirror often has the name of an old one.
    deleted.chain(created.map(|(_, pod)| MirrorChange::Create(pod.clone()))).collect()
}

/// The mirror pod of a static pod. Its Node owns it: it goes when the Node goes, and API servers let
/// kubelets create no other pods.
pub fn mirror_of(names: &Names, pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    mirror.metadata.owner_references = vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone(),
        uid: node.metadata.uid.clone(),
        controller: Some(true),
        ..OwnerReference::default()
    }];
    let uid = std::mem::take(&mut mirror.metadata.uid);
    mirror.metadata.annotations.insert(names.label("config.mirror"), uid);
    mirror.status = Default::default();
    mirror
}

/// Sends static pods to the dispatcher, each with the status of its mirror, so that its task knows
/// the status that users see.
pub async fn send_static_pods(
    mut pods: watch::Receiver<ManifestPods>,
    mirrors: Option<Store<Pod>>,
    changed: Arc<Notify>,
    names: &'static Names,
    said: mpsc::Sender<PodSourceEvent>,
) {
    let mut known: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
    let mut synced = false;
    loop {
        let current = pods.borrow_and_update().clone();
        let now: BTreeMap<String, Arc<Pod>> = current
            .pods()
            .into_iter()
            .map(|(uid, pod)| (uid, with_mirror_status(&pod, mirrors.as_ref(), names)))
            .collect();
        for uid in known.keys().filter(|uid| !now.contains_key(*uid)) {
            let _ = said.send(PodSourceEvent::Dropped(uid.clone())).await;
        }
        for (uid, pod) in &now {
            if known.get(uid) != Some(pod) {
                let _ = said.send(PodSourceEvent::Wants(PodSource::Static, pod.clone())).await;
            }
        }
        known = now;
        if !synced && current.is_synced() {
            synced = true;
            let _ = said.send(PodSourceEvent::Synced(PodSource::Static)).await;
        }
        // Cancel safe: both only time the next comparison.
        tokio::select! {
            changed = pods.changed() => if changed.is_err() { return },
            () = changed.notified() => {}
        }
    }
}

fn with_mirror_status(pod: &Arc<Pod>, mirrors: Option<&Store<Pod>>, names: &Names) -> Arc<Pod> {
    let mirror = mirrors.and_then(|store| store.get(&ObjectKey::from_metadata(&pod.metadata)));
    match mirror.filter(|m| is_mirror_of(names, m, pod)) {
        Some(mirror) => {
            let mut pod = (**pod).clone();
            pod.status = mirror.status.clone();
            // Shows which of two statuses is newer.
            pod.metadata.resource_version = mirror.metadata.resource_version.clone();
            Arc::new(pod)
        }
        None => pod.clone(),
    }
}

/// Reconciles the mirrors of a node on every change, and again after a failure.
pub async fn reconcile_mirrors(
    client: Client,
    node: String,
    store: Store<Pod>,
    mut pods: watch::Receiver<ManifestPods>,
    changed: Arc<Notify>,
) {
    store.synced().await;
    let names = client.names();
    loop {
        let current = pods.borrow_and_update().clone();
        let mut failed = false;
        let mirrors: Vec<Arc<Pod>> =
            store.list().into_iter().map(|(_, p)| p).filter(|p| is_mirror(names, p)).collect();
        let mut steps = plan(names, &current.pods(), &mirrors);
        // A mirror without a static pod may belong to a source that has not been read yet.
        steps.retain(|step| current.is_synced() || matches!(step, MirrorChange::Create(_)));
        for step in steps {
            if let Err(error) = apply(&client, &node, &step).await {
                failed = true;
                let (action, meta) = match &step {
                    MirrorChange::Create(pod) => ("create", &pod.metadata),
                    MirrorChange::Delete(mirror) => ("delete", &mirror.metadata),
                };
                tracing::warn!(
                    pod = meta.name,
                    namespace = meta.namespace,
                    error = proto_daemon::exit::chain(&error),
                    "cannot {action} a mirror pod; retried"
                );
            }
        }
        let retry = async {
            if failed {
                tokio::time::sleep(RETRY).await;
            } else {
                std::future::pending::<()>().await;
            }
        };
        // Cancel safe: all three only time the next comparison.
        tokio::select! {
            changed = pods.changed() => if changed.is_err() { return },
            // After a failure only the timer counts: pods change often, and a rejected mirror must
            // not be retried each time.
            () = changed.notified(), if !failed => {}
            () = retry => {}
        }
    }
}

async fn apply(
    client: &Client,
    node: &str,
    step: &MirrorChange,
) -> Result<(), proto_client::ClientError> {
    let done = match step {
        MirrorChange::Create(pod) => {
            // Without its Node there is no owner: that the Node is not registered yet is a failure.
            let node = client.all::<Node>().get(node).await?;
            let mirror = mirror_of(client.names(), pod, &node);
            let api = client.within::<Pod>(&pod.metadata.namespace);
            api.create(&mirror, &WriteParams::default()).await.map(drop)
        }
        MirrorChange::Delete(mirror) => {
            let api = client.within::<Pod>(&mirror.metadata.namespace);
            api.delete(&mirror.metadata.name, &DeleteParams::now(&mirror.metadata.uid)).await
        }
    };
    match done {
        // The watch has not delivered the earlier write yet.
        Err(error) if error.is_already_exists() || error.is_not_found() => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::names::Profile;

    fn node() -> Node {
        let mut node = Node::default();
        node.metadata.name = "n".into();
        node.metadata.uid = "1".into();
        node
    }

    #[test]
    fn the_node_alone_owns_a_mirror() {
        let names = Names::new(Profile::Kubernetes);
        let mut pod = Pod::default();
        let other = OwnerReference { kind: "ReplicaSet".into(), ..OwnerReference::default() };
        pod.metadata.owner_references.push(other);
        let owners = mirror_of(names, &pod, &node()).metadata.owner_references;
        let [owner] = owners.as_slice() else { panic!("one owner: {owners:?}") };
        let said = [&owner.api_version, &owner.kind, &owner.name, &owner.uid];
        assert_eq!(said, ["v1", "Node", "n", "1"]);
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), None));
    }

    #[test]
    fn mirrors_follow_static_pods() {
        let names = Names::new(Profile::Kubernetes);
        let pod = |uid: &str| {
            let mut pod = Pod::default();
            pod.metadata.uid = uid.into();
            pod.metadata.name = "web-n".into();
            pod
        };
        let pods = StaticPods::from([("new".to_owned(), Arc::new(pod("new")))]);
        let current = Arc::new(mirror_of(names, &pod("new"), &node()));
        let stale = Arc::new(mirror_of(names, &pod("old"), &node()));
        assert!(is_mirror(names, &current) && is_mirror(names, &stale));
        let of_new = [&current, &stale].map(|mirror| is_mirror_of(names, mirror, &pods["new"]));
        assert_eq!(of_new, [true, false]);
        assert_eq!(plan(names, &pods, std::slice::from_ref(&current)), []);
        let steps = plan(names, &pods, std::slice::from_ref(&stale));
        assert_eq!(
            steps,
            [MirrorChange::Delete(stale.clone()), MirrorChange::Create(pods["new"].clone())]
        );
        // Another pod with the annotation is no mirror of it.
        let mut forged = mirror_of(names, &pod("new"), &node());
        forged.metadata.namespace = "other".into();
        let forged = Arc::new(forged);
        assert_eq!(
            plan(names, &pods, std::slice::from_ref(&forged)),
            [MirrorChange::Delete(forged), MirrorChange::Create(pods["new"].clone())]
        );
        assert_eq!(
            plan(names, &StaticPods::new(), std::slice::from_ref(&current)),
            [MirrorChange::Delete(current)]
        );
    }

    #[test]
    fn a_mirror_that_a_client_deleted_is_replaced() {
        let names = Names::new(Profile::Kubernetes);
        let mut pod = Pod::default();
        pod.metadata.uid = "1".into();
        let pods = StaticPods::from([("1".to_owned(), Arc::new(pod.clone()))]);
        // `kubectl delete pod` leaves it in the API for its grace period, and then for the agent to remove.
        let mut leaving = mirror_of(names, &pod, &node());
        leaving.metadata.deletion_timestamp = Some(proto_api::Time::from_unix(1));
        let leaving = Arc::new(leaving);
        assert_eq!(
            plan(names, &pods, std::slice::from_ref(&leaving)),
            [MirrorChange::Delete(leaving.clone()), MirrorChange::Create(pods["1"].clone())]
        );
        let fresh = Arc::new(mirror_of(names, &pod, &node()));
        assert_eq!(plan(names, &pods, &[leaving.clone(), fresh]), [MirrorChange::Delete(leaving)]);
    }

    #[test]
    fn a_pod_that_is_no_mirror_concerns_mirrors_only_by_its_end() {
        let names = Names::new(Profile::Kubernetes);
        let (pod, mirror) = (Pod::default(), mirror_of(names, &Pod::default(), &node()));
        let [pod, mirror] = [pod, mirror].map(Arc::new);
        let key = ObjectKey::default;
        let applied = |new: &Arc<Pod>, old: Option<&Arc<Pod>>| {
            let change = Change::Applied { key: key(), new: new.clone(), old: old.cloned() };
            may_change(names, &change)
        };
        assert!(!applied(&pod, None) && !applied(&pod, Some(&pod)));
        assert!(applied(&mirror, None) && applied(&pod, Some(&mirror)));
        // It may have had the name that a mirror needs.
        assert!(may_change(names, &Change::Deleted { key: key(), old: pod }));
    }
}
