//! Reading the store at one revision.

use std::sync::Arc;

use crate::{Record, Revision, Stamp, state::SharedState};

/// The store at one revision. A snapshot holds no data: its revision can be compacted while it exists, and reads then return
/// [`Compacted`].
pub struct Snapshot<T> {
    shared: Arc<SharedState<T>>,
    revision: Revision,
}

impl<T: Record> Snapshot<T> {
    pub(crate) fn new(shared: Arc<SharedState<T>>, revision: Revision) -> Self {
        Self { shared, revision }
    }

    /// The revision of all reads.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The version of `key`, if it exists at this revision.
    ///
    /// # Errors
    /// The revision is no longer kept.
    pub fn get(&self, key: &str) -> Result<Option<Entry<T>>, Compacted> {
        self.shared.read().get(key, self.revision)
    }

    /// The keys of a range in byte order.
    ///
    /// # Errors
    /// The revision is no longer kept.
    pub fn range(&self, range: Range<'_>) -> Result<Page<T>, Compacted> {
        self.shared.read().range(range, self.revision)
    }

    /// The number of keys in a range, at most its limit. Cheaper than reading them.
    ///
    /// # Errors
    /// The revision is no longer kept.
    pub fn count(&self, range: Range<'_>) -> Result<usize, Compacted> {
        self.shared.read().count(range, self.revision)
    }
}

/// Which keys to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    /// Only keys with this prefix; empty for all. End it with a separator to stay within one level.
    pub prefix: &'a str,
    /// Only keys after this one, which need not exist: the last key of the previous page.
    pub after: Option<&'a str>,
    /// Most keys to return; `None` for all.
    pub limit: Option<usize>,
}

/// A part of a range.
#[derive(Debug)]
pub struct Page<T> {
    /// The keys in byte order.
    pub entries: Vec<Entry<T>>,
    /// Whether the limit was reached before the end of the range.
    pub more: bool,
}

/// A key and its version.
#[derive(Debug)]
pub struct Entry<T> {
    pub key: Arc<str>,
    /// Revisions of the version.
    pub stamp: Stamp,
    pub record: Arc<T>,
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), stamp: self.stamp, record: self.record.clone() }
    }
}

/// The requested revision is older than the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} has been compacted, the oldest kept is {oldest}")]
pub struct Compacted {
    /// What was requested for.
    pub requested: Revision,
    /// The oldest readable revision.
    pub oldest: Revision,
}

/// Why a revision cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It is older than the history.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    /// It is not committed yet; see [`Store::wait_for`](crate::Store::wait_for).
    #[error("revision {requested} is in the future, the current one is {current}")]
    Future {
        /// What was requested for.
        requested: Revision,
        /// The current revision.
        current: Revision,
    },
}
