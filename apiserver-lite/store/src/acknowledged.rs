//! The last acknowledged revision, in a file next to the log. An incomplete frame above this revision is an interrupted write, one
//! at or below it is damage.
//!
//! The file is written after each commit and not synced. It may lag behind the log after a power failure, but is never ahead of it.
//! Writes alternate between two slots, so that a torn slot leaves the other one valid.
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
/// One slot per sector: writing one slot does not touch the other.
const SLOTS: [u64; 2] = [0, 512];

/// Revisions known from outside the log.
#[derive(Clone, Copy, Debug)]
pub struct KnownRevisions {
    /// The last revision in the checkpoint.
    pub checkpoint: Revision,
    /// The last acknowledged revision, if known.
    pub acknowledged: Option<Revision>,
}

impl KnownRevisions {
    /// Whether `revision` is known to be acknowledged.
    pub fn was_acknowledged(self, revision: Revision) -> bool {
        self.acknowledged.is_some_and(|acknowledged| acknowledged >= revision)
    }
}

/// The file with the last revision that was acknowledged to a client: a torn write after it may be cut.
pub struct AcknowledgedRevision {
    file: File,
    /// Which slot is written next.
    next_slot: usize,
    failing: bool,
}

impl AcknowledgedRevision {
    /// Reads the revision from the file in `directory`; `None` if the file is missing or damaged.
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
            tracing::warn!(%path, "the file of the acknowledged revision is invalid; an incomplete last frame of the log counts as unacknowledged and is cut");
        }
        Ok(last)
    }

    /// Opens or creates the file, writes `revision` to both slots and syncs it.
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
            // The slots are synced one after the other, so that one is valid at any time.
            file.sync_all()?;
        }
        File::open(directory)?.sync_all()?;
        Ok(Self { file, next_slot: 0, failing: false })
    }

    /// Writes an acknowledged revision. A failure only makes later damage harder to detect, so the commit still succeeds.
    pub fn write(&mut self, revision: Revision) {
        let offset = SLOTS.get(self.next_slot).copied().unwrap_or_default();
        let written = self.file.write_all_at(&encode(revision), offset);
        if let (Err(error), false) = (&written, self.failing) {
            tracing::warn!(%error, "cannot write the acknowledged revision; the next commit retries");
        }
        self.failing = written.is_err();
        self.next_slot = self.next_slot.saturating_add(1).checked_rem(SLOTS.len()).unwrap_or(0);
    }

    /// Syncs the file.
    pub fn sync(&self) {
        if let Err(error) = self.file.sync_data() {
            tracing::warn!(%error, "cannot sync the acknowledged revision at close; it may be lost on a power failure");
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
        assert_eq!(AcknowledgedRevision::read(dir.path()).unwrap(), None);
        let mut open = AcknowledgedRevision::open(dir.path(), Revision(7)).unwrap();
        open.write(Revision(8));
        open.write(Revision(9));
        assert_eq!(AcknowledgedRevision::read(dir.path()).unwrap(), Some(Revision(9)));
        let file = File::options().write(true).open(dir.path().join(NAME)).unwrap();
        file.write_all_at(b"x", 512 + 9).unwrap();
        assert_eq!(AcknowledgedRevision::read(dir.path()).unwrap(), Some(Revision(8)));
        file.set_len(10).unwrap();
        assert_eq!(AcknowledgedRevision::read(dir.path()).unwrap(), None);
        drop(AcknowledgedRevision::open(dir.path(), Revision(9)).unwrap());
        assert_eq!(AcknowledgedRevision::read(dir.path()).unwrap(), Some(Revision(9)));
    }
}
