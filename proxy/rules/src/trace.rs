//! What a table does to a packet, computed from the table's value the way the kernel would: for tests, and to
//! explain a connection to people.
//!
//! It runs the rules themselves, expression by expression, so it knows nothing of services. It knows the
//! expressions that our rules use; any other ends the trace as [`PacketOutcome::Unknown`].

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
    /// Protocol.
    pub protocol: Protocol,
    /// Where it enters this machine.
    pub origin: Origin,
}

/// Where a packet enters this machine's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It comes in by an interface, from a pod or from outside; by which one is not known.
    Network,
    /// It comes in by this interface.
    Interface(InterfaceName),
    /// A process of this machine sends it.
    Host,
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketOutcome {
    /// No rule concerns it.
    Untouched,
    /// It goes to an endpoint.
    Sent {
        /// The endpoint's address.
        to: IpAddr,
        /// The endpoint's port.
        port: u16,
        /// What the endpoint sees as the sender.
        from: Sender,
    },
    /// The sender gets a TCP reset.
    Reset,
    /// The sender gets an ICMP error.
    Unreachable,
    /// It is forgotten.
    Dropped,
    /// A rule does something that the tracer does not know.
    Unknown(String),
}

/// What an endpoint sees as the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sender {
    /// The sender itself.
    Itself,
    /// This machine.
    Masqueraded,
}

/// A rule that took part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its chain.
    pub chain: String,
    /// Its comment.
    pub rule: String,
    /// Elements that its lookups found, in order.
    pub found: Vec<MatchedElement>,
}

/// An element that a lookup found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedElement {
    /// The set.
    pub set: String,
    /// The key.
    pub key: Value,
    /// What it leads to, if it is a map's.
    pub data: Option<Data>,
}

/// The way of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Rules whose conditions all held, in order.
    pub steps: Vec<Step>,
    /// What became of it.
    pub outcome: PacketOutcome,
    /// What it wrote into maps, in order.
    pub learned: Vec<SetUpdate>,
}

/// What a packet writes into a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetUpdate {
    /// The map.
    pub set: String,
    /// The key.
    pub key: Value,
    /// What it leads to from now on; none when it is forgotten.
    pub data: Option<Value>,
}

impl SetUpdate {
    /// Writes it into a table, as the kernel does before the next packet.
    pub fn apply(&self, table: &mut TableRules) {
        let Some(set) = table.sets.get_mut(&self.set) else { return };
        match &self.data {
            // An element that is there lives longer and stays as it is.
            Some(data) => {
                let element = Element::entry(self.key.clone(), Data::Value(data.clone()));
                set.elements.entry(self.key.clone()).or_insert(element);
            }
            None => drop(set.elements.remove(&self.key)),
        }
    }
}

/// Follows a packet through a table. `is_local` says which addresses are this machine's; `draw` chooses a
/// number below its argument, as the kernel does at random.
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
    // What comes in for this machine is delivered; only what leaves it passes postrouting.
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

/// All that can become of a packet, whatever is drawn; each draw is tried up to `draws_max` values.
pub fn possible_outcomes(
    table: &TableRules,
    packet: &Packet,
    is_local: &dyn Fn(IpAddr) -> bool,
    draws_max: u32,
) -> std::collections::BTreeSet<PacketOutcome> {
    let mut possible_outcomes = std::collections::BTreeSet::new();
    let mut tries = 1;
    let mut turn = 0;
    while turn < tries {
        let mut draw = |count: u32| {
            tries = tries.max(count.min(draws_max));
            turn.min(count.saturating_sub(1))
        };
        possible_outcomes.insert(trace(table, packet, is_local, &mut draw).outcome);
        turn += 1;
    }
    possible_outcomes
}

fn address_from(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The headers that rules look at: network and transport.
fn headers(packet: &Packet) -> (Vec<u8>, Vec<u8>) {
    let (src, dst) = (address_value(&packet.src), address_value(&packet.dst));
    let offset = if src.bytes().len() == 4 { 12 } else { 8 };
    let mut network = vec![0; offset];
    network.extend_from_slice(src.bytes());
    network.extend_from_slice(dst.bytes());
    let transport = [packet.src_port.to_be_bytes(), packet.dst_port.to_be_bytes()].concat();
    (network, transport)
}
