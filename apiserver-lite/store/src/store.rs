//! The store's interface: open, write, read, watch, compact.

use std::{
    collections::{HashMap, VecDeque},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot, watch as wake};

use crate::{
    CommittedWrite, Compacted, Entry, Form, OpenError, Page, Range, Record, RestoreError, Revision,
    Snapshot, SnapshotError, StoreConfig, StoreIdentity, Watch, WatchError, Write, WriteError,
    backup::{self, BackupError, BackupSummary, BackupValue},
    disk::{Disk, DiskConfig},
    replay::{RestoreContext, replay},
    saved::{ReplaceError, SavedRecords},
    state::{FoundBound, FoundRecord, SharedState, StoreState},
    transform::StoredForms,
    writer::{NotSynced, SyncResult, Writer, WriterRequest},
};

/// What [`Store::shrink_records`] looks at in one step: each locks the store, and holds old and new records at the same time.
const SHRUNK_AT_ONCE: FoundBound = FoundBound { records: 128, bytes: 4 << 20 };

/// An open store. Cheap to clone; the last clone to be dropped closes it.
pub struct Store<T: Record> {
    shared: Arc<SharedState<T>>,
    queue: mpsc::Sender<WriterRequest<T>>,
    committed: wake::Receiver<Revision>,
    health: wake::Receiver<Health>,
    revision_times: Arc<Mutex<RevisionTimes>>,
    forms: Arc<StoredForms>,
    identity: Arc<StoreIdentity>,
    ordering: Ordering,
}

/// Who orders the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordering {
    /// This process, which is the only one.
    Own,
    /// A store that other processes write to as well.
    Shared,
}

/// What a store that follows another one shares with its [`Follower`](crate::Follower).
type FollowingParts<T> = (
    Arc<SharedState<T>>,
    mpsc::Sender<WriterRequest<T>>,
    wake::Receiver<Revision>,
    wake::Receiver<Health>,
    Arc<StoredForms>,
);

/// Whether writes are possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Writes are accepted.
    Serving,
    /// The last commit was not written (disk full) and left nothing behind. Reads and watches continue, and each write tries again.
    Refusing {
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// Whether the last commit is on disk is unknown. Reads and watches continue; every write is refused until the store is opened
    /// again.
    ReadOnly {
        /// The error of the disk.
        reason: Arc<str>,
    },
}

