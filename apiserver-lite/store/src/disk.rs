//! The directory of a store: the checkpoint and the log after it.
//!
//! ```text
//!   <directory>/records.redb              everything up to revision c
//!   <directory>/log.00000000000000000123  closed segment, being folded into the checkpoint
//!   <directory>/log.00000000000000045678  segment being written
//! ```
//!
//! A full segment is closed; the checkpointer thread folds it into the checkpoint and removes it. A crash in between is harmless:
//! writes that are in both places are skipped when the log is read.
//!
//! A damaged store is not opened and not changed. Only an unacknowledged last frame ([`acknowledged`](crate::acknowledged)) is cut from
//! the end of the log, after it was copied to another file. A segment is removed once all its writes are in the checkpoint.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
};

use proto_daemon::panics::isolate_sync;
use proto_daemon::private_files;

use crate::{
    Medium, OnDamage, RestoreError, Revision, StoreConfig, StoreIdentity,
    acknowledged::{AcknowledgedRevision, KnownRevisions},
    checkpoint::{Checkpoint, StoredRecords},
    damage::{self, Damage},
    log::{self, AppendError, Change, Segment, SegmentItem, SegmentReader},
    log_reader::{LogRead, LogReadError, read_log},
};

/// Closed segments that may wait for the checkpointer. When it falls further behind, writes wait for it.
const CLOSED_LEN_MAX: usize = 4;

/// Where commits are written.
pub enum Disk {
    /// Nothing is written.
    Memory,
    Directory(Log),
}

/// The log of a directory.
pub struct Log {
    directory: PathBuf,
    segment: Segment,
    segment_len_max: u64,
    first: Revision,
    acknowledged: Option<AcknowledgedRevision>,
    closed: mpsc::SyncSender<ClosedSegment>,
    checkpointer: Option<thread::JoinHandle<()>>,
}

/// A segment that is no longer written.
struct ClosedSegment {
    first: Revision,
    /// Its last revision.
    last: Revision,
    path: PathBuf,
}

/// What the directory held when it was opened.
#[derive(Default)]
pub struct DiskContent {
    /// The checkpoint's revision.
    pub revision: Revision,
    /// The records at it.
    pub stored: StoredRecords,
    /// The changes after the checkpoint, without a gap.
    pub changes: Vec<Change>,
}

/// What opening a disk needs of the store's configuration.
pub struct DiskConfig<'a> {
    medium: &'a Medium,
    identity: &'a StoreIdentity,
    segment_len_max: u64,
    on_damage: OnDamage,
}

impl<'a> DiskConfig<'a> {
    pub fn from_config(config: &'a StoreConfig) -> Self {
        Self {
            medium: &config.medium,
            identity: &config.identity,
            segment_len_max: config.segment_len_max,
            on_damage: config.on_damage,
        }
    }
}

