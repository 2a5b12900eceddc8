//! The netlink protocol: a transaction is one datagram and one response, a dump is one request and many.
//!
//! The kernel processes a datagram during `send`, so responses are available when it returns; one that is missing was
//! lost. Transactions are not retried here: the caller decides again.

use std::io;

use proxy_netfilter::ack::{Ack, errno};
use proxy_netfilter::ct::{self, AddressFamily, Flow, FlowFilter, FlowState, TableUse, Tuple};
use proxy_netfilter::nft::batch::{Answer, EncodedBatch, Query};
use proxy_netfilter::nft::{Batch, Element, Family, Ruleset, TableRules};
use proxy_netfilter::wire::{self, Message, Messages, TooLong, WireError};

use crate::transport::Transport;

/// Attempts to dump a table that changes meanwhile.
const DUMP_ATTEMPTS_MAX: u32 = 8;
/// Responses of a failed transaction that are read at most.
const ANSWERS_MAX: usize = 1 << 20;

/// Conntrack entries deleted by one datagram; the responses fit the smallest receive buffer.
const DELETES_AT_ONCE: usize = 128;

/// No batch begins with a larger sequence number, so that it cannot wrap around.
const SEQ_MAX: u32 = u32::MAX / 2;

/// A transaction was not committed, or the result is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// An attribute does not fit its length field; a bug of the caller.
    #[error("cannot encode an nftables transaction")]
    Encode(#[source] TooLong),
    /// The datagram was not sent. `EMSGSIZE` means that it is larger than the send buffer may be.
    #[error("cannot send an nftables transaction of {len} bytes")]
    Send {
        /// Length in bytes.
        len: usize,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// Another program committed since the expected generation. Nothing was changed.
    #[error("the ruleset changed since its generation was read")]
    Conflict,
    /// The kernel refused a message. Nothing was changed.
    #[error("{about}: error {errno}{}", text.as_ref().map(|t| format!(", {t}")).unwrap_or_default())]
    Refused {
        /// Which command it was.
        about: String,
        /// The error number.
        errno: i32,
        /// The extended acknowledgement, if there is one.
        text: Option<String>,
    },
    /// The response was lost. The transaction may have been committed.
    #[error("the kernel's reply to a transaction was lost")]
    Lost(#[source] io::Error),
    /// The response cannot be decoded. The transaction may have been committed.
    #[error("cannot read the kernel's reply to a transaction")]
    Answer(#[source] WireError),
}

impl CommitError {
    /// The error number, if the kernel refused a message.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// A query failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// A name does not fit; a bug of the caller.
    #[error("cannot encode a netlink query")]
    Encode(#[source] TooLong),
    /// The request was not sent.
    #[error("cannot send a netlink query")]
    Send(#[source] io::Error),
    /// The response, or a part of it, was lost.
    #[error("the kernel's reply to a query was lost")]
    Lost(#[source] io::Error),
    /// The response cannot be decoded.
    #[error("cannot read the kernel's reply to a query")]
    Answer(#[source] WireError),
    /// The kernel refused.
    #[error("the kernel rejected a query: errno {errno}")]
    Refused {
        /// The error number.
        errno: i32,
    },
    /// The table changed during every attempt to dump it.
    #[error("the table changed during each of {DUMP_ATTEMPTS_MAX} attempts to read it")]
    Interrupted,
}

/// A netlink session on one socket.
#[derive(Debug)]
pub struct Session<T> {
    transport: T,
    seq: u32,
    /// Whether responses of an earlier request may be unread.
    unread: bool,
}

/// Result of one attempt to dump.
enum Dumped {
    Complete,
    Interrupted,
}

impl<T: Transport> Session<T> {
    /// A session over `transport`.
    pub fn new(transport: T) -> Self {
        Self { transport, seq: 1, unread: false }
    }

    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// An empty batch for [`Session::commit`]; `generation` as for [`Batch::new`].
    pub fn batch(&self, generation: Option<u32>) -> Batch {
        Batch::new(self.seq, generation)
    }

    /// Commits a batch of [`Session::batch`] as one transaction. Does nothing if it is empty.
    pub fn commit(&mut self, batch: Batch) -> Result<(), CommitError> {
        if batch.is_empty() {
            return Ok(());
        }
        let batch = batch.finish().map_err(CommitError::Encode)?;
        self.advance(batch.seqs.end);
        self.drain();
        self.transport
            .send(&batch.bytes)
            .map_err(|source| CommitError::Send { len: batch.bytes.len(), source })?;
        self.unread = true;
        self.commit_answer(&batch)?;
        self.unread = false;
        Ok(())
    }

    /// The generation of the ruleset.
    pub fn generation(&mut self) -> Result<u32, QueryError> {
        let mut generation = None;
        self.query(&Query::Generation, |answer| {
            if let Answer::Generation(answer) = answer {
                generation = Some(answer.id);
            }
        })?;
        let lost = || QueryError::Lost(io::ErrorKind::WouldBlock.into());
        generation.ok_or_else(lost)
    }

    /// Reads a table with everything in it; `None` if it does not exist.
    pub fn read_table(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Option<TableRules>, QueryError> {
        let Some(mut read) = self.read_shape(family, table)? else { return Ok(None) };
        for (name, set) in &mut read.sets {
            let elements = self.elements(family, table, name)?;
            set.elements = elements.into_iter().map(|e| (e.key.clone(), e)).collect();
        }
        Ok(Some(read))
    }

    /// Reads the elements of a set; empty if the set does not exist.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Element>, QueryError> {
        let answers = match self.dump(&Query::Elements(family, table.to_owned(), set.to_owned())) {
            Err(QueryError::Refused { errno: errno::ENOENT }) => Vec::new(),
            other => other?,
        };
        let elements = answers.into_iter().filter_map(|answer| match answer {
            Answer::Elements(_, elements) => Some(elements.elements),
            _ => None,
        });
        Ok(elements.flatten().collect())
    }

    /// Reads a table without the elements of its sets: the cost does not depend on their number.
    pub fn read_shape(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Option<TableRules>, QueryError> {
        let id = (family, table.to_owned());
        let mut all = Ruleset::default();
        let tables = self.dump(&Query::Tables(family))?;
        tables.into_iter().for_each(|answer| all.absorb(answer));
        all.tables.retain(|name, _| *name == id);
        if all.tables.is_empty() {
            return Ok(None);
        }
        let parts = [
            Query::Chains(family),
            Query::Rules(family, table.to_owned()),
            Query::Sets(family, table.to_owned()),
        ];
        for query in parts {
            self.dump(&query)?.into_iter().for_each(|answer| all.absorb(answer));
        }
        Ok(all.tables.remove(&id))
    }

    /// Names and owners of the tables of a family.
    pub fn tables(&mut self, family: Family) -> Result<Vec<Answer>, QueryError> {
        self.dump(&Query::Tables(family))
    }

    /// Calls `visit` with every conntrack entry that matches `filter`. Entries that are created or deleted meanwhile
    /// may be missed or reported twice.
    pub fn flows(
        &mut self,
        family: AddressFamily,
        filter: &FlowFilter,
        mut visit: impl FnMut(Flow),
    ) -> Result<(), QueryError> {
        let seq = self.next_seq();
        let request = ct::dump(seq, family, filter).map_err(QueryError::Encode)?;
        self.send_query(seq, &request, true, |message| {
            let flow = ct::read_flow(message)?;
            if filter.matches(&flow) {
                visit(flow);
            }
            Ok(())
        })
        .map(drop)
    }

    /// The same with protocol state and counters.
    pub fn flow_states(
        &mut self,
        family: AddressFamily,
        filter: &FlowFilter,
        mut visit: impl FnMut(Flow, FlowState),
    ) -> Result<(), QueryError> {
        let seq = self.next_seq();
        let request = ct::dump(seq, family, filter).map_err(QueryError::Encode)?;
        self.send_query(seq, &request, true, |message| {
            let flow = ct::read_flow(message)?;
            if filter.matches(&flow) {
                visit(flow, ct::read_flow_state(message)?);
            }
            Ok(())
        })
        .map(drop)
    }

    /// Deletes a conntrack entry; false if it does not exist.
    pub fn delete_flow(&mut self, flow: &Flow) -> Result<bool, QueryError> {
        let seq = self.next_seq();
        let request = ct::delete(seq, flow).map_err(QueryError::Encode)?;
        self.forget(seq, &request)
    }

    /// Deletes the conntrack entry with this original tuple; false if there is none.
    pub fn delete_tuple(&mut self, orig: &Tuple) -> Result<bool, QueryError> {
        let seq = self.next_seq();
        let request = ct::delete_tuple(seq, orig).map_err(QueryError::Encode)?;
        self.forget(seq, &request)
    }

    fn forget(&mut self, seq: u32, request: &[u8]) -> Result<bool, QueryError> {
        match self.send_query(seq, request, false, |_| Ok(())) {
            Ok(_) => Ok(true),
            Err(QueryError::Refused { errno: errno::ENOENT }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Deletes conntrack entries in bulk; returns how many existed.
    pub fn delete_flows(&mut self, flows: &[Flow]) -> Result<u64, QueryError> {
        let mut deleted: u64 = 0;
        for some in flows.chunks(DELETES_AT_ONCE) {
            let missing = self.delete_some(some)?;
            deleted = deleted.saturating_add((some.len() as u64).saturating_sub(missing));
        }
        Ok(deleted)
    }

    /// Deletes conntrack entries with one datagram; returns how many did not exist.
    fn delete_some(&mut self, flows: &[Flow]) -> Result<u64, QueryError> {
        let first = self.seq;
        let request = ct::delete_all(first, flows).map_err(QueryError::Encode)?;
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        let last = first.wrapping_add(count).wrapping_sub(1);
        self.advance(first.wrapping_add(count));
        self.drain();
        self.transport.send(&request).map_err(QueryError::Send)?;
        self.unread = true;
        let mut gone: u64 = 0;
        loop {
            let datagram = self.transport.receive().map_err(QueryError::Lost)?;
            for message in Messages::new(datagram) {
                let message = message.map_err(QueryError::Answer)?;
                if message.seq.wrapping_sub(first) >= count {
                    continue;
                }
                match refused(&message) {
                    Ok(()) => {}
                    Err(QueryError::Refused { errno: errno::ENOENT }) => {
                        gone = gone.saturating_add(1)
                    }
                    Err(other) => return Err(other),
                }
                if message.seq == last {
                    self.unread = false;
                    return Ok(gone);
                }
            }
        }
    }

    /// Number of conntrack entries, and the maximum.
    pub fn flow_table_use(&mut self) -> Result<TableUse, QueryError> {
        let seq = self.next_seq();
        let request = ct::table_use(seq).map_err(QueryError::Encode)?;
        let mut found = None;
        self.send_query(seq, &request, false, |message| {
            found = Some(ct::read_table_use(message)?);
            Ok(())
        })?;
        found.ok_or_else(|| QueryError::Lost(io::ErrorKind::WouldBlock.into()))
    }

    fn dump(&mut self, query: &Query) -> Result<Vec<Answer>, QueryError> {
        for _ in 0..DUMP_ATTEMPTS_MAX {
            let mut answers = Vec::new();
            if let Dumped::Complete = self.query(query, |answer| answers.push(answer))? {
                return Ok(answers);
            }
        }
        Err(QueryError::Interrupted)
    }

    fn query(
        &mut self,
        query: &Query,
        mut visit: impl FnMut(Answer),
    ) -> Result<Dumped, QueryError> {
        let seq = self.next_seq();
        let request = query.encode(seq).map_err(QueryError::Encode)?;
        self.send_query(seq, &request, query.is_dump(), |message| {
            // Tables of other families cannot be decoded, and are none of the proxy's.
            if let Ok(answer) = Answer::read(message) {
                visit(answer);
            }
            Ok(())
        })
    }

    /// Sends a request and calls `visit` with every message of its response.
    fn send_query(
        &mut self,
        seq: u32,
        request: &[u8],
        multi: bool,
        mut visit: impl FnMut(&Message<'_>) -> Result<(), WireError>,
    ) -> Result<Dumped, QueryError> {
        self.drain();
        self.transport.send(request).map_err(QueryError::Send)?;
        self.unread = true;
        let mut dumped = Dumped::Complete;
        loop {
            let datagram = self.transport.receive().map_err(QueryError::Lost)?;
            for message in Messages::new(datagram) {
                let message = message.map_err(QueryError::Answer)?;
                if message.seq != seq {
                    continue;
                }
                if message.flags & wire::flags::DUMP_INTR != 0 {
                    dumped = Dumped::Interrupted;
                }
                match message.kind {
                    wire::NLMSG_DONE => {
                        self.unread = false;
                        let errno = Ack::read_done(&message).map_err(QueryError::Answer)?;
                        return match (errno, &dumped) {
                            // The object was deleted meanwhile: the next attempt reports that.
                            (0, _) | (_, Dumped::Interrupted) => Ok(dumped),
                            (errno, Dumped::Complete) => Err(QueryError::Refused { errno }),
                        };
                    }
                    wire::NLMSG_ERROR => return refused(&message).map(|()| dumped),
                    _ => visit(&message).map_err(QueryError::Answer)?,
                }
                if !multi && message.flags & wire::flags::MULTI == 0 {
                    return Ok(dumped);
                }
            }
        }
    }

    /// Reads until the last command is acknowledged, or the batch is refused.
    fn commit_answer(&mut self, batch: &EncodedBatch) -> Result<(), CommitError> {
        let mut failure = None;
        for _ in 0..ANSWERS_MAX {
            let datagram = match self.transport.receive() {
                Ok(datagram) => datagram,
                Err(_) if failure.is_some() => break,
                Err(error) => return Err(CommitError::Lost(error)),
            };
            let mut complete = false;
            for message in Messages::new(datagram) {
                let message = message.map_err(CommitError::Answer)?;
                if message.kind != wire::NLMSG_ERROR || !batch.seqs.contains(&message.seq) {
                    continue;
                }
                let ack = Ack::read(&message).map_err(CommitError::Answer)?;
                complete |= message.seq == batch.last || message.seq == batch.seqs.start;
                if ack.errno != 0 && failure.is_none() {
                    failure = Some((message.seq, ack));
                }
            }
            if complete {
                break;
            }
        }
        match failure {
            None => Ok(()),
            Some((_, Ack { errno: errno::ERESTART, .. })) => Err(CommitError::Conflict),
            Some((seq, Ack { errno, text })) => {
                Err(CommitError::Refused { about: batch.label(seq).to_owned(), errno, text })
            }
        }
    }

    /// Discards unread responses of earlier requests.
    fn drain(&mut self) {
        for _ in 0..ANSWERS_MAX {
            if !self.unread || self.transport.receive().is_err() {
                break;
            }
        }
        self.unread = false;
    }

    fn next_seq(&mut self) -> u32 {
        let seq = self.seq;
        self.advance(seq.wrapping_add(1));
        seq
    }

    /// Sets the next sequence number, or starts again at 1: those of one batch are consecutive.
    fn advance(&mut self, seq: u32) {
        self.seq = if (1..=SEQ_MAX).contains(&seq) { seq } else { 1 };
    }
}

fn refused(message: &Message<'_>) -> Result<(), QueryError> {
    match Ack::read(message).map_err(QueryError::Answer)?.errno {
        0 => Ok(()),
        errno => Err(QueryError::Refused { errno }),
    }
}

#[cfg(test)]
mod tests;
