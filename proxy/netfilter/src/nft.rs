//! nf_tables as values: tables, chains, rules of expressions, sets, elements; and batches of commands on them.
//!
//! Every object is described once, as a list of fields with their attribute numbers ([`attributes!`]), from which
//! encoding and decoding are derived. Numbers are those of `linux/netfilter/nf_tables.h`.

pub mod value;

pub mod numbers;

mod field;

pub mod expr;

pub mod object;

pub mod datatype;

pub mod userdata;

pub mod command;

pub mod batch;

pub mod ruleset;

pub use batch::{Batch, EncodedBatch};
pub use command::Command;
pub use datatype::Type;
pub use expr::Expr;
pub use object::{Chain, Element, Hook, Rule, Set, SetSize, Table};
pub use ruleset::{Ruleset, TableId, TableRules};
pub use value::{Data, Reg, Value, Verdict};

/// Subsystem number of nf_tables.
pub const SUBSYSTEM: u8 = 10;

/// Address family of a table (`enum nfproto`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6 together.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
}

impl Family {
    /// The kernel's number.
    pub fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }

    /// The family with this number, if it is supported here.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Inet, Self::Ip, Self::Ip6].into_iter().find(|f| f.number() == number)
    }

    /// The name that `nft` prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }
}
