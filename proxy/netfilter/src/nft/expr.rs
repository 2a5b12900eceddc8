//! Expressions: the instructions that a rule consists of.

use super::field::{Field, Item, Object, attributes};
use super::numbers::{
    BitwiseOp, ByteorderOp, CmpOp, CtKey, DynsetOp, FibFlags, FibResult, HashKind, LookupFlags,
    MetaKey, NatFlags, NatKind, NumgenKind, PayloadBase, RejectKind,
};
use super::value::{Data, Reg, Value};
use crate::wire::{Attribute, Attributes, WireError, Writer};

attributes! {
    /// Loads a property of the packet.
    Meta {
        /// Where to.
        dreg: Option<Reg> = 1,
        /// Which.
        key: MetaKey = 2,
        /// Register to set the property from, instead of loading it.
        sreg: Option<Reg> = 3,
    }
    /// Loads bytes of the packet.
    Payload {
        /// Where to.
        dreg: Reg = 1,
        /// Header that the offset counts from.
        base: PayloadBase = 2,
        /// Offset in bytes.
        offset: u32 = 3,
        /// Length in bytes.
        len: u32 = 4,
    }
    /// Leaves the rule unless the comparison holds.
    Cmp {
        /// Left side.
        sreg: Reg = 1,
        /// How.
        op: CmpOp = 2,
        /// Right side.
        data: Value = 3,
    }
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise {
        /// Where from.
        sreg: Reg = 1,
        /// Where to.
        dreg: Reg = 2,
        /// Length in bytes.
        len: u32 = 3,
        /// Bits that stay.
        mask: Value = 4,
        /// Bits that flip.
        xor: Value = 5,
        /// Operation; the one described here.
        op: BitwiseOp = 6,
    }
    /// Loads a constant, or decides.
    Immediate {
        /// Where to; the verdict register when there is none.
        dreg: Target = 1,
        /// What.
        data: Data = 2,
    }
    /// Looks a key up; leaves the rule when it is not there.
    Lookup {
        /// Name of the set or map.
        set: String = 1,
        /// First register of the key.
        sreg: Reg = 2,
        /// Where a map's data go.
        dreg: Option<Target> = 3,
        /// Which answer goes on.
        flags: LookupFlags = 5,
    }
    /// Rewrites an address and a port of the connection.
    Nat {
        /// Which.
        kind: NatKind = 1,
        /// Family of the address (`enum nfproto`).
        family: u32 = 2,
        /// Lowest address.
        addr_min: Option<Reg> = 3,
        /// Highest address; the lowest when there is none.
        addr_max: Option<Reg> = 4,
        /// Lowest port.
        proto_min: Option<Reg> = 5,
        /// Highest port; the lowest when there is none.
        proto_max: Option<Reg> = 6,
        /// How to choose.
        flags: NatFlags = 7,
    }
    /// Rewrites the source to the address of the outgoing interface.
    Masq {
        /// How to choose the port.
        flags: NatFlags = 1,
        /// Lowest port.
        proto_min: Option<Reg> = 2,
        /// Highest port.
        proto_max: Option<Reg> = 3,
    }
    /// Rewrites the destination to this machine.
    Redir {
        /// Lowest port.
        proto_min: Option<Reg> = 1,
        /// Highest port.
        proto_max: Option<Reg> = 2,
        /// How to choose.
        flags: NatFlags = 3,
    }
    /// Loads a property of the packet's connection.
    Ct {
        /// Where to.
        dreg: Option<Reg> = 1,
        /// Which.
        key: CtKey = 2,
        /// Of which direction: 0 original, 1 reply.
        direction: Option<u8> = 3,
        /// Register to set the property from, instead of loading it.
        sreg: Option<Reg> = 4,
    }
    /// Asks the routing table.
    Fib {
        /// Where to.
        dreg: Reg = 1,
        /// What to answer.
        result: FibResult = 2,
        /// What about.
        flags: FibFlags = 3,
    }
    /// Loads a number from `offset` to `offset + modulus - 1`, in host order.
    Numgen {
        /// Where to.
        dreg: Reg = 1,
        /// How many numbers.
        modulus: u32 = 2,
        /// How they follow each other.
        kind: NumgenKind = 3,
        /// The first.
        offset: u32 = 4,
    }
    /// Loads a hash from `offset` to `offset + modulus - 1`, in host order.
    Hash {
        /// First register to hash.
        sreg: Option<Reg> = 1,
        /// Where to.
        dreg: Reg = 2,
        /// Bytes to hash.
        len: Option<u32> = 3,
        /// How many numbers.
        modulus: u32 = 4,
        /// Start value; chosen by the kernel when there is none.
        seed: Option<u32> = 5,
        /// The first number.
        offset: Option<u32> = 6,
        /// What to hash.
        kind: HashKind = 7,
    }
    /// Lets a packet change a set.
    Dynset {
        /// Name of the set or map.
        set: String = 1,
        /// How.
        op: DynsetOp = 3,
        /// First register of the key.
        key: Reg = 4,
        /// First register of a map's data.
        data: Option<Reg> = 5,
        /// Milliseconds that the element lives.
        timeout_ms: Option<u64> = 6,
        /// Flags.
        flags: Option<u32> = 9,
    }
    /// Answers the sender with an error and forgets the packet.
    Reject {
        /// How.
        kind: RejectKind = 1,
        /// ICMP code.
        code: Option<u8> = 2,
    }
    /// Counts.
    Counter {
        /// Bytes so far.
        bytes: u64 = 1,
        /// Packets so far.
        packets: u64 = 2,
    }
    /// Copies the packet to whoever listens to a group, and goes on.
    Log {
        /// The group.
        group: u16 = 1,
    }
    /// Leaves the rule when packets come faster than the rate.
    Limit {
        /// Packets or bytes per unit.
        rate: u64 = 1,
        /// Seconds per unit.
        unit: u64 = 2,
        /// Packets or bytes above the rate.
        burst: u32 = 3,
        /// 0 packets, 1 bytes.
        kind: u32 = 4,
        /// 1 turns the question around.
        flags: u32 = 5,
    }
    /// Leaves the rule unless the register is within bounds.
    Range {
        /// Where from.
        sreg: Reg = 1,
        /// 0 within, 1 outside.
        op: u32 = 2,
        /// Lowest.
        from: Value = 3,
        /// Highest.
        to: Value = 4,
    }
    /// Changes the byte order.
    Byteorder {
        /// Where from.
        sreg: Reg = 1,
        /// Where to.
        dreg: Reg = 2,
        /// How.
        op: ByteorderOp = 3,
        /// Bytes in all.
        len: u32 = 4,
        /// Bytes of each number.
        size: u32 = 5,
    }
    /// Uses a named object.
    Objref {
        /// Its kind.
        kind: u32 = 1,
        /// Its name.
        name: String = 2,
    }
}

