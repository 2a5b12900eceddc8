//! The records of a store in memory at one revision, kept so that they can be put back.

use std::sync::Arc;

use crate::{Entry, Revision};

/// All records at one revision. Clones share them.
pub struct SavedRecords<T> {
    pub(crate) revision: Revision,
    pub(crate) entries: Arc<[Entry<T>]>,
}

impl<T> SavedRecords<T> {
    /// The revision at which the records were saved.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The records, in ascending order of key.
    #[must_use]
    pub fn entries(&self) -> &[Entry<T>] {
        &self.entries
    }
}

impl<T> Clone for SavedRecords<T> {
    fn clone(&self) -> Self {
        Self { revision: self.revision, entries: self.entries.clone() }
    }
}

/// The records of a store on disk, or of one that several servers share, are not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is on disk: only a store in memory can be restored to a saved state")]
pub struct OnDisk;

/// Why records were not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// The store is on disk.
    #[error(transparent)]
    OnDisk(#[from] OnDisk),
    /// The store has been closed.
    #[error("store is closed")]
    Closed,
}
