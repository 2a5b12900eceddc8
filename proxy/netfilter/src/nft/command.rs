//! Commands of a batch.

use super::field::Object;
use super::object::{Chain, Elements, Rule, Set, Table};
use super::{Family, SUBSYSTEM};
use crate::wire::{Header, Message, WireError, Writer, flags};

/// Message numbers (`enum nf_tables_msg_types`).
pub(crate) mod message {
    pub const NEW_TABLE: u8 = 0;
    pub const GET_TABLE: u8 = 1;
    pub const DEL_TABLE: u8 = 2;
    pub const NEW_CHAIN: u8 = 3;
    pub const GET_CHAIN: u8 = 4;
    pub const DEL_CHAIN: u8 = 5;
    pub const NEW_RULE: u8 = 6;
    pub const GET_RULE: u8 = 7;
    pub const DEL_RULE: u8 = 8;
    pub const NEW_SET: u8 = 9;
    pub const GET_SET: u8 = 10;
    pub const DEL_SET: u8 = 11;
    pub const NEW_ELEMENTS: u8 = 12;
    pub const GET_ELEMENTS: u8 = 13;
    pub const DEL_ELEMENTS: u8 = 14;
    pub const NEW_GENERATION: u8 = 15;
    pub const GET_GENERATION: u8 = 16;
}

/// Whether an existing object is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// It stays.
    Keep,
    /// It fails the batch with `EEXIST`.
    Fail,
}

/// A change of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates a table.
    NewTable(Table, IfExists),
    /// Deletes a table with its contents.
    DelTable(Table),
    /// Creates a chain.
    NewChain(Chain, IfExists),
    /// Deletes a chain without references.
    DelChain(Chain),
    /// Appends a rule to its chain.
    NewRule(Rule),
    /// Deletes the rule with the handle, or all rules of the chain without one.
    DelRule(Rule),
    /// Creates a set.
    NewSet(Set, IfExists),
    /// Deletes a set that no rule uses.
    DelSet(Set),
    /// Adds elements; an existing one fails the batch unless it is equal and may stay.
    NewElements(Elements, IfExists),
    /// Deletes elements; a missing one fails the batch with `ENOENT`.
    DelElements(Elements),
}

impl Command {
    /// Message number and flags.
    fn envelope(&self) -> (u8, u16) {
        match self {
            Self::NewTable(_, existing) => (message::NEW_TABLE, create(*existing)),
            Self::DelTable(_) => (message::DEL_TABLE, 0),
            Self::NewChain(_, existing) => (message::NEW_CHAIN, create(*existing)),
            Self::DelChain(_) => (message::DEL_CHAIN, 0),
            Self::NewRule(_) => (message::NEW_RULE, flags::CREATE | flags::APPEND),
            Self::DelRule(_) => (message::DEL_RULE, 0),
            Self::NewSet(_, existing) => (message::NEW_SET, create(*existing)),
            Self::DelSet(_) => (message::DEL_SET, 0),
            Self::NewElements(_, existing) => (message::NEW_ELEMENTS, create(*existing)),
            Self::DelElements(_) => (message::DEL_ELEMENTS, 0),
        }
    }

    /// Appends the message.
    pub(crate) fn write(&self, writer: &mut Writer, family: Family, seq: u32, extra: u16) {
        let (number, own) = self.envelope();
        let header = Header {
            kind: kind(number),
            flags: flags::REQUEST | own | extra,
            seq,
            family: family.number(),
            resource: 0,
        };
        writer.message(header, |w| match self {
            Self::NewTable(table, _) | Self::DelTable(table) => table.write(w),
            Self::NewChain(chain, _) | Self::DelChain(chain) => chain.write(w),
            Self::NewRule(rule) | Self::DelRule(rule) => rule.write(w),
            Self::NewSet(set, _) | Self::DelSet(set) => set.write(w),
            Self::NewElements(elements, _) | Self::DelElements(elements) => elements.write(w),
        });
    }

    /// Decodes a message of a batch or of a dump.
    pub fn read(message: &Message<'_>) -> Result<(Family, Self), WireError> {
        let family = Family::from_number(message.family()?)
            .ok_or(WireError::Value { what: "address family" })?;
        let attributes = message.attributes()?;
        let [subsystem, number] = message.kind.to_be_bytes();
        if subsystem != SUBSYSTEM {
            return Err(WireError::Value { what: "nfnetlink subsystem" });
        }
        let existing =
            if message.flags & flags::EXCL == 0 { IfExists::Keep } else { IfExists::Fail };
        let command = match number {
            message::NEW_TABLE => Self::NewTable(Table::read(attributes)?, existing),
            message::DEL_TABLE => Self::DelTable(Table::read(attributes)?),
            message::NEW_CHAIN => Self::NewChain(Chain::read(attributes)?, existing),
            message::DEL_CHAIN => Self::DelChain(Chain::read(attributes)?),
            message::NEW_RULE => Self::NewRule(Rule::read(attributes)?),
            message::DEL_RULE => Self::DelRule(Rule::read(attributes)?),
            message::NEW_SET => Self::NewSet(Set::read(attributes)?, existing),
            message::DEL_SET => Self::DelSet(Set::read(attributes)?),
            message::NEW_ELEMENTS => Self::NewElements(Elements::read(attributes)?, existing),
            message::DEL_ELEMENTS => Self::DelElements(Elements::read(attributes)?),
            _ => return Err(WireError::Value { what: "nf_tables message" }),
        };
        Ok((family, command))
    }

    /// A description, for errors: `element of map svc in table orch`.
    pub fn describe(&self) -> String {
        match self {
            Self::NewTable(table, _) => format!("make table {}", table.name),
            Self::DelTable(table) => format!("delete table {}", table.name),
            Self::NewChain(chain, _) => format!("make chain {} {}", chain.table, chain.name),
            Self::DelChain(chain) => format!("delete chain {} {}", chain.table, chain.name),
            Self::NewRule(rule) => format!("append rule to chain {} {}", rule.table, rule.chain),
            Self::DelRule(rule) => format!("delete rule of chain {} {}", rule.table, rule.chain),
            Self::NewSet(set, _) => format!("make set {} {}", set.table, set.name),
            Self::DelSet(set) => format!("delete set {} {}", set.table, set.name),
            Self::NewElements(elements, _) => {
                format!("add to set {} {}", elements.table, elements.set)
            }
            Self::DelElements(elements) => {
                format!("delete from set {} {}", elements.table, elements.set)
            }
        }
    }
}

/// The message type.
pub(crate) fn kind(number: u8) -> u16 {
    u16::from_be_bytes([SUBSYSTEM, number])
}

fn create(existing: IfExists) -> u16 {
    match existing {
        IfExists::Keep => flags::CREATE,
        IfExists::Fail => flags::CREATE | flags::EXCL,
    }
}
