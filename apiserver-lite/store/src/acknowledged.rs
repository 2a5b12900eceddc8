//! The last revision that was answered, beside the log: a frame that is not whole is a write that broke off if its revision is above
//! this one, and damage otherwise.
//!
//! Written after each commit and not synced: it may lag behind (by what the kernel has not written back when the power is cut), and
//! never says more than the log has on the medium. Two slots by turns, so that one that is torn leaves the other.
//!
//! ```text
//!   slot  "orchack1"  revision u64  crc32 u32 over both, little-endian; the second one starts at 512
//! ```

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::Path,
};

use proto_daemon::private_files;

use crate::Revision;

const NAME: &str = "acknowledged";
const MAGIC: &[u8; 8] = b"orchack1";
const SLOT_LEN: usize = 20;
/// One slot a sector: a write of one does not touch the other.
const SLOTS: [u64; 2] = [0, 512];

/// The open file.
pub struct Acknowledged {
    file: File,
    /// Which slot is written next.
    turn: usize,
    failing: bool,
}

impl Acknowledged {
    /// What the file in `directory` says; nothing when it is missing or not readable as one.
    pub fn read(directory: &Path) -> io::Result<Option<Revision>> {
        let path = directory.join(NAME);
        let file = match private_files::open_private(&path, &mut OpenOptions::new()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let revisions = SLOTS.iter().filter_map(|offset| {
            let mut slot = [0; SLOT_LEN];
            file.read_exact_at(&mut slot, *offset).ok()?;
            decode(&slot)
        });
        let last = revisions.max();
        if last.is_none() {
            let path = path.display();
            tracing::warn!(%path, "is damaged: whether the last frame was answered is not known");
        }
        Ok(last)
    }

    /// Makes the file, or that which is there, say `revision`, and syncs it.
    pub fn open(directory: &Path, revision: Revision) -> io::Result<Self> {
        let path = directory.join(NAME);
        let existing = private_files::open_private(&path, OpenOptions::new().write(true));
        let file = match existing {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                private_files::create_private(&path)?
            }
            opened => opened?,
        };
        for offset in SLOTS {
            file.write_all_at(&encode(revision), offset)?;
            // One after the other: one of them is whole at any time.
            file.sync_all()?;
        }
        File::open(directory)?.sync_all()?;
        Ok(Self { file, turn: 0, failing: false })
    }

    /// Notes an answered revision. A failure makes the next damage harder to tell and is no reason to refuse the write.
    pub fn note(&mut self, revision: Revision) {
        let offset = SLOTS.get(self.turn).copied().unwrap_or_default();
        let written = self.file.write_all_at(&encode(revision), offset);
        if let (Err(error), false) = (&written, self.failing) {
            tracing::warn!(%error, "the answered revision cannot be noted");
        }
        self.failing = written.is_err();
        self.turn = (self.turn + 1) % SLOTS.len();
    }

    /// Puts what was noted on the medium.
    pub fn sync(&self) {
        if let Err(error) = self.file.sync_data() {
            tracing::warn!(%error, "the answered revision is perhaps not on the medium");
        }
    }
}

fn encode(revision: Revision) -> Vec<u8> {
    let mut slot = MAGIC.to_vec();
    slot.extend_from_slice(&revision.0.to_le_bytes());
    let crc = crc32fast::hash(&slot);
    slot.extend_from_slice(&crc.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_LEN]) -> Option<Revision> {
    let (said, crc) = slot.split_at(SLOT_LEN - 4);
    let whole = crc32fast::hash(said).to_le_bytes() == crc;
    let revision = said.strip_prefix(MAGIC)?;
    whole.then_some(Revision(u64::from_le_bytes(revision.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_damaged_slot_leaves_the_other() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Acknowledged::read(dir.path()).unwrap(), None);
        let mut open = Acknowledged::open(dir.path(), Revision(7)).unwrap();
        open.note(Revision(8));
        open.note(Revision(9));
        assert_eq!(Acknowledged::read(dir.path()).unwrap(), Some(Revision(9)));
        let file = File::options().write(true).open(dir.path().join(NAME)).unwrap();
        file.write_all_at(b"x", 512 + 9).unwrap();
        assert_eq!(Acknowledged::read(dir.path()).unwrap(), Some(Revision(8)));
        file.set_len(10).unwrap();
        assert_eq!(Acknowledged::read(dir.path()).unwrap(), None);
        drop(Acknowledged::open(dir.path(), Revision(9)).unwrap());
        assert_eq!(Acknowledged::read(dir.path()).unwrap(), Some(Revision(9)));
    }
}
