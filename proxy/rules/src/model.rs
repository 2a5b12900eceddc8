//! The node-local model: Services as seen from one node, as addresses and ports.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use proto_api::{AddressRange, AddressRanges, Cidr};
use proxy_netfilter::nft::Family;

use crate::packed::{HasAddress, PackedList};

mod local_traffic;
pub use local_traffic::{InterfaceName, LocalTraffic};

/// Namespace and name of a Service, `default/web`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(Arc<str>);

impl ServiceId {
    /// Joins namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

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
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// IANA's protocol number.
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

    /// The protocol by its name in the API; an empty name is TCP.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

    /// Whether conntrack entries outlive a removed endpoint because no handshake fails.
    pub fn has_stale_flows(self) -> bool {
        matches!(self, Self::Udp | Self::Sctp)
    }
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All endpoints.
    #[default]
    Cluster,
    /// Endpoints on this node.
    Local,
}

/// How the endpoint of a new connection is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Choice {
    #[default]
    Random,
    /// By a hash of the client's address and port, alike on every node.
    Consistent,
    /// The client's last endpoint for this many seconds, else at random. Only values of [`Choice::sticky`].
    Sticky(u32),
}

impl Choice {
    /// The API's maximum, in seconds: a day.
    pub const STICKY_SECONDS_MAX: u32 = 86_400;
    /// Up to here seconds are exact, beyond they are rounded to minutes: a class has no more bits.
    const STICKY_EXACT_MAX: u32 = 8 * 3600;

    /// Session affinity for `seconds`; beyond eight hours rounded up to minutes.
    pub fn sticky(seconds: u32) -> Self {
        let seconds = seconds.clamp(1, Self::STICKY_SECONDS_MAX);
        let exact = seconds <= Self::STICKY_EXACT_MAX;
        Self::Sticky(if exact { seconds } else { seconds.div_ceil(60).saturating_mul(60) })
    }

    /// A number below 2^15.
    pub fn code(self) -> u32 {
        match self {
            Self::Random => 0,
            Self::Consistent => 1,
            Self::Sticky(seconds) => {
                let beyond = seconds.saturating_sub(Self::STICKY_EXACT_MAX).div_ceil(60);
                seconds.min(Self::STICKY_EXACT_MAX).saturating_add(beyond).saturating_add(1)
            }
        }
    }

    /// Decodes [`Choice::code`].
    pub fn from_code(code: u32) -> Option<Self> {
        let seconds = match code {
            0 => return Some(Self::Random),
            1 => return Some(Self::Consistent),
            code => code.saturating_sub(1),
        };
        let beyond = seconds.saturating_sub(Self::STICKY_EXACT_MAX).saturating_mul(60);
        let seconds = seconds.min(Self::STICKY_EXACT_MAX).saturating_add(beyond);
        (seconds <= Self::STICKY_SECONDS_MAX).then_some(Self::Sticky(seconds))
    }
}

/// Whether topology hints are used for traffic with the policy Cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// No.
    #[default]
    Ignored,
    /// Yes, if every endpoint has hints and one of them is for the node's zone.
    Hints,
}

