//! The layout of the tables: maps, keys, and the fixed rules.
//!
//! There is one table per family. A packet costs the same for any number of Services: one lookup finds the class of
//! its frontend (the number of endpoints, or why there is none), a small verdict map turns the class into a chain, and
//! that chain draws a slot and looks up the endpoint. No rule, chain or set belongs to one Service. All base chains
//! are of type nat, so packets of established connections cost nothing. No mark is used: masquerading is decided in
//! postrouting by the connection's original destination.
//!
//! A packet that crosses a commit may see the class of one generation and the endpoints of the other, where its slot
//! may not exist. The class chains then use slot 0, and reject if that does not exist.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxy_netfilter::nft::numbers::TableFlags;
use proxy_netfilter::nft::ruleset::{ChainRules, SetElements};
use proxy_netfilter::nft::{Chain, Family, Rule, TableRules, Value, userdata};

use crate::model::{Cidr, ConnectionCounting, Protocol, Settings};

mod map;
pub use map::Map;
pub(crate) use rules::{SOURCE_RANGES, source_range};

mod class;
pub use class::{Class, EndpointPool};

mod rules;

pub(crate) mod expr_builders;

/// First slot of the endpoints on this node, in the map that also has all endpoints.
pub const HERE_FIRST_SLOT: u32 = 1 << 15;
/// Maximum of endpoints per port: the slots below [`HERE_FIRST_SLOT`]. Further endpoints are left out.
pub const BACKENDS_MAX: usize = HERE_FIRST_SLOT as usize;

/// Families that are programmed, if the kernel supports them.
pub const FAMILIES: [Family; 2] = [Family::Ip, Family::Ip6];

/// An IP address in network byte order.
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

/// The map key of a node port: protocol and port.
pub fn node_port_key(protocol: Protocol, port: u16) -> Value {
    Value::concat(&[&[protocol.number()], &port.to_be_bytes()])
}

/// Key of a slot of a frontend.
pub fn slot_key(frontend: &Value, slot: u32) -> Value {
    Value::concat(&[frontend.bytes(), &slot.to_ne_bytes()])
}

/// Data of an endpoint map.
pub fn backend_value(address: &IpAddr, port: u16) -> Value {
    Value::concat(&[address_value(address).bytes(), &port.to_be_bytes()])
}

/// Key of a client's affinity: frontend with an address, or node port, and client.
pub fn affinity_key(address: Option<&IpAddr>, port: (Protocol, u16), client: &IpAddr) -> Value {
    let client = address_value(client);
    let zero = Value::new(&vec![0; client.bytes().len()]);
    let address = address.map_or(zero, address_value);
    let (protocol, port) = port;
    let protocol = [protocol.number()];
    Value::concat(&[address.bytes(), &protocol, &port.to_be_bytes(), client.bytes()])
}

/// Data of the affinity map.
pub fn affinity_value(address: &IpAddr, port: u16) -> Value {
    Value::concat(&[&[0; 4], address_value(address).bytes(), &port.to_be_bytes()])
}

/// Key of an endpoint that serves a frontend with an address, or a node port.
pub fn live_key(backend: (&IpAddr, u16), address: Option<&IpAddr>, port: (Protocol, u16)) -> Value {
    let to = address_value(backend.0);
    let zero = Value::new(&vec![0; to.bytes().len()]);
    let address = address.map_or(zero, address_value);
    let (protocol, port) = port;
    let (to_port, protocol) = (backend.1.to_be_bytes(), [protocol.number()]);
    Value::concat(&[to.bytes(), &to_port, address.bytes(), &protocol, &port.to_be_bytes()])
}

/// Key of a source range that may connect to a frontend.
pub fn source_range_key(frontend: &Value, block: &Cidr) -> Value {
    let bits = u32::from(block.bits()).to_ne_bytes();
    Value::concat(&[frontend.bytes(), address_value(&block.first()).bytes(), &bits])
}

/// What the tables of both families have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the tables.
    pub table: String,
    /// Flags of the tables.
    pub flags: TableFlags,
    /// Families with a table; a subset of [`FAMILIES`].
    pub families: Vec<Family>,
    /// Settings that the rules depend on.
    pub settings: Settings,
}

impl Layout {
    /// The table without Services: all sets, empty, and all rules that do not depend on a class in use. Of the maps in
    /// [`Map::SELDOM`] only those with `is_looked_up` are looked up.
    pub fn skeleton(
        &self,
        family: Family,
        size_of: impl Fn(Map) -> u32,
        is_looked_up: impl Fn(Map) -> bool,
    ) -> TableRules {
        let mut table = TableRules::empty(self.flags);
        let counting = self.settings.counting == ConnectionCounting::On;
        for map in Map::ALL.into_iter().filter(|map| counting || !map.counts()) {
            let set = map.declare(family, &self.table, size_of(map));
            let elements = BTreeMap::new();
            table.sets.insert(map.name().to_owned(), SetElements { set, elements });
        }
        for (chain, exprs) in rules::chains(family, &self.settings, &is_looked_up) {
            let chain = Chain { table: self.table.clone(), ..chain };
            let rules = exprs.into_iter().map(|rule| self.rule(&chain.name, rule)).collect();
            table.chains.insert(chain.name.clone(), ChainRules { chain, rules });
        }
        for class in [Class::Reject, Class::Drop] {
            self.add_class(family, &mut table, class);
        }
        table
    }

    /// Adds the chain, rules and class map element of a class.
    pub fn add_class(&self, family: Family, table: &mut TableRules, class: Class) {
        if let Some(chain) = self.class_chain(family, class) {
            table.chains.insert(chain.chain.name.clone(), chain);
        }
        if let Some(classes) = table.sets.get_mut(Map::Classes.name()) {
            classes.elements.insert(class.key(), class.element());
        }
    }

    /// The chain of a class; `None` for classes with a verdict alone.
    pub fn class_chain(&self, family: Family, class: Class) -> Option<ChainRules> {
        let (Class::Balance(draw, choice, count), Some(name)) = (class, class.chain()) else {
            return None;
        };
        let rules = rules::balance(family, draw, choice, count);
        let rules = rules.into_iter().map(|rule| self.rule(&name, rule)).collect();
        Some(ChainRules { chain: Chain::regular(&self.table, &name), rules })
    }

    /// Adds the rule for source ranges of a prefix length.
    pub fn add_prefix(&self, family: Family, table: &mut TableRules, bits: u8) {
        if let Some(chain) = table.chains.get_mut(rules::SOURCE_RANGES) {
            chain.rules.push(self.prefix_rule(family, bits));
        }
    }

    /// The rule for source ranges of a prefix length.
    pub fn prefix_rule(&self, family: Family, bits: u8) -> Rule {
        self.rule(rules::SOURCE_RANGES, rules::source_range(family, bits))
    }

    fn rule(&self, chain: &str, rule: rules::CommentedRule) -> Rule {
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
