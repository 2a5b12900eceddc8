//! The nodeipam controller: assigns every node a pod CIDR from each cluster CIDR.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proto_api::core::v1::Node;
use proto_api::{Cidr, ObjectKey};
use serde_json::{Value, json};

use crate::Plan;
use crate::api_writes::{ApiWrite, ObjectKind, Part};

/// A cluster CIDR and the prefix length of node CIDRs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRange {
    cluster: Cidr,
    node_prefix_len: u8,
}

/// The cluster CIDR has no room for node CIDRs of this length, or for too many: another flag has to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster CIDR {cluster} cannot be divided into node CIDRs of /{node_prefix_len}")]
pub struct NodeRangeError {
    cluster: Cidr,
    node_prefix_len: u8,
}

impl NodeRange {
    /// Node CIDRs of `node_prefix_len` bits; the default is 24, or 64 for IPv6.
    ///
    /// # Errors
    /// The node CIDRs would be larger than the cluster CIDR, longer than addresses, or more than 2^16.
    pub fn new(cluster: Cidr, node_prefix_len: Option<u8>) -> Result<Self, NodeRangeError> {
        let (default, longest) = if cluster.is_ipv4() { (24, 32) } else { (64, 128) };
        let node_prefix_len = node_prefix_len.unwrap_or(default);
        let fits = (cluster.bits()..=longest).contains(&node_prefix_len);
        if !fits || node_prefix_len.saturating_sub(cluster.bits()) > 16 {
            return Err(NodeRangeError { cluster, node_prefix_len });
        }
        Ok(Self { cluster, node_prefix_len })
    }

    /// The first node CIDR that overlaps none of `taken`, which may have other sizes if nodes registered with them.
    fn free(&self, taken: &BTreeSet<Cidr>) -> Option<Cidr> {
        let cut = self.node_prefix_len.saturating_sub(self.cluster.bits());
        // Number of host bits of a node CIDR.
        let size = u32::from(self.cluster.host_bits().saturating_sub(cut));
        let count = 1_u128 << cut.min(16);
        let (base, last) = (number(self.cluster.first()), number(self.cluster.last()));
        // A shift by 128 bits: the only node CIDR starts at the base.
        let part_of = |number: u128| number.saturating_sub(base).checked_shr(size).unwrap_or(0);
        let overlaps = |other: &&Cidr| {
            let same_family = other.is_ipv4() == self.cluster.is_ipv4();
            same_family && number(other.first()) <= last && number(other.last()) >= base
        };
        let taken = taken.iter().filter(overlaps);
        let mut parts: Vec<(u128, u128)> = taken
            .map(|c| (part_of(number(c.first())), part_of(number(c.last()).min(last))))
            .collect();
        parts.sort_unstable();
        let mut free = 0_u128;
        for (from, to) in parts {
            if from > free {
                break;
            }
            free = free.max(to.saturating_add(1));
        }
        let start = base.saturating_add(free.checked_shl(size).unwrap_or(0));
        let first = match self.cluster.first() {
            // IPv4 addresses fit in 32 bits.
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from(u32::try_from(start).unwrap_or(u32::MAX))),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from(start)),
        };
        if free < count { Cidr::new(first, self.node_prefix_len) } else { None }
    }
}

/// Plans the CIDRs of a node that has none. `taken` are the CIDRs of all nodes.
///
/// # Errors
/// A cluster CIDR is exhausted.
pub fn plan(
    node: &Node,
    ranges: &[NodeRange],
    taken: &BTreeSet<Cidr>,
) -> Result<Plan, RangeExhausted> {
    if has_ranges(node) || ranges.is_empty() {
        return Ok(Plan::default());
    }
    let mut given = Vec::new();
    for range in ranges {
        let free = range.free(taken);
        given.push(free.ok_or(RangeExhausted { cluster: range.cluster })?.to_string());
    }
    let version = &node.metadata.resource_version;
    Ok(Plan::from_writes([ApiWrite::Patch {
        kind: ObjectKind::Node,
        key: ObjectKey::from_metadata(&node.metadata),
        part: Part::Main,
        patch: json!({
            "metadata": { "resourceVersion": version },
            "spec": { "podCIDR": given.first(), "podCIDRs": given },
        }),
    }]))
}

/// Whether a node has its CIDRs.
pub fn has_ranges(node: &Node) -> bool {
    !node.spec.pod_cidr.is_empty()
}

