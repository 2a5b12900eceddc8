//! Records in a file which pods' tasks are running code at this moment, so that after a crash the
//! next process knows the suspects, and counts crashes per pod.
//!
//! Each pod with a task has a record of fixed length. Its first byte is set exactly while the task
//! is polled, so that a pod that only waits for the runtime is no suspect. Nothing is fsynced: the
//! page cache outlives a killed process, and after a power loss every pod starts without suspicion.

use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proto_api::core::v1::Pod;
use proto_daemon::private_files;

use crate::last_run::LastEnd;

/// Bytes of a record, with its line feed.
const RECORD_BYTES: usize = 160;
/// Longest uid that gets a record.
const UID_BYTES_MAX: usize = 120;
/// Most records that are read; more than a node has pods.
const RECORDS_MAX: usize = 8192;
/// Consecutive crashes with a pod active after which the pod is tried alone.
pub const CRASHES_MAX: u32 = 2;

/// The crash record of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivityRecord {
    /// Uid of the pod.
    pub uid: String,
    /// Whether its task was running code.
    pub is_active: bool,
    /// Whether it was not started at all, because another suspect was on trial or its source had
    /// not synced.
    pub is_held_back: bool,
    /// Consecutive crashes of the agent with this pod active.
    pub crashes: u32,
    /// Whether it is quarantined.
    pub is_quarantined: bool,
    /// Hash of the pod's spec; see [`content_hash`].
    pub content: u64,
}

impl ActivityRecord {
    /// Whether it must be tried while no other suspect runs.
    pub fn is_on_trial(&self) -> bool {
        self.crashes >= CRASHES_MAX && !self.is_quarantined
    }

    fn write(&self) -> Vec<u8> {
        let flag = |flag: bool| if flag { '1' } else { '0' };
        let [active, held_back, quarantined] =
            [self.is_active, self.is_held_back, self.is_quarantined].map(flag);
        let crashes = self.crashes.min(9999);
        let text = format!(
            "{active}{held_back}{quarantined} {crashes:04} {:016x} {}",
            self.content, self.uid
        );
        let mut bytes = text.into_bytes();
        bytes.resize(RECORD_BYTES - 1, b' ');
        bytes.push(b'\n');
        bytes
    }

    /// `None` for a damaged or truncated record.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.split_ascii_whitespace();
        let flags: [u8; 3] = parts.next()?.as_bytes().try_into().ok()?;
        let [is_active, is_held_back, is_quarantined] = flags.map(|flag| flag == b'1');
        let crashes = parts.next()?.parse().ok()?;
        let content = u64::from_str_radix(parts.next()?, 16).ok()?;
        let uid = parts.next()?.to_owned();
        Some(Self { uid, is_active, is_held_back, crashes, is_quarantined, content })
    }
}

/// Updates crash counts after an end that left these records, by uid; only suspects are returned. An agent that was killed by another
/// says nothing for or against a pod.
///
/// A pod that was active in two crashes in a row, and was the only such pod in the last one, is
/// quarantined; several such pods are tried one at a time.
pub fn count_crashes(left: Vec<ActivityRecord>, end: LastEnd) -> BTreeMap<String, ActivityRecord> {
    let counted = left.into_iter().map(|mut record| {
        record.is_active &= end == LastEnd::Crashed;
        let crashes = match () {
            () if end == LastEnd::Killed => record.crashes,
            () if record.is_active => record.crashes.saturating_add(1),
            () if record.is_quarantined || record.is_held_back => record.crashes,
            () => 0,
        };
        ActivityRecord { crashes, ..record }
    });
    let mut all: Vec<ActivityRecord> = counted.filter(|record| record.crashes > 0).collect();
    let is_prime = |record: &ActivityRecord| record.is_active && record.is_on_trial();
    let is_alone = all.iter().filter(|record| is_prime(record)).count() == 1;
    for record in &mut all {
        record.is_quarantined |= is_alone && is_prime(record);
        (record.is_active, record.is_held_back) = (false, true);
    }
    all.into_iter().map(|record| (record.uid.clone(), record)).collect()
}

