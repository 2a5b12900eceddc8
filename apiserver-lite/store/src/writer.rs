//! The writer thread. It takes the writes that were queued during the last commit, decides each against the state and
//! the writes before it, commits them together, publishes the events and sends the results.
//!
//! ```text
//!   wait for one ─▶ drain the queue ─▶ decide each ─▶ commit ─┬─▶ publish ─▶ wake ─▶ answer
//!        ▲                                                    └─▶ failed: answer; read-only if it may be on disk
//!        └──────────────────────────────────────────────────────────┘
//! ```
//!
//! A batch is one frame of the log, which is read whole. So it ends at a number of bytes, and the next one goes on with the requests that are left.

use std::{collections::HashMap, error::Error as _, io, sync::Arc, thread, vec};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    Bounds, CommittedWrite, Entry, Event, EventKind, Health, Record, Revision, Stamp, Write,
    WriteCondition, WriteError,
    config::{BATCH_BYTES_MAX, KEY_LEN_MAX, VALUE_LEN_MAX},
    disk::{CommitError, Disk},
    log::{CHANGE_HEADER_LEN, Change, FRAME_LEN_MAX},
    saved::OnDisk,
    state::SharedState,
    transform::{Form, StoredForms},
};

/// Most bytes of one request, and of the batch before it: together they are one frame of the log.
const REQUEST_BYTES_MAX: usize = FRAME_LEN_MAX / 2;

// Every batch can be read back. A transform may make a value larger, not twice as large.
const _: () = {
    assert!(BATCH_BYTES_MAX <= REQUEST_BYTES_MAX);
    assert!(CHANGE_HEADER_LEN + KEY_LEN_MAX + 2 * VALUE_LEN_MAX <= REQUEST_BYTES_MAX);
};

/// A request to what orders the writes, with the channel for its result.
pub enum WriterRequest<T: Record> {
    /// Commits a write.
    Write(Write<T>, oneshot::Sender<WriteResult<T>>),
    /// Commits all of several writes, or none.
    WriteAll(Vec<Write<T>>, oneshot::Sender<WriteAllResult<T>>),
    /// Puts saved records in the place of all that is there.
    Replace(Arc<[Entry<T>]>, oneshot::Sender<ReplaceResult>),
    /// Answers when memory has every write that was answered anywhere before, and is at this revision if the shared store is.
    Sync(Revision, oneshot::Sender<SyncResult>),
    /// Ends the thread after the requests queued before this one.
    Close(oneshot::Sender<()>),
}

/// Whether memory has every write that was answered before.
pub type SyncResult = Result<(), NotSynced>;

/// Memory may lack writes of other servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is not in sync with etcd: {0}")]
pub struct NotSynced(pub Arc<str>);

/// What a committed [`Write`] returns, or why it was not written.
pub type WriteResult<T> = Result<CommittedWrite<T>, WriteError<T>>;

/// The results of several writes of which all or none are done.
pub type WriteAllResult<T> = Result<Vec<CommittedWrite<T>>, WriteError<T>>;

/// The revision at which the records were replaced.
pub type ReplaceResult = Result<Revision, OnDisk>;

/// The writes of a request.
enum Writes<T: Record> {
    One(Write<T>),
    All(Vec<Write<T>>),
}

/// Requests of which the first are taken into a batch.
type Requests<T> = vec::IntoIter<(Writes<T>, Answer<T>)>;

/// Where the result of a request goes.
enum Answer<T: Record> {
    One(oneshot::Sender<WriteResult<T>>),
    /// Of this many writes.
    All(usize, oneshot::Sender<WriteAllResult<T>>),
}

impl<T: Record> Answer<T> {
    /// Takes the results of the request's writes. The caller may have dropped the receiver; what is committed stays.
    fn send(self, results: &mut impl Iterator<Item = WriteResult<T>>) {
        match self {
            Answer::One(sender) => drop(results.next().map(|result| sender.send(result))),
            Answer::All(writes, sender) => {
                // All are taken, also behind an error.
                let taken: Vec<WriteResult<T>> = results.take(writes).collect();
                drop(sender.send(taken.into_iter().collect()));
            }
        }
    }

    fn refuse(self, error: WriteError<T>) {
        match self {
            Answer::One(sender) => drop(sender.send(Err(error))),
            Answer::All(_, sender) => drop(sender.send(Err(error))),
        }
    }
}

/// The one thread that commits: requests that wait together share a sync of the log.
pub struct Writer<T: Record> {
    disk: Disk,
    shared: Arc<SharedState<T>>,
    forms: Arc<StoredForms>,
    bounds: Bounds,
    committed: watch::Sender<Revision>,
    health: watch::Sender<Health>,
}

