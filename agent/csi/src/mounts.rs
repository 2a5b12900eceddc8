//! What is mounted where, from the kernel's table. Nothing that is mounted is touched for it: it may hang.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proto_daemon::mountinfo;

/// Places where something is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable(BTreeSet<PathBuf>);

impl MountTable {
    /// Reads the table of this process.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read() -> std::io::Result<Self> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(table) = simulated::table() {
            return Ok(table);
        }
        let all = mountinfo::read()?;
        Ok(Self(all.into_iter().map(|mount| mount.point).collect()))
    }

    /// Whether something is mounted on that path, which has to be free of links.
    #[must_use]
    pub fn has(&self, path: &Path) -> bool {
        self.0.contains(path)
    }
}

/// A table that tests write themselves.
#[cfg(any(test, feature = "testing"))]
pub mod simulated {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::MountTable;

    thread_local! {
        static TABLE: RefCell<Option<MountTable>> = const { RefCell::new(None) };
    }

    /// Has this thread read this table instead of the kernel's.
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
