//! What the store holds: revisions, and the records of whoever uses it.

use std::fmt;

use bytes::Bytes;

/// A point in the store's history: the number of writes ever committed. The first write is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When a record came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Revision of the write that created the key (again, if it was deleted in between).
    pub created: Revision,
    /// Revision of the write that made this version.
    pub modified: Revision,
}

/// A value as the store's user knows it.
///
/// A write hands over a [`Draft`](Record::Draft). The writer thread asks for its
/// [stored form](Record::stored), gives it a revision and [stamps](Record::stamp) it. Both run on the
/// one thread all writes go through: do expensive work (encoding) before, keep it in the draft, and
/// only splice the revision in here.
pub trait Record: Send + Sync + Sized + 'static {
    /// A record that has no revision yet.
    type Draft: Send + 'static;

    /// The bytes that go to disk. They cannot contain the revision, which is not known yet.
    fn stored(draft: &Self::Draft) -> Bytes;

    /// The record at its revision; from here on immutable and shared.
    fn stamp(draft: Self::Draft, stamp: Stamp) -> Self;

    /// What watchers are told when `last` is deleted: its last state, carrying the revision of the
    /// deletion in `stamp.modified`. Never on disk.
    fn tombstone(last: &Self, stamp: Stamp) -> Self;

    /// Reads back what [`stored`](Record::stored) made, when the store opens.
    ///
    /// # Errors
    /// The bytes are not a record of this kind; opening the store fails with it.
    fn restore(key: &str, stored: Bytes, stamp: Stamp) -> Result<Self, RestoreError>;
}

/// Why [`Record::restore`] refused.
pub type RestoreError = Box<dyn std::error::Error + Send + Sync>;

/// Opaque bytes are a record of their own; tests and small users need no more.
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

    fn restore(_: &str, stored: Bytes, _: Stamp) -> Result<Self, RestoreError> {
        Ok(stored)
    }
}
