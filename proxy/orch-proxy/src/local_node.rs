//! What the API says about the node that this proxy runs on, and no other.

use std::sync::Arc;

use proto_api::core::v1::Node;
use proto_api::names::Names;
use proto_client::{Change, Client, ListParams, Reflector};
use proto_daemon::drain::DrainWatch;
use proxy_rules::model::LocalTraffic;
use tokio::sync::watch;

use crate::config::DetectLocal;
use crate::desired::Desired;

/// Taint by which the cluster autoscaler announces that it is about to delete a node.
const ABOUT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What the proxy needs to know of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNode {
    /// The zone that it is in.
    pub zone: Option<Box<str>>,
    /// The blocks that its pods' addresses are from.
    pub pod_cidrs: Box<[String]>,
    /// Whether load balancers should send their traffic elsewhere: it is being deleted.
    pub is_leaving: bool,
}

impl LocalNode {
    /// What a node object says.
    fn from_node(node: &Node, names: &Names) -> Self {
        let zone = zone(node, names);
        let pod_cidrs = pod_blocks(node);
        let is_leaving = node.metadata.deletion_timestamp.is_some()
            || node.spec.taints.iter().any(|taint| taint.key == ABOUT_TO_BE_DELETED);
        Self { zone, pod_cidrs, is_leaving }
    }
}

/// The blocks that a node's pods' addresses are from.
pub fn pod_blocks(node: &Node) -> Box<[String]> {
    let single = Some(&node.spec.pod_cidr).filter(|block| !block.is_empty());
    match node.spec.pod_cidrs.is_empty() {
        true => single.cloned().into_iter().collect(),
        false => node.spec.pod_cidrs.clone().into(),
    }
}

/// The zone that a node is in.
pub fn zone(node: &Node, names: &Names) -> Option<Box<str>> {
    let zone = node.metadata.labels.get(&names.sub_label("topology", "zone"));
    zone.filter(|zone| !zone.is_empty()).map(|zone| zone.as_str().into())
}

/// Follows the node called `name` until drained. Nothing is known of it before it has been heard of, and once it
/// is gone.
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
        // A node reports every few seconds, and nearly never something of this.
        known.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }));
    receiver
}

/// What tells the traffic of pods, where that is the node's own blocks.
pub fn local_traffic(blocks: &[String]) -> LocalTraffic {
    LocalTraffic::Blocks(blocks.iter().filter_map(|text| text.parse().ok()).collect())
}

/// Tells the dataplane which zone it is in and, where they tell the traffic of pods, the node's blocks; until drained.
pub async fn update_dataplane(
    mut node: watch::Receiver<Option<Arc<LocalNode>>>,
    detect: DetectLocal,
    desired: Arc<Desired>,
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
    fn a_node_says_where_it_is_and_whether_it_leaves() {
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
