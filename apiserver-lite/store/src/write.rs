//! A conditional write and its answer.

use std::{fmt, sync::Arc};

use crate::{Record, Revision};

/// One key to change, if it is as expected.
pub enum Write<T: Record> {
    /// Make the key hold `draft`.
    Put {
        /// The key; not empty.
        key: String,
        /// What must be true of the key now.
        expect: Expect,
        /// The new value.
        draft: T::Draft,
    },
    /// Remove the key. [`Expect::Absent`] makes no sense here and never holds.
    Delete {
        /// The key; not empty.
        key: String,
        /// What must be true of the key now.
        expect: Expect,
    },
}

impl<T: Record> Write<T> {
    /// Creates `key`, which must not be there.
    pub fn create(key: impl Into<String>, draft: T::Draft) -> Self {
        Self::Put { key: key.into(), expect: Expect::Absent, draft }
    }

    /// Replaces the version of `key` that was made at `revision`.
    pub fn update(key: impl Into<String>, revision: Revision, draft: T::Draft) -> Self {
        Self::Put { key: key.into(), expect: Expect::At(revision), draft }
    }

    /// Removes the version of `key` that was made at `revision`.
    pub fn delete(key: impl Into<String>, revision: Revision) -> Self {
        Self::Delete { key: key.into(), expect: Expect::At(revision) }
    }
}

/// What a write expects of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The key is not there.
    Absent,
    /// The key is there and was last written at this revision.
    At(Revision),
    /// The key is there, at any revision.
    Present,
    /// Nothing: a put creates or replaces, a delete removes what is there.
    Anything,
}

/// A write that is durable and visible.
pub struct CommittedWrite<T> {
    /// Its revision.
    pub revision: Revision,
    /// The new version, or what watchers are told of a deletion.
    pub record: Arc<T>,
    /// The version that was there before.
    pub previous: Option<Arc<T>>,
}

/// Why a write had no effect; only after [`NotDurable`](WriteError::NotDurable) is that not known.
#[derive(thiserror::Error)]
pub enum WriteError<T> {
    /// [`Expect::Absent`], and it is there.
    #[error("{key} already exists")]
    Exists {
        /// The key.
        key: String,
        /// What is there.
        current: Arc<T>,
    },
    /// [`Expect::At`] another revision than the current one, which is given with its record so that
    /// the caller can try again without reading.
    #[error("{key} is at revision {revision}, not {expected}")]
    Conflict {
        /// The key.
        key: String,
        /// What the write expected.
        expected: Revision,
        /// What is true.
        revision: Revision,
        /// What is there.
        current: Arc<T>,
    },
    /// The write expects the key, and it is not there.
    #[error("{key} not found")]
    NotFound {
        /// The key.
        key: String,
    },
    /// Key or value is longer than the store allows, or the key is empty.
    #[error("{key}: {what} has {len} bytes, allowed are 1 to {max}")]
    Size {
        /// The key, shortened.
        key: String,
        /// `key` or `value`.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The bound.
        max: usize,
    },
    /// The commit could not be written. Nothing of it is on disk, and the next may succeed.
    #[error("nothing was written: {reason}")]
    NotWritten {
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// The commit failed. Nothing of it is visible now, but it may be on disk: after the store has been
    /// opened again the write can turn out to have happened. The store is read-only until then.
    #[error("{key}: commit failed: {reason}")]
    NotDurable {
        /// The key.
        key: String,
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// An earlier commit failed and the store only answers reads.
    #[error("store is read-only: {reason}")]
    ReadOnly {
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// The store has been closed.
    #[error("store is closed")]
    Closed,
}

impl<T> fmt::Debug for WriteError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Records need not be printable; the message names everything else.
        write!(f, "WriteError({self})")
    }
}

impl<T> fmt::Debug for CommittedWrite<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommittedWrite").field("revision", &self.revision).finish_non_exhaustive()
    }
}