impl Disk {
    /// Opens or creates the medium, checks its identity, and reads it.
    pub fn open(config: DiskConfig<'_>) -> Result<(Self, DiskContent), OpenError> {
        let DiskConfig { medium, identity, segment_len_max, on_damage } = config;
        let directory = match medium {
            Medium::Memory => return Ok((Self::Memory, DiskContent::default())),
            Medium::Directory(directory) => directory.clone(),
        };
        let at = |source| OpenError::Directory { path: directory.clone(), source };
        private_files::create_private_dir(&directory).map_err(at)?;
        let file = directory.join("records.redb");
        // redb panics on some kinds of damage.
        let read = isolate_sync(|| {
            let checkpoint = Checkpoint::open(&file, identity)?;
            let (content, found) = read_directory(&directory, &checkpoint, on_damage)?;
            Ok((checkpoint, content, found))
        });
        let (checkpoint, content, found) = read.unwrap_or_else(|panicked| {
            Err(OpenError::DamagedCheckpoint { path: file.clone(), found: panicked.to_string() })
        })?;
        let last = found.changes.last().map_or(found.revision, |change| change.stamp.modified);
        let next = last.next();
        let mut segments = content.segments;

        let (closed, to_fold) = mpsc::sync_channel(CLOSED_LEN_MAX.max(segments.len()));
        let (first, segment) = match (segments.pop(), content.end) {
            (Some((first, path)), Some(end)) => {
                let kept =
                    content.torn.map_or(Ok(()), |why| damage::save_torn_tail(&path, end, why));
                (first, kept.and_then(|()| Segment::resume(path, end)))
            }
            _ => (next, Segment::create(&directory, next)),
        };
        let segment = segment.map_err(at)?;
        let acknowledged = Some(AcknowledgedRevision::open(&directory, last).map_err(at)?);
        let next_firsts: Vec<_> =
            segments.iter().skip(1).map(|(first, _)| *first).chain([first]).collect();
        for ((first, path), next) in segments.into_iter().zip(next_firsts) {
            // The channel has room for all of them.
            let _ = closed.try_send(ClosedSegment {
                first,
                last: Revision(next.0.saturating_sub(1)),
                path,
            });
        }
        let identity = identity.clone();
        let checkpoint = ReopeningCheckpoint { path: file, identity, checkpoint: Some(checkpoint) };
        let checkpointer = spawn_checkpointer(checkpoint, to_fold).map_err(OpenError::Thread)?;
        let checkpointer = Some(checkpointer);
        let log =
            Log { directory, segment, segment_len_max, first, acknowledged, closed, checkpointer };
        Ok((Self::Directory(log), found))
    }

    /// A disk of one segment and no directory, for tests with a faulty file.
    #[cfg(test)]
    pub fn with_segment(segment: Segment) -> Self {
        let (closed, _) = mpsc::sync_channel(1);
        let (directory, first) = (PathBuf::new(), Revision(1));
        Self::Directory(Log {
            directory,
            segment,
            segment_len_max: u64::MAX,
            first,
            acknowledged: None,
            closed,
            checkpointer: None,
        })
    }

    /// Makes `changes` durable together. After an error with an [unknown outcome](CommitError::is_outcome_unknown) nothing
    /// more may be committed until the store has been opened again.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        match self {
            Self::Memory => Ok(()),
            Self::Directory(log) => log.commit(changes),
        }
    }

    /// Closes the directory after folding the segments closed so far into the checkpoint.
    pub fn close(self) {
        let Self::Directory(Log { closed, checkpointer, acknowledged, .. }) = self else { return };
        if let Some(acknowledged) = acknowledged {
            acknowledged.sync();
        }
        drop(closed);
        if let Some(checkpointer) = checkpointer {
            // The thread ends with its channel; the panic hook has already reported a panic in it.
            let _ = checkpointer.join();
        }
    }
}

impl Log {
    fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        if self.segment.len() > self.segment_len_max
            && let Some(first) = changes.first()
        {
            self.rotate(first.stamp.modified)?;
        }
        let append = self.segment.append(changes);
        let path = || self.segment.path.clone();
        append.map_err(|error| match error {
            AppendError::Refused(source) => CommitError::Append { path: path(), source },
            AppendError::Unknown(source) => CommitError::Sync { path: path(), source },
        })?;
        if let (Some(acknowledged), Some(last)) = (&mut self.acknowledged, changes.last()) {
            acknowledged.write(last.stamp.modified);
        }
        Ok(())
    }

    /// Closes the segment and starts the one whose first write is `first`.
    fn rotate(&mut self, first: Revision) -> Result<(), CommitError> {
        let next = Segment::create(&self.directory, first)
            .map_err(|source| CommitError::Rotate { directory: self.directory.clone(), source })?;
        let closed = std::mem::replace(&mut self.segment, next);
        // Waits when the checkpointer is far behind. If its thread has ended, the segment is folded at the next start.
        let last = Revision(first.0.saturating_sub(1));
        let _ = self.closed.send(ClosedSegment { first: self.first, last, path: closed.path });
        self.first = first;
        Ok(())
    }
}

// === Reading ===

/// The segments of the log, and where writing continues.
struct LogContent {
    segments: Vec<(Revision, PathBuf)>,
    /// Where the last segment's frames end; `None` when one has to be made.
    end: Option<u64>,
    torn: Option<&'static str>,
}

