//! io: a durable store of what a restart must not forget, one record per pod.
//!
//! Writers queue the newest record without waiting; a separate thread commits all pending records
//! in one transaction. An action that depends on a record first awaits [`CommitHandle::durable`].

pub mod active_pods;
mod file;
mod reserve;
#[cfg(feature = "testing")]
pub mod simulated;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use agent_pod::record::PodRecord;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use reserve::Reserve;

const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods");
const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node");
/// Notes of other parts of the agent, by key.
const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
const BOOT_ID: &str = "boot-id";
/// How long records that no action awaits are collected: in a burst one replaces several.
pub const GATHER: Duration = Duration::from_millis(50);
/// Pause before a failed commit is retried.
const RETRY: Duration = Duration::from_secs(1);

/// The record of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// The record of its state machine.
    pub memory: PodRecord,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The store cannot be opened or created.
    #[error("cannot open the journal {}", path.display())]
    Open {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<redb::Error>,
    },
    /// The store cannot be read or written.
    #[error("cannot {verb} the journal")]
    Access {
        /// `read` or `write`.
        verb: &'static str,
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
    shared: Arc<Shared>,
    durable: Arc<Progress>,
}

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
    /// Notified of each queued record, for tests that commit explicitly.
    #[cfg(feature = "testing")]
    given: Arc<Notify>,
    /// Notes at the time of opening.
    notes: BTreeMap<String, Vec<u8>>,
}

/// Queued records and notes.
#[derive(Debug, Default)]
struct Pending {
    batch: Batch,
    number: u64,
    /// The newest number that is awaited.
    awaited: u64,
    closed: bool,
}

/// Handle to await the commit of a queued record.
#[derive(Clone, Debug)]
pub struct CommitHandle {
    number: u64,
    shared: Arc<Shared>,
    durable: Arc<Progress>,
}

/// Number of the last commit. Waiters are woken in order of arrival, so that a test's schedule
/// determines its history.
#[derive(Debug, Default)]
struct Progress {
    number: AtomicU64,
    moved: Notify,
}

