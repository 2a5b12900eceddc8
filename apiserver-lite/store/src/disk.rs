//! A store's directory: the checkpoint, and the log behind it.
//!
//! ```text
//!   <directory>/records.redb              everything up to revision c
//!   <directory>/log.00000000000000000123  closed segment, being folded into the checkpoint
//!   <directory>/log.00000000000000045678  segment that is written
//! ```
//!
//! A full segment is closed and handed to the checkpointer thread, which folds it in and removes it. A
//! crash anywhere in between is harmless: what is in both places is skipped when the log is read. Damage
//! before the log's end is refused, not skipped.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
};

use crate::{
    Identity, Medium, RestoreError, Revision,
    checkpoint::{Checkpoint, StoredRecords, checkpoint_error},
    log::{self, AppendError, Change, Segment, SegmentReader},
};

/// Closed segments that may wait for the checkpointer. When it falls further behind, writes wait for it.
const CLOSED_LEN_MAX: usize = 4;

/// Where commits go.
pub enum Disk {
    /// Nowhere.
    Memory,
    /// To a directory.
    Directory(Log),
}

/// The log of a directory.
pub struct Log {
    directory: PathBuf,
    segment: Segment,
    segment_len_max: u64,
    first: Revision,
    closed: mpsc::SyncSender<(Revision, PathBuf)>,
    checkpointer: Option<thread::JoinHandle<()>>,
}

/// What was on disk.
#[derive(Default)]
pub struct Found {
    /// The checkpoint's revision.
    pub revision: Revision,
    /// The records at it.
    pub stored: StoredRecords,
    /// What was written after it, without a gap.
    pub changes: Vec<Change>,
}

impl Disk {
    /// Opens or creates what `medium` says, checks that it is `identity`'s, and reads it.
    pub fn open(
        medium: Medium,
        identity: &Identity,
        segment_len_max: u64,
    ) -> Result<(Self, Found), OpenError> {
        let directory = match medium {
            Medium::Memory => return Ok((Self::Memory, Found::default())),
            Medium::Directory(directory) => directory,
        };
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Directory { path, source }
        };
        fs::create_dir_all(&directory).map_err(at(&directory))?;
        let file = directory.join("records.redb");
        let checkpoint = Checkpoint::open(&file, identity)?;
        let (revision, stored) = checkpoint.load().map_err(checkpoint_error)?;
        let mut segments = log::segments(&directory).map_err(at(&directory))?;
        let (changes, end) = read_log(revision, &segments)?;
        let next = changes.last().map_or(revision, |change| change.stamp.modified).next();

        let (closed, to_fold) = mpsc::sync_channel(CLOSED_LEN_MAX.max(segments.len()));
        let (first, segment) = match (segments.pop(), end) {
            (Some((first, path)), Some(end)) => (first, Segment::resume(path, end)),
            _ => (next, Segment::create(&directory, next)),
        };
        let segment = segment.map_err(at(&directory))?;
        for older in segments {
            // The channel has room for all of them.
            let _ = closed.try_send(older);
        }
        let identity = identity.clone();
        let checkpoint = KeptOpen { path: file, identity, checkpoint: Some(checkpoint) };
        let checkpointer = spawn_checkpointer(checkpoint, to_fold).map_err(OpenError::Thread)?;
        let checkpointer = Some(checkpointer);
        let log = Log { directory, segment, segment_len_max, first, closed, checkpointer };
        Ok((Self::Directory(log), Found { revision, stored, changes }))
    }

    /// One segment and no directory: tests bring a file that fails.
    #[cfg(test)]
    pub fn with_segment(segment: Segment) -> Self {
        let (closed, _) = mpsc::sync_channel(1);
        let (directory, first) = (PathBuf::new(), Revision(1));
        Self::Directory(Log {
            directory,
            segment,
            segment_len_max: u64::MAX,
            first,
            closed,
            checkpointer: None,
        })
    }

    /// Makes `changes` durable together. After an error that [is final](CommitError::is_final) nothing is known of
    /// them until the store has been opened again, and nothing more may be committed.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), CommitError> {
        match self {
            Self::Memory => Ok(()),
            Self::Directory(log) => log.commit(changes),
        }
    }

    /// Lets go of the directory, when the segments closed so far have been folded in.
    pub fn close(self) {
        let Self::Directory(Log { closed, checkpointer, .. }) = self else { return };
        drop(closed);
        if let Some(checkpointer) = checkpointer {
            // It ends with its channel; a panic in it has been reported by itself.
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
        })
    }

    /// Closes the segment and starts the one whose first write is `first`.
    fn rotate(&mut self, first: Revision) -> Result<(), CommitError> {
        let next = Segment::create(&self.directory, first)
            .map_err(|source| CommitError::Rotate { directory: self.directory.clone(), source })?;
        let closed = std::mem::replace(&mut self.segment, next);
        // Waits when the checkpointer is far behind. If it is gone, the segment is folded at the next start.
        let _ = self.closed.send((self.first, closed.path));
        self.first = first;
        Ok(())
    }
}

// === Reading ===

