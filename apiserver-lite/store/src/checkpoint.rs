//! The checkpoint: a redb database of the records, the identity and the revision up to which it is complete; the log continues from
//! there. Only closed segments are folded in, in one transaction each and off the write path: a commit here costs some 300 us and
//! 10 to 25 us per record (measured), too much for every write.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format` ([`StoreFormat`]), `profile`, `domain` | text |
//! | `revision` | nothing | the last revision contained |
//! | `sum` | nothing | sum over the records, and the revision again |
//! | `records` | key | revision created, revision modified, stored form |

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use proto_daemon::private_files;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::{OpenError, Revision, Stamp, StoreIdentity, format::StoreFormat, log::Change};

const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
const REVISION: TableDefinition<'_, (), u64> = TableDefinition::new("revision");
/// [`RecordSum`] of the records, and the revision: detects damaged pages.
const SUM: TableDefinition<'_, (), (u64, u64)> = TableDefinition::new("sum");
const RECORDS: TableDefinition<'_, &str, (u64, u64, &[u8])> = TableDefinition::new("records");

/// Cache size of redb. It is not read while serving, so only the upper levels of the tree need to fit.
const CACHE_BYTES: usize = 2 << 20;

/// The open database. Its lock keeps other processes out of the store's directory.
pub struct Checkpoint {
    database: Database,
    path: PathBuf,
}

/// Stored forms by key.
pub type StoredRecords = BTreeMap<Arc<str>, (Stamp, Bytes)>;

impl Checkpoint {
    /// Opens or creates the database, checks that it belongs to `identity`, and raises its format to the newest one.
    pub fn open(path: &Path, identity: &StoreIdentity) -> Result<Self, OpenError> {
        if !path.exists() {
            create_database(path).map_err(|error| file_error(path, error))?;
        }
        let private = private_files::make_private(path);
        private.map_err(|source| OpenError::Directory { path: path.to_owned(), source })?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.open(path).map_err(|error| file_error(path, error))?;
        let checkpoint = Self { database, path: path.to_owned() };
        match checkpoint.read_identity().map_err(checkpoint_error)? {
            None => checkpoint.write_identity(identity).map_err(checkpoint_error)?,
            Some(found) => {
                let is = read_format(path, &found)?;
                check_identity(&found, identity)?;
                if is < StoreFormat::NEWEST {
                    checkpoint.raise_format().map_err(checkpoint_error)?;
                }
            }
        }
        Ok(checkpoint)
    }

    /// The rows of `meta`; `None` in a new database.
    fn read_identity(&self) -> Result<Option<BTreeMap<String, String>>, redb::Error> {
        let read = self.database.begin_read()?;
        let meta = match read.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut facts = BTreeMap::new();
        for fact in meta.iter()? {
            let (what, value) = fact?;
            facts.insert(what.value().to_owned(), value.value().to_owned());
        }
        Ok(Some(facts))
    }

    fn raise_format(&self) -> Result<(), redb::Error> {
        let mut write = self.database.begin_write()?;
        write.set_quick_repair(true);
        write.open_table(META)?.insert(FORMAT, StoreFormat::NEWEST.to_string().as_str())?;
        Ok(write.commit()?)
    }

    fn write_identity(&self, identity: &StoreIdentity) -> Result<(), redb::Error> {
        let mut claim = self.database.begin_write()?;
        claim.set_quick_repair(true);
        {
            let mut meta = claim.open_table(META)?;
            for (what, value) in identity_rows(identity) {
                meta.insert(what, value)?;
            }
            meta.insert(FORMAT, StoreFormat::NEWEST.to_string().as_str())?;
            claim.open_table(REVISION)?;
            claim.open_table(SUM)?.insert((), (0, 0))?;
            claim.open_table(RECORDS)?;
        }
        Ok(claim.commit()?)
    }

    /// Reads the revision and all records, and checks their sum.
    pub fn load(&self) -> Result<(Revision, StoredRecords), OpenError> {
        let (revision, stored, sum) = self.read_records().map_err(checkpoint_error)?;
        let found = self.read_sum().map_err(checkpoint_error)?;
        match found {
            None => self.write_sum(sum, revision).map_err(checkpoint_error)?,
            Some(written) if written == (sum, revision) => {}
            Some((_, other)) if other != revision => {
                let found =
                    format!("it has revision {revision} in one table and {other} in another");
                return Err(OpenError::DamagedCheckpoint { path: self.path.clone(), found });
            }
            Some(_) => {
                let found = "its records do not match their checksum".to_owned();
                return Err(OpenError::DamagedCheckpoint { path: self.path.clone(), found });
            }
        }
        Ok((revision, stored))
    }

    fn read_records(&self) -> Result<(Revision, StoredRecords, RecordSum), redb::Error> {
        let read = self.database.begin_read()?;
        let revision = read.open_table(REVISION)?;
        let revision = revision.get(())?.map_or(0, |value| value.value());
        let mut stored = StoredRecords::new();
        let mut sum = RecordSum::default();
        for record in read.open_table(RECORDS)?.iter()? {
            let (key, value) = record?;
            let (created, modified, bytes) = value.value();
            sum.add(key.value(), value.value());
            let stamp = Stamp { created: Revision(created), modified: Revision(modified) };
            stored.insert(key.value().into(), (stamp, Bytes::copy_from_slice(bytes)));
        }
        Ok((Revision(revision), stored, sum))
    }

