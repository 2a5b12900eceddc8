//! A transaction: commands between a begin and an end message, which the kernel applies as a whole or not at all.

use std::ops::Range;

use super::command::{self, Command, IfExists};
use super::field::{Field, Object};
use super::object::{Chain, Element, Elements, Generation, Rule, Set, Table};
use super::{Family, SUBSYSTEM, Value};
use crate::wire::{ATTRIBUTE_LEN_MAX, Header, Message, TooLong, WireError, Writer, flags};

/// `NFNL_MSG_BATCH_BEGIN`.
pub const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
pub const BATCH_END: u16 = 0x11;
/// `NFNL_BATCH_GENID`: the expected generation.
const GENERATION_ID: u16 = 1;
/// Length at which a list of elements continues in another message. The proxy's elements have at most some 150 bytes,
/// so such a list fits `nla_len`.
const ELEMENTS_LEN: usize = ATTRIBUTE_LEN_MAX - 2048;

/// Builds a transaction.
///
/// The sequence numbers are consecutive and start at the one given to [`Batch::new`], so an error leads to the command
/// that caused it.
#[derive(Debug)]
pub struct Batch {
    writer: Writer,
    first: u32,
    next: u32,
    last_message: usize,
    labels: Vec<(u32, String)>,
}

/// A finished batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBatch {
    /// One datagram.
    pub bytes: Vec<u8>,
    /// Sequence numbers of begin, commands and end.
    pub seqs: Range<u32>,
    /// Sequence number of the last command, which asks for an acknowledgement.
    pub last: u32,
    /// Descriptions of runs of messages, by the sequence number of the first.
    pub labels: Vec<(u32, String)>,
}

impl EncodedBatch {
    /// The description of the message with this sequence number.
    pub fn label(&self, seq: u32) -> &str {
        if seq == self.seqs.start {
            return "begin of the batch";
        }
        let after = self.labels.partition_point(|(first, _)| *first <= seq);
        after
            .checked_sub(1)
            .and_then(|at| self.labels.get(at))
            .map_or("end of the batch", |(_, label)| label)
    }
}

impl Batch {
    /// Begins with sequence number `first`; refused with `ERESTART` if the ruleset is not at `generation`, if one is
    /// given.
    pub fn new(first: u32, generation: Option<u32>) -> Self {
        let mut writer = Writer::with_capacity(4096);
        writer.message(boundary(BATCH_BEGIN, first), |w| generation.put(w, GENERATION_ID));
        Self { writer, first, next: first.wrapping_add(1), last_message: 0, labels: Vec::new() }
    }

    /// Length so far.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// Whether there are no commands.
    pub fn is_empty(&self) -> bool {
        self.next == self.first.wrapping_add(1)
    }

    /// Appends a command.
    pub fn push(&mut self, family: Family, command: &Command) {
        self.labels.push((self.next, command.describe()));
        self.append(|w, seq| command.write(w, family, seq, 0));
    }

    /// Appends commands.
    pub fn extend<'a>(&mut self, family: Family, commands: impl IntoIterator<Item = &'a Command>) {
        commands.into_iter().for_each(|command| self.push(family, command));
    }

    /// Adds elements to a set; fails with `EEXIST` if one exists with other data.
    pub fn add_elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let number = command::message::NEW_ELEMENTS;
        let put = |w: &mut Writer, element: Element| element.put(w, 1);
        self.elements((number, flags::CREATE), (family, table, set), elements, put);
    }

    /// The same for elements of key and data only.
    pub fn add_pairs<'a>(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        pairs: impl IntoIterator<Item = (&'a Value, Option<&'a Value>)>,
    ) {
        let number = command::message::NEW_ELEMENTS;
        let put = |w: &mut Writer, (key, data): (&Value, Option<&Value>)| {
            w.element(key.bytes(), data.map(Value::bytes));
        };
        self.elements((number, flags::CREATE), (family, table, set), pairs, put);
    }

    /// Deletes elements by key; fails with `ENOENT` if one does not exist.
    pub fn del_keys<'a>(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        keys: impl IntoIterator<Item = &'a Value>,
    ) {
        let number = command::message::DEL_ELEMENTS;
        let put = |w: &mut Writer, key: &Value| w.element(key.bytes(), None);
        self.elements((number, 0), (family, table, set), keys, put);
    }

    /// Reserves capacity.
    pub fn reserve(&mut self, additional: usize) {
        self.writer.reserve(additional);
    }

    /// Deletes elements; fails with `ENOENT` if one does not exist.
    pub fn del_elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        elements: impl IntoIterator<Item = Element>,
    ) {
        let put = |w: &mut Writer, element: Element| element.put(w, 1);
        self.elements((command::message::DEL_ELEMENTS, 0), (family, table, set), elements, put);
    }

    /// Finishes the batch. Requests an acknowledgement of the last command only, so success is one response.
    pub fn finish(mut self) -> Result<EncodedBatch, TooLong> {
        let end = self.next;
        self.writer.message(boundary(BATCH_END, end), |_| {});
        let mut bytes = self.writer.finish()?;
        // nlmsg_flags of the last command: kernels before 6.10 do not acknowledge the end message.
        if let Some(low) = bytes.get_mut(self.last_message.saturating_add(6)) {
            *low |= flags::ACK.to_ne_bytes()[0];
        }
        let last = end.wrapping_sub(1);
        Ok(EncodedBatch { bytes, seqs: self.first..end.wrapping_add(1), last, labels: self.labels })
    }

    fn elements<E>(
        &mut self,
        (number, own_flags): (u8, u16),
        (family, table, set): (Family, &str, &str),
        elements: impl IntoIterator<Item = E>,
        put: impl Fn(&mut Writer, E),
    ) {
        let mut elements = elements.into_iter().peekable();
        if elements.peek().is_none() {
            return;
        }
        let verb = if number == command::message::NEW_ELEMENTS { "add to" } else { "delete from" };
        self.labels.push((self.next, format!("{verb} set {table} {set}")));
        while elements.peek().is_some() {
            self.append(|w, seq| {
                let header = Header {
                    kind: command::kind(number),
                    flags: flags::REQUEST | own_flags,
                    seq,
                    family: family.number(),
                    resource: 0,
                };
                w.message(header, |w| {
                    w.name(1, table);
                    w.name(2, set);
                    w.nest(3, |w| {
                        let start = w.len();
                        while w.len().saturating_sub(start) < ELEMENTS_LEN {
                            let Some(element) = elements.next() else { break };
                            put(w, element);
                        }
                    });
                });
            });
        }
    }

    fn append(&mut self, write: impl FnOnce(&mut Writer, u32)) {
        self.last_message = self.writer.len();
        write(&mut self.writer, self.next);
        self.next = self.next.wrapping_add(1);
    }
}