impl<T: Record> Writer<T> {
    pub fn new(
        disk: Disk,
        shared: Arc<SharedState<T>>,
        forms: Arc<StoredForms>,
        bounds: Bounds,
        committed: watch::Sender<Revision>,
        health: watch::Sender<Health>,
    ) -> Self {
        Self { disk, shared, forms, bounds, committed, health }
    }

    /// Runs until a close request, or until every sender of `requests` is dropped and the queue is empty.
    pub fn spawn(mut self, mut requests: mpsc::Receiver<WriterRequest<T>>) -> io::Result<()> {
        let thread = thread::Builder::new().name("store-writer".into());
        thread.spawn(move || {
            let mut closer = None;
            let mut waiting = Vec::new();
            let batch_len_max = self.bounds.batch_len_max.max(1);
            while closer.is_none() && requests.blocking_recv_many(&mut waiting, batch_len_max) > 0 {
                let mut writes = Vec::with_capacity(waiting.len());
                for request in waiting.drain(..) {
                    match request {
                        WriterRequest::Write(write, answer) => {
                            writes.push((Writes::One(write), Answer::One(answer)));
                        }
                        WriterRequest::WriteAll(all, answer) => {
                            let answer = Answer::All(all.len(), answer);
                            writes.push((Writes::All(all), answer));
                        }
                        WriterRequest::Replace(records, answer) => {
                            // In its turn: after the writes that were queued before it.
                            self.run_batches(std::mem::take(&mut writes));
                            // The caller may be gone; what is replaced stays so.
                            let _ = answer.send(self.replace(&records));
                        }
                        // There is no other server.
                        WriterRequest::Sync(_, answer) => drop(answer.send(Ok(()))),
                        WriterRequest::Close(answer) => closer = Some(answer),
                    }
                }
                self.run_batches(writes);
            }
            self.disk.close();
            if let Some(closer) = closer {
                let _ = closer.send(());
            }
        })?;
        Ok(())
    }

    fn replace(&self, records: &[Entry<T>]) -> ReplaceResult {
        if !matches!(self.disk, Disk::Memory) {
            return Err(OnDisk);
        }
        let mut state = self.shared.write();
        let revision = state.revision().next();
        let woken = state.replace(records, revision);
        drop(state);
        woken.iter().for_each(|watcher| watcher.wake());
        self.committed.send_replace(revision);
        Ok(revision)
    }

    /// Serves the requests in order, in as many batches as their bytes need.
    fn run_batches(&mut self, requests: Vec<(Writes<T>, Answer<T>)>) {
        let mut requests = requests.into_iter();
        while !requests.as_slice().is_empty() {
            self.run_batch(&mut requests);
        }
    }

    /// Decides, commits, publishes and answers one batch: requests up to the one with which it is full.
    fn run_batch(&mut self, requests: &mut Requests<T>) {
        if let Health::ReadOnly { reason } = &*self.health.borrow() {
            for (_, answer) in requests {
                answer.refuse(WriteError::ReadOnly { reason: reason.clone() });
            }
            return;
        }
        let mut batch = Batch::new(&self.shared, &self.forms, self.bounds);
        let mut refused = Vec::new();
        let mut accepted = Vec::new();
        for (writes, answer) in requests {
            let decided = match writes {
                Writes::One(write) => batch.decide(write),
                Writes::All(all) => batch.decide_all(all),
            };
            match decided {
                Ok(()) => accepted.push(answer),
                Err(error) => refused.push((answer, error)),
            }
            if batch.is_full() {
                break;
            }
        }
        let Batch { revision, events, changes, written, .. } = batch;
        if !changes.is_empty()
            && let Err(error) = self.disk.commit(&changes)
        {
            return self.fail_batch(accepted, refused, events, &error);
        }
        if !changes.is_empty() {
            self.forms.note_all(&changes, &written);
            self.mark_serving();
        }
        let committed: Vec<_> = events.iter().map(committed_write).collect();
        if !committed.is_empty() {
            let with_len = |event: Event<T>| {
                let len = event.record.memory_len();
                (event, len)
            };
            let woken = self.shared.write().publish(events.into_iter().map(with_len), T::topic);
            woken.iter().for_each(|watcher| watcher.wake());
            self.committed.send_replace(revision);
        }
        // A refusal may depend on a write of this batch, so it is sent only after the commit.
        send_results(accepted, committed.into_iter().map(Ok));
        refused.into_iter().for_each(|(answer, error)| answer.refuse(error));
    }

    /// Sets the health back to [`Health::Serving`] after a successful commit.
    fn mark_serving(&self) {
        let refused =
            |health: &mut Health| std::mem::replace(health, Health::Serving) != Health::Serving;
        if self.health.send_if_modified(refused) {
            tracing::info!("a commit succeeded; the store accepts writes again");
        }
    }

