//! ctnetlink: dumps conntrack entries (filtered by the kernel where possible), deletes them, and reads counters.
//!
//! Numbers are those of `linux/netfilter/nfnetlink_conntrack.h`; the bits of `CTA_FILTER` are those of
//! `net/netfilter/nf_internals.h`, which no header exports.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::wire::{Attribute, Attributes, Header, Message, TooLong, WireError, Writer, flags};

/// Subsystem number of conntrack.
pub const SUBSYSTEM: u8 = 1;
/// `IPS_SEEN_REPLY`: packets were seen in both directions.
pub const STATUS_SEEN_REPLY: u32 = 1 << 1;
/// `IPS_SRC_NAT`.
pub const STATUS_SNAT: u32 = 1 << 4;
/// `IPS_DST_NAT`.
pub const STATUS_DNAT: u32 = 1 << 5;

const GET: u8 = 1;
const DELETE: u8 = 2;
const GET_STATS: u8 = 5;

const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_COUNTERS_ORIG: u16 = 9;
const CTA_COUNTERS_REPLY: u16 = 10;
const CTA_ID: u16 = 12;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;

/// Bits of the tuple fields that a filter compares.
mod compare {
    pub const SRC: u32 = 1 << 0;
    pub const DST: u32 = 1 << 1;
    pub const PROTO: u32 = 1 << 3;
    pub const SRC_PORT: u32 = 1 << 4;
    pub const DST_PORT: u32 = 1 << 5;
}

/// Addresses and ports of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol number.
    pub proto: u8,
    /// Source port; 0 for protocols without ports.
    pub src_port: u16,
    /// Destination port; 0 for protocols without ports.
    pub dst_port: u16,
}

/// A conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Original direction.
    pub orig: Tuple,
    /// Reply direction: its source is where the packets are sent.
    pub reply: Tuple,
    /// Status bits.
    pub status: u32,
    pub mark: u32,
    /// Seconds until it expires, if it is confirmed.
    pub timeout_secs: Option<u32>,
    /// The kernel's id.
    pub id: Option<u32>,
}

/// Values that the fields of a tuple must have; `None` matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TupleFilter {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Protocol number.
    pub proto: Option<u8>,
    /// Source port. The kernel compares ports only together with the protocol.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
}

/// Which entries a dump returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowFilter {
    /// Original direction.
    pub orig: TupleFilter,
    /// Reply direction.
    pub reply: TupleFilter,
    /// Value and mask of the status bits.
    pub status: Option<(u32, u32)>,
}

/// Address family of a dump; a filter with tuples needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl AddressFamily {
    /// The family of an address.
    pub fn from_address(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}

/// Size of the conntrack table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableUse {
    pub entries: u32,
    /// Maximum of entries.
    pub entries_max: u32,
}

impl TupleFilter {
    /// Whether a tuple has all required values.
    pub fn matches(&self, tuple: &Tuple) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, is: T) -> bool {
            wanted.is_none_or(|wanted| wanted == is)
        }
        is(self.src, tuple.src)
            && is(self.dst, tuple.dst)
            && is(self.proto, tuple.proto)
            && is(self.src_port, tuple.src_port)
            && is(self.dst_port, tuple.dst_port)
    }

    fn compared(&self) -> u32 {
        [
            (self.src.is_some(), compare::SRC),
            (self.dst.is_some(), compare::DST),
            (self.proto.is_some(), compare::PROTO),
            (self.src_port.is_some(), compare::SRC_PORT),
            (self.dst_port.is_some(), compare::DST_PORT),
        ]
        .into_iter()
        .filter_map(|(wanted, bit)| wanted.then_some(bit))
        .sum()
    }

    fn write(&self, writer: &mut Writer, kind: u16) {
        if self.compared() == 0 {
            return;
        }
        writer.nest(kind, |w| {
            if self.src.is_some() || self.dst.is_some() {
                w.nest(1, |w| write_addresses(w, self.src, self.dst));
            }
            if let Some(proto) = self.proto {
                w.nest(2, |w| write_proto(w, proto, self.src_port, self.dst_port));
            }
        });
    }
}