    /// The stored sum; `None` in a checkpoint written before there was one.
    fn read_sum(&self) -> Result<Option<(RecordSum, Revision)>, redb::Error> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(SUM) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            opened => opened?,
        };
        let row = table.get(())?.map(|row| row.value());
        Ok(row.map(|(sum, revision)| (RecordSum(sum), Revision(revision))))
    }

    fn write_sum(&self, sum: RecordSum, revision: Revision) -> Result<(), redb::Error> {
        let mut write = self.database.begin_write()?;
        write.set_quick_repair(true);
        write.open_table(SUM)?.insert((), (sum.0, revision.0))?;
        Ok(write.commit()?)
    }

    /// The last revision contained.
    pub fn revision(&self) -> Result<Revision, redb::Error> {
        let read = self.database.begin_read()?;
        let revision = read.open_table(REVISION)?;
        Ok(Revision(revision.get(())?.map_or(0, |value| value.value())))
    }

    /// Applies the last change of each key; the checkpoint is then complete up to `revision`.
    pub fn fold(
        &self,
        revision: Revision,
        changes: &BTreeMap<Arc<str>, Change>,
    ) -> Result<(), redb::Error> {
        let mut fold = self.database.begin_write()?;
        // Without this, opening after a kill walks the whole database.
        fold.set_quick_repair(true);
        {
            fold.open_table(REVISION)?.insert((), revision.0)?;
            let mut sums = fold.open_table(SUM)?;
            let mut sum = RecordSum(sums.get(())?.map_or(0, |row| row.value().0));
            let mut records = fold.open_table(RECORDS)?;
            for Change { key, stamp, value } in changes.values() {
                let before = match value {
                    Some(value) => {
                        let row = (stamp.created.0, stamp.modified.0, value.as_ref());
                        sum.add(key, row);
                        records.insert(key.as_ref(), row)?
                    }
                    None => records.remove(key.as_ref())?,
                };
                if let Some(before) = before {
                    sum.subtract(key, before.value());
                }
            }
            sums.insert((), (sum.0, revision.0))?;
        }
        Ok(fold.commit()?)
    }
}

/// Sum of the records' checksums and their number, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RecordSum(u64);

impl RecordSum {
    fn add(&mut self, key: &str, row: (u64, u64, &[u8])) {
        self.0 = self.0.wrapping_add(Self::checksum(key, row));
    }

    fn subtract(&mut self, key: &str, row: (u64, u64, &[u8])) {
        self.0 = self.0.wrapping_sub(Self::checksum(key, row));
    }

    fn checksum(key: &str, (created, modified, value): (u64, u64, &[u8])) -> u64 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&(key.len() as u64).to_le_bytes());
        crc.update(key.as_bytes());
        crc.update(&created.to_le_bytes());
        crc.update(&modified.to_le_bytes());
        crc.update(value);
        (1 << 32) | u64::from(crc.finalize())
    }
}

/// The row of `meta` with the format.
const FORMAT: &str = "format";

fn read_format(path: &Path, found: &BTreeMap<String, String>) -> Result<StoreFormat, OpenError> {
    let found = found.get(FORMAT).cloned().unwrap_or_default();
    StoreFormat::parse(&found).ok_or_else(|| OpenError::Format {
        path: path.to_owned(),
        found,
        newest: StoreFormat::NEWEST.to_string(),
    })
}

fn identity_rows(identity: &StoreIdentity) -> [(&'static str, &str); 2] {
    [("profile", &identity.profile), ("domain", &identity.domain)]
}

fn check_identity(
    found: &BTreeMap<String, String>,
    identity: &StoreIdentity,
) -> Result<(), OpenError> {
    for (what, expected) in identity_rows(identity) {
        let found = found.get(what).map(String::as_str).unwrap_or_default();
        if found != expected {
            let (found, expected) = (found.to_owned(), expected.to_owned());
            return Err(OpenError::Identity { what, found, expected });
        }
    }
    Ok(())
}

/// Creates an empty database under another name and renames it when it is complete, because a partly created one cannot be
/// opened.
fn create_database(path: &Path) -> Result<(), redb::DatabaseError> {
    let unnamed = path.with_extension("new");
    match fs::remove_file(&unnamed) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    drop(Builder::new().create_file(private_files::create_private(&unnamed)?)?);
    fs::rename(&unnamed, path)?;
    Ok(path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())?)
}

fn file_error(path: &Path, error: redb::DatabaseError) -> OpenError {
    let path: PathBuf = path.to_owned();
    match error {
        redb::DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path },
        error => OpenError::File { path, source: Box::new(error.into()) },
    }
}

pub fn checkpoint_error(error: redb::Error) -> OpenError {
    OpenError::Checkpoint { source: Box::new(error) }
}
