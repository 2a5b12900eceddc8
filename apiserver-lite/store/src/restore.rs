//! Makes a store of a [backup](crate::backup). The whole file is read and its checksum compared before anything is written, and the store gets its
//! name when it is complete: an interrupted restore leaves `<directory>.restoring`, which the next one removes.
//!
//! Revisions after a restore are larger than any that the store had, also those that it gave out after the backup: clients that hold one get `410 Gone`
//! and list again, instead of mistaking another write for one that they have seen.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use proto_daemon::private_files;
use ring::digest::{Context, SHA256};

use crate::{
    BackupError, Revision, Stamp, StoreIdentity,
    acknowledged::AcknowledgedRevision,
    backup::{END, MAGIC, RECORD, VERSION},
    checkpoint::{Checkpoint, checkpoint_error},
    config::{KEY_LEN_MAX, VALUE_LEN_MAX},
    format::StoreFormat,
    log::{Change, Segment},
};

/// Writes for which there is room between the backup and the restored store at least.
const REVISION_GAP: u64 = 1_000_000_000;
/// Writes per millisecond since 1970 for which there is room: more than a store makes in the long run. Two restores of one backup have different
/// revisions because of that.
const REVISIONS_PER_MILLI: u64 = 20;
/// Largest revision of a backup: clients read revisions as doubles, whose integers end at 2^53.
const REVISION_MAX: u64 = 1 << 53;
/// Longest key or value of a backup.
const TEXT_LEN_MAX: u32 = 64 << 20;

// Every record of a store can be restored, also one that a transform has made larger.
const _: () = assert!(KEY_LEN_MAX + 2 * VALUE_LEN_MAX <= TEXT_LEN_MAX as usize);

/// What was restored from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoredStore {
    /// The number of its records.
    pub records: u64,
    /// The revision of the backup.
    pub backup: Revision,
    /// The revision of the store; its first write has the next one.
    pub revision: Revision,
}

/// Makes the store `directory`, which must not exist or be empty, of the backup `file`. `now` is the time since 1970.
///
/// # Errors
/// The file is not a whole backup of a store of `identity`, the directory is not empty, or it cannot be written.
pub fn restore(
    file: &Path,
    directory: &Path,
    identity: &StoreIdentity,
    now: Duration,
) -> Result<RestoredStore, BackupError> {
    check_empty(directory)?;
    let backup = read(file, identity)?;
    let revision = revision_after(backup.revision, now);
    let restored =
        RestoredStore { records: backup.records.len() as u64, backup: backup.revision, revision };
    let staging = staging(directory);
    let at = |source| BackupError::File { path: staging.clone(), source };
    match fs::remove_dir_all(&staging) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(error)),
        _ => {}
    }
    private_files::create_private_dir(&staging).map_err(at)?;
    let checkpoint = Checkpoint::open(&staging.join("records.redb"), identity)?;
    checkpoint.fold(revision, &backup.records).map_err(checkpoint_error)?;
    drop(checkpoint);
    drop(Segment::create(&staging, revision.next()).map_err(at)?);
    drop(AcknowledgedRevision::open(&staging, revision).map_err(at)?);
    let renamed = fs::rename(&staging, directory);
    renamed.map_err(|source| BackupError::File { path: directory.to_owned(), source })?;
    let parent = staging.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))
        .and_then(|parent| parent.sync_all())
        .map_err(at)?;
    Ok(restored)
}

/// The revision of a store that is restored now from a backup of this revision.
fn revision_after(backup: Revision, now: Duration) -> Revision {
    let millis = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let by_time = millis.saturating_mul(REVISIONS_PER_MILLI).min(REVISION_MAX);
    Revision(backup.0.saturating_add(REVISION_GAP).max(by_time))
}

fn staging(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().unwrap_or_default().to_owned();
    name.push(".restoring");
    directory.with_file_name(name)
}

fn check_empty(directory: &Path) -> Result<(), BackupError> {
    let at = |source| BackupError::File { path: directory.to_owned(), source };
    match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at(error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(BackupError::NotEmpty { path: directory.to_owned() }),
        },
    }
}

/// The content of a backup.
struct Backup {
    revision: Revision,
    records: BTreeMap<Arc<str>, Change>,
}

fn read(path: &Path, identity: &StoreIdentity) -> Result<Backup, BackupError> {
    let file = private_files::open_private(path, &mut OpenOptions::new());
    let file = file.map_err(|source| BackupError::File { path: path.to_owned(), source })?;
    let mut input = BackupReader {
        path,
        file: BufReader::with_capacity(64 << 10, file),
        sum: Context::new(&SHA256),
    };
    if input.bytes(MAGIC.len() as u32)? != MAGIC {
        return Err(input.damaged("it does not begin as a backup does"));
    }
    input.check_version(VERSION)?;
    input.check_identity(identity)?;
    let format = input.check_version(u32::from(StoreFormat::NEWEST as u8))?;
    StoreFormat::parse(&format.to_string())
        .ok_or_else(|| input.damaged("it names an unknown format"))?;
    let revision = input.u64()?;
    if revision > REVISION_MAX {
        return Err(input.damaged("its revision is too large"));
    }
    let records = input.records(revision)?;
    input.check_sum()?;
    Ok(Backup { revision: Revision(revision), records })
}