impl FlowFilter {
    /// Whether an entry matches.
    pub fn matches(&self, flow: &Flow) -> bool {
        self.orig.matches(&flow.orig)
            && self.reply.matches(&flow.reply)
            && self.status.is_none_or(|(value, mask)| flow.status & mask == value)
    }
}

/// Request to dump the entries of a family that match `filter`. The kernel may return others too, so the caller
/// compares again: kernels before 5.8 ignore the filter, and IPv6 addresses are not included, because kernels up to at
/// least 6.18 drop equal ones and return others (`ctnetlink_filter_match_tuple` inverts the result of
/// `ipv6_addr_cmp`).
pub fn dump(seq: u32, family: AddressFamily, filter: &FlowFilter) -> Result<Vec<u8>, TooLong> {
    let sent = |tuple: TupleFilter| match family {
        AddressFamily::V4 => tuple,
        AddressFamily::V6 => TupleFilter { src: None, dst: None, ..tuple },
    };
    let filter = FlowFilter { orig: sent(filter.orig), reply: sent(filter.reply), ..*filter };
    let mut writer = Writer::default();
    let header = header(GET, flags::REQUEST | flags::DUMP, seq, family.number());
    writer.message(header, |w| {
        filter.orig.write(w, CTA_TUPLE_ORIG);
        filter.reply.write(w, CTA_TUPLE_REPLY);
        if let Some((value, mask)) = filter.status {
            w.attribute(CTA_STATUS, &value.to_be_bytes());
            w.attribute(CTA_STATUS_MASK, &mask.to_be_bytes());
        }
        let (orig, reply) = (filter.orig.compared(), filter.reply.compared());
        if orig | reply != 0 {
            w.nest(CTA_FILTER, |w| {
                w.attribute(1, &orig.to_ne_bytes());
                w.attribute(2, &reply.to_ne_bytes());
            });
        }
    });
    writer.finish()
}

/// Request to delete the entry with this tuple and id; fails with `ENOENT` if it does not exist.
pub fn delete(seq: u32, flow: &Flow) -> Result<Vec<u8>, TooLong> {
    let mut writer = Writer::default();
    write_delete(&mut writer, flags::ACK, seq, &flow.orig, flow.id);
    writer.finish()
}

/// Request to delete the entry with this original tuple, whatever its id.
pub fn delete_tuple(seq: u32, orig: &Tuple) -> Result<Vec<u8>, TooLong> {
    let mut writer = Writer::default();
    write_delete(&mut writer, flags::ACK, seq, orig, None);
    writer.finish()
}

/// Requests to delete several entries, with consecutive sequence numbers from `seq` on. Only the last one is
/// acknowledged; failures are reported for each.
pub fn delete_all(seq: u32, flows: &[Flow]) -> Result<Vec<u8>, TooLong> {
    let mut writer = Writer::with_capacity(flows.len().saturating_mul(128));
    let last = flows.len().saturating_sub(1);
    for ((at, flow), offset) in flows.iter().enumerate().zip(0..) {
        let ack = if at == last { flags::ACK } else { 0 };
        write_delete(&mut writer, ack, seq.wrapping_add(offset), &flow.orig, flow.id);
    }
    writer.finish()
}

fn write_delete(writer: &mut Writer, ack: u16, seq: u32, orig: &Tuple, id: Option<u32>) {
    let family = AddressFamily::from_address(orig.src).number();
    writer.message(header(DELETE, flags::REQUEST | ack, seq, family), |w| {
        w.nest(CTA_TUPLE_ORIG, |w| {
            w.nest(1, |w| write_addresses(w, Some(orig.src), Some(orig.dst)));
            w.nest(2, |w| write_proto(w, orig.proto, Some(orig.src_port), Some(orig.dst_port)));
        });
        if let Some(id) = id {
            w.attribute(CTA_ID, &id.to_be_bytes());
        }
    });
}

