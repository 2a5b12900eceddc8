//! Pods that the API server assigns to this node.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_pod::want::Source;
use proto_api::core::v1::Pod;
use proto_api::names::Names;
use proto_client::{Client, ListParams, Reflector, Store};
use tokio::sync::{Notify, mpsc};

use crate::pods::Said;
use crate::sources::mirrors::is_mirror;

/// The pods of this node as a map that follows the server.
pub fn reflector(client: &Client, node: &str) -> Reflector<Pod, Pod> {
    let params = ListParams::fields(format!("spec.nodeName={node}"));
    Reflector::whole(client.all::<Pod>(), params)
}

/// Tells what the map says, each time `changed` is notified. Mirror pods are not told: they only show static pods.
pub async fn run(
    store: Store<Pod>,
    changed: Arc<Notify>,
    said: mpsc::Sender<Said>,
    names: &'static Names,
) {
    let mut known: BTreeMap<String, Arc<Pod>> = BTreeMap::new();
    let mut synced = false;
    loop {
        let complete = store.is_synced();
        let same = |pod: &Arc<Pod>| {
            known.get(&pod.metadata.uid).is_some_and(|before| Arc::ptr_eq(before, pod))
        };
        let now: BTreeMap<String, Arc<Pod>> = store
            .objects()
            .into_iter()
            .filter(|pod| same(pod) || !is_mirror(names, pod))
            .map(|pod| (pod.metadata.uid.clone(), pod))
            .collect();
        for news in news(&known, &now) {
            if said.send(news).await.is_err() {
                return;
            }
        }
        known = now;
        if complete && !synced {
            synced = true;
            if said.send(Said::Synced(Source::Api)).await.is_err() {
                return;
            }
        }
        changed.notified().await;
    }
}

/// What has changed between two maps.
pub fn news(known: &BTreeMap<String, Arc<Pod>>, now: &BTreeMap<String, Arc<Pod>>) -> Vec<Said> {
    let dropped = known.keys().filter(|uid| !now.contains_key(*uid)).cloned().map(Said::Dropped);
    let changed = now
        .iter()
        .filter(|(uid, pod)| known.get(*uid).is_none_or(|before| !Arc::ptr_eq(before, pod)))
        .map(|(_, pod)| Said::Wants(Source::Api, pod.clone()));
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
    fn a_name_used_again_drops_the_old_pod_first() {
        let old = BTreeMap::from([pod("a"), pod("b")]);
        let mut new = old.clone();
        new.remove("a");
        new.extend([pod("c")]);
        let told: Vec<String> = news(&old, &new)
            .into_iter()
            .map(|said| match said {
                Said::Dropped(uid) => format!("-{uid}"),
                Said::Wants(_, pod) => format!("+{}", pod.metadata.uid),
                Said::Synced(_) => "synced".into(),
            })
            .collect();
        assert_eq!(told, ["-a", "+c"]);
    }
}
