//! Room on the disk that is the journal's own. Ending a pod is written down before it begins, so a disk that pods have filled could
//! otherwise not be emptied by ending them.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use proto_daemon::private_files;
use rustix::fs::{FallocateFlags, fallocate};

/// How much behind the end of the file: some hundred records, each of a few kilobytes, written beside what they replace.
const BYTES: u64 = 2 << 20;

/// Keeps the journal's file larger on the disk than it is long, so that nobody can take the room between two writes.
#[derive(Debug)]
pub struct Reserve {
    /// A handle of its own: the store locks and closes the one it has.
    journal: File,
}

impl Reserve {
    /// Of the journal at `path`, which exists; nothing is taken yet.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        let journal = private_files::open_private(path, OpenOptions::new().write(true))?;
        Ok(Self { journal })
    }

    /// Takes room for all of the file and [`BYTES`] behind it (fallocate(2) with FALLOC_FL_KEEP_SIZE). What it has already it keeps,
    /// though the disk be full. A disk that is short of room, or cannot promise any, is somebody else's to tell.
    pub fn hold(&self) {
        let held = self.journal.metadata().and_then(|file| {
            let wanted = file.len().saturating_add(BYTES);
            Ok(fallocate(&self.journal, FallocateFlags::KEEP_SIZE, 0, wanted)?)
        });
        if let Err(error) = held {
            tracing::debug!(%error, "no room is kept for the journal");
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
        let reserve = Reserve::of(&path).expect("opened");
        // A growing file with holes, then a shorter one: each loses or lacks room until it is held again.
        for len in [0, 3 << 20, 1 << 20] {
            journal.set_len(len).expect("length");
            reserve.hold();
            let file = journal.metadata().expect("metadata");
            assert_eq!(file.len(), len);
            assert!(file.blocks() * 512 >= len + BYTES, "{len}: {} blocks", file.blocks());
        }
    }
}
