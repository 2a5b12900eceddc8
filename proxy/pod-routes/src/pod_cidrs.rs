//! Pod CIDRs of a node.

use proto_api::core::v1::Node;

/// `spec.podCIDRs`, or `spec.podCIDR` if that is empty.
pub fn pod_blocks(node: &Node) -> Box<[String]> {
    let single = Some(&node.spec.pod_cidr).filter(|block| !block.is_empty());
    match node.spec.pod_cidrs.is_empty() {
        true => single.cloned().into_iter().collect(),
        false => node.spec.pod_cidrs.clone().into(),
    }
}
