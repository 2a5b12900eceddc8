//! Following the store from a revision on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::{Compacted, Health, Revision, Stamp, state::SharedState};

/// One committed write, as watchers see it.
#[derive(Debug)]
pub struct Event<T> {
    /// The key.
    pub key: Arc<str>,
    /// What happened; `stamp.modified` is the revision of the event.
    pub kind: EventKind,
    /// When the key was created, and the revision of the event.
    pub stamp: Stamp,
    /// The new version, or the tombstone of a deleted one.
    pub record: Arc<T>,
    /// The version before, except for a creation. A watch with a selector needs it: an object that
    /// stopped matching has to be reported as deleted.
    pub previous: Option<Arc<T>>,
}

impl<T> Clone for Event<T> {
    fn clone(&self) -> Self {
        Self {
            key: self.key.clone(),
            kind: self.kind,
            stamp: self.stamp,
            record: self.record.clone(),
            previous: self.previous.clone(),
        }
    }
}

/// What a write did to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The key was not there before.
    Created,
    /// The key has a new version.
    Updated,
    /// The key is gone.
    Deleted,
}

/// A cursor into the shared log of events. Costs no memory per event; a watch that reads so slowly that
/// its place is compacted away ends with [`Lagged`]. Only what it follows wakes it up.
pub struct Watch<T> {
    shared: Arc<SharedState<T>>,
    watcher: Arc<Watcher>,
    seen: Revision,
    /// Ends with the writer.
    writer: tokio::sync::watch::Receiver<Health>,
}

/// Most events that one call copies out of the log.
const BATCH_LEN_MAX: usize = 256;

impl<T> Watch<T> {
    pub(crate) fn new(
        shared: Arc<SharedState<T>>,
        prefix: String,
        after: Revision,
        writer: tokio::sync::watch::Receiver<Health>,
    ) -> Self {
        let watcher = Arc::new(Watcher::new(prefix, after));
        shared.write().add_watcher(watcher.clone());
        Self { shared, watcher, seen: after, writer }
    }

    /// Everything up to this revision has been delivered (or did not match): what a bookmark says.
    #[must_use]
    pub fn seen(&mut self) -> Revision {
        let state = self.shared.read();
        if !self.watcher.is_pending() {
            self.seen = state.revision();
        }
        self.seen
    }

    /// Waits for events and appends them to `into`, in order; at least one, at most 256. Cancel-safe: an
    /// event is either in `into` or will be delivered by the next call.
    ///
    /// # Errors
    /// [`WatchEnd::Lagged`] when the next event is no longer kept; [`WatchEnd::Closed`] when the store
    /// has been closed and everything has been delivered.
    pub async fn next_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), WatchEnd> {
        let before = into.len();
        loop {
            // What is published after the look wakes us up.
            while self.watcher.is_pending() {
                self.try_batch(into)?;
                if into.len() > before {
                    return Ok(());
                }
            }
            let ended = tokio::select! {
                () = self.watcher.notify.notified() => false,
                changed = self.writer.changed() => changed.is_err(),
            };
            if ended && !self.watcher.is_pending() {
                return Err(WatchEnd::Closed);
            }
        }
    }

    /// Appends to `into` what can be delivered now, at most 256 events; possibly none.
    ///
    /// # Errors
    /// The next event is no longer kept.
    pub fn try_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), Lagged> {
        let state = self.shared.read();
        let Some(from) = self.watcher.take_pending() else {
            self.seen = state.revision();
            return Ok(());
        };
        let found = state.events_after(from, &self.watcher.prefix, BATCH_LEN_MAX, into);
        self.seen = *found.as_ref().unwrap_or(&from);
        if self.seen < state.revision() {
            self.watcher.mark_pending(self.seen);
        }
        found
            .map(drop)
            .map_err(|Compacted { requested, oldest }| Lagged { seen: requested, oldest })
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.shared.write().remove_watcher(&self.watcher);
    }
}

/// What one watch follows, and from where it has to look. Changed only under the lock of the state: by who publishes with the lock
/// for writing, by the watch with that for reading.
pub struct Watcher {
    prefix: String,
    /// Nothing that matches lies between what was delivered last and this revision; [`NOTHING`] when all has been delivered.
    pending: AtomicU64,
    notify: Notify,
}

/// Not a revision that a store ever reaches.
const NOTHING: u64 = u64::MAX;

impl Watcher {
    fn new(prefix: String, after: Revision) -> Self {
        Self { prefix, pending: AtomicU64::new(after.0), notify: Notify::new() }
    }

    pub fn matches(&self, key: &str) -> bool {
        key.starts_with(&self.prefix)
    }

    /// There is something after `seen`; whether that is news to the watch.
    pub fn mark_pending(&self, seen: Revision) -> bool {
        let known = self.pending.load(Ordering::Acquire) != NOTHING;
        if !known {
            self.pending.store(seen.0, Ordering::Release);
        }
        !known
    }

    pub fn wake(&self) {
        self.notify.notify_one();
    }

    fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != NOTHING
    }

    fn take_pending(&self) -> Option<Revision> {
        let pending = self.pending.swap(NOTHING, Ordering::AcqRel);
        (pending != NOTHING).then_some(Revision(pending))
    }
}

/// The watch fell behind the history kept: its user has to list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("watch at revision {seen} fell behind, the oldest kept is {oldest}")]
pub struct Lagged {
    /// The last revision it had seen.
    pub seen: Revision,
    /// The oldest revision a watch can start after.
    pub oldest: Revision,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// It was too slow.
    #[error(transparent)]
    Lagged(#[from] Lagged),
    /// The store was closed.
    #[error("store is closed")]
    Closed,
}

/// Why a watch cannot start.
pub type WatchError = crate::SnapshotError;
