//! Room on the disk that is kept for the journal. Ending a pod is written down before it begins, so a disk that pods have filled could
//! otherwise not be emptied by ending them.

use std::fs::{File, remove_file};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

/// How much: some hundred records, each of a few kilobytes, written beside what they replace.
const BYTES: u64 = 2 << 20;

/// A file of no use but its size.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    held: bool,
}

impl Reserve {
    /// Beside the journal at `journal`; takes the room if it is to be had.
    pub fn beside(journal: &Path) -> Self {
        let mut reserve = Self { path: journal.with_extension("reserve"), held: false };
        reserve.take();
        reserve
    }

    /// Takes the room again once there is some. A disk that is short of it is somebody else's to tell.
    pub fn take(&mut self) {
        if self.held {
            return;
        }
        match allocate(&self.path) {
            Ok(()) => self.held = true,
            // Half of it is of no use to us and may be to others.
            Err(_) => drop(remove_file(&self.path)),
        }
    }

    /// Gives the room to who writes next; whether there was any.
    pub fn give(&mut self) -> bool {
        let had = self.held && remove_file(&self.path).is_ok();
        self.held = false;
        had
    }
}

fn allocate(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).write(true).truncate(false).open(path)?;
    Ok(fallocate(&file, FallocateFlags::empty(), 0, BYTES)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_given_and_taken_again() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut reserve = Reserve::beside(&dir.path().join("journal.redb"));
        let size = || std::fs::metadata(dir.path().join("journal.reserve")).map(|m| m.len()).ok();
        assert_eq!(size(), Some(BYTES));
        assert!(reserve.give());
        assert_eq!(size(), None);
        assert!(!reserve.give(), "there is no more");
        reserve.take();
        assert_eq!(size(), Some(BYTES));
    }
}