impl<T: Record> Store<T> {
    /// Opens or creates a store, reads it into memory and starts its writer thread. Blocks while it reads. The last events in the
    /// log, at most 4096, are restored as history; older revisions are [`Compacted`](crate::Compacted).
    ///
    /// # Errors
    /// The medium cannot be opened, holds another identity or format, or a record cannot be restored.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        Self::open_with(config, |_| Ok(()))
    }

    /// Like [`open`](Store::open), and calls `prepare` on each [restored](Record::restore) record, superseded versions in the history
    /// included: for what restoring needs besides the bytes, such as a schema.
    ///
    /// # Errors
    /// Those of `open`; an error of `prepare` is a record that cannot be restored.
    pub fn open_with(
        config: StoreConfig,
        prepare: impl Fn(&T) -> Result<(), RestoreError>,
    ) -> Result<Self, OpenError> {
        let (disk, found) = Disk::open(DiskConfig::from_config(&config))?;
        let forms = Arc::new(StoredForms::new(config.transform.clone()));
        let restoring = RestoreContext { prepare: &prepare, forms: &forms };
        match replay::<T>(found, config.retention, &restoring) {
            Ok(state) => Self::start(disk, state, forms, config),
            Err(error) => {
                // A thread has the directory open: another attempt would find it in use.
                disk.close();
                Err(error)
            }
        }
    }

    /// Starts the writer thread of a store with this content.
    pub(crate) fn start(
        disk: Disk,
        state: StoreState<T>,
        forms: Arc<StoredForms>,
        config: StoreConfig,
    ) -> Result<Self, OpenError> {
        let StoreConfig { bounds, history, identity, .. } = config;
        let (committed_to, committed) = wake::channel(state.revision());
        let (health_to, health) = wake::channel(Health::Serving);
        let (queue, requests) = mpsc::channel(bounds.queue_len_max.max(1));
        let shared = Arc::new(SharedState::new(state));
        Writer::new(disk, shared.clone(), forms.clone(), bounds, committed_to, health_to)
            .spawn(requests)
            .map_err(OpenError::Thread)?;
        let revision_times = Arc::new(Mutex::new(RevisionTimes::new(history)));
        let identity = Arc::new(identity);
        let ordering = Ordering::Own;
        Ok(Self { shared, queue, committed, health, revision_times, forms, identity, ordering })
    }

    /// A store whose writes are ordered elsewhere.
    pub(crate) fn following(parts: FollowingParts<T>, config: StoreConfig) -> Self {
        let (shared, queue, committed, health, forms) = parts;
        let revision_times = Arc::new(Mutex::new(RevisionTimes::new(config.history)));
        let (identity, ordering) = (Arc::new(config.identity), Ordering::Shared);
        Self { shared, queue, committed, health, revision_times, forms, identity, ordering }
    }

    /// Whether other servers write to the same store, so that [`sync`](Store::sync) does something.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.ordering == Ordering::Shared
    }

    /// Waits until memory has every write that was answered by any server before this call. Costs nothing where there is only this one; callers
    /// at the same time share one question to the store that is shared.
    ///
    /// # Errors
    /// The shared store does not answer in time.
    pub async fn sync(&self) -> SyncResult {
        self.sync_to(Revision(0)).await
    }

    /// [`sync`](Store::sync), and waits for `at_least` if the shared store has come to it: another server may have given it to a client.
    ///
    /// # Errors
    /// As `sync`.
    pub async fn sync_to(&self, at_least: Revision) -> SyncResult {
        if self.ordering == Ordering::Own {
            return Ok(());
        }
        let closed = || NotSynced("the store is closed".into());
        let (answer, answered) = oneshot::channel();
        self.queue.send(WriterRequest::Sync(at_least, answer)).await.map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// The last committed revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.read().revision()
    }

    /// Commits one write. When this returns `Ok` the write is durable and visible to every read and watch. Dropping the future does
    /// not undo a queued write.
    ///
    /// # Errors
    /// [`WriteError`]; the store does not retry.
    pub async fn write(&self, write: Write<T>) -> Result<CommittedWrite<T>, WriteError<T>> {
        let (answer, answered) = oneshot::channel();
        let request = WriterRequest::Write(write, answer);
        self.queue.send(request).await.map_err(|_| WriteError::Closed)?;
        answered.await.unwrap_or(Err(WriteError::Closed))
    }

    /// Commits all of `writes`, in order, or none: each is decided on top of those before it, and a read sees all of them or none. The
    /// results are in the order of the writes; the revisions follow each other. In a store that is [shared](Store::is_shared) each key is written
    /// once, and all have one revision: a client that reads a watch of them event by event and continues after one of them misses the others.
    ///
    /// # Errors
    /// [`WriteError`] of the first write that fails; the store does not retry.
    pub async fn write_all(
        &self,
        writes: Vec<Write<T>>,
    ) -> Result<Vec<CommittedWrite<T>>, WriteError<T>> {
        let (answer, answered) = oneshot::channel();
        let request = WriterRequest::WriteAll(writes, answer);
        self.queue.send(request).await.map_err(|_| WriteError::Closed)?;
        answered.await.unwrap_or(Err(WriteError::Closed))
    }

    /// A snapshot at the current revision; it contains every write answered before this call.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<T> {
        Snapshot::new(self.shared.clone(), self.revision())
    }

    /// The newest version of `key`, if it exists; sees every write answered before this call. Unlike a read of [`Store::snapshot`] it is one step, which
    /// neither a compaction nor a replacement comes into.
    #[must_use]
    pub fn current(&self, key: &str) -> Option<Entry<T>> {
        self.shared.read().current(key)
    }

    /// The keys of a range in byte order, as they are now: one step, as [`Store::current`].
    #[must_use]
    pub fn current_range(&self, range: Range<'_>) -> Page<T> {
        self.shared.read().current_range(range)
    }

    /// The keys of a range in byte order at a revision that was current once.
    ///
    /// # Errors
    /// The revision is no longer kept.
    pub fn range_at(&self, revision: Revision, range: Range<'_>) -> Result<Page<T>, Compacted> {
        self.shared.read().range(range, revision)
    }

    /// A snapshot at `revision`, for keys that start with `prefix`: others may be compacted at it.
    ///
    /// # Errors
    /// The revision is compacted for these keys, or in the future.
    pub fn snapshot_at(
        &self,
        prefix: &str,
        revision: Revision,
    ) -> Result<Snapshot<T>, SnapshotError> {
        self.shared.read().check_readable(prefix, revision)?;
        Ok(Snapshot::new(self.shared.clone(), revision))
    }

    /// Waits until `revision` has been committed, and is in memory.
    ///
    /// # Errors
    /// It was not committed within `patience`, or the store was closed.
    pub async fn wait_for(&self, revision: Revision, patience: Duration) -> Result<(), TimedOut> {
        let mut committed = self.committed.clone();
        let reached = committed.wait_for(|current| *current >= revision);
        match tokio::time::timeout(patience, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(TimedOut { requested: revision, current: self.revision() }),
        }
    }

    /// Watches the keys that start with `prefix`: every event after revision `after`, in order, once. To continue a read, pass the
    /// revision of its snapshot.
    ///
    /// # Errors
    /// `after` is compacted or in the future.
    pub fn watch(
        &self,
        prefix: impl Into<String>,
        after: Revision,
    ) -> Result<Watch<T>, WatchError> {
        self.watch_topic(prefix, None, after)
    }

    /// As [`Store::watch`], for a watch that ignores events of which neither the record nor the one before has this [topic](Record::topic). It is not woken
    /// by them, but gets those that lie between others.
    ///
    /// # Errors
    /// `after` is compacted or in the future.
    pub fn watch_topic(
        &self,
        prefix: impl Into<String>,
        topic: Option<String>,
        after: Revision,
    ) -> Result<Watch<T>, WatchError> {
        let prefix = prefix.into();
        self.shared.read().check_readable(&prefix, after)?;
        Ok(Watch::new(self.shared.clone(), prefix, topic, after, self.health.clone()))
    }

    /// After which revision a client continues that has seen events below `prefix` up to `seen`. Where several keys were written in one transaction it may
    /// have seen the first of them only: it gets all of them again.
    #[must_use]
    pub fn resume_after(&self, prefix: &str, seen: Revision) -> Revision {
        match self.ordering {
            Ordering::Own => seen,
            Ordering::Shared => self.shared.read().resume_after(prefix, seen),
        }
    }

    /// Compacts the history: revisions before `oldest` can no longer be read or watched from. Later revisions than the current one
    /// count as the current one.
    pub fn compact(&self, oldest: Revision) {
        self.shared.write().compact(oldest);
    }

    /// Compacts revisions older than [`StoreConfig::history`]. The store has no clock: call this every few seconds with the time.
    /// A revision that was current at one call is compacted by the first call more than `history` later.
    pub fn compact_expired(&self, now: Instant) {
        let current = self.revision();
        let oldest = self
            .revision_times
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .advance(now, current);
        if let Some(oldest) = oldest {
            self.compact(oldest);
        }
    }

    /// Replaces records in memory by what `shrink` makes of them, where it makes something: an equal record that takes less memory. It is called with all
    /// records that can be read or watched and whether they are the current ones of their keys, a few at a time; the store can be used meanwhile. Readers
    /// that have a record keep it.
    pub fn shrink_records(&self, shrink: impl Fn(&T, bool) -> Option<T>) {
        let mut after = None;
        loop {
            let found =
                self.shared.read().records_after(after.as_ref(), SHRUNK_AT_ONCE, T::memory_len);
            let replacement = |found: FoundRecord<T>| {
                let new = Arc::new(shrink(&found.record, found.is_current)?);
                Some((found, new))
            };
            let records: Vec<_> = found.records.into_iter().filter_map(replacement).collect();
            if !records.is_empty() {
                self.shared.write().replace_records(&records);
            }
            after = found.last;
            if after.is_none() {
                return;
            }
        }
    }

    /// The oldest revision that can be read or watched from.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.shared.read().oldest()
    }

    /// Closes the store: commits queued writes, refuses further ones, ends watches and unlocks the directory, which can be opened
    /// again when this returns. Reads still work. Dropping the last clone does the same without waiting.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        // Both fail only if the store is closed already or being closed by another call.
        if self.queue.send(WriterRequest::Close(answer)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// Whether the value of `key` would be written in another form than it has on disk: its encryption key is no longer the first one, or it is not
    /// encrypted yet. Always false without a [`Transform`](crate::Transform).
    #[must_use]
    pub fn is_stale(&self, key: &str) -> bool {
        self.forms.is_stale(key)
    }

    /// How many values lie on disk in each form, those in clear text excepted.
    #[must_use]
    pub fn forms(&self) -> HashMap<Form, usize> {
        self.forms.count()
    }

    /// Calls `each` with the key and the form of every value on disk, those in clear text included.
    pub fn each_form(&self, mut each: impl FnMut(&str, Form)) {
        let (_, entries) = self.shared.read().all();
        entries.iter().for_each(|entry| each(&entry.key, self.forms.form(&entry.key)));
    }

    /// Writes all records at the current revision to a new file, which [`restore`](crate::restore) reads, with the transform of now. `value` gives the
    /// stored form of a record. Blocks; writes go on meanwhile.
    ///
    /// # Errors
    /// The file cannot be written (it must not exist), or a value cannot be transformed. There is no file then.
    pub fn backup(
        &self,
        path: &Path,
        value: impl Fn(&T) -> BackupValue,
    ) -> Result<BackupSummary, BackupError> {
        let (revision, entries) = self.shared.read().all();
        backup::write(path, &self.identity, &self.forms, revision, &entries, value)
    }

    /// All records of now, kept for [`Store::replace`]. Costs a reference a record.
    #[must_use]
    pub fn save(&self) -> SavedRecords<T> {
        let (revision, entries) = self.shared.read().all();
        SavedRecords { revision, entries: entries.into() }
    }

    /// Puts `saved` in the place of all records, as they were, at a revision of its own. Reads and watches of earlier revisions are compacted: every watch
    /// ends as one that fell behind. Writes that are queued come before or after it. Returns
    /// that revision.
    ///
    /// # Errors
    /// The store is on disk: its log has writes and no replacements. Or it is closed.
    pub async fn replace(&self, saved: &SavedRecords<T>) -> Result<Revision, ReplaceError> {
        let (answer, answered) = oneshot::channel();
        let request = WriterRequest::Replace(saved.entries.clone(), answer);
        self.queue.send(request).await.map_err(|_| ReplaceError::Closed)?;
        Ok(answered.await.map_err(|_| ReplaceError::Closed)??)
    }

    /// Whether writes are possible; the receiver can be awaited for a change.
    #[must_use]
    pub fn health(&self) -> wake::Receiver<Health> {
        self.health.clone()
    }
}

