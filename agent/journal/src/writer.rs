//! The writing thread.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redb::Database;

use crate::file;
use crate::queue::{Pending, Progress, Shared};
use crate::record::Batch;
use crate::reserve::Reserve;
use crate::tables::commit;

/// How long records that no action awaits are collected: in a burst one replaces several.
pub const GATHER: Duration = Duration::from_millis(50);
/// Pause before a failed commit is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The writing thread: commits everything pending in one transaction, repeatedly. A failed commit
/// is retried after a pause with everything queued meanwhile.
pub(crate) fn write_all(shared: &Shared, mut open: Open, durable: &Progress) {
    let mut failed = Batch::default();
    loop {
        let (number, closed) = wait(shared, &mut failed, durable);
        match open.write(&failed) {
            Ok(()) => {
                open.reserve.hold();
                failed = Batch::default();
                durable.advance(number);
            }
            Err(error) => {
                tracing::error!(%error, "cannot write the journal; retried, actions that depend on it wait")
            }
        }
        if closed {
            return;
        }
    }
}

/// The store, owned by the thread.
pub(crate) struct Open {
    pub(crate) store: Option<Database>,
    pub(crate) path: PathBuf,
    pub(crate) reserve: Reserve,
}

impl Open {
    /// One commit. After a failure the store must be reopened.
    fn write(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let store = match self.store.take() {
            Some(store) => store,
            None => file::open(&self.path)?,
        };
        commit(&store, batch)?;
        self.store = Some(store);
        Ok(())
    }
}

/// Waits for something to write, and a little longer if nothing is awaited or after a failure, and
/// moves it to `batch`. Returns its number and whether the journal is closed.
fn wait(shared: &Shared, batch: &mut Batch, durable: &Progress) -> (u64, bool) {
    let idle = |p: &mut Pending| p.batch.is_empty() && !p.closed;
    let pending = shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pending = if batch.is_empty() {
        let pending = shared.changed.wait_while(pending, idle);
        let pending = pending.unwrap_or_else(PoisonError::into_inner);
        let done = durable.number.load(Ordering::Acquire);
        let has_no_waiter = |p: &mut Pending| p.awaited <= done && !p.closed;
        let waited = shared.changed.wait_timeout_while(pending, GATHER, has_no_waiter);
        waited.unwrap_or_else(PoisonError::into_inner).0
    } else {
        let closed = |p: &mut Pending| !p.closed;
        let waited = shared.changed.wait_timeout_while(pending, RETRY, closed);
        waited.unwrap_or_else(PoisonError::into_inner).0
    };
    batch.records.append(&mut pending.batch.records);
    batch.notes.append(&mut pending.batch.notes);
    (pending.number, pending.closed)
}