/// The CIDRs of a node.
pub fn of_node(node: &Node) -> impl Iterator<Item = Cidr> {
    let spec = &node.spec;
    let all = spec.pod_cidrs.iter().chain([&spec.pod_cidr]);
    all.filter_map(|text| text.parse().ok())
}

/// The CIDRs in a write of [`plan`].
pub fn of_write(write: &ApiWrite) -> Vec<Cidr> {
    let ApiWrite::Patch { patch, .. } = write else { return Vec::new() };
    let ranges = patch.pointer("/spec/podCIDRs").and_then(Value::as_array);
    let text = ranges.into_iter().flatten().filter_map(Value::as_str);
    text.filter_map(|text| text.parse().ok()).collect()
}

/// A cluster CIDR has no free node CIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free node CIDR is left in cluster CIDR {cluster}")]
pub struct RangeExhausted {
    /// The cluster CIDR.
    pub cluster: Cidr,
}

/// Converts an address to a number.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(cluster: &str, prefix_len: Option<u8>) -> Result<NodeRange, NodeRangeError> {
        NodeRange::new(cluster.parse().unwrap(), prefix_len)
    }

    #[test]
    fn parts_fit_in_the_range() {
        assert!(range("10.0.0.0/16", Some(8)).is_err());
        assert!(range("10.0.0.0/8", Some(28)).is_err());
        assert!(range("10.0.0.0/16", Some(33)).is_err());
    }

    #[test]
    fn each_node_gets_the_first_free_part() {
        let ranges = [range("10.244.0.0/22", None).unwrap(), range("fd00::/62", None).unwrap()];
        let mut taken = BTreeSet::new();
        let mut given = Vec::new();
        for _ in 0..4 {
            let plan = plan(&Node::default(), &ranges, &taken).unwrap();
            let [ApiWrite::Patch { patch, .. }] = &plan.writes[..] else {
                unreachable!("{plan:?}")
            };
            let cidrs: Vec<String> =
                serde_json::from_value(patch["spec"]["podCIDRs"].clone()).unwrap();
            assert_eq!(patch["spec"]["podCIDR"], cidrs[0].as_str());
            taken.extend(cidrs.iter().map(|cidr| cidr.parse::<Cidr>().unwrap()));
            given.push(cidrs.join(" "));
        }
        assert_eq!(given[0], "10.244.0.0/24 fd00::/64");
        assert_eq!(given[3], "10.244.3.0/24 fd00:0:0:3::/64");
        let exhausted = plan(&Node::default(), &ranges, &taken).unwrap_err();
        assert_eq!(
            exhausted.to_string(),
            "no free node CIDR is left in cluster CIDR 10.244.0.0/22"
        );
        taken.remove(&"10.244.1.0/24".parse().unwrap());
        taken.remove(&"fd00:0:0:2::/64".parse().unwrap());
        let again = format!("{:?}", plan(&Node::default(), &ranges, &taken).unwrap());
        assert!(again.contains("10.244.1.0/24") && again.contains("fd00:0:0:2::/64"), "{again}");
        // A CIDR that a node registered with is reserved as a whole.
        let free = |taken: &[&str]| {
            let taken: BTreeSet<Cidr> = taken.iter().map(|text| text.parse().unwrap()).collect();
            ranges[0].free(&taken).map(|part| part.to_string())
        };
        assert_eq!(free(&["10.244.0.0/23", "10.244.2.128/25"]).as_deref(), Some("10.244.3.0/24"));
        assert_eq!(free(&["10.244.3.7/32", "10.244.1.0/24"]).as_deref(), Some("10.244.0.0/24"));
        assert_eq!(free(&["10.0.0.0/8"]), None);
        assert_eq!(free(&["0.0.0.0/0"]), None);
        assert_eq!(free(&["::/0", "10.243.0.0/16"]).as_deref(), Some("10.244.0.0/24"));
        let whole = range("::/0", Some(0)).unwrap();
        assert!(whole.free(&BTreeSet::new()).is_some());
        assert_eq!(whole.free(&BTreeSet::from(["fd00::/8".parse().unwrap()])), None);
        let mut has_one = Node::default();
        has_one.spec.pod_cidr = "10.9.0.0/24".into();
        assert_eq!(plan(&has_one, &ranges, &taken), Ok(Plan::default()));
    }
}