impl Progress {
    fn advance(&self, number: u64) {
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

impl Journal {
    /// Opens or creates the journal at `path` and reads all records. Records of an earlier boot
    /// lose their times. Waits a few seconds for a store locked by another process.
    ///
    /// # Errors
    /// The file cannot be used; it is unchanged then.
    pub fn open(
        path: &Path,
        boot_id: &str,
    ) -> Result<(Self, BTreeMap<String, Record>), JournalError> {
        let open = |source: redb::Error| JournalError::Open {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let store = file::open_or_make(path, file::PATIENCE).map_err(open)?;
        let records = read(&store, boot_id).map_err(|source| access("read", source))?;
        mark_boot(&store, boot_id).map_err(|source| access("write", source))?;
        let reserve = Reserve::of(path).map_err(|error| open(redb::Error::Io(error)))?;
        reserve.hold();
        let notes = read_notes(&store).map_err(|source| access("read", source))?;
        let shared = Arc::new(Shared {
            pending: Mutex::default(),
            changed: Condvar::new(),
            #[cfg(feature = "testing")]
            given: Arc::default(),
            notes,
        });
        let durable = Arc::new(Progress::default());
        let progress = durable.clone();
        let (writer, path) = (shared.clone(), path.to_owned());
        std::thread::Builder::new()
            .name("journal".to_owned())
            .stack_size(256 << 10)
            .spawn(move || {
                write_all(&writer, Open { store: Some(store), path, reserve }, &progress)
            })
            .map_err(JournalError::Thread)?;
        Ok((Self { shared, durable }, records))
    }

    /// Queues the newest record of a pod, or its removal.
    pub fn put(&self, uid: &str, record: Option<Record>) -> CommitHandle {
        self.hand_in(|pending| drop(pending.batch.records.insert(uid.to_owned(), record)))
    }

    fn hand_in(&self, add: impl FnOnce(&mut Pending)) -> CommitHandle {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
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

fn access(verb: &'static str, source: redb::Error) -> JournalError {
    JournalError::Access { verb, source: Box::new(source) }
}

/// Skips records that cannot be read: their pods are adopted from the runtime and the API.
fn read(store: &Database, boot_id: &str) -> Result<BTreeMap<String, Record>, redb::Error> {
    let transaction = store.begin_read()?;
    let same_boot = match transaction.open_table(NODE) {
        Ok(node) => node.get(BOOT_ID)?.is_some_and(|known| known.value() == boot_id),
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut records = BTreeMap::new();
    for entry in transaction.open_table(PODS)?.iter()? {
        let (uid, bytes) = entry?;
        match serde_json::from_slice::<Record>(bytes.value()) {
            Ok(mut record) => {
                if !same_boot {
                    record.memory = record.memory.after_reboot();
                }
                records.insert(uid.value().to_owned(), record);
            }
            Err(error) => {
                tracing::warn!(uid = uid.value(), %error, "cannot decode a journal record; its pod is adopted from the runtime and the API")
            }
        }
    }
    Ok(records)
}

fn read_notes(store: &Database) -> Result<BTreeMap<String, Vec<u8>>, redb::Error> {
    let transaction = store.begin_read()?;
    let mut notes = BTreeMap::new();
    for entry in transaction.open_table(NOTES)?.iter()? {
        let (key, note) = entry?;
        notes.insert(key.value().to_owned(), note.value().to_vec());
    }
    Ok(notes)
}

/// Records the boot id if it has changed: a restart in the same boot needs no disk space.
fn mark_boot(store: &Database, boot_id: &str) -> Result<(), redb::Error> {
    let known = match store.begin_read()?.open_table(NODE) {
        Ok(node) => node.get(BOOT_ID)?.is_some_and(|known| known.value() == boot_id),
        Err(redb::TableError::TableDoesNotExist(_)) => false,
        Err(error) => return Err(error.into()),
    };
    if known {
        return Ok(());
    }
    let transaction = store.begin_write()?;
    transaction.open_table(PODS)?;
    transaction.open_table(NOTES)?;
    transaction.open_table(NODE)?.insert(BOOT_ID, boot_id)?;
    transaction.commit()?;
    Ok(())
}

/// The writing thread: commits everything pending in one transaction, repeatedly. A failed commit
/// is retried after a pause with everything queued meanwhile.
fn write_all(shared: &Shared, mut open: Open, durable: &Progress) {
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
struct Open {
    store: Option<Database>,
    path: PathBuf,
    reserve: Reserve,
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

/// A transaction: records by uid and notes by key; `None` removes. Bounded by the number of pods,
/// since newer records replace older ones.
#[derive(Debug, Default)]
struct Batch {
    records: BTreeMap<String, Option<Record>>,
    notes: BTreeMap<String, Option<Vec<u8>>>,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.records.is_empty() && self.notes.is_empty()
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
        let nobody_waits = |p: &mut Pending| p.awaited <= done && !p.closed;
        let waited = shared.changed.wait_timeout_while(pending, GATHER, nobody_waits);
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

fn commit(store: &Database, batch: &Batch) -> Result<(), redb::Error> {
    if batch.is_empty() {
        return Ok(());
    }
    let Batch { records, notes } = batch;
    let transaction = store.begin_write()?;
    {
        let mut pods = transaction.open_table(PODS)?;
        for (uid, record) in records {
            match record.as_ref().map(serde_json::to_vec) {
                Some(Ok(bytes)) => {
                    pods.insert(uid.as_str(), bytes.as_slice())?;
                }
                Some(Err(error)) => {
                    tracing::error!(uid, %error, "cannot encode a journal record; it is not stored")
                }
                None => {
                    pods.remove(uid.as_str())?;
                }
            }
        }
        let mut all = transaction.open_table(NOTES)?;
        for (key, note) in notes {
            match note {
                Some(note) => all.insert(key.as_str(), note.as_slice())?,
                None => all.remove(key.as_str())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        let memory = PodRecord { accepted_boot: Duration::from_secs(7), ..PodRecord::default() };
        Record { namespace: "ns".into(), name: name.into(), memory }
    }

    #[tokio::test]
    async fn records_survive_and_points_in_time_do_not_survive_a_boot() {
        let dir = tempfile::tempdir().expect("tempdir");
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
