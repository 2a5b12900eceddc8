//! The writing thread.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redb::Database;

use crate::file;
use crate::queue::{Pending, Progress, Shared};
use crate::record::Batch;
use crate::reserve::Reserve;
use crate::tables::{commit, mark_boot};

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
            // The store writes when it is closed, too.
            let store = open.store.take();
            let _ = file::catch_damage(|| {
                drop(store);
                Ok(())
            });
            return;
        }
    }
}

/// The store, owned by the thread.
pub(crate) struct Open {
    pub(crate) store: Option<Database>,
    pub(crate) path: PathBuf,
    pub(crate) boot_id: String,
    pub(crate) reserve: Reserve,
}

impl Open {
    /// One commit. After a failure the store must be reopened; a damaged one is set aside, and the
    /// commit is the first of an empty one.
    fn write(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let (path, boot_id) = (&self.path, &self.boot_id);
        let attempt = |open: Option<Database>| {
            file::catch_damage(|| {
                let (store, reserve) = match open {
                    Some(store) => (store, None),
                    None => reopen(path, boot_id).map(|(store, of_it)| (store, Some(of_it)))?,
                };
                commit(&store, batch)?;
                Ok((store, reserve))
            })
        };
        let written = match attempt(self.store.take()) {
            Err(damage) if file::is_damage(&damage) => {
                file::replace(path, &damage)?;
                attempt(None)
            }
            written => written,
        };
        let (store, reserve) = written?;
        self.store = Some(store);
        if let Some(reserve) = reserve {
            self.reserve = reserve;
        }
        Ok(())
    }
}

/// Opens the store after a failure. It may be missing, if the damaged one before it could be renamed
/// but the disk had no room for another.
fn reopen(path: &Path, boot_id: &str) -> Result<(Database, Reserve), redb::Error> {
    if !path.exists() {
        file::make(path)?;
    }
    let store = file::open(path)?;
    mark_boot(&store, boot_id)?;
    Ok((store, Reserve::at_path(path)?))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::record::Record;
    use crate::tables::load;

    #[test]
    fn a_store_that_is_found_damaged_while_the_agent_runs_is_set_aside() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        std::fs::write(&path, [0x5a; 8192]).expect("written");
        let reserve = Reserve::at_path(&path).expect("opened");
        // As after a commit that failed.
        let mut open = Open { store: None, path: path.clone(), boot_id: "boot".into(), reserve };
        let records = BTreeMap::from([("a".to_owned(), Some(Record::default()))]);
        let batch = Batch { records, ..Batch::default() };
        open.write(&batch).expect("an empty one takes its place");
        assert_eq!(std::fs::read(path.with_extension("damaged")).expect("aside"), [0x5a; 8192]);
        let store = open.store.take().expect("open");
        let found = load(&store, "boot").expect("read").records;
        assert_eq!(found, BTreeMap::from([("a".to_owned(), Record::default())]));
        // As if the disk had had no room for another.
        drop(store);
        std::fs::remove_file(&path).expect("removed");
        open.write(&batch).expect("made");
    }
}