    /// Handles a failed commit: no write of the batch becomes visible. Later commits are tried only if nothing of this one is left on disk.
    fn fail_batch(
        &mut self,
        accepted: Vec<Answer<T>>,
        refused: Vec<(Answer<T>, WriteError<T>)>,
        events: Vec<Event<T>>,
        error: &CommitError,
    ) {
        let cause = error.source().map(ToString::to_string).unwrap_or_default();
        let reason: Arc<str> = format!("{error}: {cause}").into();
        if !error.is_outcome_unknown() {
            let all = accepted.into_iter().chain(refused.into_iter().map(|(answer, _)| answer));
            return self.refuse_batch(all, reason);
        }
        tracing::error!(%reason, writes = accepted.len(), "a commit failed and may be on disk; the store is read-only until the server restarts");
        self.health.send_replace(Health::ReadOnly { reason: reason.clone() });
        let not_durable = |event: Event<T>| {
            Err(WriteError::NotDurable { key: event.key.to_string(), reason: reason.clone() })
        };
        send_results(accepted, events.into_iter().map(not_durable));
        for (answer, _) in refused {
            answer.refuse(WriteError::ReadOnly { reason: reason.clone() });
        }
    }

    /// Fails a batch of which nothing is on disk; callers may retry.
    fn refuse_batch(&self, all: impl Iterator<Item = Answer<T>>, reason: Arc<str>) {
        // Logged once, not at each attempt.
        if self.health.send_replace(Health::Refusing { reason: reason.clone() }) == Health::Serving
        {
            tracing::error!(%reason, "a commit failed and was undone; its writes are rejected, the next write is tried");
        }
        for answer in all {
            answer.refuse(WriteError::NotWritten { reason: reason.clone() });
        }
    }
}

fn send_results<T: Record>(
    answers: Vec<Answer<T>>,
    mut results: impl Iterator<Item = WriteResult<T>>,
) {
    answers.into_iter().for_each(|answer| answer.send(&mut results));
}

fn committed_write<T>(event: &Event<T>) -> CommittedWrite<T> {
    CommittedWrite {
        revision: event.stamp.modified,
        record: event.record.clone(),
        previous: event.previous.clone(),
    }
}

/// Writes decided but not yet durable, in order; later ones are decided on top of earlier ones.
struct Batch<'a, T: Record> {
    shared: &'a SharedState<T>,
    forms: &'a StoredForms,
    bounds: Bounds,
    revision: Revision,
    /// The pending versions of the keys written so far; `None` for deleted.
    overlay: HashMap<Arc<str>, Option<Entry<T>>>,
    events: Vec<Event<T>>,
    changes: Vec<Change>,
    /// Bytes of the changes in a frame of the log.
    bytes: usize,
    /// The forms of the changes' values; empty without a transform.
    written: Vec<Form>,
}

