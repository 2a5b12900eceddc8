//! Which node announces the addresses of a Service.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto_api::core::v1::{Node, Service};
use proto_api::discovery::v1::EndpointSlice;
use proto_api::names::Names;

use crate::node_lifecycle::is_ready;

/// Taint that the cluster autoscaler sets before it deletes a node.
const ABOUT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Whether a node may announce addresses, as far as its health does not matter.
fn is_admitted(names: &Names, node: &Node) -> bool {
    let excluded = names.sub_label("node", "exclude-from-external-load-balancers");
    node.metadata.deletion_timestamp.is_none()
        && !node.metadata.labels.contains_key(&excluded)
        && !node.spec.taints.iter().any(|taint| taint.key == ABOUT_TO_BE_DELETED)
}

/// Whether a node may be given addresses to announce.
pub(super) fn can_announce(names: &Names, node: &Node) -> bool {
    is_admitted(names, node) && is_ready(node)
}

/// The node that announces the addresses of a Service: the `current` one as long as it can, else one by the hash of both names. With
/// `externalTrafficPolicy: Local` nodes with a ready endpoint are preferred: the others drop the traffic.
pub(super) fn choose(
    names: &Names,
    service: &Service,
    current: Option<&str>,
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
) -> Option<String> {
    let name = |node: &Arc<Node>| node.metadata.name.clone();
    let mut able: BTreeSet<String> =
        nodes.iter().filter(|node| can_announce(names, node)).map(name).collect();
    if service.spec.external_traffic_policy == "Local" {
        let near = nodes_with_endpoints(names, service, slices);
        let both: BTreeSet<String> =
            able.iter().filter(|node| near.contains(node.as_str())).cloned().collect();
        if !both.is_empty() {
            able = both;
        }
    }
    if able.is_empty() {
        // All nodes seem to have failed, maybe because of the control plane: moving the addresses helps no client.
        let stays = |node: &&Arc<Node>| {
            Some(node.metadata.name.as_str()) == current && is_admitted(names, node)
        };
        return nodes.iter().find(stays).map(name);
    }
    let stays = current.filter(|current| able.contains(*current)).map(str::to_owned);
    let metadata = &service.metadata;
    let of_service = [&metadata.namespace, "/", &metadata.name, "\0"].concat();
    stays.or_else(|| able.into_iter().max_by_key(|node| rank(&of_service, node)))
}

/// The nodes with a ready endpoint of the Service.
fn nodes_with_endpoints<'a>(
    names: &Names,
    service: &Service,
    slices: &'a [Arc<EndpointSlice>],
) -> BTreeSet<&'a str> {
    let label = names.label("service-name");
    let of_service = |slice: &&Arc<EndpointSlice>| {
        slice.metadata.namespace == service.metadata.namespace
            && slice.metadata.labels.get(&label) == Some(&service.metadata.name)
    };
    let endpoints = slices.iter().filter(of_service).flat_map(|slice| &slice.endpoints);
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready.unwrap_or(true));
    ready.filter_map(|endpoint| endpoint.node_name.as_deref()).collect()
}