fn read_directory(
    directory: &Path,
    checkpoint: &Checkpoint,
    on_damage: OnDamage,
) -> Result<(LogContent, DiskContent), OpenError> {
    let at = |source| OpenError::Directory { path: directory.to_owned(), source };
    let (revision, stored) = checkpoint.load()?;
    let segments = log::segments(directory).map_err(at)?;
    for (_, path) in &segments {
        private_files::make_private(path).map_err(at)?;
    }
    let acknowledged = AcknowledgedRevision::read(directory).map_err(at)?;
    let known = KnownRevisions { checkpoint: revision, acknowledged };
    match read_log(directory, known, &segments) {
        Ok(LogRead { changes, end, torn }) => {
            Ok((LogContent { segments, end, torn }, DiskContent { revision, stored, changes }))
        }
        Err(LogReadError::System(error)) => Err(error),
        Err(LogReadError::Damaged { damage, .. }) if on_damage == OnDamage::Refuse => {
            Err(OpenError::Damaged(damage))
        }
        Err(LogReadError::Damaged { damage, changes }) => {
            tracing::error!(%damage, "the log is damaged; opening the store without the unreadable writes, as --store-accept-damage asks");
            damage::set_aside(directory, checkpoint, known, &segments, changes)?;
            let (revision, stored) = checkpoint.load()?;
            let content = LogContent { segments: Vec::new(), end: None, torn: None };
            Ok((content, DiskContent { revision, stored, changes: Vec::new() }))
        }
    }
}

// === Checkpointing ===

/// Folds closed segments into the checkpoint until the log is dropped.
fn spawn_checkpointer(
    mut checkpoint: ReopeningCheckpoint,
    closed: mpsc::Receiver<ClosedSegment>,
) -> io::Result<thread::JoinHandle<()>> {
    let thread = thread::Builder::new().name("store-checkpoint".into());
    thread.spawn(move || {
        let mut waiting: Vec<ClosedSegment> = Vec::new();
        while let Ok(segment) = closed.recv() {
            waiting.push(segment);
            // Segments are folded in order: one that fails blocks those after it until the next attempt.
            while let Some(segment) = waiting.first() {
                let folded = checkpoint.with(|checkpoint| fold(checkpoint, segment));
                if let Err(error) = folded {
                    let (error, path): (&dyn std::error::Error, _) = (&error, &segment.path);
                    tracing::error!(error, path = %path.display(), "log segment was not folded into the checkpoint; it stays in the log and is retried with the next segment");
                    break;
                }
                waiting.remove(0);
            }
        }
    })
}

/// A checkpoint that is opened again after an error: redb refuses all further writes until then, even if the disk is no longer full.
struct ReopeningCheckpoint {
    path: PathBuf,
    identity: StoreIdentity,
    checkpoint: Option<Checkpoint>,
}

impl ReopeningCheckpoint {
    fn with(
        &mut self,
        work: impl FnOnce(&Checkpoint) -> Result<(), FoldError>,
    ) -> Result<(), FoldError> {
        let checkpoint = match self.checkpoint.take() {
            Some(open) => open,
            None => Checkpoint::open(&self.path, &self.identity)?,
        };
        let done = work(&checkpoint);
        self.checkpoint = match &done {
            Ok(()) => Some(checkpoint),
            Err(_) => {
                drop(checkpoint);
                // Opened again at once, because its lock keeps other processes out; if that fails, at the next attempt.
                Checkpoint::open(&self.path, &self.identity).ok()
            }
        };
        done
    }
}

/// Folds a closed segment into the checkpoint, then removes its file.
fn fold(
    checkpoint: &Checkpoint,
    ClosedSegment { first, last, path }: &ClosedSegment,
) -> Result<(), FoldError> {
    let contained = checkpoint.revision().map_err(Box::new)?;
    if contained < *last {
        let net = read_closed(path, *first, *last)?;
        checkpoint.fold(*last, &net).map_err(Box::new)?;
    }
    fs::remove_file(path)?;
    Ok(())
}

