//! Evaluates a table for a packet as the kernel would, for tests and for `orch-proxy trace`.
//!
//! The rules are interpreted expression by expression, without knowledge of Services. Expressions that the proxy's
//! rules do not use end the trace as [`PacketOutcome::Unknown`].

use std::net::IpAddr;

use proxy_netfilter::nft::numbers::HookPoint;
use proxy_netfilter::nft::{Data, Element, TableRules, Value};

use crate::layout::address_value;
use crate::model::{InterfaceName, Protocol};

mod jhash;

pub mod text;

mod machine;
use machine::{Connection, HookVerdict, Machine};

/// The first packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Sender.
    pub src: IpAddr,
    /// Sender's port.
    pub src_port: u16,
    /// Receiver.
    pub dst: IpAddr,
    /// Receiver's port.
    pub dst_port: u16,
    pub protocol: Protocol,
    /// Where it enters this node.
    pub origin: Origin,
}

/// Where a packet enters this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By an unknown interface, from a pod or from outside.
    Network,
    Interface(InterfaceName),
    /// From a process on this node.
    Host,
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketOutcome {
    /// No rule matched.
    Untouched,
    /// DNAT to an endpoint.
    Sent {
        /// The endpoint's address.
        to: IpAddr,
        /// The endpoint's port.
        port: u16,
        /// The source address that the endpoint sees.
        from: Sender,
    },
    /// The client gets a TCP reset.
    Reset,
    /// The client gets an ICMP error.
    Unreachable,
    Dropped,
    /// A rule has an expression that the tracer does not support.
    Unknown(String),
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The client's.
    Itself,
    /// This node's.
    Masqueraded,
}

/// A rule that matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub chain: String,
    /// Its comment.
    pub rule: String,
    /// Elements that its lookups found, in order.
    pub found: Vec<MatchedElement>,
}

/// An element that a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedElement {
    pub set: String,
    pub key: Value,
    /// The data, in a map.
    pub data: Option<Data>,
}

/// The result of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rules that matched, in order.
    pub steps: Vec<Step>,
    /// What happens to the packet.
    pub outcome: PacketOutcome,
    /// Updates of maps by the packet, in order.
    pub learned: Vec<SetUpdate>,
}

/// An update of a map by a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetUpdate {
    /// The map.
    pub set: String,
    pub key: Value,
    /// The new data; `None` for a deletion.
    pub data: Option<Value>,
}

impl SetUpdate {
    /// Applies the update, as the kernel does before the next packet.
    pub fn apply(&self, table: &mut TableRules) {
        let Some(set) = table.sets.get_mut(&self.set) else { return };
        match &self.data {
            // An existing element gets a new timeout and keeps its data.
            Some(data) => {
                let element = Element::entry(self.key.clone(), Data::Value(data.clone()));
                set.elements.entry(self.key.clone()).or_insert(element);
            }
            None => drop(set.elements.remove(&self.key)),
        }
    }
}

/// Traces a packet. `is_local` is true for addresses of this node; `draw` returns a number below its argument, as the
/// kernel's numgen does.
pub fn trace(
    table: &TableRules,
    packet: &Packet,
    is_local: &dyn Fn(IpAddr) -> bool,
    draw: &mut dyn FnMut(u32) -> u32,
) -> Trace {
    let mut machine = Machine::new(table, is_local, draw);
    let entry = match packet.origin {
        Origin::Network | Origin::Interface(_) => HookPoint::PREROUTING,
        Origin::Host => HookPoint::OUTPUT,
    };
    let original = Connection { original: *packet, dnat: false };
    let (to, port) = match machine.run(entry, packet, &original) {
        HookVerdict::Dnat(bytes, port) => match address_from(&bytes) {
            Some(address) => (address, port),
            None => {
                return machine.end(PacketOutcome::Unknown("destination of another family".into()));
            }
        },
        HookVerdict::Accept => return machine.end(PacketOutcome::Untouched),
        HookVerdict::Masquerade => {
            return machine.end(PacketOutcome::Unknown("masquerade before routing".into()));
        }
        HookVerdict::Final(outcome) => return machine.end(outcome),
    };
    // Packets to local processes do not pass postrouting.
    if packet.origin != Origin::Host && is_local(to) {
        return machine.end(PacketOutcome::Sent { to, port, from: Sender::Itself });
    }
    let rewritten = Packet { dst: to, dst_port: port, ..*packet };
    let connection = Connection { dnat: true, ..original };
    let from = match machine.run(HookPoint::POSTROUTING, &rewritten, &connection) {
        HookVerdict::Masquerade => Sender::Masqueraded,
        HookVerdict::Accept => Sender::Itself,
        HookVerdict::Dnat(..) => {
            return machine.end(PacketOutcome::Unknown("destination after routing".into()));
        }
        HookVerdict::Final(outcome) => return machine.end(outcome),
    };
    machine.end(PacketOutcome::Sent { to, port, from })
}

/// All possible results; each random draw is tried with up to `draws_max` values.
pub fn possible_outcomes(
    table: &TableRules,
    packet: &Packet,
    is_local: &dyn Fn(IpAddr) -> bool,
    draws_max: u32,
) -> std::collections::BTreeSet<PacketOutcome> {
    let mut possible_outcomes = std::collections::BTreeSet::new();
    let (mut tries, mut turn) = (1_u32, 0_u32);
    while turn < tries {
        let mut draw = |count: u32| {
            tries = tries.max(count.min(draws_max));
            turn.min(count.saturating_sub(1))
        };
        possible_outcomes.insert(trace(table, packet, is_local, &mut draw).outcome);
        turn = turn.saturating_add(1);
    }
    possible_outcomes
}

fn address_from(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Network and transport headers that rules may match.
fn headers(packet: &Packet) -> (Vec<u8>, Vec<u8>) {
    let (src, dst) = (address_value(&packet.src), address_value(&packet.dst));
    let offset = if src.bytes().len() == 4 { 12 } else { 8 };
    let mut network = vec![0; offset];
    network.extend_from_slice(src.bytes());
    network.extend_from_slice(dst.bytes());
    let transport = [packet.src_port.to_be_bytes(), packet.dst_port.to_be_bytes()].concat();
    (network, transport)
}
