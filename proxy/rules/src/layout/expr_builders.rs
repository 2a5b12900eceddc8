//! Builders of expressions: load fields of the packet and of its conntrack entry, compare, look up, decide.

use proxy_netfilter::nft::expr::{
    Bitwise, Cmp, Ct, Dynset, Expr, Fib, Hash, Immediate, Lookup, Masq, Meta, Nat, Numgen, Payload,
    Reject, Target,
};
use proxy_netfilter::nft::numbers::{
    ADDRTYPE_LOCAL, BitwiseOp, CT_STATUS_DNAT, CmpOp, CtKey, DynsetOp, FibFlags, FibResult,
    HashKind, ICMP_PORT_UNREACHABLE, ICMP6_PORT_UNREACHABLE, LookupFlags, MetaKey, NatFlags,
    NatKind, NumgenKind, PayloadBase, RejectKind,
};
use proxy_netfilter::nft::{Data, Family, Reg, Type, Value, Verdict};

use super::{Map, address_value};
use crate::model::Cidr;

/// `IP_CT_DIR_ORIGINAL`.
const ORIGINAL: u8 = 0;

/// Seed of consistent hashing; the same on every node of every cluster.
const HASH_SEED: u32 = 0x6f72_6368;

/// Type of the family's addresses.
pub fn address_type(family: Family) -> Type {
    match family {
        Family::Ip6 => Type::Ipv6,
        Family::Ip | Family::Inet => Type::Ipv4,
    }
}

/// Number of registers of an address.
pub fn address_words(family: Family) -> u8 {
    match family {
        Family::Ip6 => 4,
        Family::Ip | Family::Inet => 1,
    }
}

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// Loads an address of the packet.
pub fn address(family: Family, end: End, dreg: Reg) -> Expr {
    let len = u32::from(address_words(family)).saturating_mul(4);
    let offset = match (family, end) {
        (Family::Ip6, End::Source) => 8,
        (Family::Ip6, End::Destination) => 24,
        (_, End::Source) => 12,
        (_, End::Destination) => 16,
    };
    Payload { dreg, base: PayloadBase::NETWORK, offset, len }.into()
}

/// Loads the transport protocol.
pub fn protocol(dreg: Reg) -> Expr {
    Meta { dreg: Some(dreg), key: MetaKey::L4PROTO, sreg: None }.into()
}

/// Loads the destination port, which is at the same offset for TCP, UDP and SCTP.
pub fn port(dreg: Reg) -> Expr {
    Payload { dreg, base: PayloadBase::TRANSPORT, offset: 2, len: 2 }.into()
}

/// Loads the source port.
pub fn source_port(dreg: Reg) -> Expr {
    Payload { dreg, base: PayloadBase::TRANSPORT, offset: 0, len: 2 }.into()
}

/// Loads a constant.
pub fn constant(dreg: Reg, bytes: &[u8]) -> Expr {
    Immediate { dreg: Target::Reg(dreg), data: Data::Value(Value::new(bytes)) }.into()
}

/// Loads the original destination address of the connection.
pub fn original_address(family: Family, dreg: Reg) -> Expr {
    let key = if family == Family::Ip6 { CtKey::DST_IP6 } else { CtKey::DST_IP };
    Ct { dreg: Some(dreg), key, direction: Some(ORIGINAL), sreg: None }.into()
}

/// Loads the original destination port of the connection.
pub fn original_port(dreg: Reg) -> Expr {
    Ct { dreg: Some(dreg), key: CtKey::PROTO_DST, direction: Some(ORIGINAL), sreg: None }.into()
}

/// Continues if the connection has DNAT.
pub fn is_dnat(scratch: Reg) -> Vec<Expr> {
    status_bit(scratch, CmpOp::NEQ)
}

/// Continues if the connection has no DNAT.
pub fn is_not_dnat(scratch: Reg) -> Vec<Expr> {
    status_bit(scratch, CmpOp::EQ)
}

fn status_bit(scratch: Reg, against_zero: CmpOp) -> Vec<Expr> {
    let bit = Value::from(CT_STATUS_DNAT.to_ne_bytes());
    vec![
        Ct { dreg: Some(scratch), key: CtKey::STATUS, direction: None, sreg: None }.into(),
        mask(scratch, bit),
        Cmp { sreg: scratch, op: against_zero, data: Value::from([0; 4]) }.into(),
    ]
}

/// Continues if an address of the packet is local, or if it is not.
pub fn is_local(end: End, op: CmpOp, scratch: Reg) -> Vec<Expr> {
    let flags = if end == End::Source { FibFlags::SADDR } else { FibFlags::DADDR };
    vec![
        Fib { dreg: scratch, result: FibResult::ADDRTYPE, flags }.into(),
        Cmp { sreg: scratch, op, data: Value::from(ADDRTYPE_LOCAL.to_ne_bytes()) }.into(),
    ]
}

/// Continues if an address of the packet is in the CIDR, or if it is not.
pub fn in_block(family: Family, end: End, op: CmpOp, block: &Cidr, scratch: Reg) -> Vec<Expr> {
    vec![
        address(family, end, scratch),
        mask(scratch, address_value(&block.mask())),
        Cmp { sreg: scratch, op, data: address_value(&block.first()) }.into(),
    ]
}