impl<'a, T: Record> Batch<'a, T> {
    fn new(shared: &'a SharedState<T>, forms: &'a StoredForms, bounds: Bounds) -> Self {
        let revision = shared.read().revision();
        Self {
            shared,
            forms,
            bounds,
            revision,
            overlay: HashMap::new(),
            events: Vec::new(),
            changes: Vec::new(),
            bytes: 0,
            written: Vec::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= self.bounds.batch_bytes_max.clamp(1, REQUEST_BYTES_MAX)
    }

    fn decide(&mut self, write: Write<T>) -> Result<(), WriteError<T>> {
        match write {
            Write::Put { key, expect, draft } => {
                check_len(&key, "key", key.len(), self.bounds.key_len_max)?;
                let current = check_expectation(&key, expect, self.current(&key))?;
                if current.as_ref().is_some_and(|current| !current.record.is_readable()) {
                    return Err(WriteError::Unreadable { key });
                }
                let value = T::stored(&draft);
                check_len(&key, "value", value.len(), self.bounds.value_len_max)?;
                let value = self.encode_stored(&key, value)?;
                self.put(key, current, value, draft);
            }
            Write::Delete { key, expect } => {
                check_len(&key, "key", key.len(), self.bounds.key_len_max)?;
                let expect = if expect == WriteCondition::Anything {
                    WriteCondition::Present
                } else {
                    expect
                };
                if let Some(current) = check_expectation(&key, expect, self.current(&key))? {
                    self.delete(current);
                }
            }
        }
        Ok(())
    }

    /// Decides writes of which all or none are done: each on top of those before it.
    fn decide_all(&mut self, writes: Vec<Write<T>>) -> Result<(), WriteError<T>> {
        let (revision, decided, bytes) = (self.revision, self.events.len(), self.bytes);
        let before: Vec<_> = writes
            .iter()
            .map(|write| (Arc::from(write.key()), self.overlay.get(write.key()).cloned()))
            .collect();
        let done = writes.into_iter().try_for_each(|write| {
            self.decide(write)?;
            check_request_bytes(self.bytes.saturating_sub(bytes))
        });
        if done.is_err() {
            self.revision = revision;
            self.bytes = bytes;
            self.events.truncate(decided);
            self.changes.truncate(decided);
            self.written.truncate(decided);
            // Each key as it was before the first write of it.
            for (key, pending) in before {
                match pending {
                    Some(pending) => drop(self.overlay.insert(key, pending)),
                    None => drop(self.overlay.remove(&key)),
                }
            }
        }
        done
    }

    /// The version of `key` before this write.
    fn current(&self, key: &str) -> Option<Entry<T>> {
        match self.overlay.get(key) {
            Some(pending) => pending.clone(),
            None => self.shared.read().current(key),
        }
    }

    /// The bytes that are written for a value. The form is noted for the change that follows.
    fn encode_stored(&mut self, key: &str, value: Bytes) -> Result<Bytes, WriteError<T>> {
        let (bytes, form) = self.forms.encode(key, value)?;
        if self.forms.transform().is_some() {
            self.written.push(form);
        }
        Ok(bytes)
    }

    fn push(&mut self, change: Change) {
        self.bytes = self.bytes.saturating_add(change.len_in_frame());
        self.changes.push(change);
    }

    fn put(&mut self, key: String, current: Option<Entry<T>>, value: Bytes, draft: T::Draft) {
        self.revision = self.revision.next();
        let created = current.as_ref().map_or(self.revision, |entry| entry.stamp.created);
        let stamp = Stamp { created, modified: self.revision };
        let key = current.as_ref().map_or_else(|| key.into(), |entry| entry.key.clone());
        let record = Arc::new(T::stamp(draft, stamp));
        let kind = if current.is_some() { EventKind::Updated } else { EventKind::Created };
        let entry = Entry { key: key.clone(), stamp, record: record.clone() };
        self.overlay.insert(key.clone(), Some(entry));
        self.push(Change { key: key.clone(), stamp, value: Some(value) });
        let previous = current.map(|entry| entry.record);
        self.events.push(Event { key, kind, stamp, record, previous });
    }

    fn delete(&mut self, current: Entry<T>) {
        if self.forms.transform().is_some() {
            self.written.push(Form::AS_IS);
        }
        self.revision = self.revision.next();
        let stamp = Stamp { created: current.stamp.created, modified: self.revision };
        let record = Arc::new(T::tombstone(&current.record, stamp));
        self.overlay.insert(current.key.clone(), None);
        self.push(Change { key: current.key.clone(), stamp, value: None });
        self.events.push(Event {
            key: current.key,
            kind: EventKind::Deleted,
            stamp,
            record,
            previous: Some(current.record),
        });
    }
}

/// Returns the version of `key` before a write, if it is as expected.
pub fn check_expectation<T>(
    key: &str,
    expect: WriteCondition,
    current: Option<Entry<T>>,
) -> Result<Option<Entry<T>>, WriteError<T>> {
    match (expect, current) {
        (WriteCondition::Anything | WriteCondition::Absent, None) => Ok(None),
        (WriteCondition::Anything | WriteCondition::Present, Some(current)) => Ok(Some(current)),
        (WriteCondition::At(expected), Some(current)) if current.stamp.modified == expected => {
            Ok(Some(current))
        }
        (WriteCondition::Absent, Some(current)) => {
            Err(WriteError::Exists { key: key.to_owned(), current: current.record })
        }
        (WriteCondition::At(expected), Some(current)) => Err(WriteError::Conflict {
            key: key.to_owned(),
            expected,
            revision: current.stamp.modified,
            current: current.record,
        }),
        (WriteCondition::At(_) | WriteCondition::Present, None) => {
            Err(WriteError::NotFound { key: key.to_owned() })
        }
    }
}

/// # Errors
/// Writes that belong together have too many bytes for one frame.
fn check_request_bytes<T>(bytes: usize) -> Result<(), WriteError<T>> {
    if bytes <= REQUEST_BYTES_MAX {
        return Ok(());
    }
    let reason = format!(
        "writes that are committed together have more than {REQUEST_BYTES_MAX} bytes: commit fewer of them"
    );
    Err(WriteError::NotWritten { reason: reason.into() })
}

/// # Errors
/// It is empty or too long.
pub fn check_len<T>(
    key: &str,
    what: &'static str,
    len: usize,
    max: usize,
) -> Result<(), WriteError<T>> {
    let empty_key = what == "key" && len == 0;
    if len <= max && !empty_key {
        return Ok(());
    }
    let key = key.chars().take(256).collect();
    Err(WriteError::Size { key, what, len, max })
}

#[cfg(test)]
mod tests;
