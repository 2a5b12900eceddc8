//! What our tables look like: the maps, their keys, and the constant rules over them.
//!
//! One table per family. A packet costs the same whatever is in the maps: one lookup finds the class of its
//! service (how many endpoints to choose from, or why there is none), a map of a few verdicts turns the class
//! into a chain, and that chain draws a number and looks the endpoint up. No rule, chain or set belongs to a
//! service. Only nat base chains are used, so packets of known connections pay nothing; nothing is marked:
//! what to masquerade is told after routing from the connection's original destination.
//!
//! A packet that crosses a commit may see the class of one generation and the endpoints of the other. Its
//! slot may then be gone; the class chains fall back to slot 0, and to a reject where even that is gone.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxy_netfilter::nft::datatype::{DATA_TYPE_VERDICT, concat_len, concat_number};
use proxy_netfilter::nft::numbers::{SetFlags, TableFlags};
use proxy_netfilter::nft::object::SetSize;
use proxy_netfilter::nft::ruleset::{ChainRules, SetElements};
use proxy_netfilter::nft::userdata::{self, ByteOrder};
use proxy_netfilter::nft::{
    Chain, Data, Element, Family, Rule, Set, TableRules, Type, Value, Verdict,
};

use crate::model::{Protocol, Settings};

mod rules;

mod words;

/// First slot of the endpoints on this node, in the map that also holds all of them.
pub const HERE_FIRST_SLOT: u32 = 1 << 15;
/// Endpoints that one port can have: slots below [`HERE_FIRST_SLOT`]. What is beyond is left out.
pub const BACKENDS_MAX: usize = HERE_FIRST_SLOT as usize;

/// The families that we can program, where the kernel can.
pub const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

/// A set or map of our tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Map {
    /// Address, protocol, port -> class: all frontends with an address.
    Services,
    /// The same for external traffic under the policy Local.
    ServicesExternal,
    /// Protocol, port -> class: node ports.
    NodePorts,
    /// The same for external traffic under the policy Local.
    NodePortsExternal,
    /// Class -> verdict.
    Classes,
    /// Address, protocol, port, slot -> endpoint's address and port.
    Endpoints,
    /// Protocol, port, slot -> endpoint's address and port.
    NodePortEndpoints,
    /// Endpoints on this node that may reach themselves: address, address.
    Hairpin,
    /// Cluster addresses.
    ClusterIps,
    /// Address, protocol, port of frontends whose traffic is masqueraded.
    Masquerade,
    /// Protocol, port of node ports whose traffic is masqueraded.
    NodePortMasquerade,
}

impl Map {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Services,
        Self::ServicesExternal,
        Self::NodePorts,
        Self::NodePortsExternal,
        Self::Classes,
        Self::Endpoints,
        Self::NodePortEndpoints,
        Self::Hairpin,
        Self::ClusterIps,
        Self::Masquerade,
        Self::NodePortMasquerade,
    ];

    /// Its name in the kernel.
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
            Self::Masquerade => "masquerade",
            Self::NodePortMasquerade => "node-port-masquerade",
        }
    }

    /// The map of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|map| map.name() == name)
    }

    /// Types of its key and of its data.
    fn types(self, address: Type) -> (Vec<Type>, Vec<Type>) {
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
            Self::ClusterIps => (vec![address], Vec::new()),
            Self::Masquerade => (frontend, Vec::new()),
            Self::NodePortMasquerade => (port, Vec::new()),
        }
    }

    /// The set as it is declared, with room for `size` elements; the class map grows as it needs.
    fn declare(self, family: Family, table: &str, size: u32) -> Set {
        let (key, data) = self.types(words::address_type(family));
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
            flags: if is_map { SetFlags::MAP } else { SetFlags(0) },
            key_type: Some(concat_number(&key)),
            key_len: concat_len(&key),
            data_type: is_map.then_some(data_type),
            data_len: is_map.then(|| concat_len(&data)),
            size: SetSize((self != Self::Classes).then_some(size)),
            id: None,
            timeout_ms: None,
            gc_interval_ms: None,
            userdata: userdata::set(order(&key), is_map.then(|| order(&data))),
        }
    }
}

/// From which endpoints of which key a class draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Draw {
    /// From all of a frontend with an address.
    Service,
    /// From those on this node, of a frontend with an address.
    ServiceHere,
    /// From all of a node port.
    NodePort,
    /// From those on this node, of a node port.
    NodePortHere,
}

impl Draw {
    const ALL: [Self; 4] = [Self::Service, Self::ServiceHere, Self::NodePort, Self::NodePortHere];

    /// The first slot that it draws from.
    pub fn first_slot(self) -> u32 {
        match self {
            Self::Service | Self::NodePort => 0,
            Self::ServiceHere | Self::NodePortHere => HERE_FIRST_SLOT,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Service => "balance-",
            Self::ServiceHere => "balance-here-",
            Self::NodePort => "balance-node-port-",
            Self::NodePortHere => "balance-node-port-here-",
        }
    }

    fn index(self) -> u32 {
        Self::ALL.into_iter().zip(0..).find(|(draw, _)| *draw == self).map_or(0, |(_, i)| i)
    }
}

/// What becomes of a new connection to a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// It goes to one of so many endpoints, from 1 to [`BACKENDS_MAX`].
    Balance(Draw, u32),
    /// It is answered with an error: there are no endpoints.
    Reject,
    /// It is forgotten: there are endpoints, but none that the policy allows.
    Drop,
}

