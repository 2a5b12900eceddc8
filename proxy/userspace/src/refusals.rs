//! Pure: addresses that Services name and do not get at this node. An address that is assigned here is no longer reachable elsewhere: one of another
//! machine would cut this node off from it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy_rules::localise::is_forwardable;
use proxy_rules::model::{Protocol, Settings};

/// Priority of a claim: the cluster's allocation wins over a user's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimRank {
    Cluster,
    External,
}

/// Why a Service does not get an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressRefusal {
    /// Loopback, link-local, multicast, unspecified, broadcast.
    Special,
    /// A pod may have it.
    PodRange,
    /// The API server has it, or this node had it at the start.
    Protected,
    /// It is the InternalIP of one, another machine's.
    Node,
    /// It may be a Node's: these are not known yet.
    NodesUnknown,
}

impl AddressRefusal {
    /// For the log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Special => {
                "loopback, link-local, multicast and unspecified addresses are no Service's"
            }
            Self::PodRange => "it is in a CIDR of pods",
            Self::Protected => "it belongs to the API server or to this node",
            Self::Node => "it belongs to a node",
            Self::NodesUnknown => "the nodes are not known yet",
        }
    }
}

/// Addresses that machines of the cluster have for themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineAddresses {
    /// This node's.
    pub own: BTreeSet<IpAddr>,
    /// Of all Nodes, this one among them; `None` before they are known.
    pub nodes: Option<BTreeSet<IpAddr>>,
}

impl MachineAddresses {
    /// Why a Service does not get an address; `None` if it does. An address of this node is not assigned, so a Service may have it: only ports matter
    /// ([`Self::keeps`]). Cluster IPs may be in the CIDR that pods have, which may be that of the whole cluster, and the API server's address is one
    /// for clients in pods.
    pub fn refusal(
        &self,
        address: IpAddr,
        rank: ClaimRank,
        settings: &Settings,
    ) -> Option<AddressRefusal> {
        if !is_forwardable(address) {
            return Some(AddressRefusal::Special);
        }
        let is_nodes = |nodes: &BTreeSet<IpAddr>| nodes.contains(&address);
        let is_pods = || {
            let ranges = settings.cluster_cidrs.iter().chain(settings.local_blocks());
            ranges.into_iter().any(|range| range.contains(address))
        };
        match (rank, &self.nodes) {
            _ if self.own.contains(&address) => None,
            (_, Some(nodes)) if is_nodes(nodes) => Some(AddressRefusal::Node),
            (ClaimRank::Cluster, _) => None,
            _ if is_pods() => Some(AddressRefusal::PodRange),
            _ if settings.has_address(address) => Some(AddressRefusal::Protected),
            (ClaimRank::External, None) => Some(AddressRefusal::NodesUnknown),
            (ClaimRank::External, Some(_)) => None,
        }
    }

    /// Whether a port of an address stays the node's or the cluster's, whatever Services say.
    pub fn keeps(
        &self,
        address: IpAddr,
        port: u16,
        protocol: Protocol,
        settings: &Settings,
    ) -> bool {
        let is_kept = || self.own.contains(&address) && settings.uses_port(port, protocol);
        settings.protects(address, port, protocol) || is_kept()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use AddressRefusal::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn settings() -> Settings {
        Settings {
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            local_traffic: proxy_rules::model::LocalTraffic::Blocks(vec![
                "fd00:244::/64".parse().unwrap(),
            ]),
            protected: [SocketAddr::new(ip("203.0.113.6"), 6443)].into(),
            kept_ports: [10250].into(),
            ..Settings::default()
        }
    }

    #[test]
    fn an_address_of_a_machine_or_a_pod_is_no_services() {
        let unknown = MachineAddresses { own: ["192.0.2.1"].map(ip).into(), nodes: None };
        let nodes = ["192.0.2.1", "192.0.2.2", "fd00:9::2"].map(ip);
        let known = MachineAddresses { nodes: Some(nodes.into()), ..unknown.clone() };
        for (address, external, cluster) in [
            ("127.0.0.1", Some(Special), Some(Special)),
            ("::1", Some(Special), Some(Special)),
            ("169.254.169.254", Some(Special), Some(Special)),
            ("fe80::1", Some(Special), Some(Special)),
            ("224.0.0.1", Some(Special), Some(Special)),
            ("ff02::1", Some(Special), Some(Special)),
            ("0.0.0.0", Some(Special), Some(Special)),
            ("::", Some(Special), Some(Special)),
            ("::ffff:192.0.2.2", Some(Special), Some(Special)),
            ("10.244.7.7", Some(PodRange), None),
            ("fd00:244::7", Some(PodRange), None),
            ("203.0.113.6", Some(Protected), None),
            ("192.0.2.1", None, None),
            ("192.0.2.2", Some(Node), Some(Node)),
            ("fd00:9::2", Some(Node), Some(Node)),
            ("198.51.100.1", None, None),
        ] {
            let refusal = |rank| known.refusal(ip(address), rank, &settings());
            assert_eq!(refusal(ClaimRank::External), external, "{address}");
            assert_eq!(refusal(ClaimRank::Cluster), cluster, "{address}");
        }
        let refusal = |address, rank| unknown.refusal(ip(address), rank, &settings());
        assert_eq!(refusal("192.0.2.2", ClaimRank::External), Some(NodesUnknown));
        assert_eq!(refusal("192.0.2.1", ClaimRank::External), None);
        assert_eq!(refusal("10.96.0.1", ClaimRank::Cluster), None);
    }

    #[test]
    fn ports_that_the_node_uses_are_kept() {
        let machines = MachineAddresses { own: ["192.0.2.1"].map(ip).into(), nodes: None };
        for (address, port, protocol, kept) in [
            ("192.0.2.1", 10250, Protocol::Tcp, true),
            ("192.0.2.1", 10250, Protocol::Udp, false),
            ("192.0.2.1", 80, Protocol::Tcp, false),
            ("198.51.100.1", 10250, Protocol::Tcp, false),
            ("203.0.113.6", 6443, Protocol::Tcp, true),
        ] {
            let keeps = machines.keeps(ip(address), port, protocol, &settings());
            assert_eq!(keeps, kept, "{address} {port} {protocol:?}");
        }
    }
}
