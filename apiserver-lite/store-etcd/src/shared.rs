//! What the tasks of a store share.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use apiserver_store::{Follower, Record, StoreIdentity};
use tokio::sync::Notify;

use crate::{client::Etcd, keys::Keys, marks::Mark};

/// What the tasks of a store share.
pub struct Shared<T: Record> {
    pub etcd: Etcd,
    pub keys: Keys,
    pub identity: StoreIdentity,
    pub follower: Follower<T>,
    /// The mark of the last write that memory has.
    pub last: Mutex<Mark>,
    /// How often memory has taken over a restored etcd.
    pub restores: AtomicU64,
    /// Notified when the watch may hang.
    pub doubted: Notify,
}

impl<T: Record> Shared<T> {
    /// Ends the watch, and a new one begins.
    pub fn doubt(&self) {
        self.doubted.notify_waiters();
    }

    /// The mark of the last write that memory has.
    pub fn last_seen(&self) -> Mark {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Differs after etcd was restored.
    pub fn restores(&self) -> u64 {
        self.restores.load(Ordering::Acquire)
    }

    /// Memory is about to take over a restored etcd.
    pub fn note_restore(&self) {
        self.restores.fetch_add(1, Ordering::AcqRel);
    }

    pub fn set_last_seen(&self, mark: Mark) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }
}
