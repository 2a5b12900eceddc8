//! A bound on what a request for a log reads without finding log entries: a pod may have written the file.

use std::io;
use std::path::Path;

use super::cri_log::ENTRY_LEN_MAX;

/// What a request may still read without finding log entries.
pub(crate) struct SearchBudget<'a> {
    path: &'a Path,
    max: u64,
    left: u64,
}

impl<'a> SearchBudget<'a> {
    pub(crate) fn new(path: &'a Path, max: u64) -> Self {
        Self { path, max, left: max }
    }

    /// The log that is read.
    pub(crate) fn path(&self) -> &'a Path {
        self.path
    }

    /// Counts bytes that were not entries.
    pub(crate) fn spend(&mut self, bytes: u64) -> io::Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let (path, mib) = (self.path.display(), self.max >> 20);
            let why = format!("{path} is not a container's log: {mib} MiB hold no log entries");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        Ok(())
    }

    /// Counts bytes that were searched for line ends; each line may be as long as an entry.
    pub(crate) fn search(&mut self, bytes: u64, lines: u64) -> io::Result<()> {
        let entries = lines.saturating_mul(ENTRY_LEN_MAX as u64);
        self.left = self.left.saturating_add(entries).min(self.max.saturating_add(bytes));
        self.spend(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rotated_files::BLOCK;

    #[test]
    fn a_search_may_go_on_while_it_finds_lines() {
        let mut budget = SearchBudget::new(Path::new("0.log"), 1 << 20);
        for _ in 0..10_000 {
            budget.search(BLOCK as u64, 1).expect("a line a block");
        }
        // Lines that were found do not pay for a later hole.
        let blocks = (0..).take_while(|_| budget.search(BLOCK as u64, 0).is_ok()).count();
        assert_eq!(blocks, (1 << 20) / BLOCK);
    }
}
