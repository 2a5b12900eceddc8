//! Why nodes are filtered out. Messages are kube-scheduler's.

use std::collections::BTreeMap;
use std::fmt;

use crate::claim_use::CLAIMS_MAX;
use crate::excess_terms::{REQUIREMENTS_MAX, TERMS_MAX};
use crate::resource_amounts::add;

/// Why a node is not feasible for a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// The node is cordoned.
    Unschedulable,
    /// The pod does not tolerate a taint of the node.
    Taint {
        /// The taint's key.
        key: String,
        /// The taint's value.
        value: String,
    },
    /// The node does not match the pod's selector or node affinity.
    NodeAffinity,
    /// The node does not match the node affinity of the profile.
    EnforcedNodeAffinity,
    /// A host port of the pod is in use on the node.
    HostPorts,
    /// The node has its maximum number of pods.
    TooManyPods,
    /// The node lacks this resource.
    Insufficient(String),
    /// The anti-affinity of a pod on the node selects this pod.
    ExistingAntiAffinity,
    /// The pod's anti-affinity selects a pod in the node's domain.
    PodAntiAffinity,
    /// The pod's affinity selects no pod in the node's domain.
    PodAffinity,
    /// The pod would exceed the maximum skew of a topology spread constraint.
    TopologySpread,
    /// The node lacks the topology key of a spread constraint.
    TopologySpreadLabel,
    /// The pod has more affinity terms and spread constraints, or more requirements in their selectors, than are scheduled.
    TooManyTerms { terms: usize, requirements: usize },
    /// The pod has more claims than are scheduled.
    TooManyClaims(usize),
    /// A disk of the pod is in use on the node.
    Disk,
    /// The pod's claims cannot be used on any node.
    Claims(String),
    /// A claim is bound to a volume that does not exist.
    VolumeNotFound,
    /// A bound volume is not accessible from the node.
    VolumeNodeAffinity,
    /// A bound volume is in another zone.
    VolumeZone,
    /// The node has its maximum number of volumes of a CSI driver.
    MaxVolumeCount,
    /// An unbound claim has no matching volume for the node.
    NoVolumeToBind,
    /// The storage has no capacity for an unbound claim.
    NoStorageCapacity,
    /// An extender refuses the node, for this reason.
    Extender(String),
    /// The same, whatever pods end on the node.
    ExtenderUnresolvable(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unschedulable => f.write_str("node(s) were unschedulable"),
            Self::Taint { key, value } => {
                write!(f, "node(s) had untolerated taint {{{key}: {value}}}")
            }
            Self::NodeAffinity => f.write_str("node(s) didn't match Pod's node affinity/selector"),
            Self::EnforcedNodeAffinity => {
                f.write_str("node(s) didn't match scheduler-enforced node affinity")
            }
            Self::HostPorts => {
                f.write_str("node(s) didn't have free ports for the requested pod ports")
            }
            Self::TooManyPods => f.write_str("Too many pods"),
            Self::Insufficient(resource) => write!(f, "Insufficient {resource}"),
            Self::ExistingAntiAffinity => {
                f.write_str("node(s) didn't satisfy existing pods anti-affinity rules")
            }
            Self::PodAntiAffinity => f.write_str("node(s) didn't match pod anti-affinity rules"),
            Self::PodAffinity => f.write_str("node(s) didn't match pod affinity rules"),
            Self::TopologySpread => {
                f.write_str("node(s) didn't match pod topology spread constraints")
            }
            Self::TopologySpreadLabel => f.write_str(
                "node(s) didn't match pod topology spread constraints (missing required label)",
            ),
            Self::TooManyTerms { terms, requirements } => write!(
                f,
                "node(s) were not tried: the pod has {terms} pod affinity terms and topology spread constraints with {requirements} requirements, at most {TERMS_MAX} with {REQUIREMENTS_MAX} are supported"
            ),
            Self::TooManyClaims(claims) => write!(
                f,
                "node(s) were not tried: the pod has {claims} persistent volume claims, at most {CLAIMS_MAX} are supported"
            ),
            Self::Disk => f.write_str("node(s) had no available disk"),
            Self::Claims(why) | Self::Extender(why) | Self::ExtenderUnresolvable(why) => {
                f.write_str(why)
            }
            Self::VolumeNotFound => f.write_str(
                "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
            ),
            Self::VolumeNodeAffinity => f.write_str("node(s) had volume node affinity conflict"),
            Self::VolumeZone => f.write_str("node(s) had no available volume zone"),
            Self::MaxVolumeCount => f.write_str("node(s) exceed max volume count"),
            Self::NoVolumeToBind => {
                f.write_str("node(s) didn't find available persistent volumes to bind")
            }
            Self::NoStorageCapacity => f.write_str("node(s) did not have enough free storage"),
        }
    }
}

/// The message for a pod without a feasible node: how many nodes were filtered out for each reason.
pub fn summary(nodes: usize, refusals: impl IntoIterator<Item = Vec<Refusal>>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut counts: BTreeMap<Refusal, i64> = BTreeMap::new();
    for refusal in refusals.into_iter().flatten() {
        add(counts.entry(refusal).or_default(), 1);
    }
    let mut reasons: Vec<String> =
        counts.into_iter().map(|(refusal, count)| format!("{count} {refusal}")).collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}
