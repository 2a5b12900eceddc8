//! Expressions: the instructions of a rule.

use super::field::{Field, Item, Object, attributes};
use super::numbers::{
    BitwiseOp, ByteorderOp, CmpOp, CtKey, DynsetOp, FibFlags, FibResult, HashKind, LookupFlags,
    MetaKey, NatFlags, NatKind, NumgenKind, PayloadBase, RejectKind,
};
use super::value::{Data, Reg, Value};
use crate::wire::{Attribute, Attributes, WireError, Writer};

attributes! {
    /// Loads metadata of the packet.
    Meta {
        /// Destination.
        dreg: Option<Reg> = 1,
        /// Which metadata.
        key: MetaKey = 2,
        /// Register to set the metadata from, instead of loading it.
        sreg: Option<Reg> = 3,
    }
    /// Loads bytes of the packet.
    Payload {
        /// Destination.
        dreg: Reg = 1,
        /// Header that the offset counts from.
        base: PayloadBase = 2,
        /// Offset in bytes.
        offset: u32 = 3,
        /// Length in bytes.
        len: u32 = 4,
    }
    /// Ends the rule unless the comparison holds.
    Cmp {
        /// Left operand.
        sreg: Reg = 1,
        /// Operator.
        op: CmpOp = 2,
        /// Right operand.
        data: Value = 3,
    }
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise {
        /// Source.
        sreg: Reg = 1,
        /// Destination.
        dreg: Reg = 2,
        /// Length in bytes.
        len: u32 = 3,
        mask: Value = 4,
        /// XOR mask.
        xor: Value = 5,
        /// Operation; only the one described above.
        op: BitwiseOp = 6,
    }
    /// Loads a constant, or sets the verdict.
    Immediate {
        /// Destination; the verdict register for a verdict.
        dreg: Target = 1,
        /// Constant or verdict.
        data: Data = 2,
    }
    /// Looks up a key; ends the rule if it does not exist.
    Lookup {
        /// Name of the set or map.
        set: String = 1,
        /// First register of the key.
        sreg: Reg = 2,
        /// Destination of a map's data.
        dreg: Option<Target> = 3,
        /// Whether existence or absence continues.
        flags: LookupFlags = 5,
    }
    /// Rewrites address and port of the connection.
    Nat {
        /// Source or destination.
        kind: NatKind = 1,
        /// Family of the address (`enum nfproto`).
        family: u32 = 2,
        /// Lowest address.
        addr_min: Option<Reg> = 3,
        /// Highest address; equals the lowest if not set.
        addr_max: Option<Reg> = 4,
        /// Lowest port.
        proto_min: Option<Reg> = 5,
        /// Highest port; equals the lowest if not set.
        proto_max: Option<Reg> = 6,
        /// How to select from the ranges.
        flags: NatFlags = 7,
    }
    /// Rewrites the source to the address of the outgoing interface.
    Masq {
        /// How to select the port.
        flags: NatFlags = 1,
        /// Lowest port.
        proto_min: Option<Reg> = 2,
        /// Highest port.
        proto_max: Option<Reg> = 3,
    }
    /// Rewrites the destination to this node.
    Redir {
        /// Lowest port.
        proto_min: Option<Reg> = 1,
        /// Highest port.
        proto_max: Option<Reg> = 2,
        /// How to select.
        flags: NatFlags = 3,
    }
    /// Loads a field of the conntrack entry.
    Ct {
        /// Destination.
        dreg: Option<Reg> = 1,
        /// Which field.
        key: CtKey = 2,
        /// Direction: 0 original, 1 reply.
        direction: Option<u8> = 3,
        /// Register to set the field from, instead of loading it.
        sreg: Option<Reg> = 4,
    }
    /// Looks up the routing table.
    Fib {
        /// Destination.
        dreg: Reg = 1,
        result: FibResult = 2,
        /// Input.
        flags: FibFlags = 3,
    }
    /// Loads a number from `offset` to `offset + modulus - 1`, in host order.
    Numgen {
        /// Destination.
        dreg: Reg = 1,
        /// Number of values.
        modulus: u32 = 2,
        /// Random or round robin.
        kind: NumgenKind = 3,
        /// First value.
        offset: u32 = 4,
    }
    /// Loads a hash from `offset` to `offset + modulus - 1`, in host order.
    Hash {
        /// First register to hash.
        sreg: Option<Reg> = 1,
        /// Destination.
        dreg: Reg = 2,
        /// Bytes to hash.
        len: Option<u32> = 3,
        /// Number of values.
        modulus: u32 = 4,
        /// Seed; chosen by the kernel if not set.
        seed: Option<u32> = 5,
        /// First value.
        offset: Option<u32> = 6,
        /// Input of the hash.
        kind: HashKind = 7,
    }
    /// Updates a set from the packet path.
    Dynset {
        /// Name of the set or map.
        set: String = 1,
        /// Operation.
        op: DynsetOp = 3,
        /// First register of the key.
        key: Reg = 4,
        /// First register of a map's data.
        data: Option<Reg> = 5,
        /// Timeout of the element in milliseconds.
        timeout_ms: Option<u64> = 6,
        flags: Option<u32> = 9,
    }
    /// Rejects the packet.
    Reject {
        /// ICMP error or TCP reset.
        kind: RejectKind = 1,
        /// ICMP code.
        code: Option<u8> = 2,
    }
    /// Counts packets and bytes.
    Counter {
        bytes: u64 = 1,
        packets: u64 = 2,
    }
    /// Logs the packet to an NFLOG group; the rule continues.
    Log {
        group: u16 = 1,
    }
    /// Ends the rule if packets exceed the rate.
    Limit {
        /// Packets or bytes per unit.
        rate: u64 = 1,
        /// Seconds per unit.
        unit: u64 = 2,
        /// Burst in packets or bytes.
        burst: u32 = 3,
        /// 0 packets, 1 bytes.
        kind: u32 = 4,
        /// 1 inverts the condition.
        flags: u32 = 5,
    }
    /// Ends the rule unless the register is in the range.
    Range {
        /// Register.
        sreg: Reg = 1,
        /// 0 inside, 1 outside.
        op: u32 = 2,
        /// Lowest.
        from: Value = 3,
        /// Highest.
        to: Value = 4,
    }
    /// Changes the byte order.
    Byteorder {
        /// Source.
        sreg: Reg = 1,
        /// Destination.
        dreg: Reg = 2,
        /// Direction.
        op: ByteorderOp = 3,
        /// Length in bytes.
        len: u32 = 4,
        /// Size of each number.
        size: u32 = 5,
    }
    /// Uses a named object.
    Objref {
        kind: u32 = 1,
        name: String = 2,
    }
}

/// Destination of a result: a register, or the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The verdict ends the rule.
    Verdict,
    /// The rule continues.
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

/// Declares [`Expr`] with the kernel's names of the expressions.
macro_rules! expressions {
    ($($name:ident = $kernel_name:literal,)*) => {
        /// One instruction of a rule.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Expr {
            $(#[doc = concat!("`", $kernel_name, "`.")] $name($name),)*
            /// An unknown expression, kept undecoded.
            Other {
                name: String,
                /// Its attributes.
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
