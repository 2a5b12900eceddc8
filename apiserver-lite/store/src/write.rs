//! Conditional writes and their results.

use std::{fmt, sync::Arc};

use crate::{Record, Revision};

/// A conditional write of one key.
pub enum Write<T: Record> {
    /// Writes `draft` to the key.
    Put {
        /// The key; not empty.
        key: String,
        /// Condition on the current version.
        expect: WriteCondition,
        /// The new value.
        draft: T::Draft,
    },
    /// Deletes the key. [`WriteCondition::Absent`] never holds here.
    Delete {
        /// The key; not empty.
        key: String,
        /// Condition on the current version.
        expect: WriteCondition,
    },
}

impl<T: Record> Write<T> {
    /// Creates `key`, which must not exist.
    pub fn create(key: impl Into<String>, draft: T::Draft) -> Self {
        Self::Put { key: key.into(), expect: WriteCondition::Absent, draft }
    }

    /// Replaces the version of `key` written at `revision`.
    pub fn update(key: impl Into<String>, revision: Revision, draft: T::Draft) -> Self {
        Self::Put { key: key.into(), expect: WriteCondition::At(revision), draft }
    }

    /// The key that the write changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Deletes the version of `key` written at `revision`.
    pub fn delete(key: impl Into<String>, revision: Revision) -> Self {
        Self::Delete { key: key.into(), expect: WriteCondition::At(revision) }
    }
}

/// Condition of a write on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCondition {
    /// The key does not exist.
    Absent,
    /// The key was last written at this revision.
    At(Revision),
    /// The key exists, at any revision.
    Present,
    /// No condition: a put creates or replaces, a delete removes an existing key.
    Anything,
}

/// A durable and visible write.
pub struct CommittedWrite<T> {
    pub revision: Revision,
    /// The new version, or the tombstone of a deletion.
    pub record: Arc<T>,
    /// The previous version.
    pub previous: Option<Arc<T>>,
}

/// Why a write has no effect. Only after [`NotDurable`](WriteError::NotDurable) that is unknown.
#[derive(thiserror::Error)]
pub enum WriteError<T> {
    /// [`WriteCondition::Absent`], but the key exists.
    #[error("{key} already exists")]
    Exists {
        /// The key that the write changes.
        key: String,
        /// The current version.
        current: Arc<T>,
    },
    /// [`WriteCondition::At`], but the key has another revision. The current version is included, so that the caller can retry without a
    /// read.
    #[error("{key} is at revision {revision}, not {expected}")]
    Conflict {
        /// The key that the write changes.
        key: String,
        /// The expected revision.
        expected: Revision,
        /// The current revision of the key.
        revision: Revision,
        /// The current version.
        current: Arc<T>,
    },
    /// The write expects the key, but it does not exist.
    #[error("{key} not found")]
    NotFound {
        /// The key that the write changes.
        key: String,
    },
    /// Key or value is too long, or the key is empty.
    #[error("{key}: {what} has {len} bytes, expected 1 to {max}")]
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
    /// The current version is [unreadable](crate::Record::unreadable). It can be deleted, not replaced.
    #[error("{key} cannot be read, and is not replaced")]
    Unreadable {
        /// The key that the write changes.
        key: String,
    },
    /// The value cannot be transformed for the disk. Nothing was written.
    #[error("{key} cannot be written: {reason}")]
    Transform {
        /// The key that the write changes.
        key: String,
        /// What the [transform](crate::Transform) said.
        reason: String,
    },
    /// The record needs a [claim](crate::Record::claims) that another record has.
    #[error("{key} cannot have {claim}: it is allocated to another record")]
    Claimed {
        /// The key that the write changes.
        key: String,
        claim: String,
    },
    /// The commit was not written. Nothing of it is on disk, and the next one may succeed.
    #[error("nothing was written: {reason}")]
    NotWritten {
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// The commit failed and may be on disk, or in the store that several servers share. It is not visible now. On disk it may be after the store is
    /// opened again, which is read-only until then; where servers share a store it is as soon as that says so.
    #[error("{key}: commit failed: {reason}")]
    NotDurable {
        /// The key that the write changes.
        key: String,
        /// The error of the disk.
        reason: Arc<str>,
    },
    /// An earlier commit failed with an unknown outcome; the store only serves reads.
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
