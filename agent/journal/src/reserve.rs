//! Disk space reserved for the journal. Terminating a pod is recorded before it starts, so a disk
//! filled by pods could otherwise not be freed by terminating them.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use proto_daemon::private_files;
use rustix::fs::{FallocateFlags, fallocate};

/// Space beyond the end of the file, for some hundred records of a few kilobytes each.
const BYTES: u64 = 2 << 20;

/// Keeps the journal's file allocated beyond its length, so that the space is not used up between
/// two writes.
#[derive(Debug)]
pub struct Reserve {
    /// A separate handle: the store locks and closes its own.
    journal: File,
}

impl Reserve {
    /// For the existing journal at `path`; nothing is allocated yet.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn at_path(path: &Path) -> io::Result<Self> {
        let journal = private_files::open_private(path, OpenOptions::new().write(true))?;
        Ok(Self { journal })
    }

    /// Allocates the file and [`BYTES`] beyond it (fallocate(2) with FALLOC_FL_KEEP_SIZE). Already
    /// allocated space is kept even on a full disk. Errors are only logged; other parts report a
    /// full disk.
    pub fn hold(&self) {
        let held = self.journal.metadata().and_then(|file| {
            let wanted = file.len().saturating_add(BYTES);
            Ok(fallocate(&self.journal, FallocateFlags::KEEP_SIZE, 0, wanted)?)
        });
        if let Err(error) = held {
            tracing::debug!(%error, "cannot reserve disk space for the journal");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn the_file_has_more_room_than_it_is_long() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("journal.redb");
        let journal = File::create(&path).expect("made");
        let reserve = Reserve::at_path(&path).expect("opened");
        // A growing file with holes, then a shorter one: each needs another allocation.
        for len in [0, 3 << 20, 1 << 20] {
            journal.set_len(len).expect("length");
            reserve.hold();
            let file = journal.metadata().expect("metadata");
            assert_eq!(file.len(), len);
            assert!(file.blocks() * 512 >= len + BYTES, "{len}: {} blocks", file.blocks());
        }
    }
}
