//! Phrases that our rules are made of: loading fields of the packet and of its connection, comparing, deciding.

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

/// Direction of a connection's tuple as its first packet was sent.
const ORIGINAL: u8 = 0;

/// Where the hash of consistent choices starts; the same on every node of every cluster.
const HASH_SEED: u32 = 0x6f72_6368;

/// Type of the family's addresses.
pub fn address_type(family: Family) -> Type {
    match family {
        Family::Ip6 => Type::Ipv6,
        Family::Ip | Family::Inet => Type::Ipv4,
    }
}

/// Registers that an address takes.
pub fn address_words(family: Family) -> u8 {
    match family {
        Family::Ip6 => 4,
        Family::Ip | Family::Inet => 1,
    }
}

/// One end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where it comes from.
    Source,
    /// Where it goes.
    Destination,
}

/// Loads an address of the packet.
pub fn address(family: Family, end: End, dreg: Reg) -> Expr {
    let len = u32::from(address_words(family)) * 4;
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

/// Loads the destination port; TCP, UDP and SCTP have it in the same place.
pub fn port(dreg: Reg) -> Expr {
    Payload { dreg, base: PayloadBase::TRANSPORT, offset: 2, len: 2 }.into()
}

/// Loads the source port.
pub fn source_port(dreg: Reg) -> Expr {
    Payload { dreg, base: PayloadBase::TRANSPORT, offset: 0, len: 2 }.into()
}

/// Loads constant bytes.
pub fn constant(dreg: Reg, bytes: &[u8]) -> Expr {
    Immediate { dreg: Target::Reg(dreg), data: Data::Value(Value::new(bytes)) }.into()
}

/// Loads the address that the connection was opened to.
pub fn original_address(family: Family, dreg: Reg) -> Expr {
    let key = if family == Family::Ip6 { CtKey::DST_IP6 } else { CtKey::DST_IP };
    Ct { dreg: Some(dreg), key, direction: Some(ORIGINAL), sreg: None }.into()
}

/// Loads the port that the connection was opened to.
pub fn original_port(dreg: Reg) -> Expr {
    Ct { dreg: Some(dreg), key: CtKey::PROTO_DST, direction: Some(ORIGINAL), sreg: None }.into()
}

/// Goes on when the connection's destination was rewritten.
pub fn is_dnat(scratch: Reg) -> Vec<Expr> {
    status_bit(scratch, CmpOp::NEQ)
}

/// Goes on when the connection's destination was not rewritten.
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

/// Goes on when an end of the packet is this machine, or when it is not.
pub fn is_local(end: End, op: CmpOp, scratch: Reg) -> Vec<Expr> {
    let flags = if end == End::Source { FibFlags::SADDR } else { FibFlags::DADDR };
    vec![
        Fib { dreg: scratch, result: FibResult::ADDRTYPE, flags }.into(),
        Cmp { sreg: scratch, op, data: Value::from(ADDRTYPE_LOCAL.to_ne_bytes()) }.into(),
    ]
}

/// Goes on when an end of the packet is in the block, or when it is not.
pub fn in_block(family: Family, end: End, op: CmpOp, block: &Cidr, scratch: Reg) -> Vec<Expr> {
    vec![
        address(family, end, scratch),
        mask(scratch, address_value(&block.mask())),
        Cmp { sreg: scratch, op, data: address_value(&block.first()) }.into(),
    ]
}

/// Goes on when the name of the interface that the packet came in by begins with these bytes, or when it does not. Of
/// 16 bytes, zeros at the end included, the whole name is compared. What this machine sends came in by none. After
/// routing the name is known from Linux 5.7 on.
pub fn by_interface(op: CmpOp, name: &[u8], scratch: Reg) -> Vec<Expr> {
    vec![
        Meta { dreg: Some(scratch), key: MetaKey::IIFNAME, sreg: None }.into(),
        Cmp { sreg: scratch, op, data: Value::new(name) }.into(),
    ]
}

/// Keeps the bits of a register that `mask` has.
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

/// Loads the word's value in the map at the key that starts at `sreg`; leaves the rule where there is none.
pub fn find(map: Map, sreg: Reg, dreg: Reg) -> Expr {
    lookup(map, sreg, Some(Target::Reg(dreg)))
}

/// Goes on when the key that starts at `sreg` is in the set.
pub fn is_in(map: Map, sreg: Reg) -> Expr {
    lookup(map, sreg, None)
}

/// Does what the class map says of the word in `sreg`.
pub fn decide_class(sreg: Reg) -> Expr {
    lookup(Map::Classes, sreg, Some(Target::Verdict))
}

/// Goes on when the key that starts at `sreg` is in the set of that name.
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

/// Chooses one of `count` slots from `first` on by the client's address and port, which it loads from `scratch` on.
pub fn hash(family: Family, count: u32, first: u32, scratch: Reg, dreg: Reg) -> Vec<Expr> {
    let words = address_words(family);
    let hash = Hash {
        sreg: Some(scratch),
        dreg,
        len: Some(u32::from(words + 1) * 4),
        modulus: count,
        seed: Some(HASH_SEED),
        // Given as the kernel reports it: none when it is zero.
        offset: Some(first).filter(|first| *first != 0),
        kind: HashKind::JENKINS,
    };
    vec![address(family, End::Source, scratch), source_port(scratch.plus(words)), hash.into()]
}

/// Remembers for so many seconds what starts at `data` under the key that starts at `key`; leaves the rule where
/// the map is full.
pub fn remember(map: Map, key: Reg, data: Reg, seconds: u32) -> Expr {
    let timeout_ms = Some(u64::from(seconds) * 1000);
    let (set, op) = (map.name().to_owned(), DynsetOp::UPDATE);
    Dynset { set, op, key, data: Some(data), timeout_ms, flags: Some(0) }.into()
}

/// Forgets what is remembered under the key that starts at `key`, if anything is. The kernel asks for data, any.
pub fn forget(map: Map, key: Reg, any: Reg) -> Expr {
    let (set, op) = (map.name().to_owned(), DynsetOp::DELETE);
    // As the kernel reports it.
    let timeout_ms = Some(0);
    Dynset { set, op, key, data: Some(any), timeout_ms, flags: Some(0) }.into()
}

/// Sends the connection to the address and port that start at `sreg`.
pub fn dnat(family: Family, sreg: Reg) -> Expr {
    let port = sreg.plus(address_words(family));
    Nat {
        kind: NatKind::DNAT,
        family: u32::from(family.number()),
        addr_min: Some(sreg),
        addr_max: Some(sreg),
        proto_min: Some(port),
        proto_max: Some(port),
        // Given as the kernel reports them, so that what is read back is what was written.
        flags: NatFlags(NatFlags::MAP_IPS.0 | NatFlags::PROTO_SPECIFIED.0),
    }
    .into()
}

/// Gives the connection our address, and a random port so that two connections seldom want the same.
pub fn masquerade() -> Expr {
    Masq { flags: NatFlags::FULLY_RANDOM, proto_min: None, proto_max: None }.into()
}

/// Decides.
pub fn decide(verdict: Verdict) -> Expr {
    Immediate { dreg: Target::Verdict, data: Data::Verdict(verdict) }.into()
}

/// Resets the connection.
pub fn reset() -> Expr {
    Reject { kind: RejectKind::TCP_RESET, code: None }.into()
}

/// Answers that the port is closed.
pub fn port_unreachable(family: Family) -> Expr {
    let code = match family {
        Family::Ip6 => ICMP6_PORT_UNREACHABLE,
        Family::Ip | Family::Inet => ICMP_PORT_UNREACHABLE,
    };
    Reject { kind: RejectKind::ICMP, code: Some(code) }.into()
}
