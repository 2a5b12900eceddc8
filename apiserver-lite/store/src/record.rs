//! Revisions, and the records that a user of the store defines.

use std::fmt;

use bytes::Bytes;

use crate::TransformError;

/// A point in the store's history: the number of writes ever committed, of which the first is 1. Where several servers share a store it is that store's
/// revision: it rises, by any number, and writes of one transaction have one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Revisions of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Revision of the write that created the key (again, if it was deleted in between).
    pub created: Revision,
    /// Revision of the write that made this version.
    pub modified: Revision,
}

/// A value in the store, defined by its user.
///
/// A write passes a [`Draft`](Record::Draft). The writer thread takes its [stored form](Record::stored), assigns a revision and
/// [stamps](Record::stamp) it. Both run on the one thread of all writes: encode before the write, keep the bytes in the draft,
/// and only insert the revision here.
pub trait Record: Send + Sync + Sized + 'static {
    /// A record that has no revision yet.
    type Draft: Send + 'static;

    /// The bytes written to disk, without the revision, which is not known yet.
    fn stored(draft: &Self::Draft) -> Bytes;

    /// The record at its revision, immutable from here on.
    fn stamp(draft: Self::Draft, stamp: Stamp) -> Self;

    /// The record in the event of a deletion: the last version `last` with the revision of the deletion in `stamp.modified`. Not
    /// written to disk.
    fn tombstone(last: &Self, stamp: Stamp) -> Self;

    /// The bytes of memory that the record takes, about, with what is made of it for readers: they bound the history.
    fn memory_len(&self) -> usize;

    /// Restores a record from its [stored form](Record::stored) when the store opens.
    ///
    /// # Errors
    /// The bytes are not a valid record; opening the store fails.
    fn restore(key: &str, stored: Bytes, stamp: Stamp) -> Result<Self, RestoreError>;

    /// A record whose bytes on disk cannot be read now, because of `why`. They stay on disk; [`Store::backup`](crate::Store::backup) takes them from
    /// the record, which keeps them. The default is not to open the store.
    ///
    /// # Errors
    /// Opening the store fails.
    fn unreadable(
        _key: &str,
        _stored: Bytes,
        _stamp: Stamp,
        why: TransformError,
    ) -> Result<Self, RestoreError> {
        Err(why)
    }

    /// Names that one record has at a time, such as an address. Where several servers share a store no two of them get one; a store of one server
    /// does not look at them, since the server itself knows what it has given out.
    fn claims(&self) -> Vec<String> {
        Vec::new()
    }

    /// The [claims](Record::claims) of the record that a draft becomes.
    fn claims_of(_draft: &Self::Draft) -> Vec<String> {
        Vec::new()
    }

    /// What the record is about, where many watches of the same keys follow one topic each, as nodes follow their pods. `None` where it is not known: it
    /// concerns all of them. The default is that of records that no watch follows by topic.
    fn topic(&self) -> Option<&str> {
        None
    }

    /// The group of a key, a beginning of it: each has a history of its own. Prefixes that are watched or read at a revision should not span many. The
    /// default is one group.
    fn history_group(_key: &str) -> &str {
        ""
    }

    /// Whether the record could be read. One that could not is never replaced, only deleted.
    fn is_readable(&self) -> bool {
        true
    }
}

/// Error of [`Record::restore`].
pub type RestoreError = Box<dyn std::error::Error + Send + Sync>;

/// Opaque bytes as records, for tests and simple users.
impl Record for Bytes {
    type Draft = Bytes;

    fn stored(draft: &Bytes) -> Bytes {
        draft.clone()
    }

    fn stamp(draft: Bytes, _: Stamp) -> Self {
        draft
    }

    fn tombstone(last: &Self, _: Stamp) -> Self {
        last.clone()
    }

    fn memory_len(&self) -> usize {
        self.len()
    }

    fn restore(_: &str, stored: Bytes, _: Stamp) -> Result<Self, RestoreError> {
        Ok(stored)
    }
}