/// Request for [`TableUse`].
pub fn table_use(seq: u32) -> Result<Vec<u8>, TooLong> {
    let mut writer = Writer::default();
    writer.message(header(GET_STATS, flags::REQUEST | flags::ACK, seq, 0), |_| {});
    writer.finish()
}

/// Decodes one entry of a dump.
pub fn read_flow(message: &Message<'_>) -> Result<Flow, WireError> {
    let (mut orig, mut reply, mut status, mut mark) = (None, None, 0, 0);
    let (mut timeout_secs, mut id) = (None, None);
    for attribute in message.attributes()? {
        let attribute = attribute?;
        match attribute.kind {
            CTA_TUPLE_ORIG => orig = Some(read_tuple(attribute.nested())?),
            CTA_TUPLE_REPLY => reply = Some(read_tuple(attribute.nested())?),
            CTA_STATUS => status = be32(attribute, "flow status")?,
            CTA_MARK => mark = be32(attribute, "flow mark")?,
            CTA_TIMEOUT => timeout_secs = Some(be32(attribute, "flow timeout")?),
            CTA_ID => id = Some(be32(attribute, "flow id")?),
            _ => {}
        }
    }
    let missing = |attribute| WireError::Missing { object: "flow", attribute };
    Ok(Flow {
        orig: orig.ok_or(missing("original tuple"))?,
        reply: reply.ok_or(missing("reply tuple"))?,
        status,
        mark,
        timeout_secs,
        id,
    })
}

/// State and counters of an entry: decoded separately, because most dumps need neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// Number of the protocol's state, if it has states.
    pub state: Option<u8>,
    /// Counters of both directions, with `net.netfilter.nf_conntrack_acct`.
    pub counters: Option<[Traffic; 2]>,
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub packets: u64,
    pub bytes: u64,
}

/// Names in the order of `enum tcp_conntrack`.
const TCP_STATES: [&str; 10] = [
    "NONE",
    "SYN_SENT",
    "SYN_RECV",
    "ESTABLISHED",
    "FIN_WAIT",
    "CLOSE_WAIT",
    "LAST_ACK",
    "TIME_WAIT",
    "CLOSE",
    "SYN_SENT2",
];
/// Names in the order of `enum sctp_conntrack`.
const SCTP_STATES: [&str; 9] = [
    "NONE",
    "CLOSED",
    "COOKIE_WAIT",
    "COOKIE_ECHOED",
    "ESTABLISHED",
    "SHUTDOWN_SENT",
    "SHUTDOWN_RECD",
    "SHUTDOWN_ACK_SENT",
    "HEARTBEAT_SENT",
];

impl FlowState {
    /// The name of the state, as `conntrack` prints it.
    pub fn name(&self, proto: u8) -> Option<&'static str> {
        let names: &[&str] = match proto {
            6 => &TCP_STATES,
            132 => &SCTP_STATES,
            _ => return None,
        };
        names.get(usize::from(self.state?)).copied()
    }
}

/// Decodes state and counters of one entry of a dump.
pub fn read_flow_state(message: &Message<'_>) -> Result<FlowState, WireError> {
    let mut read = FlowState::default();
    let mut counters = [None, None];
    for attribute in message.attributes()? {
        let attribute = attribute?;
        match attribute.kind {
            CTA_PROTOINFO => read.state = read_state(attribute.nested())?,
            CTA_COUNTERS_ORIG => counters[0] = Some(read_traffic(attribute.nested())?),
            CTA_COUNTERS_REPLY => counters[1] = Some(read_traffic(attribute.nested())?),
            _ => {}
        }
    }
    if let [Some(orig), Some(reply)] = counters {
        read.counters = Some([orig, reply]);
    }
    Ok(read)
}

