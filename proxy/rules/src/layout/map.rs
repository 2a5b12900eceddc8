//! The sets and maps of the tables: names, types, declarations.

use proxy_netfilter::nft::datatype::{DATA_TYPE_VERDICT, concat_len, concat_number};
use proxy_netfilter::nft::expr::Counter;
use proxy_netfilter::nft::numbers::SetFlags;
use proxy_netfilter::nft::object::SetSize;
use proxy_netfilter::nft::userdata::{self, ByteOrder};
use proxy_netfilter::nft::{Family, Set, Type};

/// A set or map of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Map {
    /// Address . protocol . port -> class: all frontends with an address.
    Services,
    /// The same for external traffic with the policy Local.
    ServicesExternal,
    /// Protocol . port -> class: node ports.
    NodePorts,
    /// The same for external traffic with the policy Local.
    NodePortsExternal,
    /// Class -> verdict.
    Classes,
    /// Address . protocol . port . slot -> address and port of an endpoint.
    Endpoints,
    /// Protocol . port . slot -> address and port of an endpoint.
    NodePortEndpoints,
    /// Address . address: endpoints on this node, whose connections to themselves are masqueraded.
    Hairpin,
    ClusterIps,
    /// Addresses that nodes announce for load balancers.
    LoadBalancerIps,
    /// Address . protocol . port: frontends whose traffic is masqueraded.
    Masquerade,
    /// Protocol . port: node ports whose traffic is masqueraded.
    NodePortMasquerade,
    /// Frontend . client -> the client's last endpoint. Written by packets; a node port has no address.
    Affinity,
    /// Endpoint . frontend: endpoints that a client with affinity may use again.
    Live,
    /// The same for endpoints on this node.
    LiveHere,
    /// Address . protocol . port: frontends with source ranges.
    Gated,
    /// Address . protocol . port . network . prefix length: source ranges.
    SourceRanges,
    /// Address . protocol . port: connection counters.
    Counted,
    /// Protocol . port: connection counters of node ports.
    NodePortCounted,
}

impl Map {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::Services,
        Self::ServicesExternal,
        Self::NodePorts,
        Self::NodePortsExternal,
        Self::Classes,
        Self::Endpoints,
        Self::NodePortEndpoints,
        Self::Hairpin,
        Self::ClusterIps,
        Self::LoadBalancerIps,
        Self::Masquerade,
        Self::NodePortMasquerade,
        Self::Affinity,
        Self::Live,
        Self::LiveHere,
        Self::Gated,
        Self::SourceRanges,
        Self::Counted,
        Self::NodePortCounted,
    ];

    /// Maps that many clusters never use, on the path of every new connection: rules look them up only after the first
    /// element exists.
    pub const SELDOM: [Self; 4] =
        [Self::Gated, Self::ServicesExternal, Self::Masquerade, Self::LoadBalancerIps];

    /// Name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::ServicesExternal => "services-external",
            Self::NodePorts => "node-ports",
            Self::NodePortsExternal => "node-ports-external",
            Self::Classes => "classes",
            Self::Endpoints => "endpoints",
            Self::NodePortEndpoints => "node-port-endpoints",
            Self::Hairpin => "hairpin",
            Self::ClusterIps => "cluster-ips",
            Self::LoadBalancerIps => "load-balancer-ips",
            Self::Masquerade => "masquerade",
            Self::NodePortMasquerade => "node-port-masquerade",
            Self::Affinity => "affinity",
            Self::Live => "live",
            Self::LiveHere => "live-here",
            Self::Gated => "gated",
            Self::SourceRanges => "source-ranges",
            Self::Counted => "counted",
            Self::NodePortCounted => "node-port-counted",
        }
    }

    /// The map with that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|map| map.name() == name)
    }

    /// Types of key and data.
    pub(crate) fn types(self, address: Type) -> (Vec<Type>, Vec<Type>) {
        let frontend = vec![address, Type::Proto, Type::Port];
        let port = vec![Type::Proto, Type::Port];
        let class = vec![Type::Mark, Type::Mark];
        let with_slot = |key: Vec<Type>| [key, vec![Type::Mark]].concat();
        match self {
            Self::Services | Self::ServicesExternal => (frontend, class),
            Self::NodePorts | Self::NodePortsExternal => (port, class),
            Self::Classes => (vec![Type::Mark], vec![Type::Verdict]),
            Self::Endpoints => (with_slot(frontend), vec![address, Type::Port]),
            Self::NodePortEndpoints => (with_slot(port), vec![address, Type::Port]),
            Self::Hairpin => (vec![address, address], Vec::new()),
            Self::ClusterIps | Self::LoadBalancerIps => (vec![address], Vec::new()),
            Self::Masquerade | Self::Counted => (frontend, Vec::new()),
            Self::NodePortMasquerade | Self::NodePortCounted => (port, Vec::new()),
            // The first word is padding, see `Class::data`.
            Self::Affinity => {
                ([frontend, vec![address]].concat(), vec![Type::Mark, address, Type::Port])
            }
            Self::Live | Self::LiveHere => {
                ([vec![address, Type::Port], frontend].concat(), Vec::new())
            }
            Self::Gated => (frontend, Vec::new()),
            Self::SourceRanges => ([frontend, vec![address, Type::Mark]].concat(), Vec::new()),
        }
    }

    /// Whether its elements have counters.
    pub fn counts(self) -> bool {
        matches!(self, Self::Counted | Self::NodePortCounted)
    }

    /// Whether packets write it, so that its elements are not compared.
    pub fn is_learned(self) -> bool {
        self == Self::Affinity
    }

    fn flags(self, is_map: bool) -> SetFlags {
        match (is_map, self.is_learned()) {
            (true, true) => SetFlags::MAP | SetFlags::TIMEOUT | SetFlags::EVAL,
            (true, false) => SetFlags::MAP,
            (false, _) => SetFlags(0),
        }
    }

    /// The declaration, for `size` elements; the class map has no fixed size.
    pub(super) fn declare(self, family: Family, table: &str, size: u32) -> Set {
        let (key, data) = self.types(super::expr_builders::address_type(family));
        let is_map = !data.is_empty();
        let data_type = match data.as_slice() {
            [Type::Verdict] => DATA_TYPE_VERDICT,
            types => concat_number(types),
        };
        let order = |types: &[Type]| match types {
            [one] if one.host_order() => ByteOrder::Host,
            [_] => ByteOrder::Network,
            _ => ByteOrder::Mixed,
        };
        Set {
            table: table.to_owned(),
            name: self.name().to_owned(),
            flags: self.flags(is_map),
            key_type: Some(concat_number(&key)),
            key_len: concat_len(&key),
            data_type: is_map.then_some(data_type),
            data_len: is_map.then(|| concat_len(&data)),
            size: SetSize((self != Self::Classes).then_some(size)),
            id: None,
            timeout_ms: None,
            gc_interval_ms: None,
            userdata: userdata::set(order(&key), is_map.then(|| order(&data))),
            expr: self.counts().then(|| Counter { bytes: 0, packets: 0 }.into()),
        }
    }
}