/// The place of a node in the order of a Service: each node is the first of about as many Services, and a node that goes moves its own only.
fn rank(service: &str, node: &str) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in service.bytes().chain(node.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // FNV-1a leaves names that differ in their last byte close together.
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash.wrapping_shr(33)).wrapping_mul(factor);
    }
    hash ^ hash.wrapping_shr(33)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proto_api::core::v1::{NodeCondition, Taint};
    use proto_api::discovery::v1::{Endpoint, EndpointConditions};
    use proto_api::names::Profile;

    use super::*;

    fn node(name: &str, ready: &str) -> Node {
        let mut node = Node::default();
        node.metadata.name = name.into();
        node.status.conditions = vec![NodeCondition {
            type_: "Ready".into(),
            status: ready.into(),
            ..NodeCondition::default()
        }];
        node
    }

    fn service(name: &str, policy: &str) -> Service {
        let mut service = Service::default();
        service.metadata.namespace = "ns".into();
        service.metadata.name = name.into();
        service.spec.external_traffic_policy = policy.into();
        service
    }

    fn slice(service: &str, on: &[(&str, Option<bool>)]) -> Arc<EndpointSlice> {
        let mut slice = EndpointSlice::default();
        slice.metadata.namespace = "ns".into();
        slice.metadata.labels.insert("kubernetes.io/service-name".into(), service.into());
        let endpoint = |(node, ready): &(&str, Option<bool>)| Endpoint {
            node_name: Some((*node).to_owned()),
            conditions: EndpointConditions { ready: *ready, ..EndpointConditions::default() },
            ..Endpoint::default()
        };
        slice.endpoints = on.iter().map(endpoint).collect();
        Arc::new(slice)
    }

    #[test]
    fn a_node_that_cannot_announce_is_not_chosen() {
        let names = Names::new(Profile::Kubernetes);
        let mut excluded = node("excluded", "True");
        let label = "node.kubernetes.io/exclude-from-external-load-balancers".to_owned();
        excluded.metadata.labels.insert(label, String::new());
        let mut deleted = node("deleted", "True");
        deleted.metadata.deletion_timestamp = Some(proto_api::Time::from_unix(1));
        let mut leaving = node("leaving", "True");
        leaving.spec.taints = vec![Taint { key: ABOUT_TO_BE_DELETED.into(), ..Taint::default() }];
        let failed = node("failed", "Unknown");
        let good = node("good", "True");
        let nodes = [excluded, deleted, leaving, failed, good].map(Arc::new);
        for current in [None, Some("excluded"), Some("deleted"), Some("leaving"), Some("failed")] {
            let chosen = choose(names, &service("web", ""), current, &nodes, &[]);
            assert_eq!(chosen.as_deref(), Some("good"), "{current:?}");
        }
        // Without a good one it stays where it is, if that node may have it at all.
        let chosen = |current| choose(names, &service("web", ""), current, &nodes[..4], &[]);
        assert_eq!(chosen(Some("failed")).as_deref(), Some("failed"));
        for current in [None, Some("excluded"), Some("deleted"), Some("gone")] {
            assert_eq!(chosen(current), None, "{current:?}");
        }
    }

    #[test]
    fn with_the_policy_local_a_node_with_a_ready_endpoint_is_chosen() {
        let names = Names::new(Profile::Kubernetes);
        let nodes = ["a", "b", "c"].map(|name| Arc::new(node(name, "True")));
        let others = slice("other", &[("a", None)]);
        let chosen = |policy: &str, current, on: &[(&str, Option<bool>)]| {
            let slices = [slice("web", on), others.clone()];
            choose(names, &service("web", policy), current, &nodes, &slices)
        };
        let on = [("a", Some(false)), ("b", Some(true)), ("gone", None)];
        assert_eq!(chosen("Local", None, &on).as_deref(), Some("b"));
        assert_eq!(chosen("Local", Some("a"), &on).as_deref(), Some("b"), "moved");
        assert_eq!(chosen("Cluster", Some("a"), &on).as_deref(), Some("a"));
        // Without an endpoint it stays: the node refuses connections, and no other could do more.
        assert_eq!(chosen("Local", Some("c"), &[]).as_deref(), Some("c"));
        assert_eq!(chosen("Local", Some("c"), &[("gone", None)]).as_deref(), Some("c"));
    }

    #[test]
    fn services_are_spread_and_move_only_with_their_node() {
        let names = Names::new(Profile::Kubernetes);
        let nodes: Vec<Arc<Node>> =
            (0..5).map(|n| Arc::new(node(&format!("node-{n}"), "True"))).collect();
        let chosen = |n: u32, current: Option<&str>, nodes: &[Arc<Node>]| {
            choose(names, &service(&format!("web-{n}"), ""), current, nodes, &[])
        };
        let mut count: BTreeMap<String, u32> = BTreeMap::new();
        for n in 0..1000 {
            let before = chosen(n, None, &nodes).expect("a node");
            assert_eq!(chosen(n, Some(&before), &nodes).as_ref(), Some(&before), "sticky");
            let after = chosen(n, None, &nodes[1..]).expect("a node");
            assert!(before == "node-0" || before == after, "{before} {after}");
            *count.entry(before).or_default() += 1;
        }
        assert!(count.len() == 5 && count.values().all(|n| (120..280).contains(n)), "{count:?}");
    }
}