/// A netlink request that reads a part of the ruleset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The generation of the ruleset.
    Generation,
    /// All tables of a family.
    Tables(Family),
    /// All chains of a family.
    Chains(Family),
    /// All rules of a table.
    Rules(Family, String),
    /// All sets of a table.
    Sets(Family, String),
    /// All elements of a set.
    Elements(Family, String, String),
}

impl Query {
    /// Whether the response is a dump, which ends with a done message.
    pub fn is_dump(&self) -> bool {
        !matches!(self, Self::Generation)
    }

    /// Encodes the request.
    pub fn encode(&self, seq: u32) -> Result<Vec<u8>, TooLong> {
        let (number, family) = match self {
            Self::Generation => (command::message::GET_GENERATION, 0),
            Self::Tables(family) => (command::message::GET_TABLE, family.number()),
            Self::Chains(family) => (command::message::GET_CHAIN, family.number()),
            Self::Rules(family, _) => (command::message::GET_RULE, family.number()),
            Self::Sets(family, _) => (command::message::GET_SET, family.number()),
            Self::Elements(family, ..) => (command::message::GET_ELEMENTS, family.number()),
        };
        let dump = if self.is_dump() { flags::DUMP } else { 0 };
        let header = Header {
            kind: command::kind(number),
            flags: flags::REQUEST | dump,
            seq,
            family,
            resource: 0,
        };
        let mut writer = Writer::default();
        writer.message(header, |w| match self {
            Self::Rules(_, table) | Self::Sets(_, table) => w.name(1, table),
            Self::Elements(_, table, set) => {
                w.name(1, table);
                w.name(2, set);
            }
            Self::Generation | Self::Tables(_) | Self::Chains(_) => {}
        });
        writer.finish()
    }
}

/// One object of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The generation of the ruleset.
    Generation(Generation),
    Table(Family, Table),
    Chain(Family, Chain),
    Rule(Family, Rule),
    Set(Family, Set),
    /// Some elements of a set.
    Elements(Family, Elements),
}

impl Answer {
    /// Decodes one message of a response.
    pub fn read(message: &Message<'_>) -> Result<Self, WireError> {
        if message.kind == command::kind(command::message::NEW_GENERATION) {
            return Generation::read(message.attributes()?).map(Self::Generation);
        }
        let (family, command) = Command::read(message)?;
        match command {
            Command::NewTable(table, _) => Ok(Self::Table(family, table)),
            Command::NewChain(chain, _) => Ok(Self::Chain(family, chain)),
            Command::NewRule(rule) => Ok(Self::Rule(family, rule)),
            Command::NewSet(set, _) => Ok(Self::Set(family, set)),
            Command::NewElements(elements, _) => Ok(Self::Elements(family, elements)),
            _ => Err(WireError::Value { what: "answer to a query" }),
        }
    }

    /// Encodes the message, for the fake kernel.
    pub(crate) fn write(&self, writer: &mut Writer, seq: u32) {
        let multi = flags::MULTI;
        match self {
            Self::Generation(generation) => {
                let kind = command::kind(command::message::NEW_GENERATION);
                let header = Header { kind, flags: 0, seq, family: 0, resource: 0 };
                writer.message(header, |w| generation.write(w));
            }
            Self::Table(family, table) => {
                Command::NewTable(table.clone(), IfExists::Keep).write(writer, *family, seq, multi);
            }
            Self::Chain(family, chain) => {
                Command::NewChain(chain.clone(), IfExists::Keep).write(writer, *family, seq, multi);
            }
            Self::Rule(family, rule) => {
                Command::NewRule(rule.clone()).write(writer, *family, seq, multi);
            }
            Self::Set(family, set) => {
                Command::NewSet(set.clone(), IfExists::Keep).write(writer, *family, seq, multi);
            }
            Self::Elements(family, elements) => {
                let command = Command::NewElements(elements.clone(), IfExists::Keep);
                command.write(writer, *family, seq, multi);
            }
        }
    }
}

/// The expected generation in a begin message.
pub(crate) fn batch_generation(begin: &Message<'_>) -> Result<Option<u32>, WireError> {
    for attribute in begin.attributes()? {
        let attribute = attribute?;
        if attribute.kind == GENERATION_ID {
            return u32::take(attribute, "generation").map(Some);
        }
    }
    Ok(None)
}

fn boundary(kind: u16, seq: u32) -> Header {
    Header { kind, flags: flags::REQUEST, seq, family: 0, resource: u16::from(SUBSYSTEM) }
}

#[cfg(test)]
mod tests;
