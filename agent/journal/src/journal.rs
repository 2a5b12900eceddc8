//! The journal: opened once, written by a thread of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::file;
use crate::queue::{CommitHandle, Pending, Progress, Shared};
use crate::record::Record;
use crate::reserve::Reserve;
use crate::tables::{Content, load};
use crate::writer::{Open, write_all};

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The store cannot be opened, read or created.
    #[error("cannot open the journal {}", path.display())]
    Open {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<redb::Error>,
    },
    /// The writing thread cannot be started.
    #[error("cannot start the journal's thread")]
    Thread(#[source] std::io::Error),
}

/// The journal. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    pub(crate) shared: Arc<Shared>,
    pub(crate) durable: Arc<Progress>,
}

impl Journal {
    /// Opens or creates the journal at `path` and reads all records. Records of an earlier boot
    /// lose their times. Waits a few seconds for a store locked by another process. A damaged store
    /// is set aside.
    ///
    /// # Errors
    /// The file cannot be used; it keeps its name then.
    pub fn open(
        path: &Path,
        boot_id: &str,
    ) -> Result<(Self, BTreeMap<String, Record>), JournalError> {
        let open = |source: redb::Error| JournalError::Open {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let read = |store: &redb::Database| load(store, boot_id);
        let opened = file::open_or_make(path, file::PATIENCE, read);
        let (store, Content { records, notes }) = opened.map_err(open)?;
        let reserve = Reserve::at_path(path).map_err(|error| open(redb::Error::Io(error)))?;
        reserve.hold();
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            changed: Condvar::new(),
            #[cfg(feature = "testing")]
            given: Arc::default(),
            notes,
        });
        let durable = Arc::new(Progress::default());
        let progress = durable.clone();
        let writer = shared.clone();
        let open = Open {
            store: Some(store),
            path: path.to_owned(),
            boot_id: boot_id.to_owned(),
            reserve,
        };
        std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(256 << 10)
            .spawn(move || write_all(&writer, open, &progress))
            .map_err(JournalError::Thread)?;
        Ok((Self { shared, durable }, records))
    }

    /// A journal of a node that is gone with its process: everything counts as durable at once, and nothing is kept.
    pub fn of_hollow_node() -> Self {
        let shared = Shared {
            pending: Mutex::new(Pending { discards: true, ..Pending::default() }),
            changed: Condvar::new(),
            #[cfg(feature = "testing")]
            given: Arc::default(),
            notes: BTreeMap::new(),
        };
        // No record has a higher number.
        let durable = Progress::default();
        durable.advance(u64::MAX);
        Self { shared: Arc::new(shared), durable: Arc::new(durable) }
    }

    /// Queues the newest record of a pod, or its removal.
    pub fn put(&self, uid: &str, record: Option<Record>) -> CommitHandle {
        self.hand_in(|pending| drop(pending.batch.records.insert(uid.to_owned(), record)))
    }

    fn hand_in(&self, add: impl FnOnce(&mut Pending)) -> CommitHandle {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.discards {
            return self.ticket(pending.number);
        }
        // The thread is woken once per batch.
        let is_first = pending.batch.is_empty();
        add(&mut pending);
        pending.number += 1;
        if is_first {
            self.shared.changed.notify_one();
        }
        #[cfg(feature = "testing")]
        self.shared.given.notify_one();
        self.ticket(pending.number)
    }

    fn ticket(&self, number: u64) -> CommitHandle {
        CommitHandle { number, shared: self.shared.clone(), durable: self.durable.clone() }
    }

    /// Queues a note of another part of the agent, or its removal.
    pub fn put_note(&self, key: &str, note: Option<Vec<u8>>) -> CommitHandle {
        self.hand_in(|pending| drop(pending.batch.notes.insert(key.to_owned(), note)))
    }

    /// A note as read when the journal was opened.
    pub fn note(&self, key: &str) -> Option<Vec<u8>> {
        self.shared.notes.get(key).cloned()
    }

    /// The notes whose keys start with `prefix`, as read when the journal was opened.
    pub fn notes(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let with = self.shared.notes.iter().filter(|(key, _)| key.starts_with(prefix));
        with.map(|(key, note)| (key.clone(), note.clone())).collect()
    }

    /// Stops the writing thread after everything pending is on disk.
    pub fn close(&self) {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.closed = true;
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use agent_pod::record::PodRecord;

    use super::*;

    fn record(name: &str) -> Record {
        let memory = PodRecord { accepted_boot: Duration::from_secs(7), ..PodRecord::default() };
        Record { namespace: "ns".into(), name: name.into(), memory }
    }

    #[tokio::test]
    async fn the_journal_of_a_hollow_node_holds_up_nothing_and_keeps_nothing() {
        let journal = Journal::of_hollow_node();
        journal.put("a", Some(record("pa"))).durable().await;
        journal.put_note("n", Some(b"1".to_vec())).durable().await;
        assert_eq!(journal.note("n"), None);
        assert!(journal.shared.pending.lock().expect("lock").batch.is_empty());
    }

    #[tokio::test]
    async fn records_survive_and_points_in_time_do_not_survive_a_boot() {
        // In memory, if possible: the writing thread may keep the file open while a busy disk syncs it.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let dir = dir.expect("tempdir");
        let path = dir.path().join("journal.redb");
        let (journal, records) = Journal::open(&path, "boot-1").expect("open");
        assert!(records.is_empty());
        journal.put("a", Some(record("old"))).durable().await;
        journal.put("a", Some(record("pa")));
        journal.put("gone", Some(record("x")));
        journal.put("gone", None).durable().await;
        journal.put_note("share/a", Some(b"1".to_vec()));
        journal.put_note("share/b", Some(b"2".to_vec()));
        journal.put_note("share/b", None).durable().await;
        journal.close();
        drop(journal);
        // The writing thread closes the file when it ends.
        let (journal, records) = Journal::open(&path, "boot-1").expect("open again");
        assert_eq!(records, BTreeMap::from([("a".to_owned(), record("pa"))]));
        assert_eq!(journal.notes("share/"), BTreeMap::from([("share/a".into(), b"1".to_vec())]));
        assert_eq!((journal.note("share/a"), journal.note("x")), (Some(b"1".to_vec()), None));
        journal.close();
        drop(journal);
        let (_, records) = Journal::open(&path, "boot-2").expect("open after a boot");
        assert_eq!(records["a"].memory.accepted_boot, Duration::ZERO);
    }
}