/// Continues if the name of the incoming interface begins with these bytes, or if it does not. 16 bytes, with zeros at
/// the end, compare the whole name. Locally generated packets have none. In postrouting the name is available since
/// Linux 5.7.
pub fn by_interface(op: CmpOp, name: &[u8], scratch: Reg) -> Vec<Expr> {
    vec![
        Meta { dreg: Some(scratch), key: MetaKey::IIFNAME, sreg: None }.into(),
        Cmp { sreg: scratch, op, data: Value::new(name) }.into(),
    ]
}

/// Bitwise AND of a register and a constant.
pub fn mask(reg: Reg, mask: Value) -> Expr {
    let zero = Value::new(&vec![0; mask.bytes().len()]);
    let len = u32::try_from(mask.bytes().len()).unwrap_or_default();
    Bitwise { sreg: reg, dreg: reg, len, mask, xor: zero, op: BitwiseOp::MASK_XOR }.into()
}

/// Compares the protocol in a register.
pub fn is_protocol(sreg: Reg, number: u8) -> Expr {
    compare_byte(sreg, CmpOp::EQ, number)
}

/// Compares one byte in a register.
pub fn compare_byte(sreg: Reg, op: CmpOp, byte: u8) -> Expr {
    Cmp { sreg, op, data: Value::from([byte]) }.into()
}

/// Looks up the data of the key at `sreg`; ends the rule if there is none.
pub fn find(map: Map, sreg: Reg, dreg: Reg) -> Expr {
    lookup(map, sreg, Some(Target::Reg(dreg)))
}

/// Continues if the key at `sreg` is in the set.
pub fn is_in(map: Map, sreg: Reg) -> Expr {
    lookup(map, sreg, None)
}

/// Applies the class map's verdict for the word at `sreg`.
pub fn decide_class(sreg: Reg) -> Expr {
    lookup(Map::Classes, sreg, Some(Target::Verdict))
}

/// Continues if the key at `sreg` is in the set of that name.
pub fn is_in_set(set: &str, sreg: Reg) -> Expr {
    Lookup { set: set.to_owned(), sreg, dreg: None, flags: LookupFlags::PRESENT }.into()
}

fn lookup(map: Map, sreg: Reg, dreg: Option<Target>) -> Expr {
    Lookup { set: map.name().to_owned(), sreg, dreg, flags: LookupFlags::PRESENT }.into()
}

/// Draws one of `count` slots from `first` on.
pub fn draw(count: u32, first: u32, dreg: Reg) -> Expr {
    Numgen { dreg, modulus: count, kind: NumgenKind::RANDOM, offset: first }.into()
}

/// Hashes the client's address and port, loaded from `scratch` on, to one of `count` slots from `first` on.
pub fn hash(family: Family, count: u32, first: u32, scratch: Reg, dreg: Reg) -> Vec<Expr> {
    let words = address_words(family);
    let hash = Hash {
        sreg: Some(scratch),
        dreg,
        len: Some(u32::from(words).saturating_add(1).saturating_mul(4)),
        modulus: count,
        seed: Some(HASH_SEED),
        // As the kernel reports it: without the attribute if it is zero.
        offset: Some(first).filter(|first| *first != 0),
        kind: HashKind::JENKINS,
    };
    vec![address(family, End::Source, scratch), source_port(scratch.plus(words)), hash.into()]
}

/// Stores the data at `data` with the key at `key` for this many seconds; ends the rule if the map is full.
pub fn remember(map: Map, key: Reg, data: Reg, seconds: u32) -> Expr {
    let timeout_ms = Some(u64::from(seconds).saturating_mul(1000));
    let (set, op) = (map.name().to_owned(), DynsetOp::UPDATE);
    Dynset { set, op, key, data: Some(data), timeout_ms, flags: Some(0) }.into()
}

/// Deletes the element with the key at `key`, if it exists. The kernel requires a data register, any.
pub fn forget(map: Map, key: Reg, any: Reg) -> Expr {
    let (set, op) = (map.name().to_owned(), DynsetOp::DELETE);
    // As the kernel reports it.
    let timeout_ms = Some(0);
    Dynset { set, op, key, data: Some(any), timeout_ms, flags: Some(0) }.into()
}

/// DNAT to the address and port at `sreg`.
pub fn dnat(family: Family, sreg: Reg) -> Expr {
    let port = sreg.plus(address_words(family));
    Nat {
        kind: NatKind::DNAT,
        family: u32::from(family.number()),
        addr_min: Some(sreg),
        addr_max: Some(sreg),
        proto_min: Some(port),
        proto_max: Some(port),
        // As the kernel reports them, so that what is read back equals what was written.
        flags: NatFlags(NatFlags::MAP_IPS.0 | NatFlags::PROTO_SPECIFIED.0),
    }
    .into()
}

/// Masquerades with a random port, so that connections seldom conflict.
pub fn masquerade() -> Expr {
    Masq { flags: NatFlags::FULLY_RANDOM, proto_min: None, proto_max: None }.into()
}

/// A verdict.
pub fn decide(verdict: Verdict) -> Expr {
    Immediate { dreg: Target::Verdict, data: Data::Verdict(verdict) }.into()
}

/// Rejects with a TCP reset.
pub fn reset() -> Expr {
    Reject { kind: RejectKind::TCP_RESET, code: None }.into()
}

/// Rejects with ICMP port unreachable.
pub fn port_unreachable(family: Family) -> Expr {
    let code = match family {
        Family::Ip6 => ICMP6_PORT_UNREACHABLE,
        Family::Ip | Family::Inet => ICMP_PORT_UNREACHABLE,
    };
    Reject { kind: RejectKind::ICMP, code: Some(code) }.into()
}
