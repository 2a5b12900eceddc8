//! Records that wait for their commit, and handles to await it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::record::Batch;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pending: Mutex<Pending>,
    pub(crate) changed: Condvar,
    /// Notified of each queued record, for tests that commit explicitly.
    #[cfg(feature = "testing")]
    pub(crate) given: Arc<Notify>,
    /// Notes at the time of opening.
    pub(crate) notes: BTreeMap<String, Vec<u8>>,
}

/// Queued records and notes.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) batch: Batch,
    pub(crate) number: u64,
    /// The newest number that is awaited.
    pub(crate) awaited: u64,
    pub(crate) closed: bool,
    /// Whether nothing is kept.
    pub(crate) discards: bool,
}

/// Handle to await the commit of a queued record.
#[derive(Clone, Debug)]
pub struct CommitHandle {
    pub(crate) number: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) durable: Arc<Progress>,
}

/// Number of the last commit. Waiters are woken in order of arrival, so that a test's schedule
/// determines its history.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) number: AtomicU64,
    moved: Notify,
}

impl Progress {
    pub(crate) fn advance(&self, number: u64) {
        self.number.store(number, Ordering::Release);
        self.moved.notify_waiters();
    }

    async fn reach(&self, number: u64) {
        loop {
            // Created before the check, so that a commit in between is not missed.
            let moved = self.moved.notified();
            if self.number.load(Ordering::Acquire) >= number {
                return;
            }
            moved.await;
        }
    }
}

impl CommitHandle {
    /// Waits until the record is on disk. Cancel safe. Never returns if the disk rejects it, so
    /// that the dependent action does not happen.
    pub async fn durable(self) {
        if self.durable.number.load(Ordering::Acquire) < self.number {
            let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.awaited = pending.awaited.max(self.number);
            self.shared.changed.notify_one();
            #[cfg(feature = "testing")]
            self.shared.given.notify_one();
        }
        self.durable.reach(self.number).await;
    }
}