/// Hash of what a user can change of a pod: spec, labels and annotations.
pub fn content_hash(pod: &Pod) -> u64 {
    let mut hash = DefaultHasher::new();
    serde_json::to_vec(&pod.spec).unwrap_or_default().hash(&mut hash);
    (&pod.metadata.labels, &pod.metadata.annotations).hash(&mut hash);
    hash.finish()
}

/// The record file. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ActivePods(Arc<Mutex<ActivityTable>>);

#[derive(Debug, Default)]
struct ActivityTable {
    file: Option<Arc<ActivityFile>>,
    records: BTreeMap<String, (u64, ActivityRecord)>,
    free: Vec<u64>,
    next: u64,
}

impl ActivePods {
    /// Opens the file at `path`, evaluates the records of an earlier process, which had this `end`,
    /// and rewrites it with the suspects.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(path: &Path, end: LastEnd) -> io::Result<Self> {
        let judged = count_crashes(read(path)?, end);
        let new = path.with_extension("new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private_files::create_private(&new)?;
        let mut records = ActivityTable::default();
        for (uid, record) in judged {
            file.write_all(&record.write())?;
            records.records.insert(uid, (records.next, record));
            records.next = records.next.saturating_add(1);
        }
        // Once at each start, so that a quarantine survives a power loss.
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        records.file = Some(Arc::new(ActivityFile { file, closed: AtomicBool::new(false) }));
        Ok(Self(Arc::new(Mutex::new(records))))
    }

    /// The activity mark for a pod whose task starts. Its crash count is kept unless its spec
    /// changed.
    pub fn mark(&self, uid: &str, content: u64) -> ActivityMark {
        let mut records = self.lock();
        let known = records.record(uid).unwrap_or_default();
        let mut record = ActivityRecord { uid: uid.to_owned(), is_held_back: false, ..known };
        if !record.is_quarantined && record.content != content {
            (record.crashes, record.content) = (0, content);
        }
        match records.put(record) {
            Some(at) => ActivityMark { file: records.file.clone(), at, depth: Arc::default() },
            None => ActivityMark::default(),
        }
    }

    /// The record of a pod.
    pub fn record(&self, uid: &str) -> Option<ActivityRecord> {
        self.lock().record(uid)
    }

    /// Uids of suspects.
    #[cfg(feature = "testing")]
    pub fn suspects(&self) -> Vec<String> {
        let records = self.lock();
        let all = records.records.iter().filter(|(_, (_, record))| record.crashes > 0);
        all.map(|(uid, _)| uid.clone()).collect()
    }

    /// Updates the record of a pod, which is created if absent. Returns the updated record.
    pub fn update(&self, uid: &str, change: impl FnOnce(&mut ActivityRecord)) -> ActivityRecord {
        let mut records = self.lock();
        let mut record = records.record(uid).unwrap_or_default();
        uid.clone_into(&mut record.uid);
        change(&mut record);
        records.put(record.clone());
        record
    }

    /// Removes the record of a deleted pod.
    pub fn forget(&self, uid: &str) {
        let mut records = self.lock();
        if let Some((at, _)) = records.records.remove(uid) {
            records.write(at, &ActivityRecord::default());
            records.free.push(at);
        }
    }

    /// Clears all marks at an orderly shutdown: no pod is blamed for what is still in flight.
    pub fn close(&self) {
        let records = self.lock();
        let Some(marks) = &records.file else { return };
        marks.closed.store(true, Ordering::SeqCst);
        for (at, _) in records.records.values() {
            marks.write(*at, false);
        }
    }

    /// Clears the crash counts of pods that are not quarantined, after the agent has run long
    /// enough.
    pub fn clear_suspicion(&self) {
        let mut records = self.lock();
        let mut all: Vec<ActivityRecord> =
            records.records.values().map(|(_, record)| record.clone()).collect();
        all.retain(|record| record.crashes > 0 && !record.is_quarantined);
        for record in all {
            records.put(ActivityRecord { crashes: 0, is_held_back: false, ..record });
        }
    }

