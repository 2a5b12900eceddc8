//! Watches: the events after a revision.

use std::sync::Arc;

use crate::{
    Compacted, Health, Revision, Stamp,
    state::{BatchBound, SharedState},
    watcher::Watcher,
};

/// The event of one committed write.
#[derive(Debug)]
pub struct Event<T> {
    pub key: Arc<str>,
    /// Kind of change; `stamp.modified` is the revision of the event.
    pub kind: EventKind,
    /// Revision at which the key was created, and revision of the event.
    pub stamp: Stamp,
    /// The new version, or the tombstone of a deleted one.
    pub record: Arc<T>,
    /// The previous version, except for a creation. A watch with a selector needs it: an object that no longer matches is reported as
    /// deleted.
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

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The key was created.
    Created,
    /// The key has a new version.
    Updated,
    /// The key was deleted.
    Deleted,
}

/// A cursor into the shared history. It holds no events; a watch whose position is compacted ends with [`Lagged`]. It is woken
/// only by events of its prefix and topic.
pub struct Watch<T> {
    shared: Arc<SharedState<T>>,
    watcher: Arc<Watcher>,
    seen: Revision,
    /// Closed when the writer ends.
    writer: tokio::sync::watch::Receiver<Health>,
}

/// What one call copies from the history.
const BATCH: BatchBound = BatchBound { events: 256, bytes: 512 << 10 };

impl<T> Watch<T> {
    pub(crate) fn new(
        shared: Arc<SharedState<T>>,
        prefix: String,
        topic: Option<String>,
        after: Revision,
        writer: tokio::sync::watch::Receiver<Health>,
    ) -> Self {
        let watcher = Arc::new(Watcher::new(prefix, topic, after));
        shared.write().add_watcher(watcher.clone());
        Self { shared, watcher, seen: after, writer }
    }

    /// The revision up to which all matching events were delivered, as a bookmark reports it.
    #[must_use]
    pub fn delivered_revision(&mut self) -> Revision {
        let state = self.shared.read();
        if !self.watcher.is_pending() {
            self.seen = state.revision();
        }
        self.seen
    }

    /// Whether events may be available: if not, [`Watch::try_batch`] appends none. Costs no lock.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.watcher.is_pending()
    }

    /// Waits until events may be available. Cancel-safe.
    ///
    /// # Errors
    /// [`WatchEnd::Closed`] when the store is closed and every event was delivered.
    pub async fn ready(&mut self) -> Result<(), WatchEnd> {
        // An event published after this check wakes the watch.
        while !self.watcher.is_pending() {
            let ended = tokio::select! {
                () = self.watcher.notified() => false,
                changed = self.writer.changed() => changed.is_err(),
            };
            if ended && !self.watcher.is_pending() {
                return Err(WatchEnd::Closed);
            }
        }
        Ok(())
    }

    /// Waits for events and appends a batch of them to `into`, in order. Cancel-safe: an event is either in `into` or is delivered
    /// by the next call.
    ///
    /// # Errors
    /// [`WatchEnd::Lagged`] when the next event is compacted; [`WatchEnd::Closed`] when the store is closed and every event was
    /// delivered.
    pub async fn next_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), WatchEnd> {
        let before = into.len();
        while into.len() == before {
            self.ready().await?;
            self.try_batch(into)?;
        }
        Ok(())
    }

    /// The revision after which the next batch begins, for [`Watch::rewind`].
    #[must_use]
    pub fn position(&self) -> Revision {
        self.watcher.pending_after().unwrap_or(self.seen)
    }

    /// Delivers the events after `position` once more, as long as the history has them.
    pub fn rewind(&mut self, position: Revision) {
        let _state = self.shared.read();
        self.watcher.pend_after(position);
        self.seen = position;
    }

    /// Appends a batch of the available events to `into`, possibly none: at most 256 and half a MiB of records, unless one revision has more.
    ///
    /// # Errors
    /// The next event is compacted.
    pub fn try_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), Lagged> {
        let state = self.shared.read();
        let Some(from) = self.watcher.take_pending() else {
            self.seen = state.revision();
            return Ok(());
        };
        let found = state.events_after(from, self.watcher.prefix(), BATCH, into);
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

/// The watch fell behind the history; its user has to list again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("watch at revision {seen} fell behind, the oldest kept is {oldest}")]
pub struct Lagged {
    /// Revision of the last delivered event.
    pub seen: Revision,
    /// The oldest revision a watch can start after.
    pub oldest: Revision,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// It fell behind the history.
    #[error(transparent)]
    Lagged(#[from] Lagged),
    /// The store was closed.
    #[error("store is closed")]
    Closed,
}

/// Why a watch cannot start.
pub type WatchError = crate::SnapshotError;
