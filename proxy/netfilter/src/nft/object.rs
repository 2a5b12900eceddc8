//! Tables, chains, rules, sets and elements as they travel.

use super::expr::Expr;
use super::field::{Field, Item, attributes};
use super::numbers::{HookPoint, SetFlags, TableFlags};
use super::value::{Data, Value};
use crate::wire::{Attribute, WireError, Writer};

attributes! {
    /// A table.
    Table {
        /// Its name.
        name: String = 1,
        /// Its flags; none when naming a table or when asking for no change.
        flags: Option<TableFlags> = 2,
        /// Netlink port of the socket that owns it, as reported.
        owner: Option<u32> = 7,
    }
    /// A chain.
    Chain {
        /// The table it is in.
        table: String = 1,
        /// Its name.
        name: String = 3,
        /// Where packets enter it; none for a chain that others jump to.
        hook: Option<Hook> = 4,
        /// What becomes of packets at its end (`NF_ACCEPT` is 1); base chains only.
        policy: Option<u32> = 5,
        /// `filter`, `nat` or `route`; base chains only.
        kind: Option<String> = 7,
    }
    /// Where a base chain sits.
    Hook {
        /// Point in the packet's way.
        point: HookPoint = 1,
        /// Order among the chains of that point: small first.
        priority: i32 = 2,
    }
    /// A rule.
    Rule {
        /// The table it is in.
        table: String = 1,
        /// The chain it is in.
        chain: String = 2,
        /// The kernel's number for it, as reported.
        handle: Option<u64> = 3,
        /// What it does, in order.
        exprs: Vec<Expr> = 4,
        /// Comment and such, for listing tools.
        userdata: Vec<u8> = 7,
    }
    /// A set, or a map when its flags say so.
    Set {
        /// The table it is in.
        table: String = 1,
        /// Its name.
        name: String = 2,
        /// Its flags.
        flags: SetFlags = 3,
        /// Type of the key, for listing tools.
        key_type: Option<u32> = 4,
        /// Length of the key in bytes.
        key_len: u32 = 5,
        /// Type of a map's data; `NFT_DATA_VERDICT` for verdicts.
        data_type: Option<u32> = 6,
        /// Length of a map's data in bytes.
        data_len: Option<u32> = 7,
        /// How large it may become.
        size: SetSize = 9,
        /// Number of the set within its batch; needed to create one.
        id: Option<u32> = 10,
        /// Milliseconds that elements live unless they say otherwise.
        timeout_ms: Option<u64> = 11,
        /// Milliseconds between two searches for dead elements.
        gc_interval_ms: Option<u32> = 12,
        /// Byte orders and such, for listing tools.
        userdata: Vec<u8> = 13,
        /// Expression that each element gets, such as a counter.
        expr: Option<Expr> = 17,
    }
    /// One element of a set.
    Element {
        /// Its key.
        key: Value = 1,
        /// What the key maps to.
        data: Option<Data> = 2,
        /// Milliseconds that it lives.
        timeout_ms: Option<u64> = 4,
        /// Milliseconds that it still lives, as reported.
        expiration_ms: Option<u64> = 5,
        /// Expression run when it matches, such as a counter.
        expr: Option<Box<Expr>> = 7,
    }
    /// Elements of one set.
    Elements {
        /// The table the set is in.
        table: String = 1,
        /// The set.
        set: String = 2,
        /// The elements; none means all of them when deleting.
        elements: Vec<Element> = 3,
    }
    /// Identity of the ruleset: goes up with every transaction of the network namespace.
    Generation {
        /// The number.
        id: u32 = 1,
        /// Process that committed last.
        pid: Option<u32> = 2,
        /// Its name.
        process: Option<String> = 3,
    }
}

impl Item for Element {}

/// Elements at most. A set with a size is a hash of fixed width, one without grows as it is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetSize(pub Option<u32>);

/// `NFTA_SET_DESC_SIZE` inside the attribute.
impl Field for SetSize {
    fn put(&self, writer: &mut Writer, kind: u16) {
        if let Some(size) = self.0 {
            writer.nest(kind, |w| size.put(w, 1));
        }
    }
    fn take(attribute: Attribute<'_>, what: &'static str) -> Result<Self, WireError> {
        for inner in attribute.nested() {
            let inner = inner?;
            if inner.kind == 1 {
                return u32::take(inner, what).map(|size| Self(Some(size)));
            }
        }
        Ok(Self(None))
    }
    fn absent() -> Option<Self> {
        Some(Self(None))
    }
}

impl Table {
    /// A table named without asking for any change of it.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), flags: None, owner: None }
    }
}

impl Chain {
    /// A chain that others jump to.
    pub fn regular(table: &str, name: &str) -> Self {
        Self { table: table.into(), name: name.into(), hook: None, policy: None, kind: None }
    }

    /// A chain of type nat which packets enter at `point`.
    pub fn nat(table: &str, name: &str, point: HookPoint, priority: i32) -> Self {
        Self {
            hook: Some(Hook { point, priority }),
            policy: Some(1),
            kind: Some("nat".into()),
            ..Self::regular(table, name)
        }
    }
}

impl Element {
    /// A member of a set.
    pub fn member(key: Value) -> Self {
        Self { key, data: None, timeout_ms: None, expiration_ms: None, expr: None }
    }

    /// An entry of a map.
    pub fn entry(key: Value, data: Data) -> Self {
        Self { data: Some(data), ..Self::member(key) }
    }
}
