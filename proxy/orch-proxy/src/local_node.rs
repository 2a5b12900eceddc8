//! Watches the Node object of this node.

use std::sync::Arc;

use proto_api::core::v1::Node;
use proto_api::names::Names;
use proto_client::{Change, Client, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proxy_pod_routes::pod_cidrs::pod_blocks;
use proxy_rules::model::LocalTraffic;
use proxy_sync::desired::DesiredForwarding;
use tokio::sync::watch;

use crate::config::DetectLocal;

/// Taint that the cluster autoscaler sets before it deletes a node.
const ABOUT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Fields of the Node object that the proxy uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Box<str>>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Box<[String]>,
    /// Whether the node is being deleted, so that load balancers should use others.
    pub is_leaving: bool,
}

impl LocalNode {
    fn from_node(node: &Node, names: &Names) -> Self {
        let zone = zone(node, names);
        let pod_cidrs = pod_blocks(node);
        let is_leaving = node.metadata.deletion_timestamp.is_some()
            || node.spec.taints.iter().any(|taint| taint.key == ABOUT_TO_BE_DELETED);
        Self { zone, pod_cidrs, is_leaving }
    }
}

/// The zone of a node.
pub fn zone(node: &Node, names: &Names) -> Option<Box<str>> {
    let zone = node.metadata.labels.get(&names.sub_label("topology", "zone"));
    zone.filter(|zone| !zone.is_empty()).map(|zone| zone.as_str().into())
}

/// Watches the node called `name` until drained. The value is `None` before the first event and after the deletion.
pub fn watch_node(
    client: &Client,
    name: &str,
    drain: &DrainWatch,
) -> watch::Receiver<Option<Arc<LocalNode>>> {
    let names = client.names();
    let params = ListParams::name(name);
    let node = Reflector::projected(client.all::<Node>(), params, move |node| {
        LocalNode::from_node(&node, names)
    });
    let (known, receiver) = watch::channel(None);
    tokio::spawn(node.run(drain.clone(), move |change| {
        let now = match change {
            Change::Applied { new, .. } => Some(new),
            Change::Deleted { .. } => None,
            Change::Synced => return,
        };
        // Node status updates come every few seconds, and seldom change these fields.
        known.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }));
    receiver
}

/// The setting for `--detect-local-mode=NodeCIDR`.
pub fn local_traffic(blocks: &[String]) -> LocalTraffic {
    LocalTraffic::Blocks(blocks.iter().filter_map(|text| text.parse().ok()).collect())
}

/// Applies zone and, with `--detect-local-mode=NodeCIDR`, pod CIDRs to the dataplane, until drained.
pub async fn update_dataplane(
    mut node: watch::Receiver<Option<Arc<LocalNode>>>,
    detect: DetectLocal,
    desired: Arc<DesiredForwarding>,
    drain: DrainWatch,
) {
    loop {
        let now = node.borrow_and_update().clone().unwrap_or_default();
        // A node without pod CIDRs is being created or deleted: the last ones stay in force.
        let has_blocks = detect == DetectLocal::NodeBlocks && !now.pod_cidrs.is_empty();
        let blocks = has_blocks.then(|| local_traffic(&now.pod_cidrs));
        desired.node_changed(now.zone.as_deref(), blocks);
        // Both arms are cancel safe.
        tokio::select! {
            () = drain.asked() => return,
            changed = node.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_api::core::v1::Taint;
    use proto_api::names::Profile;

    #[test]
    fn zone_pod_cidrs_and_removal_of_the_local_node_are_read() {
        let names = Names::new(Profile::Kubernetes);
        let mut node = Node::default();
        assert_eq!(LocalNode::from_node(&node, names), LocalNode::default());
        let label = "topology.kubernetes.io/zone".to_owned();
        node.metadata.labels.insert(label, "east".to_owned());
        node.spec.pod_cidr = "10.1.0.0/24".to_owned();
        let own = LocalNode::from_node(&node, names);
        assert_eq!((own.zone.as_deref(), own.is_leaving), (Some("east"), false));
        assert_eq!(*own.pod_cidrs, ["10.1.0.0/24".to_owned()]);
        node.spec.pod_cidrs = vec!["10.1.0.0/24".to_owned(), "fd00:1::/64".to_owned()];
        node.spec.taints = vec![Taint { key: ABOUT_TO_BE_DELETED.to_owned(), ..Taint::default() }];
        let own = LocalNode::from_node(&node, names);
        assert_eq!((own.pod_cidrs.len(), own.is_leaving), (2, true));
    }
}
