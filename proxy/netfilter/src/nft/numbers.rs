//! The kernel's constants (`linux/netfilter/nf_tables.h`).
//!
//! Unknown values of newer kernels are kept.

/// Declares a type for a number, with named values.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*
        }
    )*};
}

numbers! {
    /// What `meta` reads.
    MetaKey {
        /// The packet's mark.
        MARK = 3,
        /// Name of the incoming interface.
        IIFNAME = 6,
        /// Name of the outgoing interface.
        OIFNAME = 7,
        /// Network protocol.
        NFPROTO = 15,
        /// Transport protocol.
        L4PROTO = 16,
    }
    /// Where `payload` counts its offset from.
    PayloadBase {
        /// Start of the IP header.
        NETWORK = 1,
        /// Start of the TCP, UDP or SCTP header.
        TRANSPORT = 2,
    }
    /// How `cmp` compares.
    CmpOp {
        /// Equal.
        EQ = 0,
        /// Not equal.
        NEQ = 1,
        LT = 2,
        /// Less or equal.
        LTE = 3,
        GT = 4,
        /// Greater or equal.
        GTE = 5,
    }
    /// Which address `nat` rewrites.
    NatKind {
        /// The source.
        SNAT = 0,
        /// The destination.
        DNAT = 1,
    }
    /// How an address or port is selected from a range (`linux/netfilter/nf_nat.h`).
    NatFlags {
        /// An address is given; the kernel sets this itself.
        MAP_IPS = 1,
        /// A port is given; the kernel sets this itself.
        PROTO_SPECIFIED = 2,
        /// Select a random port.
        FULLY_RANDOM = 16,
    }
    /// What `ct` reads.
    CtKey {
        /// State of the connection.
        STATE = 0,
        /// Direction of the packet: 0 original, 1 reply.
        DIRECTION = 1,
        /// Status bits.
        STATUS = 2,
        /// Transport protocol of the tuple.
        PROTOCOL = 10,
        /// Source port of the tuple.
        PROTO_SRC = 11,
        /// Destination port of the tuple.
        PROTO_DST = 12,
        /// IPv4 source of the tuple.
        SRC_IP = 19,
        /// IPv4 destination of the tuple.
        DST_IP = 20,
        /// IPv6 source of the tuple.
        SRC_IP6 = 21,
        /// IPv6 destination of the tuple.
        DST_IP6 = 22,
    }
    /// What a `fib` expression loads (`NFTA_FIB_RESULT`).
    FibResult {
        /// Type of the address.
        ADDRTYPE = 3,
    }
    /// Input of `fib`.
    FibFlags {
        /// The source address.
        SADDR = 1,
        /// The destination address.
        DADDR = 2,
    }
    /// How `numgen` counts.
    NumgenKind {
        /// Round robin.
        INCREMENTAL = 0,
        RANDOM = 1,
    }
    /// What `hash` hashes.
    HashKind {
        /// Registers, by Jenkins' hash.
        JENKINS = 0,
        /// The packet's flow, the same in both directions.
        SYMMETRIC = 1,
    }
    /// What `dynset` does with the element.
    DynsetOp {
        ADD = 0,
        /// Add it or restart its timeout.
        UPDATE = 1,
        DELETE = 2,
    }
    /// How `reject` rejects.
    RejectKind {
        /// An ICMP error.
        ICMP = 0,
        TCP_RESET = 1,
    }
    /// Which result of `lookup` continues.
    LookupFlags {
        /// The key exists.
        PRESENT = 0,
        /// The key does not exist.
        ABSENT = 1,
    }
    /// What `bitwise` does.
    BitwiseOp {
        /// AND, then XOR.
        MASK_XOR = 0,
    }
    /// What `byteorder` does.
    ByteorderOp {
        /// From network order.
        NTOH = 0,
        /// To network order.
        HTON = 1,
    }
    /// `NFTA_TABLE_FLAGS`.
    TableFlags {
        NONE = 0,
        /// Only the socket that created the table may change it (kernel 5.12).
        OWNER = 2,
        /// The table outlives its owner, and another socket may become its owner (kernel 6.9).
        PERSIST = 4,
    }
    /// `NFTA_SET_FLAGS`.
    SetFlags {
        /// Its elements map to data.
        MAP = 8,
        /// Its elements may time out.
        TIMEOUT = 16,
        /// Packets may add elements.
        EVAL = 32,
        /// Its keys have several fields.
        CONCAT = 128,
    }
    /// Hook of a base chain (`enum nf_inet_hooks`).
    HookPoint {
        /// Before routing.
        PREROUTING = 0,
        /// To local processes.
        INPUT = 1,
        FORWARD = 2,
        /// From local processes.
        OUTPUT = 3,
        /// After routing.
        POSTROUTING = 4,
    }
}

impl std::ops::BitOr for TableFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl std::ops::BitOr for SetFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl SetFlags {
    /// Whether all bits of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// `IPS_DST_NAT`: the connection's destination was rewritten.
pub const CT_STATUS_DNAT: u32 = 1 << 5;
/// `RTN_LOCAL`: an address of this node.
pub const ADDRTYPE_LOCAL: u32 = 2;
/// ICMP code: destination port unreachable.
pub const ICMP_PORT_UNREACHABLE: u8 = 3;
/// ICMPv6 code: destination port unreachable.
pub const ICMP6_PORT_UNREACHABLE: u8 = 4;
