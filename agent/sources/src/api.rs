//! Pods that are bound to this node in the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent_interfaces::PodSourceEvent;
use agent_pod::desired::PodSource;
use proto_api::ObjectKey;
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_client::{Change, Client, ListParams, Reflector, Store};
use tokio::sync::{Notify, mpsc};

use crate::mirrors::is_mirror;

/// A reflector of this node's pods.
pub fn reflector(client: &Client, node: &str) -> Reflector<Pod, Pod> {
    let params = ListParams::fields(format!("spec.nodeName={node}"));
    Reflector::whole(client.all::<Pod>(), params)
}

/// Keys of changed pods until they are taken. Bounded by the number of pods.
#[derive(Debug, Default)]
pub struct Changed {
    keys: Mutex<BTreeSet<ObjectKey>>,
    came: Notify,
}

impl Changed {
    /// Notes a change, or the end of the first list.
    pub fn note(&self, change: &Change<Pod>) {
        if let Change::Applied { key, .. } | Change::Deleted { key, .. } = change {
            self.keys().insert(key.clone());
        }
        self.came.notify_one();
    }

    fn take_changed(&self) -> BTreeSet<ObjectKey> {
        std::mem::take(&mut *self.keys())
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<ObjectKey>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the present state of `changed` pods to the dispatcher, except mirror pods, which only show
/// static pods.
pub async fn run(
    store: Store<Pod>,
    changed: Arc<Changed>,
    said: mpsc::Sender<PodSourceEvent>,
    names: &'static Names,
) {
    let mut known: BTreeMap<ObjectKey, Arc<Pod>> = BTreeMap::new();
    let mut synced = false;
    loop {
        let complete = store.is_synced();
        let (mut before, mut now) = (BTreeMap::new(), BTreeMap::new());
        for key in changed.take_changed() {
            let pod = store.get(&key).filter(|pod| !is_mirror(names, pod));
            let was = match &pod {
                Some(pod) => known.insert(key, pod.clone()),
                None => known.remove(&key),
            };
            before.extend(was.map(by_uid));
            now.extend(pod.map(by_uid));
        }
        for news in news(&before, &now) {
            if said.send(news).await.is_err() {
                return;
            }
        }
        if complete && !synced {
            synced = true;
            if said.send(PodSourceEvent::Synced(PodSource::Api)).await.is_err() {
                return;
            }
        }
        changed.came.notified().await;
    }
}

fn by_uid(pod: Arc<Pod>) -> (String, Arc<Pod>) {
    (pod.metadata.uid.clone(), pod)
}

/// Compares the known pods with the store.
pub fn news(
    known: &BTreeMap<String, Arc<Pod>>,
    now: &BTreeMap<String, Arc<Pod>>,
) -> Vec<PodSourceEvent> {
    let dropped =
        known.keys().filter(|uid| !now.contains_key(*uid)).cloned().map(PodSourceEvent::Dropped);
    let changed = now
        .iter()
        .filter(|(uid, pod)| known.get(*uid).is_none_or(|before| !Arc::ptr_eq(before, pod)))
        .map(|(_, pod)| PodSourceEvent::Wants(PodSource::Api, pod.clone()));
    dropped.chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> (String, Arc<Pod>) {
        let mut pod = Pod::default();
        pod.metadata.uid = uid.into();
        (uid.into(), Arc::new(pod))
    }

    #[test]
    fn a_pod_that_changed_twice_is_looked_at_once() {
        let changed = Changed::default();
        let key = |name: &str| ObjectKey::new("ns", name);
        let (_, new) = pod("a");
        for name in ["a", "b", "a"] {
            changed.note(&Change::Applied { key: key(name), new: new.clone(), old: None });
        }
        changed.note(&Change::Deleted { key: key("c"), old: new });
        changed.note(&Change::Synced);
        assert_eq!(changed.take_changed(), BTreeSet::from(["a", "b", "c"].map(key)));
        assert_eq!(changed.take_changed(), BTreeSet::new());
    }

    #[test]
    fn a_name_used_again_drops_the_old_pod_first() {
        let old = BTreeMap::from([pod("a"), pod("b")]);
        let mut new = old.clone();
        new.remove("a");
        new.extend([pod("c")]);
        let changes: Vec<String> = news(&old, &new)
            .into_iter()
            .map(|said| match said {
                PodSourceEvent::Dropped(uid) => format!("-{uid}"),
                PodSourceEvent::Wants(_, pod) => format!("+{}", pod.metadata.uid),
                PodSourceEvent::Synced(_) => "synced".into(),
            })
            .collect();
        assert_eq!(changes, ["-a", "+c"]);
    }
}