impl<T: Record> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            queue: self.queue.clone(),
            committed: self.committed.clone(),
            health: self.health.clone(),
            revision_times: self.revision_times.clone(),
            forms: self.forms.clone(),
            identity: self.identity.clone(),
            ordering: self.ordering,
        }
    }
}

/// The revision was not committed in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} was not committed in time, the current one is {current}")]
pub struct TimedOut {
    /// The awaited revision.
    pub requested: Revision,
    /// The revision at the end of the wait.
    pub current: Revision,
}

/// Times at which revisions were current, for compaction by age.
struct RevisionTimes {
    history: Duration,
    marks: VecDeque<(Instant, Revision)>,
}

/// Most marks kept. Marks that are closer together are merged, which only keeps history longer.
const MARKS_MAX: u32 = 64;

impl RevisionTimes {
    fn new(history: Duration) -> Self {
        Self { history, marks: VecDeque::new() }
    }

    /// Notes `current` and returns the newest revision that was current more than `history` ago.
    fn advance(&mut self, now: Instant, current: Revision) -> Option<Revision> {
        let step = self.history.checked_div(MARKS_MAX).unwrap_or_default();
        if self.marks.back().is_none_or(|(at, _)| now.duration_since(*at) >= step) {
            self.marks.push_back((now, current));
        }
        let mut oldest = None;
        while self.marks.front().is_some_and(|(at, _)| now.duration_since(*at) > self.history) {
            oldest = self.marks.pop_front().map(|(_, revision)| revision);
        }
        oldest
    }
}