    fn lock(&self) -> MutexGuard<'_, ActivityTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActivityTable {
    fn record(&self, uid: &str) -> Option<ActivityRecord> {
        self.records.get(uid).map(|(_, record)| record.clone())
    }

    /// Writes a record to its slot or a free one, and returns the slot. `None` if the uid does not
    /// fit.
    fn put(&mut self, record: ActivityRecord) -> Option<u64> {
        let fits = !record.uid.is_empty()
            && record.uid.len() <= UID_BYTES_MAX
            && record.uid.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return None;
        }
        let known = self.records.get(&record.uid).map(|(at, _)| *at);
        let at = known.or_else(|| self.free.pop()).unwrap_or_else(|| {
            let at = self.next;
            self.next = self.next.saturating_add(1);
            at
        });
        self.write(at, &record);
        self.records.insert(record.uid.clone(), (at, record));
        Some(at)
    }

    /// A write error is ignored: it must not stop pods from being served.
    fn write(&self, at: u64, record: &ActivityRecord) {
        let Some(ActivityFile { file, .. }) = self.file.as_deref() else { return };
        // The first byte belongs to the activity mark.
        let bytes = record.write();
        let offset = at.saturating_mul(RECORD_BYTES as u64).saturating_add(1);
        let _unwritten = file.write_all_at(bytes.get(1..).unwrap_or_default(), offset);
    }
}

fn read(path: &Path) -> io::Result<Vec<ActivityRecord>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take((RECORD_BYTES * RECORDS_MAX) as u64).read_to_end(&mut bytes)?;
    Ok(bytes.chunks(RECORD_BYTES).filter_map(ActivityRecord::read).collect())
}

/// The file through which marks are set.
#[derive(Debug)]
struct ActivityFile {
    file: File,
    closed: AtomicBool,
}

impl ActivityFile {
    fn write(&self, at: u64, is_active: bool) {
        let mark = if is_active { b"1" } else { b"0" };
        let _unwritten = self.file.write_all_at(mark, at.saturating_mul(RECORD_BYTES as u64));
    }
}

/// The activity mark of one pod. Clones share one mark.
#[derive(Clone, Debug, Default)]
pub struct ActivityMark {
    file: Option<Arc<ActivityFile>>,
    at: u64,
    depth: Arc<Mutex<u32>>,
}

tokio::task_local! {
    static CURRENT: ActivityMark;
}

impl ActivityMark {
    /// The mark of the pod whose task or operation is running; elsewhere a mark without effect.
    pub fn current() -> Self {
        CURRENT.try_with(Clone::clone).unwrap_or_default()
    }

    /// Whether the mark is set.
    pub fn is_marked(&self) -> bool {
        *self.depth.lock().unwrap_or_else(PoisonError::into_inner) > 0
    }

    /// Sets the mark until the returned guard is dropped.
    pub fn set(&self) -> ActivityGuard<'_> {
        self.count(|depth| depth.saturating_add(1));
        ActivityGuard(self)
    }

    /// Sets the mark whenever `work` is polled.
    pub async fn wrap<F: Future>(self, work: F) -> F::Output {
        let mark = self.clone();
        let marked = async move {
            let mut work = pin!(work);
            std::future::poll_fn(move |context| {
                let _guard = mark.set();
                work.as_mut().poll(context)
            })
            .await
        };
        CURRENT.scope(self, marked).await
    }

    fn count(&self, to: impl FnOnce(u32) -> u32) {
        let mut depth = self.depth.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *depth;
        *depth = to(before);
        if let Some(marks) = &self.file
            && (before == 0) != (*depth == 0)
            && !marks.closed.load(Ordering::SeqCst)
        {
            marks.write(self.at, *depth > 0);
        }
    }
}

/// Keeps a pod marked as being processed until it is dropped.
pub struct ActivityGuard<'a>(&'a ActivityMark);

impl Drop for ActivityGuard<'_> {
    fn drop(&mut self) {
        self.0.count(|depth| depth.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