/// A Service that this node forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalService {
    /// `spec.clusterIPs`, at most one per family.
    pub cluster_ips: Box<[IpAddr]>,
    /// `spec.externalIPs`.
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress` with `ipMode: VIP`.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// The node that announces these addresses on the nodes' network. Then they are no other host's, and serve nothing but Services.
    pub announced_by: Option<Box<str>>,
    /// `spec.loadBalancerSourceRanges`; a family without any is not restricted.
    pub source_ranges: Box<[Cidr]>,
    /// For traffic to cluster IPs.
    pub internal: Policy,
    /// For traffic to external addresses and node ports from outside the cluster.
    pub external: Policy,
    /// How the endpoint is chosen.
    pub choice: Choice,
    /// Whether topology hints are used.
    pub topology: Topology,
    /// `spec.healthCheckNodePort`.
    pub health_check_port: Option<u16>,
    /// `spec.ports`.
    pub ports: Box<[LocalPort]>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its name, empty for a single port; EndpointSlice ports have the same name.
    pub name: Box<str>,
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// The same port on every node's addresses, if it has one.
    pub node_port: Option<u16>,
}

/// One EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalSlice {
    pub service: ServiceId,
    pub ports: Box<[SlicePort]>,
    /// Its endpoints, all of one family.
    pub endpoints: PackedList<LocalEndpoint>,
    /// Zones in each endpoint's hints, in the order of the endpoints; empty if no endpoint has hints.
    pub hints: Box<[Box<[Box<str>]>]>,
}

/// A port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    /// Name of the Service's port.
    pub name: Box<str>,
    pub protocol: Protocol,
    /// The target port.
    pub port: u16,
}

/// What this node needs of an endpoint of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalEndpoint {
    pub address: IpAddr,
    /// Whether it is used.
    pub state: EndpointState,
    /// Whether it is on this node.
    pub place: Locality,
}

impl HasAddress for LocalEndpoint {
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
    /// Terminating and still serving: used if there is no ready endpoint.
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

/// The family of an address.
pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// Settings of the whole node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// CIDRs of the cluster's pods, at most one per family.
    pub cluster_cidrs: Vec<Cidr>,
    /// How traffic of pods is detected. If it cannot be, no traffic to cluster IPs is masqueraded.
    pub local_traffic: LocalTraffic,
    /// Which traffic to cluster IPs is masqueraded.
    pub masquerade: Masquerade,
    /// CIDRs of node addresses that serve node ports; empty for all.
    pub node_port_cidrs: Vec<Cidr>,
    /// Masquerading of pods' traffic to addresses outside the cluster.
    pub leaving: EgressMasquerade,
    /// Whether connections are counted for each frontend.
    pub counting: ConnectionCounting,
    /// TCP connections to removed endpoints.
    pub removed: RemovedEndpointPolicy,
    /// TCP sockets that no external address of a Service may claim: those of the API server, the kubelet and the
    /// proxy.
    pub protected: BTreeSet<SocketAddr>,
    /// TCP ports of the node that no node port or health check node port may claim.
    pub kept_ports: BTreeSet<u16>,
    /// Which load balancers' addresses are announced on the nodes' network; `None` if none are.
    pub announcing: Option<Announcing>,
}

/// The announcement of load balancers' addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcing {
    /// The name of this node.
    pub node: Box<str>,
    /// Addresses outside of these are neither announced nor guarded, whatever Services say.
    pub ranges: AddressRanges,
}

/// What happens to TCP connections to removed endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemovedEndpointPolicy {
    /// They end by their own timeouts.
    #[default]
    Left,
    /// They are reset, once the endpoint has terminated.
    Reset,
}

/// Whether connections are counted for each frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionCounting {
    /// No: it costs a lookup for each new connection, and kernel memory for each frontend and core.
    #[default]
    Off,
    /// Yes.
    On,
}

/// Masquerading of pods' traffic to addresses outside the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EgressMasquerade {
    /// None: the network routes replies, or another component masquerades.
    #[default]
    AsIs,
    /// To the node's address; needs the cluster CIDR.
    Masqueraded,
}

impl Settings {
    /// Whether the socket belongs to the node or the cluster, so that no Service may claim it by an external address.
    pub fn protects(&self, address: IpAddr, port: u16, protocol: Protocol) -> bool {
        protocol == Protocol::Tcp && self.protected.contains(&SocketAddr::new(address, port))
    }

    /// Whether the address belongs to the node or the cluster.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.protected.iter().any(|socket| socket.ip() == address)
    }

    /// Whether the node uses this port itself.
    pub fn uses_port(&self, port: u16, protocol: Protocol) -> bool {
        protocol == Protocol::Tcp && self.kept_ports.contains(&port)
    }

    /// The cluster CIDR of a family.
    pub fn cluster_cidr(&self, family: Family) -> Option<Cidr> {
        self.cluster_cidrs.iter().copied().find(|cidr| family_of(cidr.first()) == family)
    }

    /// CIDRs by which traffic of pods is detected; the cluster CIDRs if it is not detected by CIDRs.
    pub fn local_blocks(&self) -> &[Cidr] {
        match &self.local_traffic {
            LocalTraffic::Blocks(blocks) => blocks,
            LocalTraffic::Cluster
            | LocalTraffic::Interface(_)
            | LocalTraffic::InterfacePrefix(_) => &self.cluster_cidrs,
        }
    }
}

/// Which traffic to cluster IPs is masqueraded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masquerade {
    /// From outside the cluster CIDRs.
    #[default]
    FromOutside,
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
    fn malformed_cidrs_are_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "x/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
