//! The node-local model: services as seen from one node, in terms of addresses and ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proxy_netfilter::nft::Family;

/// Namespace and name of a service, `default/web`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceId(Arc<str>);

impl ServiceId {
    /// From namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}/{name}").into())
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

/// A service that this node forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalService {
    /// Cluster addresses, at most one of each family.
    pub cluster_ips: Box<[IpAddr]>,
    /// Addresses at which the world reaches it: external addresses and those of load balancers.
    pub external_ips: Box<[IpAddr]>,
    /// For traffic to cluster addresses.
    pub internal: Policy,
    /// For traffic to external addresses and node ports from outside the cluster.
    pub external: Policy,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalSlice {
    /// The service that they belong to.
    pub service: ServiceId,
    /// The ports that they listen on.
    pub ports: Box<[SlicePort]>,
    /// The endpoints; all of one address family.
    pub endpoints: Box<[LocalEndpoint]>,
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
    pub place: Place,
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
pub enum Place {
    /// On another node.
    Elsewhere,
    /// On this node.
    Here,
}

/// Addresses that share their leading bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

/// Text that is no block of addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address with a prefix length, such as 10.0.0.0/8")]
pub struct CidrError(String);

impl Cidr {
    /// A block; none when `bits` is larger than the address.
    pub fn new(address: IpAddr, bits: u8) -> Option<Self> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        let block = Self { address, bits };
        (bits <= max).then(|| Self { address: block.masked(address), bits })
    }

    /// The family of its addresses.
    pub fn family(&self) -> Family {
        family_of(self.address)
    }

    /// Its first address.
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// The bits that its addresses share, as an address.
    pub fn mask(&self) -> IpAddr {
        let (v4, v6) = (Ipv4Addr::from(u32::MAX), Ipv6Addr::from(u128::MAX));
        self.masked(if self.address.is_ipv4() { v4.into() } else { v6.into() })
    }

    /// Whether `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.family() == family_of(address) && self.masked(address) == self.address
    }

    fn masked(&self, address: IpAddr) -> IpAddr {
        let bits = u32::from(self.bits);
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                Ipv4Addr::from(u32::from(v4) & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                Ipv6Addr::from(u128::from(v6) & mask).into()
            }
        }
    }
}

impl std::str::FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let parsed = text
            .split_once('/')
            .and_then(|(address, bits)| Self::new(address.parse().ok()?, bits.parse().ok()?));
        parsed.ok_or_else(|| CidrError(text.to_owned()))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// The table in which an address is looked up.
pub fn family_of(address: IpAddr) -> Family {
    if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// What the whole node is told once, by flags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Addresses of the cluster's pods, at most one block per family. Traffic to a cluster address from
    /// elsewhere is masqueraded; without a block none is.
    pub cluster_cidrs: Vec<Cidr>,
    /// Whether all traffic to cluster addresses is masqueraded.
    pub masquerade: Masquerade,
    /// Blocks that limit which of the node's addresses serve node ports; none for no limit.
    pub node_port_cidrs: Vec<Cidr>,
    /// What becomes of the source of pods' traffic to addresses that are no pods'.
    pub leaving: Leaving,
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
    /// The block of pod addresses of a family.
    pub fn cluster_cidr(&self, family: Family) -> Option<Cidr> {
        self.cluster_cidrs.iter().copied().find(|cidr| cidr.family() == family)
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
    fn what_is_no_block_is_refused() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "10.0.0/8", "x/8"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