/// The state is the first attribute of TCP (1) and SCTP (3).
fn read_state(protocols: Attributes<'_>) -> Result<Option<u8>, WireError> {
    for protocol in protocols {
        let protocol = protocol?;
        for inner in protocol.nested() {
            let inner = inner?;
            if matches!(protocol.kind, 1 | 3) && inner.kind == 1 {
                return Ok(inner.payload.first().copied());
            }
        }
    }
    Ok(None)
}

fn read_traffic(attributes: Attributes<'_>) -> Result<Traffic, WireError> {
    let mut read = Traffic::default();
    for attribute in attributes {
        let attribute = attribute?;
        let number = || attribute.array("traffic of a flow").map(u64::from_be_bytes);
        match attribute.kind {
            1 => read.packets = number()?,
            2 => read.bytes = number()?,
            _ => {}
        }
    }
    Ok(read)
}

/// Decodes the response to [`table_use`].
pub fn read_table_use(message: &Message<'_>) -> Result<TableUse, WireError> {
    let (mut entries, mut entries_max) = (None, None);
    for attribute in message.attributes()? {
        let attribute = attribute?;
        match attribute.kind {
            1 => entries = Some(be32(attribute, "entries")?),
            2 => entries_max = Some(be32(attribute, "entries_max")?),
            _ => {}
        }
    }
    let missing = |attribute| WireError::Missing { object: "connection table", attribute };
    Ok(TableUse {
        entries: entries.ok_or(missing("entries"))?,
        entries_max: entries_max.unwrap_or_default(),
    })
}

fn header(message: u8, flags: u16, seq: u32, family: u8) -> Header {
    Header { kind: u16::from_be_bytes([SUBSYSTEM, message]), flags, seq, family, resource: 0 }
}

fn write_addresses(writer: &mut Writer, src: Option<IpAddr>, dst: Option<IpAddr>) {
    for (address, v4, v6) in [(src, 1, 3), (dst, 2, 4)] {
        match address {
            Some(IpAddr::V4(address)) => writer.attribute(v4, &address.octets()),
            Some(IpAddr::V6(address)) => writer.attribute(v6, &address.octets()),
            None => {}
        }
    }
}

fn write_proto(writer: &mut Writer, proto: u8, src_port: Option<u16>, dst_port: Option<u16>) {
    writer.attribute(1, &[proto]);
    for (port, kind) in [(src_port, 2), (dst_port, 3)] {
        if let Some(port) = port {
            writer.attribute(kind, &port.to_be_bytes());
        }
    }
}

fn read_tuple(attributes: Attributes<'_>) -> Result<Tuple, WireError> {
    let (mut src, mut dst, mut proto) = (None, None, None);
    let (mut src_port, mut dst_port) = (0, 0);
    for attribute in attributes {
        let attribute = attribute?;
        for inner in attribute.nested() {
            let inner = inner?;
            match (attribute.kind, inner.kind) {
                (1, 1 | 3) => src = Some(read_address(inner)?),
                (1, 2 | 4) => dst = Some(read_address(inner)?),
                (2, 1) => proto = Some(inner.array::<1>("flow protocol")?[0]),
                (2, 2) => src_port = u16::from_be_bytes(inner.array("flow port")?),
                (2, 3) => dst_port = u16::from_be_bytes(inner.array("flow port")?),
                _ => {}
            }
        }
    }
    let missing = |attribute| WireError::Missing { object: "tuple", attribute };
    Ok(Tuple {
        src: src.ok_or(missing("source"))?,
        dst: dst.ok_or(missing("destination"))?,
        proto: proto.ok_or(missing("protocol"))?,
        src_port,
        dst_port,
    })
}

fn read_address(attribute: Attribute<'_>) -> Result<IpAddr, WireError> {
    match attribute.array::<4>("flow address") {
        Ok(octets) => Ok(Ipv4Addr::from(octets).into()),
        Err(_) => attribute.array::<16>("flow address").map(|octets| Ipv6Addr::from(octets).into()),
    }
}