impl Class {
    /// The class by which `count` endpoints are drawn from, or what `otherwise` says when there are none.
    pub fn of(draw: Draw, count: usize, otherwise: Self) -> Self {
        match u32::try_from(count.min(BACKENDS_MAX)) {
            Ok(0) | Err(_) => otherwise,
            Ok(count) => Self::Balance(draw, count),
        }
    }

    /// The word that stands for it in the maps.
    pub fn word(self) -> u32 {
        match self {
            Self::Balance(draw, count) => draw.index() << 16 | count,
            Self::Reject => 0xffff_0001,
            Self::Drop => 0xffff_0002,
        }
    }

    /// The class that a word stands for.
    pub fn from_word(word: u32) -> Option<Self> {
        match word {
            0xffff_0001 => Some(Self::Reject),
            0xffff_0002 => Some(Self::Drop),
            _ => {
                let draw = *Draw::ALL.get(usize::try_from(word >> 16).ok()?)?;
                let count = word & 0xffff;
                (1..=HERE_FIRST_SLOT).contains(&count).then_some(Self::Balance(draw, count))
            }
        }
    }

    /// Its key in the class map.
    pub fn key(self) -> Value {
        Value::from(self.word().to_ne_bytes())
    }

    /// Its bytes as data of the other maps: two words, of which the second is the class. The first is room
    /// for the number by which session affinity will tell services apart; and `nft` up to 1.0.6 ends with a
    /// failed assertion on rules that look up what is in the first register of another map's data.
    pub fn data(self) -> Value {
        Value::concat(&[&[0; 4], &self.word().to_ne_bytes()])
    }

    /// The class that these data lead to.
    pub fn from_data(data: &[u8]) -> Option<Self> {
        Self::from_word(u32::from_ne_bytes(data.get(4..)?.try_into().ok()?))
    }

    /// Its verdict.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Balance(draw, count) => Verdict::Goto(format!("{}{count}", draw.prefix())),
            Self::Reject => Verdict::Goto(rules::REJECT.to_owned()),
            Self::Drop => Verdict::Drop,
        }
    }

    /// Its element of the class map.
    pub fn element(self) -> Element {
        Element::entry(self.key(), Data::Verdict(self.verdict()))
    }
}

/// The bytes of an address.
pub fn address_value(address: &IpAddr) -> Value {
    match address {
        IpAddr::V4(v4) => Value::from(v4.octets()),
        IpAddr::V6(v6) => Value::from(v6.octets()),
    }
}

/// Key of a frontend with an address.
pub fn service_key(address: &IpAddr, protocol: Protocol, port: u16) -> Value {
    Value::concat(&[address_value(address).bytes(), &[protocol.number()], &port.to_be_bytes()])
}

/// Key of a node port.
pub fn node_port_key(protocol: Protocol, port: u16) -> Value {
    Value::concat(&[&[protocol.number()], &port.to_be_bytes()])
}

/// Key of a slot of the frontend with this key.
pub fn slot_key(frontend: &Value, slot: u32) -> Value {
    Value::concat(&[frontend.bytes(), &slot.to_ne_bytes()])
}

/// An endpoint as data of a map.
pub fn backend_value(address: &IpAddr, port: u16) -> Value {
    Value::concat(&[address_value(address).bytes(), &port.to_be_bytes()])
}

/// What all tables of this node have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the tables.
    pub table: String,
    /// Their flags.
    pub flags: TableFlags,
    /// The families that have one; a subset of [`FAMILIES`].
    pub families: Vec<Family>,
    /// What the rules depend on.
    pub settings: Settings,
}

impl Layout {
    /// A table without services: all sets, empty, and all rules that do not depend on a class in use.
    pub fn skeleton(&self, family: Family, size_of: impl Fn(Map) -> u32) -> TableRules {
        let mut table = TableRules::empty(self.flags);
        for map in Map::ALL {
            let set = map.declare(family, &self.table, size_of(map));
            let elements = BTreeMap::new();
            table.sets.insert(map.name().to_owned(), SetElements { set, elements });
        }
        for (chain, exprs) in rules::chains(family, &self.settings) {
            let chain = Chain { table: self.table.clone(), ..chain };
            let rules = exprs.into_iter().map(|rule| self.rule(&chain.name, rule)).collect();
            table.chains.insert(chain.name.clone(), ChainRules { chain, rules });
        }
        for class in [Class::Reject, Class::Drop] {
            self.add_class(family, &mut table, class);
        }
        table
    }

    /// Adds what a class needs: its chain with its rules, and its element of the class map.
    pub fn add_class(&self, family: Family, table: &mut TableRules, class: Class) {
        if let Some(chain) = self.class_chain(family, class) {
            table.chains.insert(chain.chain.name.clone(), chain);
        }
        if let Some(classes) = table.sets.get_mut(Map::Classes.name()) {
            classes.elements.insert(class.key(), class.element());
        }
    }

    /// The chain of a class; none for those that only decide.
    pub fn class_chain(&self, family: Family, class: Class) -> Option<ChainRules> {
        let Class::Balance(draw, count) = class else { return None };
        let name = format!("{}{count}", draw.prefix());
        let rules = rules::balance(family, draw, count);
        let rules = rules.into_iter().map(|rule| self.rule(&name, rule)).collect();
        Some(ChainRules { chain: Chain::regular(&self.table, &name), rules })
    }

    fn rule(&self, chain: &str, rule: rules::Commented) -> Rule {
        Rule {
            table: self.table.clone(),
            chain: chain.to_owned(),
            handle: None,
            exprs: rule.exprs,
            userdata: userdata::rule_comment(rule.comment),
        }
    }
}

#[cfg(test)]
mod tests;
