//! The node-local model: services as seen from one node, in terms of addresses and ports.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use proto_api::Cidr;
use proxy_netfilter::nft::Family;

use crate::packed::{Addressed, Packed};

mod local_traffic;
pub use local_traffic::{InterfaceName, LocalTraffic};

/// Namespace and name of a service, `default/web`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(Arc<str>);

impl ServiceId {
    /// From namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// IANA's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// The protocol with IANA's number.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.number() == number)
    }

    /// The protocol that the API calls `name`; an empty name is TCP.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// Whether flows live on without a handshake that would notice a lost endpoint.
    pub fn has_stale_flows(self) -> bool {
        matches!(self, Self::Udp | Self::Sctp)
    }
}

/// Which endpoints a kind of traffic may reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All.
    #[default]
    Cluster,
    /// Those on this node.
    Local,
}

/// How the endpoint of a new connection is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Choice {
    /// At random.
    #[default]
    Random,
    /// By the client's address and port, alike on every node.
    Consistent,
    /// The one that the client's address had in the last so many seconds, else at random. Only values that
    /// [`Choice::sticky`] gives.
    Sticky(u32),
}

impl Choice {
    /// The longest time that the API allows, in seconds: a day.
    pub const STICKY_SECONDS_MAX: u32 = 86_400;
    /// Up to here every second counts, beyond only minutes: a class has no room for more.
    const STICKY_EXACT_MAX: u32 = 8 * 3600;

    /// The client's last endpoint for `seconds`; beyond eight hours rounded up to whole minutes.
    pub fn sticky(seconds: u32) -> Self {
        let seconds = seconds.clamp(1, Self::STICKY_SECONDS_MAX);
        let exact = seconds <= Self::STICKY_EXACT_MAX;
        Self::Sticky(if exact { seconds } else { seconds.div_ceil(60) * 60 })
    }

    /// A number below 2^15 that stands for it.
    pub fn code(self) -> u32 {
        match self {
            Self::Random => 0,
            Self::Consistent => 1,
            Self::Sticky(seconds) => {
                let beyond = seconds.saturating_sub(Self::STICKY_EXACT_MAX).div_ceil(60);
                1 + seconds.min(Self::STICKY_EXACT_MAX) + beyond
            }
        }
    }

    /// The choice that a number stands for.
    pub fn from_code(code: u32) -> Option<Self> {
        let seconds = match code {
            0 => return Some(Self::Random),
            1 => return Some(Self::Consistent),
            code => code - 1,
        };
        let beyond = seconds.saturating_sub(Self::STICKY_EXACT_MAX) * 60;
        let seconds = seconds.min(Self::STICKY_EXACT_MAX) + beyond;
        (seconds <= Self::STICKY_SECONDS_MAX).then_some(Self::Sticky(seconds))
    }
}

/// Whether endpoints near the node are preferred for traffic under the policy Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// All are alike.
    #[default]
    Ignored,
    /// Those that are hinted for the node's zone, if every endpoint has a hint and one of them is for it.
    Hints,
}

/// A service that this node forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalService {
    /// Cluster addresses, at most one of each family.
    pub cluster_ips: Box<[IpAddr]>,
    /// Addresses at which the world reaches it by routes that its author knows of.
    pub external_ips: Box<[IpAddr]>,
    /// Addresses at which a load balancer hands over its traffic.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Who may use the load balancers' addresses; of a family without blocks, everybody.
    pub source_ranges: Box<[Cidr]>,
    /// For traffic to cluster addresses.
    pub internal: Policy,
    /// For traffic to external addresses and node ports from outside the cluster.
    pub external: Policy,
    /// How a connection's endpoint is chosen.
    pub choice: Choice,
    /// Whether endpoints near the node are preferred.
    pub topology: Topology,
    /// Where load balancers ask whether this node has endpoints of it.
    pub health_check_port: Option<u16>,
    /// Its ports.
    pub ports: Box<[LocalPort]>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its name, empty for a single port; endpoints are matched by it.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// The same port on every node's addresses, if it has one.
    pub node_port: Option<u16>,
}

/// Some of the endpoints of a service: one EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSlice {
    /// The service that they belong to.
    pub service: ServiceId,
    /// The ports that they listen on.
    pub ports: Box<[SlicePort]>,
    /// The endpoints; all of one address family.
    pub endpoints: Packed<LocalEndpoint>,
    /// Zones that each endpoint is hinted for, in the order of the endpoints; empty when none has hints.
    pub hints: Box<[Box<[Box<str>]>]>,
}

/// A port that endpoints listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the service's port.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number on the endpoint.
    pub port: u16,
}

/// One endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEndpoint {
    /// Its address.
    pub address: IpAddr,
    /// Whether to use it.
    pub state: EndpointState,
    /// Where it runs.
    pub place: Locality,
}

impl Addressed for LocalEndpoint {
    type Rest = (EndpointState, Locality);

    fn split(self) -> (IpAddr, Self::Rest) {
        (self.address, (self.state, self.place))
    }

    fn join(address: IpAddr, (state, place): Self::Rest) -> Self {
        Self { address, state, place }
    }
}

