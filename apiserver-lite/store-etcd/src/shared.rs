//! What the tasks of a store share.

use apiserver_store::{Follower, Record};
use tokio::sync::Notify;

use crate::{client::Etcd, keys::Keys};

/// What the tasks of a store share.
pub struct Shared<T: Record> {
    pub etcd: Etcd,
    pub keys: Keys,
    pub follower: Follower<T>,
    /// Which etcd it was when the store was opened.
    pub cluster: u64,
    /// Told when the watch may hang.
    pub doubted: Notify,
}

impl<T: Record> Shared<T> {
    /// Lets the watch be begun anew.
    pub fn doubt(&self) {
        self.doubted.notify_waiters();
    }
}
