//! Tables, chains, rules, sets and elements.

use super::expr::Expr;
use super::field::{Field, Item, attributes};
use super::numbers::{HookPoint, SetFlags, TableFlags};
use super::value::{Data, Value};
use crate::wire::{Attribute, WireError, Writer};

attributes! {
    /// An nf_tables table: a namespace of chains, sets and maps.
    Table {
        name: String = 1,
        /// Its flags; `None` when naming a table without changing it.
        flags: Option<TableFlags> = 2,
        /// Netlink port of the owner, as reported.
        owner: Option<u32> = 7,
    }
    /// A chain of rules; one with a hook receives packets.
    Chain {
        table: String = 1,
        name: String = 3,
        /// Hook of a base chain; `None` for a regular chain.
        hook: Option<Hook> = 4,
        /// Policy of a base chain (`NF_ACCEPT` is 1).
        policy: Option<u32> = 5,
        /// `filter`, `nat` or `route`; base chains only.
        kind: Option<String> = 7,
    }
    /// Hook and priority of a base chain.
    Hook {
        /// The hook.
        point: HookPoint = 1,
        /// Priority: smaller ones first.
        priority: i32 = 2,
    }
    /// A rule: expressions that are evaluated in order.
    Rule {
        table: String = 1,
        chain: String = 2,
        /// The kernel's handle, as reported.
        handle: Option<u64> = 3,
        /// Its expressions.
        exprs: Vec<Expr> = 4,
        /// Comment, for `nft list`.
        userdata: Vec<u8> = 7,
    }
    /// A set, or a map when its flags say so.
    Set {
        table: String = 1,
        name: String = 2,
        flags: SetFlags = 3,
        /// Type of the key, for `nft list`.
        key_type: Option<u32> = 4,
        /// Length of the key in bytes.
        key_len: u32 = 5,
        /// Type of a map's data; `NFT_DATA_VERDICT` for verdicts.
        data_type: Option<u32> = 6,
        /// Length of a map's data in bytes.
        data_len: Option<u32> = 7,
        /// Maximum of elements.
        size: SetSize = 9,
        /// Id of the set within its batch, required to create it.
        id: Option<u32> = 10,
        /// Default timeout of elements, in milliseconds.
        timeout_ms: Option<u64> = 11,
        /// Interval of garbage collection, in milliseconds.
        gc_interval_ms: Option<u32> = 12,
        /// Byte orders, for `nft list`.
        userdata: Vec<u8> = 13,
        /// Expression of each element, such as a counter.
        expr: Option<Expr> = 17,
    }
    /// One element of a set.
    Element {
        key: Value = 1,
        /// Data of a map.
        data: Option<Data> = 2,
        /// Timeout in milliseconds.
        timeout_ms: Option<u64> = 4,
        /// Remaining time in milliseconds, as reported.
        expiration_ms: Option<u64> = 5,
        /// Expression evaluated when it matches, such as a counter.
        expr: Option<Box<Expr>> = 7,
    }
    /// Elements of one set.
    Elements {
        /// The table the set is in.
        table: String = 1,
        set: String = 2,
        /// The elements; when deleting, an empty list means all.
        elements: Vec<Element> = 3,
    }
    /// The generation of the ruleset, which increases with every transaction in the network namespace.
    Generation {
        /// The number.
        id: u32 = 1,
        /// PID of the last committer.
        pid: Option<u32> = 2,
        /// Its name.
        process: Option<String> = 3,
    }
}

impl Item for Element {}

/// Maximum of elements. A set with a size is a fixed hash, one without grows.
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
    /// Names a table without changing it.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), flags: None, owner: None }
    }
}

impl Chain {
    /// A regular chain.
    pub fn regular(table: &str, name: &str) -> Self {
        Self { table: table.into(), name: name.into(), hook: None, policy: None, kind: None }
    }

    /// A base chain of type nat.
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
    /// An element of a set.
    pub fn member(key: Value) -> Self {
        Self { key, data: None, timeout_ms: None, expiration_ms: None, expr: None }
    }

    /// An element of a map.
    pub fn entry(key: Value, data: Data) -> Self {
        Self { data: Some(data), ..Self::member(key) }
    }
}