/// Reads the parts of a backup and sums them.
struct BackupReader<'a> {
    path: &'a Path,
    file: BufReader<File>,
    sum: Context,
}

impl BackupReader<'_> {
    fn damaged(&self, found: &str) -> BackupError {
        BackupError::Damaged { path: self.path.to_owned(), found: found.to_owned() }
    }

    fn bytes(&mut self, len: u32) -> Result<Vec<u8>, BackupError> {
        let mut bytes = Vec::new();
        let read = self.file.by_ref().take(u64::from(len)).read_to_end(&mut bytes);
        read.map_err(|source| BackupError::File { path: self.path.to_owned(), source })?;
        if bytes.len() as u64 != u64::from(len) {
            return Err(self.damaged("it ends early"));
        }
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, BackupError> {
        Ok(self.bytes(1)?.first().copied().unwrap_or_default())
    }

    fn u32(&mut self) -> Result<u32, BackupError> {
        Ok(u32::from_le_bytes(self.bytes(4)?.try_into().unwrap_or_default()))
    }

    fn u64(&mut self) -> Result<u64, BackupError> {
        Ok(u64::from_le_bytes(self.bytes(8)?.try_into().unwrap_or_default()))
    }

    fn text(&mut self) -> Result<Vec<u8>, BackupError> {
        let len = self.u32()?;
        if len > TEXT_LEN_MAX {
            return Err(self.damaged("it has a length that is too large"));
        }
        self.bytes(len)
    }

    fn string(&mut self) -> Result<String, BackupError> {
        String::from_utf8(self.text()?)
            .map_err(|_| self.damaged("it has a name that is not valid UTF-8"))
    }

    fn check_version(&mut self, known: u32) -> Result<u32, BackupError> {
        let found = self.u32()?;
        if found > known {
            return Err(BackupError::Version { path: self.path.to_owned(), found, known });
        }
        Ok(found)
    }

    fn check_identity(&mut self, identity: &StoreIdentity) -> Result<(), BackupError> {
        for (what, expected) in [("profile", &identity.profile), ("domain", &identity.domain)] {
            let found = self.string()?;
            if found != *expected {
                return Err(BackupError::Identity { what, found, expected: expected.clone() });
            }
        }
        Ok(())
    }

    fn records(&mut self, revision: u64) -> Result<BTreeMap<Arc<str>, Change>, BackupError> {
        let mut records = BTreeMap::<Arc<str>, Change>::new();
        loop {
            match self.u8()? {
                RECORD => {}
                END => break,
                _ => return Err(self.damaged("it has something that is no record")),
            }
            let (created, modified) = (self.u64()?, self.u64()?);
            let key: Arc<str> = self.string()?.into();
            let value = Some(Bytes::from(self.text()?));
            let in_order = records.last_key_value().is_none_or(|(last, _)| **last < *key);
            if created > modified || modified > revision || !in_order {
                return Err(self.damaged("its records are out of order"));
            }
            let stamp = Stamp { created: Revision(created), modified: Revision(modified) };
            records.insert(key.clone(), Change { key, stamp, value });
        }
        if self.u64()? != records.len() as u64 {
            return Err(self.damaged("it has another number of records than it says"));
        }
        Ok(records)
    }

    /// Compares the sum of what was read with the one at the end of the file.
    fn check_sum(mut self) -> Result<(), BackupError> {
        let sum = self.sum.clone().finish();
        if self.bytes(32)? != sum.as_ref() {
            return Err(self.damaged("its content does not match its checksum"));
        }
        let mut more = Vec::new();
        let read = self.file.by_ref().take(1).read_to_end(&mut more);
        read.map_err(|source| BackupError::File { path: self.path.to_owned(), source })?;
        if more.is_empty() { Ok(()) } else { Err(self.damaged("it goes on behind its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_do_not_come_back() {
        let at = |backup, secs| revision_after(Revision(backup), Duration::from_secs(secs)).0;
        let year_2026 = 1_780_000_000;
        assert_eq!(at(5, year_2026), 35_600_000_000_000);
        assert_eq!(at(35_600_000_000_000, year_2026), 35_601_000_000_000, "restored before");
        assert_eq!(at(5, 0), 1_000_000_005, "a clock that is not set");
        assert!(at(5, year_2026 + 1) > at(5, year_2026), "the same backup again");
        assert!(at(0, u64::MAX) <= 1 << 53, "a clock far in the future");
    }
}