fn be32(attribute: Attribute<'_>, what: &'static str) -> Result<u32, WireError> {
    attribute.array(what).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Messages;
    use proptest::prelude::*;

    fn tuple(src: [u8; 4], dst: [u8; 4], src_port: u16, dst_port: u16) -> Tuple {
        Tuple { src: IpAddr::from(src), dst: IpAddr::from(dst), proto: 17, src_port, dst_port }
    }

    #[test]
    fn a_delete_names_the_tuple_and_the_number() {
        let flow = Flow {
            orig: tuple([10, 0, 0, 1], [10, 96, 0, 10], 4242, 53),
            reply: tuple([10, 0, 0, 2], [10, 0, 0, 1], 53, 4242),
            status: STATUS_DNAT,
            mark: 0,
            timeout_secs: None,
            id: Some(0x01020304),
        };
        #[rustfmt::skip]
        let expected = [
            80, 0, 0, 0,  2, 1, 5, 0,  9, 0, 0, 0,  0, 0, 0, 0,       // IPCTNL_MSG_CT_DELETE, request+ack
            2, 0, 0, 0,                                               // IPv4
            52, 0, 1, 0x80,                                           // CTA_TUPLE_ORIG
            20, 0, 1, 0x80,  8, 0, 1, 0, 10, 0, 0, 1,  8, 0, 2, 0, 10, 96, 0, 10,
            28, 0, 2, 0x80,  5, 0, 1, 0, 17, 0, 0, 0,                 // CTA_TUPLE_PROTO: UDP
            6, 0, 2, 0, 0x10, 0x92, 0, 0,  6, 0, 3, 0, 0, 53, 0, 0,
            8, 0, 12, 0, 1, 2, 3, 4,                                  // CTA_ID
        ];
        assert_eq!(delete(9, &flow).unwrap(), expected);
        // The same attributes as the beginning of an entry: only the reply tuple is missing.
        let message = Messages::new(&expected).next().unwrap().unwrap();
        let missing = WireError::Missing { object: "flow", attribute: "reply tuple" };
        assert_eq!(read_flow(&message), Err(missing));
    }

    #[test]
    fn a_filter_says_which_fields_count() {
        let reply = TupleFilter {
            src: Some(IpAddr::from([10, 0, 0, 2])),
            proto: Some(17),
            src_port: Some(53),
            ..TupleFilter::default()
        };
        let filter = FlowFilter { reply, status: Some((32, 32)), ..FlowFilter::default() };
        let bytes = dump(1, AddressFamily::V4, &filter).unwrap();
        #[rustfmt::skip]
        let expected = [
            92, 0, 0, 0,  1, 1, 1, 3,  1, 0, 0, 0,  0, 0, 0, 0,       // IPCTNL_MSG_CT_GET, request+dump
            2, 0, 0, 0,
            36, 0, 2, 0x80,                                           // CTA_TUPLE_REPLY
            12, 0, 1, 0x80,  8, 0, 1, 0, 10, 0, 0, 2,
            20, 0, 2, 0x80,  5, 0, 1, 0, 17, 0, 0, 0,  6, 0, 2, 0, 0, 53, 0, 0,
            8, 0, 3, 0, 0, 0, 0, 32,                                  // CTA_STATUS
            8, 0, 26, 0, 0, 0, 0, 32,                                 // CTA_STATUS_MASK
            20, 0, 25, 0x80,  8, 0, 1, 0, 0, 0, 0, 0,  8, 0, 2, 0, 0x19, 0, 0, 0, // CTA_FILTER: address, protocol, port
        ];
        assert_eq!(bytes, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(payload in proptest::collection::vec(any::<u8>(), 0..120)) {
            let message = Message { kind: 0x100, flags: 0, seq: 0, payload: &payload };
            let _ = (read_flow(&message), read_table_use(&message));
        }
    }
}
