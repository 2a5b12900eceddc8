//! Following the store from a revision on.

use std::sync::Arc;

use crate::{Compacted, Record, Revision, Stamp, state::Shared};

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
/// its place is compacted away ends with [`Lagged`].
pub struct Watch<T> {
    shared: Arc<Shared<T>>,
    prefix: String,
    seen: Revision,
    wake: tokio::sync::watch::Receiver<Revision>,
}

/// Most events that one call copies out of the log.
const BATCH_LEN_MAX: usize = 256;

impl<T: Record> Watch<T> {
    pub(crate) fn new(
        shared: Arc<Shared<T>>,
        prefix: String,
        after: Revision,
        wake: tokio::sync::watch::Receiver<Revision>,
    ) -> Self {
        Self { shared, prefix, seen: after, wake }
    }

    /// Everything up to this revision has been delivered (or did not match): what a bookmark says.
    #[must_use]
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// Waits for events and appends them to `into`, in order; at least one, at most 256. Cancel-safe: an
    /// event is either in `into` or will be delivered by the next call.
    ///
    /// # Errors
    /// [`WatchEnd::Lagged`] when the next event is no longer kept; [`WatchEnd::Closed`] when the store
    /// has been closed and everything has been delivered.
    pub async fn next_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), WatchEnd> {
        loop {
            // Mark the wake-up seen before looking: what is committed after the look wakes us again.
            let current = *self.wake.borrow_and_update();
            while self.seen < current {
                let before = into.len();
                self.try_batch(into)?;
                if into.len() > before {
                    return Ok(());
                }
            }
            self.wake.changed().await.map_err(|_| WatchEnd::Closed)?;
        }
    }

    /// Appends to `into` what can be delivered now, at most 256 events; possibly none.
    ///
    /// # Errors
    /// The next event is no longer kept.
    pub fn try_batch(&mut self, into: &mut Vec<Event<T>>) -> Result<(), Lagged> {
        let state = self.shared.read();
        self.seen = state
            .events_after(self.seen, &self.prefix, BATCH_LEN_MAX, into)
            .map_err(|Compacted { asked, oldest }| Lagged { seen: asked, oldest })?;
        Ok(())
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
