//! The front door: opening, writing, reading, watching, forgetting.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, oneshot, watch as wake};

use crate::{
    Bounds, CommittedWrite, OpenError, Record, RestoreError, Revision, Snapshot, SnapshotError,
    StoreConfig, Watch, WatchError, Write, WriteError,
    disk::Disk,
    replay::replay,
    state::{SharedState, StoreState},
    writer::{Writer, WriterRequest},
};

/// An open store. Cheap to clone; the last clone to be dropped closes it.
pub struct Store<T: Record> {
    shared: Arc<SharedState<T>>,
    queue: mpsc::Sender<WriterRequest<T>>,
    committed: wake::Receiver<Revision>,
    health: wake::Receiver<Health>,
    revision_times: Arc<Mutex<RevisionTimes>>,
}

/// Whether writes are possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// All is well.
    Serving,
    /// The last commit could not be written (no room) and nothing of it is left. Reads and watches go on, and each write tries again.
    Refusing {
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// What the last commit left on the medium is not known. Reads and watches go on; every write is refused
    /// until the store has been opened again.
    ReadOnly {
        /// The error of the disk.
        reason: Arc<str>,
    },
}

impl<T: Record> Store<T> {
    /// Opens or creates a store, reads it into memory and starts its writer thread. Blocks while it reads.
    /// Of the history before the last closing or crash, what is still in the log is there, at most 4096
    /// events; what is older is [`Compacted`](crate::Compacted).
    ///
    /// # Errors
    /// The medium cannot be opened, holds another identity or format, or a record cannot be restored.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        Self::open_with(config, |_| Ok(()))
    }

    /// Like [`open`](Store::open), and calls `prepare` on each record right after it has been
    /// [restored](Record::restore): for what restoring needs beside the bytes, such as a schema. Includes the
    /// superseded versions that the history still shows.
    ///
    /// # Errors
    /// Those of `open`; what `prepare` refuses counts as a record that cannot be restored.
    pub fn open_with(
        config: StoreConfig,
        prepare: impl Fn(&T) -> Result<(), RestoreError>,
    ) -> Result<Self, OpenError> {
        let StoreConfig { medium, identity, segment_len_max, on_damage, .. } = config;
        let (disk, found) = Disk::open(medium, &identity, segment_len_max, on_damage)?;
        let state = replay::<T>(found, config.retention, &prepare)?;
        Self::start(disk, state, config.bounds, config.history)
    }

    /// Starts the writer over what has been read.
    pub(crate) fn start(
        disk: Disk,
        state: StoreState<T>,
        bounds: Bounds,
        history: Duration,
    ) -> Result<Self, OpenError> {
        let (committed_to, committed) = wake::channel(state.revision());
        let (health_to, health) = wake::channel(Health::Serving);
        let (queue, requests) = mpsc::channel(bounds.queue_len_max.max(1));
        let shared = Arc::new(SharedState::new(state));
        Writer::new(disk, shared.clone(), bounds, committed_to, health_to)
            .spawn(requests)
            .map_err(OpenError::Thread)?;
        let revision_times = Arc::new(Mutex::new(RevisionTimes::new(history)));
        Ok(Self { shared, queue, committed, health, revision_times })
    }

    /// The last committed revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.shared.read().revision()
    }

    /// Commits one write. When this returns `Ok` the write is on disk and visible to every read and
    /// watch. Dropping the future does not undo a write that was already queued.
    ///
    /// # Errors
    /// See [`WriteError`]; the store never retries.
    pub async fn write(&self, write: Write<T>) -> Result<CommittedWrite<T>, WriteError<T>> {
        let (answer, answered) = oneshot::channel();
        let request = WriterRequest::Write(write, answer);
        self.queue.send(request).await.map_err(|_| WriteError::Closed)?;
        answered.await.unwrap_or(Err(WriteError::Closed))
    }

    /// The store as it is now: contains every write answered before this call.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot<T> {
        Snapshot::new(self.shared.clone(), self.revision())
    }

    /// The store as it was at `revision`.
    ///
    /// # Errors
    /// The revision is too old or has not happened.
    pub fn snapshot_at(&self, revision: Revision) -> Result<Snapshot<T>, SnapshotError> {
        self.shared.read().check_readable(revision)?;
        Ok(Snapshot::new(self.shared.clone(), revision))
    }

    /// Waits until `revision` has been committed.
    ///
    /// # Errors
    /// It was not within `patience`, or the store was closed.
    pub async fn wait_for(&self, revision: Revision, patience: Duration) -> Result<(), TimedOut> {
        let mut committed = self.committed.clone();
        let reached = committed.wait_for(|current| *current >= revision);
        match tokio::time::timeout(patience, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(TimedOut { requested: revision, current: self.revision() }),
        }
    }

    /// Follows the keys that start with `prefix`: every event after revision `after`, in order, once.
    /// To follow from now on, pass the revision of the snapshot that was read.
    ///
    /// # Errors
    /// Events right after `after` are no longer kept, or `after` has not happened.
    pub fn watch(
        &self,
        prefix: impl Into<String>,
        after: Revision,
    ) -> Result<Watch<T>, WatchError> {
        self.shared.read().check_readable(after)?;
        Ok(Watch::new(self.shared.clone(), prefix.into(), after, self.health.clone()))
    }

    /// Forgets history: revisions before `oldest` can no longer be read, nor watches started there.
    /// Future revisions count as the current one. Cost is that of the events forgotten.
    pub fn compact(&self, oldest: Revision) {
        self.shared.write().compact(oldest);
    }

    /// Forgets what is older than [`StoreConfig::history`]. The store has no clock: call this every few
    /// seconds with the time; what was current at one call is forgotten by the first call that comes more
    /// than `history` later.
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

    /// The oldest revision that can be read or watched from.
    #[must_use]
    pub fn oldest(&self) -> Revision {
        self.shared.read().oldest()
    }

    /// Ends the store: commits what has been asked, refuses further writes, ends the watches, and lets go of
    /// the directory, which another store can open when this returns. Reads go on. Dropping the last clone
    /// does the same without waiting.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        // Both fail only if it is already closed, or is being closed by somebody else.
        if self.queue.send(WriterRequest::Close(answer)).await.is_ok() {
            let _ = closed.await;
        }
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
        }
    }
}

/// The revision did not come in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} did not come in time, the current one is {current}")]
pub struct TimedOut {
    /// What was waited for.
    pub requested: Revision,
    /// The revision at the end of the wait.
    pub current: Revision,
}

/// Which revision was current when, so that history can be forgotten by age.
struct RevisionTimes {
    history: Duration,
    marks: VecDeque<(Instant, Revision)>,
}

/// Marks kept at most; closer calls are merged, which can only keep history longer.
const MARKS_MAX: u32 = 64;

impl RevisionTimes {
    fn new(history: Duration) -> Self {
        Self { history, marks: VecDeque::new() }
    }

    /// Notes `current` and returns the newest revision that was current more than `history` ago.
    fn advance(&mut self, now: Instant, current: Revision) -> Option<Revision> {
        let step = self.history / MARKS_MAX;
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