/// Where a result goes: a register, or the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Ends the rule with the verdict that was found.
    Verdict,
    /// Goes on with the rule.
    Reg(Reg),
}

impl Field for Target {
    fn put(&self, writer: &mut Writer, kind: u16) {
        match self {
            Self::Verdict => 0u32.put(writer, kind),
            Self::Reg(reg) => reg.put(writer, kind),
        }
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        match u32::take(attribute, what)? {
            0 => Ok(Self::Verdict),
            number => Reg::from_number(number).map(Self::Reg).ok_or(WireError::Value { what }),
        }
    }
}

/// Declares [`Expr`] with the names by which the kernel finds each expression.
macro_rules! expressions {
    ($($name:ident = $kernel_name:literal,)*) => {
        /// One instruction of a rule.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Expr {
            $(#[doc = concat!("`", $kernel_name, "`.")] $name($name),)*
            /// One that this module does not read, kept as it came.
            Other {
                /// Its name.
                name: String,
                /// Its attributes, undecoded.
                data: Vec<u8>,
            },
        }

        impl Expr {
            /// The kernel's name.
            pub fn name(&self) -> &str {
                match self {
                    $(Self::$name(_) => $kernel_name,)*
                    Self::Other { name, .. } => name,
                }
            }

            fn write_data(&self, writer: &mut Writer) {
                match self {
                    $(Self::$name(expr) => expr.put(writer, 2),)*
                    Self::Other { data, .. } => writer.attribute(2, data),
                }
            }

            fn read_data(name: &str, data: &[u8]) -> Result<Self, WireError> {
                match name {
                    $($kernel_name => $name::read(Attributes::new(data)).map(Self::$name),)*
                    _ => Ok(Self::Other { name: name.into(), data: data.to_vec() }),
                }
            }
        }

        $(impl From<$name> for Expr {
            fn from(expr: $name) -> Self {
                Self::$name(expr)
            }
        })*
    };
}

expressions! {
    Meta = "meta", Payload = "payload", Cmp = "cmp", Bitwise = "bitwise", Immediate = "immediate",
    Lookup = "lookup", Nat = "nat", Masq = "masq", Redir = "redir", Ct = "ct", Fib = "fib",
    Numgen = "numgen", Hash = "hash", Dynset = "dynset", Reject = "reject", Counter = "counter",
    Log = "log",
    Limit = "limit", Range = "range", Byteorder = "byteorder", Objref = "objref",
}

impl Field for Expr {
    fn put(&self, writer: &mut Writer, kind: u16) {
        writer.nest(kind, |w| {
            w.name(1, self.name());
            self.write_data(w);
        });
    }

    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        let (mut name, mut data) = (None, &[][..]);
        for inner in attribute.nested() {
            let inner = inner?;
            match inner.kind {
                1 => name = Some(inner.name(what)?),
                2 => data = inner.payload,
                _ => {}
            }
        }
        Self::read_data(
            name.ok_or(WireError::Missing { object: "expression", attribute: "name" })?,
            data,
        )
    }
}

impl Item for Expr {}

#[cfg(test)]
mod tests;