/// Whether an endpoint is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointState {
    /// Not used.
    Down,
    /// Used while there is no ready one: it is terminating and still serves.
    Draining,
    /// Used.
    Ready,
}

/// Where an endpoint runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Locality {
    /// On another node.
    Elsewhere,
    /// On this node.
    Here,
}

/// The table in which an address is looked up.
pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// What the whole node is told once, by flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Addresses of the cluster's pods, at most one block per family.
    pub cluster_cidrs: Vec<Cidr>,
    /// What tells the traffic of pods. Where nothing does, nothing is masqueraded on its way to a cluster address.
    pub local_traffic: LocalTraffic,
    /// Whether all traffic to cluster addresses is masqueraded.
    pub masquerade: Masquerade,
    /// Blocks that limit which of the node's addresses serve node ports; none for no limit.
    pub node_port_cidrs: Vec<Cidr>,
    /// What becomes of the source of pods' traffic to addresses that are no pods'.
    pub leaving: Leaving,
    /// Whether the connections to each frontend are counted.
    pub counting: Counting,
    /// What becomes of TCP connections to endpoints that are gone.
    pub removed: Removed,
    /// TCP sockets that no external address of a service may take: the API server's, the kubelet's, the proxy's own.
    pub protected: BTreeSet<SocketAddr>,
    /// TCP ports of the node itself that no node port and no health check of a service may take.
    pub kept_ports: BTreeSet<u16>,
}

/// What becomes of TCP connections to endpoints that are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Removed {
    /// They are left to their own timeouts.
    #[default]
    Left,
    /// They are reset. Those to endpoints that terminate stay until these are gone.
    Reset,
}

/// Whether the connections to each frontend are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// No: it costs each new connection a lookup, and the kernel a counter a frontend and core.
    #[default]
    Off,
    /// Yes.
    On,
}

/// What becomes of the source of pods' traffic to addresses that are no pods'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// It stays, because the network beyond knows the way back or because somebody else masquerades.
    #[default]
    AsIs,
    /// It becomes the node's; needs a block of pod addresses.
    Masqueraded,
}

impl Settings {
    /// Whether the node and the cluster need this socket for themselves, so that no service gets it by an external address.
    pub fn protects(&self, address: IpAddr, port: u16, protocol: Protocol) -> bool {
        protocol == Protocol::Tcp && self.protected.contains(&SocketAddr::new(address, port))
    }

    /// Whether the node needs this port for itself at its own addresses.
    pub fn keeps(&self, port: u16, protocol: Protocol) -> bool {
        protocol == Protocol::Tcp && self.kept_ports.contains(&port)
    }

    /// The block of pod addresses of a family.
    pub fn cluster_cidr(&self, family: Family) -> Option<Cidr> {
        self.cluster_cidrs.iter().copied().find(|cidr| family_of(cidr.first()) == family)
    }

    /// Blocks by which the traffic of pods is told, as far as it is told by blocks at all; else those of the cluster.
    pub fn local_blocks(&self) -> &[Cidr] {
        match &self.local_traffic {
            LocalTraffic::Blocks(blocks) => blocks,
            LocalTraffic::Cluster
            | LocalTraffic::Interface(_)
            | LocalTraffic::InterfacePrefix(_) => &self.cluster_cidrs,
        }
    }
}

/// Which traffic to cluster addresses is masqueraded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masquerade {
    /// From outside the cluster's blocks.
    #[default]
    FromOutside,
    /// All.
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_contain_what_shares_their_leading_bits() {
        let block: Cidr = "10.244.3.7/16".parse().unwrap();
        assert_eq!(block.to_string(), "10.244.0.0/16");
        assert_eq!(block.mask(), IpAddr::from([255, 255, 0, 0]));
        assert!(block.contains("10.244.255.1".parse().unwrap()));
        assert!(!block.contains("10.245.0.0".parse().unwrap()));
        assert!(!block.contains("::ffff:10.244.0.1".parse().unwrap()));
        let all: Cidr = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("1.2.3.4".parse().unwrap()));
        let one: Cidr = "fd00::1/128".parse().unwrap();
        assert!(
            one.contains("fd00::1".parse().unwrap()) && !one.contains("fd00::2".parse().unwrap())
        );
    }

    #[test]
    fn choices_come_back_from_their_codes() {
        let seconds = [1, 2, 10, 10_800, 28_799, 28_800, 28_801, 30_001, 86_399, 86_400, 100_000];
        let sticky = seconds.map(Choice::sticky);
        assert_eq!(sticky[3..6], [10_800, 28_799, 28_800].map(Choice::Sticky));
        assert_eq!(sticky[6..8], [28_860, 30_060].map(Choice::Sticky));
        assert_eq!(sticky[8..], [86_400; 3].map(Choice::Sticky));
        assert_eq!(Choice::sticky(0), Choice::Sticky(1));
        for choice in sticky.into_iter().chain([Choice::Random, Choice::Consistent]) {
            assert!(choice.code() < 1 << 15);
            assert_eq!(Choice::from_code(choice.code()), Some(choice));
        }
        assert_eq!(Choice::from_code(Choice::Sticky(86_400).code() + 1), None);
    }

    #[test]
    fn what_is_no_block_is_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "x/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
