//! The part of a watch that a publication changes: its prefix, and from where events are pending.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::Revision;

/// Prefix and pending position of one watch. Changed only under the lock of the state: by a publication with the write lock, by
/// the watch with the read lock.
pub struct Watcher {
    prefix: String,
    /// See [`Record::topic`](crate::Record::topic).
    topic: Option<String>,
    /// No undelivered event that matches is at or before this revision; [`NOTHING`] when all are delivered.
    pending: AtomicU64,
    notify: Notify,
}

/// Larger than any revision.
const NOTHING: u64 = u64::MAX;

impl Watcher {
    pub fn new(prefix: String, topic: Option<String>, after: Revision) -> Self {
        Self { prefix, topic, pending: AtomicU64::new(after.0), notify: Notify::new() }
    }

    /// Marks events after `seen` as pending; returns whether none were pending before.
    pub fn mark_pending(&self, seen: Revision) -> bool {
        let known = self.pending.load(Ordering::Acquire) != NOTHING;
        if !known {
            self.pending.store(seen.0, Ordering::Release);
        }
        !known
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    pub fn wake(&self) {
        self.notify.notify_one();
    }

    /// Waits until [`wake`](Self::wake) is called.
    pub async fn notified(&self) {
        self.notify.notified().await;
    }

    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != NOTHING
    }

    /// The revision after which events are pending; `None` if there are none.
    pub fn pending_after(&self) -> Option<Revision> {
        let pending = self.pending.load(Ordering::Acquire);
        (pending != NOTHING).then_some(Revision(pending))
    }

    /// Marks events after `seen` as pending, also those that were delivered.
    pub fn pend_after(&self, seen: Revision) {
        self.pending.store(seen.0, Ordering::Release);
    }

    /// Takes the revision after which events are pending; `None` if there are none.
    pub fn take_pending(&self) -> Option<Revision> {
        let pending = self.pending.swap(NOTHING, Ordering::AcqRel);
        (pending != NOTHING).then_some(Revision(pending))
    }
}