/// What the log says after `revision`, and where its last segment ends; no end if that segment must be
/// made anew.
fn read_log(
    revision: Revision,
    segments: &[(Revision, PathBuf)],
) -> Result<(Vec<Change>, Option<u64>), OpenError> {
    let mut changes = Vec::new();
    let mut last = revision;
    let mut end = None;
    for (nth, (first, path)) in segments.iter().enumerate() {
        let failed = |source| OpenError::Directory { path: path.clone(), source };
        let mut reader = SegmentReader::open(path, *first).map_err(failed)?;
        let mut follows = *first;
        while let Some(frame) = reader.next_frame().map_err(failed)? {
            for change in frame {
                if change.stamp.modified != follows {
                    return Err(OpenError::Log { path: path.clone(), missing: follows });
                }
                follows = follows.next();
                if change.stamp.modified > revision {
                    if change.stamp.modified != last.next() {
                        return Err(OpenError::Log { path: path.clone(), missing: last.next() });
                    }
                    last = change.stamp.modified;
                    changes.push(change);
                }
            }
        }
        // A segment ends where the next one starts; only the last may end anywhere.
        match segments.get(nth + 1) {
            Some((next, _)) if *next != follows => {
                return Err(OpenError::Log { path: path.clone(), missing: follows });
            }
            Some(_) => {}
            None => end = (reader.end() > 0).then_some(reader.end()),
        }
    }
    Ok((changes, end))
}

// === Checkpointing ===

/// Folds closed segments into the checkpoint until the log is dropped.
fn spawn_checkpointer(
    mut checkpoint: KeptOpen,
    closed: mpsc::Receiver<(Revision, PathBuf)>,
) -> io::Result<thread::JoinHandle<()>> {
    let thread = thread::Builder::new().name("store-checkpoint".into());
    thread.spawn(move || {
        let mut waiting: Vec<(Revision, PathBuf)> = Vec::new();
        while let Ok(segment) = closed.recv() {
            waiting.push(segment);
            // In order: a segment that cannot be folded holds up those behind it until the next try.
            while let Some((first, path)) = waiting.first() {
                let folded = checkpoint.with(|checkpoint| fold(checkpoint, *first, path));
                if let Err(error) = folded {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, path = %path.display(), "segment stays in the log");
                    break;
                }
                waiting.remove(0);
            }
        }
    })
}

/// The checkpoint of a process that goes on after an error: redb writes nothing more, a full disk being over or not, until it has
/// been opened again.
struct KeptOpen {
    path: PathBuf,
    identity: Identity,
    checkpoint: Option<Checkpoint>,
}

impl KeptOpen {
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
                // At once, since it is its lock that keeps other processes out; if not now, then at the next try.
                Checkpoint::open(&self.path, &self.identity).ok()
            }
        };
        done
    }
}

/// Brings one closed segment into the checkpoint and removes its file.
fn fold(checkpoint: &Checkpoint, first: Revision, path: &Path) -> Result<(), FoldError> {
    let mut reader = SegmentReader::open(path, first)?;
    let contained = checkpoint.revision().map_err(Box::new)?;
    let mut last = contained;
    let mut net = BTreeMap::new();
    while let Some(frame) = reader.next_frame()? {
        for change in frame {
            if change.stamp.modified > contained {
                last = change.stamp.modified;
                net.insert(change.key.clone(), change);
            }
        }
    }
    if !net.is_empty() {
        checkpoint.fold(last, &net).map_err(Box::new)?;
    }
    fs::remove_file(path)?;
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum FoldError {
    #[error("read or remove the segment")]
    Segment(#[from] io::Error),
    #[error("commit to the checkpoint")]
    Checkpoint(#[from] Box<redb::Error>),
    #[error("open the checkpoint again")]
    Open(#[from] OpenError),
}

// === Errors ===

/// Why a commit failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The frame could not be written, and nothing of it is left.
    #[error("append to {path}")]
    Append {
        /// The segment.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The frame may be on the medium or not.
    #[error("append to {path}, whose content is not known now")]
    Sync {
        /// The segment.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The next segment could not be created.
    #[error("create a log segment in {directory}")]
    Rotate {
        /// The store's directory.
        directory: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl CommitError {
    /// Whether it is not known what the medium holds. Otherwise nothing of the commit is there, and the next one may succeed.
    pub fn is_final(&self) -> bool {
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
    /// A directory or file of it cannot be made or read.
    #[error("open store at {path}")]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The checkpoint cannot be opened or is none.
    #[error("open store {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What redb says.
        source: Box<redb::Error>,
    },
    /// Reading or preparing the checkpoint failed.
    #[error("read checkpoint")]
    Checkpoint {
        /// What redb says.
        source: Box<redb::Error>,
    },
    /// The log is damaged before its end: acknowledged writes are missing.
    #[error(
        "log {path} is damaged: revision {missing} is missing; restore the directory from a copy"
    )]
    Log {
        /// The segment.
        path: PathBuf,
        /// The first revision that is not there.
        missing: Revision,
    },
    /// The store belongs to a server with other names, or was written in another format.
    #[error(
        "store has {what} {found:?}, this server has {expected:?}; \
         use another data directory or the store's {what}"
    )]
    Identity {
        /// `format`, `profile` or `domain`.
        what: &'static str,
        /// What the store says.
        found: String,
        /// What the server is.
        expected: String,
    },
    /// A record cannot be read back.
    #[error("restore {key}")]
    Restore {
        /// Its key.
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