/// The last change of each key in a segment that ends with revision `last`.
fn read_closed(
    path: &Path,
    first: Revision,
    last: Revision,
) -> Result<BTreeMap<Arc<str>, Change>, FoldError> {
    let mut reader = SegmentReader::open(path, first)?;
    let mut net = BTreeMap::new();
    let mut follows = first;
    let found = loop {
        match reader.next_item()? {
            SegmentItem::Frame(frame) => {
                for change in frame {
                    if change.stamp.modified != follows {
                        let found = format!("revision {}", change.stamp.modified);
                        return Err(damage_of_segment(path, reader.end(), found, follows, last));
                    }
                    follows = follows.next();
                    net.insert(change.key.clone(), change);
                }
            }
            SegmentItem::End => break "the segment ends",
            SegmentItem::Bad(what) => break what,
        }
    };
    if follows == last.next() && found == "the segment ends" {
        return Ok(net);
    }
    Err(damage_of_segment(path, reader.end(), found.to_owned(), follows, last))
}

fn damage_of_segment(
    path: &Path,
    offset: u64,
    found: String,
    first: Revision,
    last: Revision,
) -> FoldError {
    let path = path.to_owned();
    FoldError::Damaged(Damage { path, offset, found, first, last: Some(last) })
}

#[derive(Debug, thiserror::Error)]
enum FoldError {
    #[error("read or remove the segment")]
    Segment(#[from] io::Error),
    #[error("commit to the checkpoint")]
    Checkpoint(#[from] Box<redb::Error>),
    #[error("open the checkpoint again")]
    Open(#[from] OpenError),
    #[error("the segment is damaged: {0}")]
    Damaged(Damage),
}

// === Errors ===

/// Why a commit failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The frame was not written, and the segment is unchanged.
    #[error("append to {path}")]
    Append {
        /// The segment.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Whether the frame is on disk is unknown.
    #[error("cannot append to {path}: an earlier write failed and left its end unknown")]
    Sync {
        /// The segment.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The next segment could not be created.
    #[error("create a log segment in {directory}")]
    Rotate {
        /// The store's directory.
        directory: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl CommitError {
    /// Whether the commit may be on disk. Otherwise it is not, and the next one may succeed.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::Sync { .. })
    }
}

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("store {path} is in use by another process")]
    InUse {
        /// The checkpoint, which is locked.
        path: PathBuf,
    },
    /// A directory or file of the store cannot be created or read.
    #[error("open store at {path}")]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The checkpoint cannot be opened or is not a redb database.
    #[error("open store {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of redb.
        source: Box<redb::Error>,
    },
    /// Reading or preparing the checkpoint failed.
    #[error("read checkpoint")]
    Checkpoint {
        /// The error of redb.
        source: Box<redb::Error>,
    },
    /// Acknowledged writes cannot be read. Nothing has been changed.
    #[error(
        "the log is damaged: {0}. Nothing was changed. Restore the directory from a copy, or start once with --store-accept-damage: \
         what can be read before the damage is kept, and the log's files are set aside as *.damaged-<n>"
    )]
    Damaged(Damage),
    /// The checkpoint opens, but its content differs from what was written.
    #[error("checkpoint {path} is damaged: {found}. Restore the directory from a copy")]
    DamagedCheckpoint {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        found: String,
    },
    /// The store has a format that this program does not know.
    #[error(
        "store {path} has format {found:?}, this program reads formats 1 to {newest}: open it with the version that wrote it, or a newer one"
    )]
    Format {
        /// The checkpoint.
        path: PathBuf,
        /// What it says.
        found: String,
        /// The newest known format.
        newest: String,
    },
    /// The store belongs to another naming profile or domain.
    #[error(
        "store has {what} {found:?}, this server has {expected:?}; \
         use another data directory or the store's {what}"
    )]
    Identity {
        /// `profile` or `domain`.
        what: &'static str,
        /// What the store says.
        found: String,
        /// What the server is.
        expected: String,
    },
    /// A record cannot be restored.
    #[error("restore {key}")]
    Restore {
        key: String,
        /// What [`Record::restore`](crate::Record::restore) said.
        source: RestoreError,
    },
    /// A thread cannot be started.
    #[error("start a thread of the store")]
    Thread(#[source] io::Error),
}

#[cfg(test)]
mod tests;
