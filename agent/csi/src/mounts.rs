//! What is mounted where, from the kernel's table. Nothing that is mounted is touched for it: it may hang.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

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
        std::fs::read("/proc/self/mountinfo").map(|table| Self::parse(&table))
    }

    fn parse(table: &[u8]) -> Self {
        let point = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(unescaped);
        Self(table.split(|byte| *byte == b'\n').filter_map(point).collect())
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

/// A path with its `\ooo` turned back into bytes.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0_u32, |value, digit| match digit {
                b'0'..=b'7' => Some(value * 8 + u32::from(digit - b'0')),
                _ => None,
            })
        };
        let escaped = (*first == b'\\').then(|| after.get(..3).and_then(octal)).flatten();
        match escaped.and_then(|value| u8::try_from(value).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found() {
        let table = b"22 1 0:21 / / rw - ext4 /dev/x rw\n30 22 0:5 /a /with\\040space\\134 rw shared:1 - tmpfs t rw\n";
        let table = MountTable::parse(table);
        assert!(table.has(Path::new("/")) && table.has(Path::new("/with space\\")));
        assert!(!table.has(Path::new("/a")));
        assert!(MountTable::read().unwrap().has(Path::new("/proc")));
    }
}
