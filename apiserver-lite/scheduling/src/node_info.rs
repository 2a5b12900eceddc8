//! The projection of a node that the scheduler caches.

use std::collections::BTreeMap;

use proto_api::core::v1::{Node, Taint};
use proto_api::names::Names;

use crate::resource_amounts::{Amounts, amount};

/// The fields of a node that scheduling reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// The taints; a node that is not ready has a taint for that.
    pub taints: Vec<Taint>,
    /// Whether it accepts new pods.
    pub admission: Admission,
    /// The resources that pods can request.
    pub allocatable: Amounts,
    /// Sizes of the images that the node has, in bytes, by each of their names.
    pub images: BTreeMap<String, i64>,
}

/// Whether a node accepts new pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It does.
    #[default]
    Open,
    /// It is cordoned (`spec.unschedulable`).
    Cordoned,
}

impl NodeInfo {
    /// Projects an API object.
    pub fn from_node(names: &Names, node: &Node) -> Self {
        let ready = node.status.conditions.iter().find(|condition| condition.type_ == "Ready");
        let mut taints = node.spec.taints.clone();
        let [not_ready, unreachable] =
            ["not-ready", "unreachable"].map(|name| names.sub_label("node", name));
        let is_tainted =
            taints.iter().any(|taint| [&not_ready, &unreachable].contains(&&taint.key));
        // The controller manager adds the taint later.
        if ready.is_some_and(|ready| ready.status != "True") && !is_tainted {
            let effect = "NoSchedule".to_owned();
            taints.push(Taint { key: not_ready, effect, ..Taint::default() });
        }
        let allocatable = &node.status.allocatable;
        Self {
            name: node.metadata.name.clone(),
            labels: node.metadata.labels.clone(),
            taints,
            admission: if node.spec.unschedulable { Admission::Cordoned } else { Admission::Open },
            allocatable: allocatable.iter().map(|(r, q)| (r.clone(), amount(r, q))).collect(),
            images: images(node),
        }
    }
}

/// As many as a kubelet reports; what a Node says beyond that is not kept.
const IMAGES_MAX: usize = 64;

fn images(node: &Node) -> BTreeMap<String, i64> {
    let named = node.status.images.iter().take(IMAGES_MAX).flat_map(|image| {
        let names = image.names.iter().take(IMAGES_MAX);
        names.map(|name| (name.clone(), image.size_bytes.max(0)))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples;

    #[test]
    fn a_node_that_is_not_ready_is_tainted() {
        let taints = |ready: Option<&str>, taints: &[&str]| {
            let mut node = Node::default();
            node.spec.taints =
                taints.iter().map(|key| Taint { key: (*key).into(), ..Taint::default() }).collect();
            let condition = ready.map(|status| proto_api::core::v1::NodeCondition {
                type_: "Ready".into(),
                status: status.into(),
                ..Default::default()
            });
            node.status.conditions.extend(condition);
            let info = NodeInfo::from_node(examples::names(), &node);
            info.taints.into_iter().map(|taint| taint.key).collect::<Vec<_>>()
        };
        let (not_ready, unreachable) =
            ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable");
        for (ready, own, expected) in [
            (None, &[][..], &[][..]),
            (Some("True"), &[], &[]),
            (Some("False"), &[], &[not_ready]),
            (Some("Unknown"), &[], &[not_ready]),
            (Some("False"), &[not_ready], &[not_ready]),
            (Some("Unknown"), &[unreachable], &[unreachable]),
        ] {
            assert_eq!(taints(ready, own), expected, "{ready:?} {own:?}");
        }
    }
}
