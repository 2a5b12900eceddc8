//! Mount points, read from the kernel's mount table only: accessing a mount may hang.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agent_host::offload;
use proto_daemon::mountinfo;

/// The mount points of this process, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(BTreeSet<PathBuf>);

impl MountTable {
    /// Reads the mount table of this process.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read() -> std::io::Result<Self> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(table) = simulated::table() {
            return Ok(table);
        }
        let all = mountinfo::read()?;
        Ok(Self(all.into_iter().map(|mount| mount.point).collect()))
    }

    /// The same on a thread that may block: the table grows with the pods of the node.
    ///
    /// # Errors
    /// As [`MountTable::read`].
    pub async fn read_offloaded() -> std::io::Result<Self> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(table) = simulated::table() {
            return Ok(table);
        }
        offload(Self::read).await.and_then(|table| table)
    }

    /// Whether `path`, which must not contain links, is a mount point.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.0.contains(path)
    }
}

/// A mount table for tests.
#[cfg(any(test, feature = "testing"))]
pub mod simulated {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::MountTable;

    thread_local! {
        static TABLE: RefCell<Option<MountTable>> = const { RefCell::new(None) };
    }

    /// Makes this thread read `table` instead of the kernel's.
    pub fn set(table: Option<BTreeSet<PathBuf>>) {
        TABLE.set(table.map(MountTable));
    }

    pub(super) fn table() -> Option<MountTable> {
        TABLE.with_borrow(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found() {
        assert!(MountTable::read().unwrap().has(Path::new("/proc")));
    }
}
